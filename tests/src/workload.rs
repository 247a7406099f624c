//! Programs whose behaviour is known, compiled from `workloads/` for a test. Each prints its own
//! measurements as a line of JSON.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A compiled workload.
pub struct Workload {
    program: PathBuf,
}

impl Workload {
    /// Compiles `workloads/NAME.c` to `directory/NAME`, with `flags` for the C compiler. Digits at
    /// the end of the name are not part of the source's name: they distinguish the programs of
    /// tests that run at the same time.
    ///
    /// # Panics
    /// When there is no compiler, or it refuses.
    #[must_use]
    pub fn build(directory: &Path, name: &str, flags: &[&str]) -> Self {
        let program = directory.join(name);
        let own = source(name);
        let numbered = || source(name.trim_end_matches(|c: char| c.is_ascii_digit()));
        compile(&if own.exists() { own } else { numbered() }, &program, flags);
        Self { program }
    }

    /// Compiles `workloads/NAME.go`, with C in it, to `directory/NAME`; digits as for
    /// [`Self::build`].
    ///
    /// # Panics
    /// When Go is not installed, or its compiler refuses.
    #[must_use]
    pub fn build_go(directory: &Path, name: &str, flags: &[&str]) -> Self {
        let program = directory.join(name);
        let mut go = Command::new("go");
        go.arg("build").args(flags).arg("-o").arg(&program);
        let source = source(name.trim_end_matches(|c: char| c.is_ascii_digit()));
        go.arg(source.with_extension("go"));
        // Tests may run without a home.
        go.env("GOCACHE", directory.join("cache")).env("GO111MODULE", "off");
        let status = go.env("CGO_ENABLED", "1").status().expect("go build: install golang-go");
        assert!(status.success(), "{go:?}: {status}");
        Self { program }
    }

    /// Compiles `library.c` to a shared library and `library_main.c` to a program that finds it
    /// beside itself.
    ///
    /// # Panics
    /// When there is no compiler, or it refuses.
    #[must_use]
    pub fn build_with_library(directory: &Path) -> Self {
        let library = build_library(directory, "library", "liblibrary.so", &[]);
        Self::build(directory, "library_main", &[&library, "-Wl,-rpath,$ORIGIN"])
    }

    /// Compiles `requests.c` to a program `directory/NAME` and a library with its variable of the
    /// thread, which `flags` say how to find.
    ///
    /// # Panics
    /// When there is no compiler, or it refuses.
    #[must_use]
    pub fn build_requests(directory: &Path, name: &str, flags: &[&str]) -> Self {
        let flags = [&["-DAS_LIBRARY"], flags].concat();
        let library = build_library(directory, "requests", &format!("lib{name}.so"), &flags);
        Self::build(directory, name, &["-DWITH_LIBRARY", &library, "-Wl,-rpath,$ORIGIN"])
    }

    /// Compiles `exec_over.c` to two programs that exec each other at the same addresses: 10 ms of
    /// the first, 30 ms of the second.
    ///
    /// # Panics
    /// When there is no compiler, or it refuses.
    #[must_use]
    pub fn build_exec_over(directory: &Path) -> Self {
        for (name, other, ms, is_first) in
            [("exec_second", "exec_first", 30, 0), ("exec_first", "exec_second", 10, 1)]
        {
            let defines = [
                format!("-DOTHER=\"{other}\""),
                format!("-DMS={ms}"),
                format!("-DIS_FIRST={is_first}"),
                format!("-DSEED={ms}"),
            ];
            let flags: Vec<&str> =
                ["-no-pie"].into_iter().chain(defines.iter().map(String::as_str)).collect();
            compile(&source("exec_over"), &directory.join(name), &flags);
        }
        Self { program: directory.join("exec_first") }
    }

    /// Compiles `turns.c` and two plugins from `library.c` that it loads at one address in turn:
    /// `turn_ms` of the first, three times that of the second.
    ///
    /// # Panics
    /// When there is no compiler, or it refuses.
    #[must_use]
    pub fn build_turns(directory: &Path, turn_ms: u32) -> Self {
        for plugin in ["first", "second"] {
            // Different sonames give different build ids.
            let soname = format!("-Wl,-soname,{plugin}");
            compile(
                &source("library"),
                &directory.join(format!("{plugin}.so")),
                &["-shared", "-fPIC", &soname],
            );
        }
        Self::build(directory, "turns", &[&format!("-DTURN_MS={turn_ms}"), "-ldl"])
    }

