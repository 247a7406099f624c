//! The images of files, and the queue through which the drain offers code to the librarian.
//!
//! The librarian is a thread of the crate `persistence`, which copies the code of images with
//! samples. A file is offered once a day, generated code once; the drain never waits for the
//! librarian.

use image::{ImageId, ImageKind, LINE_BYTES};
use inspect::file_catalogue::Catalogue;
use inspect::questions::{DumpedCode, FileAt};
use kernel::clock;
use model::Counts;
use profiledb::Delta;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{SyncSender, TrySendError};
use wire::CodeStoreStatus;

/// Attempts to open a file, each through another process that has samples in it.
const TRIES_MAX: u32 = 8;

/// An image whose code is wanted, and where its file can be found now.
#[derive(Debug)]
pub struct Wanted {
    /// The image.
    pub id: ImageId,
    /// Files and the vdso are kept, other kinds not.
    pub kind: ImageKind,
    /// The file, and a process that has it mapped.
    pub file: FileAt,
}

/// Pieces of generated code whose bytes are wanted.
#[derive(Clone, Debug)]
pub struct PiecesWanted {
    /// The image.
    pub image: ImageId,
    /// Offset of each piece in the image.
    pub offsets: Vec<u64>,
    /// Where a jitdump has them, in the same order.
    pub question: DumpedCode,
}

/// Samples of a file.
#[derive(Clone, Debug)]
pub struct SampledFile {
    /// The image.
    pub image: ImageId,
    /// Lines of the file ([`LINE_BYTES`]) and their samples.
    pub lines: Vec<(u32, u32)>,
}

/// When a mapped file is to be offered next.
#[derive(Debug, Default)]
pub struct Offer {
    next_day: AtomicU32,
    failures: AtomicU32,
}

impl Offer {
    /// The file could not be opened: another process that has it mapped is tried, a few times.
    pub fn failed(&self) {
        if self.failures.fetch_add(1, Relaxed) + 1 < TRIES_MAX {
            self.renew();
        }
    }

    /// The file is to be offered again today.
    pub fn renew(&self) {
        self.next_day.store(0, Relaxed);
    }

    /// Whether the file is to be offered today.
    pub fn is_open(&self) -> bool {
        self.next_day.load(Relaxed) <= today()
    }

    /// The file is offered, and need not be again today.
    pub fn take(&self) {
        self.next_day.store(today().saturating_add(1), Relaxed);
    }

    /// Number of failed attempts to open the file.
    pub fn failures(&self) -> u32 {
        self.failures.load(Relaxed)
    }
}

/// Days since 1970.
fn today() -> u32 {
    u32::try_from(clock::unix_s() / 86_400).unwrap_or(u32::MAX - 1)
}

/// A message to the librarian.
#[derive(Debug)]
pub enum CodeRequest {
    /// An image has samples.
    Wanted(Box<Wanted>, Arc<Offer>),
    /// Generated code has samples.
    Pieces(Box<PiecesWanted>),
    /// Files have these samples more.
    Sampled(Vec<SampledFile>),
    /// Something else has changed: look.
    Wake,
}

/// The librarian's counters, and whether it has been asked to end.
#[derive(Debug, Default)]
pub struct CodeStoreCounts {
    /// The daemon is ending.
    pub ending: AtomicBool,
    /// Bytes that the store may take.
    pub limit_bytes: u64,
    /// Images in the store.
    pub images: AtomicU64,
    /// Bytes of the store.
    pub bytes: AtomicU64,
    /// Images whose code was copied.
    pub kept: AtomicU64,
    /// Images that were removed to make room.
    pub removed: AtomicU64,
    /// Images whose code could not be kept.
    pub refused: AtomicU64,
    /// Images left out because not everybody may read their files.
    pub private: AtomicU64,
    /// Images whose files were gone before they could be opened.
    pub gone: AtomicU64,
    /// Offers put off because too many waited.
    pub put_off: AtomicU64,
    /// Files that are open and wait to be copied.
    pub waiting: AtomicU64,
    /// CPU time of the thread and its inspectors until it last waited or rested.
    pub cpu_ns: AtomicU64,
}

/// Looks up images and offers their code to the librarian. The default library knows nothing and
/// keeps nothing.
#[derive(Clone, Debug, Default)]
pub struct Library {
    /// The catalogue of identified files.
    pub catalogue: Catalogue,
    desk: Option<Desk>,
}

#[derive(Clone, Debug)]
struct Desk {
    requests: SyncSender<CodeRequest>,
    counts: Arc<CodeStoreCounts>,
}

impl Library {
    /// A library that sends offers to a librarian. Without `librarian` nothing is kept.
    pub fn new(
        catalogue: Catalogue,
        librarian: Option<(SyncSender<CodeRequest>, Arc<CodeStoreCounts>)>,
    ) -> Self {
        let desk = librarian.map(|(requests, counts)| Desk { requests, counts });
        Self { catalogue, desk }
    }

