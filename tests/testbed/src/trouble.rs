//! Why something could not be had, and what a test does then.

use std::io::{self, Write};
use std::process::{Command, Stdio};

/// Why something could not be had.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    /// The machine lacks something.
    #[error("{what} is missing; {remedy}")]
    Missing {
        /// What is missing.
        what: String,
        /// What to do about it.
        remedy: &'static str,
    },
    /// It should have worked.
    #[error("failed to {step}: {reason}")]
    Failed {
        /// What failed.
        step: String,
        /// What is known about it.
        reason: String,
    },
}

impl Trouble {
    /// A program that `fixtures/setup sshd` would install.
    pub(crate) fn no_program(name: &str) -> Self {
        Trouble::Missing { what: name.to_owned(), remedy: "fixtures/setup sshd installs it" }
    }

    /// Something that only root may do.
    pub(crate) fn no_root(what: &str) -> Self {
        Trouble::Missing { what: format!("root, to {what},"), remedy: "run the tests as root" }
    }

    /// Something that failed.
    #[expect(clippy::needless_pass_by_value, reason = "it stands in map_err")]
    pub(crate) fn failed(step: impl Into<String>, reason: impl ToString) -> Self {
        Trouble::Failed { step: step.into(), reason: reason.to_string() }
    }
}

/// What a test needs, or `None` if the machine lacks it: then the test returns, and its absence is said on stderr, past the test harness,
/// which would hide it. With `CI=true` all tests have to run, so that something missing is a failure, as everything else that went wrong is.
pub fn available<T>(needed: Result<T, Trouble>) -> Option<T> {
    match needed {
        Ok(it) => Some(it),
        Err(trouble @ Trouble::Missing { .. }) if std::env::var_os("CI").is_none_or(|ci| ci != "true") => {
            let test = std::thread::current().name().unwrap_or("a test").to_owned();
            let _ = writeln!(io::stderr(), "SKIPPED {test}: {trouble}");
            None
        }
        Err(trouble) => panic!("{trouble}"),
    }
}

/// Runs a program that has to succeed, with something on its stdin.
pub(crate) fn run(command: &mut Command, stdin: &[u8]) -> Result<(), Trouble> {
    let program = command.get_program().to_string_lossy().into_owned();
    let failed = |reason: String| Trouble::failed(format!("run {program}"), reason);
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(Trouble::no_program(&program)),
        Err(error) => return Err(failed(error.to_string())),
    };
    // A program that does not read has ended, and says why by its status.
    let _ = child.stdin.take().expect("it was piped").write_all(stdin);
    let output = child.wait_with_output().map_err(|e| failed(e.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(failed(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim())))
}
