//! Questions about other processes and their files, with the types of their answers. Only an
//! [inspector](super::inspector) answers them.

mod registers;
mod runtimes;

use crate::file_facts::FileFacts;
use crate::jit::code_events::CodeLook;
use crate::jit::files::{DumpReader, MapReader};
use crate::jit::process::Who;
use crate::learnt::LearntRule;
use crate::open_mapped::MappedAt;
use crate::vdso::StoredVdso;
use abi::RUNTIME_WORDS;
use image::ImageId;
use kernel::MappedFileId;
use kernel::latin1::Bytes;
use kernel::procfs::MapsLine;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub use model::Language;
pub use registers::{SampledRegisters, Walk, Walked, WalkedEdge};
pub use runtimes::{AttributesFound, RuntimeCode, RuntimeFound, RuntimeFunction, RuntimeRun};

/// A question and the type of its answer.
pub trait Inspect: Serialize + DeserializeOwned + Into<Question> {
    /// The answer of an inspector.
    type Answer: Serialize + DeserializeOwned;

    /// The process that may keep the inspector from answering: the one that is looked into. `None`
    /// for files that root or somebody whom root trusts has named.
    fn pid(&self) -> Option<u32>;
}

macro_rules! questions {
    ($($name:ident -> $answer:ty, $question:ident => $pid:expr;)*) => {
        /// Any question.
        #[derive(Clone, Debug, Serialize, Deserialize)]
        pub enum Question {
            $(
                #[doc = concat!("[`", stringify!($name), "`].")]
                $name($name),
            )*
        }
        $(
            impl From<$name> for Question {
                fn from(question: $name) -> Self {
                    Self::$name(question)
                }
            }

            impl Inspect for $name {
                type Answer = $answer;

                fn pid(&self) -> Option<u32> {
                    let $question = self;
                    $pid
                }
            }
        )*
    };
}

questions! {
    Mappings -> Option<Vec<MapsLine>>, asked => Some(asked.pid);
    Owner -> Option<Who>, asked => Some(asked.pid);
    ImageOfContainer -> Option<Bytes>, _asked => None;
    FactsByPath -> Option<FileFacts>, asked => Some(asked.0.at.pid);
    FactsOfMapping -> Option<FileFacts>, asked => Some(asked.0.at.pid);
    Facts -> Option<(FileFacts, Option<u32>)>, asked => Some(asked.0.at.pid);
    Identify -> Identified, asked => Some(asked.0.at.pid);
    IdentifyPath -> Result<(Known, FileFacts), String>, _asked => None;
    BuildIdOf -> Option<Bytes>, asked => Some(asked.0.at.pid);
    NarrowVdsoOf -> Option<StoredVdso>, asked => Some(asked.at.pid);
    GeneratedCode -> Generated, asked => Some(asked.pid);
    DumpedCode -> Result<Dumped, KeepError>, asked => asked.dumps.first().map(|dump| dump.at.pid);
    Walk -> Walked, asked => Some(asked.file.at.pid);
    Unwind -> Unwound, asked => Some(asked.pid);
    Open -> Result<Opened, KeepError>, asked => Some(asked.file.at.pid);
    Choose -> Result<Chosen, String>, _asked => None;
    Read -> Result<Raw, String>, _asked => None;
    Close -> (), _asked => None;
}

/// The identity of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// The build of this id.
    Image(ImageId),
    /// A file that is no ELF file.
    NotElf,
}

impl Known {
    /// As text: the image's id, or `not ELF`.
    pub fn text(self) -> String {
        match self {
            Known::Image(id) => id.to_string(),
            Known::NotElf => "not ELF".to_owned(),
        }
    }

    /// From such text. `None` for any other.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "not ELF" => Some(Known::NotElf),
            id => id.parse().ok().map(Known::Image),
        }
    }
}

impl Serialize for Known {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text())
    }
}

impl<'de> Deserialize<'de> for Known {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Known::parse(&text).ok_or_else(|| serde::de::Error::custom("no image id"))
    }
}

/// Executable mappings of a process; copies of a file's text, which are anonymous memory, as that
/// file. `None`: it is gone.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Mappings {
    /// Process.
    pub pid: u32,
}

/// Program, users and namespaces of a process. `None`: it is gone.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Owner {
    /// Process.
    pub pid: u32,
}

/// Asks for the name of the image from which a container was made, or of its pod. `None`: no
/// engine's files name one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ImageOfContainer {
    /// The container's id, 64 hexadecimal digits.
    pub id: String,
}

/// A mapped file: what the kernel said it is, its path there, and where it is mapped.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FileAt {
    /// Device and inode, or build id.
    pub id: MappedFileId,
    /// Path as the process names it.
    pub path: Bytes,
    /// A process that has it mapped, and where.
    pub at: MappedAt,
}

/// Facts of the file that the path leads to, if it is that inode.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FactsByPath(pub FileAt);

/// Facts about the file mapped there now, if it has that inode.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FactsOfMapping(pub FileAt);

