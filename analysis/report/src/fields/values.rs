//! Types of fields, with their JSON, their type in a schema, and their cells of CSV.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::io;
use std::path::PathBuf;

use image::ImageId;
use model::Spread;
use profiledb::EpochId;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use stats::{Confidence, Occurrences, Share};

use super::{Cells, Field, Fields, Json, Shape, Shaped, Shown};

macro_rules! scalars {
    ($($type:ty => $name:literal)*) => {$(
        impl Shaped for $type {
            fn shape() -> Shape {
                Shape::Scalar($name)
            }

            fn is_absent(&self) -> bool {
                self.to_string().is_empty()
            }

            fn json<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                self.serialize(to)
            }

            fn cells(&self, titles: &[&'static str], key: Option<&str>, row: &mut Cells) {
                row.push(titles, key, self);
            }
        }
    )*};
}

scalars! {
    bool => "boolean"
    u8 => "integer"
    u32 => "integer"
    u64 => "integer"
    i32 => "integer"
    usize => "integer"
    f64 => "number"
    char => "string"
    str => "string"
    String => "string"
    EpochId => "string"
}

/// Types of numbers and names with their own form in JSON and in CSV: a unit, the type in JSON, the
/// value for JSON, and the text for CSV; none: the cell is empty.
macro_rules! forms {
    ($($type:ty, $unit:literal, $shape:expr, $json:expr, $cell:expr;)*) => {$(
        impl Shaped for $type {
            const UNIT: &'static str = $unit;

            fn shape() -> Shape {
                $shape
            }

            fn json<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                let json: fn(&$type) -> _ = $json;
                json(self).serialize(to)
            }

            fn cells(&self, titles: &[&'static str], key: Option<&str>, row: &mut Cells) {
                let cell: fn(&$type) -> Option<String> = $cell;
                cell(self).into_iter().for_each(|text| row.push(titles, key, text));
            }
        }
    )*};
}

/// Shares and other numbers between 0 and 1: eight decimals are finer than any sample, and the same
/// on every machine. One that is not finite is null in JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Fraction(pub f64);

/// Estimates: six digits in JSON, since further ones are noise and differ between machines; six
/// decimals in CSV, where one that is not finite is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Approximate(pub f64);

/// Numbers whose fraction is not significant.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Whole(pub f64);

/// An address: hexadecimal, as `nm` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address(pub u64);

/// A number between 0 and 1, or one that is infinite, where there is no bound: null in JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bound(pub f64);

/// A number that is null in JSON where it is infinite or not known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Finite(pub f64);

/// An estimate as [`Approximate`]: three decimals in CSV.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Thousandths(pub f64);

/// Cycles: more digits than those of whole ones say nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cycles(pub f64);

/// An estimate between 0 and 1: six decimals in CSV.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Part(pub f64);

/// A share of what lies within a distance: four decimals in CSV.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Within(pub f64);

/// Executions in the mean of several runs: whole ones in CSV.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Executions(pub f64);

const NUMBER: Shape = Shape::Scalar("number");
const TEXT: Shape = Shape::Scalar("string");

fn nullable(of: Shape) -> Shape {
    Shape::Nullable(Box::new(of))
}

fn rounded(value: f64) -> Option<String> {
    Some(crate::json::rounded(value).to_string())
}

forms! {
    Fraction, "", NUMBER, |it| crate::json::rounded(it.0), |it| rounded(it.0);
    Bound, "", nullable(NUMBER), |it| crate::json::rounded(it.0), |it| rounded(it.0);
    Finite, "", nullable(NUMBER), |it| it.0, |it| Some(it.0.to_string());
    Part, "share", NUMBER, |it| crate::json::rounded(it.0), |it| Some(format!("{:.6}", it.0));
    Approximate, "", NUMBER, |it| crate::costs::digits(it.0),
        |it| it.0.is_finite().then(|| format!("{:.6}", it.0));
    Thousandths, "", NUMBER, |it| crate::costs::digits(it.0), |it| Some(format!("{:.3}", it.0));
    Within, "share", NUMBER, |it| crate::json::rounded(it.0), |it| Some(format!("{:.4}", it.0));
    Executions, "", NUMBER, |it| it.0, |it| Some(format!("{:.0}", it.0));
    Whole, "", Shape::Scalar("integer"), |it| it.0.round() as u64,
        |it| Some(it.0.round().to_string());
    Cycles, "cycles", NUMBER, |it| it.0.round(), |it| Some(it.0.round().to_string());
    Address, "address", TEXT, |it| format!("{:#x}", it.0), |it| Some(format!("{:#x}", it.0));
    ImageId, "", TEXT, ToString::to_string, |it| Some(it.to_string());
    PathBuf, "", TEXT, Clone::clone, |it| Some(it.display().to_string());
}

