//! Counts by call stack: the tree of frames, depth first, and the values of its contexts.
//!
//! `FORMAT.md` has what a node takes: three quarters are offsets. To name a frame by its place
//! among the callees that its caller had before would save a sixth of all bytes, measured on the
//! same stacks.

use std::collections::{BTreeMap, BTreeSet};

use image::{ImageId, ImageOffset};
use model::{Attributes, Cut, Frame, Node, Stacks, Thread, Value, Wait};

use super::columns::{PREALLOCATED_ENTRIES, capacity, column, ended, put_block, take_block_of};
use super::pairs::{unzigzag, zigzag};
use crate::codec::{DecodeError, Input, put_text, put_varint};
use crate::error::Damage;

/// Most nodes of a section, as it is read. Writers keep to `stacks::NODES_MAX`; what they leave is
/// room for later releases. A node takes about 100 bytes of memory.
const READ_NODES_MAX: u64 = 1 << 20;
/// Most values of a section, by context and thread. A value takes about 60 bytes of memory.
const VALUES_MAX: u64 = 1 << 21;
/// Most frames of a stack. A walk has 1024 user frames at most, and 127 of the kernel; readers
/// follow each value to its root, so deeper trees could keep them busy for hours.
pub(crate) const DEPTH_MAX: usize = 2048;
/// Most bytes of the lists of images and threads, unpacked.
const LIST_BYTES_MAX: u64 = 16 << 20;
/// Most bytes of an entry in one column: the longest varint.
const ENTRY_BYTES: u64 = 10;

/// The text of a reason in a section: its class, and its name.
fn reason_text(frame: Frame) -> Option<String> {
    match frame {
        Frame::Code(..) => None,
        Frame::Cut(cut) => Some(format!("cut {}", cut.name())),
        Frame::Wait(wait) => Some(format!("wait {}", wait.name())),
    }
}

/// The reason of a text, and whether this release knows it: of a later one's there is only the
/// class.
fn reason(text: &str) -> Option<(Frame, bool)> {
    if let Some(name) = text.strip_prefix("cut ") {
        let known = Cut::ALL.iter().find(|cut| cut.name() == name);
        Some((Frame::Cut(known.copied().unwrap_or(Cut::Unreadable)), known.is_some()))
    } else {
        let name = text.strip_prefix("wait ")?;
        let known = Wait::ALL.iter().find(|wait| wait.name() == name);
        Some((Frame::Wait(known.copied().unwrap_or(Wait::Other)), known.is_some()))
    }
}

/// Stacks as a section of a segment. Also returns the number of nodes, without those that have no
/// value beneath them.
pub fn encode_stacks(stacks: &Stacks) -> (Vec<u8>, u64) {
    let stacks = stacks.canonical();
    let mut out = Vec::new();
    put_tree(&mut out, &stacks);
    put_values(&mut out, &stacks);
    (out, stacks.len() as u64)
}

/// A node on the way to the current one.
#[derive(Clone, Debug)]
struct Above {
    node: Node,
    image: Option<ImageId>,
    offset: u64,
    /// The child before, if any.
    child: Option<Frame>,
}

/// The way from a root to the current node, which tells what the next node is near to.
#[derive(Debug, Default)]
struct Way {
    above: Vec<Above>,
    /// The root before, if any.
    root: Option<Frame>,
    /// The last offset in each image.
    last: BTreeMap<ImageId, u64>,
}

impl Way {
    /// The sibling before the next node.
    fn sibling(&self) -> Option<Frame> {
        self.above.last().map_or(self.root, |parent| parent.child)
    }

    /// The image of the parent.
    fn image(&self) -> Option<ImageId> {
        self.above.last().and_then(|parent| parent.image)
    }

    /// An offset that the next node in the image is near to.
    fn near(&self, image: ImageId) -> u64 {
        match (self.sibling(), self.above.last()) {
            (Some(Frame::Code(of, offset)), _) if of == image => offset.0,
            (_, Some(parent)) if parent.image == Some(image) => parent.offset,
            _ => self.last.get(&image).copied().unwrap_or(0),
        }
    }

