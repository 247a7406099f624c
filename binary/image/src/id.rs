//! Image ids: identity of one build of one image.

use std::fmt;
use std::str::FromStr;

use xxhash_rust::xxh3::Xxh3;

use crate::ImageError;

/// Longest GNU build id kept, in bytes: a SHA-1, and the kernel's `BUILD_ID_SIZE_MAX`
/// (include/linux/buildid.h, since 5.12), so that ids from `perf_event_open` and from files agree.
const BUILD_ID_MAX: usize = 20;
/// Bytes of a hash of content or of a name: XXH3's 128 bits (xxHash specification 0.1.1, stable
/// since 0.8.0) rule out an accidental collision. The hash is not cryptographic and need not be: an
/// attacker who finds a collision passes for a file without build id only. XXH3 hashes 100 MB of
/// code without build id, a Rust compiler's say, ten times as fast as SHA-256, and the daemon waits
/// for it.
const HASH_LEN: usize = 16;

/// Between the hex of a build id and the hash of the program headers.
const HEADERS_MARK: &str = "-p";
/// Between those and the number of the user who owns the file.
const OWNER_MARK: &str = "-u";
/// Digits that are enough for people.
const SHORT_DIGITS: usize = 8;
const TEXT_PREFIX: &str = "text-";
const NAME_PREFIX: &str = "name-";
const UNRESOLVED_PREFIX: &str = "none-";

/// Identity of a build of an image. A rebuilt program is another image.
///
/// The text form ([`fmt::Display`], [`FromStr`]) has only `[0-9a-z-]`, so it can name a file:
///
/// - a GNU build id: its lower-case hex, 2 to 40 digits. For a file with program headers a hash of
///   these headers follows, as `-p` and 8 hex digits: `patchelf`, BOLT and `ld --build-id=0x...`
///   make files that share a build id and have their code at different addresses;
/// - a GNU build id that a user's file has: the same, `-u` and the number of the user. Anybody can
///   write a file with any build id, so only files that root alone can write have the id without
///   owner, and the files of one user never pass for those of another;
/// - a hash of the code, for a file without build id: `text-` and 32 hex digits;
/// - a hash of a name, for an image that is not a file with code (a kernel without notes, a BPF
///   program, the idle loop, a source file that an interpreter runs), or a file that was removed
///   before it could be read: `name-` and 32 hex digits;
/// - a hash of a program's name and a reason, for samples of that program whose image is not known
///   for that reason: `none-` and 32 hex digits.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ImageId {
    origin: Origin,
    /// Number of `bytes` in use; the rest are zero, so that derived comparison is right.
    len: u8,
    bytes: [u8; BUILD_ID_MAX],
    /// Hash of the program headers of a file with a build id; None: the id is no build id, or not
    /// from a file (the running kernel's), or from a file without program headers (a module).
    headers: Option<u32>,
    /// User who vouches for a build id; None: root, or the id is no build id.
    owner: Option<u32>,
}

#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Origin {
    BuildId,
    Text,
    Name,
    Unresolved,
}

impl ImageId {
    /// The id of an image that has a GNU build id (the descriptor of an `NT_GNU_BUILD_ID` note).
    ///
    /// `None` unless it has 1 to 20 bytes of which one is not zero: linkers reserve the note as
    /// zeroes and fill it in last, so an id of zeroes identifies nothing.
    pub fn from_build_id(bytes: &[u8]) -> Option<Self> {
        if bytes.iter().all(|&byte| byte == 0) {
            return None;
        }
        Self::new(Origin::BuildId, bytes)
    }

