//! `dcpi explain`: what a word of a report means.

use std::io::Write;

use clap::Args;

use super::Outcome;
use crate::terminal;
use model::{Cut, Loss, Unresolved, Wait};
use query::error::AnalysisError;
use verdict::Mechanism;

/// The guide's page of terms. An entry is `**term, another name**: text`, up to the next entry or
/// an empty line.
const PAGE: &str = include_str!("../../../../docs/src/terms.md");
/// Most columns of a line: longer lines are hard to read.
const COLUMNS_MAX: usize = 100;

/// `dcpi explain`.
#[derive(Debug, Args)]
#[command(after_help = NOTES)]
pub struct Explain {
    /// A word of a report: a column, a cause, a letter, a mechanism; several words are one term or
    /// a term each; without one, all words are listed
    #[arg(value_name = "TERM")]
    pub term: Vec<String>,
}

const NOTES: &str = "\
The words are those of the guide's page of terms. Letters of causes are told apart by case: d is \
not D. Exit codes: 0 done; 2 no such word.";

/// A word with its other names and what it means.
#[derive(Clone, Debug)]
struct Entry {
    names: Vec<String>,
    text: String,
}

/// Prints what the word means, with what to try against it.
///
/// # Errors
/// [`AnalysisError::Refused`] where no entry has the word; the error of writing.
pub fn run(args: &Explain, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    let entries: Vec<Entry> = entries(PAGE).into_iter().chain(reasons()).collect();
    let columns = terminal::style(false, false).columns.min(COLUMNS_MAX);
    let asked = args.term.join(" ");
    let asked = asked.trim();
    if asked.is_empty() {
        let names: Vec<&str> =
            entries.iter().flat_map(|entry| &entry.names).map(|name| &**name).collect();
        write_wrapped(out, &names.join("; "), columns)?;
        return Ok(Outcome::default());
    }
    let mut found = known(&entries, asked);
    if found.is_empty() && args.term.len() > 1 {
        // Several words are one term where there is such a term, else a term each.
        for word in &args.term {
            let of_word = known(&entries, word.trim());
            if of_word.is_empty() {
                return Err(no_such(word));
            }
            let is_new = |one: &&Entry| !found.iter().any(|known| std::ptr::eq(*known, *one));
            let new: Vec<&Entry> = of_word.into_iter().filter(is_new).collect();
            found.extend(new);
        }
    } else if named(&entries, asked).is_empty() && !found.is_empty() {
        let said = format!("No word of a report is {asked:?}; these meanings have it:");
        write_wrapped(out, &said, columns)?;
        writeln!(out)?;
    }
    if found.is_empty() {
        return Err(no_such(asked));
    }
    for (number, entry) in found.iter().enumerate() {
        if number > 0 {
            writeln!(out)?;
        }
        write_wrapped(out, &format!("{}: {}", entry.names.join(", "), entry.text), columns)?;
        let mechanisms =
            Mechanism::ALL.iter().filter(|of| entry.names.iter().any(|name| name == of.name()));
        for mechanism in mechanisms {
            let advice = mechanism.advice().join("; ");
            write_wrapped(out, &format!("{}: try: {advice}", mechanism.name()), columns)?;
        }
    }
    Ok(Outcome::default())
}

fn no_such(asked: &str) -> AnalysisError {
    AnalysisError::Refused(format!("no word of a report is {asked:?}; dcpi explain lists them"))
}

/// The entries of a word, else those whose meanings have it.
fn known<'a>(entries: &'a [Entry], asked: &str) -> Vec<&'a Entry> {
    let found = named(entries, asked);
    if found.is_empty() { mentioning(entries, asked) } else { found }
}

/// The words with their other names and what they mean, for pages.
pub(super) fn terms() -> Vec<(Vec<String>, String)> {
    entries(PAGE).into_iter().map(|entry| (entry.names, entry.text)).collect()
}