    /// Goes to a child of the last node of the way.
    fn enter(&mut self, node: Node, frame: Frame) {
        match self.above.last_mut() {
            Some(parent) => parent.child = Some(frame),
            None => self.root = Some(frame),
        }
        let (image, offset) = match frame {
            Frame::Code(image, offset) => (Some(image), offset.0),
            Frame::Cut(_) | Frame::Wait(_) => (None, 0),
        };
        if let Some(image) = image {
            self.last.insert(image, offset);
        }
        self.above.push(Above { node, image, offset, child: None });
    }
}

fn put_list<T>(out: &mut Vec<u8>, all: &[T], put: impl Fn(&mut Vec<u8>, &T)) {
    let mut list = Vec::new();
    put_varint(&mut list, all.len() as u64);
    all.iter().for_each(|one| put(&mut list, one));
    put_block(out, &list);
}

fn put_tree(out: &mut Vec<u8>, stacks: &Stacks) {
    let mut images = BTreeSet::new();
    let mut reasons = BTreeSet::new();
    for frame in stacks.distinct_frames() {
        match frame {
            Frame::Code(image, _) => drop(images.insert(*image)),
            other => reasons.extend(reason_text(*other)),
        }
    }
    let images: Vec<ImageId> = images.into_iter().collect();
    let reasons: Vec<String> = reasons.into_iter().collect();
    put_list(out, &images, |out, image| put_text(out, &image.to_string()));
    put_list(out, &reasons, |out, reason| put_text(out, reason));
    let (mut levels, mut kinds, mut offsets) = (Vec::new(), Vec::new(), Vec::new());
    let mut way = Way::default();
    for (node, (parent, frame)) in (0..).zip(stacks.nodes()) {
        let mut up = 0_u64;
        while way.above.last().is_some_and(|above| Some(above.node) != parent) {
            way.above.pop();
            up += 1;
        }
        put_varint(&mut levels, up);
        let kind = match frame {
            Frame::Code(image, _) if way.image() == Some(image) => 0,
            Frame::Code(image, _) => images.binary_search(&image).map_or(0, |at| at + 1),
            other => reason_text(other)
                .and_then(|text| reasons.binary_search(&text).ok())
                .map_or(0, |at| images.len() + at + 1),
        };
        put_varint(&mut kinds, kind as u64);
        if let Frame::Code(image, offset) = frame {
            put_varint(&mut offsets, zigzag(offset.0.wrapping_sub(way.near(image))));
        }
        way.enter(node, frame);
    }
    [levels, kinds, offsets].iter().for_each(|column| put_block(out, column));
}

/// The square that stacks of equal weights would have.
fn even_squares(value: &Value) -> u64 {
    let part = u128::from(value.weight >> 10);
    let even = (part * part).checked_div(value.stacks.into()).unwrap_or(0);
    u64::try_from(even).unwrap_or(u64::MAX)
}

