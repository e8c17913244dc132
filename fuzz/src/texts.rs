//! Text in pieces, targets, and the page of a lane.

use std::cell::RefCell;
use std::fs::File;
use std::os::unix::fs::FileExt as _;

use bytes::Bytes;
use farcell_core::{Drivers, Options, Target, TextDecoder, fuzzing};

use crate::memory::at_most;
use crate::{BASE, cut};

/// UTF-8 is the same however it is cut, and what is valid is what was printed.
pub fn text(data: &[u8]) {
    let (cut, bytes) = cut(data);
    let decoded = |cut: usize| {
        let mut decoder = TextDecoder::default();
        let mut text: String =
            bytes.chunks(cut).map(|piece| decoder.push(&Bytes::copy_from_slice(piece))).collect();
        text.push_str(&decoder.finish());
        text
    };
    let text = at_most(BASE + 16 * bytes.len(), || decoded(cut));
    assert_eq!(text, decoded(bytes.len().max(1)));
    assert!(text.len() <= 4 * bytes.len());
    if let Ok(valid) = std::str::from_utf8(bytes) {
        assert_eq!(text, valid);
    }
}

/// A target is again what it was read from, never has a password in it, and what is wrong with it is an error.
pub fn targets(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    at_most(BASE + 64 * data.len(), || {
        let target = match text.parse::<Target>() {
            Ok(target) => target,
            Err(e) => return drop(e.to_string()),
        };
        assert_eq!((target.as_str(), target.to_string()), (text, text.to_owned()));
        assert_eq!(format!("{}:{}", target.scheme(), target.rest()), text);
        let known = ["dir", "python", "user", "host", "workdir", "driver"];
        if let Ok((address, options)) = target.address_and_options(&known) {
            let _: &Options = &options;
            assert!(
                text.contains(address)
                    && known.iter().all(|name| options.get(name).is_none_or(|v| v.len() <= text.len()))
            );
        }
        DRIVERS.with_borrow(|drivers| {
            if let Err(e) = drivers.of(&target).and_then(|driver| driver.check(&target)) {
                assert!(!e.to_string().is_empty());
            }
        });
    });
}

thread_local! {
    static DRIVERS: RefCell<Drivers> = RefCell::new(drivers());
    static PAGE: RefCell<File> = RefCell::new(page_file().expect("a file without a name"));
}

fn drivers() -> Drivers {
    let drivers = farcell_local::register(Drivers::new());
    #[cfg(feature = "all-drivers")]
    let drivers =
        farcell_docker::register(farcell_ssh::register(drivers, farcell_ssh::SshOptions::default()));
    drivers
}

fn page_file() -> std::io::Result<File> {
    let path = std::env::temp_dir().join(format!("farcell-fuzz-page-{}", std::process::id()));
    let file = File::options().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(path)?;
    Ok(file)
}

/// The page of a lane: short or whole, with any length of a reply in it.
pub fn page(data: &[u8]) {
    PAGE.with_borrow(|file| {
        file.set_len(data.len() as u64).expect("room for it");
        file.write_all_at(data, 0).expect("room for it");
        match at_most(BASE, || fuzzing::page(file)) {
            Ok((_, words, reply)) => {
                assert!(data.len() >= 8192 && reply.len() <= 4096);
                assert!(words.iter().zip(data.chunks(8)).all(|(word, bytes)| word.to_ne_bytes() == bytes));
                assert!(data[4096..].starts_with(&reply));
            }
            Err(_) => assert!(data.len() < 8192),
        }
    });
}
