//! The processor as `dcpi machine` measured it: a file that epochs keep with their samples. dcpid
//! itself never measures, since that takes the memory's whole throughput for seconds.

use model::{Cpuid, MeasuredMachine};
use nix::fcntl::OFlag;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Reads the file. None where there is none, or, with a warning, where it cannot be read or is of
/// another processor than this one, `cpuid`.
pub fn read(file: Option<&Path>, cpuid: Option<&Cpuid>) -> Option<MeasuredMachine> {
    let file = file?;
    match checked(file, cpuid) {
        Ok(measured) => Some(measured),
        Err(Refusal::Missing) if file == Path::new(MeasuredMachine::FILE) => None,
        Err(why) => {
            let path = file.display();
            let why = match why {
                Refusal::Missing => "there is no such file".to_owned(),
                Refusal::Because(why) => why,
            };
            tracing::warn!(
                "the measured machine {path}: {why}; epochs are without it until dcpi machine -o {path} and a reload"
            );
            None
        }
    }
}

/// Why a file is not used.
#[derive(Debug, PartialEq)]
enum Refusal {
    Missing,
    Because(String),
}

fn checked(path: &Path, cpuid: Option<&Cpuid>) -> Result<MeasuredMachine, Refusal> {
    let refused = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => Refusal::Missing,
        _ => Refusal::Because(error.to_string()),
    };
    let mut options = File::options();
    // A pipe would wait for a writer.
    options.read(true).custom_flags((OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits());
    let file = options.open(path).map_err(refused)?;
    if !file.metadata().map_err(refused)?.is_file() {
        return Err(Refusal::Because("it is no file".to_owned()));
    }
    let mut text = Vec::new();
    file.take(MeasuredMachine::FILE_BYTES_MAX.saturating_add(1))
        .read_to_end(&mut text)
        .map_err(refused)?;
    let measured = MeasuredMachine::of_file(&text).map_err(Refusal::Because)?;
    if cpuid != Some(&measured.cpuid) {
        let Cpuid { vendor, family, model } = &measured.cpuid;
        let vendor: String = vendor.chars().filter(|c| !c.is_control()).collect();
        let why = format!("it is of another processor, {vendor} family {family} model {model}");
        return Err(Refusal::Because(why));
    }
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_taken_on_its_own_processor_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("machine");
        let text = include_str!("../../../analysis/stalls/tests/zen4.json");
        let own = Cpuid { vendor: "AuthenticAMD".into(), family: 25, model: 17 };
        assert_eq!(checked(&path, Some(&own)), Err(Refusal::Missing));
        std::fs::write(&path, text).unwrap();
        assert_eq!(read(Some(&path), Some(&own)).unwrap().cpuid, own);
        let other = Cpuid { model: 1, ..own.clone() };
        for cpuid in [Some(&other), None] {
            assert!(read(Some(&path), cpuid).is_none());
        }
        assert_eq!(read(None, Some(&own)), None);
        std::fs::write(&path, &text[..text.len() / 2]).unwrap();
        assert!(matches!(checked(&path, Some(&own)), Err(Refusal::Because(_))));
        let is_no_file = Err(Refusal::Because("it is no file".to_owned()));
        assert_eq!(checked(folder.path(), Some(&own)), is_no_file);
        nix::unistd::mkfifo(&folder.path().join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(checked(&folder.path().join("pipe"), Some(&own)), is_no_file);
    }
}
