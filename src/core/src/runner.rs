//! The far side as it is shipped: the command that finds a Python, the loader, and the bundle of modules under its hash.

use std::sync::LazyLock;

use bytes::{BufMut as _, Bytes, BytesMut};
use serde_json::{Map, Value};

use crate::error::{Error, ErrorKind, Result};
use crate::id::{self, Nonce};
use crate::transport::Command;
use crate::wire::message::VERSION;

/// The modules of the far side, by file name; `build.rs` lists them.
const MODULES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/modules.rs"));

const FIND_PYTHON: &str = include_str!("../runner/find_python.sh");
const STAGE_ONE: &str = include_str!("../runner/stage1.py");

/// The shipped far side.
#[derive(Debug)]
pub struct Runner {
    /// Names this version of the modules.
    pub hash: String,
    /// The modules as one JSON object from file name to source.
    pub bundle: Bytes,
    /// The loader, as one line of Python.
    pub stage_one: String,
    /// The one command that every step over a transport is.
    pub command: Command,
}

impl Runner {
    /// What goes to the command's stdin, line by line as `docs/protocol.md` has it; with the bundle where the target may not have it.
    /// `header` is the text of a JSON object that is not empty: the fields that are the operation's own.
    ///
    /// # Errors
    /// A path of a Python that cannot be one.
    pub fn input(&self, nonce: &Nonce, python: Option<&str>, header: &[u8], bundle: bool) -> Result<Bytes> {
        let python = python.unwrap_or("");
        if python.contains(['\n', '\0']) {
            return Err(Error::new(ErrorKind::BadInput, format!("{python:?} is not the path of a Python")));
        }
        let bundle: &[u8] = if bundle { &self.bundle } else { &[] };
        // Hex digits and numbers need no quoting.
        let known = format!(
            r#"{{"v":{VERSION},"nonce":"{}","runner":"{}","bundle":{},"#,
            nonce.as_str(),
            self.hash,
            bundle.len()
        );
        let mut input = BytesMut::with_capacity(header.len() + self.stage_one.len() + bundle.len() + 512);
        for line in [nonce.as_str(), python, &self.stage_one] {
            input.put_slice(line.as_bytes());
            input.put_u8(b'\n');
        }
        for part in [known.as_bytes(), header.strip_prefix(b"{").unwrap_or(header), b"\n"] {
            input.put_slice(part);
        }
        input.put_slice(bundle);
        Ok(input.freeze())
    }
}

/// The error for a target without a usable Python.
pub fn no_python(tried: &str) -> Error {
    Error::new(ErrorKind::Spawn, format!("there is no Python 3.6 or newer ({tried})"))
        .with_hint("install python3 on the target, or name one: --python PATH, or ?python=PATH in the target")
}

/// The runner of this build.
pub fn runner() -> &'static Runner {
    static RUNNER: LazyLock<Runner> = LazyLock::new(|| {
        let modules: Map<String, Value> =
            MODULES.iter().map(|(name, source)| ((*name).to_owned(), Value::from(*source))).collect();
        let bundle = Value::Object(modules).to_string();
        // A JSON string of ASCII text is a Python string literal as well.
        let stage_one = format!("exec(compile({}, \"<farcell>\", \"exec\"))", Value::from(STAGE_ONE));
        // Made once for the life of the program from text that is compiled in, hence the leak; `Command::sh` wants proof of just that.
        let script: &'static str = Box::leak(one_line(FIND_PYTHON).into_boxed_str());
        Runner {
            hash: id::digest(&[&bundle], 8),
            bundle: Bytes::from(bundle),
            stage_one,
            command: Command::sh(script),
        }
    });
    &RUNNER
}

/// Joins the lines of a shell script that was written for it; lines that begin with `#` are left out.
fn one_line(script: &str) -> String {
    let lines = script.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#'));
    lines.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shipped_is_ascii_and_has_an_entry() {
        let names: Vec<_> = MODULES.iter().map(|(name, _)| *name).collect();
        for name in ["farcell_kernel.py", "link.py", "supervisor.py", "interpreter.py"] {
            assert!(names.contains(&name), "{name} is not in {names:?}");
        }
        for (name, source) in MODULES.iter().chain(&[("stage1.py", STAGE_ONE)]) {
            assert!(source.is_ascii(), "{name} is not ASCII");
        }
    }

    #[test]
    fn the_command_is_one_word_list() {
        let line = runner().command.login_shell_line();
        assert!(line.starts_with("exec /bin/sh -c '") && line.matches('\'').count() == 2, "{line}");
        assert!(!runner().stage_one.contains('\n'));
    }
}
