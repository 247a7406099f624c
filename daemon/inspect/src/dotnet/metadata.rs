//! Names of methods, from the metadata of an assembly in memory (ECMA-335, partition II, 22 to 25).

use crate::python::Memory;

/// Most sections of a file.
const SECTIONS_MAX: u16 = 96;
/// Most streams of metadata, and the longest name of a stream with its zeros.
const STREAMS_MAX: u16 = 16;
const STREAM_NAME_MAX: usize = 32;
/// Longest version text in metadata.
const VERSION_MAX: u32 = 256;
/// Longest name that is read, in bytes.
const NAME_MAX: usize = 256;
/// Deepest nesting of types.
const NESTED_MAX: usize = 16;
/// Numbers of tables.
const MODULE: usize = 0;
const TYPE: usize = 2;
const METHOD: usize = 6;
const NESTED: usize = 0x29;
/// Tables up to the last one that is read.
const TABLES: usize = NESTED + 1;
/// Longest row of these, in bytes, with all indices of 4 bytes.
const ROW_MAX: usize = 64;

/// A column of a table.
#[derive(Clone, Copy)]
enum Column {
    /// So many bytes.
    Fixed(u8),
    /// An offset of a text.
    Text,
    /// A number of a GUID.
    Guid,
    /// An offset of bytes.
    Blob,
    /// A row of a table.
    Row(u8),
    /// A row of one of these tables, whose number takes so many bits.
    Coded(u8, &'static [u8]),
}
use Column::{Blob, Coded, Fixed, Guid, Row, Text};

const TYPE_DEF_OR_REF: Column = Coded(2, &[0x02, 0x01, 0x1b]);
const METHOD_DEF_OR_REF: Column = Coded(1, &[0x06, 0x0a]);
const IMPLEMENTATION: Column = Coded(2, &[0x26, 0x23, 0x27]);
const HAS_ATTRIBUTE: Column = Coded(
    5,
    &[
        0x06, 0x04, 0x01, 0x02, 0x08, 0x09, 0x0a, 0x00, 0x0e, 0x17, 0x14, 0x11, 0x1a, 0x1b, 0x20,
        0x23, 0x26, 0x27, 0x28, 0x2a, 0x2c, 0x2b,
    ],
);

/// The columns of each table (ECMA-335, II.22).
const COLUMNS: [&[Column]; TABLES] = [
    &[Fixed(2), Text, Guid, Guid, Guid],
    &[Coded(2, &[0x00, 0x1a, 0x23, 0x01]), Text, Text],
    &[Fixed(4), Text, Text, TYPE_DEF_OR_REF, Row(0x04), Row(0x06)],
    &[Row(0x04)],
    &[Fixed(2), Text, Blob],
    &[Row(0x06)],
    &[Fixed(4), Fixed(2), Fixed(2), Text, Blob, Row(0x08)],
    &[Row(0x08)],
    &[Fixed(2), Fixed(2), Text],
    &[Row(0x02), TYPE_DEF_OR_REF],
    &[Coded(3, &[0x02, 0x01, 0x1a, 0x06, 0x1b]), Text, Blob],
    &[Fixed(2), Coded(2, &[0x04, 0x08, 0x17]), Blob],
    &[HAS_ATTRIBUTE, Coded(3, &[0x06, 0x0a]), Blob],
    &[Coded(1, &[0x04, 0x08]), Blob],
    &[Fixed(2), Coded(2, &[0x02, 0x06, 0x20]), Blob],
    &[Fixed(2), Fixed(4), Row(0x02)],
    &[Fixed(4), Row(0x04)],
    &[Blob],
    &[Row(0x02), Row(0x14)],
    &[Row(0x14)],
    &[Fixed(2), Text, TYPE_DEF_OR_REF],
    &[Row(0x02), Row(0x17)],
    &[Row(0x17)],
    &[Fixed(2), Text, Blob],
    &[Fixed(2), Row(0x06), Coded(1, &[0x14, 0x17])],
    &[Row(0x02), METHOD_DEF_OR_REF, METHOD_DEF_OR_REF],
    &[Text],
    &[Blob],
    &[Fixed(2), Coded(1, &[0x04, 0x06]), Text, Row(0x1a)],
    &[Fixed(4), Row(0x04)],
    &[Fixed(4), Fixed(4)],
    &[Fixed(4)],
    &[Fixed(4), Fixed(8), Fixed(4), Blob, Text, Text],
    &[Fixed(4)],
    &[Fixed(4), Fixed(4), Fixed(4)],
    &[Fixed(8), Fixed(4), Blob, Text, Text, Blob],
    &[Fixed(4), Row(0x23)],
    &[Fixed(4), Fixed(4), Fixed(4), Row(0x23)],
    &[Fixed(4), Text, Blob],
    &[Fixed(4), Fixed(4), Text, Text, IMPLEMENTATION],
    &[Fixed(4), Fixed(4), Text, IMPLEMENTATION],
    &[Row(0x02), Row(0x02)],
];

/// A range of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Area {
    at: u64,
    bytes: u32,
}

