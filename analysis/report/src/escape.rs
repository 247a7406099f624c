//! Names for a terminal. Names of files and procedures come from strangers: one may hold bytes that
//! move the cursor, clear the screen, or end the line and fake the next.

use std::borrow::Cow;
use std::fmt::Write as _;

/// The text with all that a terminal might obey as `\xNN` or `\u{NNNN}`: control characters, and
/// the invisible ones that reorder or join what is around them (Unicode TR 36, section 2.10).
pub fn escape(text: &str) -> Cow<'_, str> {
    // Nearly all are plain ASCII, which is seen at once.
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) || !text.chars().any(is_active) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        // Writing to a String cannot fail.
        let _ = match c {
            c if !is_active(c) => escaped.write_char(c),
            '\n' => escaped.write_str("\\n"),
            '\t' => escaped.write_str("\\t"),
            c if c.is_ascii() => write!(escaped, "\\x{:02x}", u32::from(c)),
            c => write!(escaped, "\\u{{{:x}}}", u32::from(c)),
        };
    }
    Cow::Owned(escaped)
}

fn is_active(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}'
                | '\u{61c}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_spelt_out() {
        for (text, escaped) in [
            ("memcpy", "memcpy"),
            ("<T as Möbius>::größe", "<T as Möbius>::größe"),
            ("a\\b", "a\\b"),
            ("\x1b[2Jx", "\\x1b[2Jx"),
            ("a\nb\tc\r", "a\\nb\\tc\\x0d"),
            ("\u{9b}31m", "\\u{9b}31m"),
            ("\u{202e}cba", "\\u{202e}cba"),
            ("\u{7f}\0", "\\x7f\\x00"),
            ("in\u{200b}visible", "in\\u{200b}visible"),
        ] {
            assert_eq!(escape(text), escaped);
        }
        assert!(matches!(escape("plain"), Cow::Borrowed(_)));
    }
}
