//! `dcpi export`: what is written is decoded here by hand, apart from the code that wrote it.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;

use crate::database::{Db, Epoch, kernel, runs, two_events, typical};
use crate::runs::{json, on, refused};

fn one(epoch: Epoch) -> Db {
    let db = Db::new();
    db.epoch("node-7", epoch);
    db
}

/// What is written to standard output, and said besides.
#[track_caller]
fn exported(db: &Db, words: &str) -> (Vec<u8>, String) {
    let output = on(db, &format!("export -o - {words}"));
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{words}: {errors}");
    (output.stdout, errors)
}

fn text(db: &Db, words: &str) -> String {
    String::from_utf8(exported(db, words).0).unwrap()
}

/// A field of a protocol buffer's message.
#[derive(Clone, Debug)]
enum Field {
    Number(u64),
    Bytes(Vec<u8>),
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let (first, rest) = bytes.split_first().expect("a whole number");
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return value;
        }
    }
    unreachable!()
}

fn message(mut bytes: &[u8]) -> Vec<(u64, Field)> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes);
        let field = match tag & 7 {
            0 => Field::Number(varint(&mut bytes)),
            1 => {
                let (field, rest) = bytes.split_at(8);
                bytes = rest;
                Field::Number(u64::from_le_bytes(field.try_into().unwrap()))
            }
            2 => {
                let length = usize::try_from(varint(&mut bytes)).unwrap();
                let (field, rest) = bytes.split_at(length);
                bytes = rest;
                Field::Bytes(field.to_vec())
            }
            wire => panic!("wire type {wire}"),
        };
        fields.push((tag >> 3, field));
    }
    fields
}

fn messages(fields: &[(u64, Field)], number: u64) -> Vec<Vec<(u64, Field)>> {
    let of = |(at, field): &(u64, Field)| match field {
        Field::Bytes(bytes) if *at == number => Some(message(bytes)),
        _ => None,
    };
    fields.iter().filter_map(of).collect()
}

fn number(fields: &[(u64, Field)], number: u64) -> u64 {
    let of = |(at, field): &(u64, Field)| match field {
        Field::Number(value) if *at == number => Some(*value),
        _ => None,
    };
    fields.iter().find_map(of).unwrap_or(0)
}

fn numbers(fields: &[(u64, Field)], number: u64) -> Vec<u64> {
    let packed = fields.iter().find_map(|(at, field)| match field {
        Field::Bytes(bytes) if *at == number => Some(bytes.clone()),
        _ => None,
    });
    let packed = packed.unwrap_or_default();
    let mut bytes = packed.as_slice();
    let mut numbers = Vec::new();
    while !bytes.is_empty() {
        numbers.push(varint(&mut bytes));
    }
    numbers
}

fn strings(fields: &[(u64, Field)], number: u64) -> Vec<String> {
    let text = |(_, field): &(u64, Field)| match field {
        Field::Bytes(bytes) => String::from_utf8(bytes.clone()).unwrap(),
        Field::Number(_) => panic!("a string is a number"),
    };
    fields.iter().filter(|(at, _)| *at == number).map(text).collect()
}

fn strings_of(fields: &[(u64, Field)], number: u64) -> Option<String> {
    strings(fields, number).into_iter().next()
}

/// A decoded profile: sample types, and samples by `mapping's file > functions, outermost first >
/// labels`.
#[derive(Debug)]
struct Pprof {
    types: Vec<String>,
    samples: BTreeMap<String, Vec<u64>>,
    comments: Vec<String>,
    mappings: Vec<(u64, u64, String, u64)>,
}

