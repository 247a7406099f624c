//! Folding: makes one segment of adjacent ones of a group of slices, a little at a time, so that an
//! epoch stays a few files a day and no burst of work disturbs the machine.

use std::collections::VecDeque;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::epoch::EpochId;
use crate::error::DbError;
use crate::fold_job::{Job, Made};
use crate::naming;
use crate::section_sum;
use crate::segment::{SectionKey, SectionKind, Segment, SegmentBuilder, Span};
use crate::shapes::SLICES_MAX;
use crate::sliced;
use crate::slices::{Group, Plan, groups};
use crate::storage::{Disk, MAX_FILE_BYTES};

/// Least number of adjacent segments that are folded at once while their group is not over. Fewer
/// write each byte more often: those of ten minutes, one every ten seconds, wait until these are
/// over. More leave more files.
const FOLD_AT: usize = 64;
/// A segment is folded with those behind it when these together have its bytes divided by this. So
/// each byte is rewritten only a few times however large the epoch is, and there are never many
/// segments.
const FOLD_SHARE: u64 = 2;
/// Most bytes of segments that are folded together: they and the result are in the daemon's memory
/// meanwhile. A larger limit needs a larger memory limit, a smaller one leaves more files.
const FOLD_MAX_BYTES: u64 = 24 << 20;
/// Seconds for which segments stay after a fold has replaced them. `cp -a`, `tar` and `rsync` list
/// a directory first and open its files later: files that were listed must still be there then, or
/// the copy has a gap. In ten minutes some gigabytes are copied; a longer time only takes disk
/// space.
const COVERED_KEPT_S: u64 = 600;
/// Most replaced segments that stay; beyond, the oldest are removed early. A directory of fewer
/// than about 700 entries is listed by one getdents64(2) of the 32 KiB that the C library and rsync
/// give it, which sees one state of the directory.
const COVERED_MAX: usize = 192;
/// Most bytes of replaced segments that stay; beyond, the oldest are removed early.
const COVERED_MAX_BYTES: u64 = 64 << 20;

/// Most segments of an epoch that keep to groups of slices; beyond, adjacent ones are folded
/// whatever their times are. An epoch of a year has about 400 groups. With the segments that stay
/// for copies the directory must keep below 700 entries.
pub(crate) const SEGMENTS_MAX: usize = 480;

/// Segments that are folded at once then. With more, one fold is longer; with fewer, each merge has
/// to fold again.
const ACROSS_GROUPS: usize = 16;

/// The result of a call of [`crate::Writer::fold`].
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Folded {
    /// Bytes of segments that were read and added up.
    pub read_bytes: u64,
    /// Bytes written; 0 until a fold is complete.
    pub written_bytes: u64,
    /// True when there is more to do now.
    pub more: bool,
}

/// A segment on disk.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) span: Span,
    pub(crate) bytes: u64,
    /// Time of its last merge, in seconds since 1970 UTC; None until it is read.
    pub(crate) end: Option<u64>,
}

/// The segments of an epoch, as its writer knows them.
#[derive(Debug)]
pub(crate) struct SegmentSet {
    disk: Disk,
    directory: PathBuf,
    host: String,
    epoch: EpochId,
    /// Segments in the order of their merges.
    stored: Vec<Stored>,
    /// Begin of the epoch, in seconds since 1970 UTC; None until it is read.
    began: Option<u64>,
    job: Option<Job>,
    /// Segments that a fold replaced, and that were not handed to [`Covered`] yet.
    left: Vec<Stored>,
    /// A fold that has its name, which may not be safe on the disk yet. The segments that it
    /// replaces must stay, and nothing is folded across it.
    unsynced: Option<Stored>,
    /// Forcing the directory to the disk has failed since, so that fold has to be written again.
    doubted: bool,
    /// A fold that failed, whose file perhaps could not be removed.
    failed: Option<Span>,
    /// A segment is damaged or of a later release, so the segments stay as they are.
    stuck: bool,
}

impl SegmentSet {
    /// The segments of an epoch.
    pub(crate) fn new(
        disk: Disk,
        directory: PathBuf,
        of: (String, EpochId),
        stored: Vec<Stored>,
    ) -> Self {
        let (host, epoch) = of;
        Self {
            disk,
            directory,
            host,
            epoch,
            stored,
            began: None,
            job: None,
            left: Vec::new(),
            unsynced: None,
            doubted: false,
            failed: None,
            stuck: false,
        }
    }

