//! Answers of inspectors, which a process that they inspect may have taken over.

use crate::choice;
use crate::images::ranges;
use address_spaces::vdso32::restored;
use image::jit::CodeMap;
use inspect::file_facts::FileFacts;
use inspect::frames::Connection;
use inspect::jit::code_events::{CodeEvent, CodeLook, apply};
use inspect::questions::{
    BuildIdOf, Facts, Generated, GeneratedCode, Identified, Identify, IdentifyPath, Inspect, Known,
    Mappings, NarrowVdsoOf, Open, Opened, Owner, Question, Raw, Read, Walk, Walked, WalkedEdge,
};
use inspect::vdso::vdso_of;
use kernel::procfs::executable_mappings;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::time::Instant;

/// Bytes that fit into a socket without a reader.
const FRAME_BYTES_MAX: usize = 64 << 10;

/// Decodes the answer in a frame; the frame's length may not match the bytes.
fn received<Asked: Inspect>(bytes: &[u8]) -> Option<Asked::Answer> {
    message(bytes)
}

fn message<Message: DeserializeOwned>(bytes: &[u8]) -> Option<Message> {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.write_all(bytes.get(..FRAME_BYTES_MAX).unwrap_or(bytes)).unwrap();
    Connection::new(ours).receive(Some(Instant::now())).ok().flatten()
}

/// Decodes an answer to the question that the first byte selects. The highest bit of that byte
/// corrects the frame's length, which a fuzzer would hardly find.
pub fn answer(bytes: &[u8]) {
    let Some((choice, message)) = choice(bytes) else { return };
    let framed;
    let bytes = if choice & 0x80 == 0 {
        message
    } else {
        framed = frame(message);
        &framed[..]
    };
    match choice % 12 {
        0 => drop(received::<Mappings>(bytes)),
        1 => {
            let who = received::<Owner>(bytes).flatten();
            let _ = who.map(|who| who.is_runtime());
        }
        2 => {
            let facts = received::<Facts>(bytes).flatten();
            let _ = facts.map(|(facts, _)| facts.is_settled());
        }
        3 => {
            if let Some(Identified::Known(Known::Image(id), ..)) = received::<Identify>(bytes) {
                assert_eq!(Known::parse(&id.to_string()), Some(Known::Image(id)));
            }
        }
        4 => drop(received::<IdentifyPath>(bytes)),
        5 => {
            let id = received::<BuildIdOf>(bytes).flatten();
            let _ = id.map(|id| image::ImageId::from_build_id(&id.0));
        }
        6 => {
            if let Some(stored) = received::<NarrowVdsoOf>(bytes).flatten() {
                drop(restored("[vdso32]", &stored));
            }
        }
        7 => {
            if let Some(Generated { look, .. }) = received::<GeneratedCode>(bytes) {
                let mut code = CodeMap::default();
                look.events.iter().for_each(|event| apply(event, &mut code));
            }
        }
        8 => drop(received::<Walk>(bytes)),
        9 => {
            if let Some(Ok(Opened { file_len, ranges: told, .. })) = received::<Open>(bytes) {
                ranges(file_len, told);
            }
        }
        10 => drop(received::<Read>(bytes)),
        _ => drop(message_of_question(bytes)),
    }
}

fn message_of_question(bytes: &[u8]) -> Option<Question> {
    message(bytes)
}

fn frame(message: &[u8]) -> Vec<u8> {
    let head = (message.len() as u32).to_le_bytes().into_iter().chain(7_u64.to_le_bytes());
    head.chain(message.iter().copied()).collect()
}

/// Answers of each kind, about this process.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    fn seed(choice: u8, answer: &impl Serialize) -> Vec<u8> {
        [vec![choice | 0x80], postcard::to_stdvec(answer).unwrap()].concat()
    }
    let pid = std::process::id();
    let facts = FileFacts::of(&std::fs::metadata("/proc/self/exe").unwrap());
    let known = Known::Image(image::ImageId::from_build_id(&[7; 20]).unwrap());
    let mut lines = executable_mappings(pid).unwrap();
    lines.truncate(4);
    let vdso = inspect::vdso::own_vdso_range();
    let vdso = vdso.and_then(|(start, end)| vdso_of("self", start, end));
    let events = vec![
        CodeEvent::Clear,
        CodeEvent::Load(4096, 9, "f".into()),
        CodeEvent::Move(4096, 8192),
        CodeEvent::Dumped(99, 1, 4096, 9, "g".into()),
    ];
    let look = CodeLook { events, refused: Some("no".into()), bytes: 9, is_cut: true };
    let opened = Opened {
        handle: 1,
        is_deleted: false,
        is_lent: false,
        file_len: 99,
        ranges: vec![(0, 9), (20, 30)],
    };
    let opened: <Open as Inspect>::Answer = Ok(opened);
    let piece: <Read as Inspect>::Answer = Ok(Raw(vec![1, 2, 3]));
    let identified: <IdentifyPath as Inspect>::Answer = Ok((known, facts));
    // The highest bit changes the remainder, so the first matching byte is taken for each kind.
    let choices: Vec<u8> =
        (0..12).map(|kind| (0x80..=0xff).find(|choice| choice % 12 == kind).unwrap()).collect();
    vec![
        seed(choices[0], &Some(lines)),
        seed(choices[1], &inspect::jit::process::Who::of(pid)),
        seed(choices[2], &Some(facts)),
        seed(choices[3], &Identified::Known(known, facts, facts)),
        seed(choices[4], &identified),
        seed(choices[5], &Some(kernel::latin1::Bytes(vec![7; 20]))),
        seed(choices[6], &vdso),
        seed(choices[7], &Generated { look, ..Generated::default() }),
        seed(
            choices[8],
            &Walked {
                edges: vec![WalkedEdge { from: 1, to: 2, first: 1, all: 3 }],
                rounds: vec![(3, 4)],
                outcomes: vec![(1, 2, 3)],
                times: vec![(1, 9)],
                accesses: vec![(1, 2, 3)],
                ..Walked::default()
            },
        ),
        seed(choices[9], &opened),
        seed(choices[10], &piece),
        seed(choices[11], &Question::from(Mappings { pid })),
        [vec![0], frame(&postcard::to_stdvec(&1_u8).unwrap())].concat(),
    ]
}
