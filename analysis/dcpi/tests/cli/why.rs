//! `dcpi calc` and its kin, of a copy loop whose file is made here byte by byte.

use image::{ImageId, ImageKind, ImageOffset};
use model::{BranchRounds, EDGES, Edges, FIRST_EDGES, ROUNDS, TAKEN, Values};
use profiledb::EventMeta;
use serde_json::json;

use crate::database::{Db, Epoch, START, clock, cycles, imiss, kernel, named};
use crate::golden::check;
use crate::runs::{on, refused, shown};

/// 8 bytes from %rsi to %rdi, %rdx times: the loop is 0x401007 to 0x401015.
const CODE: [u8; 24] = [
    0x31, 0xc0, // xor %eax,%eax
    0x48, 0x85, 0xd2, // test %rdx,%rdx
    0x74, 0x10, // je 0x401017
    0x48, 0x8b, 0x0c, 0xc6, // mov (%rsi,%rax,8),%rcx
    0x48, 0x89, 0x0c, 0xc7, // mov %rcx,(%rdi,%rax,8)
    0x48, 0xff, 0xc0, // inc %rax
    0x48, 0x39, 0xd0, // cmp %rdx,%rax
    0x75, 0xf0, // jne 0x401007
    0xc3, // ret
];
/// The same for 64-bit Arm, from x1 to x0, x2 times: the loop is 0x401008 to 0x401018.
const ARM: [u32; 8] = [
    0xb400_00e2, // cbz x2, 0x40101c
    0xd280_0003, // mov x3, #0
    0xf863_7824, // ldr x4, [x1, x3, lsl #3]
    0xf823_7804, // str x4, [x0, x3, lsl #3]
    0x9100_0463, // add x3, x3, #1
    0xeb02_007f, // cmp x3, x2
    0x54ff_ff81, // b.ne 0x401008
    0xd65f_03c0, // ret
];
/// `e_machine` of both.
const X86_64: u64 = 62;
const AARCH64: u64 = 183;
const BUILD: [u8; 20] = [0xc0; 20];
/// Where the code is in the file, and the sections' headers.
const AT: usize = 0x1000;
const SECTIONS: usize = 0x1040;
const ADDRESS: u64 = 0x40_1000;

/// Numbers of so many bytes.
fn numbers(parts: &[(u64, usize)]) -> Vec<u8> {
    parts.iter().flat_map(|(value, bytes)| value.to_le_bytes()[..*bytes].to_vec()).collect()
}

/// An ELF file (its specification's chapters 1 and 2) with the code, a symbol for it and a build
/// id.
fn program(machine: u64, text: &[u8]) -> Vec<u8> {
    let (code, names) = (text.len() as u64, b"\0copy\0.text\0.symtab\0.strtab\0");
    let header = [
        (2, 2),
        (machine, 2),
        (1, 4),
        (ADDRESS, 8),
        (64, 8),
        (SECTIONS as u64, 8),
        (0, 4),
        (64, 2),
        (56, 2),
        (2, 2),
    ];
    let loaded = [
        (1, 4),
        (5, 4),
        (AT as u64, 8),
        (ADDRESS, 8),
        (ADDRESS, 8),
        (code, 8),
        (code, 8),
        (4096, 8),
    ];
    let note = [(4, 4), (4, 4), (0xb0, 8), (0, 8), (0, 8), (36, 8), (36, 8), (4, 8)];
    let symbol = [(1, 4), (0x12, 1), (0, 1), (1, 2), (ADDRESS, 8), (code, 8)];
    let section = |name, kind, flags, at, offset, size, link, info, entry| {
        let of = [
            (name, 4),
            (kind, 4),
            (flags, 8),
            (at, 8),
            (offset, 8),
            (size, 8),
            (link, 4),
            (info, 4),
            (1, 8),
            (entry, 8),
        ];
        numbers(&of)
    };
    let sections = [
        section(0, 0, 0, 0, 0, 0, 0, 0, 0),
        section(6, 1, 6, ADDRESS, AT as u64, code, 0, 0, 0),
        section(12, 2, 0, 0, 0x100, 48, 3, 1, 24),
        section(20, 3, 0, 0, 0x140, names.len() as u64, 0, 0, 0),
    ];
    let mut file = vec![0; SECTIONS];
    let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"\x7fELF\x02\x01\x01");
    put(16, &[numbers(&header), numbers(&[(64, 2), (4, 2), (3, 2)])].concat());
    put(64, &[numbers(&loaded), numbers(&note)].concat());
    put(0xb0, &[numbers(&[(4, 4), (20, 4), (3, 4)]), b"GNU\0".to_vec(), BUILD.to_vec()].concat());
    put(0x118, &numbers(&symbol));
    put(0x140, names);
    put(AT, text);
    file.extend(sections.concat());
    file
}

