//! Finds the places in files that `--at` names: procedures by name or pattern, and source lines.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use image::{Binary, DebugInfo, ImageOffset, default_debug_roots, demangle, without_suffix};
use trace::{Name, NameKind};

use crate::TraceError;
use crate::images::Candidates;

/// Most places of one trace: each is a perf event for each CPU, two with returns.
pub const SITES_MAX: usize = 256;
/// Most procedures that one pattern may match; the image's reader returns no more.
const MATCHES_MAX: usize = 100;
/// e_machine of x86-64 (elf.h).
const X86_64: u16 = 62;
/// First bytes of instructions that x86's uprobes refuse: prefixes of the segments ES, CS, SS and
/// DS, LOCK, and the breakpoint itself (is_prefix_bad, arch/x86/kernel/uprobes.c, Linux 6.18).
const REFUSED: [u8; 6] = [0x26, 0x2e, 0x36, 0x3e, 0xf0, 0xcc];
/// Procedures whose return must not be probed, because the kernel replaces the return address on
/// the stack by its own: `setjmp` saves that address for later, and the others have no return
/// address in the usual place, or return twice.
const WITHOUT_RETURN: [&str; 22] = [
    "_start",
    "_dl_start_user",
    "__restore_rt",
    "setjmp",
    "_setjmp",
    "__sigsetjmp",
    "sigsetjmp",
    "getcontext",
    "setcontext",
    "swapcontext",
    "makecontext",
    "__start_context",
    "longjmp",
    "_longjmp",
    "siglongjmp",
    "__longjmp_chk",
    "vfork",
    "__vfork",
    "clone",
    "__clone",
    "clone3",
    "__clone3",
];

/// A place to probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// The file.
    pub path: PathBuf,
    /// Offset of the instruction in the file, in bytes.
    pub offset: u64,
    /// The name of its events.
    pub name: Name,
    /// Whether the procedure's return is probed too.
    pub has_return: bool,
}

/// The command or process among whose files IMAGE is looked up.
#[derive(Clone, Copy, Debug)]
pub enum Whose<'a> {
    /// The files of a command's program.
    Command(&'a OsStr),
    /// The files that a process has mapped.
    Process(u32),
}

/// The places that were found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Places, without duplicates.
    pub sites: Vec<Site>,
    /// Remarks for the user, one sentence each.
    pub notes: Vec<String>,
}

/// Finds the places of `--at` arguments: `IMAGE:PROCEDURE`, where PROCEDURE may have `*` and `?`,
/// and `IMAGE:FILE:LINE`. IMAGE is empty for the program itself. With `entries_only`, returns are
/// not probed.
///
/// # Errors
/// [`TraceError::Refused`] for the first argument that leads to no place.
pub fn find(asked: &[String], whose: Whose<'_>, entries_only: bool) -> Result<Found, TraceError> {
    let mut found = Found::default();
    if asked.is_empty() {
        return Ok(found);
    }
    let candidates = match whose {
        Whose::Command(program) => Candidates::of_command(program),
        Whose::Process(pid) => Candidates::of_process(pid),
    };
    let mut known = HashSet::new();
    for text in asked {
        let at = At::parse(text)?;
        let path = match at.image {
            "" => candidates.files.first().cloned().ok_or_else(|| {
                TraceError::Refused(format!("--at {text}: no program is there; name an image"))
            })?,
            image => candidates.find(image)?,
        };
        // Probes are of files, not of names of files: one name for all links.
        let path = path.canonicalize().unwrap_or(path);
        let mut image = ProbedImage::open(text, &path)?;
        let sites = match at.place {
            Place::Procedure(pattern) => image.procedures(pattern, entries_only, &mut found)?,
            Place::Line(file, line) => image.lines(file, line)?,
        };
        let new = sites.into_iter().filter(|site| known.insert((site.path.clone(), site.offset)));
        found.sites.extend(new);
        if found.sites.len() > SITES_MAX {
            return Err(TraceError::Refused(format!(
                "--at names more than {SITES_MAX} places; name fewer, or narrower patterns"
            )));
        }
    }
    if candidates.throws() && found.sites.iter().any(|site| site.has_return) {
        found.notes.push(
            "the program may throw exceptions of C++: one that passes through a procedure whose \
             return is probed ends the program; --entries avoids it"
                .to_owned(),
        );
    }
    Ok(found)
}

/// An argument of `--at`.
#[derive(Debug, PartialEq, Eq)]
struct At<'a> {
    image: &'a str,
    place: Place<'a>,
}

