//! JSON of the benchmarks: values to write, and single numbers of reports.

use serde_json::{Map, Value};

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

/// An object, from names and values that are JSON already.
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
    at(object, path)?.as_f64()
}

/// The sum of an object's members that are numbers; 0 when there is no object at `path`.
pub fn sum_at(object: &str, path: &[&str]) -> f64 {
    let found = at(object, path);
    let members = found.iter().filter_map(Value::as_object).flat_map(Map::values);
    members.filter_map(Value::as_f64).sum()
}

/// The value at a JSON pointer; null where there is none.
pub fn pointed<'a>(value: &'a Value, pointer: &str) -> &'a Value {
    value.pointer(pointer).unwrap_or(&Value::Null)
}

fn at(object: &str, path: &[&str]) -> Option<Value> {
    let whole = serde_json::from_str(object).ok()?;
    path.iter().try_fold(whole, |mut value: Value, name| value.get_mut(name).map(Value::take))
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
