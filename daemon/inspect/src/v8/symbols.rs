//! The symbols that V8's build makes for debuggers.

use image::{Export, ImageOffset, Layout as FileLayout, prefixed_exports_of_file};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;

/// Begin of the names of those symbols.
const PREFIX: &str = "v8dbg_";
/// Begin of the names of the parts of a version (`v8::internal::Version`).
const VERSION: &str = "_ZN2v88internal7Version6";

/// The values of a file's symbols, by their names without `v8dbg_`.
#[derive(Debug, Default)]
pub struct Symbols {
    values: BTreeMap<String, i32>,
    version: [Option<i32>; 3],
}

impl Symbols {
    /// The symbols of a file. None: it has none.
    pub fn of_file(file: &File) -> Option<Self> {
        let found = prefixed_exports_of_file(file, PREFIX).ok()?;
        if found.is_empty() {
            return None;
        }
        let layout = FileLayout::of_file(file).ok()?;
        // What is zero at the start is in no file.
        let value = |export: &Export| {
            let mut word = [0; 4];
            if let Some(ImageOffset(at)) = layout.vaddr_to_file_offset(export.vaddr) {
                file.read_exact_at(&mut word, at).ok()?;
            }
            Some(i32::from_le_bytes(word))
        };
        let version = prefixed_exports_of_file(file, VERSION).ok()?;
        let part = |name: &str| version.get(&format!("{VERSION}{name}_E")).and_then(value);
        let values = found.iter().filter_map(|(name, export)| {
            Some((name.strip_prefix(PREFIX)?.to_owned(), value(export)?))
        });
        Some(Self { values: values.collect(), version: ["major", "minor", "build"].map(part) })
    }

    /// Symbols with these values.
    pub fn of_values(
        values: impl IntoIterator<Item = (String, i32)>,
        (major, minor, build): (i32, i32, i32),
    ) -> Self {
        let version = [major, minor, build].map(Some);
        Self { values: values.into_iter().collect(), version }
    }

    /// Major and minor number, and the build.
    pub fn version(&self) -> Option<(u32, u32, u32)> {
        let [major, minor, build] = self.version.map(|part| u32::try_from(part?).ok());
        Some((major?, minor?, build?))
    }

    /// The value of the symbol with this name.
    pub fn value(&self, name: &str) -> Option<i32> {
        self.values.get(name).copied()
    }

    /// The values of all symbols whose names begin so.
    fn begins<'a>(&'a self, begin: &'a str) -> impl Iterator<Item = i32> + 'a {
        let from = self.values.range(begin.to_owned()..);
        from.take_while(move |(name, _)| name.starts_with(begin)).map(|(_, value)| *value)
    }

    /// The value of the first symbol whose name begins so, as an offset: the ends of names are
    /// types of fields, which change their own names.
    pub fn offset(&self, begin: &str) -> Option<u64> {
        self.begins(begin).next().and_then(|value| u64::try_from(value).ok())
    }

    /// Likewise as the number of a type.
    pub fn kind(&self, begin: &str) -> Option<u16> {
        self.begins(begin).next().and_then(|value| u16::try_from(value).ok())
    }

    /// The least and the greatest of such numbers.
    pub fn kinds(&self, begin: &str) -> Option<[u16; 2]> {
        let kinds = || self.begins(begin).filter_map(|value| u16::try_from(value).ok());
        Some([kinds().min()?, kinds().max()?])
    }
}