fn pprof(bytes: &[u8]) -> Pprof {
    let mut plain = Vec::new();
    flate2::read::GzDecoder::new(bytes).read_to_end(&mut plain).unwrap();
    let profile = message(&plain);
    let strings = strings(&profile, 6);
    assert_eq!(strings[0], "");
    let string = |index: u64| strings[usize::try_from(index).unwrap()].clone();
    let by_id = |number| -> BTreeMap<u64, Vec<(u64, Field)>> {
        messages(&profile, number)
            .into_iter()
            .map(|fields| (self::number(&fields, 1), fields))
            .collect()
    };
    let (mappings, locations, functions) = (by_id(3), by_id(4), by_id(5));
    assert!(
        !mappings.contains_key(&0) && !locations.contains_key(&0) && !functions.contains_key(&0)
    );
    let mut samples = BTreeMap::new();
    for sample in messages(&profile, 2) {
        let [location] = numbers(&sample, 1)[..] else { panic!("samples have no call stacks") };
        let location = &locations[&location];
        let file = mappings.get(&number(location, 2)).map(|mapping| string(number(mapping, 5)));
        let lines = messages(location, 4);
        let names = lines.iter().rev().map(|line| string(number(&functions[&number(line, 1)], 2)));
        let labels = messages(&sample, 3).into_iter().map(|label| {
            let value = string(number(&label, 2));
            let value = if value.is_empty() { number(&label, 3).to_string() } else { value };
            format!("{}={value}", string(number(&label, 1)))
        });
        let key: Vec<String> = file.into_iter().chain(names).chain(labels).collect();
        let sums: &mut Vec<u64> = samples.entry(key.join(" > ")).or_default();
        for (at, value) in numbers(&sample, 2).into_iter().enumerate() {
            sums.resize(sums.len().max(at + 1), 0);
            sums[at] += value;
        }
    }
    let kind = |fields: &Vec<(u64, Field)>| {
        format!("{}/{}", string(number(fields, 1)), string(number(fields, 2)))
    };
    let mapping = |fields: &Vec<(u64, Field)>| {
        (number(fields, 2), number(fields, 3), string(number(fields, 5)), number(fields, 7))
    };
    Pprof {
        types: messages(&profile, 1).iter().map(kind).collect(),
        samples,
        comments: numbers(&profile, 13).into_iter().map(string).collect(),
        mappings: messages(&profile, 3).iter().map(mapping).collect(),
    }
}

#[test]
fn pprof_has_every_sample_and_names() {
    let decoded = pprof(&exported(&one(typical()), "--to pprof").0);
    assert_eq!(decoded.types, ["samples/count", "cpu-clock/nanoseconds"]);
    let expected = [
        ("/boot/vmlinuz-6.18.0-test > clear_page_erms", 36_128),
        ("/boot/vmlinuz-6.18.0-test > init", 817),
        ("/boot/vmlinuz-6.18.0-test", 7),
        ("[vdso] > __vdso_clock_gettime", 4_100),
        ("[ext4] > ext4_find_entry", 900),
        ("/opt/app/gone", 2_500),
        ("[unknown code] anonymous_memory", 321),
        ("[unknown code] unknown_process", 12),
    ];
    let expected: BTreeMap<String, Vec<u64>> = expected
        .into_iter()
        .map(|(key, samples)| (key.to_owned(), vec![samples, samples * 192_308]))
        .collect();
    assert_eq!(decoded.samples, expected);
    assert!(
        decoded
            .comments
            .iter()
            .any(|line| line.contains("200000 idle") && line.contains("44 lost")),
        "{decoded:?}"
    );
    assert!(decoded.mappings.iter().all(|(start, limit, _, _)| start < limit));
}

#[test]
fn pprof_has_two_types_for_each_of_several_events() {
    let decoded = pprof(&exported(&one(two_events()), "--to pprof").0);
    let miss = "L1-icache-load-misses";
    let types = [
        "cycles_samples/count",
        "cycles/count",
        &format!("{miss}_samples/count"),
        &format!("{miss}/count"),
    ];
    assert_eq!(decoded.types, types);
    assert_eq!(decoded.samples["[app] > parse"], [250, 250 * 62_000, 403, 403 * 2000]);
    assert_eq!(decoded.samples["[other app] > main"], [41, 41 * 62_000, 0, 0]);
}

#[test]
fn pprof_tells_labels_units_and_processes_apart() {
    let db = one(runs());
    let decoded = pprof(&exported(&db, "--to pprof app").0);
    assert_eq!(decoded.samples["[app] > parse"][0], 50);
    assert_eq!(decoded.samples["[app] > parse > label=before"][0], 300);
    assert_eq!(decoded.samples["[app] > parse > unit=docker-0123456789ab > pid=4711"][0], 5);
    let decoded = pprof(&exported(&db, "--to pprof --label before --unit web.service").0);
    let only = ["[lib] > copy > label=before > unit=web.service".to_owned()];
    assert!(decoded.samples.keys().eq(&only), "{decoded:?}");
}

#[test]
fn pprof_without_names_is_whole_too() {
    let decoded = pprof(&exported(&one(typical()), "--to pprof --no-symbols").0);
    assert_eq!(decoded.samples["/boot/vmlinuz-6.18.0-test"][0], 36_952);
    assert!(decoded.mappings.iter().all(|(_, _, _, has_functions)| *has_functions == 0));
}