/// The greatest common divisor.
const fn common(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// A thread's name and, each behind a zero byte, the keys and values of its attributes.
fn described(thread: &Thread) -> String {
    let mut text = thread.name.clone();
    for word in thread.attributes.iter().flat_map(|(key, value)| [key, value]) {
        text.push('\0');
        text.push_str(word);
    }
    text
}

/// The name and the attributes of such a text.
fn undescribed(text: &str) -> (String, Attributes) {
    let Some((name, rest)) = text.split_once('\0') else {
        return (text.to_owned(), Attributes::default());
    };
    let words: Vec<String> = rest.split('\0').map(str::to_owned).collect();
    let (pairs, _) = words.as_chunks::<2>();
    let pairs = pairs.iter().map(|[key, value]| (key.clone(), value.clone()));
    (name.to_owned(), Attributes::of(pairs))
}

fn put_values(out: &mut Vec<u8>, stacks: &Stacks) {
    let all: BTreeSet<&Thread> = stacks.values().map(|(_, thread, _)| thread).collect();
    let threads: Vec<&Thread> = all.into_iter().collect();
    put_list(out, &threads, |out, thread| {
        put_text(out, &thread.command);
        put_varint(out, thread.pid.into());
        put_text(out, &described(thread));
        put_varint(out, thread.tid.into());
    });
    let unit = stacks.values().fold(0, |unit, (_, _, value)| common(unit, value.weight)).max(1);
    let mut columns: [Vec<u8>; 5] = Default::default();
    let [nodes, by_thread, counts, weights, squares] = &mut columns;
    let (mut last, mut count) = (0, 0_u64);
    for (node, thread, value) in stacks.values() {
        put_varint(nodes, u64::from(node - last));
        put_varint(by_thread, threads.binary_search(&thread).unwrap_or(0) as u64);
        put_varint(counts, value.stacks);
        put_varint(weights, value.weight / unit);
        put_varint(squares, zigzag(value.squares.wrapping_sub(even_squares(&value))));
        (last, count) = (node, count + 1);
    }
    put_varint(out, count);
    put_varint(out, unit);
    columns.iter().for_each(|column| put_block(out, column));
}

/// Decodes the stacks of a section, which must have this number of nodes.
///
/// # Errors
/// [`DecodeError`] when the bytes are not what [`encode_stacks`] writes.
pub fn decode_stacks(section: &[u8], nodes: u64) -> Result<Stacks, DecodeError> {
    let mut input = Input::new(section);
    if nodes > READ_NODES_MAX {
        return Err(wrong(Damage::Count { count: nodes }));
    }
    let images = take_list(&mut input, |input| {
        input.text()?.parse::<ImageId>().map_err(|_| wrong(Damage::Name))
    })?;
    let reasons = take_list(&mut input, |input| Ok(input.text()?.to_owned()))?;
    let mut tree = Tree { stacks: Stacks::new(), nodes: Vec::new(), leaves: Vec::new() };
    tree.take(&mut input, nodes, &images, &reasons)?;
    let threads = take_list(&mut input, |input| {
        let (command, pid) = (input.text()?.to_owned(), number(input)?);
        let text = input.text()?;
        let (name, attributes) = undescribed(text);
        let thread = Thread { command, pid, name, tid: number(input)?, attributes };
        if described(&thread) == text { Ok(thread) } else { Err(wrong(Damage::Name)) }
    })?;
    take_values(&mut input, &mut tree, &threads)?;
    input.end()?;
    Ok(tree.stacks)
}

/// An offset within a compressed column says nothing, so none is given.
const fn wrong(damage: Damage) -> DecodeError {
    DecodeError { offset: 0, damage }
}

fn number(input: &mut Input<'_>) -> Result<u32, DecodeError> {
    u32::try_from(input.varint()?).map_err(|_| wrong(Damage::Varint))
}

/// Reads a list whose entries ascend.
fn take_list<T: Ord>(
    input: &mut Input<'_>,
    mut one: impl FnMut(&mut Input<'_>) -> Result<T, DecodeError>,
) -> Result<Vec<T>, DecodeError> {
    let plain = take_block_of(input, LIST_BYTES_MAX)?;
    let mut list = Input::new(&plain);
    let count = list.count(1).map_err(|error| wrong(error.damage))?;
    let mut all: Vec<T> = Vec::new();
    for _ in 0..count {
        let next = one(&mut list).map_err(|error| wrong(error.damage))?;
        if all.last().is_some_and(|last| *last >= next) {
            return Err(wrong(Damage::Order));
        }
        all.push(next);
    }
    list.end().map_err(|error| wrong(error.damage))?;
    Ok(all)
}

/// A tree while it is read.
struct Tree {
    stacks: Stacks,
    /// The node of each number in the section. Reasons of a later release are one here, so two
    /// numbers may have one node.
    nodes: Vec<Node>,
    /// Whether the number has no child; such a node must have a value.
    leaves: Vec<bool>,
}

/// What a number in the column of kinds stands for, and whether all columns use it.
struct Kinds<'a> {
    images: &'a [ImageId],
    reasons: Vec<Frame>,
    used: Vec<bool>,
    /// A reason is of a later release, so siblings may be out of order here.
    has_unknown: bool,
}

impl<'a> Kinds<'a> {
    fn new(images: &'a [ImageId], reasons: &[String]) -> Result<Self, DecodeError> {
        let mut has_unknown = false;
        let mut frames = Vec::with_capacity(reasons.len());
        for text in reasons {
            let (frame, is_known) = reason(text).ok_or_else(|| wrong(Damage::Name))?;
            has_unknown |= !is_known;
            frames.push(frame);
        }
        let used = vec![false; images.len() + frames.len()];
        Ok(Self { images, reasons: frames, used, has_unknown })
    }

    /// The image, or the frame that has none.
    fn of(&mut self, kind: u64, parent: Option<ImageId>) -> Result<Result<ImageId, Frame>, Damage> {
        let Some(at) = kind.checked_sub(1) else { return parent.map(Ok).ok_or(Damage::Order) };
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        *self.used.get_mut(at).ok_or(Damage::Count { count: kind })? = true;
        match self.images.get(at) {
            Some(image) if parent == Some(*image) => Err(Damage::Order),
            Some(image) => Ok(Ok(*image)),
            None => {
                let reason = self.reasons.get(at - self.images.len());
                reason.map(|frame| Err(*frame)).ok_or(Damage::Count { count: kind })
            }
        }
    }
}

impl Tree {
    fn take(
        &mut self,
        input: &mut Input<'_>,
        nodes: u64,
        images: &[ImageId],
        reasons: &[String],
    ) -> Result<(), DecodeError> {
        let mut kinds_of = Kinds::new(images, reasons)?;
        let most = nodes * ENTRY_BYTES;
        let mut take = || take_block_of(input, most);
        let blocks = [take()?, take()?, take()?];
        let [levels, kinds, offsets] = &blocks;
        let nodes = capacity(nodes, &[levels, kinds]).map_err(wrong)?;
        let [mut levels, mut kinds, mut offsets] = [levels, kinds, offsets].map(|b| Input::new(b));
        self.nodes.reserve(nodes.min(PREALLOCATED_ENTRIES));
        let mut way = Way::default();
        for _ in 0..nodes {
            let up = column(&mut levels, 0)?;
            let depth = (way.above.len() as u64)
                .checked_sub(up)
                .filter(|depth| *depth < DEPTH_MAX as u64)
                .ok_or_else(|| wrong(Damage::Order))?;
            if let Some(before) = self.leaves.last_mut().filter(|_| up == 0 && depth > 0) {
                *before = false;
            }
            way.above.truncate(usize::try_from(depth).unwrap_or(0));
            let kind = column(&mut kinds, 0)?;
            let frame = match kinds_of.of(kind, way.image()).map_err(wrong)? {
                Ok(image) => {
                    let distance = unzigzag(column(&mut offsets, 0)?);
                    Frame::Code(image, ImageOffset(way.near(image).wrapping_add(distance)))
                }
                Err(frame) => frame,
            };
            if !kinds_of.has_unknown && way.sibling() >= Some(frame) {
                return Err(wrong(Damage::Order));
            }
            let parent = way.above.last().map(|parent| parent.node);
            let node = self.stacks.node(parent, frame).ok_or_else(|| wrong(Damage::Order))?;
            way.enter(node, frame);
            self.nodes.push(node);
            self.leaves.push(true);
        }
        if kinds_of.used.contains(&false) {
            return Err(wrong(Damage::ZeroCount));
        }
        ended(&[levels, kinds, offsets], 0)
    }
}

fn take_values(
    input: &mut Input<'_>,
    tree: &mut Tree,
    threads: &[Thread],
) -> Result<(), DecodeError> {
    let count = input.varint()?;
    if count > VALUES_MAX {
        return Err(wrong(Damage::Count { count }));
    }
    let unit = input.varint()?;
    let most = count * ENTRY_BYTES;
    let mut take = || take_block_of(input, most);
    let blocks = [take()?, take()?, take()?, take()?, take()?];
    let [nodes, by_thread, counts, weights, squares] = &blocks;
    let entries = capacity(count, &[nodes, by_thread, counts, weights, squares]).map_err(wrong)?;
    let mut columns = [nodes, by_thread, counts, weights, squares].map(|b| Input::new(b));
    let mut used = vec![false; threads.len()];
    let (mut last, mut at, mut divisor) = (None, 0_usize, 0);
    for _ in 0..entries {
        let [nodes, by_thread, counts, weights, squares] = &mut columns;
        let distance = usize::try_from(column(nodes, 0)?).unwrap_or(usize::MAX);
        at = at.saturating_add(distance);
        let number = column(by_thread, 0)?;
        if last >= Some((at, number)) {
            return Err(wrong(Damage::Order));
        }
        last = Some((at, number));
        let thread = usize::try_from(number).unwrap_or(usize::MAX);
        let entry = (tree.nodes.get(at), threads.get(thread), used.get_mut(thread));
        let (Some(node), Some(thread), Some(used)) = entry else {
            return Err(wrong(Damage::Order));
        };
        *used = true;
        let stacks = column(counts, 0)?;
        let weight = column(weights, 0)?.checked_mul(unit).ok_or_else(|| wrong(Damage::Varint))?;
        divisor = common(divisor, weight);
        let mut value = Value { stacks, weight, squares: 0 };
        value.squares = even_squares(&value).wrapping_add(unzigzag(column(squares, 0)?));
        if value == Value::default() {
            return Err(wrong(Damage::ZeroCount));
        }
        if let Some(leaf) = tree.leaves.get_mut(at) {
            *leaf = false;
        }
        tree.stacks.add(*node, thread, value);
    }
    if divisor.max(1) != unit || tree.leaves.contains(&true) || used.contains(&false) {
        return Err(wrong(Damage::ZeroCount));
    }
    ended(&columns, 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn code(image: u8, offset: u64) -> Frame {
        Frame::Code(ImageId::from_build_id(&[0x12, image]).unwrap(), ImageOffset(offset))
    }

    fn thread(pid: u32) -> Thread {
        let (command, name) = ("sh".to_owned(), "sh".to_owned());
        Thread { command, pid, name, tid: pid, attributes: Attributes::default() }
    }

    /// Two contexts of one caller, one of them of two threads, and a wait.
    fn documented() -> Stacks {
        let mut stacks = Stacks::new();
        let main = code(0x34, 0x1000);
        stacks.add_stack([main, code(0x34, 0x1100)], &thread(7), Value::of_one(10_000));
        stacks.add_stack([main, code(0x34, 0x1104)], &thread(7), Value::of_one(20_000));
        stacks.add_stack([main, code(0x34, 0x1104)], &thread(9), Value::of_one(10_000));
        stacks.add_stack([main, code(0x34, 0x1104)], &thread(9), Value::of_one(30_000));
        let cut = Frame::Cut(Cut::Truncated);
        let wait = Frame::Wait(Wait::Futex);
        stacks.add_stack([cut, code(0x56, 0x20), wait], &Thread::default(), Value::of_one(70_000));
        stacks
    }

    #[test]
    fn stacks_have_the_documented_bytes() {
        let (bytes, nodes) = encode_stacks(&documented());
        let images = b"\x0b\x0b\x02\x041234\x041256";
        let reasons = b"\x1a\x1a\x02\x0dcut truncated\x0await futex";
        let tree =
            b"\x06\x06\0\0\x01\x02\0\0\x06\x06\x01\0\0\x03\x02\x04\x06\x06\x80\x40\x80\x04\x08\x40";
        let threads = b"\x15\x15\x03\0\0\0\0\x02sh\x07\x02sh\x07\x02sh\x09\x02sh\x09";
        let values = b"\x04\x90\x4e\x04\x04\x01\x01\0\x03\x04\x04\x01\x01\x02\0\x04\x04\x01\x01\x02\x01\x04\x04\x01\x02\x04\x07\x05\x05\0\0\xc4\x02\0";
        let all = [&images[..], reasons, tree, threads, values].concat();
        assert_eq!(bytes.escape_ascii().to_string(), all.escape_ascii().to_string());
        assert_eq!((decode_stacks(&bytes, nodes).unwrap(), nodes), (documented(), 6));
    }

    fn any_stacks() -> impl Strategy<Value = Stacks> {
        let frame = (0_u8..6, any::<u64>()).prop_map(|(kind, offset)| match kind {
            0 => Frame::Cut(Cut::ALL[offset as usize % Cut::ALL.len()]),
            1 => Frame::Wait(Wait::ALL[offset as usize % Wait::ALL.len()]),
            2 => code(1, offset),
            kind => code(kind % 2, offset % 16 * 4),
        });
        let one = (proptest::collection::vec(frame, 1..8), 0_u32..3, any::<u64>(), 0_u32..64);
        proptest::collection::vec(one, 0..30).prop_map(|all| {
            let mut stacks = Stacks::new();
            for (frames, pid, weight, shift) in all {
                let pairs = (0..weight % 3).map(|key| (format!("k{key}"), "ä=".to_owned()));
                let thread = Thread { attributes: Attributes::of(pairs), ..thread(pid) };
                stacks.add_stack(frames, &thread, Value::of_one(weight >> shift));
            }
            stacks
        })
    }

    proptest! {
        #[test]
        fn stacks_read_back(stacks in any_stacks(), wrong in 1_u64..3) {
            let (bytes, nodes) = encode_stacks(&stacks);
            let read = decode_stacks(&bytes, nodes).unwrap();
            prop_assert_eq!(&read, &stacks);
            prop_assert_eq!(nodes, stacks.canonical().len() as u64);
            prop_assert!(decode_stacks(&bytes, nodes + wrong).is_err());
        }

        #[test]
        fn what_reads_is_what_an_encoder_writes(
            stacks in any_stacks(),
            changes in proptest::collection::vec((any::<u16>(), any::<u8>()), 1..4),
        ) {
            let (mut bytes, nodes) = encode_stacks(&stacks);
            for (at, byte) in changes {
                let at = usize::from(at) % bytes.len();
                bytes[at] = byte;
            }
            if let Ok(read) = decode_stacks(&bytes, nodes) {
                let (again, nodes) = encode_stacks(&read);
                prop_assert_eq!(decode_stacks(&again, nodes).unwrap(), read);
            }
            for cut in 0..bytes.len().min(40) {
                let _ = decode_stacks(&bytes[..cut], nodes);
            }
        }
    }

    /// The parts of a section: its blocks, unpacked, and the two numbers behind the fourth list.
    fn section(levels: &[u8], kinds: &[u8], offsets: &[u8], values: [&[u8]; 5]) -> Vec<u8> {
        let mut out = Vec::new();
        put_block(&mut out, b"\x01\x041234");
        put_block(&mut out, b"\0");
        [levels, kinds, offsets].iter().for_each(|column| put_block(&mut out, column));
        put_block(&mut out, b"\x01\0\0\0\0");
        put_varint(&mut out, values[0].len() as u64);
        put_varint(&mut out, 5);
        values.iter().for_each(|column| put_block(&mut out, column));
        out
    }

    #[test]
    fn what_no_encoder_writes_is_refused() {
        let one: [&[u8]; 5] = [b"\x01", b"\0", b"\x01", b"\x01", b"\0"];
        let fine = section(b"\0\0", b"\x01\0", b"\x04\x06", one);
        assert_eq!(decode_stacks(&fine, 2).unwrap().len(), 2);
        for (bytes, what) in [
            (section(b"\0\x02", b"\x01\x01", b"\x04\x06", one), "entries are out of order"),
            (section(b"\x01\0", b"\x01\0", b"\x04\x06", one), "entries are out of order"),
            // The second root is before the first.
            (section(b"\0\x01", b"\x01\x01", b"\x04\x01", one), "entries are out of order"),
            // The image of the parent in the long form.
            (section(b"\0\0", b"\x01\x01", b"\x04\x06", one), "entries are out of order"),
            (section(b"\0\0", b"\x01\x02", b"\x04", one), "2 entries do not fit"),
            (section(b"\0\0", b"\0\0", b"\x04\x06", one), "entries are out of order"),
            (section(b"\0\0", b"\x01\0", b"\x04\x06\x01", one), "bytes follow its end"),
            (section(b"\0\0", b"\x01\0", b"\x04", one), "it ends too early"),
            // A leaf without value.
            (
                section(b"\0\0", b"\x01\0", b"\x04\x06", [b"\0", b"\0", b"\x01", b"\x01", b"\0"]),
                "an entry of zero samples",
            ),
            (
                section(b"\0\0", b"\x01\0", b"\x04\x06", [b"\x02", b"\0", b"\x01", b"\x01", b"\0"]),
                "entries are out of order",
            ),
            (
                section(
                    b"\0\0",
                    b"\x01\0",
                    b"\x04\x06",
                    [b"\x01", b"\x01", b"\x01", b"\x01", b"\0"],
                ),
                "entries are out of order",
            ),
            // Weights whose greatest common divisor is not the unit.
            (
                section(b"\0\0", b"\x01\0", b"\x04\x06", [b"\x01", b"\0", b"\x01", b"\x02", b"\0"]),
                "an entry of zero samples",
            ),
            (
                section(b"\0\0", b"\x01\0", b"\x04\x06", [b"\x01", b"\0", b"\0", b"\0", b"\0"]),
                "an entry of zero samples",
            ),
        ] {
            let error = decode_stacks(&bytes, 2).unwrap_err().damage.to_string();
            assert!(error.starts_with(what), "{error}, not {what}");
        }
    }

    /// Reasons of a later release are their class here, and two of them one frame.
    #[test]
    fn reasons_of_a_later_release_are_read_as_their_class() {
        let mut out = Vec::new();
        put_block(&mut out, b"\0");
        put_block(&mut out, b"\x03\x08cut late\x09wait asia\x09wait moon");
        [&b"\0\0\x01"[..], b"\x01\x02\x03", b""]
            .iter()
            .for_each(|column| put_block(&mut out, column));
        put_block(&mut out, b"\x01\0\0\0\0");
        put_varint(&mut out, 2);
        put_varint(&mut out, 5);
        let columns: [&[u8]; 5] = [b"\x01\x01", b"\0\0", b"\x01\x01", b"\x01\x02", b"\0\0"];
        columns.iter().for_each(|column| put_block(&mut out, column));
        let mut expected = Stacks::new();
        let frames = [Frame::Cut(Cut::Unreadable), Frame::Wait(Wait::Other)];
        let value = Value { stacks: 2, weight: 15, squares: 0 };
        expected.add_stack(frames, &Thread::default(), value);
        assert_eq!(decode_stacks(&out, 3).unwrap(), expected);
    }

    /// Some KB of zeros that would be millions of nodes, values or frames above one another.
    #[test]
    fn a_bomb_is_not_unpacked() {
        let zeros = vec![0; 2 << 20];
        let one: [&[u8]; 5] = [b"\x01", b"\0", b"\x01", b"\x01", b"\0"];
        let claim = |bytes: &[u8], nodes| decode_stacks(bytes, nodes).unwrap_err().damage;
        let wide = section(&zeros, &zeros, &zeros, one);
        assert!(wide.len() < 64 << 10);
        for nodes in [2 << 20, u64::MAX] {
            assert!(matches!(claim(&wide, nodes), Damage::Count { count } if count == nodes));
        }
        assert!(matches!(claim(&wide, 9), Damage::Count { .. }), "a column of 10 bytes a node");
        let ones = [&[1][..], &zeros[1..5000]].concat();
        let deep = section(&zeros[..5000], &ones, &zeros[..5000], one);
        assert!(matches!(claim(&deep, 5000), Damage::Order), "the depth has a limit");
        let twice = [&zeros[..], &zeros].concat();
        let many: [&[u8]; 5] = [&twice; 5];
        let valued = section(b"\0\0", b"\x01\0", b"\x04\x06", many);
        assert!(matches!(claim(&valued, 2), Damage::Count { count: 0x40_0000 }));
    }
}
