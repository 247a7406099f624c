//! An inspector: answers questions on one connection until that ends.

use super::answers::{Desk, Find as _};
use super::frames::{Connection, Used};
use super::questions::Question;
use kernel::privileges;
use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::alarm;
use std::io;
use std::os::unix::net::UnixStream;

/// Seconds after which the kernel ends an inspector that has not answered (SIGALRM), unless it
/// waits uninterruptibly.
const QUESTION_S: u32 = 10;
/// Bytes of address space of an inspector. Reading a file's symbols takes as much as these are
/// large; a file beyond it has no code kept.
const ADDRESS_SPACE_BYTES: u64 = 512 << 20;
/// Descriptors of an inspector: 256 files that are held open, 64 of walks, and some.
const DESCRIPTORS: u64 = 1024;
/// Seconds of CPU time of an inspector, after which a new one takes its place.
const CPU_S: u64 = 3600;
/// Limits of an inspector; it writes nothing.
const LIMITS: [(Resource, u64); 5] = [
    (Resource::RLIMIT_AS, ADDRESS_SPACE_BYTES),
    (Resource::RLIMIT_NOFILE, DESCRIPTORS),
    (Resource::RLIMIT_CPU, CPU_S),
    (Resource::RLIMIT_CORE, 0),
    (Resource::RLIMIT_FSIZE, 0),
];

/// Answers until the other end closes the connection.
pub fn serve(stream: UnixStream) -> io::Result<()> {
    for (resource, limit) in LIMITS {
        setrlimit(resource, limit, limit)?;
    }
    privileges::keep_for_looking();
    let mut desk = Desk::default();
    let mut connection = Connection::new(stream);
    loop {
        match connection.receive(None) {
            Ok(Some(question)) => {
                alarm::set(QUESTION_S);
                answer(question, &mut desk, &mut connection)?;
                alarm::cancel();
            }
            Ok(None) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// Answers one question.
pub fn answer(question: Question, desk: &mut Desk, connection: &mut Connection) -> io::Result<()> {
    macro_rules! answered {
        ($($name:ident)*) => {
            match question {
                $(Question::$name(question) => {
                    let answer = question.find(desk);
                    connection.send(&answer, Used::by_this_process())
                })*
            }
        };
    }
    answered! {
        Mappings Owner ImageOfContainer FactsByPath FactsOfMapping Facts Identify IdentifyPath
        BuildIdOf
        NarrowVdsoOf GeneratedCode DumpedCode Walk Unwind Open Choose Read Close
    }
}
