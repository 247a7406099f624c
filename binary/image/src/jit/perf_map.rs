//! `/tmp/perf-PID.map`: lines of `START SIZE NAME`, the numbers in hex, the name to the end of the
//! line.
//!
//! Written by V8 (`node --perf-basic-prof`), perf-map-agent and `jcmd PID Compiler.perfmap` (Java),
//! .NET (`DOTNET_PerfMapEnabled`, with `0x`), LuaJIT, CPython (`-X perf`), BEAM and others. No
//! writer says when code is freed: only a later line about the same memory shows it.

use super::Code;

/// Longest line, in bytes; a longer one is cut there, so that a file without line ends is not
/// waited for.
const LINE_MAX: usize = 16 << 10;

/// Calls `each` with the code of every whole line, and returns the number of bytes of these lines,
/// where the next reading begins. A last line without an end is still being written, or was cut
/// when its writer died; it is left, unless it is longer than any line.
pub fn read(bytes: &[u8], mut each: impl FnMut(Code<'_>)) -> usize {
    let whole = match bytes.iter().rposition(|byte| *byte == b'\n') {
        Some(last) => last + 1,
        None if bytes.len() >= LINE_MAX => bytes.len(),
        None => 0,
    };
    let lines = bytes.get(..whole).unwrap_or_default().split(|byte| *byte == b'\n');
    lines.filter_map(line).for_each(&mut each);
    whole
}

/// Reads one line; None when it has another form.
fn line(line: &[u8]) -> Option<Code<'_>> {
    let (start, rest) = hex(line)?;
    let (size, name) = hex(rest)?;
    Code::new(start, size, name)
}

/// The number at the start of the text, and the text after the following blank.
fn hex(text: &[u8]) -> Option<(u64, &[u8])> {
    let text = text.trim_ascii_start();
    let end = text.iter().position(u8::is_ascii_whitespace)?;
    let (digits, rest) = text.split_at_checked(end)?;
    let digits = str::from_utf8(digits).ok()?;
    let digits = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")).unwrap_or(digits);
    // from_str_radix accepts a sign, which no map has.
    if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    Some((u64::from_str_radix(digits, 16).ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lines(text: &[u8]) -> (Vec<(u64, u32, String)>, usize) {
        let mut found = Vec::new();
        let whole = read(text, |code| found.push((code.start, code.size, code.name.into_owned())));
        (found, whole)
    }

    #[test]
    fn lines_as_runtimes_write_them() {
        for (maker, text, expected) in [
            (
                "V8",
                "7fe5b27c6180 298 JS:*hot /tmp/a b/a.js:1:13",
                Some((0x7fe5_b27c_6180, 0x298, "JS:*hot /tmp/a b/a.js:1:13")),
            ),
            ("perf-map-agent", "7f2a8c01 40 Interpreter", Some((0x7f2a_8c01, 0x40, "Interpreter"))),
            (
                ".NET",
                "0x00007F5A 0x1c void [app] Program::Main(string[])[Tier0]",
                Some((0x7f5a, 0x1c, "void [app] Program::Main(string[])[Tier0]")),
            ),
            (
                "LuaJIT",
                "bcf60000 9b TRACE_1::a.lua:7",
                Some((0xbcf6_0000, 0x9b, "TRACE_1::a.lua:7")),
            ),
            ("CPython", "7f1c3a04e000 b py::f:/t.py", Some((0x7f1c_3a04_e000, 0xb, "py::f:/t.py"))),
            ("tabs and a carriage return", "10\t20\tf\r", Some((0x10, 0x20, "f"))),
            ("leading blanks", "  10 20 f", Some((0x10, 0x20, "f"))),
            ("no name", "10 20", None),
            ("an empty name", "10 20 ", None),
            ("no size", "10 f", None),
            ("size 0", "10 0 f", None),
            ("a sign", "+10 20 f", None),
            ("not hex", "zz 20 f", None),
            ("beyond 64 bits", "11111111111111111 20 f", None),
            ("wraps", "ffffffffffffffff 20 f", None),
            ("a comment", "# made by hand", None),
            ("", "", None),
        ] {
            let (found, whole) = lines(format!("{text}\n").as_bytes());
            let expected: Vec<_> = expected
                .map(|(start, size, name)| (start, size, name.to_owned()))
                .into_iter()
                .collect();
            assert_eq!((found, whole), (expected, text.len() + 1), "{maker}");
        }
    }

    #[test]
    fn a_line_being_written_is_left_for_the_next_reading() {
        let text = b"10 1 one\n20 1 two\n30 1 th";
        let (found, whole) = lines(text);
        assert_eq!((found.len(), &text[whole..]), (2, &b"30 1 th"[..]));
        assert_eq!(lines(b"30 1 th"), (vec![], 0));
        assert_eq!(
            lines(&vec![b'x'; LINE_MAX]),
            (vec![], LINE_MAX),
            "nobody waits for the end of such a line"
        );
    }

    proptest! {
        #[test]
        fn no_bytes_panic_and_none_are_read_twice(
            bytes in prop::collection::vec(any::<u8>(), 0..2000),
            cut in 0_usize..2000
        ) {
            let (_, whole) = lines(&bytes);
            prop_assert!(whole <= bytes.len());
            // In two readings the same lines come out as in one.
            let first = &bytes[..cut.min(bytes.len())];
            let (mut found, consumed) = lines(first);
            found.extend(lines(&bytes[consumed..]).0);
            prop_assert_eq!(found, lines(&bytes).0);
        }

        #[test]
        fn what_is_written_is_read(start in 0_u64..1 << 50, size in 1_u32.., name in "[a-zA-Z0-9~*:_./<>-][ -~]{0,60}[a-z]") {
            let (found, _) = lines(format!("{start:x} {size:x} {name}\n").as_bytes());
            prop_assert_eq!(found, vec![(start, size, name)]);
        }
    }
}
