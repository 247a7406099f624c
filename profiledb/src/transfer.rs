//! Work on epochs that no daemon writes: sealing, merging several into one, copying into another
//! database.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use image::ImageId;
use model::{Facts, Ledgers, MergedFrom};

use crate::checked_file::CheckedFile;
use crate::code;
use crate::description::{EpochMeta, EventMeta, Machine, PERIODS_MAX};
use crate::envelope::Kind;
use crate::epoch::EpochId;
use crate::error::DbError;
use crate::fold;
use crate::naming;
use crate::outgoing::Outgoing;
use crate::reader::{Database, Epoch};
use crate::scope::ScopeTable;
use crate::segment::Span;
use crate::snapshot::Snapshot;
use crate::storage::Disk;
use crate::symbols::Symbol;
use crate::writer::Writer;

mod objects;
mod pieces;
mod sum;

pub use objects::{
    CodeFile, FORMAT, check_code_object, check_epoch_object, code_files, is_same_epoch, outgoing,
    outgoing_place,
};
use pieces::Piece;
use sum::sum;

/// The result of copying an epoch.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Copied {
    /// The target did not have the epoch.
    New,
    /// The target had the epoch as of an earlier merge.
    Updated,
    /// The target had the epoch already.
    AlreadyThere,
}

/// Ends the epoch that a writer of this host left open, as of its last merge, and makes each ended
/// epoch one file. Returns the epoch that was open; None when all had ended.
///
/// # Errors
/// [`DbError::Locked`] while a daemon writes; as [`Database::open`], [`Writer::open`] and
/// [`Writer::seal`].
pub fn seal(database: &Database, host: &str) -> Result<Option<EpochId>, DbError> {
    let mut writer = writer(database, host)?;
    let open = writer.resume()?;
    if open.is_some() {
        // The epoch ends with its last merge, because nothing was sampled after it.
        writer.seal(0)?;
    }
    while writer.fold(u64::MAX, u64::MAX)?.more {}
    // The time is so late that no segment stays for copies under way: a sealed database should be
    // one file.
    writer.fold(u64::MAX, 0)?;
    Ok(open)
}

fn writer(database: &Database, host: &str) -> Result<Writer, DbError> {
    Writer::open_with(database.disk().clone(), database.root(), host)
}

/// Merges several epochs into one of `host` in `target`: all counts and ledgers are added up. The
/// epochs themselves stay. Slices of time stay apart, except for those that overlap. Fields in
/// which the machines and facts differ are left out; the fact `merged_from` names the epochs, and
/// `stated` is added.
///
/// # Errors
/// [`DbError::Incompatible`] when an event has not the same unit in all, or more than 64 periods;
/// [`DbError::InTheWay`] when the host has an epoch open in `target`; [`DbError::Damaged`] and
/// [`DbError::Unbalanced`] for epochs that are not whole; as [`Writer::open`] and
/// [`Epoch::profile`].
pub fn merge_epochs(
    sources: &[Epoch],
    target: &Database,
    host: &str,
    label: Option<&str>,
    stated: &Facts,
) -> Result<EpochId, DbError> {
    label.map_or(Ok(()), naming::check_label)?;
    sources.iter().try_for_each(whole)?;
    let mut writer = writer(target, host)?;
    if writer.resume()?.is_some() {
        let path = naming::host_path(target.root(), host);
        return Err(DbError::InTheWay {
            path,
            why: "it has an open epoch; seal that first, or name another host",
        });
    }
    let metas: Vec<&EpochMeta> = sources.iter().map(Epoch::meta).collect();
    let started = metas.iter().map(|meta| meta.started_unix_s).min().unwrap_or(0);
    let epoch = writer.next_name(started)?;
    let mut meta = joined_meta(&metas, host, epoch, label)?;
    meta.facts.extend(stated);
    let pieces = pieces::of_merge(sources, &mut meta)?;
    write_new(target, &meta, &pieces)?;
    Ok(meta.epoch)
}

