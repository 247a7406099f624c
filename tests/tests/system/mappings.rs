//! Attribution of samples of programs that change their mappings faster than the daemon drains.
//! There is one test for each way in which the sampler distinguishes such samples; recordings show
//! how they are resolved (`daemon/dcpid/tests/attribution.rs`).

use std::path::Path;
use std::process::Command;
use tests::daemon::{Place, start_by_time};
use tests::report::prof;
use tests::require_root;
use tests::workload::{Running, Workload};

/// Plugins that are loaded and unloaded at one address many times within each drain: the address
/// says nothing.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn plugins_at_one_address_keep_their_own_time() {
    require_root();
    let place = Place::default();
    let workload = Workload::build_turns(place.path(), 50);
    let daemon = start_by_time(&place);
    let truth = workload.run(6);
    daemon.flush();
    assert!(truth.number("elsewhere") * 20.0 < truth.number("turns"), "they must share an address");
    let prof = prof(&place.db(), &["--confidence", "99.9", "first.so", "second.so"]);
    let samples = ["first.so", "second.so"].map(|name| prof.samples_of_image(name) as f64);
    let truth = ["first", "second"].map(|name| truth.number(name));
    let (share, expected) =
        (samples[0] / (samples[0] + samples[1]), truth[0] / (truth[0] + truth[1]));
    let found = (samples[0] + samples[1]) / 5200.0 / (truth[0] + truth[1]);
    eprintln!(
        "first: {share:.4} of the samples, {expected:.4} by its own clock; {samples:?}; {:?}",
        prof.unresolved
    );
    // 5200/s for 6 s know the share to 0.009 at this confidence.
    assert!(
        (share - expected).abs() < 0.015,
        "first: {share:.4} of the samples, {expected:.4} by its own clock"
    );
    // Samples that come late are missed: the host of a virtual machine may take some.
    assert!(found > 0.9, "{found:.3} of their time is in samples: {:?}", prof.unresolved);
}

/// Other code over a page of a library whose code is counted once for all: of another process, and
/// of nobody's file.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn code_mapped_over_a_library_is_not_the_librarys() {
    require_root();
    let place = Place::default();
    let workload = Workload::build_overlaid(place.path());
    let daemon = start_by_time(&place);
    let truth = workload.run(4);
    daemon.flush();
    let prof = prof(&place.db(), &["-i", "--confidence", "99.9"]);
    let images = [("libc-overlaid.so", "own"), ("first.so", "first"), ("second.so", "second")];
    let seconds: Vec<(f64, f64)> = images
        .iter()
        .map(|(image, name)| (prof.samples_of_image(image) as f64 / 5200.0, truth.number(name)))
        .collect();
    let all: f64 = seconds.iter().map(|(sampled, _)| sampled).sum();
    let expected: f64 = seconds.iter().map(|(_, used)| used).sum();
    eprintln!(
        "{images:?}: {seconds:.3?} s sampled and used; {all:.3} of {expected:.3} s; {:?}",
        prof.unresolved
    );
    for ((image, _), (sampled, used)) in images.iter().zip(&seconds) {
        assert!(
            *sampled < used * 1.04,
            "{image} is given what is not its own: {sampled:.3} s of {used:.3} s"
        );
    }
    assert!(
        all / expected > 0.93,
        "{all:.3} s of {expected:.3} s are known: {:?}",
        prof.unresolved
    );
}

/// Other code over a page of a program whose own text is counted once for all: in each of its
/// processes, soon after they were at work in it.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn code_mapped_over_a_program_is_not_the_programs() {
    require_root();
    let place = Place::default();
    let workload = Workload::build_overlaid_itself(place.path());
    let daemon = start_by_time(&place);
    let truth = Running::start(Command::new(workload.program()).args(["5", "alone"])).wait();
    daemon.flush();
    let prof = prof(&place.db(), &["-i", "--confidence", "99.9"]);
    let [own, first] =
        ["overlaid", "first.so"].map(|image| prof.samples_of_image(image) as f64 / 5200.0);
    let [own_used, first_used] = ["own", "first"].map(|name| truth.number(name));
    eprintln!(
        "{own:.3} of {own_used:.3} s own, {first:.3} of {first_used:.3} s; {:?}",
        prof.unresolved
    );
    // 2.5 s of samples each are known to 3 %, and starting the program is its own, too.
    assert!(
        own < own_used * 1.06,
        "it is given what is not its own: {own:.3} s of {own_used:.3} s"
    );
    assert!(first > first_used * 0.9, "{first:.3} s of {first_used:.3} s: {:?}", prof.unresolved);
}

