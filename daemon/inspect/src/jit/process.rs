//! The identity of a process that generates code: the facts needed to trust the files that it
//! writes, and to name its image.

use profiledb::ImageRecord;
use std::fs;
use std::path::Path;

/// Programs that compile at run time, by the start of their file's name.
const RUNTIMES: [&str; 21] = [
    "node", "java", "dotnet", "luajit", "deno", "bun", "beam.smp", "julia", "pypy", "mono",
    "qemu-", "chrome", "chromium", "firefox", "php", "ruby", "wasmtime", "wasmer", "gjs", "d8",
    "sbcl",
];
/// The same as libraries.
const RUNTIME_LIBRARIES: [&str; 10] = [
    "libjvm.so",
    "libcoreclr.so",
    "libclrjit.so",
    "libnode.so",
    "libluajit",
    "libmozjs",
    "libjavascriptcore",
    "libv8",
    "libmono",
    "libtcc.so",
];

/// A process, as it was when asked for.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Who {
    /// File name of its program.
    pub name: String,
    /// Path of its program, escaped as in the database.
    pub path: String,
    /// The owners of the files that it creates: its effective and its file system user.
    pub owners: [u32; 2],
    /// Its number in its own pid namespace, by which it names its files.
    pub own_pid: u32,
    /// When it began, in clock ticks since boot: a later process of that number has another.
    pub start_ticks: u64,
    /// It sees the same files as this daemon, so its files can be found when it is gone.
    pub sees_our_files: bool,
}

impl Who {
    /// Asks /proc; None when the process is gone.
    pub fn of(pid: u32) -> Option<Self> {
        let read = |name: &str| text_of(pid, name);
        let link = |name: &str| fs::read_link(format!("/proc/{pid}/{name}")).ok();
        let status = read("status")?;
        let path = link("exe").map(|path| ImageRecord::escape_path(&path)).unwrap_or_default();
        let path = path.strip_suffix(" (deleted)").unwrap_or(&path).to_owned();
        let name = path
            .rsplit('/')
            .find(|part| !part.is_empty())
            .or_else(|| field(&status, "Name:"))
            .unwrap_or("?");
        let ours = fs::read_link("/proc/self/ns/mnt").ok();
        Some(Self {
            name: name.to_owned(),
            owners: owners(&status)?,
            own_pid: field(&status, "NSpid:")
                .and_then(|pids| pids.split_whitespace().last()?.parse().ok())
                .unwrap_or(pid),
            start_ticks: start_ticks(&read("stat")?)?,
            sees_our_files: ours.is_some()
                && link("ns/mnt") == ours
                && link("root").as_deref() == Some(Path::new("/")),
            path,
        })
    }

    /// Whether it is a known just-in-time compiler.
    pub fn is_runtime(&self) -> bool {
        RUNTIMES.iter().any(|name| self.name.starts_with(name))
    }
}

/// Whether the process of that number is still the one that began then.
pub fn is_still(pid: u32, ticks: u64) -> bool {
    text_of(pid, "stat").and_then(|stat| start_ticks(&stat)) == Some(ticks)
}

/// A text of /proc about a process; None when the process is gone. The process's own name is in
/// `status` and `stat` and may have any bytes.
fn text_of(pid: u32, name: &str) -> Option<String> {
    let bytes = fs::read(format!("/proc/{pid}/{name}")).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Whether a mapped file is a just-in-time compiler, or memory that such a compiler has named.
pub fn is_of_runtime(path: &[u8]) -> bool {
    let path = String::from_utf8_lossy(path).to_lowercase();
    let file = path.rsplit('/').next().unwrap_or_default();
    let named = ["jit", "doublemapper", "v8"].iter().any(|word| file.contains(word));
    let is_label = path.starts_with("/memfd:") || path.starts_with("[anon");
    (is_label && named) || RUNTIME_LIBRARIES.iter().any(|name| file.starts_with(name))
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

/// `Uid: real effective saved file-system` (proc_pid_status(5)). The real user of a program that
/// was given another's rights is not one whose files that program would have made.
pub fn owners(status: &str) -> Option<[u32; 2]> {
    let mut uids = field(status, "Uid:")?.split_whitespace().map(|uid| uid.parse().ok());
    let (effective, fs) = (uids.nth(1)??, uids.nth(1)??);
    Some([effective, fs])
}

/// Field 22 of /proc/PID/stat; the second one, the command in parentheses, may have blanks and
/// parentheses in it.
pub fn start_ticks(stat: &str) -> Option<u64> {
    stat.rsplit_once(") ")?.1.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_known() {
        let pid = std::process::id();
        let who = Who::of(pid).unwrap();
        let exe = std::env::current_exe().unwrap();
        assert_eq!(who.name, exe.file_name().unwrap().to_str().unwrap());
        let own = std::os::unix::fs::MetadataExt::uid(&fs::metadata("/proc/self").unwrap());
        assert_eq!(who.owners, [own; 2]);
        assert!(
            who.sees_our_files
                && is_still(pid, who.start_ticks)
                && !is_still(pid, who.start_ticks + 1)
        );
        assert_eq!(Who::of(u32::MAX), None);
    }

    /// A program that called itself "\xff" lost all names of its generated code: its texts in /proc
    /// are not UTF-8 then.
    #[test]
    fn a_process_whose_name_is_no_utf_8_is_known() {
        let pid = std::process::id();
        let before = Who::of(pid).unwrap();
        let name = fs::read("/proc/self/comm").unwrap();
        fs::write("/proc/self/comm", b"\xff) 1").unwrap();
        let (now, is_still_it) = (Who::of(pid), is_still(pid, before.start_ticks));
        fs::write("/proc/self/comm", name.trim_ascii_end()).unwrap();
        assert_eq!((now, is_still_it), (Some(before), true));
    }

    #[test]
    fn fields_of_proc() {
        assert_eq!(owners("Name:\tx\nUid:\t1\t2\t3\t4\n"), Some([2, 4]));
        assert_eq!(owners("Uid:\t1\t2\n"), None);
        let stat = "7 (a) b) (c) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 9 9";
        assert_eq!(start_ticks(stat), Some(4711));
        assert_eq!(start_ticks("7 (a"), None);
    }

    #[test]
    fn memory_and_libraries_of_compilers() {
        for (path, expected) in [
            ("/memfd:doublemapper (deleted)", true),
            ("/memfd:JITCode (deleted)", true),
            ("[anon:v8]", true),
            ("/usr/lib/jvm/lib/server/libjvm.so", true),
            ("/memfd:data (deleted)", false),
            ("//anon", false),
            ("/home/jit/program", false),
        ] {
            assert_eq!(is_of_runtime(path.as_bytes()), expected, "{path}");
        }
    }
}