/// The load waits, so samples land on the store after it; 100 rounds of the loop for each entry
/// were seen.
pub fn copies() -> Db {
    copies_of(9900, 100)
}

/// The same, where the loop was seen to go on and to end so often.
fn copies_of(goes_on: u64, ends: u64) -> Db {
    let db = Db::new();
    let path = db.root().with_file_name("copy");
    std::fs::write(&path, program(X86_64, &CODE)).unwrap();
    let id = ImageId::from_build_id(&BUILD).unwrap();
    let record = named(id, ImageKind::File, "copy", path.to_str().unwrap());
    let counts = [
        (0x1000, 2),
        (0x1002, 3),
        (0x1007, 240),
        (0x100b, 4000),
        (0x100f, 250),
        (0x1012, 230),
        (0x1015, 210),
    ];
    let mut epoch = Epoch::new(START, vec![cycles(), imiss()])
        .samples("cycles", &record, &counts)
        .samples("L1-icache-load-misses", &record, &[(0x1007, 3)]);
    let edge = |from, to, times| ((ImageOffset(from), ImageOffset(to)), times);
    let edges = Edges::from_counts([
        edge(0x1015, 0x1007, goes_on),
        edge(0x1015, 0x1017, ends),
        edge(0x1005, 0x1007, 100),
    ]);
    epoch.observe(&FIRST_EDGES, id, edges.clone());
    epoch.observe(&EDGES, id, edges);
    // A sample is in any of the rounds alike.
    let turns = |rounds| {
        (BranchRounds { branch: ImageOffset(0x1015), jumps: true, rounds }.value().unwrap(), 100)
    };
    if ends == 100 {
        epoch.observe(&ROUNDS, id, Values::from_counts((1..100).map(turns)));
    }
    epoch.delta.facts.state_value("skid", json!({"event": "cycles", "instructions": 1}));
    epoch
        .delta
        .facts
        .state_value("cpuid", json!({"vendor": "GenuineIntel", "family": 6, "model": 85}));
    db.epoch("node-7", epoch);
    db
}