    /// Compiles `overlaid.c`, its library as `libc-overlaid.so`, which a sampler may take for a C
    /// library, and two plugins from `library.c`.
    ///
    /// # Panics
    /// When there is no compiler, or it refuses.
    #[must_use]
    pub fn build_overlaid(directory: &Path) -> Self {
        let _ = Self::build_turns(directory, 1);
        let library = build_library(
            directory,
            "overlaid_library",
            "libc-overlaid.so",
            &["-fno-toplevel-reorder"],
        );
        Self::build(directory, "overlaid", &[&library, "-Wl,-rpath,$ORIGIN", "-ldl"])
    }

    /// Compiles `overlaid.c` with the code of that library in itself.
    ///
    /// # Panics
    /// When there is no compiler, or it refuses.
    #[must_use]
    pub fn build_overlaid_itself(directory: &Path) -> Self {
        let _ = Self::build_turns(directory, 1);
        let own = source("overlaid_library");
        Self::build(
            directory,
            "overlaid",
            &[own.to_str().expect("a plain name"), "-fno-toplevel-reorder", "-ldl"],
        )
    }

    /// Compiles `library_main.c`, and two builds of its library that `flags` make, for it to find
    /// as `libc-rebuilt.so`: gives their paths too.
    ///
    /// # Panics
    /// When there is no compiler, or it refuses.
    #[must_use]
    pub fn build_with_libraries(directory: &Path, flags: [&[&str]; 2]) -> (Self, [PathBuf; 2]) {
        let soname = "-Wl,-soname,libc-rebuilt.so";
        let built = [(0, "libc-rebuilt.so"), (1, "other.so")].map(|(build, name)| {
            let flags = flags.get(build).copied().unwrap_or_default();
            PathBuf::from(build_library(directory, "library", name, &[&[soname], flags].concat()))
        });
        let library = built[0].to_str().expect("a plain name").to_owned();
        (Self::build(directory, "library_main", &[&library, "-Wl,-rpath,$ORIGIN"]), built)
    }

    /// Compiles `loads.c`, which loads and unloads libraries, and two of them: `liblibrary.so` and
    /// `libother.so`.
    ///
    /// # Panics
    /// When there is no compiler, or it refuses.
    #[must_use]
    pub fn build_loads(directory: &Path) -> Self {
        for name in ["liblibrary.so", "libother.so"] {
            compile(&source("library"), &directory.join(name), &["-shared", "-fPIC"]);
        }
        Self::build(directory, "loads", &["-pthread", "-ldl"])
    }

    /// Compiles `crowd.c`, and `libraries` of one function each, which it loads: gives their paths.
    ///
    /// # Panics
    /// When there is no compiler, or it refuses.
    #[must_use]
    pub fn build_crowd(directory: &Path, libraries: usize) -> (Self, Vec<PathBuf>) {
        let built = |number: usize| {
            let (library, soname) =
                (directory.join(format!("lib{number}.so")), format!("-Wl,-soname,lib{number}.so"));
            compile(&source("library"), &library, &["-shared", "-fPIC", &soname]);
            library
        };
        (Self::build(directory, "crowd", &["-ldl"]), (0..libraries).map(built).collect())
    }

    /// Copies the program to another name; an existing file of that name keeps its inode.
    ///
    /// # Panics
    /// When it cannot be copied.
    #[must_use]
    pub fn copy(&self, name: &str) -> Self {
        let program = self.program.with_file_name(name);
        std::fs::copy(&self.program, &program).expect("copying a workload");
        Self { program }
    }

    /// The compiled program.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Runs it for this many seconds. Returns its measurements.
    ///
    /// # Panics
    /// When it fails.
    #[must_use]
    pub fn run(&self, seconds: u32) -> Truth {
        self.start(seconds).wait()
    }

    /// Starts it for this many seconds.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn start(&self, seconds: u32) -> Running {
        Running::start(Command::new(&self.program).arg(seconds.to_string()))
    }
}

/// A workload that runs. Dropping it kills it.
pub struct Running {
    child: Child,
}