    /// The id of an image without build id, from its code. The id depends on the concatenation of
    /// `parts`, not on where one part ends and the next begins.
    pub fn from_text(parts: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Self {
        let mut hasher = TextHasher::new();
        for part in parts {
            hasher.update(part.as_ref());
        }
        hasher.finish()
    }

    /// The id of an image that is not a file, from its name and a salt that distinguishes images of
    /// one name (a kernel's release and version; a BPF program's tag).
    pub fn from_name(name: &str, salt: &str) -> Self {
        Self::from_hash(Origin::Name, &hash_both(name, salt))
    }

    /// The id for samples of a program whose image is not known, for this reason.
    pub fn unresolved(program: &str, reason: &str) -> Self {
        Self::from_hash(Origin::Unresolved, &hash_both(program, reason))
    }

    /// True for ids that [`ImageId::unresolved`] makes: their samples are of unknown code.
    pub fn is_unresolved(&self) -> bool {
        self.origin == Origin::Unresolved
    }

    /// True for ids that [`ImageId::from_name`] makes: nothing of the code is known by them.
    pub fn is_name(&self) -> bool {
        self.origin == Origin::Name
    }

    /// The GNU build id, if the id was made from one.
    pub fn build_id(&self) -> Option<&[u8]> {
        (self.origin == Origin::BuildId).then(|| self.bytes())
    }

    /// The same build id in a file with program headers of this hash. Ids that were not made from a
    /// build id stay as they are.
    #[must_use]
    pub(crate) fn with_headers(self, hash: u32) -> Self {
        Self { headers: Some(hash).filter(|_| self.origin == Origin::BuildId), ..self }
    }

    /// Whether a file that was identified as `found` is this build, whoever owns the file. Where
    /// either id lacks the hash of program headers, equal build ids suffice.
    pub fn is_build(&self, found: &Self) -> bool {
        let headers = self.headers.zip(found.headers);
        self.alone() == found.alone() && headers.is_none_or(|(one, other)| one == other)
    }

    /// The id as reports show it: the first 8 digits, the hash of program headers, and the owner.
    pub fn short(&self) -> String {
        self.digits().chars().take(SHORT_DIGITS).collect::<String>() + &self.marks()
    }

    /// What follows a build id: the hash of program headers, and the owner.
    fn marks(&self) -> String {
        let headers = self.headers.map(|hash| format!("{HEADERS_MARK}{hash:08x}"));
        let owner = self.owner.map(|owner| format!("{OWNER_MARK}{owner}"));
        headers.unwrap_or_default() + &owner.unwrap_or_default()
    }

    /// Whether somebody who wrote `asked`, at least 4 characters, may mean this id: the beginning
    /// of its text or of its digits, or what [`Self::short`] shows.
    pub fn is_meant_by(&self, asked: &str) -> bool {
        let is_part = || self.to_string().starts_with(asked) || self.short() == asked;
        self.digits().starts_with(asked) || (asked.contains('-') && is_part())
    }

    fn digits(&self) -> String {
        self.bytes().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The build id without the hash of program headers and without owner; another id as it is. By
    /// it distributions and debug files know the build.
    #[must_use]
    pub fn alone(self) -> Self {
        Self { headers: None, owner: None, ..self }
    }

    /// The same build as a file of this user has it; None: a file that root alone can write. Ids
    /// that were not made from a build id stay as they are: they come from the content.
    #[must_use]
    pub fn owned_by(self, owner: Option<u32>) -> Self {
        Self { owner: owner.filter(|_| self.origin == Origin::BuildId), ..self }
    }

    /// The user whose file has the build id; None: root's, or no build id.
    pub fn owner(&self) -> Option<u32> {
        self.owner
    }

    fn new(origin: Origin, from: &[u8]) -> Option<Self> {
        let mut bytes = [0; BUILD_ID_MAX];
        bytes.get_mut(..from.len())?.copy_from_slice(from);
        let len = u8::try_from(from.len()).ok()?;
        (len > 0).then_some(Self { origin, len, bytes, headers: None, owner: None })
    }

    fn from_hash(origin: Origin, hash: &Xxh3) -> Self {
        let mut bytes = [0; BUILD_ID_MAX];
        for (to, from) in bytes.iter_mut().zip(hash.digest128().to_be_bytes()) {
            *to = from;
        }
        Self { origin, len: HASH_LEN as u8, bytes, headers: None, owner: None }
    }

    fn bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }
}

/// The lengths distinguish ("ab", "c") from ("a", "bc").
fn hash_both(first: &str, second: &str) -> Xxh3 {
    let mut hash = Xxh3::new();
    for part in [first, second] {
        hash.update(&(part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    }
    hash
}

/// [`ImageId::from_text`] for code that comes a piece at a time.
pub(crate) struct TextHasher(Xxh3);

impl TextHasher {
    pub(crate) fn new() -> Self {
        Self(Xxh3::new())
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn finish(self) -> ImageId {
        ImageId::from_hash(Origin::Text, &self.0)
    }
}

impl fmt::Display for ImageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.origin {
            Origin::BuildId => "",
            Origin::Text => TEXT_PREFIX,
            Origin::Name => NAME_PREFIX,
            Origin::Unresolved => UNRESOLVED_PREFIX,
        })?;
        f.write_str(&self.digits())?;
        f.write_str(&self.marks())
    }
}

impl fmt::Debug for ImageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ImageId({self})")
    }
}