/// The same program as `dcpi ideal --sampled` writes it: samples of two runs, and the executions of
/// one, in which the loop has a million rounds. Other programs were sampled meanwhile.
pub fn copies_counted() -> Db {
    let db = Db::new();
    let path = db.root().with_file_name("copy");
    std::fs::write(&path, program(X86_64, &CODE)).unwrap();
    let id = ImageId::from_build_id(&BUILD).unwrap();
    let record = named(id, ImageKind::File, "copy", path.to_str().unwrap());
    let exact = |name: &str, unit: &str| EventMeta {
        name: name.to_owned(),
        unit: unit.to_owned(),
        period: 1,
        rate_per_s: None,
        note: None,
    };
    let events = vec![clock(), exact("ideal", "cycles"), exact("executed", "count")];
    let of = (Some("copy"), None, None);
    let landed = [(0x1007, 12), (0x100b, 30), (0x100f, 400), (0x1012, 10), (0x1015, 9)];
    let rounds = [0x1007, 0x100b, 0x100f, 0x1012, 0x1015].map(|at| (at, 1_000_000));
    let once = [0x1000, 0x1002, 0x1005, 0x1017].map(|at| (at, 1));
    let mut epoch = Epoch::new(START, events)
        .scoped(of, "cpu-clock", &record, &landed)
        .scoped(of, "cpu-clock", &kernel(), &[(0x1000, 23)])
        .scoped(of, "executed", &record, &[&once[..], &rounds].concat())
        .scoped(of, "ideal", &record, &rounds.map(|(at, times)| (at, times / 2)))
        .samples("cpu-clock", &record, &[(0x1007, 5000)])
        .symbols(&kernel(), &[(0x1000, 0x1100, "clear_page_erms")]);
    let again = ((ImageOffset(0x1015), ImageOffset(0x1007)), 999_999);
    epoch.observe(&TAKEN, id, Edges::from_counts([again]));
    let facts = &mut epoch.delta.facts;
    facts.state_value("skid", json!({"event": "cpu-clock", "instructions": 1}));
    facts.state_value("cpuid", json!({"vendor": "GenuineIntel", "family": 6, "model": 85}));
    facts.state_value("opens_on", json!("copy"));
    facts.state_value("ideal_machine", json!("skylake-avx512"));
    facts.state_value("sampled_runs", json!({"runs": 2, "hertz": 3e9}));
    db.epoch("node-7", epoch);
    db
}

/// 484 samples of 192,308 ns in two runs, at 3 GHz: 140 million cycles a run beside 2.5 million.
#[test]
fn time_beside_exact_counts_is_cycles_of_an_execution() {
    let db = copies_counted();
    for format in ["txt", "json", "csv"] {
        let words = if format == "txt" { String::new() } else { format!(" --format {format}") };
        check(&format!("lost.{format}"), &db, &format!("lost{words}"));
        check(&format!("lost-blocks.{format}"), &db, &format!("lost --by block{words}"));
    }
    check("calc-counted.txt", &db, "calc copy copy");
    let refused = on(&db, "lost -a");
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
}

#[test]
fn why_a_copy_loop_takes_its_time() {
    let db = copies();
    for format in ["txt", "json", "csv"] {
        let words = if format == "txt" { String::new() } else { format!(" --format {format}") };
        check(&format!("calc.{format}"), &db, &format!("calc copy copy{words}"));
        check(&format!("whatcg.{format}"), &db, &format!("whatcg{words}"));
        check(&format!("topstalls.{format}"), &db, &format!("topstalls{words}"));
        check(&format!("list-why.{format}"), &db, &format!("list copy copy --why{words}"));
    }
    for form in ["svg", "dot"] {
        check(&format!("flow.{form}"), &db, &format!("flow copy copy -o - --form {form}"));
    }
}

#[test]
fn drawings_of_what_hardly_happens_are_well_formed() {
    let drawn = shown(&copies_of(10_000_000, 1), "flow copy copy -o - --form svg");
    assert!(drawn.contains("<title>&lt;0.01 % falls through"), "{drawn}");
    assert!(!drawn.contains("<0"), "{drawn}");
}

/// Of a procedure that is longer than a screen the hottest blocks come first.
#[test]
fn what_is_long_begins_with_its_hottest_blocks() {
    // 60 times `push %rax` and `pop %rax`; `1: dec %ecx; jne 1b`; `ret`.
    let code: Vec<u8> = [[0x50; 28], [0x58; 28]]
        .concat()
        .into_iter()
        .chain([0xff, 0xc9, 0x75, 0xfc, 0xc3])
        .collect();
    let db = Db::new();
    let path = db.root().with_file_name("long");
    std::fs::write(&path, program(X86_64, &code)).unwrap();
    let record = named(
        ImageId::from_build_id(&BUILD).unwrap(),
        ImageKind::File,
        "long",
        path.to_str().unwrap(),
    );
    let counts = [(0x1000, 20), (0x1038, 9000), (0x103a, 900)];
    db.epoch("node-7", Epoch::new(START, vec![cycles()]).samples("cycles", &record, &counts));
    let told = shown(&db, "calc long copy --machine znver3");
    let (_, told) = told.split_once("hottest blocks").unwrap();
    assert!(told.lines().nth(1).unwrap().starts_with("0x401038..0x40103c"), "{told}");
    assert!(
        told.contains("\nand 2 more blocks; all blocks") && told.contains(", 1.000 times per call"),
        "{told}"
    );
    assert!(!shown(&copies(), "calc copy copy").contains("hottest"));
}

