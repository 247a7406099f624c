//! A procedure is surveyed as it is among all procedures of its file.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use code::cfg::{Part, Survey};
use image::Vaddr;

use super::program::Program;

/// Surveys some procedures of a file alone, each as often as `every` says. Returns how many, how
/// many of them have parts, and how long each took.
fn look(path: &Path, every: usize) -> (usize, usize, Vec<Duration>) {
    let program = Program::open(path).unwrap();
    let (text, ranges, known) = (program.text(), program.ranges(), program.known());
    let (mut parts, mut never, mut took) = (0, 0, Vec::new());
    for number in (0..ranges.len()).step_by(every) {
        let begun = Instant::now();
        let alone = Survey::around(program.isa, &text, &ranges, known.iter().copied(), number);
        took.push(begun.elapsed());
        let name = || format!("{:x?} of {}", ranges[number], path.display());
        let whole = program.survey.whole(number);
        assert_eq!(alone.whole(number), whole, "{}", name());
        assert_eq!(alone.parts(whole), program.survey.parts(whole), "{}", name());
        parts += usize::from(!program.survey.parts(whole).is_empty());
        for call in program.graph(&program.parts(whole), &[]).calls() {
            let told = [call.target, call.through].into_iter().flatten();
            for target in told {
                let expected = program.survey.no_return().contains(&target);
                never += usize::from(expected);
                assert_eq!(
                    alone.no_return().contains(&target),
                    expected,
                    "{}: {target:x?}",
                    name()
                );
            }
        }
    }
    assert!(never > 0, "no procedure calls what does not return");
    (took.len(), parts, took)
}

#[test]
fn a_procedure_is_surveyed_as_among_all() {
    let (procedures, ..) = look(&std::env::current_exe().unwrap(), 11);
    assert!(procedures > 50, "{procedures}");
}

/// A short recording keeps the code of procedures with samples only. With all other code zero they
/// must be understood as before.
#[test]
fn what_is_needed_is_enough() {
    let program = Program::open(&std::env::current_exe().unwrap()).unwrap();
    let (text, ranges, known) = (program.text(), program.ranges(), program.known());
    let of: BTreeSet<usize> = (0..ranges.len()).step_by(397).collect();
    let needed = code::cfg::needed(program.isa, &text, &ranges, known.iter().copied(), &of);
    assert!(
        of.is_subset(&needed) && needed.len() < ranges.len() / 3,
        "{} of {}",
        needed.len(),
        ranges.len()
    );
    let mut kept: Vec<(Vaddr, Vec<u8>)> =
        text.iter().map(|part| (part.begin, vec![0; part.bytes.len()])).collect();
    for range in needed.iter().map(|number| &ranges[*number]) {
        for (part, (begin, kept)) in text.iter().zip(&mut kept) {
            let at = |address: u64| {
                address.saturating_sub(begin.0).min(part.bytes.len() as u64) as usize
            };
            let place = at(range.start)..at(range.end);
            kept[place.clone()].copy_from_slice(&part.bytes[place]);
        }
    }
    let kept: Vec<Part<'_>> =
        kept.iter().map(|(begin, bytes)| Part { begin: *begin, bytes }).collect();
    let all = Survey::of(program.isa, &kept, &ranges, known.iter().copied());
    for &number in &of {
        let alone = Survey::around(program.isa, &kept, &ranges, known.iter().copied(), number);
        let whole = program.survey.whole(number);
        let name = format!("{:x?}", ranges[number]);
        for survey in [&alone, &all] {
            assert_eq!(survey.whole(number), whole, "{name}");
            assert_eq!(survey.parts(whole), program.survey.parts(whole), "{name}");
            for call in program.graph(&program.parts(whole), &[]).calls() {
                for target in [call.target, call.through].into_iter().flatten() {
                    let (told, expected) = (survey.no_return(), program.survey.no_return());
                    assert_eq!(
                        told.contains(&target),
                        expected.contains(&target),
                        "{name}: {target:x?}"
                    );
                }
            }
        }
        let mut parts = std::iter::once(&whole).chain(program.survey.parts(whole));
        assert!(parts.all(|part| needed.contains(part)), "{name}");
    }
}

#[test]
#[ignore = "takes minutes: SURVEY_OF has the files, SURVEY_EVERY which procedures"]
fn every_procedure_is_surveyed_as_among_all() {
    let every = std::env::var("SURVEY_EVERY").map_or(1, |every| every.parse().unwrap());
    for path in
        std::env::var("SURVEY_OF").unwrap_or_else(|_| "/usr/bin/python3".to_owned()).split(':')
    {
        let (procedures, parts, mut took) = look(&std::fs::canonicalize(path).unwrap(), every);
        took.sort();
        let (middle, most) = (took[took.len() / 2], took[took.len() - 1]);
        println!(
            "{path}: {procedures} procedures, {parts} with parts; median {middle:.1?}, longest {most:.1?}"
        );
    }
}
