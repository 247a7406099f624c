//! The commands and options that a request may name: those that print a report of the database that
//! is served. Options with the path of a file, or that start or write anything, are not among them.

/// Commands that print a report.
const COMMANDS: [&str; 13] = [
    "callees",
    "callers",
    "diff",
    "epochs",
    "images",
    "list",
    "prof",
    "timeline",
    "topcounts",
    "topstalls",
    "tree",
    "whatcg",
    "why",
];

/// Options without value.
const FLAGS: [&str; 13] = [
    "--all",
    "--asm",
    "--both",
    "--bottom-up",
    "--by-thread",
    "--idle",
    "--inclusive",
    "--inlined",
    "--intel",
    "--no-inlined",
    "--no-kernel",
    "--why",
    "-i",
];

/// Options with a value behind an equals sign.
const VALUES: [&str; 22] = [
    "--by",
    "--command",
    "--confidence",
    "--container",
    "--depth",
    "--epoch",
    "--epoch-label",
    "--event",
    "--from",
    "--host",
    "--image",
    "--label",
    "--min",
    "--namespace",
    "--pid",
    "--pod",
    "--since",
    "--slices",
    "--thread",
    "--tid",
    "--unit",
    "--until",
];

/// Options with a value of `dcpi html` alone. Each is a text of the page or a set, checked below.
const OF_FILES: [&str; 2] = ["--diff", "--note"];

/// Most words of a request.
const WORDS_MAX: usize = 40;

/// Whether a request may be answered; else why not.
pub fn check(command: &str, words: &[String]) -> Result<(), String> {
    if !COMMANDS.contains(&command) {
        return Err(format!("there is no report {command}; there are {}", COMMANDS.join(", ")));
    }
    check_words(command, words)
}

/// The same of the words of `dcpi html`, whose file is asked for by a path of its own.
pub fn check_file(words: &[String]) -> Result<(), String> {
    check_words(FILE, words)
}

fn check_words(command: &str, words: &[String]) -> Result<(), String> {
    if words.len() > WORDS_MAX {
        return Err(format!("a request has at most {WORDS_MAX} words"));
    }
    let refused = words.iter().find(|word| !is_allowed(command, word));
    refused.map_or(Ok(()), |word| Err(format!("a request may not have the word {word:?}")))
}

/// The command that makes a file.
pub const FILE: &str = "html";

fn is_allowed(command: &str, word: &str) -> bool {
    if let Some(number) = word.strip_prefix("-n") {
        return number.parse::<u32>().is_ok();
    }
    if word.starts_with('-') {
        let Some((name, value)) = word.split_once('=') else { return FLAGS.contains(&word) };
        return VALUES.contains(&name)
            || command == FILE
                && OF_FILES.contains(&name)
                && (name != "--diff" || mcp::is_of_the_database(value));
    }
    match command {
        "diff" => mcp::is_of_the_database(word),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_ok(line: &str) -> bool {
        let mut words = line.split(' ').map(str::to_owned);
        let command = words.next().unwrap();
        let words = words.collect::<Vec<_>>();
        let checked = if command == FILE { check_file(&words) } else { check(&command, &words) };
        checked.is_ok()
    }

    #[test]
    fn reports_of_the_database_are_allowed() {
        for line in [
            "prof --inclusive -n100 --event=cpu-clock",
            "list a1b2 0x1000 --why",
            "tree --min=0.1% --epoch=-1 --since=2026-11-24T14:00:00Z",
            "diff @-1 latest",
            "why words",
            "diff label:a,since:14:00 20261124-1..20261125",
            "html --epoch=all --unit=a --note=b --diff=image:a1,until:14:00 --diff=image:b2 words",
        ] {
            assert!(is_ok(line), "{line}");
        }
    }

    #[test]
    fn nothing_else_is() {
        for line in [
            "record",
            "export",
            "html -o",
            "html -ox",
            "html --output=x",
            "html --diff=db:/other",
            "html --listings=9",
            "prof --note=a",
            "prof --db=/other",
            "prof --db",
            "list a b --source-dir=/etc",
            "list a b --debug-root=/etc",
            "why --latencies=/etc/passwd",
            "why --seconds=1",
            "why --",
            "prof --format=csv",
            "prof -o",
            "diff /other/db latest",
            "diff db:/other latest",
            "diff label:a,db:/other latest",
            "diff other@latest latest",
            "diff @other latest",
        ] {
            assert!(!is_ok(line), "{line}");
        }
        assert!(check(FILE, &[]).is_err(), "a file is no report");
        assert!(check("prof", &vec!["a".to_owned(); WORDS_MAX + 1]).is_err());
    }
}
