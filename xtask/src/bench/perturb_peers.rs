//! Other tracers, on the procedures of `bench perturb uprobes`: perf, uftrace, LTTng.

use super::perturb_uprobes::{Build, Corrected, Subject, correct};
use crate::packages;
use crate::process::{command, must, output};
use anyhow::{Context as _, ensure};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::process::Command;

/// Most bytes of a trace as text: a larger one has calls of procedures that were not asked for.
const TEXT_MOST: usize = 64 << 20;

named! {
    /// A tracer.
    pub enum Peer {
        /// `perf record` of uprobes.
        PerfRecord = "perf record",
        /// `perf trace` of uprobes.
        PerfTrace = "perf trace",
        /// Entries that are patched at run time.
        Uftrace = "uftrace",
        /// Calls that the compiler adds.
        Lttng = "LTTng",
    }
}

/// Programs and calibration traces for all runs of the tracers.
pub struct Peers {
    programs: String,
    /// Traces of the calibration program by uftrace and by LTTng.
    uftrace: String,
    lttng: String,
}

impl Peers {
    /// Traces the calibration program by uftrace and LTTng, whose events `dcpi` cannot make itself.
    pub fn prepare(folder: &str, programs: &str) -> anyhow::Result<Self> {
        let source = format!("{folder}/calibration.c");
        fs::write(
            &source,
            output(&mut command(&format!("{programs}/dcpi trace --calibration-program")))?,
        )?;
        for (name, flags) in [
            ("patchable", "-fpatchable-function-entry=5"),
            ("calling", "-finstrument-functions -no-pie"),
        ] {
            must(&mut command(&format!(
                "gcc -O2 -o {folder}/calibration-{name} {flags} {source}"
            )))?;
        }
        let peers = Self {
            programs: programs.to_owned(),
            uftrace: format!("{folder}/calibration.uftrace"),
            lttng: format!("{folder}/calibration.lttng"),
        };
        let program = format!("{folder}/calibration-patchable");
        uftrace(folder, ".", &[program], &peers.uftrace)?;
        // Fails where a session daemon runs already, which serves as well.
        let _ = Command::new("lttng-sessiond").args(["--daemonize", "--quiet"]).status();
        lttng(folder, &[format!("{folder}/calibration-calling")], &peers.lttng)?;
        Ok(peers)
    }

    /// A run traced by a peer, and its trace corrected; None where the tool wrote nothing.
    pub fn traced(
        &self,
        peer: Peer,
        subject: &Subject,
        folder: &str,
    ) -> anyhow::Result<Option<Corrected>> {
        let file = format!("{folder}/{}.peer", subject.name);
        let of = |arguments: &[&str]| {
            let json = correct(&self.programs, arguments)?;
            Ok(json.get("elapsed_ns").and_then(Corrected::of))
        };
        match peer {
            Peer::PerfRecord | Peer::PerfTrace => {
                let probes = Probes::add(subject, folder)?;
                let words = subject.words(folder, Build::Plain);
                if peer == Peer::PerfTrace {
                    let events = probes.events();
                    let line = format!("perf trace --no-syscalls -e {events} -o {file} --");
                    let words: Vec<String> =
                        line.split(' ').map(str::to_owned).chain(words).collect();
                    let took = Subject::run(&words)?;
                    return Ok(Some(Corrected { measured: took.wall, range: None }));
                }
                let line =
                    format!("perf record -q -m 16M -o {file}.data -e {} --", probes.events());
                must_quietly(command(&line).args(words))?;
                let text = output(&mut command(&format!("perf script -i {file}.data")))?;
                fs::write(&file, text)?;
                of(&[
                    &file,
                    "--calibration",
                    "here",
                    "--probed",
                    &subject.path(folder, Build::Plain),
                ])
            }
            Peer::Uftrace => {
                let names = [subject.procedures, &["main"]].concat().join("|");
                let words = subject.words(folder, Build::Patchable);
                uftrace(folder, &format!("^({names})$"), &words, &file)?;
                of(&[&file, "--calibration", &self.uftrace])
            }
            Peer::Lttng => {
                lttng(folder, &subject.words(folder, Build::Calling), &file)?;
                of(&[&file, "--calibration", &self.lttng])
            }
        }
    }
}

/// perf's probes of a program, removed when the value is dropped.
struct Probes {
    group: String,
}

impl Probes {
    fn add(subject: &Subject, folder: &str) -> anyhow::Result<Self> {
        let path = std::path::absolute(subject.path(folder, Build::Plain))?;
        let probes = Self { group: format!("probe_{}", subject.name) };
        probes.remove();
        for name in subject.procedures.iter().chain(&["main"]) {
            for place in [(*name).to_owned(), format!("{name}%return")] {
                let mut perf = command("perf probe -q -x");
                must_quietly(perf.arg(&path).args(["-a", &place]))?;
            }
        }
        Ok(probes)
    }

