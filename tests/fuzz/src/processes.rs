//! Texts of /proc about a process, in which the process chooses its name, its paths and its control
//! group's name.

use crate::choice;
use address_spaces::cgroups::{self, Pattern};
use inspect::jit::process::{is_of_runtime, owners, start_ticks};
use kernel::procfs;
use std::fs;

/// The bytes of a unit's name in the database.
const UNIT_BYTES_MAX: usize = 128;

/// A text of `maps`, `cgroup`, `status` or `stat`.
pub fn text(bytes: &[u8]) {
    let Some((choice, text)) = choice(bytes) else { return };
    match choice % 4 {
        0 => maps(text),
        1 => {
            let path = cgroups::parse(text);
            let unit = cgroups::unit_name(&path);
            for unit in unit.iter() {
                assert!(unit.len() <= UNIT_BYTES_MAX && !unit.chars().any(char::is_control));
                assert!(profiledb::check_unit(unit).is_ok());
            }
            let pattern = Pattern::new(&String::from_utf8_lossy(&path));
            let _ = pattern.map(|pattern| pattern.means(&path, unit.as_deref()));
        }
        2 => {
            let _ = procfs::number_of_status(text, "Tgid:");
            let _ = owners(&String::from_utf8_lossy(text));
        }
        _ => {
            let ticks = procfs::number_of_stat::<u64>(text, 22);
            let _ = procfs::number_of_stat::<u32>(text, 4);
            let _ = (ticks, start_ticks(&String::from_utf8_lossy(text)));
        }
    }
}

fn maps(text: &[u8]) {
    for line in procfs::executable_lines(text) {
        let _ = is_of_runtime(&line.path);
        let _ = profiledb::ImageRecord::escape_path(std::path::Path::new(
            String::from_utf8_lossy(&line.path).as_ref(),
        ));
    }
}

/// The texts of this process.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let of = |choice: u8, name: &str| {
        [&[choice][..], &fs::read(format!("/proc/self/{name}")).unwrap()].concat()
    };
    let container =
        format!("\u{1}0::/system.slice/docker-{}.scope\n", "0123456789abcdef".repeat(4));
    let mut seeds = vec![of(1, "cgroup"), of(2, "status"), of(3, "stat"), container.into_bytes()];
    let mut maps = of(0, "maps");
    maps.truncate(2048);
    seeds.push(maps);
    for path in ["/user.slice/user-1.slice/user@1.service/app.slice/a.scope", "/lxc/a", "/a\\x2db"]
    {
        seeds.push(format!("\u{1}9:name=systemd:{path}\n0::/\n").into_bytes());
    }
    seeds
}
