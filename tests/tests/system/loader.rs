//! The loader hook inside real programs: whatever becomes of the daemon, they print and return what
//! they do without it. Needs no privilege.

use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tests::workload::Workload;
use tests::{hook, run, succeed};

/// The visible behaviour of a program.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    status: ExitStatus,
    output: String,
    errors: String,
}

fn seen(command: &mut Command) -> Seen {
    let output = run(command);
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    Seen { status: output.status, output: text(&output.stdout), errors: text(&output.stderr) }
}

/// Sets the environment that loads the hook into the command and its children.
fn hooked<'a>(command: &'a mut Command, socket: &Path) -> &'a mut Command {
    command.env("LD_AUDIT", hook()).env("DCPI_LOADER_SOCKET", socket)
}

/// A thread that reads the hook's datagrams until they are requested.
struct Listener {
    path: PathBuf,
    ends: Arc<AtomicBool>,
    reader: JoinHandle<Vec<Vec<u8>>>,
}

impl Listener {
    fn start(path: &Path) -> Self {
        let socket = UnixDatagram::bind(path).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let ends = Arc::new(AtomicBool::new(false));
        let end = ends.clone();
        let reader = std::thread::spawn(move || {
            let mut datagrams = Vec::new();
            let mut bytes = [0; 4096];
            loop {
                let ended = end.load(Ordering::SeqCst);
                match socket.recv(&mut bytes) {
                    Ok(len) => datagrams.push(bytes.get(..len).unwrap().to_vec()),
                    Err(_) if ended => return datagrams,
                    Err(_) => {}
                }
            }
        });
        Self { path: path.to_owned(), ends, reader }
    }

    /// All that was sent before this.
    fn end(self) -> Vec<Vec<u8>> {
        self.ends.store(true, Ordering::SeqCst);
        self.reader.join().unwrap()
    }
}

/// Number of datagrams that contain these words; paths are in them verbatim.
fn holding(datagrams: &[Vec<u8>], words: &str) -> usize {
    let holds = |datagram: &&Vec<u8>| {
        datagram.windows(words.len()).any(|window| window == words.as_bytes())
    };
    datagrams.iter().filter(holds).count()
}

/// The suite: programs that people run, each with something on its output, its errors and in its
/// exit code.
fn programs(directory: &Path) -> Vec<(&'static str, Command)> {
    let mut programs = Vec::new();
    let mut add = |story, program: &str, arguments: &[&str]| {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(directory).env("HOME", directory);
        programs.push((story, command));
    };
    add("a shell", "bash", &["-c", "for i in 1 2 3; do echo $i; done; echo no >&2; exit 3"]);
    add(
        "a chain of fork and exec",
        "bash",
        &[
            "-c",
            "bash -c 'sh -c \"cat /dev/null; echo deep; exit 5\"; echo $?' | tr a-z A-Z; exec perl -e 'exit 6'",
        ],
    );
    add(
        "many short ones",
        "bash",
        &["-c", "for i in $(seq 30); do /bin/true; done; ls -d / /no/such/file"],
    );
    add(
        "descriptors and signals",
        "bash",
        &["-c", "ls /proc/self/fd; grep ^Sig[BIC] /proc/self/status; ulimit -a"],
    );
    add("closed descriptors", "bash", &["-c", "exec 0<&- 2>&-; ls /proc/self/fd | head -c 100"]);
    add("no descriptors left", "bash", &["-c", "ulimit -n 4; /bin/echo none"]);
    add(
        "python3",
        "python3",
        &[
            "-c",
            "import sys, json, struct, math; print(json.dumps([1, math.pi])); sys.stderr.write('err\\n'); sys.exit(4)",
        ],
    );
    add(
        "python3 that forks",
        "python3",
        &[
            "-c",
            "import subprocess; print(subprocess.run(['cat', '/etc/hostname'], capture_output=True).returncode)",
        ],
    );
    add(
        "perl",
        "perl",
        &["-MPOSIX", "-e", "print POSIX::floor(3.7), qq(\\n); warn qq(careful\\n); exit 9"],
    );
    add("git", "git", &["-c", "init.defaultBranch=main", "init", "repository"]);
    add("git with an error", "git", &["-C", "/", "log"]);
    add("gcc", "gcc", &["-O1", "-Wall", "-o", "hello", "hello.c"]);
    add("gcc with an error", "gcc", &["-c", "-o", "wrong", "wrong.c"]);
    add("a linker", "ld", &["--version"]);
    programs
}

fn prepare(directory: &Path) {
    let hello = "#include <stdio.h>\nint main(void) { int unused; puts(\"hello\"); return 0; }\n";
    std::fs::write(directory.join("hello.c"), hello).unwrap();
    std::fs::write(directory.join("wrong.c"), "int main(void) { return nothing; }\n").unwrap();
    // So that each run finds what the others found.
    let _ = seen(
        Command::new("git")
            .args(["init", "repository"])
            .current_dir(directory)
            .env("HOME", directory),
    );
}

