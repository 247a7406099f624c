//! The pages of `dcpi html`, `dcpi serve` and of a fleet's review, of the same parts: scripts and
//! style as committed, so that builds need no npm, and the HTML around them.
//!
//! Sources: `app/`, in TypeScript. `cargo xtask face` builds `dist/` from them with npm;
//! `cargo xtask face --check` fails when the committed files do not come from the sources.
//!
//! All that comes from a profile is in blocks of JSON, which the script turns into text nodes: no
//! name is ever parsed as HTML. The page's own policy allows its own script and style only, and
//! connections to its own server only.
#![forbid(unsafe_code)]

use std::io::{self, Write};

use serde::Serialize;

const PROFILE: &str = include_str!("../dist/app.js");
const FLEET: &str = include_str!("../dist/fleet.js");
const STYLE: &str = include_str!("../dist/style.css");
const LICENCES: &str = include_str!("../dist/licences.txt");

/// A report in a page.
#[derive(Debug)]
pub struct Report {
    /// The words of its command without those of the selection: what the script asks for.
    pub words: Vec<String>,
    /// The other words of its command: the page shows the whole line, to be typed.
    pub more: Vec<String>,
    /// The report as JSON.
    pub json: Vec<u8>,
}

/// What a page is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// Profiles of a database.
    Profile,
    /// The review of a fleet's week, its only report.
    Fleet,
}

/// What a page shows.
#[derive(Debug)]
pub struct Page {
    /// What it is of.
    pub subject: Subject,
    /// The document's title until the script has a better one.
    pub title: String,
    /// Whether a server answers the script's questions. Else all reports are in the page.
    pub is_live: bool,
    /// What its maker says of it to its readers.
    pub note: Option<String>,
    /// The database's directory, for commands that the page shows.
    pub db: String,
    /// Options that all of the page's commands have.
    pub selection: Vec<String>,
    /// Options that its commands of call stacks have, too.
    pub of_threads: Vec<String>,
    /// Images that its tables and findings are of; all, without.
    pub images: Vec<String>,
    /// The sets that are compared, before and after, if any.
    pub sets: Option<(String, String)>,
    /// Version of dcpi.
    pub version: &'static str,
    /// Words of reports, each with its other names and what it means.
    pub terms: Vec<(Vec<String>, String)>,
    /// The reports.
    pub reports: Vec<Report>,
}

#[derive(Serialize)]
struct Config<'a> {
    live: bool,
    note: Option<&'a str>,
    db: &'a str,
    selection: &'a [String],
    threads: &'a [String],
    images: &'a [String],
    sets: Option<&'a (String, String)>,
    version: &'a str,
    terms: &'a [(Vec<String>, String)],
    reports: Vec<&'a [String]>,
    more: Vec<&'a [String]>,
}

/// The policy of a page whose script and style have `nonce`.
pub fn policy(nonce: &str, is_live: bool) -> String {
    let connect = if is_live { "connect-src 'self'; " } else { "" };
    format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; {connect}\
         base-uri 'none'; form-action 'none'"
    )
}

/// Writes the page. Its policy recognises its own script by `nonce`, which must not be guessable by
/// anyone who can choose names.
///
/// # Errors
/// Returns errors of writing the output.
pub fn write(page: &Page, nonce: &str, out: &mut dyn Write) -> io::Result<()> {
    let config = Config {
        live: page.is_live,
        note: page.note.as_deref(),
        db: &page.db,
        selection: &page.selection,
        threads: &page.of_threads,
        images: &page.images,
        sets: page.sets.as_ref(),
        version: page.version,
        terms: &page.terms,
        reports: page.reports.iter().map(|report| report.words.as_slice()).collect(),
        more: page.reports.iter().map(|report| report.more.as_slice()).collect(),
    };
    let config = serde_json::to_vec(&config).map_err(io::Error::from)?;
    let script = match page.subject {
        Subject::Profile => PROFILE,
        Subject::Fleet => FLEET,
    };
    let title = draw::escaped(&page.title);
    let licences = draw::escaped(LICENCES);
    let policy = policy(nonce, page.is_live);
    write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"referrer\" content=\"no-referrer\">\n<title>{title}</title>\n\
         <style nonce=\"{nonce}\">{STYLE}</style>\n</head>\n<body>\n<div id=\"app\">\
         <p>A script makes this page: allow scripts for it.</p></div>\n\
         <template id=\"licences\">{licences}</template>\n\
         <script type=\"application/json\" id=\"config\">"
    )?;
    out.write_all(&compact(&config))?;
    writeln!(out, "</script>")?;
    for (at, report) in page.reports.iter().enumerate() {
        write!(out, "<script type=\"application/json\" id=\"report-{at}\">")?;
        out.write_all(&compact(&report.json))?;
        writeln!(out, "</script>")?;
    }
    write!(out, "<script nonce=\"{nonce}\">{script}</script>\n</body>\n</html>\n")
}

/// JSON without the space between its tokens, and without characters that could end the
/// element it is in: these occur within strings only, where they may be spelt otherwise.
pub fn compact(json: &[u8]) -> Vec<u8> {
    let mut compact = Vec::with_capacity(json.len());
    let (mut is_string, mut is_escaped) = (false, false);
    for byte in json {
        match byte {
            b' ' | b'\n' | b'\r' | b'\t' if !is_string => continue,
            b'<' => compact.extend_from_slice(b"\\u003c"),
            b'>' => compact.extend_from_slice(b"\\u003e"),
            b'&' => compact.extend_from_slice(b"\\u0026"),
            byte => compact.push(*byte),
        }
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_string => is_escaped = true,
            b'"' => is_string = !is_string,
            _ => {}
        }
    }
    compact
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(title: &str, json: &str) -> String {
        let words = vec!["prof".to_owned()];
        let report = Report { words, more: Vec::new(), json: json.as_bytes().to_vec() };
        let page = Page {
            subject: Subject::Profile,
            title: title.to_owned(),
            is_live: false,
            note: Some("</script>".to_owned()),
            db: "/db</script>".to_owned(),
            selection: Vec::new(),
            of_threads: Vec::new(),
            images: Vec::new(),
            sets: None,
            version: "0.1.0",
            terms: Vec::new(),
            reports: vec![report],
        };
        let mut out = Vec::new();
        write(&page, "n", &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn no_name_ends_its_block() {
        let page = written("<b>", "{ \"a b\\\" \": \"</script><!-- & \\\\\" , \"c\" : [1, 2] }");
        assert_eq!(page.matches("</script>").count(), 3, "those of the page itself");
        assert!(page.contains("<title>&lt;b&gt;</title>"));
        let json = "{\"a b\\\" \":\"\\u003c/script\\u003e\\u003c!-- \\u0026 \\\\\",\"c\":[1,2]}";
        assert!(page.contains(json), "{page}");
    }

    #[test]
    fn the_page_is_its_own_and_asks_nobody() {
        let forbidden = ["//cdn", "@import", "url(", "eval(", "onclick=", "</script", "</style"];
        for (part, text) in [("script", PROFILE), ("fleet's", FLEET), ("style", STYLE)] {
            for word in forbidden {
                assert!(!text.contains(word), "{word} in the {part}");
            }
        }
        let size = PROFILE.len().max(FLEET.len()) + STYLE.len() + LICENCES.len();
        assert!(size < 1 << 20, "a page without data has at most 1 MB: {size}");
    }
}
