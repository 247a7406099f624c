//! The program as a process: exit codes, one-line errors, pipes, its names.

use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use image::ImageKind;

use profiledb::Lost;

use crate::database::{Db, Epoch, START, clock, image, runs, two_events, typical};
use crate::runs::{dcpi, on, refused, shown};
use crate::why::copies;

fn with_typical() -> Db {
    let db = Db::new();
    db.epoch("node-7", typical());
    db
}

#[test]
fn errors_are_one_line_with_a_next_step() {
    let db = with_typical();
    for (words, said) in [
        ("prof --epoch -1", "no epoch matches --epoch -1; for a list of epochs: dcpi epochs --db"),
        ("prof --epoch 20250101", "no epoch matches --epoch 20250101"),
        ("prof --epoch-label x", "no epoch matches --epoch latest --epoch-label x"),
        (
            "prof --label x",
            "no samples labelled \"x\"; these epochs keep none apart (--epoch chooses others): dcpilabel LABEL COMMAND labels samples",
        ),
        ("prof --pid x", "invalid value 'x' for '--pid <PID>'"),
        ("prof --label=", "a value is required for '--label <LABEL>'"),
        ("prof -i --by label", "cannot be used with"),
        ("prof --host nobody", "has no host \"nobody\"; it has node-7"),
        ("prof --host ../x", "has no host"),
        ("prof --event cycles", "no event \"cycles\" in these epochs; they have cpu-clock"),
        ("prof --sort cycles", "cannot sort by \"cycles\", which is not shown"),
        ("prof nothing", "no image with samples has the name, path or id \"nothing\""),
        ("prof --event=", "a value is required for '--event <EVENT>'"),
        ("prof --bogus", "unexpected argument '--bogus' found"),
    ] {
        let error = refused(&db, words);
        assert!(error.contains(said), "{words}: {error}");
    }
}

/// The error was a line of 36 names without an order.
#[test]
fn without_a_subcommand_the_help_is_shown_as_an_error() {
    let (help, none) = (dcpi().arg("help").output().unwrap(), dcpi().output().unwrap());
    assert_eq!((none.status.code(), none.stdout.len()), (Some(2), 0));
    assert!(!help.stdout.is_empty() && none.stderr == help.stdout, "{none:?}");
}

/// The samples of a labelled run were in the epoch before the latest: the error did not say so.
#[test]
fn samples_of_another_epoch_are_told_where_they_are() {
    let db = Db::new();
    db.epoch("node-7", runs());
    db.epoch("node-7", Epoch { start: START + 9000, ..typical() });
    let id = "20261105-101500"; // of START
    let there = format!("the newest epoch that has some is another: --epoch {id}");
    for (words, said) in [
        ("prof --label before", there.as_str()),
        ("prof --unit web.service", &there),
        ("prof --pid 4711", &there),
        ("epochs --epoch latest --label before", &there),
        ("diff latest label:before", &there),
        ("prof --label nowhere", "these epochs keep none apart"),
    ] {
        let error = refused(&db, words);
        assert!(error.contains(said), "{words}: {error}");
    }
    assert!(shown(&db, &format!("prof --label before --epoch {id}")).contains("parse"));
    db.epoch("node-8", typical());
    let error = refused(&db, "prof --label before --host node-8");
    assert!(error.contains(&format!("--host node-7 --epoch {id}")), "{error}");
}

/// The advice was to choose other epochs, but none of these can be read either.
#[test]
fn a_damaged_format_file_is_told_with_what_mends_it() {
    let db = with_typical();
    std::fs::write(db.root().join("format"), "dcpi database two\n").unwrap();
    let error = refused(&db, "prof");
    assert!(
        error.contains("is damaged")
            && error.contains("remove this file, and dcpid writes it anew"),
        "{error}"
    );
    assert!(error.contains("dcpi check") && !error.contains("--epoch"), "{error}");
}

