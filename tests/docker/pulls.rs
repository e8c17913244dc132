//! Images that an engine does not have.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use farcell::{Cell, ErrorKind, NoEvents, SessionOptions};
use farcell_testbed::Engine;
use libtest_mimic::Trial;

use crate::boxes::{built, value};
use crate::events::Seen;
use crate::made::{ask, make_in, registry, unique};
use crate::trial;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("an_image_that_is_not_there", no_image),
        trial("an_image_is_fetched_for_a_sandbox", fetched),
        trial("an_image_that_does_not_come_is_waited_for_as_long_as_the_cell", stalled),
    ]
}

/// A registry that ends with this value, and what there is of its image.
struct Shop {
    child: Child,
    image: String,
}

impl Drop for Shop {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
        let _ = ask(Engine::DOCKER, &["rmi", "-f", &self.image]);
    }
}

fn shop(arguments: &[&str]) -> Option<Shop> {
    let image = built(Engine::DOCKER, "slim")?;
    let mut child = Command::new("python3")
        .args(["fixtures/registry/serve.py", &image])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let port = serde_json::from_str::<serde_json::Value>(&line).unwrap()["port"].as_u64().unwrap();
    Some(Shop { child, image: format!("127.0.0.1:{port}/farcell/{}:1", unique()) })
}

async fn fetched() {
    let Some(shop) = shop(&[]) else { return };
    assert_eq!(ask(Engine::DOCKER, &["images", "-q", &shop.image]).unwrap(), "");
    let made = make_in(
        Engine::DOCKER,
        registry(None),
        &format!("docker+run://{}", shop.image).parse().unwrap(),
        &unique(),
        SessionOptions::default(),
    );
    let seen = Seen::default();
    let reply = made.session.run(&Cell::new("x = 41"), &seen).await.unwrap();
    assert_eq!(reply.status, farcell::Status::Ok, "{reply:#?}");
    assert!(seen.notes().contains(&format!("the image {}; fetching it", shop.image)), "{}", seen.notes());
    assert_ne!(ask(Engine::DOCKER, &["images", "-q", &shop.image]).unwrap(), "");
    assert_eq!(value(&made.session, "x + 1").await, "42");
    assert!(made.session.stop().await.unwrap());
}

async fn stalled() {
    let Some(shop) = shop(&["--stall"]) else { return };
    let target = format!("docker+run://{}", shop.image).parse().unwrap();
    let made = make_in(Engine::DOCKER, registry(None), &target, &unique(), SessionOptions::default());
    let started = Instant::now();
    let cell = Cell::new("1").timeout(Duration::from_secs(2));
    let e = made.session.run(&cell, &NoEvents).await.unwrap_err();
    assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
    assert_eq!(e.kind(), ErrorKind::Deadline, "{e:?}");
    assert!(
        e.message().contains("did not arrive in time") && e.hint().unwrap().contains("docker pull"),
        "{e:?}"
    );
    assert!(!made.is_there());
}

async fn no_image() {
    let Some(_) = built(Engine::DOCKER, "slim") else { return };
    // A registry that refuses at once, wherever this runs.
    for (options, message, hint) in [
        ("", "its registry cannot be reached", "docker pull 127.0.0.1:1/farcell/nosuch:1"),
        ("?pull=never", "does not have the image 127.0.0.1:1/farcell/nosuch:1", "pull=missing"),
    ] {
        let target = format!("docker+run://127.0.0.1:1/farcell/nosuch:1{options}").parse().unwrap();
        let made = make_in(Engine::DOCKER, registry(None), &target, &unique(), SessionOptions::default());
        let seen = Seen::default();
        let e = made.session.run(&"1".into(), &seen).await.unwrap_err();
        assert!(e.message().contains(message) && e.hint().unwrap().contains(hint), "{e:?}");
        assert_eq!((e.kind(), e.is_temporary()), (ErrorKind::Spawn, false));
        assert_eq!(seen.notes().contains("fetching it"), options.is_empty(), "{}", seen.notes());
        assert!(!made.is_there());
    }
}
