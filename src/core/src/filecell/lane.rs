//! The lane of a kernel on this machine: a simple cell goes to the interpreter without a courier between (`docs/protocol.md`, "The lane of a kernel in a
//! directory"). Whatever is not simple, and whatever goes wrong, is left to the link.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::BytesMut;
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::page::{ACKED, BARRED, HEAD, KEPT, NUMBER, PASSED, PUT, PUT_ID, Page, REPLY, SEQ, SETTLED, SIZE};
use crate::id::{CellId, CellNumber};
use crate::lane::{Eager, FRAME_MAX, PATIENCE, Told};
use crate::reply::{Reply, Status};
use crate::wire::frame;
use crate::wire::message::{Echo, RawReply, Request};

/// How many lanes a driver keeps open; each takes five descriptors. Further kernels are reached by the link.
pub(super) const MOST: usize = 32;
/// More than any record has.
const RECORD_MAX: u64 = 64 * 1024;
const NUMBER_MAX: u64 = 1_000_000_000;
const TIMEOUT_MAX: u64 = 1_000_000_000_000;
/// The longest request without its number, and what that takes at most.
const ROOM: usize = FRAME_MAX - 5 - ",\"number\":999999999}".len();

/// The way to one kernel's lane. It is opened when a cell is likely to profit from it.
#[derive(Debug)]
pub(super) struct Lane {
    dir: PathBuf,
    /// The supervisor's process id, as it was told before any cell could run.
    supervisor: i64,
    /// What is left of [`MOST`].
    places: Arc<Semaphore>,
    turns: Mutex<Turns>,
    way: Arc<AsyncMutex<Way>>,
}

/// Which cells go by the link. None overtakes them in the lane.
#[derive(Debug, Default)]
struct Turns {
    /// How many there were, and how many have no reply yet.
    count: u64,
    open: usize,
    /// The last one that was given up. Only the reply of a later one tells that it is not still on its way.
    given_up: u64,
    /// Whether the last cell was over in a moment and printed nothing. The next one is taken to be like it; a wrong guess costs a round trip.
    promising: bool,
}

/// A cell that goes by the link. Dropped before its reply is there, it has been given up.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    lane: &'a Lane,
    number: u64,
    is_over: bool,
}

#[derive(Debug)]
enum Way {
    Unsought,
    Closed,
    Open(Box<Ends>),
}

#[derive(Debug)]
struct Ends {
    dir: PathBuf,
    send: Sender,
    hear: Receiver,
    eager: Eager,
    /// The file `lane`: its lock is held while a cell is in the lane, its content is the page.
    page: File,
    /// The directory `cells`: its lock is held while a number is taken.
    cells: File,
    next: Option<File>,
    _place: OwnedSemaphorePermit,
}

/// A cell in the lane. Dropped before its reply is there, it is handed over to the supervisor, as nobody watches its bounds any more.
#[derive(Debug)]
pub(super) struct Passage {
    way: OwnedMutexGuard<Way>,
    number: u64,
}

/// What came of a cell in the lane.
#[derive(Debug)]
pub(super) enum Came {
    /// It was quiet, and this is its reply.
    Reply(Box<RawReply>),
    /// It has files, or will have them in a moment.
    Files(Option<Handed>),
}

/// A control that has the supervisor look after the lane. Its answer is of no interest: whoever asks for the cell finds it in files.
#[derive(Debug)]
pub(super) struct Handed(PathBuf);

/// A request without its number.
#[derive(Serialize)]
struct Simple<'a> {
    v: u32,
    id: &'a CellId,
    code: &'a str,
    timeout_ms: Option<u64>,
    max_output: u64,
    echo: Echo,
}

/// Of `kernel.json`.
#[derive(Deserialize)]
struct Record {
    lane: Option<Told>,
}

impl Lane {
    pub(super) fn new(dir: &str, supervisor: i64, places: Arc<Semaphore>) -> Self {
        let way = Arc::new(AsyncMutex::new(Way::Unsought));
        Lane { dir: dir.into(), supervisor, places, turns: Mutex::default(), way }
    }

    fn turns(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A cell is about to go by the link.
    pub(super) fn by_link(&self) -> Turn<'_> {
        let mut turns = self.turns();
        turns.count += 1;
        turns.open += 1;
        Turn { lane: self, number: turns.count, is_over: false }
    }

