//! The page of the guide with all fields, `docs/src/output.md`.

use super::fields::{Field, Fields as _, Shape};
use super::schema::Schema;
use crate::json::EveryReport;

/// The page before the tables.
const HEAD: &str = include_str!("fields_page.md");

const TABLE: &str = "| JSON | CSV | unit | meaning |\n|---|---|---|---|\n";

/// Columns of a line of the page.
const COLUMNS: usize = 100;

/// The page of these reports.
pub fn page_of_fields(schemas: &[Schema]) -> String {
    let mut every = Rows::default();
    every.fields(&EveryReport::fields(), &Around::default());
    let mut page = format!("{HEAD}\n## Every report\n\n{TABLE}{}", every.0.concat());
    for schema in schemas {
        let mut rows = Rows::default();
        rows.fields(&schema.fields, &Around::default());
        rows.0.retain(|row| !every.0.contains(row));
        page.push_str(&format!("\n## dcpi {}\n\n", schema.name));
        if !schema.about.is_empty() {
            page.push_str(&wrapped(schema.about));
        }
        page.push_str(TABLE);
        page.push_str(&rows.0.concat());
    }
    page
}

/// Lines of a table.
#[derive(Default)]
struct Rows(Vec<String>);

/// The attributes that a field inherits from the field around it.
#[derive(Clone, Copy, Default)]
struct Around<'a> {
    path: &'a str,
    /// Titles of the fields within; empty: their own.
    titles: &'a [&'static str],
    unit: &'static str,
    /// Meaning of the field `value` within.
    value: &'static str,
    is_csv_only: bool,
}

impl Rows {
    fn fields(&mut self, fields: &[Field], around: &Around<'_>) {
        for (at, field) in fields.iter().enumerate() {
            let mut path = match around.path {
                "" => field.name.to_owned(),
                outer => format!("{outer}.{}", field.name),
            };
            let inner = named(&field.shape, &mut path);
            let given = around.titles.get(at).map(std::slice::from_ref);
            let titles = if around.titles.is_empty() { field.csv } else { given.unwrap_or(&[]) };
            let about = match field.meaning() {
                "" if field.name == "value" => around.value,
                about => about,
            };
            let unit = if field.unit.is_empty() { around.unit } else { field.unit };
            let is_csv_only = around.is_csv_only || ["csv", "csvrows"].contains(&field.place);
            if let Shape::Object(fields) = inner {
                if !about.is_empty() && !fields.iter().any(|field| field.name == "value") {
                    self.row(&path, &[], "", about);
                }
                let within = Around { path: &path, titles, unit, value: about, is_csv_only };
                self.fields(fields, &within);
            } else if !is_csv_only || !titles.is_empty() {
                self.row(if is_csv_only { "" } else { &path }, titles, unit, about);
            }
        }
    }

    fn row(&mut self, path: &str, titles: &[&str], unit: &str, about: &str) {
        let quoted =
            |text: &str| if text.is_empty() { "-".to_owned() } else { format!("`{text}`") };
        let csv: Vec<String> = titles.iter().map(|title| quoted(title)).collect();
        let csv = if csv.is_empty() { "-".to_owned() } else { csv.join(", ") };
        let cell = |text: &str| if text.is_empty() { String::new() } else { format!("{text} ") };
        self.0.push(format!("| {} | {csv} | {}| {}|\n", quoted(path), cell(unit), cell(about)));
    }
}

/// The shape of what has a name of its own; `[]` and `{EVENT}` around it go to the path.
fn named<'a>(shape: &'a Shape, path: &mut String) -> &'a Shape {
    match shape {
        Shape::Nullable(of) => named(of, path),
        Shape::List(of) => {
            path.push_str("[]");
            named(of, path)
        }
        Shape::Map(key, of) => {
            path.push_str(&format!("{{{key}}}"));
            named(of, path)
        }
        shape => shape,
    }
}

/// A paragraph in lines of the page's width, and an empty line.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.chars().count() + 1 + word.chars().count() <= COLUMNS => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.join("\n") + "\n\n"
}