/// Types that are shown in the place of others.
macro_rules! shown {
    ($($type:ty => $shown:ident)*) => {$(
        impl Shown<&$type> for $shown {
            fn shown(of: &$type) -> Self {
                Self(*of)
            }
        }
    )*};
}

shown! {
    f64 => Fraction
    f64 => Bound
    f64 => Finite
    f64 => Cycles
    f64 => Executions
    f64 => Part
    f64 => Approximate
    f64 => Whole
    u64 => Address
}

/// Intervals: the estimate, and the ends.
macro_rules! intervals {
    ($($type:ty as $form:ty)*) => {$(
        impl Shaped for $type {
            fn shape() -> Shape {
                Interval::<$form>::shape()
            }

            fn json<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                Interval::<$form>::shown(self).json(to)
            }

            fn cells(&self, titles: &[&'static str], key: Option<&str>, row: &mut Cells) {
                Interval::<$form>::shown(self).cells(titles, key, row);
            }
        }

        impl<'a, T: Shown<&'a f64>> Shown<&'a $type> for Interval<T> {
            fn shown(of: &'a $type) -> Self {
                let [value, low, high] = [&of.value, &of.low, &of.high].map(T::shown);
                Self { value, low, high }
            }
        }
    )*};
}

impl Shown<&f64> for f64 {
    fn shown(of: &f64) -> Self {
        *of
    }
}

intervals! {
    Share as Fraction
    Occurrences as f64
    measure::Interval as Finite
}

/// As it is measured, `low` comes first.
impl Shaped for Spread {
    fn shape() -> Shape {
        let field = |name, about| Field::new(name, about, "", &[], "").with::<f64>();
        Shape::Object(vec![
            field("low", "5th percentile of pieces"),
            field("value", ""),
            field("high", "99th percentile of pieces"),
        ])
    }