    /// Puts a cell into the lane, and acknowledges the replies that the caller has. `None`, and nothing has been done, where it has to go by the link.
    pub(super) fn enter(&self, request: &Request, acks: &[CellNumber]) -> Option<Passage> {
        if !is_simple(request) {
            return None;
        }
        {
            let turns = self.turns();
            if !turns.promising || turns.open > 0 {
                return None;
            }
        }
        let mut way = Arc::clone(&self.way).try_lock_owned().ok()?;
        if matches!(*way, Way::Unsought) {
            // Where all places are taken one may be free later.
            let place = Arc::clone(&self.places).try_acquire_owned().ok()?;
            *way = Ends::open(&self.dir, self.supervisor, place).map_or_else(
                |e| {
                    tracing::debug!(error = %e, "there is no lane to the kernel");
                    Way::Closed
                },
                |ends| Way::Open(Box::new(ends)),
            );
        }
        let Way::Open(ends) = &mut *way else { return None };
        let number = ends.put(request, acks)?;
        Some(Passage { way, number })
    }
}

impl Turn<'_> {
    /// Its reply is there.
    pub(super) fn end(mut self, reply: &Reply) {
        self.is_over = true;
        let is_quick = reply.duration_ms < PATIENCE.as_secs_f64() * 1000.0;
        let is_quiet = reply.stdout.is_empty() && reply.stderr.is_empty() && reply.displays.is_empty();
        let mut turns = self.lane.turns();
        if self.number > turns.given_up {
            turns.promising = is_quick && is_quiet && reply.status == Status::Ok;
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut turns = self.lane.turns();
        turns.open -= 1;
        if !self.is_over {
            turns.given_up = turns.given_up.max(self.number);
            turns.promising = false;
        }
    }
}

/// Whether a request may take the lane. What the supervisor would refuse is left to it.
fn is_simple(request: &Request) -> bool {
    !request.reset
        && request.tools.is_none()
        && request.cwd.is_none()
        && request.env.is_empty()
        && request.code.len() <= ROOM
        && request.timeout_ms.is_none_or(|timeout| timeout <= TIMEOUT_MAX)
}

impl Ends {
    fn open(dir: &Path, supervisor: i64, place: OwnedSemaphorePermit) -> io::Result<Self> {
        let data = std::fs::symlink_metadata(dir)?;
        if !data.is_dir() || data.uid() != rustix::process::geteuid().as_raw() || data.mode() & 0o077 != 0 {
            return Err(io::Error::other("its directory is not ours alone"));
        }
        let record: Record = serde_json::from_slice(&read_record(&dir.join("kernel.json"))?)?;
        let told = record.lane.ok_or_else(|| io::Error::other("the kernel has none"))?;
        // The record may have been rewritten by a cell. Its supervisor's pipes are all that it may lead to.
        if !told.is_of(supervisor) {
            return Err(io::Error::other("it is said to be another process's"));
        }
        let (send, hear) = told.open()?;
        let page = open(&dir.join("lane"), OFlags::RDWR)?;
        if page.metadata()?.len() != SIZE as u64 || !Page::read(&page, HEAD)?.is_known() {
            return Err(io::Error::other("its page is of another kind"));
        }
        Ends::of(dir, (send, hear), page, place)
    }

    fn of(
        dir: &Path,
        (send, hear): (Sender, Receiver),
        page: File,
        place: OwnedSemaphorePermit,
    ) -> io::Result<Self> {
        let cells = open(&dir.join("cells"), OFlags::RDONLY | OFlags::DIRECTORY)?;
        let (dir, eager) = (dir.to_owned(), Eager::default());
        Ok(Ends { dir, send, hear, eager, page, cells, next: None, _place: place })
    }

    fn put(&mut self, request: &Request, acks: &[CellNumber]) -> Option<u64> {
        let text = compose(request)?;
        self.page.try_lock().ok()?;
        let put = self.put_locked(&request.id, text, acks);
        if put.is_none() {
            self.unlock();
        }
        put
    }

