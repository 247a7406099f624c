//! The systemd unit or container of a process, derived from its control group (cgroups(7),
//! /proc/PID/cgroup).

use std::fs::File;
use std::io::Read;

/// Bytes of /proc/PID/cgroup that are read: a dozen hierarchies, each with a path of at most
/// PATH_MAX.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// Longest name of a unit in bytes, as the database allows.
const NAME_BYTES_MAX: usize = 128;
/// Digits that are kept of a container's id: what `docker ps` shows.
const ID_DIGITS: usize = 12;
/// Suffixes of the path components that name a unit, the least specific last (systemd.unit(5)).
const UNIT_SUFFIXES: [&[u8]; 6] =
    [b".service", b".scope", b".socket", b".mount", b".swap", b".slice"];

/// The control group of a process now: its path below the root of the hierarchy, `/` where there is
/// none. None when it is gone.
pub fn of_process(pid: u32) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    File::open(format!("/proc/{pid}/cgroup"))
        .ok()?
        .take(FILE_BYTES_MAX)
        .read_to_end(&mut text)
        .ok()?;
    Some(parse(&text))
}

/// The path in the unified hierarchy (`0::`) of a text of /proc/PID/cgroup. If the process is at
/// the root of that hierarchy, the path in systemd's own (`name=systemd`), which has the units and
/// containers under version 1.
pub fn parse(text: &[u8]) -> Vec<u8> {
    let path = |controllers: &[u8]| {
        let of_line = |line: &[u8]| {
            let mut fields = line.splitn(3, |byte| *byte == b':');
            let (_, found, path) = (fields.next()?, fields.next()?, fields.next()?);
            (found == controllers)
                .then(|| path.strip_suffix(b" (deleted)").unwrap_or(path).to_vec())
        };
        text.split(|byte| *byte == b'\n').find_map(of_line).filter(|path| path.len() > 1)
    };
    path(b"").or_else(|| path(b"name=systemd")).unwrap_or_else(|| b"/".to_vec())
}

/// A short, stable name for a control group: the container, else the unit, else the path itself.
/// None for the root, which holds kernel threads and, without systemd, all processes. At most 128
/// bytes without control character, whatever the path.
pub fn unit_name(path: &[u8]) -> Option<String> {
    let parts = parts(path);
    let container = innermost(&parts).map(|(name, _)| name);
    let unit = || {
        // A user's manager is in a group `init.scope` of its own, below its service.
        let named = |suffix: &&[u8]| {
            let is = |(at, part): &(usize, &&[u8])| {
                part.ends_with(suffix) && !(*at > 0 && **part == b"init.scope")
            };
            parts.iter().enumerate().rev().find(is).map(|(at, part)| (at, part.to_vec()))
        };
        let (slices, others) =
            (named(&b".slice".as_slice()), UNIT_SUFFIXES.iter().take(5).filter_map(named));
        others.max_by_key(|(at, _)| *at).or(slices).map(|(_, part)| part)
    };
    let whole = || (!parts.is_empty()).then(|| [b"/", parts.join(&b'/').as_slice()].concat());
    container.or_else(unit).or_else(whole).map(|name| printable(&name))
}

/// The id of the container that a control group is of, if it has one: 64 hexadecimal digits. Below
/// a user's own manager there is none: that user may give a group any name.
pub fn container_id(path: &[u8]) -> Option<String> {
    let parts = parts(path);
    let is_users = |part: &&[u8]| part.starts_with(b"user@") && part.ends_with(b".service");
    let id = innermost(&parts)?.1.filter(|_| !parts.iter().any(is_users))?;
    Some(String::from_utf8_lossy(id).into_owned())
}

/// The unit name of a container of which more is known: `unit`, as of [`unit_name`], and behind a
/// space each of these words: pod and image. Names of other units contain no space, except those
/// that are paths.
pub fn with_image(unit: &str, words: &str) -> String {
    shortened(unit.to_owned() + " " + &escaped(words.as_bytes(), false))
}

fn parts(path: &[u8]) -> Vec<&[u8]> {
    let all = path.split(|byte| *byte == b'/');
    all.filter(|part| !part.is_empty() && *part != b"..").collect()
}

/// Name and id of the innermost container: units inside of it, and what it is in, are ignored.
fn innermost<'a>(parts: &[&'a [u8]]) -> Option<(Vec<u8>, Option<&'a [u8]>)> {
    (0..parts.len()).rev().find_map(|at| container(parts, at))
}