/// Rows in brackets that stand for code, frames and waits without a name.
fn reasons() -> impl Iterator<Item = Entry> {
    let entry = |row: String, name: &str, meaning: &str| Entry {
        names: vec![row, name.to_owned()],
        text: format!("{meaning}."),
    };
    let of = |name: &str| format!("[{name}]");
    let unresolved = Unresolved::ALL.iter().map(move |reason| {
        let why = format!("code that belongs to no image: {}", reason.meaning());
        entry(query::unresolved::name(reason.name()), reason.name(), &why)
    });
    let cut = Cut::ALL.iter().map(move |cut| {
        let why = format!("the frames above in call stacks are not known: {}", cut.meaning());
        entry(of(cut.name()), cut.name(), &why)
    });
    let wait = Wait::ALL.iter().map(move |wait| {
        let why = format!("what a thread waited for, instead of running: {}", wait.meaning());
        entry(of(wait.name()), wait.name(), &why)
    });
    let loss = Loss::ALL.iter().map(|loss| Entry {
        names: vec![loss.name().to_owned()],
        text: format!("why samples were lost: {}.", loss.meaning()),
    });
    unresolved.chain(cut).chain(wait).chain(loss)
}

/// How names of BPF programs begin, before that of the program.
const BPF: &str = "bpf_prog";

/// The word in a row's brackets, without what is behind a colon there or behind the brackets: of
/// `[no procedures: file gone]` and `[jit] node 812` what the first words mean. Of unknown code the
/// reason tells more.
fn in_brackets(asked: &str) -> Option<&str> {
    let inside = asked.strip_prefix('[')?;
    let inside = inside.split(']').next().unwrap_or(inside);
    if inside.starts_with(BPF) {
        return Some(BPF);
    }
    let reason = inside.strip_prefix("unresolved: ");
    Some(reason.unwrap_or_else(|| inside.split(':').next().unwrap_or(inside)).trim())
}

/// The entries of a page, in their order.
fn entries(page: &str) -> Vec<Entry> {
    let paragraphs = page.split("\n\n").filter(|paragraph| paragraph.starts_with("**"));
    let parts = paragraphs.flat_map(|paragraph| {
        paragraph
            .split("**")
            .skip(1)
            .collect::<Vec<_>>()
            .chunks(2)
            .map(<[&str]>::to_vec)
            .collect::<Vec<_>>()
    });
    parts
        .filter_map(|part| {
            let [names, text] = part[..] else { return None };
            let text = text.strip_prefix(':')?;
            Some(Entry { names: names.split(',').map(one_line).collect(), text: one_line(text) })
        })
        .collect()
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The entries of a word as it is typed, else of the word in its brackets.
fn named<'a>(entries: &'a [Entry], asked: &str) -> Vec<&'a Entry> {
    let found = named_as_typed(entries, asked);
    let inside = in_brackets(asked).filter(|inside| found.is_empty() && !inside.is_empty());
    inside.map_or(found, |inside| named_as_typed(entries, inside))
}

/// The entries of a word: by one of its names, else by the words that a verdict uses, else by a
/// part of a name or of the text.
fn named_as_typed<'a>(entries: &'a [Entry], asked: &str) -> Vec<&'a Entry> {
    let plain = |text: &str| text.replace(['_', '-'], " ").to_lowercase();
    let said = plain(asked);
    let mechanism = Mechanism::ALL.iter().find(|one| plain(&one.to_string()) == said);
    let by = |is: &dyn Fn(&str) -> bool| -> Vec<&'a Entry> {
        entries.iter().filter(|entry| entry.names.iter().any(|name| is(name))).collect()
    };
    let mut tries = [
        by(&|name| name == asked),
        by(&|name| name.len() > 1 && plain(name) == said),
        by(&|name| in_brackets(name).is_some_and(|inside| plain(inside) == said)),
        by(&|name| mechanism.is_some_and(|of| of.name() == name)),
        by(&|name| said.len() > 1 && plain(name).contains(&said)),
    ];
    tries.iter_mut().find(|found| !found.is_empty()).map(std::mem::take).unwrap_or_default()
}

/// The words whose meanings have this one in them.
fn mentioning<'a>(entries: &'a [Entry], asked: &str) -> Vec<&'a Entry> {
    let plain = |text: &str| text.replace(['_', '-'], " ").to_lowercase();
    let said = plain(asked);
    let is = |entry: &&Entry| said.len() > 2 && plain(&entry.text).contains(&said);
    entries.iter().filter(is).collect()
}