/// The metadata of an assembly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata {
    texts: Area,
    /// Where each table begins.
    tables: [u64; TABLES],
    rows: [u32; 64],
    /// Whether offsets of texts, numbers of GUIDs and offsets of bytes have 4 bytes.
    wide: [bool; 3],
    /// What tells this version of the assembly from others (MVID).
    pub version: [u8; 16],
}

impl Metadata {
    /// The metadata of the assembly whose file is at an address. None: it has none that is
    /// readable and complete.
    pub fn of_file<M: Memory>(memory: &M, base: u64) -> Option<Self> {
        let file = File::read(memory, base)?;
        // The loader has placed the sections, or has mapped the file as it is.
        [true, false].into_iter().find_map(|is_placed| {
            let header = file.address(file.header, is_placed)?;
            let directory = read::<8, M>(memory, header.wrapping_add(8))?;
            let [rva, bytes] = ints(&directory);
            Self::read(memory, Area { at: file.address(rva, is_placed)?, bytes })
        })
    }

    /// The metadata in this area.
    fn read<M: Memory>(memory: &M, area: Area) -> Option<Self> {
        let head = read::<16, M>(memory, area.at)?;
        let [magic, .., version_bytes] = ints::<4>(&head);
        (magic == u32::from_le_bytes(*b"BSJB") && version_bytes <= VERSION_MAX).then_some(())?;
        let mut at = 16 + u64::from(version_bytes);
        let [_, count] = shorts(&read::<4, M>(memory, area.at.wrapping_add(at))?);
        at += 4;
        let (mut texts, mut guids, mut tables) = (None, None, None);
        for _ in 0..count.min(STREAMS_MAX) {
            let [begin, bytes] = ints(&read::<8, M>(memory, area.at.wrapping_add(at))?);
            let mut name = [0; STREAM_NAME_MAX];
            let read = memory.read(area.at.wrapping_add(at + 8), &mut name);
            let len = name.get(..read)?.iter().position(|byte| *byte == 0)?;
            at += 8 + (len as u64 / 4 + 1) * 4;
            if begin.checked_add(bytes)? > area.bytes {
                return None;
            }
            let stream = Area { at: area.at.wrapping_add(begin.into()), bytes };
            match name.get(..len)? {
                b"#Strings" => texts = Some(stream),
                b"#GUID" => guids = Some(stream),
                b"#~" => tables = Some(stream),
                _ => {}
            }
        }
        Self::of_tables(memory, tables?, texts?, guids?)
    }