/// A copy loop of 2^20 rounds for each entry, of which no sample is outside the loop.
fn copies_of_a_million() -> Db {
    copies_in_its_loop(&[
        (0x1007, 1000),
        (0x100b, 1100),
        (0x100f, 900),
        (0x1012, 950),
        (0x1015, 1050),
    ])
}

fn copies_in_its_loop(counts: &[(u64, u64)]) -> Db {
    let db = Db::new();
    let path = db.root().with_file_name("copy");
    std::fs::write(&path, program(X86_64, &CODE)).unwrap();
    let id = ImageId::from_build_id(&BUILD).unwrap();
    let record = named(id, ImageKind::File, "copy", path.to_str().unwrap());
    let mut epoch = Epoch::new(START, vec![cycles()]).samples("cycles", &record, counts);
    let edges = Edges::from_counts([((ImageOffset(0x1015), ImageOffset(0x1007)), 5000)]);
    epoch.observe(&FIRST_EDGES, id, edges.clone());
    epoch.observe(&EDGES, id, edges);
    let turns = |part: u64| {
        (
            BranchRounds { branch: ImageOffset(0x1015), jumps: true, rounds: (part << 20) / 5001 }
                .value()
                .unwrap(),
            1,
        )
    };
    epoch.observe(&ROUNDS, id, Values::from_counts((1..=5000).map(turns)));
    epoch.delta.facts.state_value("skid", json!({"event": "cycles", "instructions": 1}));
    epoch
        .delta
        .facts
        .state_value("cpuid", json!({"vendor": "GenuineIntel", "family": 6, "model": 85}));
    db.epoch("node-7", epoch);
    db
}

/// The same, where nearly all samples are of the load.
fn copies_where_the_load_waits() -> Db {
    copies_in_its_loop(&[(0x100b, 48_000), (0x100f, 10), (0x1012, 9), (0x1015, 8)])
}

/// `calc` said 194,706 runs of such a loop, "high", beside a test that said 1,100,000; `flow` drew
/// the guess of a guard like what was seen. All views say that it is not known how often the
/// procedure was entered.
#[test]
fn every_view_says_how_sure_the_runs_of_a_guarded_loop_are() {
    let db = copies_of_a_million();
    let calc = shown(&db, "calc copy copy");
    let line = calc.lines().find(|line| line.starts_with("0x401007..")).unwrap();
    let times = line.split_whitespace().nth(5).unwrap();
    assert!(["1,040,000", "1,050,000"].contains(&times), "{line}");
    assert!(line.contains(" 100.00 % of samples") && line.ends_with("(low confidence)"), "{line}");
    let tests = calc.lines().find(|line| line.contains("its test at 0x401015")).unwrap();
    assert!(
        tests.ends_with("says 825,000–1,100,000 rounds for all entries, by 5,000 samples"),
        "{tests}"
    );
    assert!(calc.contains("about 1,000,000 rounds for one entry (medium)"), "{calc}");
    assert!(calc.contains("taken, estimated (low): none observed"), "{calc}");
    let list = shown(&db, "list copy copy --why");
    let row = list.lines().find(|line| line.contains("> 401007")).unwrap();
    assert!(row.contains(" low "), "{row}");
    let svg = shown(&db, "flow copy copy -o - --form svg");
    assert!(svg.contains("times (low)") && svg.contains("stroke-dasharray"), "{svg}");
    let dot = shown(&db, "flow copy copy -o - --form dot");
    assert!(dot.contains("times (low)") && dot.contains("style=dashed"), "{dot}");
}

