//! Limits the connections to the control socket, so that no client can take all places.
//!
//! When all places are taken, a new client gets the place of a client that keeps the daemon
//! waiting: of the user with the most such clients, the one that has done so for the longest time.
//! A client whose request waits for its answer is never let go.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

/// Most clients at once. More let one user open more descriptors, fewer refuse scripts that ask in
/// parallel.
pub const CLIENTS_MAX: usize = 128;
/// Shortest time between two lines of the log about clients that were let go.
const SAID_INTERVAL: Duration = Duration::from_secs(60);

/// All connected clients.
#[derive(Default)]
pub struct Clients {
    here: Mutex<Here>,
    /// Signals that a place may be free.
    changed: Notify,
}

#[derive(Default)]
struct Here {
    clients: BTreeMap<u64, Client>,
    next: u64,
    /// Clients let go since the last line in the log, and the time of that line.
    let_go: u64,
    said: Option<Instant>,
}

struct Client {
    user: u32,
    /// Time since which the daemon waits for the client to write or to read; None: the client waits
    /// for the daemon, or was not looked at yet.
    waiting: Option<Instant>,
    task: Option<AbortHandle>,
}

/// A client's place, which is free again when this value is dropped.
pub struct Seat {
    clients: Arc<Clients>,
    number: u64,
}

impl Clients {
    fn here(&self) -> MutexGuard<'_, Here> {
        // No code panics while it holds the lock.
        self.here.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a place for a client of this user: only while all other clients wait for the
    /// daemon.
    pub async fn seat(self: &Arc<Self>, user: u32) -> Seat {
        loop {
            let changed = self.changed.notified();
            if let Some(number) = self.here().take_place(user, Instant::now()) {
                return Seat { clients: self.clone(), number };
            }
            changed.await;
        }
    }
}

impl Here {
    fn take_place(&mut self, user: u32, now: Instant) -> Option<u64> {
        if self.clients.len() >= CLIENTS_MAX {
            let slowest = self.slowest()?;
            if let Some(task) = self.clients.remove(&slowest).and_then(|client| client.task) {
                task.abort();
            }
            self.let_go += 1;
            if self.said.is_none_or(|said| now.saturating_duration_since(said) >= SAID_INTERVAL) {
                tracing::warn!(
                    clients = self.let_go,
                    "more than {CLIENTS_MAX} clients of the control socket: the slowest are let go"
                );
                (self.let_go, self.said) = (0, Some(now));
            }
        }
        self.next += 1;
        self.clients.insert(self.next, Client { user, waiting: None, task: None });
        Some(self.next)
    }

    fn slowest(&self) -> Option<u64> {
        let mut of_user: BTreeMap<u32, usize> = BTreeMap::new();
        self.clients.values().for_each(|client| *of_user.entry(client.user).or_default() += 1);
        let slow = self.clients.iter().filter_map(|(number, client)| {
            Some((of_user.get(&client.user).copied(), std::cmp::Reverse(client.waiting?), *number))
        });
        slow.max().map(|(_, _, number)| number)
    }
}

impl Seat {
    /// Sets the task that serves the client, which is aborted when the client is let go.
    pub fn served_by(&self, task: AbortHandle) -> &Self {
        let mut here = self.clients.here();
        match here.clients.get_mut(&self.number) {
            Some(client) => client.task = Some(task),
            None => task.abort(), // let go already
        }
        drop(here);
        self
    }

    /// Notes whether the client waits for the daemon, or the daemon for the client.
    pub fn waits_for_us(&self, does: bool) {
        if let Some(client) = self.clients.here().clients.get_mut(&self.number) {
            client.waiting = (!does).then(Instant::now);
        }
        self.clients.changed.notify_one();
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.clients.here().clients.remove(&self.number);
        self.clients.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(start: Instant, ms: u64) -> Instant {
        start + Duration::from_millis(ms)
    }

    #[test]
    fn the_slowest_of_the_user_with_the_most_goes() {
        let (mut here, start) = (Here::default(), Instant::now());
        let come = |here: &mut Here, user, ms| {
            let number = here.take_place(user, after(start, ms)).unwrap();
            here.clients.get_mut(&number).unwrap().waiting = Some(after(start, ms));
            number
        };
        let first = come(&mut here, 0, 0); // idle for the longest time, but of a user who has few
        let crowd: Vec<u64> = (1..CLIENTS_MAX as u64).map(|ms| come(&mut here, 1000, ms)).collect();
        let another = come(&mut here, 7, 1000);
        assert!(
            !here.clients.contains_key(&crowd[0]),
            "the one that has kept us waiting the longest"
        );
        assert!(here.clients.contains_key(&first) && here.clients.contains_key(&another));
        // A client that waits for the daemon keeps its place.
        here.clients.get_mut(&crowd[1]).unwrap().waiting = None;
        come(&mut here, 1000, 1001);
        assert!(here.clients.contains_key(&crowd[1]) && !here.clients.contains_key(&crowd[2]));
        assert_eq!(
            (here.clients.len(), here.let_go),
            (CLIENTS_MAX, 1),
            "said once, and counted since"
        );
    }

    #[test]
    fn a_place_is_free_when_somebody_goes_or_has_his_answer() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let clients = Arc::new(Clients::default());
            let mut seats = Vec::new();
            for _ in 0..CLIENTS_MAX {
                seats.push(clients.seat(1).await);
                seats.last().unwrap().waits_for_us(true);
            }
            let full = tokio::time::timeout(Duration::from_millis(20), clients.seat(1)).await;
            assert!(full.is_err(), "all wait for their answers: nobody is let go");
            drop(seats.pop());
            let another = clients.seat(1).await;
            another.waits_for_us(true);
            let waiting = tokio::spawn({
                let clients = clients.clone();
                async move { clients.seat(2).await.number }
            });
            tokio::task::yield_now().await;
            let slow = tokio::spawn(std::future::pending::<()>());
            seats[3].served_by(slow.abort_handle()).waits_for_us(false);
            assert!(waiting.await.unwrap() > another.number);
            assert!(slow.await.unwrap_err().is_cancelled());
        });
    }
}
