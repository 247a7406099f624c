//! Facts about running processes from `/proc`: executable mappings, users, parents, start times.
//! The daemon reads them at startup, and later to make up for missing records.

use crate::MappedFileId;
use std::fs;
use std::os::unix::fs::MetadataExt;

/// Numbers of users from here on are handed out to users in rows of [`SUBORDINATE_USERS`]
/// (`SUB_UID_MIN` in login.defs(5)).
const SUBORDINATE_BEGIN: u32 = 100_000;
/// Numbers in such a row (`SUB_UID_COUNT` in login.defs(5)): all of a row are one user's, who takes
/// any of them in a user namespace.
const SUBORDINATE_USERS: u32 = 65_536;

/// One line of /proc/PID/maps.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct MapsLine {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// Whether it is private, and nothing may write to it.
    pub constant: bool,
    /// File offset of `start`.
    pub file_offset: u64,
    /// Device and inode; inode 0: no file.
    pub file: MappedFileId,
    /// Path or label; empty for anonymous memory.
    #[serde(with = "crate::latin1")]
    pub path: Vec<u8>,
}

/// Process ids in /proc now.
pub fn processes() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Whether the process still has an entry in /proc: it lives, or is a zombie, or another one has
/// its number.
pub fn exists(pid: u32) -> bool {
    fs::exists(format!("/proc/{pid}")).unwrap_or(true)
}

/// When a process started, in clock ticks since boot; None when it is gone.
pub fn start_time(pid: u32) -> Option<u64> {
    stat_field(pid, 22)
}

/// The current parent of a process; None when the process is gone. A process that outlives its
/// parent gets another one.
pub fn parent(pid: u32) -> Option<u32> {
    stat_field(pid, 4)
}
/// The process of a pid or tid; None when it is gone.
pub fn process_of(pid: u32) -> Option<u32> {
    status_field(pid, "Tgid:")
}

/// The user whose rights a process has now; None when the process is gone. `/proc/PID` itself is
/// that user's even where a program keeps others from looking into it (proc(5)).
pub fn user_of(pid: u32) -> Option<u32> {
    fs::metadata(format!("/proc/{pid}")).ok().map(|metadata| metadata.uid())
}

/// The first number of the row of subordinate users that a user is in; of any other user, its own
/// number.
pub fn first_of_row(user: u32) -> u32 {
    let row = user.checked_sub(SUBORDINATE_BEGIN).map(|beyond| beyond % SUBORDINATE_USERS);
    user - row.unwrap_or(0)
}

/// Name of the program that a process runs, as proc_pid_comm(5) has it, escaped; None when the
/// process is gone.
pub fn name_of(pid: u32) -> Option<String> {
    let name = fs::read(format!("/proc/{pid}/comm")).ok()?;
    Some(name.trim_ascii_end().escape_ascii().to_string())
}

/// The first number of a line of /proc/PID/status (proc_pid_status(5)).
fn status_field(pid: u32, name: &str) -> Option<u32> {
    number_of_status(&fs::read(format!("/proc/{pid}/status")).ok()?, name)
}

/// The first number of that line of a text of /proc/PID/status.
pub fn number_of_status(status: &[u8], name: &str) -> Option<u32> {
    // A command's name may be of any bytes.
    String::from_utf8_lossy(status)
        .lines()
        .find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
}

/// A number of /proc/PID/stat, fields counted from 1 as in proc_pid_stat(5).
fn stat_field<Number: std::str::FromStr>(pid: u32, field: usize) -> Option<Number> {
    number_of_stat(&fs::read(format!("/proc/{pid}/stat")).ok()?, field)
}

/// That field of a text of /proc/PID/stat, if it is a number.
pub fn number_of_stat<Number: std::str::FromStr>(stat: &[u8], field: usize) -> Option<Number> {
    // The second field is the command in parentheses, whatever bytes it has; the third begins after
    // the last one.
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(stat.get(end + 1..)?).ok()?;
    rest.split_whitespace().nth(field.checked_sub(3)?)?.parse().ok()
}

/// CPU time that a thread has had, in ns, if it runs or waits for a CPU now; None if it sleeps, is
/// gone, or the kernel keeps no such times (CONFIG_SCHED_INFO; proc_pid_schedstat,
/// Documentation/scheduler/sched-stats.rst).
pub fn cpu_ns_if_runnable(tid: u32) -> Option<u64> {
    let state: char = stat_field(tid, 3)?;
    let times = fs::read_to_string(format!("/proc/{tid}/schedstat")).ok()?;
    let cpu_ns = times.split_whitespace().next()?.parse().ok()?;
    (state == 'R').then_some(cpu_ns)
}

/// Executable mappings of a process, or of `self`; None when it is gone.
pub fn executable_mappings(pid: impl std::fmt::Display) -> Option<Vec<MapsLine>> {
    Some(executable_lines(&maps(pid)?))
}

/// The text of /proc/PID/maps; None when the process is gone. Where its first thread has ended and
/// others go on, the text is that of another thread: the first one's is empty.
pub fn maps(pid: impl std::fmt::Display) -> Option<Vec<u8>> {
    // A process that is being torn down has an empty list, which is no knowledge either.
    let own = fs::read(format!("/proc/{pid}/maps")).ok()?;
    let other = || fs::read(format!("/proc/{}/maps", living_thread(&pid)?)).ok();
    Some(if own.is_empty() { other().unwrap_or(own) } else { own })
}