#[derive(Debug, PartialEq, Eq)]
enum Place<'a> {
    Procedure(&'a str),
    Line(&'a str, u32),
}

impl<'a> At<'a> {
    fn parse(text: &'a str) -> Result<Self, TraceError> {
        let malformed = || {
            TraceError::Refused(format!(
                "--at {text} is neither IMAGE:PROCEDURE nor IMAGE:FILE:LINE; write it such as \
                 'libc.so.6:malloc' or 'lua:lapi.c:120'"
            ))
        };
        let (image, rest) = text.split_once(':').ok_or_else(malformed)?;
        // A::1 would be a name of C++, if there were such.
        let line = rest.rsplit_once(':').filter(|(file, line)| {
            let is_number = !line.is_empty() && line.bytes().all(|byte| byte.is_ascii_digit());
            is_number && !file.is_empty() && !file.ends_with(':')
        });
        match line {
            Some((file, line)) => match line.parse() {
                Ok(line) if line > 0 => Ok(Self { image, place: Place::Line(file, line) }),
                _ => Err(TraceError::Refused(format!(
                    "--at {text}: no file has a line {line}; lines count from 1, and those with \
                     code are in the debug information"
                ))),
            },
            None if rest.is_empty() => Err(malformed()),
            None => Ok(Self { image, place: Place::Procedure(rest) }),
        }
    }
}

/// An image that is to be probed.
struct ProbedImage<'a> {
    asked: &'a str,
    path: &'a Path,
    binary: Binary,
    roots: Vec<PathBuf>,
}

impl<'a> ProbedImage<'a> {
    fn open(asked: &'a str, path: &'a Path) -> Result<Self, TraceError> {
        let binary = Binary::open(path, None).map_err(|error| {
            TraceError::Refused(format!("--at {asked}: cannot read {}: {error}", path.display()))
        })?;
        Ok(Self { asked, path, binary, roots: default_debug_roots() })
    }

    fn refused(&self, why: &str) -> TraceError {
        TraceError::Refused(format!("--at {}: {why}", self.asked))
    }

    fn procedures(
        &mut self,
        pattern: &str,
        entries_only: bool,
        found: &mut Found,
    ) -> Result<Vec<Site>, TraceError> {
        let is_exact = !pattern.contains(['*', '?']);
        let is_go = self.binary.has_section(".gopclntab").unwrap_or(false)
            || self.binary.has_section(".data.rel.ro.gopclntab").unwrap_or(false);
        if is_go && !entries_only {
            return Err(self.refused(
                "it is a program of Go, whose runtime moves stacks and ends a program whose return \
                 addresses are replaced; add --entries to probe entries alone",
            ));
        }
        let symbols = self.binary.symbols(&self.roots, |_, raw| is_match(pattern, raw));
        let mut symbols = symbols.map_err(|error| self.refused(&error.to_string()))?;
        if symbols.len() >= MATCHES_MAX {
            let why = format!("{MATCHES_MAX} procedures or more match; name a narrower pattern");
            return Err(self.refused(&why));
        }
        // If a place has several names, the requested name, or else the shortest.
        symbols.sort_by_key(|(offset, raw)| (*offset, raw != pattern, raw.len()));
        symbols.dedup_by_key(|(offset, _)| *offset);
        let mut sites = Vec::new();
        for (offset, raw) in symbols {
            let short = without_suffix(&raw);
            let name = demangle(&raw).into_owned();
            if let Some(why) = self.unprobeable(offset) {
                if is_exact {
                    return Err(self.refused(&why));
                }
                found.notes.push(format!("{name} is not probed: {why}"));
                continue;
            }
            let returns_oddly =
                WITHOUT_RETURN.contains(&short) || short.starts_with("_dl_runtime_resolve");
            if returns_oddly && !entries_only {
                found.notes.push(format!(
                    "of {name} only entries are probed: its return cannot be without breaking the \
                     program"
                ));
            }
            sites.push(self.site(
                offset,
                NameKind::Procedure,
                name,
                !entries_only && !returns_oddly,
            ));
        }
        if sites.is_empty() && found.notes.is_empty() {
            return Err(self.refused(&format!(
                "{} has no procedure of that name; 'dcpi list {0}' is of those with samples, 'nm -D' \
                 and 'nm' list symbols, and stripped programs have few",
                self.path.display()
            )));
        }
        Ok(sites)
    }

    fn site(&self, offset: ImageOffset, kind: NameKind, text: String, has_return: bool) -> Site {
        let mut name = Name::new(kind, text);
        name.image = self.path.display().to_string();
        name.offset = Some(offset.0);
        name.stepped = self.binary.code(offset, 3).ok().map(|code| self.is_stepped(&code));
        Site { path: self.path.to_owned(), offset: offset.0, name, has_return }
    }

    fn is_stepped(&self, code: &[u8]) -> bool {
        match self.binary.machine() {
            X86_64 => !is_emulated(code),
            // Of arm64's first instructions in procedures the kernel emulates hints (bti, paciasp),
            // which have 0xd503 in their upper half (arch/arm64/kernel/probes/decode-insn.c).
            _ => code.get(2) != Some(&0x03),
        }
    }