impl Running {
    /// Starts a command that ends in a workload and its seconds.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn start(command: &mut Command) -> Self {
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        Self { child: child.unwrap_or_else(|error| panic!("starting {command:?}: {error}")) }
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it still runs.
    ///
    /// # Panics
    /// When the kernel gives no answer.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("asking for a workload").is_none()
    }

    /// Waits until it has ended, well or not.
    ///
    /// # Panics
    /// When it cannot be waited for.
    pub fn ended(mut self) {
        let _ = self.child.wait().expect("waiting for a workload");
    }

    /// Waits for its end. Returns its measurements.
    ///
    /// # Panics
    /// When it fails.
    #[must_use]
    pub fn wait(mut self) -> Truth {
        let output = self.child.stdout.take().expect("its output is a pipe");
        let text = std::io::read_to_string(output).expect("reading what a workload says");
        let status = self.child.wait().expect("waiting for a workload");
        assert!(status.success(), "a workload failed: {status}\n{text}");
        let truth = serde_json::from_str(text.trim())
            .unwrap_or_else(|error| panic!("not JSON ({error}): {text}"));
        Truth { truth }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill(); // it may have ended this moment
            let _ = self.child.wait();
        }
    }
}

/// The measurements of a workload.
pub struct Truth {
    truth: serde_json::Value,
}

impl Truth {
    /// The number of this name.
    ///
    /// # Panics
    /// When it is not there.
    #[must_use]
    pub fn number(&self, key: &str) -> f64 {
        let number = self.truth.get(key).and_then(serde_json::Value::as_f64);
        number.unwrap_or_else(|| panic!("the workload does not say {key}: {}", self.truth))
    }
}

/// Build id of an ELF file, in the form of an image id.
///
/// # Panics
/// When the file has none.
#[must_use]
pub fn build_id(file: &Path) -> String {
    let notes = crate::succeed(Command::new("readelf").arg("-n").arg(file));
    let id = notes.lines().find_map(|line| line.trim().strip_prefix("Build ID: "));
    id.unwrap_or_else(|| panic!("{notes}")).to_owned()
}

/// Starts a command under a process number that another process had before.
///
/// # Panics
/// When the number cannot be had in 20 s.
#[must_use]
pub fn start_as_number(number: u32, command: &mut Command) -> Running {
    let begin = Instant::now();
    loop {
        // The last process number that the kernel assigned (proc_sys_kernel(5)); another process
        // may fork in between.
        let last = (number - 1).to_string();
        std::fs::write("/proc/sys/kernel/ns_last_pid", last).expect("root may choose numbers");
        let running = Running::start(command);
        if running.pid() == number {
            return running;
        }
        let waited = begin.elapsed();
        assert!(waited < Duration::from_secs(20), "the number {number} could not be had again");
    }
}

/// A file that a workload leaves in /tmp, removed when the value is dropped.
pub struct Left(PathBuf);

impl Left {
    /// The perf map of a process.
    #[must_use]
    pub fn map_of(pid: u32) -> Self {
        Self(PathBuf::from(format!("/tmp/perf-{pid}.map")))
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Left {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0); // not every workload leaves one
    }
}

/// Waits until a process has executable memory at an address.
///
/// # Panics
/// When it has none after 20 s.
pub fn wait_for_code(pid: u32, address: u64) {
    let begin = Instant::now();
    let maps = || std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    while !maps().contains(&format!("{address:x}-")) {
        assert!(begin.elapsed() < Duration::from_secs(20), "{}", maps());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The source of a workload that needs no compiler.
#[must_use]
pub fn script(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("workloads").join(file)
}

/// Compiles `workloads/NAME.c` to a shared library; gives its path.
fn build_library(directory: &Path, name: &str, library: &str, flags: &[&str]) -> String {
    let library = directory.join(library);
    compile(&source(name), &library, &[&["-shared", "-fPIC"], flags].concat());
    library.to_str().expect("temporary directories have plain names").to_owned()
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("workloads").join(format!("{name}.c"))
}

fn compile(source: &Path, product: &Path, flags: &[&str]) {
    let mut command = Command::new("cc");
    // The source before the flags: a library must follow what uses it. A build id is the
    // distributions' default, not every cc's. The run path makes each test's programs other files
    // than those that other tests build of the same source.
    let place = product.parent().expect("a product is in a directory").join("nowhere");
    command.args(["-O2", "-Wl,--build-id", "-o"]).arg(product).arg(source).args(flags);
    command.arg(format!("-Wl,-rpath,{}", place.display()));
    let _ = crate::succeed(&mut command);
}