/// Writes text in lines of at most so many characters; a longer word has a line of its own.
fn write_wrapped(out: &mut dyn Write, text: &str, columns: usize) -> std::io::Result<()> {
    let mut line = String::new();
    for word in text.split(' ') {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > columns {
            writeln!(out, "{line}")?;
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    writeln!(out, "{line}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explained(term: &str) -> Result<String, AnalysisError> {
        let mut out = Vec::new();
        let term = term.split(' ').map(str::to_owned).collect();
        run(&Explain { term }, &mut out).map(|_| String::from_utf8(out).unwrap())
    }

    #[test]
    fn every_mechanism_and_letter_is_explained_by_its_name() {
        for mechanism in Mechanism::ALL.iter().filter(|one| **one != Mechanism::Unknown) {
            for asked in [mechanism.name().to_owned(), mechanism.to_string()] {
                let text = explained(&asked).unwrap();
                assert!(
                    text.contains(mechanism.name()) && text.contains("try: "),
                    "{asked}: {text}"
                );
            }
        }
        for cause in stalls::Cause::ALL {
            let text = explained(&cause.letter().to_string()).unwrap();
            assert!(text.starts_with(&format!("{}: {cause}", cause.letter())), "{text}");
            assert!(!explained(&cause.to_string()).unwrap().is_empty());
        }
        assert_ne!(explained("d").unwrap(), explained("D").unwrap());
    }

    /// `[seen_waiting]` and `[truncated]` were rows of reports and no words of `explain`.
    #[test]
    fn rows_in_brackets_are_explained_with_and_without_brackets() {
        let cut = Cut::ALL.iter().map(|of| (of.name(), of.meaning()));
        let wait = Wait::ALL.iter().map(|of| (of.name(), of.meaning()));
        for (name, meaning) in cut.chain(wait) {
            for asked in [name.to_owned(), format!("[{name}]"), format!("[{name}] dcpi")] {
                assert!(one_line(&explained(&asked).unwrap()).contains(meaning), "{asked}");
            }
        }
        for of in Unresolved::ALL {
            for asked in [of.name().to_owned(), query::unresolved::name(of.name())] {
                assert!(one_line(&explained(&asked).unwrap()).contains(of.meaning()), "{asked}");
            }
        }
        for row in [
            "[unknown]",
            "[kernel]",
            "[vdso]",
            "[idle]",
            "[jit] node 812",
            "[others]",
            "[itself]",
            "[first]",
            "[no procedures: file gone]",
            "[no stack]",
            "[no label]",
            "[no unit]",
            "[no container]",
            "[no pod]",
            "[no namespace]",
            "[no command]",
            "[no thread name]",
            "[no thread number]",
            "[no attribute]",
            "[no call stacks]",
            "[unknown image]",
            "[callers unknown]",
            "[bpf_prog_mappings_write]",
        ] {
            let text = explained(row).unwrap();
            assert!(!text.contains("No word of a report"), "{row}: {text}");
        }
        assert!(explained("[unknown]").unwrap().starts_with("[unknown]: code of an image"));
        assert!(explained("[nosuch]").is_err());
    }

    #[test]
    fn several_words_are_one_term_or_a_term_each() {
        let of = |terms: &[&str]| {
            let term = terms.iter().map(|word| (*word).to_owned()).collect();
            let mut out = Vec::new();
            run(&Explain { term }, &mut out).map(|_| String::from_utf8(out).unwrap())
        };
        let one = of(&["dependency", "chain"]).unwrap();
        assert!(one.starts_with("dependency_chain"), "{one}");
        let both = of(&["likely", "dependency_chain"]).unwrap();
        assert!(both.starts_with("certain, likely"), "{both}");
        assert!(both.contains("\ndependency_chain"), "{both}");
        let twice = of(&["likely", "possible"]).unwrap();
        assert_eq!(twice.matches("certain, likely").count(), 1, "{twice}");
        assert!(of(&["likely", "nosuch"]).is_err());
    }

    #[test]
    fn a_word_is_found_in_any_case_by_a_part_and_else_refused() {
        assert!(explained("CPI").unwrap().starts_with("CPI: cycles"));
        assert!(explained("cpi").unwrap().starts_with("CPI: cycles"));
        assert!(explained("no stack").unwrap().starts_with("[callers unknown], no stack:"));
        assert!(explained("denormal").unwrap().contains("assist"));
        let error = explained("nonsense\u{1b}").unwrap_err().to_string();
        assert!(error.contains("dcpi explain") && !error.contains('\u{1b}'), "{error}");
        let all = explained("").unwrap();
        assert!(all.lines().all(|line| line.chars().count() <= COLUMNS_MAX), "{all}");
    }
}