/// Copies an epoch into another database, under its host and name, ended as of its last merge, with
/// its slices of time. An epoch that is there as of an earlier merge is updated, one segment after
/// the other, so that it has the counts up to some merge at any moment.
///
/// # Errors
/// [`DbError::InTheWay`] when the target has another epoch of that name; [`DbError::Damaged`]; as
/// [`Writer::open`] and [`Epoch::profile`].
pub fn copy_epoch(source: &Epoch, target: &Database) -> Result<Copied, DbError> {
    whole(source)?;
    let mut meta = source.meta().clone();
    let writer = writer(target, &meta.host)?;
    let path = naming::epoch_path(target.root(), &meta.host, &meta.epoch);
    let there = Snapshot::read(target.disk(), &path, (&meta.host, &meta.epoch))?;
    let Some(mut there) = there else {
        end(&mut meta);
        write_new(target, &meta, &pieces::of_copy(source, &meta, &[])?)?;
        drop(writer);
        return Ok(Copied::New);
    };
    let theirs = there.meta()?;
    if theirs.machine.boot_id != meta.machine.boot_id
        || theirs.started_unix_s != meta.started_unix_s
    {
        return Err(DbError::InTheWay {
            path,
            why: "it is another epoch of the same name; rename one of the hosts",
        });
    }
    if there.last() >= Some(meta.merges) {
        return Ok(Copied::AlreadyThere);
    }
    end(&mut meta);
    update(source, target, &meta, &there)?;
    drop(writer);
    Ok(Copied::Updated)
}

/// A copy has ended, because no writer adds to it.
fn end(meta: &mut EpochMeta) {
    meta.ended_unix_s.get_or_insert(meta.updated_unix_s);
}

/// Copies the kept parts of these images on a host into another database, and returns their number;
/// images that are there already stay, except for excerpts that have grown since.
///
/// # Errors
/// As [`Database::code`] and [`Writer::open`]; of files that cannot be read the first, when all
/// others are copied.
pub fn copy_code(
    source: &Database,
    host: &str,
    images: &BTreeSet<ImageId>,
    target: &Database,
) -> Result<u64, DbError> {
    let (copied, failed) = copy_readable_code(source, host, images, target)?;
    failed.into_iter().next().map_or(Ok(copied), Err)
}

/// As [`copy_code`], but returns the errors of parts that could not be read: a damaged file keeps
/// no other from being copied.
///
/// # Errors
/// [`DbError::Io`] when a directory cannot be listed or a file not be written; as [`Writer::open`].
pub fn copy_readable_code(
    source: &Database,
    host: &str,
    images: &BTreeSet<ImageId>,
    target: &Database,
) -> Result<(u64, Vec<DbError>), DbError> {
    let writer = writer(target, host)?;
    let (disk, to) = (target.disk(), naming::code_path(&naming::host_path(target.root(), host)));
    disk.create_directory(&to)?;
    let there: BTreeMap<String, u64> =
        disk.list(&to)?.into_iter().map(|entry| (entry.name, entry.modified_unix_s)).collect();
    let (mut copied, mut failed) = (0, Vec::new());
    let mut entries = Vec::new();
    for from in source.code_directories(host) {
        let of = source.disk().list_if_there(&from)?;
        entries.extend(of.into_iter().map(|entry| (from.clone(), entry)));
    }
    for (from, entry) in entries {
        let found = code::parse_name(&entry.name);
        let Some((image, kind)) = found.filter(|(image, _)| images.contains(image)) else {
            continue;
        };
        let is_there = |name: &str| there.get(name);
        let excerpt = is_there(&entry.name);
        // It has got more code since.
        let has_grown = |there: &u64| kind == Kind::Excerpt && *there < entry.modified_unix_s;
        if is_there(&naming::code_name(&image)).is_some()
            || excerpt.is_some_and(|there| !has_grown(there))
        {
            continue;
        }
        let path = from.join(&entry.name);
        let file = match CheckedFile::open(source.disk(), &path, &image, kind) {
            Ok(Some(file)) => file,
            Ok(None) => continue,
            Err(error) => {
                failed.push(error);
                continue;
            }
        };
        let temporary = to.join(naming::temporary_name(&format!("{}.0", entry.name)));
        file.write(disk, &temporary)?;
        disk.set_modified(&temporary, entry.modified_unix_s)?;
        disk.rename(&temporary, &to.join(&entry.name))?;
        copied += 1;
    }
    disk.sync_directory(&to)?;
    drop(writer);
    Ok((copied, failed))
}

/// Copies all epochs of a host into another database, with the code of their images. Returns the
/// result of [`copy_epoch`] for each.
///
/// # Errors
/// As [`copy_epoch`] and [`copy_code`]; epochs before the one that failed are copied.
pub fn copy_host(
    source: &Database,
    host: &str,
    target: &Database,
) -> Result<Vec<(EpochId, Copied)>, DbError> {
    let (mut copied, mut images) = (Vec::new(), BTreeSet::new());
    for id in source.epochs(host)? {
        let epoch = source.epoch(host, &id)?;
        copied.push((id, copy_epoch(&epoch, target)?));
        images.extend(epoch.images()?.into_keys());
    }
    copy_code(source, host, &images, target)?;
    Ok(copied)
}

