//! Fields of reports. Each is stated once: name, type, unit, title in CSV, meaning. JSON, CSV, the
//! JSON Schemas and `docs/src/output.md` are generated from these statements.
//!
//! The statement of a field, inside [`fields!`](crate::fields!):
//!
//! ```text
//! /// share of this row and all rows above, of `sorted_by`        the meaning
//! cumulative: Fraction, "share" => "cumulative";                  name, type, unit => title in CSV
//! inclusive (maybe): Option<Shares<'a>> => "EVENT_inclusive" | "EVENT_inclusive_low";
//! ```
//!
//! Several titles are those of the fields of an object, in their order. `EVENT` in a title stands
//! for the keys of a map. A field `NAME: TYPE = FUNCTION` is no member of the struct: its value is
//! what the function makes of the struct. The word in brackets says where the field is:
//!
//! | word | the field is |
//! |---|---|
//! | (none) | in JSON always |
//! | `maybe` | in JSON unless it is none or empty |
//! | `flat` | an object whose fields belong to the outer object |
//! | `rows` | a list; CSV has a row for each element |
//! | `csv` | in CSV only |
//! | `csvrows` | a list of the rows of CSV, which JSON does not have |
//! | `text` | in no format for programs |
//!
//! The derive of a library of schemas (schemars) keeps fields in their order only with a feature of
//! serde_json that changes the order of keys in all JSON of all crates.

mod cells;
mod values;

use std::io;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

pub(crate) use cells::titles_of_rows;
pub use cells::{Cells, write};
pub use values::{
    Address, Approximate, Bound, Cycles, Executions, Finite, Fraction, InOrder, Interval, Part,
    Shares, Thousandths, Whole, Within,
};

crate::fields! {
    /// Name and version of the fields of an object.
    #[derive(Debug)]
    pub struct SchemaName {
        /// name of the set of fields: `dcpi.` and the command
        pub name: String;
        /// number of the set of fields
        pub version: u32;
    }
}

/// The JSON type of a field.
#[derive(Clone, Debug)]
pub enum Shape {
    /// Any.
    Any,
    /// A scalar, by its name in JSON Schema.
    Scalar(&'static str),
    /// A text out of these.
    Word(&'static [&'static str]),
    /// The shape, or null.
    Nullable(Box<Self>),
    /// A list.
    List(Box<Self>),
    /// An object whose keys are data; the word that stands for a key.
    Map(&'static str, Box<Self>),
    /// An object with these fields.
    Object(Vec<Field>),
}

/// A field.
#[derive(Clone, Debug)]
pub struct Field {
    /// Its key in JSON.
    pub name: &'static str,
    /// Its meaning; may be empty.
    pub about: &'static str,
    /// Its unit; may be empty.
    pub unit: &'static str,
    /// Its titles in CSV: one, or those of an object's fields.
    pub csv: &'static [&'static str],
    /// The word that says where the field is.
    pub place: &'static str,
    /// Its type.
    pub shape: Shape,
}

impl Field {
    /// The statement of a field whose type is not known yet.
    pub const fn new(
        name: &'static str,
        about: &'static str,
        unit: &'static str,
        csv: &'static [&'static str],
        place: &'static str,
    ) -> Self {
        Self { name, about, unit, csv, place, shape: Shape::Any }
    }

    /// The field with its type.
    #[must_use]
    pub fn with<T: Shaped + ?Sized>(self) -> Self {
        let or = |own: &'static str, of_type| if own.is_empty() { of_type } else { own };
        let (unit, about) = (or(self.unit, T::UNIT), or(self.about, T::MEANING));
        Self { unit, about, shape: T::shape(), ..self }
    }

    /// Its meaning, without the space that begins a comment.
    pub fn meaning(&self) -> &'static str {
        self.about.trim()
    }

    /// Whether the elements of the field are rows of CSV.
    pub fn is_rows(&self) -> bool {
        ["rows", "csvrows"].contains(&self.place)
    }

    /// Whether JSON has the field.
    pub fn is_in_json(&self) -> bool {
        !["csv", "csvrows"].contains(&self.place)
    }
}

/// A value of a field.
pub trait Shaped {
    /// The unit of values of the type; empty where the field says it.
    const UNIT: &'static str = "";
    /// The meaning of values of the type; empty where the field says it.
    const MEANING: &'static str = "";

    /// The JSON type.
    fn shape() -> Shape;

    /// Whether a `maybe` field with this value is left out.
    fn is_absent(&self) -> bool {
        false
    }

    /// Writes the value as JSON.
    fn json<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error>;

    /// Adds the value's cells of CSV, with these titles. `key` is that of the map around the value.
    fn cells(&self, titles: &[&'static str], key: Option<&str>, row: &mut Cells);
}

/// A value, for serde.
#[derive(Debug)]
pub struct Json<'a, T: ?Sized>(pub &'a T);

impl<T: Shaped + ?Sized> Serialize for Json<'_, T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.0.json(to)
    }
}