    fn put_locked(&mut self, id: &CellId, mut text: Vec<u8>, acks: &[CellNumber]) -> Option<u64> {
        let page = Page::read(&self.page, HEAD).ok()?;
        let (last, put) = (page.word(NUMBER), page.word(PUT));
        // What has left the pipe may be on its way into files: only a reply tells that it is over.
        let is_at_rest = page.word(SEQ) == put
            && (page.word(REPLY) == put || page.word(SETTLED) >= put)
            && page.word(BARRED) == 0
            && (page.word(REPLY) == last || page.word(SETTLED) >= last);
        // What is acknowledged has to be what is in the page, which is about to be written anew. All else is in files, which are the courier's affair.
        let in_page = if page.word(KEPT) == page.word(REPLY) { 0 } else { page.word(REPLY) };
        let is_open = in_page != 0 && page.word(ACKED) != in_page;
        if !is_at_rest
            || acks.iter().any(|ack| ack.0 != in_page)
            || is_open && !acks.iter().any(|ack| ack.0 == in_page)
        {
            return None;
        }
        if is_open {
            Page::write(&self.page, ACKED, in_page).ok()?;
        }
        // A request in a file may wait under the number before, which nobody has seen. A number that is not above is of a `next` that was lost.
        let follows = |number: u64| number > put && (number - 1 == put || number - 1 <= page.word(PASSED));
        let number = self.take_number(follows)?;
        text.extend_from_slice(format!(",\"number\":{number}}}").as_bytes());
        let mut message = frame::header(b'Q', text.len()).ok()?.to_vec();
        message.append(&mut text);
        // From here on the page tells whoever asks for this id that it may be in the lane.
        self.page.write_all_at(id.as_str().as_bytes(), PUT_ID as u64 * 8).ok()?;
        Page::write(&self.page, PUT, number).ok()?;
        // Past the runtime, to whom a pipe that was opened a moment ago is not ready yet.
        if rustix::io::write(&self.send, &message).ok() != Some(message.len()) {
            // All who could read it are dead.
            let _ = Page::write(&self.page, PUT, page.word(SEQ));
            return None;
        }
        Some(number)
    }

    /// The next number of `cells/next`; `None` where somebody else is about to take one, where there is none, or where it does not fit.
    fn take_number(&mut self, fits: impl Fn(u64) -> bool) -> Option<u64> {
        self.cells.try_lock().ok()?;
        let number =
            self.next_number(fits).inspect_err(|e| tracing::debug!(error = %e, "no number for the lane"));
        let _ = self.cells.unlock();
        number.ok()
    }

    fn next_number(&mut self, fits: impl Fn(u64) -> bool) -> io::Result<u64> {
        // Another may have put a new file in the place of ours.
        if !self.next.as_ref().is_some_and(|next| next.metadata().is_ok_and(|data| data.nlink() > 0)) {
            self.next = None;
        }
        let next = match &mut self.next {
            Some(next) => next,
            none => none.insert(open(&self.dir.join("cells/next"), OFlags::RDWR)?),
        };
        let mut text = [0; 32];
        let read = next.read_at(&mut text, 0)?;
        let number: Option<u64> =
            std::str::from_utf8(&text[..read]).ok().and_then(|text| text.trim().parse().ok());
        let number = number.filter(|number| (1..NUMBER_MAX).contains(number));
        let number = number.ok_or_else(|| io::Error::other("it is in no file"))?;
        if !fits(number) {
            return Err(io::Error::other("the cell before it may not be over"));
        }
        next.write_all_at(format!("{}\n", number + 1).as_bytes(), 0)?;
        Ok(number)
    }

    /// Waits for a bell, for as long as a cell may be in the lane alone. `None` if nothing can come any more.
    async fn hear(&mut self, number: u64) -> Option<Came> {
        let until = Instant::now() + PATIENCE;
        let mut bells = BytesMut::with_capacity(64);
        loop {
            // Somebody else may have heard our bell, and we somebody else's.
            let heard = tokio::time::timeout_at(until, self.eager.read(&mut self.hear, &mut bells)).await;
            if let Some(came) = self.look(number) {
                return Some(came);
            }
            match heard {
                Ok(Ok(read)) if read > 0 => bells.clear(),
                Ok(_) => return None,
                Err(_) => return Some(Came::Files(self.hand_over())),
            }
        }
    }

    fn look(&self, number: u64) -> Option<Came> {
        let page = Page::read(&self.page, SIZE).ok()?;
        if page.word(REPLY) == number {
            let reply = serde_json::from_slice(page.reply()).map(Box::new);
            Some(reply.map_or(Came::Files(None), Came::Reply))
        } else {
            (page.word(SETTLED) >= number).then_some(Came::Files(None))
        }
    }

    /// Leaves the cell that is under way to the supervisor.
    fn hand_over(&self) -> Option<Handed> {
        let handed = Handed::write(&self.dir);
        handed
            .inspect_err(
                |e| tracing::debug!(error = %e, "a cell in the lane is left to whoever looks for it"),
            )
            .ok()
    }

    fn unlock(&self) {
        // It fails only where it is not held.
        let _ = self.page.unlock();
    }
}

/// The request but for its number and what follows that.
fn compose(request: &Request) -> Option<Vec<u8>> {
    let Request { v, id, code, timeout_ms, max_output, echo, .. } = request;
    let simple = Simple { v: *v, id, code, timeout_ms: *timeout_ms, max_output: *max_output, echo: *echo };
    let mut text = serde_json::to_vec(&simple).ok()?;
    text.pop();
    (text.len() <= ROOM).then_some(text)
}

