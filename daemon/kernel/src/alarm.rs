//! The one timer of the daemon's loop.

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd, RawFd};
use std::time::{Duration, Instant};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A timer of the kernel's, for a loop that waits for the earliest of several times. Tokio's own
/// timers wake the process twice for each sleep of more than 64 ms, because the coarser slots of
/// its wheel come first, and once more for each reset (tokio 1.54). On an idle machine these
/// wake-ups were more than half of the daemon's cost.
pub struct Alarm {
    timer: AsyncFd<OwnTimer>,
    set: Option<Instant>,
}

struct OwnTimer(TimerFd);

impl AsRawFd for OwnTimer {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl Alarm {
    /// A timer that is not set. Must be called within a runtime of tokio's.
    ///
    /// # Errors
    /// When no descriptors are left.
    pub fn new() -> io::Result<Self> {
        let timer = TimerFd::new(
            ClockId::CLOCK_MONOTONIC,
            TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC,
        )?;
        // SAFETY: the descriptor is the timer's own, which nothing takes out of it before the end
        // of both.
        let timer = unsafe { AsyncFd::register_with_interest(OwnTimer(timer), Interest::READABLE) };
        Ok(Self { timer: timer.map_err(io::Error::from)?, set: None })
    }

    /// Waits until that time, if it is not over. A caller that stops waiting may set another time.
    ///
    /// # Errors
    /// The kernel's error.
    pub async fn wait_until(&mut self, at: Instant) -> io::Result<()> {
        if self.set != Some(at) {
            // A zero would switch the timer off.
            let left = at.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1));
            let expiration = Expiration::OneShot(TimeSpec::from_duration(left));
            self.timer.get_ref().0.set(expiration, TimerSetTimeFlags::empty())?;
            self.set = Some(at);
        }
        loop {
            let mut ready = self.timer.readable().await?;
            let rang = ready.get_inner().0.wait();
            ready.clear_ready();
            match rang {
                Ok(()) => break,
                // The timer rang for an earlier setting.
                Err(nix::errno::Errno::EAGAIN) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.set = None;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alarm_rings_for_the_time_that_was_set_last() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut alarm = Alarm::new().unwrap();
            let now = Instant::now();
            // Over already.
            alarm.wait_until(now).await.unwrap();
            // Set for a time that passes while no task waits, then for a later time.
            let soon = now + Duration::from_millis(5);
            tokio::select! {
                biased;
                rang = alarm.wait_until(soon) => rang.unwrap(),
                () = std::future::ready(()) => {}
            }
            // The alarm is the kernel's: it rings meanwhile.
            std::thread::sleep(Duration::from_millis(10));
            tokio::task::yield_now().await;
            let later = now + Duration::from_millis(40);
            alarm.wait_until(later).await.unwrap();
            assert!(Instant::now() >= later);
        });
    }
}