impl FromStr for ImageId {
    type Err = ImageError;

    /// # Errors
    /// [`ImageError::BadId`] for anything that [`fmt::Display`] does not write.
    fn from_str(text: &str) -> Result<Self, ImageError> {
        parse(text).ok_or_else(|| ImageError::BadId { text: text.chars().take(64).collect() })
    }
}

fn parse(text: &str) -> Option<ImageId> {
    let (origin, hex) = if let Some(hex) = text.strip_prefix(TEXT_PREFIX) {
        (Origin::Text, hex)
    } else if let Some(hex) = text.strip_prefix(NAME_PREFIX) {
        (Origin::Name, hex)
    } else if let Some(hex) = text.strip_prefix(UNRESOLVED_PREFIX) {
        (Origin::Unresolved, hex)
    } else {
        (Origin::BuildId, text)
    };
    let (hex, owner) = match hex.split_once(OWNER_MARK) {
        Some((hex, owner)) if origin == Origin::BuildId => (hex, Some(number(owner)?)),
        _ => (hex, None),
    };
    let (hex, headers) = match hex.split_once(HEADERS_MARK) {
        Some((hex, hash)) if origin == Origin::BuildId => (hex, Some(hash_of(hash)?)),
        _ => (hex, None),
    };
    if hex.len() > 2 * BUILD_ID_MAX || !hex.len().is_multiple_of(2) {
        return None;
    }
    let bytes: Vec<u8> = hex
        .as_bytes()
        .chunks_exact(2)
        .map(|pair| match pair {
            [high, low] => Some((nibble(*high)? << 4) | nibble(*low)?),
            _ => None,
        })
        .collect::<Option<_>>()?;
    match origin {
        Origin::BuildId => {
            Some(ImageId { headers, ..ImageId::from_build_id(&bytes)?.owned_by(owner) })
        }
        _ if bytes.len() == HASH_LEN => ImageId::new(origin, &bytes),
        _ => None,
    }
}