/// A destination for the hook: name, path, and a value that keeps it in its state.
type Destination = (&'static str, PathBuf, Option<Box<dyn std::any::Any>>);

fn destinations(directory: &Path) -> Vec<Destination> {
    let at = |name: &str| directory.join(name);
    let full = UnixDatagram::bind(at("stuck")).unwrap();
    let sender = UnixDatagram::unbound().unwrap();
    sender.set_nonblocking(true).unwrap();
    while sender.send_to(&[0; 64], at("stuck")).is_ok() {} // until its queue is full
    drop(UnixDatagram::bind(at("dead")).unwrap());
    let stream = UnixListener::bind(at("stream")).unwrap();
    // It takes datagrams of one sender only, and that is another.
    let (taken, taker) =
        (UnixDatagram::bind(at("taken")).unwrap(), UnixDatagram::bind(at("taker")).unwrap());
    taken.connect(at("taker")).unwrap();
    let _ = succeed(Command::new("mkfifo").arg(at("fifo")));
    std::fs::write(at("file"), "a file").unwrap();
    std::os::unix::fs::symlink(at("loop"), at("loop")).unwrap();
    vec![
        ("nobody listens", at("nowhere"), None),
        ("nobody reads and the queue is full", at("stuck"), Some(Box::new(full))),
        ("the daemon died", at("dead"), None),
        ("a socket of another type", at("stream"), Some(Box::new(stream))),
        ("a socket that refuses strangers", at("taken"), Some(Box::new((taken, taker)))),
        ("a FIFO", at("fifo"), None),
        ("a file", at("file"), None),
        ("a directory", directory.to_owned(), None),
        ("a loop", at("loop"), None),
        ("a device", "/dev/null".into(), None),
        ("no path", "".into(), None),
        ("a path that is too long", "/x".repeat(200).into(), None),
        ("a path just as long as can be", format!("/{}", "x".repeat(106)).into(), None),
    ]
}

#[test]
fn programs_are_the_same_with_a_daemon_that_listens() {
    let directory = tempfile::tempdir().unwrap();
    prepare(directory.path());
    let listener = Listener::start(&directory.path().join("up"));
    let path = listener.path.clone();
    for (story, mut command) in programs(directory.path()) {
        let without = seen(&mut command);
        assert_eq!(seen(hooked(&mut command, &path)), without, "{story}");
    }
    let datagrams = listener.end();
    for program in ["/bash", "/python3", "/perl", "/git", "/gcc", "/cc1", "/libc.so.6", "/ld-linux"]
    {
        assert!(holding(&datagrams, program) > 0, "nobody told of {program}");
    }
}

#[test]
fn programs_are_the_same_whatever_is_there_instead_of_the_daemon() {
    let directory = tempfile::tempdir().unwrap();
    prepare(directory.path());
    let destinations = destinations(directory.path());
    for (story, mut command) in programs(directory.path()) {
        let without = seen(&mut command);
        for (destination, path, _kept) in &destinations {
            assert_eq!(seen(hooked(&mut command, path)), without, "{story}, {destination}");
        }
    }
    assert_eq!(
        std::fs::read(directory.path().join("file")).unwrap(),
        b"a file",
        "nothing was written there"
    );
}

/// dlopen, dlmopen, several threads, a child, and a file that is not a library.
#[test]
fn libraries_loaded_later_are_told_and_the_program_notices_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let loads = Workload::build_loads(directory.path());
    let mut command = Command::new(loads.program());
    command.arg(directory.path().join("liblibrary.so")).arg(directory.path().join("libother.so"));
    let without = seen(&mut command);
    assert!(
        without.output.contains("dlmopen: loaded") && without.output.contains("in a child: loaded"),
        "{without:?}"
    );
    let listener = Listener::start(&directory.path().join("up"));
    assert_eq!(seen(hooked(&mut command, &listener.path)), without);
    let datagrams = listener.end();
    // Once by the program, once by its child, and by four threads between once in all and twenty
    // times each.
    let told = holding(&datagrams, "/liblibrary.so");
    assert!((3..=82).contains(&told), "{told}");
    assert_eq!(holding(&datagrams, "/loads"), 1, "the program itself is told of once");
    assert_eq!(holding(&datagrams, "/libother.so"), 1, "loaded into a namespace of its own");
    for (destination, path, _kept) in destinations(directory.path()) {
        assert_eq!(seen(hooked(&mut command, &path)), without, "{destination}");
    }
}

#[test]
fn programs_at_fixed_addresses_are_told_of_and_static_ones_are_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    for (name, flags, told) in [
        ("fixed", &["-no-pie"][..], 1),
        ("movable", &["-pie", "-fPIE"], 1),
        ("static", &["-static"], 0),
    ] {
        let at = directory.path().join(name);
        std::fs::create_dir(&at).unwrap();
        let workload = Workload::build(&at, "two_functions", flags);
        let listener = Listener::start(&at.join("up"));
        let mut command = Command::new(workload.program());
        let output = run(hooked(command.arg("0.01"), &listener.path));
        assert!(output.status.success() && output.stderr.is_empty(), "{name}: {output:?}");
        let datagrams = listener.end();
        assert_eq!(
            (datagrams.len(), holding(&datagrams, "/two_functions")),
            (told, told),
            "{name}"
        );
        // Its build id is in the datagram as it is in the file: 20 bytes that the note's name
        // stands before.
        let file = std::fs::read(workload.program()).unwrap();
        let note = file.windows(8).position(|window| window == b"\x03\0\0\0GNU\0").unwrap() + 8;
        let id = file.get(note..note + 20).unwrap();
        assert!(
            datagrams.iter().all(|datagram| datagram.windows(20).any(|window| window == id)),
            "{name}: build id"
        );
    }
}

/// A second C library in the hook's namespace would cost more than all the rest.
#[test]
fn the_hook_brings_nothing_along() {
    let listing = "cat /proc/self/maps";
    let mapped = |command: &mut Command| {
        let maps = succeed(command.args(["-c", listing]).stdin(Stdio::null()));
        maps.lines()
            .filter_map(|line| Some(line.rsplit_once('/')?.1.to_owned()))
            .collect::<Vec<_>>()
    };
    let without = mapped(&mut Command::new("bash"));
    let mut with = mapped(hooked(&mut Command::new("bash"), Path::new("/nowhere")));
    let before = with.len();
    with.retain(|name| name != "libdcpi_loader_hook.so");
    assert_eq!((before - with.len(), with), (2, without), "two mappings: one to run, one to write");
}
