//! Attributes that a program sets for its own threads: labels of Go's goroutines, OpenTelemetry's
//! record of the current request.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Keys with their values, in ascending order of keys, each key once. Neither has a control
/// character, so that no report has to escape them, and no key is empty. Copies share their memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attributes(Option<Arc<[(String, String)]>>);

impl Attributes {
    /// The attributes of these pairs: of a key that comes several times the last value. Control
    /// characters become `?`.
    pub fn of(pairs: impl IntoIterator<Item = (String, String)>) -> Self {
        let plain = |text: String| -> String {
            let printable = |character: char| if character.is_control() { '?' } else { character };
            text.chars().map(printable).collect()
        };
        let pairs = pairs.into_iter().filter(|(key, _)| !key.is_empty());
        let pairs: BTreeMap<String, String> =
            pairs.map(|(key, value)| (plain(key), plain(value))).collect();
        Self((!pairs.is_empty()).then(|| pairs.into_iter().collect()))
    }

    /// Key of the identity of the request that a thread works for, 32 hexadecimal digits.
    pub const TRACE_ID: &str = "trace_id";
    /// Key of the identity of its part of that request, 16 hexadecimal digits.
    pub const SPAN_ID: &str = "span_id";
    /// Key that stands for attributes that are not known, each of them or all.
    pub const LEFT_OUT: &str = "…";

    /// In the place of attributes of which there were too many.
    pub fn more() -> Self {
        Self::of([(Self::LEFT_OUT.to_owned(), "more".to_owned())])
    }

    /// Whether there is the identity of a request.
    pub fn has_request(&self) -> bool {
        self.get(Self::TRACE_ID).is_some()
    }

    /// The same without the identity of a request, which is one of too many.
    pub fn without_request(&self) -> Self {
        let other = self.iter().filter(|(key, _)| !matches!(*key, Self::TRACE_ID | Self::SPAN_ID));
        let other = other.map(|(key, value)| (key.to_owned(), value.to_owned()));
        Self::of(other)
    }

    /// True when there are none.
    pub const fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The keys with their values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let pairs = self.0.as_deref().unwrap_or_default();
        pairs.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.iter().find(|(known, _)| *known == key).map(|(_, value)| value)
    }
}

/// The attributes that are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeptAttributes {
    /// None: nothing is copied of threads.
    Off,
    /// All but the identities of requests, of which there is no end.
    #[default]
    On,
    /// All.
    Traces,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_sorted_plain_and_once() {
        let pairs = [("b", "1\n2"), ("", "x"), ("a\0", ""), ("b", "3")];
        let pairs = pairs.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let attributes = Attributes::of(pairs);
        assert_eq!(attributes.iter().collect::<Vec<_>>(), [("a?", ""), ("b", "3")]);
        assert_eq!((attributes.get("b"), attributes.get("a")), (Some("3"), None));
        assert_eq!(Attributes::of([]), Attributes::default());
        assert!(Attributes::default().is_empty() && !attributes.is_empty());
    }
}
