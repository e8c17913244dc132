//! Waiting to the microsecond: tokio's own timers go by whole milliseconds, which would add two to each round trip.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::unix::AsyncFd;

/// A timer of the kernel's.
#[derive(Debug)]
pub(super) struct Alarm(AsyncFd<OwnedFd>);

impl Alarm {
    pub(super) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        // SAFETY: the descriptor is open, and it is the value's own: it is closed with it, and never replaced.
        Ok(Alarm(unsafe { AsyncFd::register(timer) }?))
    }

    pub(super) async fn wait_until(&self, due: Instant) -> io::Result<()> {
        let left = due.saturating_duration_since(Instant::now());
        // A timer that is set to nothing is off.
        if left.is_zero() {
            return Ok(());
        }
        let once = Itimerspec {
            it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: Timespec::try_from(left).map_err(io::Error::other)?,
        };
        timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &once)?;
        loop {
            let mut ready = self.0.readable().await?;
            // It counts how often it has expired.
            if ready.try_io(|fd| Ok(rustix::io::read(fd, &mut [0; 8])?)).is_ok() {
                return Ok(());
            }
        }
    }
}
