//! The ends of a kernel's lane, as a process on the kernel's machine opens them: two pipes that lead past the supervisor to the interpreter.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use serde::Deserialize;
use tokio::net::unix::pipe::{OpenOptions, Receiver, Sender};

/// A write of so many bytes comes whole or not at all (`PIPE_BUF`): the longest frame of a lane.
pub const FRAME_MAX: usize = 4096;
/// How long the lane is waited for before the supervisor is to look after the cell.
pub const PATIENCE: Duration = Duration::from_millis(2);

/// What a supervisor tells of its lane.
#[derive(Debug, Clone, Deserialize)]
pub struct Told {
    pid: i64,
    request: i32,
    reply: i32,
    inodes: [u64; 2],
}

impl Told {
    /// Opens the request's pipe for writing and the reply's for reading.
    ///
    /// # Errors
    /// Where they cannot be opened, or are others: then there is no lane from here.
    pub fn open(&self) -> io::Result<(Sender, Receiver)> {
        let path = |fd: i32| format!("/proc/{}/fd/{fd}", self.pid);
        let send = OpenOptions::new().open_sender(path(self.request))?;
        let hear = OpenOptions::new().open_receiver(path(self.reply))?;
        // In another pid namespace than the supervisor's, its pid is somebody else's here.
        if [inode(&send)?, inode(&hear)?] != self.inodes {
            return Err(io::Error::other("these are not the kernel's pipes"));
        }
        Ok((send, hear))
    }
}

fn inode(end: &impl AsFd) -> io::Result<u64> {
    Ok(File::from(end.as_fd().try_clone_to_owned()?).metadata()?.ino())
}