/// The parts of an epoch that are copied, and symbols that are added to those of the epoch.
struct Leaving<'a> {
    parts: &'a Outgoing,
    names: &'a BTreeMap<ImageId, Vec<Symbol>>,
}

impl Leaving<'_> {
    /// All parts, and no symbols but those of the epoch.
    const ALL: Self = Self { parts: &Outgoing::ALL, names: &BTreeMap::new() };
}

/// An epoch as one segment, with what leaves of it.
///
/// # Errors
/// Errors of reading the epoch, and of a description that no segment may have.
fn whole_file(
    span: Span,
    meta: EpochMeta,
    epoch: &Epoch,
    leaving: &Leaving<'_>,
) -> Result<Vec<u8>, DbError> {
    // Without a plan, all its time is one slice.
    let piece = Piece::new(span, meta, vec![epoch.clone()]);
    sum(&piece, &mut ScopeTable::default(), Path::new(""), leaving)
}

/// Refuses an epoch of which a part cannot be read or, being of a later release, not be copied.
fn whole(epoch: &Epoch) -> Result<(), DbError> {
    let meta = epoch.meta();
    if epoch.has_unknown() {
        let why =
            "it has sections of a later release, which would be lost; use that release".to_owned();
        return Err(DbError::Damaged { epoch: meta.epoch.clone(), host: meta.host.clone(), why });
    }
    match epoch.damage().first() {
        None => Ok(()),
        Some(damage) => Err(DbError::Damaged {
            epoch: meta.epoch.clone(),
            host: meta.host.clone(),
            why: damage.to_string(),
        }),
    }
}

/// Writes an epoch that is not there yet. It is written under the name of an epoch that is being
/// removed, so that it is there whole, or the next writer removes what there is of it.
fn write_new(target: &Database, meta: &EpochMeta, pieces: &[Piece]) -> Result<(), DbError> {
    let (disk, host) = (target.disk(), naming::host_path(target.root(), &meta.host));
    let unfinished = host.join(naming::gone_name(&meta.epoch));
    disk.create_directory(&unfinished)?;
    let mut scopes = ScopeTable::default();
    for piece in pieces {
        let file = sum(piece, &mut scopes, &unfinished, &Leaving::ALL)?;
        fold::write(disk, &unfinished, piece.span, &file)?;
    }
    disk.sync_directory(&unfinished)?;
    disk.rename(&unfinished, &host.join(meta.epoch.as_str()))?;
    disk.sync_directory(&host)
}

/// Writes the segments of a copy that the target does not have, the oldest first.
fn update(
    source: &Epoch,
    target: &Database,
    meta: &EpochMeta,
    there: &Snapshot,
) -> Result<(), DbError> {
    let (disk, directory) = (target.disk(), there.directory());
    let spans: Vec<Span> = there.segments().iter().map(|segment| segment.span).collect();
    let good = there.segments().iter().filter(|segment| segment.damage().is_none());
    let good: Vec<Span> = good.map(|segment| segment.span).collect();
    let mut scopes = ScopeTable::default();
    there.scopes().iter().for_each(|scope| drop(scopes.admit(scope)));
    for piece in pieces::of_copy(source, meta, &spans)? {
        if good.contains(&piece.span) {
            continue;
        }
        let file = sum(&piece, &mut scopes, directory, &Leaving::ALL)?;
        fold::write(disk, directory, piece.span, &file)?;
        disk.sync_directory(directory)?;
        remove_covered(disk, directory, piece.span)?;
    }
    Ok(())
}

fn remove_covered(disk: &Disk, directory: &Path, span: Span) -> Result<(), DbError> {
    for other in crate::listing::spans(disk, directory)? {
        if other != span && span.covers(other) {
            disk.remove_if_there(&directory.join(other.name()))?;
        }
    }
    Ok(())
}

