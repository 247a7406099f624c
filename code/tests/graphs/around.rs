//! A procedure is surveyed as it is among all procedures of its file.

use std::path::Path;
use std::time::{Duration, Instant};

use code::cfg::Survey;

use super::program::Program;

/// Surveys some procedures of a file alone, each as often as `every` says. Returns how many, how many of them have parts, and how long each took.
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
                assert_eq!(alone.no_return().contains(&target), expected, "{}: {target:x?}", name());
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

#[test]
#[ignore = "takes minutes: SURVEY_OF has the files, SURVEY_EVERY which procedures"]
fn every_procedure_is_surveyed_as_among_all() {
    let every = std::env::var("SURVEY_EVERY").map_or(1, |every| every.parse().unwrap());
    for path in std::env::var("SURVEY_OF").unwrap_or_else(|_| "/usr/bin/python3".to_owned()).split(':') {
        let (procedures, parts, mut took) = look(&std::fs::canonicalize(path).unwrap(), every);
        took.sort();
        let (middle, most) = (took[took.len() / 2], took[took.len() - 1]);
        println!("{path}: {procedures} procedures, {parts} with parts; median {middle:.1?}, longest {most:.1?}");
    }
}
