//! Builds of one program that a command cannot take together.

use std::collections::BTreeSet;

use image::ImageId;
use profiledb::ImageRecord;
use query::error::quoted;
use query::times::rfc3339;
use report::brief_id;

/// What to type instead, where the procedures of a name are those of builds of one program.
pub(super) fn apart<'a>(
    asked: &str,
    images: impl Iterator<Item = &'a ImageRecord> + Clone,
) -> Option<String> {
    let first = images.clone().next()?;
    let ids: BTreeSet<ImageId> = images.clone().map(|image| image.id).collect();
    let number = images.clone().count();
    if ids.len() != number || images.clone().any(|image| image.path != first.path) {
        return None;
    }
    let each = images.map(|image| {
        let [since, until] = [image.first_seen_unix_s, image.last_seen_unix_s].map(rfc3339);
        format!("{} {} ({since} to {until})", brief_id(&image.id), quoted(asked))
    });
    let each: Vec<String> = each.collect();
    Some(format!(
        "{asked:?} is in {number} builds of {}, whose call stacks are apart; put the id of one \
         before it: {}",
        first.name,
        each.join(", or ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::ImageKind;

    fn record(digit: &str, path: &str, first_seen_unix_s: u64) -> ImageRecord {
        ImageRecord {
            id: digit.repeat(40).parse().unwrap(),
            kind: ImageKind::File,
            name: "orders".to_owned(),
            path: path.to_owned(),
            size_bytes: None,
            first_seen_unix_s,
            last_seen_unix_s: first_seen_unix_s + 60,
        }
    }

    /// The message had both ids in full length, and no words to type.
    #[test]
    fn builds_of_one_program_are_named_with_what_to_type() {
        let both = [record("a", "/opt/orders", 0), record("b", "/opt/orders", 60)];
        assert_eq!(
            apart("find item", both.iter()).unwrap(),
            "\"find item\" is in 2 builds of orders, whose call stacks are apart; put the id of \
             one before it: aaaaaaaa 'find item' (1970-01-01T00:00:00Z to 1970-01-01T00:01:00Z), \
             or bbbbbbbb 'find item' (1970-01-01T00:01:00Z to 1970-01-01T00:02:00Z)"
        );
        let others = [record("a", "/opt/orders", 0), record("b", "/srv/orders", 60)];
        assert_eq!(apart("f", others.iter()), None, "programs of one name");
        let same = [record("a", "/opt/orders", 0), record("a", "/opt/orders", 0)];
        assert_eq!(apart("f", same.iter()), None, "two procedures of one build");
    }
}
