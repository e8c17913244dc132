//! Displays on a terminal: text as text, images saved to files whose paths are told.

use std::fs::{DirBuilder, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use farcell::MimeBundle;
use serde_json::Value;

/// Formats that are saved, with their file endings; the first one that a bundle has is taken.
const IMAGES: &[(&str, &str)] = &[("image/png", "png"), ("image/jpeg", "jpg"), ("image/svg+xml", "svg")];

/// Saves displays and describes them.
#[derive(Debug)]
pub(crate) struct Displays {
    dir: PathBuf,
    prefix: String,
    count: usize,
}

impl Displays {
    /// Saves to `dir`, under names that begin with `prefix`.
    pub(crate) fn new(dir: &Path, prefix: &str) -> Self {
        Displays { dir: dir.to_owned(), prefix: prefix.to_owned(), count: 0 }
    }

    /// One display as lines for a person.
    pub(crate) fn describe(&mut self, bundle: &MimeBundle) -> String {
        let text = bundle.get("text/plain").and_then(Value::as_str).unwrap_or("");
        for (mime, ending) in IMAGES {
            let Some(data) = bundle.get(*mime).and_then(Value::as_str) else { continue };
            self.count += 1;
            let path = self.dir.join(format!("{}-{}.{ending}", self.prefix, self.count));
            let saved = self.save(mime, data, &path);
            return match saved {
                Ok(()) => format!("[{mime}: {}] {text}", path.display()),
                Err(e) => format!("[{mime}: cannot be saved to {}: {e}] {text}", path.display()),
            };
        }
        text.to_owned()
    }

    fn save(&self, mime: &str, data: &str, path: &Path) -> std::io::Result<()> {
        let bytes = if mime.ends_with("+xml") {
            data.as_bytes().to_vec()
        } else {
            let compact: String = data.split_ascii_whitespace().collect();
            base64::engine::general_purpose::STANDARD.decode(compact).map_err(std::io::Error::other)?
        };
        DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?.write_all(&bytes)
    }
}
