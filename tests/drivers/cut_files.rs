//! Files on a connection that is cut: what has arrived is not sent again, within one call and by a later one.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use farcell::{
    Cell, ErrorKind, LinkChoice, NoEvents, Registry, RegistryOptions, Result, SessionOptions, Target,
    TransferOptions, TransferProgress, Transferred,
};
use libtest_mimic::Trial;

use crate::trial;
use crate::wrapped::World;

const BLOCK: usize = 1 << 20;
const SIZE: usize = 24 * BLOCK + 4321;

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (name, links) in [("stream", LinkChoice::Best), ("commands", LinkChoice::ExecOnly)] {
        for way in [Way::Put, Way::Get] {
            trials.push(trial(
                &format!("file::{way:?}_by_{name}_goes_on_where_it_was_cut_off"),
                async move || {
                    resumed(links, way).await;
                },
            ));
            trials.push(trial(
                &format!("file::{way:?}_by_{name}_does_not_trust_what_is_there"),
                async move || {
                    spoilt(links, way).await;
                },
            ));
        }
    }
    for way in [Way::Put, Way::Get] {
        trials.push(trial(&format!("file::{way:?}_lives_through_streams_that_are_cut"), async move || {
            cuts(way).await;
        }));
        trials.push(trial(&format!("file::{way:?}_stops_at_its_timeout"), async move || late(way).await));
    }
    trials.push(trial("file::a_cell_does_not_wait_for_a_file", does_not_wait));
    trials
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    Put,
    Get,
}

/// A file, where it goes, and the way between.
struct Scene {
    dir: tempfile::TempDir,
    world: Arc<World>,
    registry: Registry,
    target: Target,
    way: Way,
}

impl Scene {
    fn new(links: LinkChoice, way: Way) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let world = Arc::new(World::default());
        let registry = Registry::new(world.drivers(links), RegistryOptions::default());
        let target = format!("local:?dir={}", dir.path().join("base").display()).parse().unwrap();
        let scene = Scene { dir, world, registry, target, way };
        let content: Vec<u8> =
            (0..SIZE as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        std::fs::write(scene.from(), content).unwrap();
        std::fs::create_dir(scene.dir.path().join("end")).unwrap();
        scene
    }

    fn from(&self) -> PathBuf {
        self.dir.path().join("from")
    }

    fn to(&self) -> PathBuf {
        self.dir.path().join("end/to")
    }

    fn part(&self) -> Option<PathBuf> {
        let entries = std::fs::read_dir(self.dir.path().join("end")).unwrap().flatten();
        entries.map(|e| e.path()).find(|path| path.extension().is_some_and(|e| e == "part"))
    }

    async fn go(
        &self,
        options: &TransferOptions,
        mut progress: impl FnMut(TransferProgress) + Send,
    ) -> Result<Transferred> {
        let (from, to) = (self.from(), self.to());
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        match self.way {
            Way::Put => self.registry.put(&self.target, &from, &text(&to), options, &mut progress).await,
            Way::Get => self.registry.get(&self.target, &text(&from), &to, options, &mut progress).await,
        }
    }

    /// How many bytes have passed since the last time.
    fn passed(&self) -> usize {
        self.world.passed.swap(0, SeqCst) as usize
    }

    /// Ends the connection for good when some of the file is there.
    async fn break_off(&self) {
        let options = TransferOptions { patience: Duration::from_millis(300), ..TransferOptions::default() };
        let world = Arc::clone(&self.world);
        let watch = move |p: TransferProgress| {
            if p.done > p.total / 4 && !world.down.swap(true, SeqCst) {
                world.cut();
            }
        };
        let e = self.go(&options, watch).await.unwrap_err();
        assert!(e.kind() == ErrorKind::Transport && e.hint().unwrap().contains("goes on"), "{e}");
        assert!(!self.to().exists() && self.part().is_some());
        self.world.down.store(false, SeqCst);
    }

    fn check(&self) {
        assert!(std::fs::read(self.from()).unwrap() == std::fs::read(self.to()).unwrap());
        assert_eq!(self.part(), None);
    }
}

