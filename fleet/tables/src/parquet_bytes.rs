//! Tables as Parquet files: zstd, row groups of 262,144 rows, statistics of pages; integers that
//! count are packed as differences, everything else by dictionaries.
//!
//! A file is a pure function of its rows: it has no time and no random number in it.

use std::marker::PhantomData;

use arrow::array::Array as _;
use arrow::compute::cast;
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::arrow::{ArrowWriter, ProjectionMask};
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::schema::types::ColumnPath;

use crate::SCHEMA;
use crate::columns::{Columns, batch, schema};
use crate::rows::Row;

/// Rows of a row group: what a reader skips or reads as a whole.
const ROW_GROUP_ROWS: usize = 262_144;
/// Rows that are turned into columns at a time.
const BATCH_ROWS: usize = 65_536;
/// Key of the schema's version in a file.
const SCHEMA_KEY: &str = "dcpi_fleet_schema";

/// Why a table could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// Parquet refused.
    #[error("damaged Parquet file: {0}")]
    Parquet(#[from] ParquetError),
    /// Arrow refused.
    #[error("damaged batch: {0}")]
    Arrow(#[from] Box<ArrowError>),
    /// A column is missing, or has another type.
    #[error("column {0} is missing or of another type")]
    Column(String),
    /// The file is of another release.
    #[error("the table has schema {0}, and this release reads {SCHEMA}")]
    Schema(String),
}

/// A Parquet file of a table that is being written.
pub struct ParquetFile<R> {
    writer: ArrowWriter<Vec<u8>>,
    rows: u64,
    table: PhantomData<R>,
}

impl<R: Row> ParquetFile<R> {
    /// An empty file.
    ///
    /// # Errors
    /// [`TableError::Parquet`]: never.
    pub fn new() -> Result<Self, TableError> {
        let mut properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::try_new(3)?))
            .set_max_row_group_row_count(Some(ROW_GROUP_ROWS))
            .set_created_by("dcpi-fleet".to_owned())
            .set_key_value_metadata(Some(vec![KeyValue::new(
                SCHEMA_KEY.to_owned(),
                SCHEMA.to_string(),
            )]));
        for (name, _) in R::columns() {
            if name == "samples" {
                let path = ColumnPath::from(name);
                properties = properties
                    .set_column_dictionary_enabled(path.clone(), false)
                    .set_column_encoding(path, Encoding::DELTA_BINARY_PACKED);
            }
        }
        let writer = ArrowWriter::try_new(Vec::new(), schema(R::TABLE), Some(properties.build()))?;
        Ok(Self { writer, rows: 0, table: PhantomData })
    }

    /// Adds rows, which should be sorted in the order of their columns.
    ///
    /// # Errors
    /// [`TableError::Parquet`]: never for rows of this crate.
    pub fn add(&mut self, rows: &[R]) -> Result<(), TableError> {
        for rows in rows.chunks(BATCH_ROWS) {
            self.writer.write(&batch(rows)?)?;
        }
        self.rows += rows.len() as u64;
        Ok(())
    }

    /// Adds rows that an engine gives, whose columns are the table's in its order.
    ///
    /// # Errors
    /// [`TableError::Column`] where they are not.
    pub fn add_batch(&mut self, of: &RecordBatch) -> Result<(), TableError> {
        let (schema, given) = (schema(R::TABLE), of.schema());
        let mut columns = Vec::new();
        for (at, field) in schema.fields().iter().enumerate() {
            let missing = || TableError::Column(field.name().clone());
            let column = of.columns().get(at).ok_or_else(missing)?;
            if given.field(at).name() != field.name() || column.null_count() > 0 {
                return Err(missing());
            }
            columns.push(cast(column, field.data_type()).map_err(Box::new)?);
        }
        self.writer.write(&RecordBatch::try_new(schema, columns).map_err(Box::new)?)?;
        self.rows += of.num_rows() as u64;
        Ok(())
    }

    /// The file, and its number of rows.
    ///
    /// # Errors
    /// [`TableError::Parquet`]: never for rows of this crate.
    pub fn finish(self) -> Result<(Bytes, u64), TableError> {
        Ok((self.writer.into_inner()?.into(), self.rows))
    }
}

/// A Parquet file of rows, which should be sorted in the order of their columns.
///
/// # Errors
/// [`TableError::Parquet`]: never for rows of this crate.
pub fn to_parquet<R: Row>(rows: &[R]) -> Result<Bytes, TableError> {
    let mut file = ParquetFile::new()?;
    file.add(rows)?;
    Ok(file.finish()?.0)
}

/// The rows of a Parquet file. It may have more columns, which are not read.
///
/// # Errors
/// [`TableError`].
pub fn from_parquet<R: Row>(file: Bytes) -> Result<Vec<R>, TableError> {
    let reader = ParquetRecordBatchReaderBuilder::try_new(file)?;
    let schema = reader.metadata().file_metadata().key_value_metadata();
    let schema = schema.into_iter().flatten().find(|pair| pair.key == SCHEMA_KEY);
    let schema = schema.and_then(|pair| pair.value.clone()).unwrap_or_default();
    if schema != SCHEMA.to_string() {
        return Err(TableError::Schema(schema));
    }
    let columns = R::columns();
    let of_file = reader.metadata().file_metadata().schema_descr_ptr();
    let mask = ProjectionMask::columns(&of_file, columns.iter().map(|(name, _)| *name));
    let mut rows = Vec::new();
    for batch in reader.with_projection(mask).build()? {
        let batch = batch.map_err(|error| TableError::Arrow(error.into()))?;
        rows.extend(Columns::of(&batch)?.to_rows::<R>()?);
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{Fact, Name};

    #[test]
    fn rows_come_back_and_the_same_rows_are_the_same_bytes() {
        let fact = |at: i64| Fact {
            service: at / 1000,
            image: at / 100,
            procedure: at * 7919,
            host: at,
            samples: at % 17,
            weight: 192_307.7,
            ..Fact::default()
        };
        let facts: Vec<Fact> = (0..300_000).map(fact).collect();
        let file = to_parquet(&facts).unwrap();
        assert_eq!(from_parquet::<Fact>(file.clone()).unwrap(), facts);
        assert_eq!(to_parquet(&facts).unwrap(), file);
        assert!(matches!(from_parquet::<Name>(file.clone()), Err(TableError::Column(_))));
        let names = [Name { procedure: 1, image: 2, name: "ü\n".to_owned() }];
        assert_eq!(from_parquet::<Name>(to_parquet(&names).unwrap()).unwrap(), names);
        assert_eq!(from_parquet::<Name>(to_parquet::<Name>(&[]).unwrap()).unwrap(), []);
    }

    #[test]
    fn damaged_files_are_refused() {
        let names: Vec<Name> =
            (0..100).map(|at| Name { procedure: at, image: 1, name: at.to_string() }).collect();
        let file = to_parquet(&names).unwrap();
        for cut in 0..file.len() {
            assert!(from_parquet::<Name>(file.slice(..cut)).is_err(), "{cut}");
        }
    }
}