/// Heads, notes and some tables were wider than a terminal of 80 columns; the same text in a pipe
/// stays whole.
#[test]
fn what_a_terminal_shows_is_as_wide_as_it_is() {
    let kept = copies();
    let copies = &kept.root();
    let [typical, two] = [typical(), two_events()].map(|epoch| {
        let db = Db::new();
        db.epoch("a-host-with-a-long-name.example.org", epoch);
        db
    });
    let (typical, two) = (typical.root().to_owned(), two.root().to_owned());
    let mut wide = Vec::new();
    for (db, words) in [
        (&typical, "epochs"),
        (&two, "epochs"),
        (&typical, "prof"),
        (&typical, "topcounts"),
        (copies, "prof -i"),
        (copies, "epochs"),
        (copies, "list copy copy"),
        (copies, "calc copy copy"),
        (copies, "whatcg"),
        (copies, "topstalls"),
        (copies, "why"),
    ] {
        let program = env!("CARGO_BIN_EXE_dcpi");
        let mut command = Command::new("script");
        command.args([
            "-qec",
            &format!("stty cols 80; {program} {words} --db {}", db.display()),
            "/dev/null",
        ]);
        let clean = command
            .env_remove("COLUMNS")
            .env_remove("DCPIDB")
            .env("PAGER", "cat")
            .env("TERM", "dumb");
        let output = clean.stdin(Stdio::null()).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && text.lines().count() > 3, "{words}: {text}");
        // What cannot be broken is as wide as it is: this directory's name.
        let long = |line: &&str| line.chars().count() > 80 && !line.contains(db.to_str().unwrap());
        wide.extend(text.lines().filter(long).map(|line| format!("{words}: {line}")));
    }
    assert!(wide.is_empty(), "{}", wide.join("\n"));
}

/// A report's parts may meet the same damage, each for itself.
#[test]
fn each_problem_is_told_once() {
    for lost in [
        |lost: &Lost| matches!(lost, Lost::Samples { .. }),
        |lost: &Lost| !matches!(lost, Lost::Samples { .. }),
    ] {
        let db = with_typical();
        // A small program: each flipped bit is checked for with all that is kept.
        db.keep("node-7", Path::new("/bin/true"));
        for start in [START + 5000, START + 10_000] {
            db.epoch("node-7", Epoch::new(start, vec![clock()]));
        }
        db.damage(lost);
        for words in [
            "epochs",
            "prof --epoch all",
            "images --epoch all",
            "topcounts --epoch all",
            "cat --epoch all",
        ] {
            let output = on(&db, words);
            let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
            let mut told: Vec<&str> =
                text.lines().filter(|line| line.contains("damaged at byte")).collect();
            told.iter_mut().for_each(|line| {
                *line = line.split(" is damaged").next().unwrap().rsplit(' ').next().unwrap()
            });
            let all = told.len();
            told.sort_unstable();
            told.dedup();
            assert_eq!(told.len(), all, "{words}: {text}");
        }
    }
}

#[test]
fn a_place_without_database_is_told() {
    let db = Db::new();
    let error = refused(&db, "prof");
    assert!(error.contains("is not a profile database"), "{error}");
    assert!(error.contains("--db or $DCPIDB"), "{error}");
    drop(profiledb::Writer::open(&db.root(), "node-7").unwrap());
    let error = refused(&db, "prof");
    assert!(error.contains("has no epochs yet; see whether the daemon runs"), "{error}");
}

#[test]
fn control_characters_stay_out_of_messages() {
    let db = with_typical();
    let output = dcpi().args(["prof", "--db"]).arg(db.root()).arg("a\x1b[2J\nb").output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(!error.contains('\x1b') && error.matches('\n').count() == 1, "{error:?}");
}

#[test]
fn the_environment_names_a_database() {
    let db = with_typical();
    let output = dcpi().arg("prof").env("DCPIDB", db.root()).output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), shown(&db, "prof"));
    // The option comes first, and an empty name is none.
    let output =
        dcpi().args(["prof", "--db"]).arg(db.root()).env("DCPIDB", "/nowhere").output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let output = dcpi().arg("prof").env("DCPIDB", "").output().unwrap();
    assert!(output.stderr.starts_with(b"dcpi: /var/lib/dcpi") || output.status.success());
}

/// Ten lines stood before the first row.
#[test]
fn without_v_a_profile_has_few_lines_beside_its_rows() {
    let db = with_typical();
    let mut brief = dcpi();
    brief.env_remove("DCPI_VERBOSE").env("COLUMNS", "80");
    let output = brief.args(["prof", "-n", "3", "--db"]).arg(db.root()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.lines().count() <= 3 + 5 && text.contains("procedure"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert!(shown(&db, "prof -n 3").lines().count() > 3 + 5, "-v shows more");
}

#[test]
fn classic_names_are_programs() {
    let db = with_typical();
    let mut classic = Command::new(env!("CARGO_BIN_EXE_dcpi"));
    let classic = classic.arg0("dcpiprof").env("DCPI_VERBOSE", "1").env("COLUMNS", "120");
    let output = classic.args(["-i", "--db"]).arg(db.root()).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), shown(&db, "prof -i"));
}

