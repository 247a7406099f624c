//! Flame graphs in Debian's Chromium: drawn, zoomed and searched by keys. `cargo xtask consumers`
//! installs it and runs this; `face/test/page.mjs` looks at the page.

use std::path::Path;
use std::process::Command;

use crate::runs::shown;
use crate::stacks::db;

/// Presses keys, types into the search, and presses one more.
const KEYS: &str = "\
const press = (key) => document.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }));
const search = document.querySelector('input[type=search]#search');
for (const key of ['ArrowWAY', 'ArrowWAY', 'Enter']) press(key);
search.value = 'PARSE';
search.dispatchEvent(new Event('input'));
press('n');
";

/// What the browser makes of a file: its document after its scripts, and a picture of it.
fn seen(directory: &Path, name: &str, text: &str) -> (String, Vec<u8>) {
    let file = directory.join(name);
    std::fs::write(&file, text).unwrap();
    let url = format!("file://{}", file.display());
    let run = |what: &str| {
        let mut browser = Command::new("chromium");
        browser.args(["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]);
        browser.args(["--window-size=1240,700", "--virtual-time-budget=3000", what, &url]);
        browser.arg(format!("--user-data-dir={}", directory.join("profile").display()));
        let output = browser.current_dir(directory).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let picture = directory.join("picture.png");
    let document = run("--dump-dom");
    let _ = run(&format!("--screenshot={}", picture.display()));
    (document, std::fs::read(picture).unwrap())
}

/// The text of the element with this id.
fn text_of<'a>(document: &'a str, id: &str) -> &'a str {
    let (_, rest) = document.split_once(&format!("id=\"{id}\"")).unwrap();
    let (_, rest) = rest.split_once('>').unwrap();
    rest.split_once('<').unwrap().0
}

#[test]
#[ignore = "needs Chromium, which cargo xtask consumers installs"]
fn drawings_zoom_and_search_by_keys() {
    let (db, directory) = (db(), tempfile::tempdir().unwrap());
    let (_, blank) =
        seen(directory.path(), "blank.svg", "<svg xmlns=\"http://www.w3.org/2000/svg\"/>");
    for (words, way) in [("", "Up"), ("--icicle", "Down")] {
        let svg = shown(&db, &format!("flame -o - {words}"));
        let keys = KEYS.replace("WAY", way);
        let svg = svg.replace("</svg>\n", &format!("<script>{keys}</script></svg>\n"));
        let (document, picture) = seen(directory.path(), "flame.svg", &svg);
        assert!(text_of(&document, "found").starts_with("3 found, 81.30 %"), "{document}");
        assert!(text_of(&document, "details").starts_with("parse (server): 11.3 s, 81.30 %"));
        assert!(picture.len() > 2 * blank.len(), "{} of {}", picture.len(), blank.len());
    }
}