/// A loop whose load takes all the time was told "15.0 cycles, at most 60" where 570 were true, and
/// 29 % of it "static". Nothing of that is known without executions: reports say so, and how many
/// cycles there are at least and at most.
#[test]
fn cycles_are_not_known_where_memory_may_have_taken_them_all() {
    let db = copies_where_the_load_waits();
    let calc = shown(&db, "calc copy copy");
    assert!(
        calc.contains(
            "cycles      not known: samples of time alone do not tell how often this ran here"
        ),
        "{calc}"
    );
    let took =
        calc.lines().find_map(|line| line.trim().split_once("typical not known, worst ")).unwrap();
    let [best, most] = [took.0.split(' ').nth(2).unwrap(), took.1]
        .map(|cycles| cycles.replace(',', "").parse::<f64>().unwrap());
    assert!(best < 2.0 && most > 1000.0, "{calc}");
    assert!(
        calc.contains("100.00     100.00  not known: nothing tells how often it ran"),
        "{calc}"
    );
    assert!(!calc.contains("= limits of the pipeline") && !calc.contains("= waits"), "{calc}");
    assert!(calc.contains(" stalled: cache or TLB miss, or "), "{calc}");
    let json = |words: &str| -> serde_json::Value {
        serde_json::from_str(&shown(&db, &format!("{words} --format json"))).unwrap()
    };
    let calc = json("calc copy copy");
    let block = &calc["blocks"][1];
    let load = &block["instructions"][0];
    assert!(
        calc["cycles_known"] == false
            && calc["cycles_factor"].is_null()
            && calc["not_known"] == 1.0,
        "{calc:#}"
    );
    assert!(block["cpi"].is_null() && block["best_cpi"].is_f64(), "{block:#}");
    assert!(load["cpi"].is_null() && load["cpi_most"].as_f64().unwrap() > 1000.0, "{load:#}");
    assert!(load["culprits"][0]["high"].is_null(), "{load:#}");
    // What cannot be known is no finding, nor a cause that surely took the time.
    let whatcg = json("whatcg");
    let causes = whatcg["causes"].as_array().unwrap();
    assert!(causes.iter().all(|cause| cause["low"] == 0.0), "{whatcg:#}");
    let row = &json("topstalls")["rows"][0];
    assert!(row["certainty"] != "certain" && row["procedure"] == "copy", "{row:#}");
    let list = shown(&db, "list copy copy --why");
    let causes = list.lines().skip_while(|line| !line.contains("401005")).nth(1).unwrap();
    assert!(causes.trim().starts_with("stalled: cache or TLB miss"), "{list}");
}

/// Reports said of all samples that they were given to what took the time, where some stay where
/// they landed.
#[test]
fn samples_that_stay_where_they_landed_are_counted() {
    let db = copies_of_a_million();
    // Those on the first instruction of the loop.
    let said = "of cycles were reported 1 instruction after the one that took the time (skid) and are moved back, except 1,000 after a jump, call or no-op or at the begin of a loop or procedure";
    for words in ["calc copy copy", "list copy copy"] {
        let text = shown(&db, words);
        assert!(text.contains(said), "{text}");
    }
    for (words, at) in
        [("calc copy copy", "/samples_kept"), ("list copy copy", "/skid/samples_kept")]
    {
        let json: serde_json::Value =
            serde_json::from_str(&shown(&db, &format!("{words} --format json"))).unwrap();
        assert_eq!(json.pointer(at).unwrap(), 1000, "{words}");
    }
}

