//! The proxy, before an echo server.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use farcell_testbed::processes::wait_until;
use farcell_testbed::{Connections, Proxy, Transferred};

/// A server that sends back what it gets, for as long as the test process lives.
fn echo() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            std::thread::spawn(move || std::io::copy(&mut &connection, &mut &connection));
        }
    });
    port
}

fn connect(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// Sends a byte and waits for it.
fn round_trip(mut client: &TcpStream) -> Duration {
    let started = Instant::now();
    client.write_all(b"x").unwrap();
    client.read_exact(&mut [0]).unwrap();
    started.elapsed()
}

/// A client that has had one answer.
fn bed() -> (Proxy, TcpStream) {
    let proxy = Proxy::start(echo()).unwrap();
    let client = connect(proxy.port());
    round_trip(&client);
    (proxy, client)
}

#[test]
fn a_delay_is_waited_for_each_way_and_can_be_taken_back() {
    let (proxy, client) = bed();
    proxy.delay(Duration::from_millis(40));
    let far = (0..3).map(|_| round_trip(&client)).min().unwrap();
    assert!(far >= Duration::from_millis(80), "{far:?}");
    proxy.delay(Duration::ZERO);
    let near = (0..20).map(|_| round_trip(&client)).min().unwrap();
    assert!(near < Duration::from_millis(40), "{near:?}");
}

#[test]
fn a_delay_keeps_order_and_costs_no_bandwidth() {
    let (proxy, client) = bed();
    proxy.delay(Proxy::FAR);
    let sent: Vec<u8> = (0..2_000_000_u32).flat_map(u32::to_le_bytes).collect();
    let mut got = vec![0; sent.len()];
    let started = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| (&client).write_all(&sent).unwrap());
        (&client).read_exact(&mut got).unwrap();
    });
    assert!(sent == got, "the bytes are not the same");
    // Waiting for each of at least 120 pieces in turn would take three seconds each way.
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
}

#[test]
fn the_end_of_one_way_leaves_the_other_open() {
    let (proxy, mut client) = bed();
    client.write_all(b"the last words").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "the last words");
    wait_until("the connection is closed", || proxy.connections().open == 0);
}

#[test]
fn a_cut_is_an_end_of_file_and_later_connections_are_served() {
    let (proxy, mut client) = bed();
    let mut other = connect(proxy.port());
    round_trip(&other);
    proxy.cut_all();
    assert_eq!(proxy.connections(), Connections { opened: 2, open: 0 });
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
    assert_eq!(other.read(&mut [0]).unwrap(), 0);
    round_trip(&connect(proxy.port()));
}

#[test]
fn a_cut_loses_what_is_on_its_way() {
    let (proxy, mut client) = bed();
    proxy.delay(Duration::from_secs(3600));
    client.write_all(b"never to arrive").unwrap();
    proxy.cut_all();
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
    assert_eq!(proxy.bytes(), Transferred { up: 1, down: 1 });
}

#[test]
fn a_reset_is_one() {
    let (proxy, mut client) = bed();
    proxy.reset_all();
    assert_eq!(client.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(proxy.connections(), Connections { opened: 1, open: 0 });
    round_trip(&connect(proxy.port()));
}

#[test]
fn a_black_hole_takes_everything_and_gives_nothing_until_it_is_over() {
    let (proxy, mut client) = bed();
    proxy.black_hole(true);
    client.write_all(&vec![b'x'; 10_000_000]).unwrap();
    client.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    assert_eq!(client.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    let mut late = connect(proxy.port());
    late.write_all(b"y").unwrap();
    late.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    assert_eq!(late.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert_eq!(proxy.bytes(), Transferred { up: 1, down: 1 });
    proxy.black_hole(false);
    client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    client.read_exact(&mut vec![0; 10_000_000]).unwrap();
    late.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    late.read_exact(&mut [0]).unwrap();
}

#[test]
fn a_black_hole_hides_the_end_of_a_connection_but_a_cut_shows_it() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = Proxy::start(server.local_addr().unwrap().port()).unwrap();
    let mut client = connect(proxy.port());
    let served = server.accept().unwrap().0;
    proxy.black_hole(true);
    drop(served);
    client.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    assert_eq!(client.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    proxy.cut_all();
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
}

#[test]
fn refusing_concerns_new_connections_only() {
    let (proxy, client) = bed();
    proxy.refuse(true);
    let refused = TcpStream::connect(("127.0.0.1", proxy.port())).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    round_trip(&client);
    proxy.refuse(false);
    round_trip(&connect(proxy.port()));
}

#[test]
fn cuts_come_again_and_again_until_it_is_told_otherwise() {
    let (proxy, client) = bed();
    drop(client);
    proxy.cut_every(Duration::from_millis(50));
    for _ in 0..3 {
        assert_eq!(connect(proxy.port()).read(&mut [0]).unwrap(), 0);
    }
    proxy.cut_every(None);
    let mut client = connect(proxy.port());
    client.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    assert_eq!(client.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn a_cut_after_so_many_bytes_lets_exactly_those_pass_and_happens_once() {
    for allowed in [0, 1, 700, 1000] {
        let proxy = Proxy::start(echo()).unwrap();
        let mut client = connect(proxy.port());
        // A thousand bytes go up, so that what is left comes down.
        proxy.cut_after(1000 + allowed);
        client.write_all(&[7; 1000]).unwrap();
        let mut got = Vec::new();
        client.read_to_end(&mut got).unwrap();
        assert_eq!((u64::try_from(got.len()).unwrap(), proxy.bytes().up), (allowed, 1000));
        let client = connect(proxy.port());
        (0..20).for_each(|_| _ = round_trip(&client));
    }
}

#[test]
fn bytes_and_round_trips_are_counted() {
    let (proxy, mut client) = bed();
    (0..4).for_each(|_| _ = round_trip(&client));
    client.write_all(&[0; 95]).unwrap();
    client.read_exact(&mut [0; 95]).unwrap();
    assert_eq!(proxy.bytes(), Transferred { up: 100, down: 100 });
    assert_eq!(proxy.round_trips(), 6);
}

#[test]
fn a_server_that_is_not_there_is_a_connection_that_ends() {
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let proxy = Proxy::start(gone).unwrap();
    assert_eq!(connect(proxy.port()).read(&mut [0]).unwrap(), 0);
}

#[test]
fn a_proxy_that_is_dropped_takes_its_connections_with_it() {
    let (proxy, mut client) = bed();
    let port = proxy.port();
    drop(proxy);
    // Whether it ends or is reset depends on what was on its way.
    assert!(client.read(&mut [0]).is_ok_and(|count| count == 0));
    assert_eq!(TcpStream::connect(("127.0.0.1", port)).unwrap_err().kind(), ErrorKind::ConnectionRefused);
}