#[test]
fn help_and_version_go_to_standard_output() {
    for words in
        [&["--help"][..], &["help"], &["help", "prof"], &["prof", "--help"], &["--version"]]
    {
        let output = dcpi().args(words).output().unwrap();
        assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0), "{words:?}");
        assert!(!output.stdout.is_empty(), "{words:?}");
    }
    let version = dcpi().arg("--version").output().unwrap().stdout;
    assert_eq!(
        String::from_utf8(version).unwrap(),
        format!("dcpi {}\n", env!("CARGO_PKG_VERSION"))
    );
}

/// A report that does not fit a pipe: a reader that stops early makes writing fail.
fn large() -> Db {
    let code = image(ImageKind::Module, "[large]", "[large]");
    let names: Vec<String> = (0..5000).map(|n| format!("procedure_{n}")).collect();
    let symbols: Vec<(u64, u64, &str)> =
        (0..).zip(&names).map(|(n, name)| (n * 16, n * 16 + 16, name.as_str())).collect();
    let counts: Vec<(u64, u64)> = (0..5000).map(|n| (n * 16, 5000 - n)).collect();
    let db = Db::new();
    db.epoch(
        "h",
        Epoch::new(START, vec![clock()])
            .samples("cpu-clock", &code, &counts)
            .symbols(&code, &symbols),
    );
    db
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let db = large();
    for format in ["text", "json", "csv"] {
        let mut program = dcpi();
        program.args(["prof", "-n", "0", "--format", format, "--db"]).arg(db.root());
        let mut child = program.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut begin = [0; 64];
        child.stdout.take().unwrap().read_exact(&mut begin).unwrap();
        // The pipe is closed by now; 64 KiB of it are far less than the report.
        let output = child.wait_with_output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), errors.as_str()), (Some(0), ""), "{format}");
    }
    assert!(shown(&db, "prof -n 0").len() > 128 * 1024);
}

#[test]
fn a_full_disk_is_a_failure() {
    let db = large();
    for format in ["text", "json", "csv"] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut program = dcpi();
        program.args(["prof", "--format", format, "--db"]).arg(db.root());
        let output = program.stdout(full).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{format}");
        assert!(errors.starts_with("dcpi: cannot write the report"), "{errors}");
        assert_eq!(errors.matches('\n').count(), 1, "{errors}");
    }
}