    /// Why the instruction cannot be probed; None if it can.
    fn unprobeable(&self, offset: ImageOffset) -> Option<String> {
        if self.binary.machine() != X86_64 {
            return None;
        }
        let bytes = self.binary.code(offset, 1).ok()?;
        let first = bytes.first()?;
        REFUSED.contains(first).then(|| {
            format!(
                "the kernel probes no instruction that begins with the byte {first:#04x}; probe a \
                 procedure that it is called from"
            )
        })
    }

    /// The first instruction of a source line in each procedure that has code of it.
    fn lines(&mut self, file: &str, line: u32) -> Result<Vec<Site>, TraceError> {
        let mut findings = Vec::new();
        let Some(info) = DebugInfo::of(&self.binary, &self.roots, &mut findings) else {
            return Err(self.refused(&format!(
                "{} has no debug information, so its lines are not known; install it, or name a \
                 procedure",
                self.path.display()
            )));
        };
        let lines = info.lines().map_err(|error| self.refused(&error.to_string()))?;
        let is_file = |path: &str| Path::new(path).ends_with(file);
        let addresses = lines.addresses(is_file, line);
        let offsets: Vec<ImageOffset> = addresses
            .iter()
            .filter_map(|address| self.binary.layout().vaddr_to_file_offset(*address))
            .collect();
        let procedures = self.binary.procedures_at(&self.roots, &offsets);
        let procedures = procedures.map(|(procedures, _)| procedures).unwrap_or_default();
        let (mut sites, mut seen) = (Vec::new(), HashSet::new());
        let mut offsets = offsets;
        offsets.sort();
        for offset in offsets {
            let procedure = procedures.find(offset);
            let is_new = seen.insert(procedure.map(|procedure| procedure.start));
            if !is_new || self.unprobeable(offset).is_some() {
                continue;
            }
            let mut site = self.site(offset, NameKind::Line, format!("{file}:{line}"), false);
            (site.name.file, site.name.line) = (file.to_owned(), line);
            sites.push(site);
        }
        match sites.is_empty() {
            false => Ok(sites),
            true => Err(self.refused(&format!(
                "no code of {} is of line {line} of {file}; name a line with a statement",
                self.path.display()
            ))),
        }
    }
}

/// The procedures of an image by name, each with whether the kernel executes its first instruction
/// out of line ([`Name::stepped`]).
///
/// # Errors
/// [`TraceError::Refused`] where the image cannot be read.
pub fn stepped_procedures(path: &Path) -> Result<HashMap<String, bool>, TraceError> {
    let text = path.display().to_string();
    let image = ProbedImage::open(&text, path)?;
    let procedures = image.binary.procedures(&image.roots);
    let (procedures, _) = procedures.map_err(|error| image.refused(&error.to_string()))?;
    let stepped = |procedure: &image::Procedure| {
        let code = image.binary.code(procedure.start, 3).ok()?;
        Some((procedure.raw_name().to_owned(), image.is_stepped(&code)))
    };
    Ok(procedures.iter().filter_map(stepped).collect())
}

/// Whether the kernel emulates an instruction of x86-64 rather than to execute it out of line:
/// pushes of a register, calls, jumps, `nop` (push_setup_xol_ops and branch_setup_xol_ops in
/// arch/x86/kernel/uprobes.c, Linux 6.18).
fn is_emulated(code: &[u8]) -> bool {
    matches!(
        code,
        [0x50..=0x57 | 0x70..=0x7f | 0x90 | 0xe8 | 0xe9 | 0xeb, ..]
            | [0x41, 0x50..=0x57, ..]
            | [0x0f, 0x80..=0x8f, ..]
    )
}

/// Whether a symbol matches a pattern: by its raw name, demangled, or demangled without the
/// parameters. Clones that compilers make (`foo.isra.0`) match as `foo`. Cold parts (`foo.cold`)
/// never match: they are jumped to, so they have no return.
fn is_match(pattern: &str, raw: &str) -> bool {
    if raw.contains(".cold") || raw.is_empty() {
        return false;
    }
    let short = without_suffix(raw);
    if is_glob(pattern, raw) || is_glob(pattern, short) {
        return true;
    }
    let demangled = demangle(short);
    if demangled == short {
        return false;
    }
    let bare = demangled.split('(').next().unwrap_or_default();
    is_glob(pattern, &demangled) || is_glob(pattern, bare)
}

