//! Facts as ingested, in many files of all services, become one file for each service.

use engine::Engine;
use ingest::Files;
use store::{FileEntry, Manifest};
use tables::{Fact, ParquetFile, Row, Table};

use crate::close::CloseError;
use crate::statement;

/// Writes the facts of each service, and gives their files. Files that are of one service already,
/// and have all of its facts, stay.
///
/// # Errors
/// [`CloseError::Sums`] where a sample would appear or vanish.
pub(crate) async fn facts(
    engine: &Engine,
    manifest: &Manifest,
    event: &str,
    services: impl IntoIterator<Item = i64>,
    files: &mut Files<'_>,
) -> Result<Vec<FileEntry>, CloseError> {
    let all: Vec<&FileEntry> = manifest.files_of(Table::Facts.name(), event).collect();
    let mixed = all.iter().any(|file| file.service.is_none());
    let mut compacted = Vec::new();
    for service in services {
        let of: Vec<&FileEntry> = all
            .iter()
            .copied()
            .filter(|file| file.service.is_none_or(|of| of == service))
            .collect();
        if let ([one], false) = (of.as_slice(), mixed) {
            compacted.push((*one).clone());
            continue;
        }
        engine.register(Table::Facts, "facts", of)?;
        let mut file = ParquetFile::<Fact>::new()?;
        let mut samples = 0_u64;
        for batch in engine.batches(&statement("compact", service)).await? {
            file.add_batch(&batch)?;
            samples += sum(&batch);
        }
        let (file, rows) = file.finish()?;
        if rows == 0 {
            continue;
        }
        let entry = FileEntry {
            table: Fact::TABLE.name().to_owned(),
            event: event.to_owned(),
            rows,
            samples,
            service: Some(service),
            ..FileEntry::default()
        };
        files.put_file(entry, file).await?;
        compacted.extend(files.entries.pop());
    }
    let listed: u64 = all.iter().map(|file| file.samples).sum();
    let found: u64 = compacted.iter().map(|file| file.samples).sum();
    if listed == found { Ok(compacted) } else { Err(CloseError::Sums { listed, found }) }
}

/// The sum of a batch's samples.
fn sum(batch: &arrow::record_batch::RecordBatch) -> u64 {
    let column = batch.column_by_name("samples");
    let column =
        column.and_then(|column| column.as_any().downcast_ref::<arrow::array::Int64Array>());
    let values = column.into_iter().flat_map(|column| column.values().iter());
    values.map(|samples| u64::try_from(*samples).unwrap_or_default()).sum()
}