    fn events(&self) -> String {
        format!("{}:*", self.group)
    }

    fn remove(&self) {
        // There may be none.
        let _ = command(&format!("perf probe -q -d {}", self.events())).output();
    }
}

impl Drop for Probes {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Traces procedures that match a pattern, and writes uftrace's dump.
fn uftrace(folder: &str, pattern: &str, words: &[String], to: &str) -> anyhow::Result<()> {
    let data = format!("{folder}/uftrace.data");
    let mut record = command(&format!("uftrace record -d {data}"));
    must_quietly(record.args(["-P", pattern, "--"]).args(words))?;
    fs::write(to, output(&mut command(&format!("uftrace dump -d {data}")))?)?;
    Ok(())
}

/// Traces calls that the compiler added, and writes them in the format of `perf script`.
fn lttng(folder: &str, words: &[String], to: &str) -> anyhow::Result<()> {
    let data = std::path::absolute(format!("{folder}/lttng.data"))?;
    let _ = fs::remove_dir_all(&data); // of an earlier run
    let _ = command("lttng destroy dcpi").output(); // of one that was interrupted
    let data = data.display();
    for line in [
        format!("lttng create dcpi --output {data}"),
        "lttng enable-channel -u calls --subbuf-size 16M --num-subbuf 4".to_owned(),
        "lttng enable-event -u -c calls lttng_ust_cyg_profile:*".to_owned(),
        "lttng add-context -u -c calls -t vtid".to_owned(),
        "lttng start".to_owned(),
    ] {
        must_quietly(&mut command(&line))?;
    }
    let mut traced = Command::new(words.first().context("no command")?);
    traced.args(words.get(1..).unwrap_or_default()).env("LD_PRELOAD", packages::CYG_PROFILE);
    let ran = must_quietly(&mut traced);
    must_quietly(&mut command("lttng destroy dcpi"))?;
    ran?;
    let text = output(&mut command(&format!("babeltrace2 --clock-seconds {data}")))?;
    ensure!(
        text.len() <= TEXT_MOST,
        "gcc added calls to other procedures, too: {} MB of events",
        text.len() >> 20
    );
    let names = names(words.first().context("no command")?)?;
    fs::write(to, as_perf_script(&text, &names))?;
    Ok(())
}

/// Procedures by address, of a program that is not position independent.
fn names(path: &str) -> anyhow::Result<HashMap<u64, String>> {
    let text = output(&mut command(&format!("nm --defined-only {path}")))?;
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let address = u64::from_str_radix(words.next()?, 16).ok()?;
        Some((address, words.nth(1)?.to_owned()))
    };
    Ok(text.lines().filter_map(line).collect())
}

/// Converts the lines of babeltrace2 to those of `perf script`.
fn as_perf_script(text: &str, names: &HashMap<u64, String>) -> String {
    let mut lines = String::new();
    for line in text.lines() {
        let field = |name: &str| {
            let (_, rest) = line.split_once(&format!("{name} = "))?;
            rest.split([',', ' ', '}']).next()
        };
        let time = line.strip_prefix('[').and_then(|rest| rest.split_once(']'));
        let address = field("addr").and_then(|text| text.strip_prefix("0x"));
        let address = address.and_then(|text| u64::from_str_radix(text, 16).ok());
        let name = address.and_then(|address| names.get(&address));
        let (Some((time, _)), Some(name), Some(thread)) = (time, name, field("vtid")) else {
            continue;
        };
        let suffix = if line.contains("func_exit") { "__return" } else { "" };
        let _ = writeln!(lines, "program {thread} [000] {time}: probe:{name}{suffix}: (0)");
    }
    lines
}

fn must_quietly(run: &mut Command) -> anyhow::Result<()> {
    output(run).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lttngs_events_become_perfs() {
        let names = HashMap::from([(0x401136, "give".to_owned())]);
        let of = |kind: &str| {
            format!(
                "[1764.123456789] (+0.000000100) host lttng_ust_cyg_profile:{kind}: {{ cpu_id = 1 }}, \
                 {{ vtid = 77 }}, {{ addr = 0x401136, call_site = 0x401200 }}\n"
            )
        };
        let text = of("func_entry") + &of("func_exit") + "something else\n";
        assert_eq!(
            as_perf_script(&text, &names),
            "program 77 [000] 1764.123456789: probe:give: (0)\n\
             program 77 [000] 1764.123456789: probe:give__return: (0)\n"
        );
    }
}
