//! Identifies V8 among a process's files.

use super::layouts::Layout;
use super::symbols::Symbols;
use std::fs::File;

/// Programs that are V8's, by their file names.
const PROGRAMS: [&[u8]; 6] = [b"node", b"nodejs", b"deno", b"electron", b"chrome", b"chromium"];
/// Begins of the names of libraries that have it: Debian's node, and builds of their own.
const LIBRARIES: [&[u8]; 2] = [b"libnode.so", b"libv8"];

/// Whether a file of this path may have V8. Its code keeps frame pointers then, also that of
/// procedures that no unwind table covers: the built-in ones.
pub fn may_be_v8(path: &[u8]) -> bool {
    let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    PROGRAMS.contains(&name) || LIBRARIES.iter().any(|begin| name.starts_with(begin))
}

/// The V8 of a file. None: it has none. The error says why it is of no use.
pub fn of_file(file: &File) -> Option<Result<Layout, String>> {
    Symbols::of_file(file).map(|symbols| Layout::of(&symbols))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_with_v8_are_known_by_their_names() {
        for path in [&b"/usr/bin/node"[..], b"/x/node (deleted)", b"/usr/lib/libnode.so.108"] {
            assert!(may_be_v8(path), "{}", String::from_utf8_lossy(path));
        }
        assert!(!may_be_v8(b"/usr/bin/node_exporter") && !may_be_v8(b"/node/x"));
    }
}
