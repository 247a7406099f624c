//! Numbers of names.

use std::fmt;

use sha2::{Digest as _, Sha256};

/// The number of a name: the first eight bytes of the SHA-256 hash of its parts, each with its
/// length before it, as a signed integer. A host that wants two names to have one number has to try
/// about 2^32 of them.
#[must_use]
pub fn id(parts: &[&str]) -> i64 {
    let mut digest = Digest::default();
    parts.iter().for_each(|part| digest.add(part.as_bytes()));
    let [a, b, c, d, e, f, g, h, ..] = digest.bytes();
    i64::from_be_bytes([a, b, c, d, e, f, g, h])
}

/// A hash of several pieces that depends on where each piece ends.
#[derive(Clone, Default)]
pub struct Digest(Sha256);

impl Digest {
    /// Adds a piece.
    pub fn add(&mut self, piece: &[u8]) {
        self.0.update((piece.len() as u64).to_le_bytes());
        self.0.update(piece);
    }

    fn bytes(self) -> [u8; 32] {
        self.0.finalize().into()
    }

    /// The hash as 32 hexadecimal digits: half of it.
    #[must_use]
    pub fn hex(self) -> String {
        self.bytes().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Digest")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_numbers_that_stay() {
        // Facts of earlier weeks have these numbers.
        assert_eq!(id(&["libc.so.6", "malloc"]), id(&["libc.so.6", "malloc"]));
        assert_ne!(id(&["ab", "c"]), id(&["a", "bc"]));
        assert_eq!(id(&["web"]), 8_149_944_200_263_199_395);
    }
}