/// A number as [`fmt::Display`] writes it: no sign, no leading zero.
fn number(text: &str) -> Option<u32> {
    let number: u32 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

/// 8 lower-case hex digits.
fn hash_of(text: &str) -> Option<u32> {
    let hash = u32::from_str_radix(text, 16).ok()?;
    (format!("{hash:08x}") == text).then_some(hash)
}

fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_build_id_has_1_to_20_bytes_not_all_zero() {
        assert!(ImageId::from_build_id(&[]).is_none());
        assert!(ImageId::from_build_id(&[0; 20]).is_none());
        assert!(ImageId::from_build_id(&[1; 21]).is_none());
        let id = ImageId::from_build_id(&[0, 0xab]).unwrap();
        assert_eq!(id.to_string(), "00ab");
        assert_eq!(id.build_id(), Some(&[0, 0xab][..]));
        // Trailing zeroes count: these are two builds.
        assert_ne!(ImageId::from_build_id(&[0, 0xab, 0]), Some(id));
    }

    /// The first file with a build id gave its name to the samples of all others with it.
    #[test]
    fn a_build_id_in_a_users_file_is_another_image() {
        let id = ImageId::from_build_id(&[0, 0xab]).unwrap();
        let owned = id.owned_by(Some(1000));
        assert_eq!(owned.to_string(), "00ab-u1000");
        assert!(owned != id && owned != id.owned_by(Some(1001)) && owned.alone() == id);
        assert_eq!((owned.build_id(), owned.owner()), (id.build_id(), Some(1000)));
        let text = ImageId::from_text(["abcdef"]);
        assert_eq!(text.owned_by(Some(1000)), text, "content cannot be claimed");
    }

    /// patchelf leaves the build id, and moves the segments.
    #[test]
    fn program_headers_tell_apart_builds_of_one_build_id() {
        let id = ImageId::from_build_id(&[0, 0xab]).unwrap();
        let (one, other) = (id.with_headers(0x1f), id.with_headers(0x20));
        assert_eq!(one.to_string(), "00ab-p0000001f");
        assert_eq!(one.owned_by(Some(7)).to_string(), "00ab-p0000001f-u7");
        assert!(one != other && !one.is_build(&other) && one.is_build(&one.owned_by(Some(7))));
        assert!(one.is_build(&id) && id.is_build(&other), "a kernel's id has no headers");
        assert_eq!(one.owned_by(Some(7)).alone(), id);
        for asked in ["00ab", "00ab-p0000001f", "00ab-p0"] {
            assert!(one.is_meant_by(asked), "{asked}");
        }
        let long = ImageId::from_build_id(&[0xcd; 20]).unwrap().with_headers(0x1f);
        assert_eq!(long.short(), "cdcdcdcd-p0000001f");
        assert!(long.is_meant_by(&long.short()) && !long.is_meant_by("cdcdcdcd-p00000020"));
        let text = ImageId::from_text(["abcdef"]);
        assert_eq!(text.with_headers(1), text);
    }

    #[test]
    fn the_hash_of_text_does_not_see_the_parts() {
        let whole = ImageId::from_text(["abcdef"]);
        assert_eq!(ImageId::from_text(["abc", "", "def"]), whole);
        assert_ne!(ImageId::from_text(["abcdeg"]), whole);
        // xxhsum -H2 of "abcdef": the id is a format on disk, so it must never change.
        assert_eq!(whole.to_string(), "text-389197a55db2b2e4da35a6714d34f8a2");
        assert_eq!(whole.build_id(), None);
    }

    #[test]
    fn names_and_salts_do_not_run_together() {
        assert_ne!(ImageId::from_name("ab", "c"), ImageId::from_name("a", "bc"));
        assert_ne!(ImageId::from_name("a", ""), ImageId::from_name("", "a"));
        let id = ImageId::from_name("[kernel]", "6.18.0");
        assert!(id.to_string().starts_with("name-"));
        assert_eq!(id, ImageId::from_name("[kernel]", "6.18.0"));
        let none = ImageId::unresolved("[kernel]", "6.18.0");
        assert!(none != id && none.is_unresolved() && !id.is_unresolved());
    }

    #[test]
    fn other_text_is_no_id() {
        for bad in [
            "",
            "0",
            "00",
            "0x12",
            "AB",
            "text-",
            "text-00",
            "name-zz",
            "../etc",
            "é",
            "00ab-u",
            "00ab-u01",
            "00ab-p",
            "00ab-p1f",
            "00ab-p0000001F",
            "00ab-u1-p0000001f",
            "00ab-u+1",
            "00ab-u4294967296",
            "-u1",
            "text-389197a55db2b2e4da35a6714d34f8a2-u1",
            "123456789012345678901234567890123456789012",
        ] {
            let error = bad.parse::<ImageId>().unwrap_err();
            assert!(matches!(error, ImageError::BadId { .. }), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn the_text_form_reads_back(
            bytes in prop::collection::vec(any::<u8>(), 1..=20),
            name: String,
            user: u32,
        ) {
            let ids = [
                ImageId::from_build_id(&bytes),
                ImageId::from_build_id(&bytes).map(|id| id.owned_by(Some(user))),
                ImageId::from_build_id(&bytes).map(|id| id.with_headers(user)),
                ImageId::from_build_id(&bytes)
                    .map(|id| id.with_headers(user).owned_by(Some(user))),
                Some(ImageId::from_text([&bytes])),
                Some(ImageId::from_name(&name, "")),
                Some(ImageId::unresolved(&name, "no_mapping")),
            ];
            for id in ids.into_iter().flatten() {
                let text = id.to_string();
                prop_assert!(text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'z' | b'-')));
                prop_assert!(text.len() <= 62);
                prop_assert_eq!(text.parse::<ImageId>().unwrap(), id);
            }
        }

        #[test]
        fn no_text_panics(text: String) {
            let _ = text.parse::<ImageId>();
        }
    }
}
