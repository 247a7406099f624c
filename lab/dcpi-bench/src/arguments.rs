//! The command line of a benchmark: criterion's options, as far as they are needed.

use std::time::Duration;

use crate::{SPREAD, SPREAD_QUICK};

/// Longest time for a function: a day is a mistake.
const SECONDS_MAX: f64 = 3600.0;

/// Settings of a benchmark run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Only functions whose names have this part; all, if it is empty.
    pub filter: String,
    /// Whether the name must be the filter.
    pub exact: bool,
    /// Time over which a function's pieces are spread.
    pub spread: Duration,
    /// Whether each function runs once and is not measured (`cargo test --benches`).
    pub once: bool,
    /// Whether names are listed and nothing runs.
    pub lists: bool,
    /// Whether results are printed.
    pub prints: bool,
    /// Whether each is a line of JSON.
    pub json: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            filter: String::new(),
            exact: false,
            spread: SPREAD,
            once: false,
            lists: false,
            prints: true,
            json: false,
        }
    }
}

const HELP: &str = "\
Usage: cargo bench [--bench NAME] -- [FILTER] [OPTIONS]
  FILTER         only functions whose names have this part
  --exact        the name is FILTER
  --quick        half a second for each function
  --seconds S    S seconds for each function [default: 3]
  --list         names only
  --test         each function once, without measuring
  --format json  a line of JSON for each function";

impl Settings {
    /// The arguments of a command line, without the program's name.
    ///
    /// # Errors
    /// One line about the argument that is not understood, or the help text on request.
    pub fn of(words: impl IntoIterator<Item = String>) -> Result<Self, String> {
        let mut settings = Self::default();
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            let mut value =
                || words.next().ok_or_else(|| format!("{word} needs a value; see --help"));
            match word.as_str() {
                "--exact" => settings.exact = true,
                "--quick" => settings.spread = SPREAD_QUICK,
                "--list" => settings.lists = true,
                "--test" => settings.once = true,
                // Arguments that cargo bench adds, and those that its users add by habit.
                "--bench" | "--noplot" | "--nocapture" => {}
                "--seconds" => {
                    let text = value()?;
                    let seconds = text.parse().ok().filter(|of| (0.01..=SECONDS_MAX).contains(of));
                    let seconds = seconds.ok_or_else(|| {
                        format!("--seconds {text}: must be 0.01 to {SECONDS_MAX}")
                    })?;
                    settings.spread = Duration::from_secs_f64(seconds);
                }
                "--format" => match value()?.as_str() {
                    "json" => settings.json = true,
                    "text" | "pretty" | "terse" => settings.json = false,
                    other => return Err(format!("--format {other}: must be text or json")),
                },
                "-h" | "--help" => return Err(HELP.to_owned()),
                option if option.starts_with('-') => {
                    return Err(format!("unknown option {option}; see --help"));
                }
                filter => filter.clone_into(&mut settings.filter),
            }
        }
        Ok(settings)
    }

    pub(crate) fn chooses(&self, name: &str) -> bool {
        if self.exact { name == self.filter } else { name.contains(&self.filter) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Result<Settings, String> {
        Settings::of(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn options_are_understood() {
        let settings = of("--bench sort --quick --format json").unwrap();
        assert!(settings.json && settings.spread == SPREAD_QUICK && settings.chooses("a/sort/b"));
        assert!(!settings.chooses("a/sum"));
        assert!(!of("sort --exact").unwrap().chooses("sort/b"));
        assert_eq!(of("--seconds 0.5").unwrap().spread, Duration::from_millis(500));
    }

    #[test]
    fn mistakes_are_told_in_one_line() {
        for (line, said) in [
            ("--fast", "unknown option --fast"),
            ("--seconds", "--seconds needs a value"),
            ("--seconds 0", "--seconds 0: must be"),
            ("--format xml", "--format xml: must be"),
        ] {
            let error = of(line).unwrap_err();
            assert!(error.contains(said) && !error.contains('\n'), "{line}: {error}");
        }
        assert!(of("--help").unwrap_err().starts_with("Usage: "));
    }
}
