//! Columns in memory, and as batches of Arrow, which SQL engines take and give.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray as _, Float64Array, Int64Array, StringArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Float64Type, Int64Type, Schema};
use arrow::record_batch::RecordBatch;

use crate::parquet_bytes::TableError;
use crate::rows::{Row, Table};

/// The values of one column.
#[derive(Clone, Debug, PartialEq)]
pub enum Column {
    /// 64-bit integers.
    Integers(Vec<i64>),
    /// Doubles.
    Doubles(Vec<f64>),
    /// Texts.
    Texts(Vec<String>),
}

impl Column {
    /// The type in Arrow.
    #[must_use]
    pub const fn data_type(&self) -> DataType {
        match self {
            Self::Integers(_) => DataType::Int64,
            Self::Doubles(_) => DataType::Float64,
            Self::Texts(_) => DataType::Utf8,
        }
    }

    fn into_array(self) -> ArrayRef {
        match self {
            Self::Integers(values) => Arc::new(Int64Array::from(values)),
            Self::Doubles(values) => Arc::new(Float64Array::from(values)),
            Self::Texts(values) => Arc::new(StringArray::from(values)),
        }
    }

    /// The values of an array, whose nulls are 0 or empty; None for other types.
    fn of(array: &dyn Array) -> Option<Self> {
        use DataType::{Float32, Float64, Int64, LargeUtf8, Utf8, Utf8View};
        match array.data_type() {
            Int64 => {
                let values = array.as_primitive::<Int64Type>();
                Some(Self::Integers(values.iter().map(Option::unwrap_or_default).collect()))
            }
            Float64 => {
                let values = array.as_primitive::<Float64Type>();
                Some(Self::Doubles(values.iter().map(Option::unwrap_or_default).collect()))
            }
            Utf8 => {
                let texts = array.as_string::<i32>().iter();
                Some(Self::Texts(texts.map(|text| text.unwrap_or_default().to_owned()).collect()))
            }
            Utf8View | LargeUtf8 => Self::of(&cast(array, &Utf8).ok()?),
            Float32 => Self::of(&cast(array, &Float64).ok()?),
            DataType::Dictionary(..) => Self::of(&cast(array, &Utf8).ok()?),
            of if of.is_integer() => Self::of(&cast(array, &Int64).ok()?),
            _ => None,
        }
    }
}

/// The columns of a batch, by name.
#[derive(Clone, Debug, PartialEq)]
pub struct Columns(Vec<(String, Column)>);

impl Columns {
    /// The column of a name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Column> {
        self.0.iter().find(|(of, _)| of == name).map(|(_, column)| column)
    }

    /// All columns with their names, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Column)> {
        self.0.iter().map(|(name, column)| (name.as_str(), column))
    }

    /// Rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        match self.0.first() {
            Some((_, Column::Integers(values))) => values.len(),
            Some((_, Column::Doubles(values))) => values.len(),
            Some((_, Column::Texts(values))) => values.len(),
            None => 0,
        }
    }

    /// The columns of a batch.
    ///
    /// # Errors
    /// [`TableError::Column`] for a type that no table has.
    pub fn of(batch: &RecordBatch) -> Result<Self, TableError> {
        let schema = batch.schema();
        let fields = schema.fields().iter().zip(batch.columns());
        let column = |(field, array): (&Arc<Field>, &ArrayRef)| {
            let column = Column::of(array.as_ref());
            let column = column.ok_or_else(|| TableError::Column(field.name().clone()))?;
            Ok((field.name().clone(), column))
        };
        fields.map(column).collect::<Result<_, _>>().map(Self)
    }

    /// The rows, as those of a table.
    ///
    /// # Errors
    /// [`TableError::Column`] where a column of the table is missing.
    pub fn to_rows<R: Row>(&self) -> Result<Vec<R>, TableError> {
        let row = |at| R::of(self, at).ok_or_else(|| TableError::Column(R::TABLE.name().into()));
        (0..self.rows()).map(row).collect()
    }
}

/// The schema of a table in Arrow.
#[must_use]
pub fn schema(table: Table) -> Arc<Schema> {
    let field = |(name, column): (&str, Column)| Field::new(name, column.data_type(), false);
    Arc::new(Schema::new(table.columns().into_iter().map(field).collect::<Vec<_>>()))
}

/// A batch of rows.
///
/// # Errors
/// [`TableError::Parquet`]: never for rows of this crate.
pub fn batch<R: Row>(rows: &[R]) -> Result<RecordBatch, TableError> {
    let mut columns: Vec<Column> = R::columns().into_iter().map(|(_, column)| column).collect();
    rows.iter().for_each(|row| row.add_to(&mut columns));
    let arrays = columns.into_iter().map(Column::into_array).collect();
    RecordBatch::try_new(schema(R::TABLE), arrays).map_err(|error| TableError::Arrow(error.into()))
}