    fn of_tables<M: Memory>(memory: &M, stream: Area, texts: Area, guids: Area) -> Option<Self> {
        let head = read::<24, M>(memory, stream.at)?;
        let [_, _, _, _, _, _, sizes, ..] = head;
        let present = u64::from_le_bytes(*head.get(8..)?.first_chunk()?);
        let mut rows = [0; 64];
        let mut counts = vec![0; 4 * present.count_ones() as usize];
        let begin = stream.at.wrapping_add(24);
        (memory.read(begin, &mut counts) == counts.len()).then_some(())?;
        let (counts, _) = counts.as_chunks::<4>();
        let there = rows.iter_mut().enumerate().filter(|(table, _)| present >> table & 1 != 0);
        there.zip(counts).for_each(|((_, rows), count)| *rows = u32::from_le_bytes(*count));
        let wide = [sizes & 1 != 0, sizes & 2 != 0, sizes & 4 != 0];
        let mut metadata = Self { texts, tables: [0; TABLES], rows, wide, version: [0; 16] };
        let mut at = 24 + 4 * counts.len() as u64;
        for table in 0..TABLES {
            *metadata.tables.get_mut(table)? = stream.at.wrapping_add(at);
            at += u64::from(metadata.count(table)) * metadata.row_bytes(table) as u64;
        }
        // A fourth flag of the sizes says that a word is before the tables.
        (at <= stream.bytes.into() && sizes & 0x40 == 0).then_some(())?;
        let number = metadata.cell(memory, MODULE, 1, 2)?.checked_sub(1)?;
        let place = number.checked_mul(16).filter(|place| *place < guids.bytes)?;
        metadata.version = read(memory, guids.at.wrapping_add(place.into()))?;
        Some(metadata)
    }

    /// The name of the assembly's file.
    pub fn file(&self, memory: &impl Memory) -> Option<String> {
        self.text(memory, self.cell(memory, MODULE, 1, 1)?)
    }

    /// The name of a method, with its type's.
    pub fn method(&self, memory: &impl Memory, number: u32) -> Option<String> {
        let name = self.text(memory, self.cell(memory, METHOD, number, 3)?)?;
        // Methods of a type are in a row, in the order of types.
        let mut of_type = self.last(memory, TYPE, 5, number)?;
        let mut full = name;
        for _ in 0..NESTED_MAX {
            let name = self.text(memory, self.cell(memory, TYPE, of_type, 1)?)?;
            full = format!("{name}.{full}");
            let nested = self.last(memory, NESTED, 0, of_type);
            let is_nested = |row: &u32| self.cell(memory, NESTED, *row, 0) == Some(of_type);
            let Some(row) = nested.filter(is_nested) else {
                let space = self.text(memory, self.cell(memory, TYPE, of_type, 2)?)?;
                return Some(if space.is_empty() { full } else { format!("{space}.{full}") });
            };
            of_type = self.cell(memory, NESTED, row, 1)?;
        }
        None
    }