/// Whether a text matches a pattern of `*` (any text) and `?` (any character).
fn is_glob(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut at, mut in_text) = (0, 0);
    // Places to resume at when the last `*` takes one more byte.
    let mut star: Option<(usize, usize)> = None;
    while in_text < text.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at + 1, in_text));
                at += 1;
            }
            Some(byte) if *byte == b'?' || Some(byte) == text.get(in_text) => {
                (at, in_text) = (at + 1, in_text + 1);
            }
            _ => {
                let Some((behind, begin)) = star else { return false };
                star = Some((behind, begin + 1));
                (at, in_text) = (behind, begin + 1);
            }
        }
    }
    pattern.get(at..).unwrap_or_default().iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_name_procedures_and_lines() {
        let of = |text| At::parse(text).unwrap();
        let procedure = |image, name| At { image, place: Place::Procedure(name) };
        assert_eq!(of("libc.so.6:malloc"), procedure("libc.so.6", "malloc"));
        assert_eq!(of(":main"), procedure("", "main"));
        assert_eq!(of("/bin/a:ns::f"), procedure("/bin/a", "ns::f"));
        assert_eq!(of("a:lua*"), procedure("a", "lua*"));
        let line = At { image: "lua", place: Place::Line("src/lapi.c", 12) };
        assert_eq!(of("lua:src/lapi.c:12"), line);
        assert_eq!(of("a:f:x0"), procedure("a", "f:x0"));
        for none in [":prog.c:0", "a:f.c:4294967296"] {
            let error = At::parse(none).unwrap_err().to_string();
            assert!(error.contains("lines count from 1") && !error.contains('\n'), "{error}");
        }
        for bad in ["malloc", "a:", ""] {
            let error = At::parse(bad).unwrap_err().to_string();
            assert!(error.contains("IMAGE:PROCEDURE") && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn the_kernel_emulates_few_instructions() {
        for code in [&[0x55][..], &[0x41, 0x57, 0x41], &[0xe9, 0, 0], &[0x0f, 0x84, 1], &[0x74, 2]]
        {
            assert!(is_emulated(code), "{code:x?}");
        }
        // endbr64, sub $8,%rsp, mov, nopl
        for code in [[0xf3, 0x0f, 0x1e], [0x48, 0x83, 0xec], [0x48, 0x89, 0xf8], [0x0f, 0x1f, 0]] {
            assert!(!is_emulated(&code), "{code:x?}");
        }
        assert!(!is_emulated(&[]));
    }

    #[test]
    fn patterns_match_as_shells_do() {
        for (pattern, text, expected) in [
            ("lua*", "luaV_execute", true),
            ("lua?_*", "luaV_execute", true),
            ("*exec*", "luaV_execute", true),
            ("lua", "luaV_execute", false),
            ("*", "", true),
            ("a*b*c", "aXbXbXc", true),
            ("a*b*c", "aXbXbX", false),
            ("", "a", false),
        ] {
            assert_eq!(is_glob(pattern, text), expected, "{pattern} {text}");
        }
        assert!(is_match("foo", "foo.isra.0") && !is_match("foo", "foo.cold"));
        assert!(is_match("ns::f", "_ZN2ns1fEi") && is_match("ns::f(int)", "_ZN2ns1fEi"));
        assert!(!is_match("f", "_ZN2ns1fEi"));
    }

    #[test]
    fn places_of_the_c_library_are_found() {
        let own = std::env::current_exe().unwrap();
        let find = |asked: &[&str], entries_only| {
            let asked: Vec<String> = asked.iter().map(|text| (*text).to_owned()).collect();
            super::find(&asked, Whose::Command(own.as_os_str()), entries_only)
        };
        let found = find(&["libc:getppid", "libc.so.6:getppid", "libc:_setjmp"], false).unwrap();
        assert_eq!(found.sites.len(), 2, "{found:?}");
        assert!(found.sites[0].has_return && !found.sites[1].has_return);
        assert_eq!(found.sites[0].name.text, "getppid");
        assert_eq!(found.notes.len(), 1);
        let entries = find(&["libc:getppid"], true).unwrap();
        assert!(!entries.sites[0].has_return);
        let error = find(&["libc:no_such_procedure"], false).unwrap_err().to_string();
        assert!(error.contains("has no procedure") && !error.contains('\n'), "{error}");
        let error = find(&["libc:*"], false).unwrap_err().to_string();
        assert!(error.contains("100 procedures or more"), "{error}");
    }

    /// This test's own lines: the program of tests has debug information.
    #[test]
    fn lines_are_found_where_there_is_debug_information() {
        let own = std::env::current_exe().unwrap();
        let line = line!() + 1;
        let text = format!(":sites.rs:{line}");
        let found = find(&[text], Whose::Command(own.as_os_str()), false).unwrap();
        let site = &found.sites[0];
        assert_eq!((site.name.kind, site.name.line), (NameKind::Line, line));
        assert!(!site.has_return);
        let error = find(&[":sites.rs:1".into()], Whose::Command(own.as_os_str()), false);
        assert!(error.unwrap_err().to_string().contains("line 1 of sites.rs"));
    }
}