/// A value as a report shows it: a statement has `TYPE as SHOWN` where the types differ.
pub trait Shown<T> {
    /// The value to show.
    fn shown(of: T) -> Self;
}

impl<'a, T, U: Shown<&'a T>> Shown<&'a Option<T>> for Option<U> {
    fn shown(of: &'a Option<T>) -> Self {
        of.as_ref().map(U::shown)
    }
}

/// Shows values and what references lead to alike.
pub trait Show {
    /// The value as it is shown.
    fn show<'a, U: Shown<&'a Self>>(&'a self) -> U {
        U::shown(self)
    }
}

impl<T: ?Sized> Show for T {}

impl<'a, T, U: Shown<&'a T>> Shown<&'a Vec<T>> for Vec<U> {
    fn shown(of: &'a Vec<T>) -> Self {
        of.iter().map(U::shown).collect()
    }
}

/// An object whose fields are stated with [`fields!`](crate::fields!).
pub trait Fields: Shaped + Serialize {
    /// The meaning of the object.
    const ABOUT: &'static str;

    /// The fields, in the order of JSON.
    fn fields() -> Vec<Field>;

    /// Writes the fields into an object of JSON.
    fn entries<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error>;

    /// Gives the rows of CSV to `write`, each with the cells `row` before its own. Of several
    /// lists, only rows of the one with the name `list` are given; empty: of all.
    fn rows(
        &self,
        list: &str,
        row: Cells,
        write: &mut dyn FnMut(Cells) -> io::Result<()>,
    ) -> io::Result<()>;
}

