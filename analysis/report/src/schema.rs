//! JSON Schemas (draft 2020-12) out of fields.

use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Serialize, Serializer};

use super::fields::{Field, Fields, Shape};
use crate::Report;
use crate::json::EveryReport;

/// The schema of a report's JSON, with the titles of its CSV.
#[derive(Clone, Debug)]
pub struct Schema {
    /// The report's command.
    pub name: &'static str,
    /// Number of the set of fields.
    pub version: u32,
    /// The meaning of the report.
    pub about: &'static str,
    /// Its fields.
    pub fields: Vec<Field>,
}

impl Schema {
    /// The schema of a report.
    pub fn of<R: Report + 'static>() -> Self {
        Self::of_fields::<R::Fields<'static>>(R::NAME, R::VERSION)
    }

    /// The schema of an object with these fields.
    pub fn of_fields<F: Fields>(name: &'static str, version: u32) -> Self {
        Self {
            name,
            version,
            about: F::ABOUT.trim(),
            fields: complete(F::fields(), false, &EveryReport::fields()),
        }
    }

    /// The schema as JSON. Readers must ignore fields that they do not know, so it allows these.
    pub fn json(&self) -> String {
        // Keys are texts and no write fails: there is no error.
        serde_json::to_string_pretty(&Document(self)).unwrap_or_default() + "\n"
    }

    /// The titles of all columns of CSV, as they are stated: `EVENT` stands for an event.
    pub fn titles(&self) -> Vec<&'static str> {
        super::fields::titles_of_rows(&self.fields, "")
    }
}

/// These fields without the titles that no row of CSV has, and with the meanings and units that
/// fields of the same name have in every report.
fn complete(fields: Vec<Field>, is_row: bool, every: &[Field]) -> Vec<Field> {
    let complete = |mut field: Field| {
        let same = every.iter().find(|same| same.name == field.name);
        if let Some(same) = same.filter(|_| field.about.is_empty()) {
            (field.about, field.unit) = (same.about, same.unit);
        }
        if !is_row {
            field.csv = &[];
        }
        let every = same.map_or(&[][..], |same| fields_in(&same.shape));
        let are_rows = field.is_rows();
        field.shape = within(field.shape, is_row, are_rows, every);
        field
    };
    fields.into_iter().map(complete).collect()
}

/// The shape with its fields completed. Elements of lists are in rows if they are rows.
fn within(shape: Shape, is_row: bool, are_rows: bool, every: &[Field]) -> Shape {
    let again = |of: Box<Shape>, is_row| Box::new(within(*of, is_row, are_rows, every));
    match shape {
        Shape::Nullable(of) => Shape::Nullable(again(of, is_row)),
        Shape::List(of) => Shape::List(again(of, are_rows)),
        Shape::Map(key, of) => Shape::Map(key, again(of, is_row)),
        Shape::Object(fields) => Shape::Object(complete(fields, is_row, every)),
        scalar => scalar,
    }
}

/// The fields of the objects in this shape.
fn fields_in(shape: &Shape) -> &[Field] {
    match shape {
        Shape::Nullable(of) | Shape::List(of) | Shape::Map(_, of) => fields_in(of),
        Shape::Object(fields) => fields,
        _ => &[],
    }
}

struct Document<'a>(&'a Schema);

impl Serialize for Document<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Schema { name, version, about, fields } = self.0;
        let mut map = to.serialize_map(None)?;
        map.serialize_entry("$schema", "https://json-schema.org/draft/2020-12/schema")?;
        map.serialize_entry("$id", &format!("urn:dcpi:{name}:{version}"))?;
        map.serialize_entry("title", &format!("dcpi.{name} {version}"))?;
        if !about.is_empty() {
            map.serialize_entry("description", about)?;
        }
        object(fields, false, Some(self.0), &mut map)?;
        map.end()
    }
}

/// The name and the version that the first field of a report has.
struct Named<'a>(&'a Schema);

impl Serialize for Named<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let constant = |value: serde_json::Value| serde_json::json!({ "const": value });
        let properties = serde_json::json!({
            "name": constant(format!("dcpi.{}", self.0.name).into()),
            "version": constant(self.0.version.into()),
        });
        let mut map = to.serialize_map(None)?;
        map.serialize_entry("type", "object")?;
        map.serialize_entry("properties", &properties)?;
        map.serialize_entry("required", &["name", "version"])?;
        map.end()
    }
}

/// The keys of an object's schema.
fn object<M: SerializeMap>(
    fields: &[Field],
    nullable: bool,
    whole: Option<&Schema>,
    map: &mut M,
) -> Result<(), M::Error> {
    let fields: Vec<&Field> = fields.iter().filter(|field| field.is_in_json()).collect();
    kind("object", nullable, map)?;
    map.serialize_entry("properties", &Properties(&fields, whole))?;
    let named = whole.iter().map(|_| "schema");
    let always = fields.iter().filter(|field| field.place != "maybe").map(|field| field.name);
    map.serialize_entry("required", &named.chain(always).collect::<Vec<_>>())
}

fn kind<M: SerializeMap>(name: &str, nullable: bool, map: &mut M) -> Result<(), M::Error> {
    match nullable {
        true => map.serialize_entry("type", &[name, "null"]),
        false => map.serialize_entry("type", name),
    }
}

struct Properties<'a>(&'a [&'a Field], Option<&'a Schema>);

impl Serialize for Properties<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(None)?;
        if let Some(whole) = self.1 {
            map.serialize_entry("schema", &Named(whole))?;
        }
        self.0.iter().try_for_each(|field| map.serialize_entry(field.name, &Property(field)))?;
        map.end()
    }
}

struct Property<'a>(&'a Field);

impl Serialize for Property<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Field { unit, csv, shape, .. } = self.0;
        let mut map = to.serialize_map(None)?;
        let about = self.0.meaning();
        if !about.is_empty() {
            map.serialize_entry("description", about)?;
        }
        if !unit.is_empty() {
            map.serialize_entry("unit", unit)?;
        }
        match csv {
            [] => {}
            [title] => map.serialize_entry("csv", title)?,
            titles => map.serialize_entry("csv", &Titles(titles))?,
        }
        shape_keys(shape, false, &mut map)?;
        map.end()
    }
}

struct Titles<'a>(&'a [&'static str]);

impl Serialize for Titles<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut list = to.serialize_seq(None)?;
        self.0.iter().try_for_each(|title| list.serialize_element(title))?;
        list.end()
    }
}

struct OfShape<'a>(&'a Shape);

impl Serialize for OfShape<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(None)?;
        shape_keys(self.0, false, &mut map)?;
        map.end()
    }
}

fn shape_keys<M: SerializeMap>(shape: &Shape, nullable: bool, map: &mut M) -> Result<(), M::Error> {
    match shape {
        Shape::Any => Ok(()),
        Shape::Scalar(name) => kind(name, nullable, map),
        Shape::Word(words) => {
            let null = nullable.then_some(None);
            let words = words.iter().copied().map(Some);
            map.serialize_entry("enum", &words.chain(null).collect::<Vec<Option<&str>>>())
        }
        Shape::Nullable(of) => shape_keys(of, true, map),
        Shape::List(of) => {
            kind("array", nullable, map)?;
            map.serialize_entry("items", &OfShape(of))
        }
        Shape::Map(_, of) => {
            kind("object", nullable, map)?;
            map.serialize_entry("additionalProperties", &OfShape(of))
        }
        Shape::Object(fields) => object(fields, nullable, None, map),
    }
}