    /// Whether that file should be offered today.
    pub fn wants(&self, offer: &Offer) -> bool {
        self.desk.is_some() && offer.is_open()
    }

    /// Offers an image. Never waits: if too many offers are queued, the file must be offered again.
    pub fn offer(&self, wanted: Wanted, offer: &Arc<Offer>) {
        let Some(desk) = &self.desk else { return };
        offer.take();
        match desk.requests.try_send(CodeRequest::Wanted(Box::new(wanted), offer.clone())) {
            Err(TrySendError::Full(_)) => {
                desk.counts.put_off.fetch_add(1, Relaxed);
                offer.renew();
            }
            Ok(()) | Err(TrySendError::Disconnected(_)) => {}
        }
    }

    /// Offers pieces of generated code. Never waits: if too many offers are queued, their code is
    /// not kept.
    pub fn offer_pieces(&self, wanted: PiecesWanted) {
        let Some(desk) = &self.desk else { return };
        if let Err(TrySendError::Full(_)) =
            desk.requests.try_send(CodeRequest::Pieces(Box::new(wanted)))
        {
            desk.counts.refused.fetch_add(1, Relaxed);
        }
    }

    /// Reports the samples of a merge to the librarian, which chooses by them what code it keeps.
    /// Never waits: if too many requests are queued, these samples pay for no code.
    pub fn sampled(&self, delta: &Delta) {
        let Some(desk) = &self.desk else { return };
        let mut files: BTreeMap<ImageId, BTreeMap<u32, u32>> = BTreeMap::new();
        let is_file = |image: &ImageId| !image.is_name() && !image.is_unresolved();
        for (key, counts) in delta.profiles.iter().filter(|(key, _)| is_file(&key.image)) {
            let (Counts::Places(profile), Some(_)) = (counts, key.measure.period()) else {
                continue;
            };
            let lines = files.entry(key.image).or_default();
            for (offset, samples) in profile.iter() {
                // Offsets beyond 256 GB are in no file.
                let Ok(line) = u32::try_from(offset.0 / LINE_BYTES) else { continue };
                let sum = lines.entry(line).or_default();
                *sum = sum.saturating_add(u32::try_from(samples).unwrap_or(u32::MAX));
            }
        }
        let file = |(image, lines): (_, BTreeMap<_, _>)| SampledFile {
            image,
            lines: lines.into_iter().collect(),
        };
        let _ = desk.requests.try_send(CodeRequest::Sampled(files.into_iter().map(file).collect()));
    }

    /// The state of the code store; None: it is off.
    pub fn status(&self) -> Option<CodeStoreStatus> {
        let counts = &self.desk.as_ref()?.counts;
        let of = |count: &AtomicU64| count.load(Relaxed);
        Some(CodeStoreStatus {
            images: of(&counts.images),
            bytes: of(&counts.bytes),
            limit_bytes: counts.limit_bytes,
            kept: of(&counts.kept),
            removed: of(&counts.removed),
            refused: of(&counts.refused),
            private: of(&counts.private),
            gone: of(&counts.gone),
            put_off: of(&counts.put_off),
            waiting: of(&counts.waiting),
            cpu_s: of(&counts.cpu_ns) as f64 / 1e9,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use inspect::open_mapped::MappedAt;
    use kernel::MappedFileId;
    use kernel::latin1::Bytes;
    use std::sync::mpsc;

    fn wanted() -> Wanted {
        let at = MappedAt { pid: std::process::id(), start: 0, end: 0 };
        let id = MappedFileId::BuildId(vec![1; 20]);
        let file = FileAt { id, path: Bytes(b"/bin/x".to_vec()), at };
        Wanted { id: ImageId::from_build_id(&[1; 20]).unwrap(), kind: ImageKind::File, file }
    }

    #[test]
    fn a_full_queue_puts_off_and_never_waits() {
        let (requests, queue) = mpsc::sync_channel(2);
        let library = Library::new(Catalogue::default(), Some((requests, Arc::default())));
        let offers: Vec<Arc<Offer>> = (0..5).map(|_| Arc::default()).collect();
        for offer in &offers {
            library.offer(wanted(), offer);
        }
        let again = offers.iter().filter(|offer| library.wants(offer)).count();
        assert_eq!((again, library.status().unwrap().put_off), (3, 3));
        drop(queue);
        library.offer(wanted(), &offers[4]);
        assert!(!Library::default().wants(&Offer::default()), "nobody keeps anything");
    }

    #[test]
    fn a_file_that_cannot_be_opened_is_not_offered_for_ever() {
        let (requests, _queue) = mpsc::sync_channel(2);
        let library = Library::new(Catalogue::default(), Some((requests, Arc::default())));
        let offer = Arc::default();
        library.offer(wanted(), &offer);
        assert!(!library.wants(&offer), "once a day");
        offer.failed();
        assert!(library.wants(&offer), "another process may have it");
        (0..TRIES_MAX).for_each(|_| offer.failed());
        library.offer(wanted(), &offer);
        offer.failed();
        assert!(!library.wants(&offer), "not for ever");
    }
}
