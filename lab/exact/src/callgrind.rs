//! Counting by callgrind, a tool of Valgrind: on every processor that Valgrind knows, one thread at
//! a time, about 40 times slower than the command alone.

use crate::{Counts, Engine, EngineError, Run, Site, Streams, files_of, unreadable};
use image::{Layout, Vaddr};
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

/// Options of callgrind: addresses as numbers, names in full, no call through the PLT joined to the
/// call that it leads to, and a file for each process.
const OPTIONS: [&str; 8] = [
    "--tool=callgrind",
    "--dump-instr=yes",
    "--collect-jumps=yes",
    "--compress-strings=no",
    "--compress-pos=no",
    "--skip-plt=no",
    "--trace-children=yes",
    "-q",
];
/// Most bytes of a file of counts: a run of a compiler writes 200 MB.
const COUNTS_MAX: u64 = 1 << 30;

/// Counts of one object file, by its addresses.
#[derive(Clone, Debug, Default)]
pub struct ObjectCounts {
    /// Executions by instruction.
    pub executed: HashMap<Vaddr, u64>,
    /// Executions of jumps, by the jump and its target.
    pub jumped: HashMap<(Vaddr, Vaddr), u64>,
    /// Calls, by the call instruction, the object file of the target, and the target.
    pub calls: HashMap<(Vaddr, String, Vaddr), u64>,
}

/// Callgrind as an [`Engine`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Callgrind;

impl Engine for Callgrind {
    fn name(&self) -> &'static str {
        "valgrind"
    }

    fn run(&self, command: &[OsString], streams: Streams) -> Result<Run, EngineError> {
        let not_started = |why: String| EngineError::NotStarted { program: "valgrind", why };
        let folder = tempfile::Builder::new()
            .prefix("dcpi-counts-")
            .tempdir()
            .map_err(|error| not_started(format!("no directory for its counts: {error}")))?;
        let mut valgrind = Command::new("valgrind");
        valgrind
            .args(OPTIONS)
            .arg(format!("--callgrind-out-file={}/%p", folder.path().display()))
            .arg(format!("--log-file={}/log.%p", folder.path().display()))
            .args(command);
        streams.give(&mut valgrind);
        let begun = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let status = valgrind.status().map_err(|error| {
            not_started(format!("{error}; install it: apt-get install valgrind"))
        })?;
        let mut counts = Counts::default();
        let mut said = String::new();
        for path in files_of(folder.path())? {
            let is_log =
                path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"log."));
            if is_log {
                let mut text = Vec::new();
                let file = File::open(&path).map_err(|error| unreadable(&path, &error))?;
                let _ = file.take(4096).read_to_end(&mut text);
                said.push_str(&String::from_utf8_lossy(&text));
                continue;
            }
            let file = File::open(&path).map_err(|error| unreadable(&path, &error))?;
            let objects = read(BufReader::new(file.take(COUNTS_MAX)))
                .map_err(|error| unreadable(&path, &error))?;
            counts.processes += 1;
            add(&mut counts, &objects);
        }
        if counts.files.is_empty() {
            let said = said.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
            let why = match said.is_empty() {
                true => "the command did not run, or was killed".to_owned(),
                false => said.chars().take(200).collect(),
            };
            return Err(EngineError::NoCounts { program: "valgrind", why });
        }
        counts.notes.push(
            "callgrind counts each round of a repeated string instruction (rep) as an execution"
                .to_owned(),
        );
        for file in &counts.files {
            let changed = std::fs::metadata(&file.file.path).map(|found| {
                (found.ctime().cast_unsigned(), found.ctime_nsec().cast_unsigned() as u32)
            });
            if changed.is_ok_and(|changed| changed >= (begun.as_secs(), begun.subsec_nanos())) {
                counts.notes.push(format!(
                    "callgrind names files after the run: {} was changed meanwhile, so its counts \
                     may be of another build",
                    file.file.path.display()
                ));
            }
        }
        if counts.processes > 1 {
            let note = "callgrind counts what a process did before a fork for its children, too";
            counts.notes.push(note.to_owned());
        }
        Ok(Run { status, counts })
    }
}

