//! `dcpi ideal` and `--experiment fpe` of files that are replaced, renamed or deleted during the
//! run. Files were named after the run, by path: their executions vanished without a word, or went
//! to a function of another file that had never run, "counted exactly".

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::runs::dcpi;

/// Rounds of the loop in `work`.
const ROUNDS: u64 = 100_000;

struct Case {
    folder: TempDir,
}

impl Case {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Compiles a program (or a library) of a source.
    fn compile(&self, name: &str, code: &str, options: &[&str]) -> PathBuf {
        let source = self.at("source.c");
        fs::write(&source, code).unwrap();
        let mut compiler = Command::new("cc");
        compiler.args(["-O1", "-o"]).arg(self.at(name)).arg(&source).args(options);
        assert!(compiler.status().unwrap().success());
        self.at(name)
    }

    /// Counts a command, in the folder. Returns what was said.
    fn ideal(&self, options: &[&str], command: &[&str]) -> String {
        let mut ideal = dcpi();
        ideal.current_dir(self.folder.path()).args(["ideal", "-o", "db"]).args(options).arg("--");
        let output = ideal.args(command).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        assert!(!said.contains("an error of dcpi ideal"), "{said}");
        said
    }

    /// Executions of the instructions in the procedures of a name, in all images.
    fn executed(&self, name: &str) -> u64 {
        let words = ["prof", "--db", "db", "--event", "executed", "-n", "0", "--format", "json"];
        let output = dcpi().current_dir(self.folder.path()).args(words).output().unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let rows = report["rows"].as_array().unwrap().iter();
        let of_name = rows.filter(|row| row["procedure"] == name);
        of_name.map(|row| row["counts"]["executed"].as_u64().unwrap()).sum()
    }

    /// Whether the database has the code of a procedure.
    fn is_listed(&self, image: &str, procedure: &str) -> bool {
        let words = ["list", "--db", "db", "--asm", image, procedure];
        let output = dcpi().current_dir(self.folder.path()).args(words).output().unwrap();
        output.status.success() && String::from_utf8_lossy(&output.stdout).contains("ret")
    }
}

/// A program with `work`, whose loop has five instructions, and with another end of `main`.
fn program(end: &str) -> String {
    format!(
        "#include <unistd.h>\n#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n\
         __attribute__((noinline)) void work(void) {{\n\
         __asm__ volatile(\"mov ${ROUNDS}, %%rcx\\n1: nop\\n nop\\n nop\\n dec %%rcx\\n jnz 1b\" \
         ::: \"rcx\"); }}\n\
         int main(int count, char **words) {{ (void)count; work(); {end}; return 0; }}\n"
    )
}

/// The instructions of `work`: two more than its loop.
const WORK: u64 = 5 * ROUNDS + 2;

/// The file that takes the place of the program: it is never executed.
fn other(case: &Case) {
    let pad =
        "__attribute__((noinline)) void never(void) { __asm__(\".rept 4000\\nnop\\n.endr\"); }";
    case.compile("other", &format!("{pad}\nint main(void) {{ never(); return 0; }}\n"), &[]);
}

#[test]
fn a_program_that_is_replaced_while_it_runs_keeps_its_counts() {
    let case = Case::new();
    other(&case);
    case.compile("own", &program("unlink(words[0]); rename(\"./other\", words[0])"), &[]);
    let said = case.ideal(&[], &["./own"]);
    assert_eq!((case.executed("work"), case.executed("never")), (WORK, 0), "{said}");
    assert!(said.contains("own is kept in the database: no path leads to it any more"), "{said}");
    assert!(case.is_listed("own", "work"));
}

#[test]
fn programs_that_are_deleted_or_renamed_keep_their_counts() {
    for end in ["unlink(words[0])", "rename(words[0], \"./elsewhere\")"] {
        let case = Case::new();
        case.compile("own", &program(end), &[]);
        let said = case.ideal(&[], &["./own"]);
        assert_eq!(case.executed("work"), WORK, "{said}");
        assert!(case.is_listed(if end.contains("unlink") { "own" } else { "elsewhere" }, "work"));
    }
}

#[test]
fn a_newline_in_a_path_loses_no_counts() {
    let case = Case::new();
    for end in ["0", "unlink(words[0])"] {
        case.compile("a\nb", &program(end), &[]);
        let said = case.ideal(&[], &["./a\nb"]);
        assert_eq!(case.executed("work"), WORK, "{said}");
        fs::remove_dir_all(case.at("db")).unwrap();
    }
}

#[test]
fn a_library_that_is_replaced_between_two_loads_is_two_files() {
    let case = Case::new();
    let library = |name: &str, procedure: &str, rounds: u64| {
        let code = format!(
            "int {procedure}(void) {{ __asm__ volatile(\"mov ${rounds}, %%rcx\\n1: dec %%rcx\\n \
             jnz 1b\" ::: \"rcx\"); return 0; }}\nint enter(void) {{ return {procedure}(); }}\n"
        );
        case.compile(name, &code, &["-shared", "-fPIC"]);
    };
    library("l.so", "first", 1000);
    library("new.so", "second", 3000);
    let code = "#include <dlfcn.h>\n#include <stdio.h>\n\
        int main(void) { for (int n = 0; n < 2; n++) {\n\
        void *l = dlopen(\"./l.so\", RTLD_NOW); int (*e)(void) = dlsym(l, \"enter\"); e();\n\
        dlclose(l); if (!n) rename(\"./new.so\", \"./l.so\"); } return 0; }\n";
    case.compile("own", code, &["-ldl"]);
    let said = case.ideal(&[], &["./own"]);
    let both = (case.executed("first"), case.executed("second"));
    assert_eq!(both, (2 * 1000 + 3, 2 * 3000 + 3), "{said}");
    assert!(case.is_listed("l.so", "first") && case.is_listed("l.so", "second"));
}

