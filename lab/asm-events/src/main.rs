//! The program `as`, which compilers run: adds events and runs the real assembler.
#![forbid(unsafe_code)]

use anyhow::{Context, bail};
use asm_events::rewrite::{Options, Place, rewrite};
use asm_events::survey::is_compiled;
use std::ffi::{OsStr, OsString};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::{env, fs};

/// Environment variable with the words of [`Options::read`]. A wrapper in a folder `plain` adds no
/// events without it.
const OPTIONS: &str = "DCPI_EVENTS";
/// Environment variable with the real assembler's path; default: the first other `as` in PATH.
const ASSEMBLER: &str = "DCPI_AS";
/// Environment variable that makes the wrapper name procedures without events.
const VERBOSE: &str = "DCPI_EVENTS_VERBOSE";
/// Options of the GNU assembler whose value is the next argument.
const WITH_VALUE: [&str; 4] = ["-o", "-I", "--defsym", "-MD"];

fn main() -> ExitCode {
    run().unwrap_or_else(|error| {
        let mut problem = std::io::stderr();
        _ = writeln!(problem, "dcpi-as: {error:#}");
        ExitCode::from(2)
    })
}

fn run() -> anyhow::Result<ExitCode> {
    let arguments: Vec<OsString> = env::args_os().skip(1).collect();
    let assembler = assembler()?;
    let own = env::current_exe().context("the wrapper's own path")?;
    let plain = own.parent().and_then(|folder| folder.file_name()) == Some(OsStr::new("plain"));
    let words = env::var(OPTIONS).unwrap_or_default();
    let mut options = Options::read(&words).with_context(|| {
        format!(
            "{OPTIONS}={words}: words are blocks, statements, nowhere, times, fenced, twice, half"
        )
    })?;
    if plain {
        options.place = Place::Nowhere;
    }
    let mut command = Command::new(&assembler);
    let mut input = None;
    let mut value = false;
    for argument in &arguments {
        let is_value = std::mem::replace(
            &mut value,
            WITH_VALUE.iter().any(|option| argument.as_bytes() == option.as_bytes()),
        );
        let is_file = argument.as_bytes() == b"-" || !argument.as_bytes().starts_with(b"-");
        if is_value || !is_file {
            command.arg(argument);
        } else if input.replace(argument.clone()).is_some() {
            bail!("more than one file of assembly: give the compiler one source file at a time");
        }
    }
    // `as --version` and the like read nothing.
    let asks = ["--version", "-v", "--help", "-version"];
    let only_asks = arguments.iter().any(|it| asks.iter().any(|ask| it == ask));
    if input.is_none() && only_asks {
        let status = command.status().with_context(|| assembler.display().to_string())?;
        return Ok(code(status));
    }
    let mut bytes = Vec::new();
    match input.as_deref().filter(|file| file.as_bytes() != b"-") {
        Some(file) => {
            bytes = fs::read(file).with_context(|| file.display().to_string())?;
        }
        None => _ = std::io::stdin().read_to_end(&mut bytes).context("standard input")?,
    }
    let text = str::from_utf8(&bytes).ok().filter(|text| is_compiled(text));
    let rewritten = text.map(|text| rewrite(text, &options));
    if let Some(rewritten) = &rewritten
        && env::var_os(VERBOSE).is_some()
    {
        let mut said = std::io::stderr();
        for (name, why) in &rewritten.refused {
            _ = writeln!(said, "dcpi-as: no events in {name}: {why}");
        }
    }
    // From a pipe, so that nothing has to be removed afterwards.
    let mut child = command
        .arg("-")
        .stdin(Stdio::piped())
        .spawn()
        .with_context(|| assembler.display().to_string())?;
    if let Some(mut pipe) = child.stdin.take() {
        let out = rewritten.as_ref().map_or(bytes.as_slice(), |it| it.text.as_bytes());
        // Fails where the assembler ends early, which prints its own reason.
        _ = pipe.write_all(out);
    }
    Ok(code(child.wait()?))
}

fn code(status: std::process::ExitStatus) -> ExitCode {
    status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::from(2), ExitCode::from)
}

/// The real assembler.
fn assembler() -> anyhow::Result<PathBuf> {
    if let Some(path) = env::var_os(ASSEMBLER) {
        return Ok(path.into());
    }
    let own = fs::metadata("/proc/self/exe").context("/proc/self/exe")?;
    let path = env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
    let other = |path: &PathBuf| {
        fs::metadata(path)
            .is_ok_and(|it| it.is_file() && (it.dev(), it.ino()) != (own.dev(), own.ino()))
    };
    env::split_paths(&path)
        .map(|folder| folder.join("as"))
        .find(other)
        .with_context(|| format!("no assembler in PATH: set {ASSEMBLER} to its path"))
}