async fn resumed(links: LinkChoice, way: Way) {
    let scene = Scene::new(links, way);
    scene.break_off().await;
    let first = scene.passed();
    let mut told = Vec::new();
    let moved = scene.go(&TransferOptions::default(), |p| told.push(p.done)).await.unwrap();
    let (second, kept) = (scene.passed(), usize::try_from(moved.resumed_from).unwrap());
    assert!(kept >= SIZE / 4 && told[0] == moved.resumed_from, "{moved:?}");
    // The runner travels with a command that does not know a base directory, and with a stream that is opened.
    let runner = 4 << 20;
    assert!(
        second < SIZE - kept + runner,
        "{second} bytes passed, {kept} of {SIZE} were there; {first} before"
    );
    scene.check();
}

async fn spoilt(links: LinkChoice, way: Way) {
    let scene = Scene::new(links, way);
    scene.break_off().await;
    let part = scene.part().unwrap();
    let mut there = std::fs::read(&part).unwrap();
    there[2 * BLOCK + 5] ^= 1;
    std::fs::write(&part, &there).unwrap();
    let moved = scene.go(&TransferOptions::default(), |_| ()).await.unwrap();
    assert!(moved.resumed_from > 0 && moved.resumed_from < there.len() as u64, "{moved:?}");
    scene.check();
}

async fn cuts(way: Way) {
    let scene = Scene::new(LinkChoice::Best, way);
    // In the middle of pieces, and in the greeting of one that is opened for them.
    scene.world.fuses.lock().unwrap().extend([5_000_000, 500_000, 3_000_000, 700_000, 9_000_000]);
    let world = Arc::clone(&scene.world);
    let mut turn = 0;
    let moved = scene
        .go(&TransferOptions::default(), |p| {
            turn += 1;
            if turn == 6 || p.done > p.total * 9 / 10 {
                world.cut();
            }
        })
        .await
        .unwrap();
    assert_eq!((moved.bytes, moved.resumed_from), (SIZE as u64, 0));
    assert!(scene.world.counts().opened >= 1 && scene.passed() < 2 * SIZE);
    scene.check();
}

async fn late(way: Way) {
    let scene = Scene::new(LinkChoice::Best, way);
    let options = TransferOptions { timeout: Some(Duration::from_secs(4)), ..TransferOptions::default() };
    let world = Arc::clone(&scene.world);
    let began = std::time::Instant::now();
    let e = scene
        .go(&options, |p| {
            if p.done > p.total / 8 && !world.down.swap(true, SeqCst) {
                world.cut();
            }
        })
        .await
        .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Deadline, "{e}");
    assert!(began.elapsed() < Duration::from_secs(9));
    scene.world.down.store(false, SeqCst);
    let moved = scene.go(&TransferOptions::default(), |_| ()).await.unwrap();
    assert!(moved.resumed_from > 0);
    scene.check();
}

/// Cells of a kernel whose files are moved at the same time.
async fn does_not_wait() {
    for way in [Way::Put, Way::Get] {
        let scene = Scene::new(LinkChoice::Best, way);
        let session = scene.registry.session("files", "a", &scene.target, SessionOptions::default()).unwrap();
        session.run(&Cell::new("1"), &NoEvents).await.unwrap();
        let mut slowest = Duration::ZERO;
        let mut ran = 0;
        let cells = async {
            loop {
                let began = std::time::Instant::now();
                session.run(&Cell::new("1"), &NoEvents).await.unwrap();
                slowest = slowest.max(began.elapsed());
                ran += 1;
            }
        };
        let options = TransferOptions::default();
        let moved = scene.go(&options, |_| ());
        tokio::select! { moved = moved => { moved.unwrap(); } () = cells => {} }
        assert!(
            ran > 10 && slowest < Duration::from_millis(500),
            "{way:?}: {ran} cells, the slowest in {slowest:?}"
        );
        scene.check();
        scene.registry.dispose_all().await.unwrap();
    }
}
