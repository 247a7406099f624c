//! `dcpi-fleet sql`: answers a question about the tables of weeks.

use std::io::Write as _;

use arrow::array::Array as _;
use arrow::datatypes::DataType;
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use clap::{Args, ValueEnum};
use engine::Engine;
use ingest::{TIME, file_bytes};
use store::{FileEntry, Manifest};
use tables::Table;

use crate::csv::record;
use crate::escape::Spelt;
use crate::store_option::{InStore, OfWeek, OnEngine};

/// `dcpi-fleet sql`.
#[derive(Args, Debug)]
#[command(after_help = "\
Tables and columns: docs/src/fleet.md, or select * from information_schema.columns. The \
tables are those of the week; of the week before, the same with _before behind their names.")]
pub struct Sql {
    /// The question: one SELECT
    question: String,
    #[command(flatten)]
    store: InStore,
    #[command(flatten)]
    week: OfWeek,
    /// The event that facts are of
    #[arg(long, value_name = "EVENT", default_value = TIME)]
    event: String,
    #[command(flatten)]
    engine: OnEngine,
    /// Form of the answer
    #[arg(long, value_enum, default_value_t = Form::Csv)]
    format: Form,
}

#[derive(Copy, Clone, Debug, ValueEnum)]
enum Form {
    /// A line for each row, and one of names before (RFC 4180)
    Csv,
    /// An object for each row, on a line of its own
    Json,
}

/// # Errors
/// One line, with the next step.
pub async fn run(args: &Sql) -> Result<bool, String> {
    let store = args.store.open()?;
    let engine = Engine::at(&args.engine.engine, &store, args.engine.memory_bytes());
    let engine = engine.map_err(|error| error.to_string())?;
    let week = args.week.get();
    for (suffix, week) in [("", week), ("_before", week.before(1))] {
        let manifest = Manifest::newest(&store, week).await.map_err(|error| error.to_string())?;
        if suffix.is_empty() && manifest.number == 0 {
            return Err(format!(
                "the store has nothing of {week}; dcpi-fleet ingest takes what hosts have pushed"
            ));
        }
        // Two are never stored.
        let is_stored = |table: &&Table| !matches!(table, Table::PairSums | Table::HeadTimes);
        for table in Table::ALL.iter().filter(is_stored) {
            let files = files(*table, &manifest, &args.event);
            // An engine would not see a changed byte: pages of Parquet have no checksums here. A
            // table that the question does not name is not read.
            if args.question.to_lowercase().contains(table.name()) {
                for file in &files {
                    file_bytes(&store, file).await.map_err(|error| error.to_string())?;
                }
            }
            let name = format!("{}{suffix}", table.name());
            engine.register(*table, &name, files).map_err(|error| error.to_string())?;
        }
    }
    let mut out = std::io::stdout().lock();
    let mut written = Ok(());
    let mut is_first = true;
    let asked = engine.each(&args.question, |batch| {
        let text = match args.format {
            Form::Csv => csv(batch, is_first),
            Form::Json => json(batch),
        };
        is_first = false;
        written = text.and_then(|text| match out.write_all(&text) {
            Err(error) => Err(Unwritten::Out(error)),
            Ok(()) => Ok(()),
        });
        written.is_ok()
    });
    asked.await.map_err(|error| error.to_string())?;
    match written {
        // As head(1) ends a pipe.
        Err(Unwritten::Out(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(true),
        Err(Unwritten::Out(error)) => Err(error.to_string()),
        Err(Unwritten::Value(error)) => Err(error.to_string()),
        Ok(()) => Ok(true),
    }
}

/// Why an answer was not written.
enum Unwritten {
    Out(std::io::Error),
    Value(ArrowError),
}

/// The files of a table, of an event where the table's rows are of one.
fn files<'a>(table: Table, manifest: &'a Manifest, event: &str) -> Vec<&'a FileEntry> {
    let files = manifest.files.iter().filter(|file| file.table == table.name());
    files.filter(|file| file.event == event || file.event.is_empty()).collect()
}

/// The texts of each column, row by row.
fn texts(batch: &RecordBatch) -> Result<Vec<ArrayFormatter<'_>>, Unwritten> {
    let of = |column| ArrayFormatter::try_new(column, &FormatOptions::default());
    batch
        .columns()
        .iter()
        .map(|column| of(column.as_ref()))
        .collect::<Result<_, _>>()
        .map_err(Unwritten::Value)
}

/// As `dcpi` writes CSV: what a terminal would obey, or a spreadsheet take for a formula, is text.
fn csv(batch: &RecordBatch, with_names: bool) -> Result<Vec<u8>, Unwritten> {
    let mut text = Vec::new();
    let mut record = |cells: &[String]| record(&mut text, cells).map_err(Unwritten::Out);
    if with_names {
        let schema = batch.schema();
        let names: Vec<String> =
            schema.fields().iter().map(|field| field.name().to_owned()).collect();
        record(&names)?;
    }
    let columns = texts(batch)?;
    for row in 0..batch.num_rows() {
        let values: Vec<String> =
            columns.iter().map(|column| column.value(row).to_string()).collect();
        record(&values)?;
    }
    Ok(text)
}

fn json(batch: &RecordBatch) -> Result<Vec<u8>, Unwritten> {
    let mut text = Vec::new();
    let (schema, columns) = (batch.schema(), texts(batch)?);
    for row in 0..batch.num_rows() {
        let value = |at: usize, column: &ArrayFormatter<'_>| {
            let (array, shown) = (batch.column(at), column.value(row).to_string());
            match array.data_type() {
                DataType::Null => serde_json::Value::Null,
                _ if array.is_null(row) => serde_json::Value::Null,
                DataType::Boolean => serde_json::Value::Bool(shown == "true"),
                of if of.is_numeric() => shown.parse().unwrap_or(serde_json::Value::String(shown)),
                _ => serde_json::Value::String(shown),
            }
        };
        let fields = schema.fields().iter().zip(&columns).enumerate();
        let object: serde_json::Map<String, serde_json::Value> =
            fields.map(|(at, (field, column))| (field.name().clone(), value(at, column))).collect();
        let object = serde_json::Value::Object(object);
        serde_json::to_writer(Spelt(&mut text), &object)
            .map_err(|error| Unwritten::Out(error.into()))?;
        text.push(b'\n');
    }
    Ok(text)
}