/// Facts of the very file that was mapped, and the user who can write it if that is not root alone.
/// `None`: it cannot be opened any more.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Facts(pub FileAt);

/// Asks for the image of the mapped file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Identify(pub FileAt);

/// The result of reading a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Identified {
    /// It can no longer be opened.
    Gone,
    /// It cannot be read.
    Unreadable,
    /// The file's identity, and its facts before and after it was read.
    Known(Known, FileFacts, FileFacts),
}

/// Asks for the image of the file at an absolute path. Errors are one line.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct IdentifyPath {
    /// Path as the inspector sees it.
    pub path: Bytes,
}

/// The build id of the very file that is mapped there. `None`: it has no build id, or is gone.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BuildIdOf(pub FileAt);

/// The vdso of a 32-bit process. `None`: its memory cannot be read.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NarrowVdsoOf {
    /// Where it is mapped.
    pub at: MappedAt,
}

/// The new content of a just-in-time compiler's files since the last reading.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GeneratedCode {
    /// Process.
    pub pid: u32,
    /// The value of [`Owner`] when the process began.
    pub who: Who,
    /// Reading position in its perf map.
    pub map: MapReader,
    /// Its jitdumps that are mapped, and how far they were read.
    pub dumps: Vec<FileAt>,
    /// Reading positions in jitdumps.
    pub read: Vec<DumpReader>,
    /// Bytes that may be read.
    pub bytes_max: u64,
}

/// Their new content, and the positions up to which they are read.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Generated {
    /// The new entries.
    pub look: CodeLook,
    /// New reading position in the perf map.
    pub map: MapReader,
    /// New reading positions in jitdumps.
    pub read: Vec<DumpReader>,
}

/// The bytes of pieces of code in a jitdump.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DumpedCode {
    /// The process's jitdumps that are mapped.
    pub dumps: Vec<FileAt>,
    /// The one that has the pieces.
    pub dump: DumpReader,
    /// [`Who::owners`] of the process.
    pub owners: [u32; 2],
    /// Whether code of dumps that are not world-readable is returned as well.
    pub private: bool,
    /// File offset and number of bytes of each piece, at most [`DUMPED_BYTES_MAX`] together.
    pub pieces: Vec<(u64, u32)>,
}

/// The bytes of pieces of code.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Dumped {
    /// The instruction set, as in an ELF file (`e_machine`).
    pub machine: u16,
    /// Of each piece; none where the dump does not have them.
    pub pieces: Vec<Raw>,
}

/// Most bytes of one answer to [`DumpedCode`].
pub const DUMPED_BYTES_MAX: usize = 1 << 20;

/// The frames of call stacks that were sampled in one process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Unwind {
    /// Process.
    pub pid: u32,
    /// Process and generation, as in [`abi::StackRecord::space`].
    pub space: u32,
    /// Its mappings, by address.
    pub map: Vec<MappedCode>,
    /// Whether the daemon wants to know where frames of runtimes are.
    pub looks_for_runtime: bool,
    /// Whether the daemon wants to know where threads have attributes.
    pub looks_for_attributes: bool,
    /// File in memory that has the copies of stacks: a process that has it open, and its number
    /// there. A socket would copy them three times more, which cost twice as much as walking them.
    pub copies: (u32, i32),
    /// The stacks.
    pub stacks: Vec<SampledStack>,
}

/// Executable memory of a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MappedCode {
    /// First address, and the one after the last.
    pub range: (u64, u64),
    /// File offset that the first address shows.
    pub file_offset: u64,
    /// The source of its bytes.
    pub code: CodeSource,
    /// Whether code that no unwind table covers is known to keep frame pointers.
    pub frame_pointers: bool,
}

/// The source of the bytes of executable memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum CodeSource {
    /// A file.
    File(FileAt),
    /// The process's program, which is looked at for how it was compiled.
    Program(FileAt),
    /// The kernel's vdso.
    Vdso,
    /// Code made at run time.
    Generated,
}

impl CodeSource {
    /// The file, if it is one.
    pub fn file(&self) -> Option<&FileAt> {
        match self {
            Self::File(file) | Self::Program(file) => Some(file),
            Self::Vdso | Self::Generated => None,
        }
    }
}

/// The part of a stack that the sampler has not walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToWalk {
    /// All of it.
    All,
    /// The caller of the last frame that it has walked, and what follows. In that frame the program
    /// counter, the stack pointer and the frame pointer are known; no other register is.
    Rest,
    /// Nothing. The place in [`unwind::End::ALL`] of the reason why no more frames follow.
    Nothing(u8),
}

