//! The ends of a kernel's lane, as a process on the kernel's machine opens them: two pipes that lead past the supervisor to the interpreter.
//! And how the end of a quick cell is heard: to look for it a few times is over sooner than to be woken.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, Instant};

use bytes::{BufMut as _, BytesMut};
use serde::Deserialize;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe::{OpenOptions, Receiver, Sender};

/// A write of so many bytes comes whole or not at all (`PIPE_BUF`): the longest frame of a lane.
pub const FRAME_MAX: usize = 4096;
/// How long the lane is waited for before the supervisor is to look after the cell.
pub const PATIENCE: Duration = Duration::from_millis(2);

/// How long is looked before it is waited: about twice what it takes to be woken.
const LOOKING: Duration = Duration::from_micros(150);
/// Cells that took no longer are looked for the next time.
const BRISK: Duration = Duration::from_micros(250);

/// Whether the cells of a lane are so quick that their ends are worth looking for. One that is not costs a moment, once.
#[derive(Debug, Default)]
pub struct Eager {
    is_eager: bool,
}

impl Eager {
    /// Reads from a pipe as soon as there is something; the number of bytes, and 0 at its end. Other tasks of the runtime go on meanwhile. Safe to drop half-way.
    ///
    /// # Errors
    /// What reading brings.
    pub async fn read(&mut self, pipe: &mut Receiver, buffer: &mut BytesMut) -> io::Result<usize> {
        let began = Instant::now();
        while std::mem::take(&mut self.is_eager) {
            let mut piece = [0; FRAME_MAX];
            match rustix::io::read(&*pipe, &mut piece) {
                Ok(read) => {
                    buffer.put_slice(&piece[..read]);
                    self.is_eager = true;
                    return Ok(read);
                }
                Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
            tokio::task::yield_now().await;
            self.is_eager = began.elapsed() < LOOKING;
        }
        let read = pipe.read_buf(buffer).await?;
        self.is_eager = began.elapsed() < BRISK;
        Ok(read)
    }
}

/// What a supervisor tells of its lane.
#[derive(Debug, Clone, Deserialize)]
pub struct Told {
    pid: i64,
    request: i32,
    reply: i32,
    inodes: [u64; 2],
}

impl Told {
    /// Whether it is said to be that of the process `pid`.
    pub fn is_of(&self, pid: i64) -> bool {
        self.pid == pid
    }

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

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::unix::pipe::pipe;

    use super::*;

    #[tokio::test]
    async fn all_comes_whether_it_is_looked_for_or_waited_for() {
        let (mut send, mut hear) = pipe().unwrap();
        let (mut eager, mut heard) = (Eager::default(), BytesMut::with_capacity(64));
        for is_eager in [true, false, true] {
            eager.is_eager = is_eager;
            send.write_all(b"reply").await.unwrap();
            assert_eq!(eager.read(&mut hear, &mut heard).await.unwrap(), 5);
            assert!(!is_eager || eager.is_eager, "what is there already is quick");
        }
        assert_eq!(heard, b"replyreplyreply".as_slice());
        drop(send);
        assert_eq!(eager.read(&mut hear, &mut heard).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn one_that_takes_long_is_not_looked_for_the_next_time_and_one_that_is_given_up_loses_nothing() {
        let (mut send, mut hear) = pipe().unwrap();
        let (mut eager, mut heard) = (Eager { is_eager: true }, BytesMut::new());
        let given_up = tokio::time::timeout(10 * BRISK, eager.read(&mut hear, &mut heard)).await;
        assert!(given_up.is_err() && !eager.is_eager);
        let later = async {
            tokio::time::sleep(10 * BRISK).await;
            send.write_all(b"reply").await.unwrap();
        };
        let (read, ()) = tokio::join!(eager.read(&mut hear, &mut heard), later);
        assert_eq!((read.unwrap(), heard.as_ref()), (5, b"reply".as_slice()));
        assert!(!eager.is_eager);
    }

    #[tokio::test]
    async fn others_have_their_turn_while_it_is_looked() {
        let (mut send, mut hear) = pipe().unwrap();
        let (mut eager, mut heard) = (Eager { is_eager: true }, BytesMut::new());
        // On this one thread nobody else could write it.
        let (read, wrote) = tokio::join!(eager.read(&mut hear, &mut heard), send.write_all(b"reply"));
        wrote.unwrap();
        assert_eq!(read.unwrap(), 5);
    }
}
