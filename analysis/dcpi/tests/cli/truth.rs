//! `dcpi truth`, which may be given counts of anything.

use crate::database::Db;
use crate::runs::{dcpi, on, refused, shown};
use crate::why::copies;

/// Executions of the copy loop of [`copies`], each instruction `off` bytes from where it is, as
/// callgrind writes them.
pub fn counts(db: &Db, program: &str, off: u64) -> String {
    let object = db.root().with_file_name("copy");
    let mut text = format!(
        "# callgrind format\ncmd: {program} -x\n\nob=/lib/other.so\nfn=g\n0x10 0 5\n\nob={}\nfn=copy\n",
        object.display()
    );
    for (at, times) in
        [(0, 5), (2, 5), (5, 5), (7, 500), (11, 500), (15, 500), (18, 500), (21, 500), (23, 5)]
    {
        text.push_str(&format!("{:#x} 0 {times}\n", 0x40_1000 + off + at));
    }
    text.push_str(&format!("jcnd=495/500 {:#x} 0\n{:#x} 0\n", 0x40_1007 + off, 0x40_1015 + off));
    let path = db.root().with_file_name("counts");
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn counts_of_the_same_program_are_compared() {
    let db = copies();
    let path = counts(&db, "./copy", 0);
    let told = shown(&db, &format!("truth {path}"));
    assert!(told.contains("1 procedure with 4,935 of 4,935 samples"), "{told}");
}

/// A newcomer gave counts of another program: the C library, which both use, was compared, and the
/// result said nothing.
#[test]
fn counts_of_another_program_are_refused() {
    let db = copies();
    let path = counts(&db, "/lib/other.so", 0);
    let line = refused(&db, &format!("truth {path}"));
    assert!(
        line.contains("counts counts /lib/other.so, which has no samples; record the same program"),
        "{line}"
    );
    // Whoever names an image means it.
    assert!(shown(&db, &format!("truth {path} copy")).contains("1 procedure"));
}

#[test]
fn counts_of_another_build_are_refused() {
    let db = copies();
    let path = counts(&db, "./copy", 1);
    let line = refused(&db, &format!("truth {path}"));
    assert!(
        line.contains("instructions that it counts in copy are none of the build that was sampled"),
        "{line}"
    );
    // The file was another build's when it was counted.
    let program = db.root().with_file_name("copy");
    let built = std::fs::read(&program).unwrap();
    let other: Vec<u8> =
        built.iter().map(|byte| if *byte == 0xc0 { 0xc1 } else { *byte }).collect();
    std::fs::write(&program, &other).unwrap();
    let path = counts(&db, "./copy", 0);
    let line = refused(&db, &format!("truth {path}"));
    assert!(line.contains("counts build c1c1") && line.contains(", but build c0c0"), "{line}");
}

/// Cycles were told of a program on a processor that has other instructions.
#[test]
fn a_processor_with_other_instructions_tells_no_cycles() {
    let db = copies();
    let path = counts(&db, "./copy", 0);
    let told = shown(&db, &format!("truth {path} --runs 3 --machine znver4"));
    assert!(!told.contains("time not explained"), "{told}");
    let output = on(&db, &format!("truth {path} --runs 3 --machine cortex-a53"));
    let [told, errors] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert!(told.contains("\nblocks "), "{told}");
    let why = "copy: time not explained: its instructions are not those of cortex-a53";
    assert!(
        output.status.code() == Some(0) && format!("{told}{errors}").contains(why),
        "{told}{errors}"
    );
    // Nor what they were spent on.
    let told = shown(&db, "whatcg --machine cortex-a53");
    assert!(told.contains(why) && told.contains("100.00    100.00   100.00  not known"), "{told}");
}

/// They were passed over.
#[test]
fn what_chooses_samples_is_refused_where_a_command_makes_them() {
    for option in [
        "--event cycles",
        "--epoch all",
        "--host h",
        "--epoch-label l",
        "--label l",
        "--unit u",
        "--pid 1",
    ] {
        let output =
            dcpi().args(format!("truth {option} -- true").split_whitespace()).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(
            output.status.code() == Some(2) && errors.contains("cannot be used with"),
            "{option}: {errors}"
        );
    }
}