/// Samples of OTLP's profiles by `resource's attributes / event's sample type > mapping's file >
/// function`, and the dictionary.
fn otlp(bytes: &[u8]) -> (BTreeMap<String, u64>, Vec<(u64, Field)>) {
    let data = message(bytes);
    let dictionary = messages(&data, 2).remove(0);
    for table in 1..=7 {
        let first = dictionary.iter().find(|(at, _)| *at == table);
        assert!(
            matches!(first, Some((_, Field::Bytes(first))) if first.is_empty()),
            "table {table}: {first:?}"
        );
    }
    let strings: Vec<String> = strings(&dictionary, 5);
    let at = |index: u64| usize::try_from(index).unwrap();
    let string = |index: u64| strings[at(index)].clone();
    let [mappings, locations, functions, stacks] =
        [1, 2, 3, 7].map(|table| messages(&dictionary, table));
    let text = |value: &[(u64, Field)]| {
        strings_of(value, 1).unwrap_or_else(|| number(value, 3).to_string())
    };
    let mut samples = BTreeMap::new();
    for resource in messages(&data, 1) {
        let whose = messages(&messages(&resource, 1)[0], 1).into_iter().map(|attribute| {
            let value = messages(&attribute, 2).remove(0);
            format!("{}={}", strings_of(&attribute, 1).unwrap(), text(&value))
        });
        let whose = whose.collect::<Vec<_>>().join(" ");
        for profile in messages(&messages(&resource, 2)[0], 2) {
            let kind = |field| {
                let of = messages(&profile, field).remove(0);
                format!("{}/{}", string(number(&of, 1)), string(number(&of, 2)))
            };
            let period = format!("{} {}", kind(5), number(&profile, 6));
            assert!(number(&profile, 3) > 1_700_000_000_000_000_000, "fixed64, in nanoseconds");
            for sample in messages(&profile, 2) {
                let [location] = numbers(&stacks[at(number(&sample, 1))], 1)[..] else {
                    panic!("one location")
                };
                let location = &locations[at(location)];
                let file = string(number(&mappings[at(number(location, 1))], 4));
                let names = messages(location, 3)
                    .iter()
                    .map(|line| at(number(line, 1)))
                    .collect::<Vec<_>>();
                let names =
                    names.iter().rev().map(|function| string(number(&functions[*function], 1)));
                let stack = std::iter::once(file).chain(names).collect::<Vec<_>>().join(" > ");
                *samples
                    .entry(format!("{whose} / {} by {period} > {stack}", kind(1)))
                    .or_default() += numbers(&sample, 4).iter().sum::<u64>();
            }
        }
    }
    (samples, dictionary)
}

#[test]
fn otlp_has_every_sample_of_each_event_and_everybody() {
    let (samples, dictionary) = otlp(&exported(&one(typical()), "--to otlp").0);
    let expected = [
        ("/boot/vmlinuz-6.18.0-test > clear_page_erms", 36_128),
        ("/boot/vmlinuz-6.18.0-test > init", 817),
        ("/boot/vmlinuz-6.18.0-test", 7),
        ("[vdso] > __vdso_clock_gettime", 4_100),
        ("[ext4] > ext4_find_entry", 900),
        ("/opt/app/gone", 2_500),
        (" > [unknown code] anonymous_memory", 321),
        (" > [unknown code] unknown_process", 12),
    ];
    let all = "host.name=node-7 / samples/count by cpu/nanoseconds 192308";
    let expected: BTreeMap<String, u64> =
        expected.into_iter().map(|(key, samples)| (format!("{all} > {key}"), samples)).collect();
    assert_eq!(samples, expected);
    let said = "samples are at the instruction that the processor reported";
    let comment = |(_, field): &(u64, Field)| match field {
        Field::Bytes(bytes) => String::from_utf8_lossy(bytes).contains(said),
        _ => false,
    };
    assert!(dictionary.iter().any(comment), "on which instruction samples are is not said");
    let (samples, _) = otlp(&exported(&one(two_events()), "--to otlp").0);
    let of = |kind: &str, stack: &str| samples[&format!("host.name=node-7 / {kind} > {stack}")];
    assert_eq!(of("cycles_samples/count by cpu/cycles 62000", "[app] > parse"), 250);
    let miss = "L1-icache-load-misses";
    assert_eq!(of(&format!("{miss}_samples/count by {miss}/count 2000"), "[app] > parse"), 403);
    let db = one(runs());
    let (samples, _) = otlp(&exported(&db, "--to otlp app").0);
    let whose = |whose: &str| {
        let of = samples
            .iter()
            .filter(|(key, _)| key.starts_with(&format!("host.name=node-7{whose} / ")));
        of.filter(|(key, _)| key.ends_with("[app] > parse"))
            .map(|(_, samples)| *samples)
            .collect::<Vec<_>>()
    };
    assert_eq!(whose(""), [50]);
    assert_eq!(whose(" dcpi.label=before"), [300]);
    assert_eq!(whose(" dcpi.unit=docker-0123456789ab process.pid=4711"), [5]);
    // Without samples of all processes there is no resource without a scope.
    let (samples, _) = otlp(&exported(&db, "--to otlp --label before --unit web.service").0);
    assert!(
        samples.keys().all(
            |key| key.starts_with("host.name=node-7 dcpi.label=before dcpi.unit=web.service /")
        )
    );
    assert_eq!(samples.len(), 1, "{samples:?}");
}