/// A program, or a library, built again in place and run again, several times within one drain: the
/// second build's samples went to the first, or nowhere. `program` runs what is in `image`, one of
/// the builds.
fn rebuilt_in_place(place: &Place, builds: [&Path; 2], program: &Path, image: &Path) {
    require_root();
    let sizes = builds.map(|build| build.metadata().unwrap().len());
    assert_eq!(sizes[0], sizes[1], "the size must not tell");
    let inode = || std::os::unix::fs::MetadataExt::ino(&image.metadata().unwrap());
    let before = inode();
    let daemon = start_by_time(place);
    let mut work_s = [0.0, 0.0];
    for _ in 0..3 {
        for ((build, seconds), work_s) in builds.iter().zip(["0.6", "1.2"]).zip(&mut work_s) {
            std::fs::copy(build, image).unwrap();
            *work_s += Running::start(Command::new(program).arg(seconds)).wait().number("cpu_s");
        }
    }
    assert_eq!(inode(), before, "in place");
    daemon.flush();
    let report = prof(&place.db(), &["-i", "--idle", "--confidence", "99.9"]);
    let name = image.file_name().unwrap().to_str().unwrap();
    let mut samples: Vec<f64> = report.of_image(name).map(|row| row.samples() as f64).collect();
    samples.sort_by(f64::total_cmp);
    eprintln!("{samples:?} samples, {work_s:?} s; {:?}", report.unresolved);
    assert_eq!(samples.len(), 2, "two images of one name: {report:#?}");
    let (share, expected) =
        (samples[0] / (samples[0] + samples[1]), work_s[0] / (work_s[0] + work_s[1]));
    let found = (samples[0] + samples[1]) / 5200.0 / (work_s[0] + work_s[1]);
    assert!(
        (share - expected).abs() < 0.02,
        "first: {share:.4} of the samples, {expected:.4} by its own clock"
    );
    assert!(found > 0.9, "{found:.3} of their time is in samples: {:?}", report.unresolved);
}

const SEEDS: [&str; 2] = ["-DSEED=1442695040888963407u", "-DSEED=1442695040888963409u"];

/// Linker flag for files without a build id, which the daemon must read before they are replaced.
const NO_ID: &str = "-Wl,--build-id=none";

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_program_without_build_id_built_anew_in_place_is_a_second_image() {
    let place = Place::default();
    let builds = SEEDS.map(|seed| {
        Workload::build(place.path(), "rebuilt", &[seed, NO_ID]).copy(&format!("build{seed}"))
    });
    let program = builds[0].copy("program");
    let builds = builds.each_ref().map(Workload::program);
    rebuilt_in_place(&place, builds, program.program(), program.program());
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_library_without_build_id_built_anew_in_place_is_a_second_image() {
    let place = Place::default();
    let (program, builds) = Workload::build_with_libraries(
        place.path(),
        SEEDS.map(|seed| [seed, NO_ID]).each_ref().map(<[_; 2]>::as_slice),
    );
    let first = place.path().join("first.so");
    std::fs::copy(&builds[0], &first).unwrap();
    rebuilt_in_place(&place, [&first, &builds[1]], program.program(), &builds[0]);
}

/// Two links of one program have one build id (`--build-id=0x...`; patchelf and BOLT leave the
/// id): the samples of one were named by the symbols of the other.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn two_builds_of_one_build_id_have_their_own_procedures() {
    require_root();
    let place = Place::default();
    let build_id = "-Wl,--build-id=0x00112233445566778899aabbccddeeff89abcdef";
    let build = |name: &str, flag: &str| {
        Workload::build(place.path(), "two_functions", &[build_id, flag]).copy(name)
    };
    let workloads = [build("first_build", "-O1"), build("second_build", "-O0")];
    let daemon = start_by_time(&place);
    let truths = workloads.each_ref().map(|workload| workload.run(2));
    daemon.flush();
    let report = prof(&place.db(), &["--idle"]);
    for (workload, truth) in workloads.iter().zip(truths) {
        let name = workload.program().file_name().unwrap().to_str().unwrap();
        let samples = |procedure: &str| {
            let of_image = report.of_image(name);
            let rows = of_image.filter(|row| row.procedure.as_deref() == Some(procedure));
            rows.map(|row| row.samples() as f64).sum::<f64>()
        };
        let (more, less) = (samples("three_quarters"), samples("one_quarter"));
        let seconds = (more + less) / 5200.0;
        let share = more / (more + less);
        let used = truth.number("cpu_s");
        eprintln!("{name}: {seconds:.2} s of {used:.2} s, three quarters are {share:.3}");
        assert!((seconds / used - 1.0).abs() < 0.1, "{report:#?}");
        assert!((share - 0.75).abs() < 0.03);
    }
    assert!(daemon.terminate().success());
}

/// dcpid asked the kernel for build ids in records of mappings, and the kernel then marked perf's
/// records as having them too: perf 6.1 crashed, and named files wrongly.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn perf_beside_the_daemon_reads_its_own_file() {
    require_root();
    let place = Place::default();
    let daemon = start_by_time(&place);
    let data = place.path().join("perf.data");
    let storm = "for i in $(seq 300); do /bin/true; /bin/ls / >/dev/null; done";
    let mut perf = Command::new("perf");
    perf.args(["record", "-q", "-e", "cpu-clock", "-F", "1999", "-o"]).arg(&data);
    let recorded = perf.args(["--", "sh", "-c", storm]).output().unwrap();
    assert!(recorded.status.success(), "{recorded:?}");
    let mut perf = Command::new("perf");
    perf.args(["report", "-q", "--stdio", "-F", "overhead,dso", "-s", "dso", "-i"]).arg(&data);
    let report = perf.output().unwrap();
    assert!(report.status.success(), "{report:?}");
    let text = String::from_utf8_lossy(&report.stdout);
    eprintln!("{text}");
    let share_of = |dso: &str| {
        let mut lines = text.lines().filter(|line| line.trim_end().ends_with(dso));
        lines.next().map_or(0.0, |line| {
            let share = line.split_whitespace().next().unwrap_or_default();
            share.trim_end_matches('%').parse::<f64>().unwrap()
        })
    };
    assert!(share_of("libc.so.6") > 0.0 && share_of("[unknown]") < 1.0, "{text}");
    assert!(daemon.terminate().success());
}
