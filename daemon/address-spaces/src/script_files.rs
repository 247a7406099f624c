//! Functions that runtimes run as images: a source file is an image, and a function a procedure of
//! it.
//!
//! The id comes from the file's path, so the same program has the same id on all hosts. An offset
//! is a [`SourcePlace`].

use crate::mapped_files::Image;
use crate::users::Payer;
use image::{ImageId, ImageKind, ImageOffset};
use inspect::questions::{Language, RuntimeFunction};
use model::SourcePlace;
use profiledb::ImageRecord;
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Files that are remembered; beyond, all are made again.
const FILES_MAX: usize = 4096;
/// Longest name of a function that is stored, in characters.
const NAME_MAX: usize = 256;

/// The images of source files.
#[derive(Debug, Default)]
pub struct ScriptFiles(HashMap<(String, Payer, Language), Arc<Image>>);

/// A line of a function.
#[derive(Debug)]
pub struct ScriptPlace {
    /// The file.
    pub image: Arc<Image>,
    /// The place.
    pub offset: ImageOffset,
    /// Offsets of the function.
    pub range: Range<u64>,
    /// Its name.
    pub name: String,
}

impl ScriptFiles {
    /// The place of a line that a function executes in a process of that user.
    pub fn place(&mut self, function: &RuntimeFunction, line: u32, user: Payer) -> ScriptPlace {
        let hash = crc32c::crc32c(function.name.as_bytes());
        // The bits that count.
        let hash = if function.first_line == 0 { hash } else { hash >> 10 };
        let place = SourcePlace { first_line: function.first_line, name: hash, line };
        ScriptPlace {
            image: self.image(&function.file, user, function.language),
            offset: place.offset(),
            range: place.function(),
            name: printable(&function.name).take(NAME_MAX).collect(),
        }
    }

    /// Function names come from a process's memory, so they must not affect other users' images of
    /// the file.
    fn image(&mut self, path: &str, user: Payer, language: Language) -> Arc<Image> {
        let key = (path.to_owned(), user, language);
        if let Some(image) = self.0.get(&key) {
            return image.clone();
        }
        if self.0.len() >= FILES_MAX {
            self.0.clear();
        }
        // A name in brackets is not a path: `<string>`, `<frozen importlib._bootstrap>`; nor is a
        // module that comes with node: `node:internal/modules/cjs/loader`. A class of Java has the
        // name of its file below the folder of its package, wherever that is. Of .NET only the name
        // of the assembly's file is known.
        let is_named = path.starts_with('<') || path.starts_with("node:");
        let is_path = !is_named && !matches!(language, Language::Java | Language::DotNet);
        let name = path.rsplit('/').next().filter(|name| !is_named && !name.is_empty());
        let language = language.name();
        let whose = match user {
            Payer::User(0) | Payer::Nobody => language.to_owned(),
            Payer::User(user) => format!("{language} of user {user}"),
            Payer::Unknown => format!("{language} of an unknown user"),
        };
        let image = Arc::new(Image {
            id: ImageId::from_name(path, &whose),
            kind: ImageKind::File,
            name: printable(name.unwrap_or(path)).collect(),
            path: if is_path { ImageRecord::escape_path(Path::new(path)) } else { String::new() },
            size_bytes: None,
            procedures: None,
        });
        self.0.insert(key, image.clone());
        image
    }
}

/// Text without control characters, so that no report has to escape it.
fn printable(text: &str) -> impl Iterator<Item = char> {
    text.chars().map(|c| if c.is_control() { '?' } else { c })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(file: &str, name: &str, first_line: u32) -> RuntimeFunction {
        RuntimeFunction {
            language: Language::Python,
            file: file.into(),
            name: name.into(),
            first_line,
        }
    }

    #[test]
    fn a_function_has_offsets_that_no_other_has() {
        let mut files = ScriptFiles::default();
        let outer = files.place(&function("/x/a.py", "outer", 3), 9, Payer::User(0));
        let inner = files.place(&function("/x/a.py", "outer.<locals>.inner", 5), 6, Payer::User(0));
        let beside =
            files.place(&function("/x/a.py", "outer.<locals>.<lambda>", 5), 5, Payer::User(0));
        assert_eq!(outer.offset.0 & 0xf_ffff, 9, "the line is in the offset");
        let places = [&outer, &inner, &beside];
        for (number, place) in places.iter().enumerate() {
            for (other, it) in places.iter().enumerate() {
                assert_eq!(place.range.contains(&it.offset.0), number == other, "{number} {other}");
            }
        }
        assert_eq!(outer.image.id, inner.image.id);
        let image = &outer.image;
        assert_eq!((image.name.as_str(), image.path.as_str()), ("a.py", "/x/a.py"));
        let strangers = files.place(&function("/x/a.py", "outer", 3), 9, Payer::User(7));
        assert_ne!(strangers.image.id, outer.image.id);
        let other = files.place(&function("/y/a.py", "outer", 3), 9, Payer::User(0));
        assert_ne!(other.image.id, outer.image.id);
    }

    #[test]
    fn what_a_stranger_names_is_text_of_bounded_length() {
        let mut files = ScriptFiles::default();
        let long = "f\u{1b}".repeat(1000);
        let place = files.place(&function("<string>", &long, u32::MAX), u32::MAX, Payer::User(0));
        assert_eq!((place.name.len(), place.name.contains('\u{1b}')), (NAME_MAX, false));
        assert_eq!((place.image.name.as_str(), place.image.path.as_str()), ("<string>", ""));
        assert!(place.range.contains(&place.offset.0) && place.range.end <= 1 << 62);
        let place = files.place(&function("a\n/b/", "f", 1), 1, Payer::User(0));
        assert_eq!((place.image.name.as_str(), place.image.path.as_str()), ("a?/b/", "a\\x0a/b/"));
        for number in 0..2 * FILES_MAX {
            files.place(&function(&number.to_string(), "f", 1), 1, Payer::User(0));
        }
        assert!(files.0.len() <= FILES_MAX);
    }
}