    /// The epoch began at this time, in seconds since 1970 UTC.
    pub(crate) const fn began(&mut self, began_unix_s: u64) {
        self.began = Some(began_unix_s);
    }

    pub(crate) const fn disk(&self) -> &Disk {
        &self.disk
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The file of the last merge.
    pub(crate) fn newest(&self) -> Option<PathBuf> {
        let newest = self.stored.iter().map(|stored| stored.span).max_by_key(|span| span.last)?;
        Some(self.directory.join(newest.name()))
    }

    /// Adds a segment that was published.
    pub(crate) fn add(&mut self, stored: Stored) {
        self.stored.push(stored);
    }

    /// Whether a sealed epoch has only one segment.
    pub(crate) const fn is_whole(&self) -> bool {
        self.stored.len() <= 1
    }

    /// Hands over the segments that wider ones replaced.
    pub(crate) fn retire(&mut self, covered: &mut Covered, now_unix_s: u64) {
        for stored in self.left.drain(..) {
            let path = self.directory.join(stored.span.name());
            covered.segments.push_back(Retired {
                path,
                bytes: stored.bytes,
                folded_unix_s: now_unix_s,
            });
        }
    }

    /// Whether a sealed epoch has segments that may be folded at this time. An epoch whose segments
    /// cannot be read has none.
    pub(crate) fn is_ripe(&mut self, now_unix_s: u64) -> bool {
        self.learn_times().is_ok() && self.choose(true, now_unix_s).is_some()
    }

    /// Reads the times of segments that are not known yet: of those that an earlier writer left.
    fn learn_times(&mut self) -> Result<(), DbError> {
        if self.stuck || (self.began.is_some() && self.stored.iter().all(|one| one.end.is_some())) {
            return Ok(());
        }
        for stored in &mut self.stored {
            let of = (self.host.as_str(), &self.epoch);
            let read = Segment::read(&self.disk, &self.directory, stored.span, of)
                .and_then(|segment| segment.map_or(Ok(None), |read| section_sum::meta(&read)));
            let meta = read.inspect_err(|error| self.stuck = !error.is_transient())?;
            let Some(meta) = meta else {
                self.stuck = true;
                return Ok(());
            };
            self.began = Some(meta.started_unix_s);
            stored.end = Some(meta.updated_unix_s);
        }
        Ok(())
    }

    /// Adds up about this many bytes of segments, each with others of its group; with `last` until
    /// each group has one segment. See [`crate::Writer::fold`].
    pub(crate) fn fold(
        &mut self,
        budget_bytes: u64,
        last: bool,
        now_unix_s: u64,
    ) -> Result<Folded, DbError> {
        let mut folded = Folded::default();
        self.finish()?;
        self.learn_times()?;
        if self.job.as_ref().is_some_and(|job| last && !job.last) {
            self.job = None;
        }
        if self.job.is_none() && !self.begin(last, now_unix_s)? {
            return Ok(folded);
        }
        let Some(mut job) = self.job.take() else { return Ok(folded) };
        while folded.read_bytes < budget_bytes.max(1) {
            match job.step() {
                Ok(Some(bytes)) => folded.read_bytes = folded.read_bytes.saturating_add(bytes),
                Ok(None) => {
                    folded.written_bytes = self.publish(job)?;
                    folded.more = self.choose(last, now_unix_s).is_some();
                    return Ok(folded);
                }
                Err(error) => {
                    self.stuck = true;
                    return Err(error);
                }
            }
        }
        self.job = Some(job);
        folded.more = true;
        Ok(folded)
    }

    /// The segments to fold next, and the group that the last of them is of.
    fn choose(&self, last: bool, now_unix_s: u64) -> Option<(Range<usize>, Group)> {
        let began = self.began.filter(|_| !self.stuck)?;
        let ends: Vec<u64> = self.stored.iter().filter_map(|stored| stored.end).collect();
        let groups = groups(began, &ends, now_unix_s);
        let range = choose(&self.stored, &groups, last)?;
        let group = *groups.get(range.clone())?.last()?;
        Some((range, group))
    }

    fn begin(&mut self, last: bool, now_unix_s: u64) -> Result<bool, DbError> {
        let Some((range, group)) = self.choose(last, now_unix_s) else { return Ok(false) };
        let ends = self.stored.get(..range.start).unwrap_or_default();
        let since_unix_s =
            ends.iter().filter_map(|stored| stored.end).chain(self.began).max().unwrap_or(0);
        let chosen = self.stored.get(range).unwrap_or_default();
        let (Some(first), Some(end)) = (chosen.first(), chosen.last()) else { return Ok(false) };
        let span = Span { first: first.span.first, last: end.span.last };
        let mut sources = Vec::with_capacity(chosen.len());
        for stored in chosen {
            match Segment::read(&self.disk, &self.directory, stored.span, (&self.host, &self.epoch))
            {
                Ok(Some(segment)) => sources.push(Arc::new(segment)),
                Ok(None) => {
                    self.stuck = true;
                    return Ok(false);
                }
                Err(error) => {
                    self.stuck = error.is_unreadable();
                    return Err(error);
                }
            }
        }
        let mut slices = Vec::with_capacity(sources.len());
        for source in &sources {
            let of_source = sliced::slices(source);
            slices.push(of_source.inspect_err(|error| self.stuck = error.is_unreadable())?);
        }
        let mut keys: Vec<SectionKey> = sources
            .iter()
            .flat_map(|segment| &segment.sections)
            .map(|section| section.key.clone())
            .collect();
        keys.sort_by(|a, b| b.cmp(a));
        keys.dedup();
        if keys.iter().any(|key| !key.kind.is_known()) {
            // Sections of a later release cannot be added up here and must not be lost.
            self.stuck = true;
            return Ok(false);
        }
        // The slices, and when the counts of a section were, follow from the plan.
        keys.retain(|key| key.kind < SectionKind::SLICES);
        let (host, epoch) = (self.host.clone(), self.epoch.clone());
        let builder = SegmentBuilder::new(span, host, epoch);
        let plan = Plan::following(&slices, since_unix_s, group.slice_s);
        let made = Made::new(plan, keys.clone(), builder);
        let mut job = Job { sources, slices, since_unix_s, group, keys, span, last, made };
        if job.made.plan.slices.len() > SLICES_MAX {
            job.begin_anew(group.slice_s + 1);
        }
        self.job = Some(job);
        Ok(true)
    }

    fn publish(&mut self, job: Job) -> Result<u64, DbError> {
        let Job { sources, made, span, .. } = job;
        let builder = made.finished().inspect_err(|_| self.stuck = true);
        let builder = builder.map_err(|damage| DbError::Corrupt {
            path: self.directory.join(span.name()),
            offset: 0,
            damage,
        })?;
        let ends = self.stored.iter().find(|stored| stored.span.last == span.last);
        let sources_end = ends.and_then(|stored| stored.end);
        // The sources are freed before the whole file is in memory.
        drop(sources);
        let file = builder.finish(&self.directory).inspect_err(|_| self.stuck = true)?;
        let bytes = file.len() as u64;
        if let Err(error) = write(&self.disk, &self.directory, span, &file) {
            self.failed = Some(span);
            return Err(error);
        }
        drop(file);
        let end = sources_end;
        self.unsynced = Some(Stored { span, bytes, end });
        self.finish()?;
        Ok(bytes)
    }

    /// Finishes a fold that has its name, and removes one that failed.
    fn finish(&mut self) -> Result<(), DbError> {
        if let Some(span) = self.failed {
            self.disk.remove_if_there(&self.directory.join(span.name()))?;
            self.failed = None;
        }
        let Some(wide) = self.unsynced else { return Ok(()) };
        // Until the fold is on the disk, the segments that it replaces must stay.
        if self.doubted {
            write_anew(&self.disk, &self.directory, wide.span)?;
        }
        let synced = self.disk.sync_directory(&self.directory);
        self.doubted = synced.is_err();
        synced?;
        self.unsynced = None;
        let covered = |stored: &Stored| wide.span.covers(stored.span);
        let at = self.stored.iter().position(covered).unwrap_or(0);
        let (gone, mut kept): (Vec<Stored>, Vec<Stored>) =
            self.stored.iter().partition(|stored| covered(stored));
        kept.insert(at.min(kept.len()), wide);
        self.stored = kept;
        self.left.extend(gone.iter().filter(|gone| gone.span != wide.span));
        Ok(())
    }
}

/// Segments that wider ones have replaced. Readers do not add them up; they stay for a while for
/// copies of the directory under way.
#[derive(Debug, Default)]
pub(crate) struct Covered {
    /// Segments in the order of their folds.
    segments: VecDeque<Retired>,
}

#[derive(Debug)]
struct Retired {
    path: PathBuf,
    bytes: u64,
    /// Time of the fold, in seconds since 1970 UTC.
    folded_unix_s: u64,
}

impl Covered {
    /// Removes segments whose time is over, and the oldest beyond the limits. A clock that was set
    /// keeps no segment longer: only the distance in time counts. A segment that cannot be removed
    /// is left for the next writer.
    pub(crate) fn remove(&mut self, disk: &Disk, now_unix_s: u64) {
        let mut bytes =
            self.segments.iter().fold(0, |sum: u64, retired| sum.saturating_add(retired.bytes));
        while let Some(oldest) = self.segments.front() {
            let in_time = now_unix_s.abs_diff(oldest.folded_unix_s) < COVERED_KEPT_S;
            if in_time && self.segments.len() <= COVERED_MAX && bytes <= COVERED_MAX_BYTES {
                break;
            }
            let _ = disk.remove_if_there(&oldest.path);
            bytes = bytes.saturating_sub(oldest.bytes);
            self.segments.pop_front();
        }
    }