    /// The last row of a table whose column, by which the table is sorted, is no greater.
    fn last(&self, memory: &impl Memory, table: usize, column: usize, of: u32) -> Option<u32> {
        let (mut low, mut high) = (0, self.count(table));
        while low < high {
            let middle = low + (high - low) / 2;
            match self.cell(memory, table, middle + 1, column)? <= of {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        (low > 0).then_some(low)
    }

    fn count(&self, table: usize) -> u32 {
        self.rows.get(table).copied().unwrap_or(0)
    }

    fn column_bytes(&self, column: Column) -> usize {
        let [texts, guids, blobs] = self.wide;
        let size = |is_wide| if is_wide { 4 } else { 2 };
        match column {
            Fixed(bytes) => bytes.into(),
            Text => size(texts),
            Guid => size(guids),
            Blob => size(blobs),
            Row(table) => size(self.count(table.into()) >= 1 << 16),
            Coded(bits, of) => {
                let rows = of.iter().map(|table| self.count((*table).into())).max();
                size(rows.unwrap_or(0) >= 1 << (16 - bits))
            }
        }
    }

    fn row_bytes(&self, table: usize) -> usize {
        let columns = COLUMNS.get(table).copied().unwrap_or_default();
        columns.iter().map(|column| self.column_bytes(*column)).sum()
    }

    /// A column of a row, the first of which is 1.
    fn cell(&self, memory: &impl Memory, table: usize, row: u32, column: usize) -> Option<u32> {
        (1..=self.count(table)).contains(&row).then_some(())?;
        let columns = COLUMNS.get(table)?;
        let before: usize =
            columns.get(..column)?.iter().map(|column| self.column_bytes(*column)).sum();
        let bytes = self.column_bytes(*columns.get(column)?).min(4);
        let into = u64::from(row - 1) * self.row_bytes(table).min(ROW_MAX) as u64;
        let at = self.tables.get(table)?.wrapping_add(into + before as u64);
        let mut value = [0; 4];
        let read = memory.read(at, value.get_mut(..bytes)?);
        (read == bytes).then(|| u32::from_le_bytes(value))
    }

    fn text(&self, memory: &impl Memory, offset: u32) -> Option<String> {
        let left = self.texts.bytes.checked_sub(offset)? as usize;
        let mut bytes = [0; NAME_MAX];
        let bytes = bytes.get_mut(..left.min(NAME_MAX))?;
        let read = memory.read(self.texts.at.wrapping_add(offset.into()), bytes);
        let bytes = bytes.get(..read)?;
        let len = bytes.iter().position(|byte| *byte == 0)?;
        let text = std::str::from_utf8(bytes.get(..len)?).ok()?;
        (!text.contains(char::is_control)).then(|| text.to_owned())
    }
}

/// A section: where it is in memory, its size, where it is in the file.
#[derive(Clone, Copy)]
struct Section([u32; 3]);

/// The parts of an assembly's file that tell where its metadata is.
struct File {
    base: u64,
    sections: Vec<Section>,
    /// Relative address of the header of the Common Language Infrastructure.
    header: u32,
}

impl File {
    /// The file at an address (ECMA-335, II.25).
    fn read<M: Memory>(memory: &M, base: u64) -> Option<Self> {
        (base != 0 && read::<2, M>(memory, base)? == *b"MZ").then_some(())?;
        let new = u32::from_le_bytes(read(memory, base.wrapping_add(0x3c))?);
        let at = base.wrapping_add(new.into());
        let head = read::<26, M>(memory, at)?;
        (head.first_chunk() == Some(b"PE\0\0")).then_some(())?;
        let short = |at: usize| Some(u16::from_le_bytes(*head.get(at..)?.first_chunk()?));
        let (sections, optional, magic) = (short(6)?, short(20)?, short(24)?);
        // The header is the fifteenth directory.
        let directory = 24 + if magic == 0x20b { 112 } else { 96 } + 14 * 8;
        let [header] = ints(&read::<4, M>(memory, at.wrapping_add(directory))?);
        let table = at.wrapping_add(24 + u64::from(optional));
        let sections = (0..sections.min(SECTIONS_MAX)).map(|number| {
            let section = read::<40, M>(memory, table.wrapping_add(40 * u64::from(number)))?;
            let [_, _, size, begin, file_size, file_begin, ..] = ints::<10>(&section);
            Some(Section([begin, size.max(file_size), file_begin]))
        });
        let sections = sections.collect::<Option<Vec<Section>>>()?;
        (header != 0).then_some(Self { base, sections, header })
    }

    /// The address of a relative address, where sections are placed or not.
    fn address(&self, relative: u32, is_placed: bool) -> Option<u64> {
        if is_placed {
            return self.base.checked_add(relative.into());
        }
        self.sections.iter().find_map(|Section([begin, size, file_begin])| {
            let into = relative.checked_sub(*begin).filter(|into| into < size)?;
            self.base.checked_add(u64::from(*file_begin) + u64::from(into))
        })
    }
}

fn read<const N: usize, M: Memory>(memory: &M, at: u64) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    (memory.read(at, &mut bytes) == N).then_some(bytes)
}

fn ints<const N: usize>(bytes: &[u8]) -> [u32; N] {
    let mut ints = [0; N];
    let (parts, _) = bytes.as_chunks::<4>();
    ints.iter_mut().zip(parts).for_each(|(to, part)| *to = u32::from_le_bytes(*part));
    ints
}

fn shorts(bytes: &[u8; 4]) -> [u16; 2] {
    let [a, b, c, d] = *bytes;
    [u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d])]
}
