//! The Python package on this program: its own tests, with the standard library alone.

use std::process::Command;

#[test]
fn the_python_package_reads_this_programs_reports() {
    let package = concat!(env!("CARGO_MANIFEST_DIR"), "/../../python");
    let run = Command::new("python3")
        .args(["-m", "unittest", "discover", "-s", "tests", "-t", "."])
        .current_dir(package)
        .env("DCPI", env!("CARGO_BIN_EXE_dcpi"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success() && said.contains("Ran 2"), "{said}");
}
