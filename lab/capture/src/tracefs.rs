//! Reads the numbers and record layouts of tracepoints from tracefs.
//!
//! Where tracefs is not mounted, this process mounts it for itself alone: a mount that is attached
//! to no directory (fsopen(2), fsmount(2), Linux 5.2) changes nothing for others, and ends with the
//! descriptor.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

/// Mount points of tracefs: since Linux 4.1, and before.
const MOUNTS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
/// Most bytes that are read of a description; the kernel's have at most 4 KiB (`format` is a page).
const FORMAT_BYTES_MAX: u64 = 64 << 10;

/// The directory of tracefs.
#[derive(Debug)]
pub(crate) struct Tracefs {
    root: OwnedFd,
}

/// A tracepoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tracepoint {
    /// Number, the `config` of its perf event.
    pub(crate) id: u64,
    fields: Vec<Field>,
}

/// A field of a tracepoint's record.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Field {
    /// Its type in C.
    of_type: String,
    name: String,
    offset: usize,
    size: usize,
}

impl Tracefs {
    /// Opens tracefs where it is mounted, or mounts it for this process.
    pub(crate) fn open() -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        for path in MOUNTS {
            if Path::new(path).join("events").is_dir() {
                return Ok(Self { root: rustix::fs::open(path, flags, Mode::empty())? });
            }
        }
        let context = fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(&context)?;
        let attributes = MountAttrFlags::empty();
        Ok(Self { root: fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)? })
    }

    /// Opens a file to append to it.
    pub(crate) fn append(&self, path: &str) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CLOEXEC;
        Ok(File::from(openat(&self.root, path, flags, Mode::empty())?))
    }

    /// Opens a file to read it.
    pub(crate) fn read(&self, path: &str) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        Ok(File::from(openat(&self.root, path, flags, Mode::empty())?))
    }

    /// The tracepoint `SYSTEM/NAME`.
    pub(crate) fn tracepoint(&self, name: &str) -> io::Result<Tracepoint> {
        let mut text = String::new();
        let file = self.read(&format!("events/{name}/format"))?;
        file.take(FORMAT_BYTES_MAX).read_to_string(&mut text)?;
        parse(&text).ok_or_else(|| io::Error::other(format!("no format of {name}")))
    }
}

fn parse(text: &str) -> Option<Tracepoint> {
    let id = text.lines().find_map(|line| line.strip_prefix("ID:"))?.trim().parse().ok()?;
    Some(Tracepoint { id, fields: text.lines().filter_map(parse_field).collect() })
}

/// Parses a line such as `field:unsigned long args[6]; offset:16; size:48; signed:0;`.
fn parse_field(line: &str) -> Option<Field> {
    let line = line.trim().strip_prefix("field:")?;
    let mut parts = line.split(';').map(str::trim);
    let (of_type, name) = parts.next()?.rsplit_once(char::is_whitespace)?;
    let (of_type, name) = (of_type.trim().to_owned(), name.split('[').next()?.to_owned());
    let (mut offset, mut size) = (None, None);
    for part in parts {
        match part.split_once(':') {
            Some(("offset", value)) => offset = value.parse().ok(),
            Some(("size", value)) => size = value.parse().ok(),
            _ => {}
        }
    }
    Some(Field { of_type, name, offset: offset?, size: size? })
}

impl Tracepoint {
    /// Whether the first argument of the system call is an `int` or a descriptor, so that the upper
    /// 32 bits of its register are undefined. For tracepoints of system calls' entries.
    pub(crate) fn has_int_first(&self) -> bool {
        let mut fields = self.fields.iter().skip_while(|field| field.name != "__syscall_nr");
        fields.nth(1).is_some_and(|field| {
            let of_type = field.of_type.trim_start_matches("const ");
            ["int", "pid_t", "clockid_t"].contains(&of_type)
                || (of_type == "unsigned int" && field.name.contains("fd"))
        })
    }

    /// A whole number of a record, sign extended; of an array its first element.
    pub(crate) fn number(&self, field: &str, raw: &[u8]) -> Option<u64> {
        let field = self.fields.iter().find(|known| known.name == field)?;
        let bytes = raw.get(field.offset..field.offset.checked_add(field.size)?)?;
        match *bytes {
            [a, b, c, d] => Some(i64::from(i32::from_ne_bytes([a, b, c, d])).cast_unsigned()),
            _ => Some(u64::from_ne_bytes(*bytes.first_chunk()?)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Linux 6.18 has it.
    const SYS_ENTER: &str = "name: sys_enter\nID: 443\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
        \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
        \tfield:long id;\toffset:8;\tsize:8;\tsigned:1;\n\
        \tfield:unsigned long args[6];\toffset:16;\tsize:48;\tsigned:0;\n\n\
        print fmt: \"NR %ld\", REC->id\n";

    #[test]
    fn fields_are_where_the_kernel_says() {
        let tracepoint = parse(SYS_ENTER).unwrap();
        assert_eq!(tracepoint.id, 443);
        let mut raw = vec![0; 64];
        raw[4..8].copy_from_slice(&(-2_i32).to_ne_bytes());
        raw[8] = 231;
        raw[16] = 7;
        assert_eq!(tracepoint.number("id", &raw), Some(231));
        assert_eq!(tracepoint.number("args", &raw), Some(7));
        assert_eq!(tracepoint.number("common_pid", &raw), Some(u64::MAX - 1));
        assert_eq!(tracepoint.number("no", &raw), None);
        assert_eq!(tracepoint.number("args", &raw[..20]), None, "cut");
        assert_eq!(parse("name: x\n"), None);
    }

    /// AT_FDCWD, -100, was reported as 4294967196.
    #[test]
    fn first_arguments_that_are_ints_are_known() {
        let has_int = |argument: &str| {
            let text = format!(
                "ID: 1\n\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\
                 \tfield:int __syscall_nr;\toffset:8;\tsize:4;\tsigned:1;\n\
                 \tfield:{argument};\toffset:16;\tsize:8;\tsigned:0;\n\
                 \tfield:int last;\toffset:24;\tsize:8;\tsigned:0;\n"
            );
            parse(&text).unwrap().has_int_first()
        };
        for int in ["int dfd", "unsigned int fd", "pid_t pid", "const clockid_t which_clock"] {
            assert!(has_int(int), "{int}");
        }
        for other in ["const char * filename", "unsigned long addr", "unsigned int flags"] {
            assert!(!has_int(other), "{other}");
        }
    }
}