/// Name and id of the container whose group is `parts[at]`, if that is one.
fn container<'a>(parts: &[&'a [u8]], at: usize) -> Option<(Vec<u8>, Option<&'a [u8]>)> {
    let part = *parts.get(at)?;
    let bare = part.strip_suffix(b".scope").unwrap_or(part);
    let digits = bare.iter().rev().take_while(|byte| byte.is_ascii_hexdigit()).count();
    // docker-ID.scope, cri-containerd-ID.scope, crio-ID, libpod-ID.scope; ID alone in a group of
    // the engine's name (docker/ID, kubepods/burstable/podUID/ID).
    if digits == 64 {
        let (engine, id) = bare.split_at(bare.len() - digits);
        let engine = engine.strip_suffix(b"-").unwrap_or(engine);
        let engine = if engine.is_empty() {
            parts.first().filter(|_| at > 0).copied().unwrap_or(b"container")
        } else {
            engine
        };
        let engine = engine.strip_suffix(b".slice").unwrap_or(engine);
        return Some(([engine, b"-", id.get(..ID_DIGITS).unwrap_or(id)].concat(), Some(id)));
    }
    let is_machine = part.starts_with(b"machine-") && part.ends_with(b".scope");
    if is_machine || part.starts_with(b"systemd-nspawn@") || part.starts_with(b"lxc.payload.") {
        return Some((part.to_vec(), None));
    }
    let below = at.checked_sub(1).and_then(|above| parts.get(above));
    (below.is_some_and(|above| *above == b"lxc")).then(|| ([b"lxc/", part].concat(), None))
}

/// As UTF-8 without control characters, and not too long. Only a path has spaces.
fn printable(name: &[u8]) -> String {
    shortened(escaped(name, !name.starts_with(b"/")))
}

/// The name as UTF-8 with control characters escaped, and also spaces where `spaces` is set.
fn escaped(name: &[u8], spaces: bool) -> String {
    let mut text = String::new();
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                ' ' if spaces => text.push_str("\\x20"),
                c if c.is_control() => text.extend(c.escape_default()),
                c => text.push(c),
            }
        }
        text.extend(chunk.invalid().iter().flat_map(|byte| byte.escape_ascii()).map(char::from));
    }
    text
}

/// The name cut to `NAME_BYTES_MAX` bytes: a hash of the whole name replaces the rest.
fn shortened(mut text: String) -> String {
    if text.len() <= NAME_BYTES_MAX {
        return text;
    }
    let tail = format!("~{:016x}", fnv_1a(text.as_bytes()));
    let room = NAME_BYTES_MAX - tail.len();
    let cut = (0..=room).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    text.truncate(cut);
    text + &tail
}

/// FNV-1a, 64 bits (draft-eastlake-fnv): the same in every release, as names on disk must be.
fn fnv_1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Control groups that a user names: by path (`/user.slice`, which includes all groups below it),
/// or by the name of a unit, a container or any path component.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Pattern(String);

impl Pattern {
    /// Parses a pattern; None if it would match every process.
    pub fn new(text: &str) -> Option<Self> {
        let text = text.trim_end_matches('/');
        (!text.is_empty()).then(|| Self(text.to_owned()))
    }