/// Adds the counts of a process, where its object files can be opened.
fn add(counts: &mut Counts, objects: &HashMap<String, ObjectCounts>) {
    let mut layouts: BTreeMap<&str, Option<(usize, Layout)>> = BTreeMap::new();
    let mut names: Vec<&str> = objects.keys().map(String::as_str).collect();
    let targets = objects.values().flat_map(|object| object.calls.keys());
    names.extend(targets.map(|(_, object, _)| object.as_str()));
    names.sort_unstable();
    for name in names {
        layouts.entry(name).or_insert_with(|| {
            let layout = Layout::of_file(&File::open(name).ok()?).ok()?;
            Some((counts.file(Path::new(name)), layout))
        });
    }
    let place = |name: &str, at: Vaddr| {
        let (file, layout) = layouts.get(name)?.as_ref()?;
        Some(Site { file: *file, offset: layout.vaddr_to_file_offset(at)? })
    };
    let more = |sum: &mut u64, count: u64| *sum = sum.saturating_add(count);
    for (name, object) in objects {
        for (at, count) in &object.executed {
            let file = place(name, *at)
                .and_then(|site| Some((counts.files.get_mut(site.file)?, site.offset)));
            more(&mut counts.counted, *count);
            match file {
                Some((file, offset)) => more(file.executed.entry(offset).or_default(), *count),
                None if name.starts_with('/') && layouts.get(name.as_str()) == Some(&None) => {
                    let why = "a file that was gone when the run ended";
                    counts.unattributed.add(Path::new(name), why, *count);
                }
                None => more(&mut counts.elsewhere, *count),
            }
        }
        for ((from, to), count) in &object.jumped {
            let both = place(name, *from).zip(place(name, *to));
            if let Some((from, to)) = both
                && let Some(file) = counts.files.get_mut(from.file)
            {
                more(file.taken.entry((from.offset, to.offset)).or_default(), *count);
            }
        }
        for ((from, object, to), count) in &object.calls {
            if let Some(call) = place(name, *from).zip(place(object, *to)) {
                more(counts.calls.entry(call).or_default(), *count);
            }
        }
    }
}

/// Reads a file that callgrind wrote with `--dump-instr=yes --collect-jumps=yes
/// --compress-strings=no --compress-pos=no`, into counts by object file (Valgrind's manual,
/// "Callgrind Format Specification"). Lines that are none of these are left out.
///
/// # Errors
/// Returns the errors of reading.
pub fn read(text: impl BufRead) -> std::io::Result<HashMap<String, ObjectCounts>> {
    let mut reading = Reading::default();
    for line in text.split(b'\n') {
        reading.line(&String::from_utf8_lossy(&line?));
    }
    reading.all.retain(|_, counts| !counts.executed.is_empty());
    Ok(reading.all)
}

/// The subject of the line after a line about a branch.
enum Next {
    Jump { count: u64, to: Vaddr },
    Call { count: u64, object: String, to: Vaddr },
}

#[derive(Default)]
struct Reading {
    all: HashMap<String, ObjectCounts>,
    object: String,
    /// Object file of the next call's target, if it is a different one.
    called: Option<String>,
    next: Option<Next>,
}

impl Reading {
    fn line(&mut self, line: &str) {
        if let Some(name) = line.strip_prefix("ob=") {
            name.clone_into(&mut self.object);
        } else if let Some(name) = line.strip_prefix("cob=").or_else(|| line.strip_prefix("cobj="))
        {
            self.called = Some(name.to_owned());
        } else if let Some(call) = line.strip_prefix("calls=") {
            let object = self.called.take().unwrap_or_else(|| self.object.clone());
            self.next = branch(call).map(|(count, to)| Next::Call { count, object, to });
        } else if let Some(jump) = line.strip_prefix("jcnd=").or_else(|| line.strip_prefix("jump="))
        {
            self.next = branch(jump).map(|(count, to)| Next::Jump { count, to });
        } else if line.starts_with("0x") {
            self.counted(line);
        }
    }

