//! A small profile that the formats' tests write.

use std::io::{self, Write};

use image::{ImageId, ImageKind, ImageOffset, Segment, Site, Vaddr};
use model::{Cut, Frame, Stacks, Thread, Value, Wait};
use profiledb::Scope;

use super::{Carried, Event, Image, Place, Procedure, Resolved};

/// Two events; a program with its code at 0x401000 that has an odd name, the kernel, an image whose
/// file is gone.
pub(crate) fn resolved() -> Resolved {
    let event = |name: &str, unit: &str, period, weight, samples| Event {
        name: name.into(),
        unit: unit.into(),
        period,
        weight,
        samples,
        idle: 1000,
        unresolved: vec![("anonymous_memory".into(), 5)],
        lost: 2,
        notes: Vec::new(),
    };
    let scopes =
        vec![Scope::default(), Scope { label: Some("a run".into()), unit: None, pid: Some(77) }];
    let place = |offset: u64, address, procedure, counts: &[(usize, [u64; 2])]| Place {
        offset,
        address,
        procedure,
        frames: Vec::new(),
        sites: Vec::new(),
        counts: counts.iter().map(|(scope, counts)| (*scope, counts.to_vec())).collect(),
    };
    let procedure = |name: &str, raw: &str, address| Procedure {
        name: name.into(),
        raw: raw.into(),
        address,
        size: 64,
    };
    let app = Image {
        id: ImageId::from_build_id(&[0xab; 20]).unwrap(),
        kind: ImageKind::File,
        name: "app;1".into(),
        path: "/opt/my app/app;1".into(),
        segments: vec![code()],
        procedures: vec![
            procedure("ns::f(int)", "_ZN2ns1fEi", 0x40_1010),
            procedure("evil\nname", "evil\nname", 0x40_1100),
        ],
        nameless: "[unknown]".into(),
        places: vec![
            place(0x1010, 0x40_1010, Some(0), &[(0, [10, 0]), (1, [30, 1])]),
            place(0x1014, 0x40_1014, Some(0), &[(0, [2, 3])]),
            place(0x1100, 0x40_1100, Some(1), &[(0, [1, 0])]),
            place(0x1700, 0x40_1700, None, &[(0, [4, 0])]),
        ],
        executed: None,
    };
    let other =
        |kind, name: &str, nameless: &str, procedures: Vec<Procedure>, procedure, counts| Image {
            id: ImageId::from_name(name, ""),
            kind,
            name: name.into(),
            path: String::new(),
            segments: Vec::new(),
            procedures,
            nameless: nameless.into(),
            places: vec![place(0x20, 0x20, procedure, &[(0, counts)])],
            executed: None,
        };
    let kernel = vec![procedure("clear_page", "clear_page", 0x10)];
    Resolved {
        events: vec![
            event("cycles", "cycles", 1000, 1000.0, 70),
            event("cpu-clock", "ns", 200_000, 400_000.0, 4),
        ],
        images: vec![
            app,
            other(ImageKind::Kernel, "[kernel]", "[unknown]", kernel, Some(0), [20, 0]),
            other(ImageKind::File, "gone", "[no procedures: file gone]", Vec::new(), None, [3, 0]),
        ],
        scopes,
        hosts: vec!["node-7".into()],
        epochs: vec!["e1".into()],
        started_unix_s: 1_793_873_700,
        ended_unix_s: 1_793_873_760,
        landed: "samples are on the instruction that took the time".into(),
        stacks: Default::default(),
    }
}

/// The program's code.
fn code() -> Segment {
    let (offset, vaddr) = (ImageOffset(0x1000), Vaddr(0x40_1000));
    Segment { offset, vaddr, file_size_bytes: 0x800, executable: true }
}

/// The same with lines: `f` is of line 10, and at 0x401014 `inl` of line 40 is inlined at its third
/// line.
pub(crate) fn with_lines() -> Resolved {
    let mut resolved = resolved();
    let frame = |function: &str, line| image::Frame {
        function: Some(function.into()),
        file: Some("/src/a.cc".into()),
        line: Some(line),
        column: None,
    };
    let site = |function: &str, line, discriminator| Site {
        function: function.into(),
        line,
        discriminator,
        copies: 1,
    };
    let places = &mut resolved.images[0].places;
    places[0].frames = vec![frame("ns::f(int)", 11)];
    places[0].sites = vec![site("_ZN2ns1fEi", 1, 0)];
    places[1].frames = vec![frame("inl()", 42), frame("ns::f(int)", 12)];
    places[1].sites = vec![site("_ZN2ns1fEi", 2, 1), site("_Z3inlv", 2, 0)];
    resolved
}

/// The same with call stacks: `f` is called by the procedure with an odd name, directly and in a
/// stack that is cut, and so is the kernel; and a stack of time off the CPU.
pub(crate) fn with_stacks() -> Resolved {
    let mut resolved = resolved();
    let call = Place {
        offset: 0x1180,
        address: 0x40_1180,
        procedure: Some(1),
        frames: Vec::new(),
        sites: Vec::new(),
        counts: Vec::new(),
    };
    resolved.images[0].places.insert(3, call);
    let (app, kernel) = (resolved.images[0].id, resolved.images[1].id);
    let code = |image, offset| Frame::Code(image, ImageOffset(offset));
    let [caller, f] = [code(app, 0x1180), code(app, 0x1014)];
    let thread = |tid| Thread {
        command: "app;x".into(),
        pid: 7,
        name: format!("w {tid}"),
        tid,
        ..Thread::default()
    };
    let mut cycles = Stacks::new();
    cycles.add_stack([caller, f], &thread(8), Value::of_one(3_000_000));
    let cut = [Frame::Cut(Cut::Truncated), caller, code(app, 0x1010)];
    cycles.add_stack(cut, &thread(8), Value::of_one(1_000_000));
    cycles.add_stack([caller, code(kernel, 0x20)], &thread(9), Value::of_one(1_000_000));
    let mut off = Stacks::new();
    let wait = [caller, f, Frame::Wait(Wait::Futex)];
    off.add_stack(wait, &thread(9), Value::of_one(5_000_000));
    let nobody = Scope::default;
    let stacks = [(("cycles".into(), nobody()), cycles), (("off-cpu".into(), nobody()), off)];
    crate::stacks::divide(&mut resolved, &stacks.into(), |_| "ns".to_owned(), |_| true);
    resolved
}

/// The output and the messages of a writer.
pub(crate) fn written(
    write: impl FnOnce(&mut dyn Write) -> io::Result<Carried>,
) -> (String, Carried) {
    let mut out = Vec::new();
    let carried = write(&mut out).unwrap();
    (String::from_utf8(out).unwrap(), carried)
}