    /// Forgets the segments of an epoch that is removed.
    pub(crate) fn forget(&mut self, directory: &Path) {
        self.segments.retain(|retired| !retired.path.starts_with(directory));
    }
}

/// Writes a segment, whole or not at all. The caller forces the directory to the disk.
pub(crate) fn write(disk: &Disk, directory: &Path, span: Span, file: &[u8]) -> Result<(), DbError> {
    let path = directory.join(span.name());
    let bytes = file.len() as u64;
    if bytes > MAX_FILE_BYTES {
        return Err(DbError::TooLarge { path, bytes, limit: MAX_FILE_BYTES });
    }
    let temporary = directory.join(naming::temporary_name(&span.name()));
    let written = disk.write_synced(&temporary, file);
    let published = written.and_then(|()| {
        disk.rename(&temporary, &path).inspect_err(|_| {
            // Over a network file system the rename may have happened although it failed.
            let _ = disk.remove_if_there(&path);
        })
    });
    if published.is_err() {
        // A file that cannot be removed now is removed by the next writer.
        let _ = disk.remove_if_there(&temporary);
    }
    published
}

/// Writes a segment that has its name again, from what the page cache still has of it.
///
/// After an error of fsync(2) the kernel reports it once and takes for written what was not:
/// another fsync succeeds and saves nothing (Rebello et al., "Can applications recover from fsync
/// failures?", USENIX ATC 2020). A new file with a new name is a change of its own, which the next
/// sync forces out.
pub(crate) fn write_anew(disk: &Disk, directory: &Path, span: Span) -> Result<(), DbError> {
    let path = directory.join(span.name());
    let Some(file) = disk.read_if_there(&path)? else { return Err(DbError::Removed { path }) };
    write(disk, directory, span, &file)
}

/// Whether `second` begins where `first` ends. A fold over a gap would hide the gap.
const fn adjoin(first: &Stored, second: &Stored) -> bool {
    match first.span.last.checked_add(1) {
        Some(next) => next == second.span.first,
        None => false,
    }
}

/// The segments to fold next: of a group that is over, or of an epoch that is (`last`), the first
/// adjacent ones; of the group of the newest segment those that are worth it.
fn choose(stored: &[Stored], groups: &[Group], last: bool) -> Option<Range<usize>> {
    if stored.len() > SEGMENTS_MAX {
        // A clock that jumps makes groups without end.
        let many = choose_all(stored)?;
        return Some(many.start..many.end.min(many.start + ACROSS_GROUPS));
    }
    let mut begin = 0;
    for of_group in groups.chunk_by(PartialEq::eq) {
        let range = begin..begin + of_group.len();
        let segments = stored.get(range.clone()).unwrap_or_default();
        let is_over = last || of_group.first().is_some_and(|group| group.is_over);
        let chosen = if is_over {
            choose_all(segments)
        } else if range.end == stored.len() {
            choose_newest(segments)
        } else {
            None
        };
        if let Some(chosen) = chosen {
            return Some(begin + chosen.start..begin + chosen.end);
        }
        begin = range.end;
    }
    None
}

/// The newest segments that are worth folding: those of a row whose sizes do not fall steeply.
fn choose_newest(stored: &[Stored]) -> Option<Range<usize>> {
    let mut begin = stored.len();
    let mut together = 0_u64;
    while let Some((before, one)) =
        begin.checked_sub(1).and_then(|before| Some((before, stored.get(before)?)))
    {
        let sum = together.saturating_add(one.bytes);
        let adjoins = stored.get(begin).is_none_or(|behind| adjoin(one, behind));
        let worth = begin == stored.len() || one.bytes <= together.saturating_mul(FOLD_SHARE);
        if !adjoins || !worth || sum > FOLD_MAX_BYTES {
            break;
        }
        together = sum;
        begin = before;
    }
    (stored.len() - begin >= FOLD_AT).then_some(begin..stored.len())
}

/// The first adjacent segments, at least two, that may become one.
fn choose_all(stored: &[Stored]) -> Option<Range<usize>> {
    let mut begin = 0;
    while begin + 1 < stored.len() {
        let mut together = 0_u64;
        let mut last: Option<&Stored> = None;
        let rest = stored.get(begin..).unwrap_or_default();
        let fits = rest.iter().take_while(|one| {
            together = together.saturating_add(one.bytes);
            let adjoins = last.replace(one).is_none_or(|last| adjoin(last, one));
            adjoins && together <= FOLD_MAX_BYTES
        });
        let count = fits.count();
        if count > 1 {
            return Some(begin..begin + count);
        }
        begin += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Segments of these sizes, a merge each.
    fn row(sizes: &[u64]) -> Vec<Stored> {
        sizes
            .iter()
            .zip(0..)
            .map(|(bytes, merge)| Stored { span: Span::one(merge), bytes: *bytes, end: None })
            .collect()
    }

    #[test]
    fn a_row_ends_at_a_gap() {
        let mut stored = row(&[5; 2 * FOLD_AT]);
        stored.remove(5);
        assert_eq!(choose_newest(&stored), Some(5..2 * FOLD_AT - 1));
        assert_eq!(choose_all(&stored), Some(0..5));
        stored.remove(FOLD_AT + 5);
        assert_eq!(choose_newest(&stored), None);
        let lonely =
            [0, 2, 4, u64::MAX].map(|merge| Stored { span: Span::one(merge), bytes: 5, end: None });
        assert_eq!(choose_all(&lonely), None);
    }

    #[test]
    fn rows_of_like_sizes_are_chosen() {
        let small = |before: &[u64], count: usize| [before, vec![5; count].as_slice()].concat();
        for (sizes, chosen) in [
            (vec![], None),
            (small(&[], FOLD_AT - 1), None),
            (small(&[], FOLD_AT), Some(0..FOLD_AT)),
            (small(&[1000], FOLD_AT - 1), None),
            (small(&[1000], FOLD_AT), Some(1..FOLD_AT + 1)),
            (small(&[900, 600], FOLD_AT), Some(0..FOLD_AT + 2)),
            (small(&[3000, 600], FOLD_AT), Some(1..FOLD_AT + 2)),
            (small(&[FOLD_MAX_BYTES], FOLD_AT - 1), None),
        ] {
            assert_eq!(choose_newest(&row(&sizes)), chosen, "{sizes:?}");
        }
        assert_eq!(choose_all(&row(&[1])), None);
        assert_eq!(choose_all(&row(&[1, 2, 3])), Some(0..3));
        assert_eq!(choose_all(&row(&[FOLD_MAX_BYTES, 2, 3])), Some(1..3));
        assert_eq!(choose_all(&row(&[FOLD_MAX_BYTES, FOLD_MAX_BYTES])), None);
    }

    /// However many merges there are, the number of segments stays small, and the rewritten data
    /// stays a small multiple of the new data.
    #[test]
    fn a_week_of_merges_stays_a_few_segments_and_little_work() {
        let mut sizes: Vec<u64> = Vec::new();
        let (mut written, mut most) = (0_u64, 0);
        for merge in 0..1008_u64 {
            sizes.push(20_000 + merge % 7 * 5000);
            while let Some(range) = choose_newest(&row(&sizes)) {
                let sum: u64 = sizes[range.clone()].iter().sum();
                written += sum;
                sizes.splice(range, [sum]);
            }
            most = most.max(sizes.len());
        }
        let new: u64 = sizes.iter().sum();
        assert!(most <= 2 * FOLD_AT, "{most} segments");
        assert!(written < 3 * new, "{written} bytes written anew for {new}");
    }
}
