//! Standard output, which may be a pipe without a reader.

use std::fmt;
use std::io::Write as _;

/// A number of things: `1 epoch`, `2 epochs`.
pub fn counted(number: impl TryInto<u64>, thing: &str) -> String {
    let number = number.try_into().unwrap_or(u64::MAX);
    let s = if number == 1 { "" } else { "s" };
    format!("{number} {thing}{s}")
}

/// Writes a line, and ignores a missing reader.
pub fn line(text: fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Writes a line to standard output, like `println!`, which panics if there is no reader.
macro_rules! say {
    ($($text:tt)*) => { $crate::out::line(format_args!($($text)*)) };
}
pub(crate) use say;

/// Writes a line about what did not go well to standard error.
pub fn problem(text: fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Writes a line to standard error.
macro_rules! complain {
    ($($text:tt)*) => { $crate::out::problem(format_args!($($text)*)) };
}
pub(crate) use complain;
