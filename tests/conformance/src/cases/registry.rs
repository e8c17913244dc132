//! The registry over this driver: cap, eviction, pins, idle reaping, disposal, loss.

use std::time::{Duration, Instant};

use farcell_core::{Cell, ErrorKind, NoEvents, Registry, RegistryOptions, State, child_owner};

use crate::Case;
use crate::subject::{PATIENCE, Recorder, Subject, ok, text};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case {
            name: "an_eviction_is_told_to_the_session_that_lost_its_kernel",
            check: |s| Box::pin(eviction(s)),
        },
        Case { name: "a_busy_or_pinned_kernel_is_never_evicted", check: |s| Box::pin(spared(s)) },
        Case { name: "an_idle_kernel_is_reaped_without_being_asked", check: |s| Box::pin(idle(s)) },
        Case { name: "an_owner_is_disposed_of_with_its_children", check: |s| Box::pin(disposal(s)) },
    ]
}

fn registry(s: &Subject, cap: usize, idle: Option<Duration>) -> Registry {
    let options = RegistryOptions {
        cap,
        idle,
        wait_for_room: Duration::from_millis(300),
        ..RegistryOptions::default()
    };
    Registry::new(s.drivers.clone(), options)
}

async fn eviction(s: &Subject) {
    let registry = registry(s, 2, None);
    let [a, b, c] = ["a", "b", "c"].map(|name| s.session_of(&registry, "evicted", name));
    ok(&a, "x = 1").await;
    ok(&b, "x = 1").await;
    ok(&a, "x").await;
    ok(&c, "x = 1").await;
    let kept = ok(&a, "x").await;
    assert_eq!((text(&kept), kept.kernel.state), ("1", State::Kept), "the one used last stays");
    let lost = ok(&b, "'x' in dir()").await;
    assert_eq!((text(&lost), lost.kernel.state), ("False", State::Lost), "{lost:#?}");
    assert!(lost.kernel.note.expect("a note").contains("\"c\""), "it says for whom");
    registry.dispose_all().await.unwrap();
}

async fn spared(s: &Subject) {
    let registry = registry(s, 1, None);
    let busy = s.session_of(&registry, "busy", "a");
    ok(&busy, "import time; x = 1").await;
    let recorder = Recorder::default();
    let long = Cell::new("print('up', flush=True); time.sleep(1)");
    let other = async {
        recorder.wait_for(|r| r.output() == "up\n").await;
        let e = s.session_of(&registry, "busy", "b").run(&Cell::new("1"), &NoEvents).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Refused, "{e}");
        let child = s.session_of(&registry, &child_owner("busy", "7"), "c");
        ok(&child, "y = 1").await;
        child
    };
    let (reply, child) = tokio::join!(busy.run(&long, &recorder), other);
    assert_eq!(reply.unwrap().kernel.state, State::Kept);
    ok(&s.session_of(&registry, "busy", "b"), "1").await;
    assert_eq!(text(&ok(&child, "y").await), "1", "a child's kernel is pinned");
    registry.dispose_all().await.unwrap();
}

async fn idle(s: &Subject) {
    let registry = registry(s, 4, Some(Duration::from_millis(300)));
    let session = s.session_of(&registry, "idle", "a");
    ok(&session, "import time; x = 1").await;
    // A cell longer than the idle time does not cost the kernel.
    let long = ok(&session, "time.sleep(0.7); x").await;
    assert_eq!(text(&long), "1");
    let pid = s.supervisor_pid(&session).await;
    s.wait_gone(pid).await;
    let started = Instant::now();
    while registry.session_count() > 0 {
        assert!(started.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let reply = ok(&session, "'x' in dir()").await;
    assert_eq!((text(&reply), reply.kernel.state), ("False", State::Lost), "{reply:#?}");
    assert!(reply.kernel.note.expect("a note").contains("idle"));
    registry.dispose_all().await.unwrap();
}

async fn disposal(s: &Subject) {
    let registry = registry(s, 8, None);
    let mine = s.session_of(&registry, "ann", "a");
    let owner = mine.key().owner.clone();
    let options = farcell_core::SessionOptions::default;
    let child = registry.session(&child_owner(&owner, "1"), "a", &s.target, options()).unwrap();
    let other = s.session_of(&registry, "bob", "a");
    for session in [&mine, &child, &other] {
        ok(session, "x = 1").await;
    }
    assert_eq!(registry.dispose_child(&owner, "1").await.unwrap(), 1);
    assert_eq!(text(&ok(&mine, "x").await), "1");
    ok(&child, "x = 1").await;
    assert_eq!(registry.dispose_owner(&owner).await.unwrap(), 2);
    assert_eq!(text(&ok(&other, "x").await), "1", "others keep theirs");
    assert_eq!(registry.dispose_all().await.unwrap(), 1);
}