/// A thread of a process whose first thread has ended: the files of /proc/TID, which
/// proc_pid(5) has for threads too, tell what those of /proc/PID do not any more. None unless the
/// first thread has ended and another goes on.
pub fn living_thread(pid: impl std::fmt::Display) -> Option<u32> {
    let has_ended = |id: &str| {
        let stat = fs::read(format!("/proc/{id}/stat")).ok();
        let behind = stat.and_then(|stat| {
            let end = stat.iter().rposition(|byte| *byte == b')')?;
            stat.get(end + 2).copied()
        });
        matches!(behind, None | Some(b'Z' | b'X'))
    };
    let pid = pid.to_string();
    if !has_ended(&pid) {
        return None;
    }
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten();
    let mut numbers = threads.filter_map(|thread| thread.file_name().into_string().ok());
    numbers.find(|tid| *tid != pid && !has_ended(tid))?.parse().ok()
}

/// The executable mappings of a text of /proc/PID/maps.
pub fn executable_lines(maps: &[u8]) -> Vec<MapsLine> {
    lines(maps).filter(|(_, executable)| *executable).map(|(line, _)| line).collect()
}

/// All mappings of a text of /proc/PID/maps, and whether they are executable.
pub fn lines(maps: &[u8]) -> impl Iterator<Item = (MapsLine, bool)> {
    maps.split(|byte| *byte == b'\n').filter_map(parse_line)
}

/// `55d0c0a4c000-55d0c0a4e000 r-xp 00002000 fe:00 1234    /usr/bin/cat` (proc_pid_maps(5)).
fn parse_line(line: &[u8]) -> Option<(MapsLine, bool)> {
    let mut rest = line;
    let mut field = || {
        let start = rest.iter().position(|byte| *byte != b' ').unwrap_or(rest.len());
        let (_, trimmed) = rest.split_at(start);
        let end = trimmed.iter().position(|byte| *byte == b' ').unwrap_or(trimmed.len());
        let (field, after) = trimmed.split_at(end);
        rest = after;
        std::str::from_utf8(field).ok()
    };
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let (start, end) = field()?.split_once('-')?;
    let permissions = field()?;
    let executable = permissions.as_bytes().get(2) == Some(&b'x');
    let file_offset = hex(field()?)?;
    let (major, minor) = field()?.split_once(':')?;
    let inode = field()?.parse().ok()?;
    let path_start = rest.iter().position(|byte| *byte != b' ').unwrap_or(rest.len());
    let file = MappedFileId::Inode { major: hex(major)? as u32, minor: hex(minor)? as u32, inode };
    let path = rest.get(path_start..).unwrap_or_default().to_vec();
    let constant = permissions == "r-xp";
    let (start, end) = (hex(start)?, hex(end)?);
    Some((MapsLine { start, end, constant, file_offset, file, path }, executable))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_maps() {
        let file = |inode| MappedFileId::Inode { major: 0xfe, minor: 1, inode };
        let expected = |start, end, file_offset, inode, path: &str| {
            let constant = path == "/usr/bin/cat";
            Some(MapsLine {
                start,
                end,
                constant,
                file_offset,
                file: file(inode),
                path: path.into(),
            })
        };
        for (line, line_expected) in [
            (
                "55d0c0a4c000-55d0c0a4e000 r-xp 00002000 fe:01 1234    /usr/bin/cat",
                expected(0x55d0_c0a4_c000, 0x55d0_c0a4_e000, 0x2000, 1234, "/usr/bin/cat"),
            ),
            ("1000-2000 rwxp 00000000 fe:01 0 ", expected(0x1000, 0x2000, 0, 0, "")),
            ("1000-2000 rwxp 00000000 fe:01 0", expected(0x1000, 0x2000, 0, 0, "")),
            (
                "1000-2000 --xs 00000000 fe:01 7   /a b (deleted)",
                expected(0x1000, 0x2000, 0, 7, "/a b (deleted)"),
            ),
            ("1000-2000 r--p 00000000 fe:01 7   /a", None),
            ("1000 r-xp 00000000 fe:01 7 /a", None),
            ("g-2000 r-xp 00000000 fe:01 7 /a", None),
            ("1000-2000 r-xp", None),
            ("", None),
        ] {
            assert_eq!(executable_lines(line.as_bytes()).pop(), line_expected, "{line}");
        }
    }

    #[test]
    fn this_process_has_a_parent_and_a_start() {
        let me = std::process::id();
        assert_eq!(parent(me), Some(std::os::unix::process::parent_id()));
        assert_eq!(process_of(me), Some(me));
        assert!(start_time(me).is_some_and(|ticks| ticks > start_time(1).unwrap()));
        assert_eq!(
            (start_time(u32::MAX), parent(u32::MAX), process_of(u32::MAX)),
            (None, None, None)
        );
    }

    #[test]
    fn this_process_has_its_own_text_mapped() {
        let own = executable_mappings(std::process::id()).unwrap();
        let exe = std::env::current_exe().unwrap();
        assert!(own.iter().any(|line| line.path == exe.as_os_str().as_encoded_bytes()));
        assert!(own.iter().any(|line| line.path == b"[vdso]"));
        assert!(processes().contains(&std::process::id()));
        assert!(exists(std::process::id()) && !exists(u32::MAX));
    }
}
