//! A timer with microsecond resolution. Tokio's timers have a resolution of one millisecond, in
//! which a gigabit link sends 125 kB.
//!
//! Each timer is one kernel timer (timerfd) that tokio polls. Read [`FineTimer`] first.
#![allow(clippy::disallowed_methods, reason = "a driver: clocks are its business")]

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Shortest timer setting: to the kernel, a time of zero disarms the timer.
const SOON: std::time::Duration = std::time::Duration::from_nanos(1);

/// A timer. See the module.
#[derive(Debug)]
pub struct FineTimer {
    fd: AsyncFd<OwnedFd>,
    set_for: Option<Instant>,
}

impl FineTimer {
    /// Creates a timer that is not set.
    ///
    /// Errors: the system's.
    /// Panics: outside a tokio runtime that drives I/O.
    pub fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let fd = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        #[expect(
            deprecated,
            reason = "unsound for types that change their descriptor, which `OwnedFd` never does"
        )]
        let fd = AsyncFd::with_interest(fd, Interest::READABLE)?;
        Ok(Self { fd, set_for: None })
    }

    /// Waits until `at`; without `at`, waits for ever. The future may be dropped and the method
    /// called again.
    ///
    /// Errors: the system's.
    pub async fn wait(&mut self, at: Option<Instant>) -> io::Result<()> {
        let Some(at) = at else { return std::future::pending().await };
        let now = Instant::now();
        if at <= now {
            return Ok(());
        }
        loop {
            // A timer that is set too early fires once without effect, which is cheaper than
            // setting the timer for every packet.
            if self.set_for.is_none_or(|set_for| set_for > at) {
                self.set(at)?;
            }
            let mut ready = self.fd.readable().await?;
            match ready.try_io(|fd| Ok(rustix::io::read(fd, &mut [0u8; 8])?)) {
                Ok(result) => {
                    result?;
                    self.set_for = None;
                    if at <= Instant::now() {
                        return Ok(());
                    }
                }
                // The timer was reset before it fired.
                Err(_) => continue,
            }
        }
    }

    fn set(&mut self, at: Instant) -> io::Result<()> {
        let left = at.saturating_duration_since(Instant::now()).max(SOON);
        let it_value = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        timerfd_settime(&self.fd, TimerfdTimerFlags::empty(), &Itimerspec { it_interval, it_value })?;
        self.set_for = Some(at);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn timer_waits_as_requested_and_can_be_reset() {
        let mut timer = FineTimer::new().expect("timers are there");
        let begun = Instant::now();
        timer.wait(Some(begun)).await.expect("it goes off");
        timer.wait(Some(begun + Duration::from_micros(300))).await.expect("it goes off");
        assert!(begun.elapsed() >= Duration::from_micros(300));
        let far = Some(begun + Duration::from_secs(100));
        assert!(tokio::time::timeout(Duration::from_millis(2), timer.wait(far)).await.is_err());
        timer.wait(Some(begun + Duration::from_millis(5))).await.expect("it goes off");
        assert!(begun.elapsed() >= Duration::from_millis(5));
        // The timer is set for an earlier time, and then waits for a later one.
        let soon = timer.wait(Some(begun + Duration::from_millis(20)));
        // On a busy machine the earlier time has come already.
        let _ = tokio::time::timeout(Duration::from_millis(1), soon).await;
        timer.wait(Some(begun + Duration::from_millis(30))).await.expect("it goes off");
        assert!(begun.elapsed() >= Duration::from_millis(30));
        let never = tokio::time::timeout(Duration::from_millis(2), timer.wait(None)).await;
        assert!(never.is_err());
    }
}