#[test]
fn folded_stacks_are_those_of_prof() {
    let db = one(typical());
    let mut folded: BTreeMap<String, u64> = BTreeMap::new();
    for line in text(&db, "--to folded").lines() {
        let (stack, samples) = line.rsplit_once(' ').unwrap();
        folded.insert(stack.replace(';', " "), samples.parse().unwrap());
    }
    let report = json(&db, "prof");
    let mut expected: BTreeMap<String, u64> = BTreeMap::new();
    for row in report["rows"].as_array().unwrap() {
        let (image, procedure) =
            (row["image"].as_str().unwrap(), row["procedure"].as_str().unwrap());
        let reason = procedure.strip_prefix("[unresolved: ").filter(|_| image.is_empty());
        let name = match reason {
            Some(reason) => format!("[unknown code] [{}", reason.replace(' ', "_")),
            None => format!("{image} {procedure}"),
        };
        *expected.entry(name).or_default() += row["counts"]["cpu-clock"].as_u64().unwrap();
    }
    assert_eq!(folded, expected);
}

#[test]
fn idle_is_left_out_unless_asked_for() {
    let db = one(typical());
    assert!(!text(&db, "--to folded").contains("[idle]"));
    assert!(text(&db, "--to folded --idle").contains("[idle];default_idle 200000\n"));
}

#[test]
fn formats_of_one_event_say_what_they_leave_out() {
    let (written, said) = exported(&one(two_events()), "--to folded --event imiss,cycles");
    let written = String::from_utf8(written).unwrap();
    assert!(written.contains("app;parse 403\n") && !written.contains('\x1b'), "{written}");
    assert_eq!(
        said,
        "dcpi: the file has samples of L1-icache-load-misses only; left out: cycles\n"
    );
    let (_, said) = exported(&one(typical()), "--to autofdo");
    let expected = [
        "- has no samples",
        "left out: 37,852 samples of the kernel",
        "left out: 6,600 samples without source line",
        "left out: 333 samples of unknown code",
    ];
    assert!(expected.iter().all(|line| said.contains(&format!("dcpi: {line}\n"))), "{said}");
}

#[test]
fn a_file_is_whole_or_as_it_was() {
    let db = one(typical());
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.folded");
    let words = format!("export --to folded -o {}", path.display());
    assert_eq!(on(&db, &words).status.code(), Some(0));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text(&db, "--to folded"));
    for (target, said) in [
        (directory.path(), "it is a directory; name another file with -o"),
        (Path::new("/dev/full"), "it is no plain file; "),
        (Path::new("/no/such/place"), "No such file or directory"),
    ] {
        let line = refused(&db, &format!("export --to folded -o {}", target.display()));
        assert!(line.contains(said), "{line}");
    }
    let names: Vec<_> = std::fs::read_dir(directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names, ["x.folded"]);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let db = one(typical());
    for (words, said) in [
        ("--to bolt", "this format holds one program: name the program as IMAGE"),
        ("--to bolt kernel", "kernel is no program or library"),
        (
            "--to autofdo-addresses nosuch",
            "no image with samples has the name, path or id \"nosuch\"",
        ),
        ("--to folded --no-symbols", "--no-symbols is for --to pprof, otlp or script only"),
        (
            "--to script --lines",
            "--lines is for --to pprof, otlp, folded, speedscope or firefox only",
        ),
        ("--to svg", "invalid value 'svg' for '--to <FORMAT>'"),
    ] {
        let line = refused(&db, &format!("export -o - {words}"));
        assert!(line.contains(said), "{words}: {line}");
    }
    let empty = one(Epoch::new(crate::database::START, vec![crate::database::clock()]));
    for format in ["pprof", "otlp", "folded", "firefox", "autofdo", "script"] {
        let (_, said) = exported(&empty, &format!("--to {format}"));
        assert!(said.contains("- has no samples"), "{format}: {said}");
    }
    assert!(
        text(
            &one(Epoch::new(crate::database::START, vec![crate::database::clock()]).samples(
                "cpu-clock",
                &kernel(),
                &[(u64::MAX, u64::MAX), (1, u64::MAX)]
            )),
            "--to script"
        )
        .contains("ffffffffffffffff")
    );
}