/// Structs whose fields are stated once: see [`fields`](mod@crate::fields).
#[macro_export]
macro_rules! fields {
    // The struct: its members are the fields that are not computed.
    (@struct {$($head:tt)*} {$($members:tt)*}) => { $($head)* { $($members)* } };
    (@struct $head:tt {$($members:tt)*} {[] $($member:tt)*} $($rest:tt)*) => {
        $crate::fields!(@struct $head {$($members)* $($member)*,} $($rest)*);
    };
    (@struct $head:tt $members:tt {[$computed:expr] $($member:tt)*} $($rest:tt)*) => {
        $crate::fields!(@struct $head $members $($rest)*);
    };

    // The value of a field as it is shown.
    (@shown $own:ident $field:ident [] $type:ty, ) => { &$own.$field };
    (@shown $own:ident $field:ident [] $type:ty, $shown:ty) => { &$own.$field.show::<$shown>() };
    (@shown $own:ident $field:ident [$computed:expr] $type:ty, ) => {
        &{
            let value: $type = $crate::fields::computed($own, $computed);
            value
        }
    };

    (@shape $type:ty, ) => { $type };
    (@shape $type:ty, $shown:ty) => { $shown };

    (@entry $map:ident $field:ident $value:expr, flat) => {
        $crate::fields::Fields::entries($value, $map)?;
    };
    (@entry $map:ident $field:ident $value:expr, csv) => {};
    (@entry $map:ident $field:ident $value:expr, csvrows) => {};
    (@entry $map:ident $field:ident $value:expr, text) => {};
    (@entry $map:ident $field:ident $value:expr, maybe) => {
        let value = $value;
        if !$crate::fields::Shaped::is_absent(value) {
            $map.serialize_entry(stringify!($field), &$crate::fields::Json(value))?;
        }
    };
    (@entry $map:ident $field:ident $value:expr, $($place:ident)?) => {
        $map.serialize_entry(stringify!($field), &$crate::fields::Json($value))?;
    };

    (@field $type:ty, $field:expr, flat) => { <$type as $crate::fields::Fields>::fields() };
    (@field $type:ty, $field:expr, text) => { Vec::new() };
    (@field $type:ty, $field:expr, $($place:ident)?) => { vec![$field.with::<$type>()] };

    (@cell $own:expr, $titles:ident $key:ident $row:ident $value:expr, text) => {};
    (@cell $own:expr, $titles:ident $key:ident $row:ident $value:expr, rows) => {};
    (@cell $own:expr, $titles:ident $key:ident $row:ident $value:expr, csvrows) => {};
    (@cell $own:expr, $titles:ident $key:ident $row:ident $value:expr, $($place:ident)?) => {
        if let Some(titles) = $titles.of($own) {
            $crate::fields::Shaped::cells($value, titles, $key, $row);
        }
    };

    (@rows $field:ident $list:ident $row:ident $write:ident $are:ident $value:expr, csvrows) => {
        $crate::fields!(@rows $field $list $row $write $are $value, rows)
    };
    (@rows $field:ident $list:ident $row:ident $write:ident $are:ident $value:expr, rows) => {
        if $list.is_empty() || $list == stringify!($field) {
            $are = true;
            for element in $value.iter() {
                $crate::fields::Fields::rows(element, "", $row.within(), $write)?;
            }
        }
    };
    (@rows $field:ident $list:ident $row:ident $write:ident $are:ident $value:expr,
        $($place:ident)?) => {};

    ($(
        $(#[doc = $about:literal])*
        $(#[derive($($derive:ident),*)])?
        $vis:vis struct $name:ident $(<$life:lifetime>)? {
            $(
                $(#[doc = $doc:literal])*
                $field_vis:vis $field:ident $(($place:ident))? : $type:ty $(as $shown:ty)?
                $(= $computed:expr)? $(, $unit:literal)? $(=> $($csv:literal)|+)?;
            )*
        }
    )*) => {$(
        $crate::fields! { @struct
            {
                $(#[doc = $about])*
                #[allow(missing_docs, reason = "the type of a field may say what the field is")]
                $(#[derive($($derive),*)])?
                $vis struct $name $(<$life>)?
            }
            {}
            $({[$($computed)?] $(#[doc = $doc])* $field_vis $field: $type})*
        }

        impl $(<$life>)? ::serde::Serialize for $name $(<$life>)? {
            fn serialize<S: ::serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                $crate::fields::Shaped::json(self, to)
            }
        }

        impl $(<$life>)? $crate::fields::Shaped for $name $(<$life>)? {
            fn shape() -> $crate::fields::Shape {
                $crate::fields::Shape::Object(<Self as $crate::fields::Fields>::fields())
            }

            fn json<S: ::serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                let mut map = ::serde::Serializer::serialize_map(to, None)?;
                $crate::fields::Fields::entries(self, &mut map)?;
                ::serde::ser::SerializeMap::end(map)
            }

            fn cells(
                &self,
                titles: &[&'static str],
                key: Option<&str>,
                row: &mut $crate::fields::Cells,
            ) {
                #[allow(unused_imports, reason = "not all objects have fields that are shown otherwise")]
                use $crate::fields::Show as _;
                let mut titles = $crate::fields::Titles::new(titles);
                $($crate::fields!(
                    @cell &[$($($csv),+)?], titles key row
                    $crate::fields!(@shown self $field [$($computed)?] $type, $($shown)?),
                    $($place)?
                );)*
                let _ = (&mut titles, key, row);
            }
        }

        impl $(<$life>)? $crate::fields::Fields for $name $(<$life>)? {
            const ABOUT: &'static str = concat!($($about,)* "");

            fn fields() -> Vec<$crate::fields::Field> {
                [$($crate::fields!(
                    @field $crate::fields!(@shape $type, $($shown)?),
                    $crate::fields::Field::new(
                        stringify!($field),
                        concat!($($doc,)* ""),
                        concat!($($unit)?),
                        &[$($($csv),+)?],
                        stringify!($($place)?),
                    ),
                    $($place)?
                )),*]
                .concat()
            }

            fn entries<M: ::serde::ser::SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
                #[allow(unused_imports, reason = "not all objects have fields that are shown otherwise")]
                use $crate::fields::Show as _;
                $($crate::fields!(
                    @entry map $field
                    $crate::fields!(@shown self $field [$($computed)?] $type, $($shown)?),
                    $($place)?
                );)*
                Ok(())
            }

            fn rows(
                &self,
                list: &str,
                mut row: $crate::fields::Cells,
                write: &mut dyn FnMut($crate::fields::Cells) -> ::std::io::Result<()>,
            ) -> ::std::io::Result<()> {
                #[allow(unused_imports, reason = "not all objects have fields that are shown otherwise")]
                use $crate::fields::Show as _;
                $crate::fields::Shaped::cells(self, &[], None, &mut row);
                #[allow(unused_mut, reason = "an object need not have rows")]
                let mut are = false;
                $($crate::fields!(
                    @rows $field list row write are
                    $crate::fields!(@shown self $field [$($computed)?] $type, $($shown)?),
                    $($place)?
                );)*
                let _ = list;
                if are { Ok(()) } else { write(row) }
            }
        }
    )*};
}

/// The value of a computed field.
pub fn computed<'a, S, T>(of: &'a S, compute: impl FnOnce(&'a S) -> T) -> T {
    compute(of)
}

/// The titles of an object's fields: their own, unless the field around the object gives others.
#[derive(Debug)]
pub struct Titles<'a>(Option<std::slice::Iter<'a, &'static str>>);

impl<'a> Titles<'a> {
    /// The titles given by the field around; none: each field's own.
    pub fn new(given: &'a [&'static str]) -> Self {
        Self((!given.is_empty()).then(|| given.iter()))
    }

    /// The titles of the next field; none: it is not in CSV.
    pub fn of<'b>(&mut self, own: &'b [&'static str]) -> Option<&'b [&'static str]>
    where
        'a: 'b,
    {
        match &mut self.0 {
            None => Some(own),
            Some(given) => {
                given.next().map(std::slice::from_ref).filter(|title| title.first() != Some(&""))
            }
        }
    }
}
