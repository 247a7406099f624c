//! As much JSON as the benchmarks need: values to write, and single numbers read out of reports.

/// A string.
pub fn text(value: &str) -> String {
    let mut quoted = String::from("\"");
    for character in value.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            character if character.is_control() => {
                quoted += &format!("\\u{:04x}", character as u32)
            }
            character => quoted.push(character),
        }
    }
    quoted + "\""
}

/// A number; JSON cannot represent one that is not finite.
pub fn number(value: f64) -> String {
    if value.is_finite() { format!("{value}") } else { "null".to_owned() }
}

/// A number that may be missing.
pub fn optional(value: Option<f64>) -> String {
    value.map_or_else(|| "null".to_owned(), number)
}

/// An object of members that are JSON already.
pub fn object(members: &[(&str, String)]) -> String {
    let members: Vec<_> =
        members.iter().map(|(name, value)| format!("{}: {value}", text(name))).collect();
    format!("{{{}}}", members.join(", "))
}

/// An array of values that are JSON already, each on its own line.
pub fn array(values: impl Iterator<Item = String>) -> String {
    format!("[\n  {}\n]", values.collect::<Vec<_>>().join(",\n  "))
}

/// The number at `path` in an object, such as `["samples", "taken"]`; None when there is no such
/// member or it is not a number.
pub fn number_at(object: &str, path: &[&str]) -> Option<f64> {
    at(object, path)?.parse().ok().filter(|number: &f64| number.is_finite())
}

/// The sum of an object's members that are numbers; 0 when there is no object at `path`.
pub fn sum_at(object: &str, path: &[&str]) -> f64 {
    let members = at(object, path).map(members).unwrap_or_default();
    members.iter().filter_map(|(_, value)| value.parse::<f64>().ok()).sum()
}

fn at<'a>(object: &'a str, path: &[&str]) -> Option<&'a str> {
    path.iter().try_fold(object, |object, name| {
        let found = members(object).into_iter().find(|(member, _)| member == name);
        found.map(|(_, value)| value)
    })
}

/// Names and values of an object's own members; nothing for what is not an object. Strings are
/// skipped as a whole and brackets counted, so that a name inside a string or a nested object is
/// not taken for one of ours.
fn members(object: &str) -> Vec<(&str, &str)> {
    let object = object.trim();
    let Some(inside) = object.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) else {
        return Vec::new();
    };
    let separate = |member: &'_ str| split_outside(member, ':').first().map(|name| name.len());
    let pairs = split_outside(inside, ',').into_iter().filter_map(|member| {
        let (name, value) = member.split_at_checked(separate(member)?)?;
        Some((name.trim().trim_matches('"'), value.strip_prefix(':')?.trim()))
    });
    pairs.collect()
}

/// Parts of `text` between separators that stand in no string and no bracket.
fn split_outside(text: &str, separator: char) -> Vec<&str> {
    let (mut depth, mut in_string, mut escaped, mut from) = (0_usize, false, false, 0);
    let mut parts = Vec::new();
    for (at, character) in text.char_indices() {
        match character {
            _ if escaped => escaped = false,
            '\\' if in_string => escaped = true,
            '"' => in_string = !in_string,
            _ if in_string => {}
            '{' | '[' => depth += 1,
            '}' | ']' => depth = depth.saturating_sub(1),
            character if character == separator && depth == 0 => {
                parts.extend(text.get(from..at));
                from = at + separator.len_utf8();
            }
            _ => {}
        }
    }
    parts.extend(text.get(from..));
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#"{
        "version": "0.1.0", "note": "a \"quoted, {samples\": 9, \\",
        "events": [{"name": "cpu-clock", "samples": 7}],
        "samples": {
            "taken": 13712, "unresolved": {"no_mapping": 3, "anonymous_memory": 4}, "lost": {}
        },
        "handler": {"ns_per_sample": null, "calls": 0},
        "daemon": {"cpu_s": 0.25}
    }"#;

    #[test]
    fn numbers_are_found_by_path_only() {
        for (path, expected) in [
            (&["samples", "taken"][..], Some(13712.0)),
            (&["daemon", "cpu_s"], Some(0.25)),
            (&["handler", "calls"], Some(0.0)),
            (&["handler", "ns_per_sample"], None),
            (&["samples"], None),
            (&["taken"], None),
            (&["samples", "taken", "more"], None),
        ] {
            assert_eq!(number_at(REPORT, path), expected, "{path:?}");
        }
    }

    #[test]
    fn cut_or_odd_input_gives_nothing() {
        for odd in
            ["", "{", "}", "{\"", "null", "[1]", "{\"a\"", "{\"a\":", "{:}", "{\"a\": tru", "{,}"]
        {
            assert_eq!(number_at(odd, &["a"]), None, "{odd}");
        }
        for end in 0..REPORT.len() {
            let _ = number_at(REPORT.get(..end).unwrap_or_default(), &["daemon", "cpu_s"]);
        }
    }

    #[test]
    fn what_is_written_can_be_read() {
        let written =
            object(&[("a\"b", text("x\n\"")), ("n", number(1.5)), ("none", number(f64::NAN))]);
        assert_eq!(written, "{\"a\\\"b\": \"x\\u000a\\\"\", \"n\": 1.5, \"none\": null}");
        assert_eq!(number_at(&written, &["n"]), Some(1.5));
        assert_eq!(array([number(1.0), optional(None)].into_iter()), "[\n  1,\n  null\n]");
    }
}
