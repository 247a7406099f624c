//! Man pages and shell completions of all programs, in `target/man` and `target/completions`, and
//! whether their readers like them.

use crate::Outcome;
use crate::packages;
use crate::process::{command, must};
use std::path::PathBuf;
use std::process::Command;

/// Makes and checks them.
pub fn run() -> anyhow::Result<Outcome> {
    packages::ensure(&packages::MAN_TOOLS)?;
    must(&mut command("cargo run --quiet -p manual -- target"))?;
    let mut problems = Vec::new();
    let pages = files("target/man")?;
    for page in &pages {
        // With all warnings, and no output.
        problems.extend(complaint(
            Command::new("groff").args(["-ww", "-man", "-Tutf8", "-z"]).arg(page),
        )?);
    }
    let scripts = files("target/completions")?;
    for script in
        scripts.iter().filter(|path| path.extension().is_some_and(|extension| extension == "bash"))
    {
        problems.extend(complaint(Command::new("bash").arg("-n").arg(script))?);
    }
    problems.iter().for_each(|problem| println!("{problem}"));
    println!(
        "{} pages in target/man, {} scripts in target/completions: {} problems",
        pages.len(),
        scripts.len(),
        problems.len()
    );
    Ok(if problems.is_empty() { Outcome::Clean } else { Outcome::Problems })
}

fn files(directory: &str) -> anyhow::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        paths.push(entry?.path());
    }
    paths.sort();
    Ok(paths)
}

/// The objections of a program to its input.
fn complaint(command: &mut Command) -> anyhow::Result<Option<String>> {
    let output = command.output()?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Ok((!said.is_empty() || !output.status.success()).then_some(said))
}
