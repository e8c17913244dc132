//! One connection through the proxy.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::{Semaphore, mpsc};

use super::alarm::Alarm;
use super::shared::{End, Shared, Told, Way};

/// How many bytes one way holds before it stops reading: what a gigabit brings in half a second.
const ROOM: usize = 64 << 20;

/// What was read, with the time when it comes out.
type Due = (Instant, Piece);

enum Piece {
    Bytes(Vec<u8>),
    End,
    Reset,
}

/// Carries a connection until both sides have ended it, or one of them badly, or it is told to end.
pub(super) async fn carry(mut client: TcpStream, shared: Arc<Shared>, id: u64, mut told: Told) {
    let server = tokio::select! {
        end = end(&mut told) => Err(end),
        server = TcpStream::connect(("127.0.0.1", shared.upstream)) => server.map_err(|_| End::Close),
    };
    match server {
        Ok(mut server) => {
            let end = tokio::select! {
                // First what was told: after a cut nothing passes any more.
                biased;
                end = end(&mut told) => end,
                end = relay(&mut client, &mut server, &shared) => end,
            };
            finish(client, end).await;
            finish(server, end).await;
        }
        Err(end) => finish(client, end).await,
    }
    shared.close(id);
}

async fn end(told: &mut Told) -> End {
    match told.wait_for(Option::is_some).await {
        Ok(end) => end.unwrap_or(End::Close),
        // The one who tells has gone.
        Err(_) => End::Close,
    }
}

async fn relay(client: &mut TcpStream, server: &mut TcpStream, shared: &Shared) -> End {
    for stream in [&*client, &*server] {
        if stream.set_nodelay(true).is_err() {
            return End::Reset;
        }
    }
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    let asked = AtomicBool::new(false);
    let up = pass(from_client, to_server, shared, Way::Up, &asked);
    let down = pass(from_server, to_client, shared, Way::Down, &asked);
    tokio::try_join!(up, down).err().unwrap_or(End::Close)
}

/// One way: bytes are read as they come and written when their time has come, so that a delay costs no bandwidth. An error is a bad end of
/// the whole connection.
async fn pass(
    source: ReadHalf<'_>,
    sink: WriteHalf<'_>,
    shared: &Shared,
    way: Way,
    asked: &AtomicBool,
) -> Result<(), End> {
    let room = Semaphore::new(ROOM);
    let (queue, queued) = mpsc::unbounded_channel();
    let reading = async {
        read(source, queue, &room, shared).await;
        Ok(())
    };
    tokio::try_join!(reading, write(queued, sink, &room, shared, way, asked)).map(|_| ())
}

async fn read(
    mut source: ReadHalf<'_>,
    queue: mpsc::UnboundedSender<Due>,
    room: &Semaphore,
    shared: &Shared,
) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let piece = match source.read(&mut buffer).await {
            Ok(0) => Piece::End,
            Ok(count) => Piece::Bytes(buffer[..count].to_vec()),
            Err(_) => Piece::Reset,
        };
        let due = Instant::now() + shared.delay();
        let Piece::Bytes(bytes) = &piece else {
            let _ = queue.send((due, piece));
            return;
        };
        let size = u32::try_from(bytes.len()).expect("the buffer is small");
        room.acquire_many(size).await.expect("it is never closed").forget();
        let _ = queue.send((due, piece));
    }
}

async fn write(
    mut queued: mpsc::UnboundedReceiver<Due>,
    mut sink: WriteHalf<'_>,
    room: &Semaphore,
    shared: &Shared,
    way: Way,
    asked: &AtomicBool,
) -> Result<(), End> {
    let alarm = Alarm::new().map_err(|_| End::Reset)?;
    while let Some((due, piece)) = queued.recv().await {
        alarm.wait_until(due).await.map_err(|_| End::Reset)?;
        shared.passable().await;
        let Piece::Bytes(bytes) = piece else {
            let Piece::End = piece else { return Err(End::Reset) };
            return sink.shutdown().await.map_err(|_| End::Reset);
        };
        let (allowed, all_end) = shared.allow(bytes.len());
        if !asked.swap(way == Way::Up, Ordering::Relaxed) && way == Way::Up {
            shared.count_round_trip();
        }
        // Before they are out: whoever has read them finds them counted.
        shared.count(way, allowed);
        sink.write_all(&bytes[..allowed]).await.map_err(|_| End::Reset)?;
        if all_end {
            shared.end_all(End::Close);
            return Err(End::Close);
        }
        room.add_permits(bytes.len());
    }
    Ok(())
}

/// Closes one side.
async fn finish(mut stream: TcpStream, end: End) {
    match end {
        End::Reset => _ = stream.set_zero_linger(),
        End::Close => {
            // What was not read would make a reset of the close.
            while stream.try_read(&mut [0; 4096]).is_ok_and(|count| count > 0) {}
            let _ = stream.shutdown().await;
        }
    }
}