#[test]
fn damage_is_worked_around_and_told() {
    let db = with_typical();
    let whole = shown(&db, "prof --format csv");
    let kernel = crate::database::kernel().id;
    db.damage(|lost| matches!(lost, Lost::Samples { key, .. } if key.image == kernel));
    for (format, shown_in_report) in [("text", true), ("json", true), ("csv", false)] {
        let output = on(&db, &format!("prof --format {format}"));
        let (text, errors) =
            (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        assert_eq!(output.status.code(), Some(1), "{format}");
        assert_eq!(text.contains("wrong checksum"), shown_in_report, "{format}: {text}");
        assert_eq!(errors.contains("dcpi: left out: "), !shown_in_report, "{format}: {errors}");
        // The rest is there.
        assert!(
            text.contains("ext4_find_entry") && !text.contains("clear_page_erms"),
            "{format}: {text}"
        );
    }
    assert!(whole.contains("clear_page_erms"));
}

/// `list`, `calc`, `whatcg`, `topstalls` and `flow` of whole profiles in a damaged file said
/// nothing of the damage, and `epochs` ended with 0; what the damage had taken away was "no image"
/// or "no procedure" to them.
#[test]
fn damage_is_named_by_every_command() {
    let db = with_typical();
    let kernel = crate::database::kernel().id;
    db.damage(|lost| matches!(lost, Lost::Samples { key, .. } if key.image == kernel));
    let drawn = db.root().with_file_name("flow.svg");
    for words in [
        "epochs",
        "images",
        "images ext4",
        "prof ext4",
        "topcounts ext4",
        "cat ext4",
        "export --to folded -o -",
        "list ext4 ext4_find_entry",
        "list ext4 nothing",
        "list [kernel] clear_page_erms",
        "calc ext4 ext4_find_entry",
        "calc [kernel] clear_page_erms",
        "whatcg ext4",
        "topstalls ext4",
        "why ext4",
        &format!("flow ext4 ext4_find_entry -o {}", drawn.display()),
        &format!("html -o {}", drawn.display()),
    ] {
        let output = on(&db, words);
        let said =
            [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
        assert!(matches!(output.status.code(), Some(1 | 2)), "{words}: {:?} {said}", output.status);
        assert_eq!(said.matches("wrong checksum").count(), 1, "{words}: {said}");
    }
}

/// The only segment with samples could not be read, and the first note was that nothing was merged,
/// and to flush.
#[test]
fn an_empty_report_names_the_damage_first_and_does_not_say_that_nothing_was_merged() {
    let db = with_typical();
    for path in db.files("1-1.segment") {
        std::fs::write(path, "x").unwrap();
    }
    for words in ["prof", "prof -i", "topcounts"] {
        let output = on(&db, words);
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(1), "{words}: {text}");
        assert!(!text.contains("dcpid has merged none"), "{words}: {text}");
        let at =
            |what: &str| text.find(what).unwrap_or_else(|| panic!("{words}: no {what}: {text}"));
        assert!(
            at("problem: left out: ") < at("the files that could be read have no samples"),
            "{words}: {text}"
        );
        assert_eq!(text.matches("problem: ").count(), 1, "{words}: {text}");
    }
}

/// `dcpi calc '[kernel]' NAME` advised `dcpi list`, which without names is a usage error.
#[test]
fn advice_has_the_names_that_the_command_needs() {
    let db = with_typical();
    let error = refused(&db, "calc [kernel] clear_page_erms");
    assert!(
        error.contains(&format!("dcpi list --db {} '[kernel]' clear_page_erms", db.root_text())),
        "{error}"
    );
    let error = refused(&db, "list [kernel] nothing");
    assert!(error.contains("'[kernel]' -n 0 --full-names"), "{error}");
}

/// A file, an empty directory and a directory of something else were all "no file `format`", or a
/// refused system call.
#[test]
fn what_is_no_database_is_told_with_the_next_step() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    std::fs::write(at("file"), "x").unwrap();
    std::fs::create_dir_all(at("empty")).unwrap();
    std::fs::create_dir_all(at("foreign/x")).unwrap();
    std::fs::create_dir_all(at("moved/hosts")).unwrap();
    for (name, said) in [
        ("nothing", "there is no such directory; name a database with --db or $DCPIDB"),
        ("file", "it is no directory; name the directory of a database with --db"),
        ("empty", "the directory is empty; start dcpid with this --db"),
        (
            "foreign",
            "the directory has other files and no file `format`; name the directory of a database",
        ),
        ("moved", "its file `format` is missing; dcpid writes it anew"),
    ] {
        for command in ["prof", "epochs", "check"] {
            let output = dcpi().arg(command).arg("--db").arg(at(name)).output().unwrap();
            let error = String::from_utf8(output.stderr).unwrap();
            assert_eq!(
                (output.status.code(), error.lines().count()),
                (Some(2), 1),
                "{name}: {error}"
            );
            assert!(
                error.contains(&format!("{name} is not a profile database: {said}")),
                "{name}: {error}"
            );
        }
    }
}

#[test]
fn a_damaged_description_ends_the_report_if_there_is_no_other() {
    let db = with_typical();
    db.epoch("node-8", Epoch { start: START + 60, ..typical() });
    ruin(&db, "node-7");
    let output = on(&db, "prof");
    assert_eq!(output.status.code(), Some(1));
    let output = on(&db, "epochs");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stdout).unwrap().contains("problem: left out: "));
    ruin(&db, "node-8");
    let error = refused(&db, "prof");
    assert!(error.contains("wrong checksum; choose other epochs"), "{error}");
}

#[test]
fn images_without_records_keep_their_samples() {
    let db = with_typical();
    db.damage(|lost| *lost == Lost::Images);
    let output = on(&db, "prof -i --idle --format csv");
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.matches("[unknown image]").count(), 5, "{text}");
    assert!(text.contains("36952"), "{text}");
}

#[test]
fn a_file_that_is_missing_is_missed() {
    let db = with_typical();
    let first = db.files("0-0.segment").remove(0);
    std::fs::remove_file(first).unwrap();
    let output = on(&db, "prof");
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains("it is missing, with what merges 0 to 0 added"), "{text}");
    // What the others have is there.
    assert!(text.contains("ext4_find_entry") && text.contains("clear_page_erms"), "{text}");
}

/// Damages the directory of each segment of a host.
fn ruin(db: &Db, host: &str) {
    for path in db.files(".segment").iter().filter(|path| path.to_str().unwrap().contains(host)) {
        let mut bytes = std::fs::read(path).unwrap();
        bytes[40] ^= 1;
        std::fs::write(path, bytes).unwrap();
    }
}
