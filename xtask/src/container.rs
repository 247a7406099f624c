//! A small Debian that boots in a container, for tests of the service: `target/container/tree`,
//! made once by debootstrap.

use crate::packages;
use crate::process::{command, must, output};
use anyhow::Context as _;
use std::fs;
use std::path::Path;

const FOLDER: &str = "target/container";
/// The files in the tree besides the base system.
const INCLUDED: &str = "systemd,dbus";

/// Makes the tree, unless it is there.
pub fn ensure() -> anyhow::Result<()> {
    packages::ensure(&packages::CONTAINER)?;
    let tree = format!("{FOLDER}/tree");
    if Path::new(&tree).exists() {
        return Ok(());
    }
    let release = fs::read_to_string("/etc/os-release").context("reading /etc/os-release")?;
    let suite = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let suite = suite.context("/etc/os-release names no release of Debian")?;
    println!("making a Debian {suite} to boot, {tree}: debootstrap, some 60 MB, a minute or two");
    fs::create_dir_all(FOLDER)?;
    // Under another name until it is whole.
    let begun = format!("{FOLDER}/begun");
    must(&mut command(&format!("rm -rf {begun}")))?;
    let made = output(&mut command(&format!(
        "debootstrap --variant=minbase --include={INCLUDED} {suite} {begun}"
    )));
    made.with_context(|| format!("{begun}/debootstrap/debootstrap.log says why"))?;
    fs::rename(&begun, &tree)?;
    Ok(())
}
