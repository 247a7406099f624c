//! Runs of the program.

use std::process::{Command, Output};

use crate::database::Db;

/// The program, in an environment that names no database and asks for all notes, in 120 columns.
pub fn dcpi() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dcpi"));
    command.env_remove("DCPIDB").env("COLUMNS", "120").env("DCPI_VERBOSE", "1");
    command
}

/// Runs `dcpi` with these words and the database.
pub fn on(db: &Db, words: &str) -> Output {
    let mut command = dcpi();
    if words.ends_with("--help") {
        // Help is as wide as the terminal, too.
        command.env_remove("COLUMNS");
    }
    command.args(words.split_whitespace()).arg("--db").arg(db.root());
    command.output().unwrap()
}

/// The standard output of a run that must have gone well.
pub fn shown(db: &Db, words: &str) -> String {
    let output = on(db, words);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), errors.as_str()), (Some(0), ""), "{words}");
    String::from_utf8(output.stdout).unwrap()
}

/// The JSON of a run that must have gone well.
pub fn json(db: &Db, words: &str) -> serde_json::Value {
    serde_json::from_str(&shown(db, &format!("{words} --format json"))).unwrap()
}

/// The one line of a run that must have failed.
pub fn refused(db: &Db, words: &str) -> String {
    let output = on(db, words);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{words}: {errors}");
    assert!(output.stdout.is_empty(), "{words}");
    assert_eq!(errors.matches('\n').count(), 1, "{words}: {errors:?}");
    let line = errors.strip_prefix("dcpi: ").unwrap_or_else(|| panic!("{words}: {errors:?}"));
    assert!(line.contains("; "), "no next step: {line}");
    line.trim_end().to_owned()
}

/// The JSON of an element of a page.
fn data(page: &str, id: &str) -> serde_json::Value {
    let (_, rest) = page.split_once(&format!(" id=\"{id}\">")).unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

/// A list of lists of words of a page's configuration.
fn words(page: &str, name: &str) -> Vec<Vec<String>> {
    let config = data(page, "config");
    let words = |of: &serde_json::Value| -> Vec<String> {
        of.as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned()).collect()
    };
    config[name].as_array().unwrap().iter().map(words).collect()
}

/// The reports in a page of `dcpi html`, each with the words that its script asks for it by.
pub fn reports(page: &str) -> Vec<(String, serde_json::Value)> {
    let asked = words(page, "reports").into_iter().enumerate();
    asked.map(|(at, of)| (of.join(" "), data(page, &format!("report-{at}")))).collect()
}

/// The whole command of each report in a page.
pub fn lines(page: &str) -> Vec<Vec<String>> {
    let asked = words(page, "reports").into_iter().zip(words(page, "more"));
    asked.map(|(own, more)| [own, more].concat()).collect()
}

/// The report of a page that its script asks for by these words.
pub fn report(page: &str, words: &str) -> serde_json::Value {
    let found = reports(page).into_iter().find(|(asked, _)| asked == words);
    found.unwrap_or_else(|| panic!("{words}")).1
}