/// As `./configure` does: each program has the name of the one before, and often its inode.
#[test]
fn short_lived_programs_of_one_name_keep_their_counts() {
    let case = Case::new();
    case.compile("one", &program("0"), &[]);
    case.compile("two", &program("work()"), &[]);
    let script = "for n in 1 2 3 4 5 6 7 8 9 10; do for p in one two; do cp $p conftest; \
                  ./conftest || exit 1; rm conftest; done; done";
    let said = case.ideal(&[], &["sh", "-c", script]);
    assert_eq!(case.executed("work"), 30 * WORK, "{said}");
    assert!(said.contains("conftest and of 1 other file is kept"), "{said}");
}

#[test]
fn a_program_in_memory_keeps_its_counts() {
    let case = Case::new();
    case.compile("own", &program("0"), &[]);
    let code = "#define _GNU_SOURCE\n#include <sys/mman.h>\n#include <sys/sendfile.h>\n\
        #include <unistd.h>\n#include <fcntl.h>\n\
        int main(int c, char **w, char **e) { int f = open(\"own\", 0);\n\
        int m = memfd_create(\"m\", 1);(void)c;\n\
        while (sendfile(m, f, 0, 1 << 20) > 0) {} fexecve(m, w, e); return 1; }\n";
    case.compile("load", code, &[]);
    let said = case.ideal(&[], &["./load"]);
    assert_eq!(case.executed("work"), WORK, "{said}");
}

/// A file that is written in place has the same inode, and maybe other code.
#[test]
fn a_file_that_is_changed_in_place_is_named() {
    let case = Case::new();
    case.compile("l.so", "int enter(void) { return 0; }\n", &["-shared", "-fPIC"]);
    let code = "#include <dlfcn.h>\n#include <stdlib.h>\n\
        int main(void) { int (*e)(void) = dlsym(dlopen(\"./l.so\", RTLD_NOW), \"enter\");\n\
        return e() || system(\"sleep 0.1; printf x >> l.so\"); }\n";
    case.compile("own", code, &["-ldl"]);
    let said = case.ideal(&[], &["./own"]);
    let line = said.lines().find(|line| line.contains("was changed after it was mapped: "));
    assert!(line.is_some_and(|line| line.ends_with("/l.so")), "{said}");
    assert_eq!(case.executed("enter"), 0, "{said}");
}

/// Callgrind tells paths only, and only at the end.
#[test]
fn callgrind_names_what_it_cannot_be_sure_of() {
    let case = Case::new();
    case.compile("own", &program("unlink(words[0])"), &[]);
    let said = case.ideal(&["--engine", "valgrind"], &["./own"]);
    assert!(said.contains(" executions of a file that was gone when the run ended: "), "{said}");
    other(&case);
    case.compile("own", &program("unlink(words[0]); rename(\"./other\", words[0])"), &[]);
    let said = case.ideal(&["--engine", "valgrind"], &["./own"]);
    assert!(said.contains("callgrind names files after the run: ") && said.contains("own was"));
}

/// The exceptions of a library that is replaced, and of a program that is deleted.
#[test]
fn floating_point_exceptions_keep_their_files() {
    let case = Case::new();
    let library = |name: &str, procedure: &str, times: u32| {
        let code = format!(
            "double {procedure}(double a) {{ volatile double z = 0, s = 0; \
             for (int n = 0; n < {times}; n++) s = a / z; return s; }}\n\
             double enter(double a) {{ return {procedure}(a) + 1; }}\n"
        );
        case.compile(name, &code, &["-shared", "-fPIC"]);
    };
    library("l.so", "first", 3);
    library("new.so", "second", 5);
    let code = "#include <dlfcn.h>\n#include <stdio.h>\n#include <unistd.h>\n\
        __attribute__((noinline)) double own(double a) { volatile double z = 0; return a / z; }\n\
        int main(int c, char **w) { (void)c; unlink(w[0]); own(c); for (int n = 0; n < 2; n++) {\n\
        void *l = dlopen(\"./l.so\", RTLD_NOW);\n\
        double (*e)(double) = (double (*)(double))dlsym(l, \"enter\"); e(n + 1);\n\
        dlclose(l); if (!n) rename(\"./new.so\", \"./l.so\"); } return 0; }\n";
    case.compile("own", code, &["-ldl"]);
    let mut record = dcpi();
    record.current_dir(case.folder.path()).args(["record", "--experiment", "fpe", "-o", "db"]);
    let output = record.args(["--", "./own"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let words = ["prof", "--db", "db", "--event", "fpe-divide", "--format", "json"];
    let report = dcpi().current_dir(case.folder.path()).args(words).output().unwrap();
    let report: Value = serde_json::from_slice(&report.stdout).unwrap();
    for (procedure, times) in [("own", 1), ("first", 3), ("second", 5)] {
        let mut rows = report["rows"].as_array().unwrap().iter();
        let row = rows.find(|row| row["procedure"] == procedure);
        assert!(row.is_some_and(|row| row["counts"]["fpe-divide"] == times), "{said}\n{report:#}");
    }
}