    /// Returns whether the pattern matches this group, whose unit has that name.
    pub fn means(&self, path: &[u8], unit: Option<&str>) -> bool {
        let pattern = self.0.as_bytes();
        if pattern.starts_with(b"/") {
            return path
                .strip_prefix(pattern)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"));
        }
        unit == Some(&self.0) || path.split(|byte| *byte == b'/').any(|part| part == pattern)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn the_path_is_of_the_unified_hierarchy_or_systemds() {
        for (text, path) in [
            ("0::/system.slice/cron.service\n", "/system.slice/cron.service"),
            ("0::/a:b:c\n", "/a:b:c"),
            ("0::/gone.scope (deleted)\n", "/gone.scope"),
            ("9:name=systemd:/user.slice\n4:memory:/m\n0::/\n", "/user.slice"),
            ("9:name=systemd:/x\n0::/y\n", "/y"),
            ("4:memory:/m\n0::/\n", "/"),
            ("1:name=systemd:/v1\n", "/v1"),
            ("", "/"),
            ("0:\n:::\n\n0", "/"),
        ] {
            assert_eq!(String::from_utf8(parse(text.as_bytes())).unwrap(), path, "{text:?}");
        }
        assert!(of_process(std::process::id()).is_some_and(|path| path.starts_with(b"/")));
        assert_eq!(of_process(u32::MAX), None);
    }

    #[test]
    fn nobody_gives_a_group_the_name_of_a_containers_image() {
        let container = |path: String| container_id(path.as_bytes()).is_some();
        assert!(container(format!("/system.slice/docker-{ID}.scope")));
        let users = "/user.slice/user-1000.slice/user@1000.service";
        assert!(!container(format!("{users}/docker-{ID}.scope")));
        let faked = unit_name(b"/system.slice/docker-0123456789ab shop.scope").unwrap();
        assert_eq!(faked, "docker-0123456789ab\\x20shop.scope");
        let named = with_image("docker-0123456789ab", "pod:a/b shop/b\n:2");
        assert_eq!(named, "docker-0123456789ab pod:a/b shop/b\\n:2");
        assert_eq!(with_image("docker-0123456789ab", &"x".repeat(999)).len(), NAME_BYTES_MAX);
    }

    #[test]
    fn groups_have_short_names() {
        let id = |before: &str, after: &str| format!("{before}{ID}{after}");
        for (path, name) in [
            ("/", None),
            ("", None),
            ("/../..", None),
            ("/system.slice/cron.service", Some("cron.service")),
            ("/system.slice/cron.service/worker/3", Some("cron.service")),
            ("/system.slice/system-getty.slice/getty@tty1.service", Some("getty@tty1.service")),
            ("/system.slice/dev-disk\\x2dby.swap", Some("dev-disk\\x2dby.swap")),
            ("/system.slice", Some("system.slice")),
            ("/init.scope", Some("init.scope")),
            ("/user.slice/user-0.slice/session-3.scope", Some("session-3.scope")),
            ("/user.slice/user-1000.slice/user@1000.service/init.scope", Some("user@1000.service")),
            (
                "/user.slice/user-1000.slice/user@1000.service/app.slice/app-foot.scope",
                Some("app-foot.scope"),
            ),
            (
                "/user.slice/user-1000.slice/user@1000.service/app.slice/dbus.socket",
                Some("dbus.socket"),
            ),
            (&id("/system.slice/docker-", ".scope"), Some("docker-0123456789ab")),
            (&id("/docker/", ""), Some("docker-0123456789ab")),
            (
                &id("/system.slice/docker-", ".scope/system.slice/cron.service"),
                Some("docker-0123456789ab"),
            ),
            (&id("/machine.slice/libpod-", ".scope/container"), Some("libpod-0123456789ab")),
            (&id("/kubepods/besteffort/pod2f8c/", ""), Some("kubepods-0123456789ab")),
            (
                &id(
                    "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/cri-containerd-",
                    ".scope",
                ),
                Some("cri-containerd-0123456789ab"),
            ),
            (&id("/kubepods.slice/", ""), Some("kubepods-0123456789ab")),
            (&id("/", ""), Some("container-0123456789ab")),
            (&id("/crio-conmon-", ".scope"), Some("crio-conmon-0123456789ab")),
            (
                &id(&format!("/docker/{}/kubepods/x/", ID.replace('0', "f")), ""),
                Some("docker-0123456789ab"),
            ),
            (
                "/machine.slice/machine-debian.scope/payload/system.slice/cron.service",
                Some("machine-debian.scope"),
            ),
            (
                "/machine.slice/systemd-nspawn@web.service/payload",
                Some("systemd-nspawn@web.service"),
            ),
            ("/lxc.payload.web/system.slice/cron.service", Some("lxc.payload.web")),
            ("/lxc/web", Some("lxc/web")),
            ("/../system.slice/cron.service", Some("cron.service")),
            ("/made/by hand//", Some("/made/by hand")),
            ("/deadbeef", Some("/deadbeef")),
        ] {
            assert_eq!(unit_name(path.as_bytes()).as_deref(), name, "{path}");
        }
    }

    #[test]
    fn hostile_names_are_escaped_and_bounded() {
        for (path, name) in [
            (&b"/a\nb.service"[..], "a\\nb.service"),
            (b"/\x1b[2J.scope", "\\u{1b}[2J.scope"),
            (b"/\xff\xfe", "/\\xff\\xfe"),
            (b"/gr\xc3\xbc", "/gr\u{fc}"),
        ] {
            assert_eq!(unit_name(path).as_deref(), Some(name));
        }
        let long = |c: &str, n: usize| format!("/{}", c.repeat(n));
        for path in [
            long("x", 4000),
            long("\u{fc}", 200),
            long("a/", 2000),
            long("\u{1}", 300),
            long("x", 128),
        ] {
            let name = unit_name(path.as_bytes()).unwrap();
            assert!(profiledb::check_unit(&name).is_ok(), "{name}");
            assert_ne!(
                unit_name(format!("{path}y").as_bytes()).unwrap(),
                name,
                "what is cut off still counts"
            );
        }
        assert_eq!(
            unit_name(long("x", 127).as_bytes()).unwrap(),
            long("x", 127),
            "128 bytes are not too long"
        );
    }

    #[test]
    fn patterns_mean_groups_with_all_below() {
        let path = b"/user.slice/user-0.slice/session-3.scope";
        for (pattern, means) in [
            ("/user.slice", true),
            ("/user.slice/", true),
            ("/user.slice/user-0.slice/session-3.scope", true),
            ("/user", false),
            ("/user.slice/user-0.slice/session-3.scope/x", false),
            ("session-3.scope", true),
            ("user-0.slice", true),
            ("session-3", false),
        ] {
            assert_eq!(
                Pattern::new(pattern).unwrap().means(path, unit_name(path).as_deref()),
                means,
                "{pattern}"
            );
        }
        let docker = format!("/docker/{ID}");
        let means = |pattern: &str| {
            Pattern::new(pattern)
                .unwrap()
                .means(docker.as_bytes(), unit_name(docker.as_bytes()).as_deref())
        };
        assert!(
            means("docker-0123456789ab") && means("docker") && means(ID) && !means("0123456789ab")
        );
        assert!(
            Pattern::new("").is_none() && Pattern::new("/").is_none(),
            "that would be everybody"
        );
    }
}