    /// A line that begins with an address: its cost, or the place of the branch before it.
    fn counted(&mut self, line: &str) {
        let mut fields = line.split_ascii_whitespace();
        let Some(at) = fields.next().and_then(address) else { return };
        let counts = self.all.entry(self.object.clone()).or_default();
        let (sum, count) = match self.next.take() {
            Some(Next::Jump { count, to }) => (counts.jumped.entry((at, to)).or_default(), count),
            Some(Next::Call { count, object, to }) => {
                (counts.calls.entry((at, object, to)).or_default(), count)
            }
            None => {
                let Some(count) = fields.nth(1).and_then(|count| count.parse().ok()) else {
                    return;
                };
                (counts.executed.entry(at).or_default(), count)
            }
        };
        *sum = sum.saturating_add(count);
    }
}

fn address(text: &str) -> Option<Vaddr> {
    u64::from_str_radix(text.strip_prefix("0x")?, 16).ok().map(Vaddr)
}

/// Count and target of `COUNT[/ALL] TARGET ...`.
fn branch(text: &str) -> Option<(u64, Vaddr)> {
    let mut fields = text.split_ascii_whitespace();
    let count = fields.next()?.split('/').next()?.parse().ok()?;
    Some((count, fields.next().and_then(address)?))
}

/// Offsets of the text in a test.
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executions_jumps_and_calls_are_read_by_object() {
        let text = "version: 1\ncmd: x\nob=/bin/x\nfl=x\nfn=f\n0x1000 0 7\n0x1002 0 700\n\
                    jcnd=693/700 0x1002 0\n0x1006 0\n0x1006 0 700\ncob=/lib/y\ncfn=g\n\
                    calls=7 0x2000 0\n0x1008 0 99999\ncfn=h\ncalls=3 0x1100 0\n0x100c 0 12\n\
                    jump=5 0x1000 0\n0x1010 0\nnonsense\n0xzz 1 2\n";
        let all = read(text.as_bytes()).unwrap();
        let x = &all["/bin/x"];
        let at = Vaddr;
        assert_eq!(x.executed, [(at(0x1000), 7), (at(0x1002), 700), (at(0x1006), 700)].into());
        let jumped = [((at(0x1006), at(0x1002)), 693), ((at(0x1010), at(0x1000)), 5)];
        assert_eq!(x.jumped, jumped.into());
        let calls = [
            ((at(0x1008), "/lib/y".to_owned(), at(0x2000)), 7),
            ((at(0x100c), "/bin/x".to_owned(), at(0x1100)), 3),
        ];
        assert_eq!(x.calls, calls.into());
        assert_eq!(all.len(), 1);
    }

    #[test]
    fn a_small_program_is_counted_in_all_its_files() {
        let run = Callgrind.run(&["true".into()], Streams::default()).unwrap();
        assert!(run.status.success());
        let Counts { files, calls, processes, .. } = &run.counts;
        assert_eq!(*processes, 1);
        let named = |end: &str| files.iter().position(|file| file.file.path.ends_with(end));
        let (program, libc) = (named("true").unwrap(), named("libc.so.6").unwrap());
        assert!(files[program].executed.len() > 10 && files[libc].executed.len() > 100);
        let crossing = |(from, to): &(Site, Site)| from.file == program && to.file != program;
        assert!(calls.keys().any(crossing), "main is called, and calls into a library");
        let entered = |site: &Site| files[site.file].executed.contains_key(&site.offset);
        assert!(calls.keys().filter(|(from, to)| entered(from) && entered(to)).count() > 10);
    }
}
