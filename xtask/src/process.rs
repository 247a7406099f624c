//! Running other programs.

use anyhow::{Context as _, bail, ensure};
use std::path::Path;
use std::process::{Command, Stdio};

/// Makes the workspace the current directory, wherever cargo was called.
pub fn go_to_root() -> anyhow::Result<()> {
    let root =
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask has no parent folder")?;
    std::env::set_current_dir(root).with_context(|| format!("going to {}", root.display()))
}

/// A command from a line split at spaces.
pub fn command(line: &str) -> Command {
    let mut words = line.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words);
    command
}

/// Runs a command with its output shown; false when it ends with an error.
pub fn succeeds(command: &mut Command) -> anyhow::Result<bool> {
    let status = command
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("starting {:?}", command.get_program()))?;
    Ok(status.success())
}

/// Runs a command with its output shown; it must succeed.
pub fn must(command: &mut Command) -> anyhow::Result<()> {
    ensure!(succeeds(command)?, "{} failed; its output above says why", shown(command));
    Ok(())
}

/// Runs a command quietly and gives its standard output; on an error its standard error is the
/// reason.
pub fn output(command: &mut Command) -> anyhow::Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("starting {:?}", command.get_program()))?;
    if !output.status.success() {
        bail!("{} failed: {}", shown(command), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether a program of that name is in the search path.
pub fn exists(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// Whether this process is root.
pub fn is_root() -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| {
        let uid = status.lines().find_map(|line| line.strip_prefix("Uid:"));
        uid.is_some_and(|uid| uid.split_whitespace().nth(1) == Some("0"))
    })
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