/// One thread's registers, and a copy of part of its stack.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SampledStack {
    /// Values in the order of DWARF's numbers, the program counter last. x86-64: rax, rdx, rcx,
    /// rbx, rsi, rdi, rbp, rsp, r8 to r15, rip. 32-bit code on x86-64: eax, ecx, edx, ebx, esp,
    /// ebp, esi, edi, eip. arm64: x0 to x30, sp, pc.
    pub registers: Vec<u64>,
    /// Address of the first byte of the copy.
    pub begin: u64,
    /// Offset of the copy in [`Unwind::copies`].
    pub at: u64,
    /// Bytes of the copy, at most [`abi::STACK_COPY_BYTES`].
    pub len: u32,
    /// Frames that the sampler has walked, as in [`UnwoundStack::addresses`].
    pub walked: Vec<u64>,
    /// What is left to walk.
    pub to_walk: ToWalk,
    /// Frames of CPython, innermost first: code object, instruction, flags.
    pub python: Vec<[u64; 3]>,
    /// Words of frames that the sampler has walked: the frame's place in `walked`, and the words
    /// that [`abi::FrameLayout::words`] names.
    pub noted: Vec<(u32, [u64; RUNTIME_WORDS])>,
}

/// Frames of stacks, in the order in which they were asked for.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Unwound {
    /// One for each stack.
    pub stacks: Vec<UnwoundStack>,
    /// Functions that [`RuntimeRun`] names.
    pub functions: Vec<RuntimeFunction>,
    /// Code that compilers have made of these functions, as far as frames were in it.
    pub codes: Vec<RuntimeCode>,
    /// The layout of runtimes' frames, if it was asked for.
    pub runtime: RuntimeFound,
    /// Where threads have attributes, if it was asked for and there are any.
    pub attributes: Option<AttributesFound>,
    /// Rules of frames that were met, each once.
    pub rules: Vec<LearntRule>,
}

/// The frames of one stack.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct UnwoundStack {
    /// Addresses, innermost first: of the next instruction in the first, within the call in others.
    pub addresses: Vec<u64>,
    /// Place in [`unwind::End::ALL`] of the reason why no more frames follow.
    pub end: u8,
    /// Frames of functions in the place of native ones, the innermost first.
    pub runs: Vec<RuntimeRun>,
    /// Frames of Python were copied, and do not fit the native ones.
    pub python_differs: bool,
}

impl Drop for SampledStack {
    fn drop(&mut self) {
        // `black_box` keeps the compiler from leaving out writes that nothing reads.
        std::hint::black_box(&mut self.registers).fill(0);
    }
}

/// Opens a file whose code the code store wants, and holds it open.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Open {
    /// The build that the file must be.
    #[serde(with = "text")]
    pub image: ImageId,
    /// The file.
    pub file: FileAt,
    /// Whether code of files that are not world-readable is returned as well.
    pub private: bool,
}

/// An open file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Opened {
    /// Its number at this inspector.
    pub handle: u32,
    /// It is deleted, and disappears with its last process.
    pub is_deleted: bool,
    /// It keeps a file system busy that somebody may want to unmount.
    pub is_lent: bool,
    /// Length of the file, in bytes.
    pub file_len: u64,
    /// Kept ranges: first byte and the one after the last, in ascending order.
    pub ranges: Vec<(u64, u64)>,
}

/// Chooses what is kept of an open file, by its samples. Errors are one line.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Choose {
    /// [`Opened::handle`].
    pub handle: u32,
    /// Ranges that are kept already.
    pub kept: Vec<(u64, u64)>,
    /// Lines with samples, those with the most first ([`image::LINE_BYTES`]).
    pub lines: Vec<u32>,
    /// Bytes that may be added.
    pub budget: u64,
}

/// The ranges of an open file that the code store is to have after a choice.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Chosen {
    /// No more than before: the file's names cost so many bytes, which is more than is paid for.
    NotYet(u64),
    /// First byte and the one after the last of each range, in ascending order.
    Ranges(Vec<(u64, u64)>),
}

/// The next bytes of what is kept of an open file: at most [`PIECE_BYTES`]. None are left: it was
/// that build all the time. Errors are one line.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Read {
    /// [`Opened::handle`].
    pub handle: u32,
    /// From the first byte again.
    pub anew: bool,
}

/// Closes an open file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Close {
    /// [`Opened::handle`].
    pub handle: u32,
}

/// Bytes of one answer to [`Read`].
pub const PIECE_BYTES: usize = 64 << 10;
/// Files that one inspector holds open for [`Read`].
pub const OPEN_MAX: usize = 256;

/// The reason why the code of a file is not returned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeepError {
    /// No file that can be opened is that build.
    Gone,
    /// The file is not world-readable.
    Private,
    /// Why it cannot be kept, as one line.
    Refused(String),
}

mod text {
    use image::ImageId;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(id: &ImageId, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&id.to_string())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ImageId, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|_| serde::de::Error::custom("no image id"))
    }
}

/// Bytes as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Raw(#[serde(with = "raw")] pub Vec<u8>);

/// Bytes as one field rather than as a list of numbers: a copy instead of a loop.
mod raw {
    use serde::de::{Error, Visitor};
    use serde::{Deserializer, Serializer};

    pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(bytes)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        struct Copied;
        impl Visitor<'_> for Copied {
            type Value = Vec<u8>;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("bytes")
            }

            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Self::Value, E> {
                Ok(bytes.to_vec())
            }
        }
        deserializer.deserialize_bytes(Copied)
    }
}
