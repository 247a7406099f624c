//! Names for a terminal. Names of files and procedures come from strangers: one may hold bytes that
//! move the cursor, clear the screen, or end the line and fake the next.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io;

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

/// Writes JSON whose text has what [`escape`] spells out as `\uNNNN`. JSON itself spells out only
/// control characters of ASCII; such characters are in its strings alone.
pub struct Spelt<Out>(pub Out);

impl<Out: io::Write> io::Write for Spelt<Out> {
    /// Takes whole texts, as serde_json writes them.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match std::str::from_utf8(bytes) {
            Ok(text) if text.chars().any(|c| !c.is_ascii() && is_active(c)) => {
                for c in text.chars() {
                    let (mut units, mut plain) = ([0; 2], [0; 4]);
                    match !c.is_ascii() && is_active(c) {
                        true => c
                            .encode_utf16(&mut units)
                            .iter()
                            .try_for_each(|unit| write!(self.0, "\\u{unit:04x}"))?,
                        false => self.0.write_all(c.encode_utf8(&mut plain).as_bytes())?,
                    }
                }
            }
            _ => self.0.write_all(bytes)?,
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
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
    fn json_has_no_character_that_reorders_what_is_around_it() {
        let mut json = Vec::new();
        let names = ["größe\u{1b}", "a\u{202e}b\u{e0001}"];
        serde_json::to_writer(Spelt(&mut json), &names).unwrap();
        let json = String::from_utf8(json).unwrap();
        assert_eq!(json, "[\"größe\\u001b\",\"a\\u202eb\\udb40\\udc01\"]");
        assert_eq!(serde_json::from_str::<[String; 2]>(&json).unwrap(), names);
    }

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
