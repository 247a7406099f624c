//! `dcpi html`: one file, whatever the names in it.

use image::ImageKind;

use crate::database::{Db, Epoch, START, clock, image, two_events, typical};
use crate::runs::{dcpi, shown};

/// The data of a page, as its script reads it.
#[allow(clippy::unwrap_used, reason = "tests panic to fail")]
fn data(page: &str) -> serde_json::Value {
    let (_, rest) = page.split_once("id=\"data\">").unwrap();
    let (json, _) = rest.split_once("</script>").unwrap();
    serde_json::from_str(json).unwrap()
}

fn page(db: &Db, words: &str) -> String {
    shown(db, &format!("html -o - {words}"))
}

#[test]
fn the_page_has_what_prof_has() {
    let db = Db::new();
    db.epoch("node-7", typical());
    let (page, prof) = (data(&page(&db, "")), crate::runs::json(&db, "prof"));
    let rows = page["procedures"].as_array().unwrap();
    let sum: u64 = rows.iter().map(|row| row["n"][0].as_u64().unwrap()).sum();
    assert_eq!(sum, prof["events"][0]["counted"].as_u64().unwrap(), "with those of unknown code");
    let (first, expected) = (&rows[0], &prof["rows"][0]);
    assert_eq!((&first["name"], &first["image"]), (&expected["procedure"], &expected["image"]));
    let share = &expected["share"]["cpu-clock"];
    let expected = [&share["value"], &share["low"], &share["high"]];
    assert_eq!(first["s"][0].as_array().unwrap().iter().collect::<Vec<_>>(), expected);
    assert!(page["head"][0].as_str().unwrap().starts_with("database"), "{}", page["head"]);
}

#[test]
fn what_is_left_out_is_counted() {
    let db = Db::new();
    db.epoch("node-7", two_events());
    let (all, some) = (data(&page(&db, "")), data(&page(&db, "-n 1")));
    let resolved = |page: &serde_json::Value| -> u64 {
        let rows = page["procedures"].as_array().unwrap().iter().filter(|row| row["id"] != "");
        rows.map(|row| row["n"][1].as_u64().unwrap()).sum()
    };
    assert_eq!(resolved(&all), resolved(&some) + some["omitted"]["counts"][1].as_u64().unwrap());
    assert!(some["omitted"]["procedures"].as_u64().unwrap() > 0);
}

#[test]
fn loops_have_their_rounds() {
    let page = data(&page(&crate::why::copies(), "--why"));
    let loops = &page["listings"]["0"]["loops"];
    let told = "loop 0x401007: 99.90 % of samples, about 100 rounds for one entry (high); why: loads from memory [likely]; its test at 0x401015 says 96–104 rounds for all entries, by 9,900 samples";
    assert!(loops[0].as_str().unwrap().starts_with(told), "{loops}");
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
    assert_eq!(page.matches("</script>").count(), 2, "the data's and the script's own");
    assert!(
        !page.contains("<img")
            && !page.contains("<b>")
            && !page.contains('\u{202e}')
            && !page.contains('\u{2028}')
    );
    assert!(page.contains("<title>Where have all the cycles gone? a&amp;&lt;b&gt;</title>"));
    let data = data(&page);
    let name = data["procedures"][0]["name"].as_str().unwrap();
    assert!(name.starts_with("</script><img src=x") && name.contains("\\u{202e}"), "{name}");
    assert!(page.len() < 60_000, "a name has an end: {}", page.len());
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