    fn json<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.serialize(to)
    }

    fn cells(&self, _: &[&'static str], _: Option<&str>, _: &mut Cells) {}
}

impl Shaped for serde_json::Value {
    fn shape() -> Shape {
        Shape::Any
    }

    fn json<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.serialize(to)
    }

    fn cells(&self, titles: &[&'static str], key: Option<&str>, row: &mut Cells) {
        match self {
            Self::Null => {}
            Self::String(text) => row.push(titles, key, text),
            other => row.push(titles, key, other),
        }
    }
}

impl Shaped for Confidence {
    const UNIT: &'static str = "percent";
    const MEANING: &'static str = "confidence of all intervals";

    fn shape() -> Shape {
        f64::shape()
    }

    fn json<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.percent().serialize(to)
    }

    fn cells(&self, _: &[&'static str], _: Option<&str>, _: &mut Cells) {}
}

impl<T: Shaped + ?Sized> Shaped for &T {
    const UNIT: &'static str = T::UNIT;
    const MEANING: &'static str = T::MEANING;

    fn shape() -> Shape {
        T::shape()
    }

    fn is_absent(&self) -> bool {
        (**self).is_absent()
    }

    fn json<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        (**self).json(to)
    }

    fn cells(&self, titles: &[&'static str], key: Option<&str>, row: &mut Cells) {
        (**self).cells(titles, key, row);
    }
}

impl<T: Shaped> Shaped for Option<T> {
    const UNIT: &'static str = T::UNIT;
    const MEANING: &'static str = T::MEANING;

    fn shape() -> Shape {
        Shape::Nullable(Box::new(T::shape()))
    }

    fn is_absent(&self) -> bool {
        self.is_none()
    }

    fn json<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.as_ref().map(Json).serialize(to)
    }

    fn cells(&self, titles: &[&'static str], key: Option<&str>, row: &mut Cells) {
        self.iter().for_each(|value| value.cells(titles, key, row));
    }
}

/// Lists are in CSV only as rows, or as cells side by side.
macro_rules! lists {
    ($($type:ty)*) => {$(
        impl<T: Shaped> Shaped for $type {
            const UNIT: &'static str = T::UNIT;
            const MEANING: &'static str = T::MEANING;

            fn shape() -> Shape {
                Shape::List(Box::new(T::shape()))
            }

            fn is_absent(&self) -> bool {
                self.is_empty()
            }

            fn json<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_seq(self.iter().map(Json))
            }

            fn cells(&self, titles: &[&'static str], key: Option<&str>, row: &mut Cells) {
                for (title, value) in titles.iter().zip(self) {
                    value.cells(std::slice::from_ref(title), key, row);
                }
            }
        }
    )*};
}

lists! { Vec<T> [T] [T; 2] [T; 3] BTreeSet<T> }

impl<K: Serialize, V: Shaped> Shaped for BTreeMap<K, V> {
    const UNIT: &'static str = V::UNIT;

    fn shape() -> Shape {
        Shape::Map("REASON", Box::new(V::shape()))
    }

    fn is_absent(&self) -> bool {
        self.is_empty()
    }

    fn json<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.iter().map(|(key, value)| (key, Json(value))))
    }

    fn cells(&self, _: &[&'static str], _: Option<&str>, _: &mut Cells) {}
}

/// A map that keeps the order of its entries: events come in the order of the columns.
#[derive(Debug)]
pub struct InOrder<K, V>(pub Vec<(K, V)>);

impl<K: Display, V: Shaped> Shaped for InOrder<K, V> {
    const UNIT: &'static str = V::UNIT;

    fn shape() -> Shape {
        Shape::Map("EVENT", Box::new(V::shape()))
    }

    fn is_absent(&self) -> bool {
        self.0.is_empty()
    }

    fn json<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.0.iter().map(|(key, value)| (key.to_string(), Json(value))))
    }

    fn cells(&self, titles: &[&'static str], _: Option<&str>, row: &mut Cells) {
        self.0.iter().for_each(|(key, value)| value.cells(titles, Some(&key.to_string()), row));
    }
}

/// Shares by event.
pub type Shares<'a> = InOrder<&'a str, Share>;

/// An estimate and its interval.
#[derive(Clone, Copy, Debug)]
pub struct Interval<T> {
    value: T,
    low: T,
    high: T,
}

impl<T: Shaped> Shaped for Interval<T> {
    fn shape() -> Shape {
        Shape::Object(Self::fields())
    }

    fn json<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(Some(3))?;
        self.entries(&mut map)?;
        map.end()
    }

    fn cells(&self, titles: &[&'static str], key: Option<&str>, row: &mut Cells) {
        for (title, value) in titles.iter().zip([&self.value, &self.low, &self.high]) {
            value.cells(std::slice::from_ref(title), key, row);
        }
    }
}

impl<T: Shaped> Serialize for Interval<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.json(to)
    }
}

impl<T: Shaped> Fields for Interval<T> {
    const ABOUT: &'static str = "";

    fn fields() -> Vec<Field> {
        let field = |name, about| Field::new(name, about, "", &[], "").with::<T>();
        vec![
            field("value", ""),
            field("low", "lower end of its interval"),
            field("high", "upper end of its interval"),
        ]
    }

    fn entries<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
        [("value", &self.value), ("low", &self.low), ("high", &self.high)]
            .into_iter()
            .try_for_each(|(name, value)| map.serialize_entry(name, &Json(value)))
    }

    fn rows(
        &self,
        _: &str,
        row: Cells,
        write: &mut dyn FnMut(Cells) -> io::Result<()>,
    ) -> io::Result<()> {
        write(row)
    }
}

/// An object that may be missing: its fields are then missing in the outer one.
impl<T: Fields> Fields for Option<T> {
    const ABOUT: &'static str = T::ABOUT;

    fn fields() -> Vec<Field> {
        let mut fields = T::fields();
        for field in fields.iter_mut().filter(|field| field.place.is_empty()) {
            field.place = "maybe";
        }
        fields
    }

    fn entries<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
        self.iter().try_for_each(|fields| fields.entries(map))
    }

    fn rows(
        &self,
        list: &str,
        row: Cells,
        write: &mut dyn FnMut(Cells) -> io::Result<()>,
    ) -> io::Result<()> {
        match self {
            Some(fields) => fields.rows(list, row, write),
            None => write(row),
        }
    }
}

impl<T: Fields> Fields for &T {
    const ABOUT: &'static str = T::ABOUT;

    fn fields() -> Vec<Field> {
        T::fields()
    }

    fn entries<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
        (**self).entries(map)
    }

    fn rows(
        &self,
        list: &str,
        row: Cells,
        write: &mut dyn FnMut(Cells) -> io::Result<()>,
    ) -> io::Result<()> {
        (**self).rows(list, row, write)
    }
}
