//! The way to an engine on another machine: a socket of this process, and for each connection an ssh whose far end speaks to the engine there.
//!
//! The ssh is the user's own, with all of his configuration: keys, agents, jump hosts, known hosts, shared connections. It never asks.

use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};

use farcell_core::{Error, ErrorKind, Result, Step};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy};
use tokio::net::{UnixListener, UnixStream};
use tokio::process::Command;
use tokio::task::{JoinHandle, JoinSet};

/// How much of what ssh says is told.
const SPOKEN: u64 = 2048;

/// Where an engine is, as `ssh://USER@HOST:PORT/SOCKET` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Way {
    destination: String,
    port: Option<u16>,
    /// The engine's socket there, if it is not the usual one.
    socket: Option<String>,
}

impl Way {
    /// Reads an address. A shell on the far side reads the socket, so that it has to be a plain word.
    pub(crate) fn read(text: &str) -> Result<Self> {
        let bad = || {
            Error::new(ErrorKind::BadInput, format!("{text:?} does not say where an engine is"))
                .at(Step::Parse)
                .with_hint("write ssh://USER@HOST:PORT, and behind it the path of the engine's socket if it is not the usual one")
        };
        let rest = text.strip_prefix("ssh://").ok_or_else(bad)?;
        let (authority, socket) = match rest.split_once('/') {
            Some((authority, path)) => (authority, Some(format!("/{path}")).filter(|path| path != "/")),
            None => (rest, None),
        };
        let colon = authority.rfind(':').filter(|at| !authority[*at..].contains(']'));
        let (destination, port) = match colon {
            Some(at) => (&authority[..at], Some(authority[at + 1..].parse().map_err(|_| bad())?)),
            None => (authority, None),
        };
        let is_word = |text: &str, more: &str| {
            text.starts_with(|c: char| !"-@:".contains(c))
                && text.chars().all(|c| c.is_ascii_alphanumeric() || more.contains(c))
        };
        if !is_word(destination, "._-@:[]%") || !socket.as_deref().is_none_or(|path| is_word(path, "/._-")) {
            return Err(bad());
        }
        let destination = destination.replace(['[', ']'], "");
        Ok(Way { destination, port, socket })
    }

    /// What is run, here and there. `program` is the engine's own client.
    fn arguments(&self, program: &str) -> Vec<String> {
        let mut words: Vec<String> =
            ["-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"].map(str::to_owned).to_vec();
        if let Some(port) = self.port {
            words.extend(["-p".to_owned(), port.to_string()]);
        }
        words.extend(["--".to_owned(), self.destination.clone(), program.to_owned()]);
        if let Some(socket) = &self.socket {
            let option = if program == "podman" { "--url" } else { "--host" };
            words.extend([option.to_owned(), format!("unix://{socket}")]);
        }
        words.extend(["system".to_owned(), "dial-stdio".to_owned()]);
        words
    }
}

/// A socket that leads to an engine elsewhere, as long as this value is there.
#[derive(Debug)]
pub(crate) struct Tunnel {
    dir: tempfile::TempDir,
    serving: JoinHandle<()>,
    trouble: Arc<Mutex<Option<String>>>,
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Tunnel {
    pub(crate) fn open(way: &Way, program: &str) -> Result<Self> {
        let failed =
            |e| Error::new(ErrorKind::Local, format!("no socket can be made: {e}")).at(Step::Connect);
        // Nobody else may enter it.
        let dir = tempfile::Builder::new().prefix("farcell-").tempdir().map_err(failed)?;
        let listener = UnixListener::bind(dir.path().join("s")).map_err(failed)?;
        let trouble = Arc::default();
        let serving = tokio::spawn(serve(listener, way.arguments(program), Arc::clone(&trouble)));
        Ok(Tunnel { dir, serving, trouble })
    }

    /// The socket.
    pub(crate) fn path(&self) -> String {
        self.dir.path().join("s").display().to_string()
    }

    /// What the last ssh said that brought nothing.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn serve(listener: UnixListener, arguments: Vec<String>, trouble: Arc<Mutex<Option<String>>>) {
    let arguments = Arc::new(arguments);
    // Dropped with this task, and all that they carry.
    let mut connections = JoinSet::new();
    while let Ok((connection, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        let (arguments, trouble) = (Arc::clone(&arguments), Arc::clone(&trouble));
        connections.spawn(async move {
            let said = carry(connection, &arguments).await;
            *trouble.lock().unwrap_or_else(PoisonError::into_inner) = said;
        });
    }
}

/// Carries one connection; gives what ssh said where it brought nothing.
async fn carry(connection: UnixStream, arguments: &[String]) -> Option<String> {
    let mut ssh = Command::new("ssh");
    ssh.args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let mut ssh = match ssh.spawn() {
        Ok(ssh) => ssh,
        Err(e) => return Some(format!("the program ssh cannot be started: {e}")),
    };
    let (Some(mut to), Some(mut from), Some(said)) = (ssh.stdin.take(), ssh.stdout.take(), ssh.stderr.take())
    else {
        return None;
    };
    let (mut reader, mut writer) = connection.into_split();
    let up = async {
        let _ = copy(&mut reader, &mut to).await;
        // The end of the one direction is not that of the other.
        drop(to);
        std::future::pending::<()>().await;
    };
    let mut words = String::new();
    let down = async {
        let mut said = said.take(SPOKEN);
        let (brought, _) = tokio::join!(copy(&mut from, &mut writer), said.read_to_string(&mut words));
        let _ = writer.shutdown().await;
        brought.unwrap_or(0)
    };
    let brought = tokio::select! {
        brought = down => brought,
        () = up => 0,
    };
    (brought == 0).then(|| words.trim().lines().last().unwrap_or("it ended without a word").to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_behind_ssh_is_named_as_for_the_docker_client() {
        let arguments =
            |text: &str, program: &str| Way::read(text).unwrap().arguments(program).split_off(5).join(" ");
        assert_eq!(arguments("ssh://box", "docker"), "-- box docker system dial-stdio");
        assert_eq!(arguments("ssh://ann@box:2222/", "docker"), "-p 2222 -- ann@box docker system dial-stdio");
        assert_eq!(arguments("ssh://ann@[::1]:22", "docker"), "-p 22 -- ann@::1 docker system dial-stdio");
        assert_eq!(
            arguments("ssh://box/run/podman/podman.sock", "podman"),
            "-- box podman --url unix:///run/podman/podman.sock system dial-stdio"
        );
    }

    #[test]
    fn what_a_shell_could_misread_is_refused() {
        for text in [
            "ssh://",
            "ssh://-oProxyCommand=x",
            "ssh://box:port",
            "ssh://box/a b",
            "ssh://box/$(x)",
            "ssh://a;b",
            "ssh:///x",
        ] {
            let e = Way::read(text).unwrap_err();
            assert!(e.message().contains(text) && e.hint().is_some(), "{e:?}");
        }
    }
}