impl Passage {
    pub(super) fn number(&self) -> CellNumber {
        CellNumber(self.number)
    }

    /// Waits for what comes of it, a few milliseconds at most.
    pub(super) async fn came(mut self) -> Came {
        let number = self.number;
        let Way::Open(ends) = &mut *self.way else { return Came::Files(None) };
        let came = ends.hear(number).await;
        ends.unlock();
        self.number = 0;
        came.unwrap_or_else(|| {
            // The kernel is dead.
            *self.way = Way::Closed;
            Came::Files(None)
        })
    }
}

impl Drop for Passage {
    fn drop(&mut self) {
        if self.number != 0
            && let Way::Open(ends) = &*self.way
        {
            drop(ends.hand_over());
            ends.unlock();
        }
    }
}

impl Handed {
    fn write(dir: &Path) -> io::Result<Self> {
        let name = CellId::random().map_err(io::Error::other)?;
        let stem = dir.join("cells").join(format!("ctl_{}", &name.as_str()[..16]));
        let handed = Handed(stem.with_extension("done"));
        let hidden = dir.join("cells").join(format!(".tmp-{}", name.as_str()));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        open(&hidden, flags)?.write_all(br#"{"v":1,"do":"lane"}"#)?;
        std::fs::rename(&hidden, stem.with_extension("json"))?;
        open(&dir.join("wake"), OFlags::WRONLY)?.write_all(b"\n")?;
        Ok(handed)
    }
}

impl Drop for Handed {
    fn drop(&mut self) {
        // Where it is not there yet, nobody was answered: that harms nobody.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Reads a kernel's record, and nothing that a cell has put in its place: no FIFO, no device, nothing without end.
fn read_record(path: &Path) -> io::Result<Vec<u8>> {
    let file = open(path, OFlags::RDONLY)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("its record is no file"));
    }
    let mut text = Vec::new();
    file.take(RECORD_MAX).read_to_end(&mut text)?;
    Ok(text)
}

/// Opens a file of the kernel's, never through a link, and never waiting for anybody.
fn open(path: &Path, flags: OFlags) -> io::Result<File> {
    let safe = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open(path, flags | safe, Mode::RUSR | Mode::WUSR)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::Cell;

    /// A lane without anybody at its other ends.
    fn lane(dir: &Path) -> (Ends, Receiver) {
        let (send, taker) = tokio::net::unix::pipe::pipe().unwrap();
        let (_, hear) = tokio::net::unix::pipe::pipe().unwrap();
        std::fs::create_dir(dir.join("cells")).unwrap();
        std::fs::write(dir.join("cells/next"), "1\n").unwrap();
        std::fs::write(dir.join("lane"), [0; SIZE]).unwrap();
        let page = open(&dir.join("lane"), OFlags::RDWR).unwrap();
        let place = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        (Ends::of(dir, (send, hear), page, place).unwrap(), taker)
    }

    fn put(ends: &mut Ends) -> Option<u64> {
        let put = ends.put(&Cell::new("1").to_request(CellId::random().unwrap()), &[]);
        ends.unlock();
        put
    }

    #[tokio::test]
    async fn a_cell_follows_one_that_is_over() {
        let dir = tempfile::tempdir().unwrap();
        let (mut ends, _taker) = lane(dir.path());
        let write = |word, value| {
            Page::write(&open(&dir.path().join("lane"), OFlags::RDWR).unwrap(), word, value).unwrap();
        };
        assert_eq!(put(&mut ends), Some(1));
        assert_eq!(put(&mut ends), None, "it is in the pipe");
        write(SEQ, 1);
        assert_eq!(put(&mut ends), None, "it has left the pipe, and is nowhere yet");
        write(NUMBER, 1);
        assert_eq!(put(&mut ends), None, "it runs");
        write(REPLY, 1);
        write(ACKED, 1);
        assert_eq!(put(&mut ends), Some(2));
        write(SEQ, 2);
        write(SETTLED, 2);
        assert_eq!(put(&mut ends), Some(3), "as a file it is over, too");
        write(SEQ, 3);
        write(SETTLED, 3);
        std::fs::write(dir.path().join("cells/next"), "5\n").unwrap();
        assert_eq!(put(&mut ends), None, "a file has the number before");
        assert_eq!(std::fs::read_to_string(dir.path().join("cells/next")).unwrap(), "5\n");
        write(PASSED, 4);
        assert_eq!(put(&mut ends), Some(5));
        write(SEQ, 5);
        write(SETTLED, 5);
        std::fs::write(dir.path().join("cells/next"), "2\n").unwrap();
        assert_eq!(put(&mut ends), None, "numbers only grow");
    }
}
