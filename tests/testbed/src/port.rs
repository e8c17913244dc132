//! Ports that stay free: a server that is down for a while shall find its port again.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::Trouble;

/// Below the ports that systems hand out themselves: one of those can become the near end of any connection while its server is down.
const FIRST: u32 = 20_000;
const COUNT: u32 = 12_000;

/// A listener on a free port of 127.0.0.1. No two calls of one process get the same port.
pub(crate) fn listen() -> Result<TcpListener, Trouble> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let first = std::process::id().wrapping_mul(61);
    for _ in 0..COUNT {
        let next = first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = u16::try_from(FIRST + next % COUNT).expect("it is below 65536");
        if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            return Ok(listener);
        }
    }
    Err(Trouble::failed("find a free port", format!("{FIRST} and the next {COUNT} are taken")))
}

/// The port of a listener.
pub(crate) fn of(listener: &TcpListener) -> u16 {
    listener.local_addr().expect("it is bound").port()
}