fn joined_meta(
    metas: &[&EpochMeta],
    host: &str,
    epoch: EpochId,
    label: Option<&str>,
) -> Result<EpochMeta, DbError> {
    let name = |meta: &EpochMeta| format!("{}/{}", meta.host, meta.epoch);
    let mut joined = EpochMeta {
        host: host.to_owned(),
        epoch,
        label: label.map(str::to_owned),
        started_unix_s: metas.iter().map(|meta| meta.started_unix_s).min().unwrap_or(0),
        ended_unix_s: metas
            .iter()
            .map(|meta| meta.ended_unix_s.unwrap_or(meta.updated_unix_s))
            .max(),
        updated_unix_s: metas.iter().map(|meta| meta.updated_unix_s).max().unwrap_or(0),
        merges: 1,
        machine: metas.iter().map(|meta| meta.machine.clone()).reduce(agreed).unwrap_or_default(),
        events: Vec::new(),
        ledgers: Ledgers::default(),
        period_changes: BTreeMap::new(),
        cost: None,
        covered: None,
        facts: metas.first().map(|meta| meta.facts.clone()).unwrap_or_default(),
        writer_version: metas
            .iter()
            .map(|meta| &meta.writer_version)
            .max()
            .cloned()
            .unwrap_or_default(),
    };
    joined.ended_unix_s.get_or_insert(0);
    let mut first_with: BTreeMap<&str, &EpochMeta> = BTreeMap::new();
    for meta in metas {
        for event in &meta.events {
            let Some(first) = first_with.get(event.name.as_str()) else {
                first_with.insert(&event.name, meta);
                joined.events.push(event.clone());
                continue;
            };
            add_event(&mut joined.events, event).map_err(|what| DbError::Incompatible {
                what,
                first: name(first),
                second: name(meta),
            })?;
        }
        for (event, changes) in &meta.period_changes {
            let all = joined.period_changes.entry(event.clone()).or_default();
            all.extend(changes.iter().cloned());
            all.sort_by_key(|change| change.at_unix_s);
        }
        joined.ledgers.add(&meta.ledgers);
    }
    if joined.ledgers.periods() > PERIODS_MAX {
        let (first, second) =
            (metas.first().map(|meta| name(meta)), metas.last().map(|meta| name(meta)));
        return Err(DbError::Incompatible {
            what: format!("rates: one event has more than {PERIODS_MAX} periods in all"),
            first: first.unwrap_or_default(),
            second: second.unwrap_or_default(),
        });
    }
    joined.facts.retain_agreed(metas.iter().map(|meta| &meta.facts));
    joined.facts.state(&MergedFrom(metas.iter().map(|meta| name(meta)).collect()));
    Ok(joined)
}

/// Adds another epoch's description of an event; a difference is an error, by name.
fn add_event(events: &mut [EventMeta], event: &EventMeta) -> Result<(), String> {
    let Some(known) = events.iter_mut().find(|known| known.name == event.name) else {
        return Ok(());
    };
    if known.unit != event.unit {
        return Err(format!("units of {}", event.name));
    }
    if known.rate_per_s != event.rate_per_s {
        known.rate_per_s = None;
    }
    if known.note != event.note {
        known.note = None;
    }
    Ok(())
}

/// The fields in which both machines agree; the others are empty.
fn agreed(a: Machine, b: Machine) -> Machine {
    let text = |a: String, b: &str| if a == b { a } else { String::new() };
    Machine {
        arch: text(a.arch, &b.arch),
        cpu_model: text(a.cpu_model, &b.cpu_model),
        cpus: if a.cpus == b.cpus { a.cpus } else { 0 },
        kernel_release: text(a.kernel_release, &b.kernel_release),
        kernel_build_id: if a.kernel_build_id == b.kernel_build_id {
            a.kernel_build_id
        } else {
            None
        },
        boot_id: text(a.boot_id, &b.boot_id),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::section_sum;
    use crate::segment::{SectionKey, SectionKind, SegmentBuilder};
    use crate::storage::Directory;
    use std::sync::Arc;

    #[test]
    fn an_epoch_with_sections_of_a_later_release_is_not_copied() {
        let directories = [(); 3].map(|()| tempfile::tempdir().unwrap());
        let [root, targets @ ..] = directories.each_ref().map(|directory| directory.path());
        let disk = Disk::new(Arc::new(Directory));
        drop(Writer::open_with(disk.clone(), root, "h").unwrap());
        let epoch: EpochId = "20251121-040233".parse().unwrap();
        let mut meta = joined_meta(&[], "h", epoch.clone(), None).unwrap();
        meta.merges = 0;
        let described = section_sum::meta_section(&meta).unwrap();
        let directory = naming::epoch_path(root, "h", &epoch);
        disk.create_directory(&directory).unwrap();
        for (later, target) in [false, true].into_iter().zip(targets) {
            let mut builder = SegmentBuilder::new(Span::one(0), "h".to_owned(), epoch.clone());
            builder.push(SectionKey::only(SectionKind::META), 0, 0, &described.bytes);
            if later {
                builder.push(SectionKey::only(SectionKind(600)), 1, 0, b"x");
            }
            fold::write(&disk, &directory, Span::one(0), &builder.finish(&directory).unwrap())
                .unwrap();
            let source = Database::of(disk.clone(), root).epoch("h", &epoch).unwrap();
            drop(Writer::open_with(disk.clone(), target, "h").unwrap());
            let copied = copy_epoch(&source, &Database::of(disk.clone(), target));
            assert_eq!(matches!(copied, Err(DbError::Damaged { .. })), later, "{copied:?}");
        }
    }
}
