//! Objects in memory of which one request fails, in one of several ways.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::{self, BoxStream};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, ObjectStoreExt as _, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result,
};
use store::{Store, object_store};
use tokio::sync::Notify;

use crate::epochs::Objects;

/// What becomes of a request.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It fails, and was not done.
    Undone,
    /// It fails, and was done.
    Done,
    /// Half of the object comes; a put fails, and is done while later requests are.
    Half,
    /// It is done twice, of which the second answer comes; a list has everything twice.
    Twice,
    /// The program is killed before it is done.
    KilledBefore,
    /// The program is killed when it was done.
    KilledAfter,
}

pub const FAULTS: [Fault; 6] = [
    Fault::Undone,
    Fault::Done,
    Fault::Half,
    Fault::Twice,
    Fault::KilledBefore,
    Fault::KilledAfter,
];

/// Which request: counted from 0, all of them, or puts.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum At {
    Request(usize),
    Put(usize),
}

/// Requests after which a put that is under way is done.
const LATE_BY: usize = 3;

type Put = (Path, PutPayload, PutOptions);

#[derive(Debug)]
pub struct Faulty {
    pub inner: InMemory,
    state: Mutex<State>,
    killed: Notify,
}

#[derive(Debug, Default)]
struct State {
    fault: Option<(At, Fault)>,
    has_failed: bool,
    requests: usize,
    puts: usize,
    late: Vec<(usize, Put)>,
}

impl State {
    /// The fault of this request.
    fn next(&mut self, is_put: bool) -> Option<Fault> {
        let (request, put) = (self.requests, self.puts);
        self.requests += 1;
        self.puts += usize::from(is_put);
        let (_, fault) = self
            .fault
            .filter(|(at, _)| *at == At::Request(request) || (is_put && *at == At::Put(put)))?;
        self.has_failed = true;
        Some(fault)
    }
}

impl Faulty {
    /// Objects whose requests do not fail yet.
    pub fn new(inner: InMemory) -> Arc<Self> {
        Arc::new(Self { inner, state: Mutex::default(), killed: Notify::new() })
    }

    /// The store in them.
    pub fn store(self: &Arc<Self>) -> Store {
        Store::over(Arc::clone(self) as Arc<dyn ObjectStore>).unwrap()
    }

    /// Lets a request fail.
    pub fn fail(&self, fault: Option<(At, Fault)>) {
        self.state.lock().unwrap().fault = fault;
    }

    /// Requests until now.
    pub fn requests(&self) -> usize {
        self.state.lock().unwrap().requests
    }

    /// Puts until now.
    pub fn puts(&self) -> usize {
        self.state.lock().unwrap().puts
    }

    /// Whether the fault was there.
    pub fn has_failed(&self) -> bool {
        self.state.lock().unwrap().has_failed
    }

    /// Works until the work is done or the program is killed; then, None.
    pub async fn until_killed<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            done = work => Some(done),
            () = self.killed.notified() => None,
        }
    }

    /// Does the puts that are under way.
    pub async fn settle(&self, all: bool) {
        let due: Vec<Put> = {
            let mut state = self.state.lock().unwrap();
            let now = state.requests;
            let is_due = |(at, _): &mut (usize, Put)| all || *at <= now;
            state.late.extract_if(.., is_due).map(|(_, put)| put).collect()
        };
        for (location, payload, options) in due {
            let _ = self.inner.put_opts(&location, payload, options).await;
        }
    }

    /// The fault of this request.
    async fn request(&self, is_put: bool) -> Option<Fault> {
        self.settle(false).await;
        let fault = self.state.lock().unwrap().next(is_put);
        if fault == Some(Fault::KilledBefore) {
            self.die().await;
        }
        fault
    }

    async fn die(&self) {
        self.killed.notify_one();
        std::future::pending::<()>().await;
    }

    /// The answer to a request that was done.
    async fn answer<T>(&self, fault: Option<Fault>, done: T) -> Result<T> {
        match fault {
            Some(Fault::Done) => Err(failed()),
            Some(Fault::KilledAfter) => {
                self.die().await;
                Err(failed())
            }
            _ => Ok(done),
        }
    }
}

fn failed() -> Error {
    Error::Generic { store: "faulty", source: "the connection was closed".into() }
}

impl fmt::Display for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("faulty objects")
    }
}

#[async_trait]
impl ObjectStore for Faulty {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let fault = self.request(true).await;
        match fault {
            Some(Fault::Undone) => return Err(failed()),
            Some(Fault::Half) => {
                let mut state = self.state.lock().unwrap();
                let due = state.requests + LATE_BY;
                state.late.push((due, (location.clone(), payload, options)));
                return Err(failed());
            }
            Some(Fault::Twice) => {
                self.inner.put_opts(location, payload.clone(), options.clone()).await?;
            }
            _ => {}
        }
        let done = self.inner.put_opts(location, payload, options).await;
        self.answer(fault, done).await?
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let fault = self.request(false).await;
        let is_head = options.head;
        let done = self.inner.get_opts(location, options).await;
        match (fault, done) {
            (Some(Fault::Undone), _) => Err(failed()),
            (Some(Fault::Half), Ok(_)) if is_head => Err(failed()),
            (Some(Fault::Half), Ok(mut found)) => {
                let bytes = self.inner.get(location).await?.bytes().await?;
                let pieces = vec![Ok(bytes.slice(..bytes.len() / 2)), Err(failed())];
                found.payload = GetResultPayload::Stream(stream::iter(pieces).boxed());
                Ok(found)
            }
            (fault, done) => self.answer(fault, done).await?,
        }
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let fault = self.request(false).await;
        if matches!(fault, Some(Fault::Undone | Fault::Half)) {
            return Err(failed());
        }
        let done = self.inner.get_ranges(location, ranges).await;
        self.answer(fault, done).await?
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let fault = self.state.lock().unwrap().next(false);
        let all = self.inner.list(prefix);
        match fault {
            None => all,
            Some(Fault::Twice) => all.flat_map(|of| stream::iter(twice(of))).boxed(),
            Some(Fault::Undone) => stream::iter([Err(failed())]).boxed(),
            Some(Fault::Half | Fault::Done) => {
                all.take(2).chain(stream::iter([Err(failed())])).boxed()
            }
            Some(Fault::KilledBefore | Fault::KilledAfter) => {
                self.killed.notify_one();
                stream::pending().boxed()
            }
        }
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, options).await
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

fn twice(of: Result<ObjectMeta>) -> Vec<Result<ObjectMeta>> {
    match of {
        Ok(meta) => vec![Ok(meta.clone()), Ok(meta)],
        error => vec![error],
    }
}

/// Objects in memory.
pub async fn in_memory(objects: &Objects) -> InMemory {
    let memory = InMemory::new();
    for (key, object) in objects {
        let object = PutPayload::from(object.clone());
        memory.put(&Path::parse(key).unwrap(), object).await.unwrap();
    }
    memory
}
