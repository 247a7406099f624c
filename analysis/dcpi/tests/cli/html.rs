//! `dcpi html`: one file, whatever the names in it.

use image::ImageKind;

use crate::database::{Db, Epoch, START, clock, image, two_events, typical};
use crate::runs::{dcpi, json, lines, report, reports, shown};

fn page(db: &Db, words: &str) -> String {
    shown(db, &format!("html -o - {words}"))
}

/// The page has no format of its own: its reports are what the commands print that it names.
#[test]
fn the_page_has_what_commands_print() {
    let db = Db::new();
    db.epoch("node-7", typical());
    let page = page(&db, "");
    for words in ["prof", "prof -i", "epochs", "why -n40"] {
        assert_eq!(report(&page, words), json(&db, words), "{words}");
    }
    assert!(!reports(&page).iter().any(|(words, _)| words.starts_with("tree")), "no call stacks");
}

/// Whoever copies a report's command gets that report, whatever the page was made with, and also
/// when there is a later epoch.
#[test]
fn the_page_has_the_whole_command_of_each_report() {
    for options in ["", "-n 1 --idle --confidence 99", "[ext4] --host node-7"] {
        let db = Db::new();
        db.epoch("node-7", typical());
        let page = page(&db, options);
        db.epoch("node-7", Epoch::new(START + 7200, vec![clock()]));
        let shown = reports(&page);
        let lines = lines(&page);
        assert_eq!(shown.len(), lines.len());
        for ((words, report), line) in shown.iter().zip(lines) {
            let last = line.iter().position(|word| word == "--").unwrap_or(line.len());
            let (line, last) = line.split_at(last);
            let mut command = dcpi();
            command.args(line).args(["--format=json", "--db", &db.root_text()]).args(last);
            let output = command.output().unwrap();
            let again: serde_json::Value = serde_json::from_slice(&output.stdout)
                .unwrap_or_else(|_| panic!("{line:?}: {output:?}"));
            // All epochs are among those of the database.
            if !words.starts_with("epochs") {
                assert_eq!(*report, again, "{options}: {line:?}");
            }
        }
    }
}

#[test]
fn a_note_is_in_the_page_and_has_a_limit() {
    let db = Db::new();
    db.epoch("node-7", typical());
    assert!(page(&db, "--note slower?").contains("\"note\":\"slower?\""));
    let long = ["html", "-o", "-", "--note", &"x".repeat(501), "--db", &db.root_text()];
    let output = dcpi().args(long).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && said.contains("at most 500"), "{said}");
}

#[test]
fn what_is_left_out_is_counted() {
    let db = Db::new();
    db.epoch("node-7", two_events());
    let (all, some) = (report(&page(&db, ""), "prof"), report(&page(&db, "-n 1"), "prof"));
    assert_eq!(some["rows"].as_array().unwrap().len(), 1);
    let left_out = all["rows"].as_array().unwrap().len() - 1;
    assert_eq!(some["omitted"]["rows"].as_u64().unwrap(), left_out as u64);
}

#[test]
fn two_sets_are_compared() {
    let db = Db::new();
    db.epoch("node-7", typical());
    db.epoch("node-8", two_events());
    let page = page(&db, "--diff host:node-7");
    let diff = report(&page, "diff host:node-7 latest");
    assert_eq!(diff["names"], serde_json::json!({ "a": "host:node-7", "b": "latest" }));
}

/// Names of procedures are made by whoever makes programs: none may become markup, end the data, or
/// hide.
#[test]
fn hostile_names_stay_text() {
    let hostile = "</script><img src=x onerror=alert(1)>&amp;\u{2028}\u{202e}]]>{{style}}\"'";
    let code = image(ImageKind::Jit, "<b>\"'&", "");
    let epoch = Epoch::new(START, vec![clock()])
        .samples("cpu-clock", &code, &[(0x10, 5), (0x30, 1)])
        .symbols(&code, &[(0x10, 0x20, hostile), (0x30, 0x40, &"x".repeat(100_000))]);
    let db = Db::new();
    db.epoch("a&<b>", epoch);
    let page = page(&db, "");
    let own = reports(&page).len() + 2;
    assert_eq!(page.matches("</script>").count(), own, "those of the data and of the script");
    assert!(
        !page.contains("<img")
            && !page.contains("<b>")
            && !page.contains('\u{202e}')
            && !page.contains('\u{2028}')
    );
    let prof = report(&page, "prof");
    let name = prof["rows"][0]["procedure"].as_str().unwrap();
    assert!(name.starts_with("</script><img src=x"), "{name}");
    assert!(page.contains("default-src 'none'"));
}

#[test]
fn a_file_is_written_or_said_not_to_be() {
    let db = Db::new();
    db.epoch("node-7", typical());
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("a report.html");
    let (file, root) = (file.to_str().unwrap(), db.root_text());
    let output = dcpi().args(["html", "--db", root.as_str(), "-o", file]).output().unwrap();
    assert!(
        output.status.success()
            && String::from_utf8_lossy(&output.stdout).contains("open it in a browser")
    );
    assert!(std::fs::read_to_string(file).unwrap().ends_with("</html>\n"));
    assert!(crate::runs::refused(&db, "html -o /dev/null").contains("it is no plain file"));
    let output = dcpi()
        .args(["html", "--db", root.as_str(), "-o", "/does/not/exist.html"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        said.contains("cannot write /does/not/exist.html") && said.trim().lines().count() == 1,
        "{said}"
    );
}