#[test]
fn a_procedure_is_chosen_by_an_address_in_it() {
    let db = copies();
    let all = shown(&db, "whatcg copy copy");
    assert!(all.contains("1 procedure with 4,935 of 4,935 samples"), "{all}");
    assert_eq!(shown(&db, "whatcg copy 0x401007"), all);
    let none = refused(&db, "whatcg copy 0x402000");
    assert!(none.starts_with("no procedure at 0x402000 with at least "), "{none}");
}

#[test]
fn commands_that_are_suggested_read_the_same_database() {
    let db = copies();
    let root = db.root_text();
    for (words, next) in [
        ("calc copy nothing", format!("dcpi prof --db {root} copy -n 0 --full-names")),
        ("list nothing copy", format!("dcpi prof --db {root} -i")),
        ("prof --epoch -9", format!("dcpi epochs --db {root}")),
    ] {
        let line = refused(&db, words);
        assert!(line.contains(&next) && line.matches("--db").count() == 1, "{line}");
    }
    let line = refused(&db, "flow copy copy -o x.png");
    assert_eq!(
        line,
        "cannot draw a .png; name a file that ends in .svg, .html or .dot, or say --form"
    );
}

/// Without branches seen: nobody interprets Arm's registers. With `instructions`, samples of those
/// as well.
pub fn copies_on_arm(instructions: bool) -> Db {
    let db = Db::new();
    let path = db.root().with_file_name("copy");
    let code: Vec<u8> = ARM.iter().flat_map(|word| word.to_le_bytes()).collect();
    std::fs::write(&path, program(AARCH64, &code)).unwrap();
    let id = ImageId::from_build_id(&BUILD).unwrap();
    let record = named(id, ImageKind::File, "copy", path.to_str().unwrap());
    let counts = [
        (0x1000, 2),
        (0x1004, 3),
        (0x1008, 240),
        (0x100c, 4000),
        (0x1010, 250),
        (0x1014, 230),
        (0x1018, 210),
    ];
    let retired = EventMeta { name: "instructions".into(), ..imiss() };
    let events = if instructions { vec![cycles(), retired] } else { vec![cycles()] };
    let mut epoch = Epoch::new(START, events).samples("cycles", &record, &counts);
    if instructions {
        epoch = epoch.samples("instructions", &record, &[(0x1008, 9000), (0x1018, 6000)]);
    }
    epoch.arch = "aarch64";
    epoch.delta.facts.state_value("skid", json!({"event": "cycles", "instructions": 1}));
    db.epoch("node-9", epoch);
    db
}

/// A processor of Arm's is taken, which the database need not know; none of another instruction
/// set.
#[test]
fn what_is_known_of_a_copy_loop_on_arm() {
    let db = copies_on_arm(false);
    check("calc-arm.txt", &db, "calc copy copy");
    check("calc-arm.json", &db, "calc copy copy --format json --machine cortex-a53");
    check("list-arm.txt", &db, "list copy copy");
    check("topstalls-arm.txt", &db, "topstalls");
    check("flow-arm.dot", &db, "flow copy copy -o - --form dot");
    check("calc-arm-in-order.txt", &db, "calc copy copy --machine cortex-a53");
    check("calc-arm-measured.txt", &copies_on_arm(true), "calc copy copy");
    let why = shown(&db, "list copy copy --why --machine znver3");
    assert!(why.contains("its instructions are not those of znver3"), "{why}");
    let refused = refused(&db, "calc copy copy --machine znver3");
    assert!(
        refused.contains(
            "znver3 executes x86-64, the code is AArch64; --machine with one of cortex-a53,"
        ),
        "{refused}"
    );
}

#[test]
fn exports_say_on_which_instruction_samples_are() {
    let said = "samples of cycles are where the processor reported them, 1 instruction after the one that took the time";
    for format in ["script", "firefox", "otlp"] {
        let written = on(&copies(), &format!("export --to {format} -o -")).stdout;
        assert!(String::from_utf8_lossy(&written).contains(said), "{format}");
    }
}
