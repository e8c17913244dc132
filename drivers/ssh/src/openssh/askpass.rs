//! The password that an environment variable holds, on its way to the ssh program: by its own `SSH_ASKPASS`, and never by an argument.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use tokio::process::Command;

use crate::failure::Failure;
use crate::options::SshOptions;

/// The variable in which the program below finds it. ssh passes its environment on to nobody else.
const VARIABLE: &str = "FARCELL_SSH_ANSWER";
const PROGRAM: &str = "#!/bin/sh\nprintf '%s\\n' \"$FARCELL_SSH_ANSWER\"\n";

/// A program that prints the password. Removed when it is dropped; there is no secret in it.
pub(super) struct Askpass {
    path: PathBuf,
    answer: String,
}

impl Askpass {
    /// The one for these options; `None` if they name no variable.
    pub(super) fn of(options: &SshOptions, dir: &Path) -> Result<Option<Self>, Failure> {
        let Some(answer) = options.password()? else { return Ok(None) };
        let path = dir.join(format!("answer-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let written = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o700)
            .open(&path)
            .and_then(|mut file| file.write_all(PROGRAM.as_bytes()));
        let askpass = Askpass { path, answer };
        match written {
            Ok(()) => Ok(Some(askpass)),
            Err(e) => Err(Failure::local(format!("cannot write {}: {e}", askpass.path.display()))),
        }
    }

    pub(super) fn apply(&self, command: &mut Command) {
        command
            .env("SSH_ASKPASS", &self.path)
            .env("SSH_ASKPASS_REQUIRE", "force")
            .env(VARIABLE, &self.answer);
        // Before OpenSSH 8.4 this was what made it ask a program.
        if std::env::var_os("DISPLAY").is_none() {
            command.env("DISPLAY", ":0");
        }
    }
}

impl Drop for Askpass {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
