//! Bytes as text without loss: each byte is the character of its number (ISO 8859-1). Paths may
//! have any bytes, and most have only letters, so a recording stays readable.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bytes that are serialized as such text.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Bytes(#[serde(with = "crate::latin1")] pub Vec<u8>);

/// For `#[serde(with)]`.
///
/// # Errors
/// The serializer's error.
pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&bytes.iter().map(|byte| char::from(*byte)).collect::<String>())
}

/// For `#[serde(with)]`.
///
/// # Errors
/// The deserializer's error, and an error for text with a character beyond U+00FF.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let byte = |c: char| u8::try_from(u32::from(c));
    let bytes: Result<Vec<u8>, _> = text.chars().map(byte).collect();
    bytes.map_err(|_| serde::de::Error::custom("a character beyond U+00FF stands for no byte"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_comes_back_and_no_other_character_does() {
        let all = Bytes((0..=255).collect());
        let text = serde_json::to_string(&all).unwrap();
        assert_eq!(serde_json::from_str::<Bytes>(&text).unwrap(), all);
        assert_eq!(serde_json::to_string(&Bytes(b"/bin/x".into())).unwrap(), "\"/bin/x\"");
        assert!(serde_json::from_str::<Bytes>("\"\u{100}\"").is_err());
    }
}
