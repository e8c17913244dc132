//! A child process run to its end: stdin of any size, both outputs, a deadline, and nothing of it left behind.

use std::ffi::OsString;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use bytes::Bytes;
use farcell_core::streams::{LastBytes, read_all};
use farcell_core::{Ended, Error, ErrorKind, Instant, KernelId, Output, Result, Step};
use rustix::process::{Pid, Signal, kill_process_group};
#[cfg(target_os = "linux")]
use rustix::process::{PidfdFlags, pidfd_open, pidfd_send_signal};
use tokio::io::{AsyncRead, AsyncWriteExt as _};
use tokio::process::{Child, Command};

/// How long a command that has ended is still listened to.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// Starts a child in a process group of its own, with pipes on all three.
pub(crate) fn start(argv: &[String], env: Option<Vec<(OsString, OsString)>>) -> Result<(Child, Group)> {
    let Some((program, args)) = argv.split_first() else {
        return Err(Error::new(ErrorKind::BadInput, "there is no command to run").at(Step::Parse));
    };
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.process_group(0).kill_on_drop(true);
    if let Some(env) = env {
        command.env_clear().envs(env);
    }
    let child = command.spawn().map_err(|e| {
        let missing = e.kind() == std::io::ErrorKind::NotFound;
        let kind = if missing { ErrorKind::BadInput } else { ErrorKind::Transport };
        let message = if missing {
            format!("there is no program {program:?}")
        } else {
            format!("cannot start {program:?}: {e}")
        };
        let error = Error::new(kind, message).at(Step::Connect).with_source(e);
        if missing { error.with_hint("check how it is spelled, or install it") } else { error }
    })?;
    let pid = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
    Ok((child, Group { pid }))
}

/// The process group of a child. Ends with SIGKILL when it is dropped, unless the child has been waited for.
#[derive(Debug)]
pub(crate) struct Group {
    pid: Option<Pid>,
}

impl Group {
    /// Sends SIGKILL to all of the group.
    pub(crate) fn kill(&self) {
        if let Some(pid) = self.pid {
            // ESRCH: all of it has ended by itself, which is what we want.
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }

    /// The child has been waited for: its number may belong to somebody else from now on.
    pub(crate) fn is_over(&mut self) {
        self.pid = None;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Ends what is left of a kernel whose supervisor has gone: every process carries the kernel's id in its environment.
///
/// Works on Linux; elsewhere the process group has to do.
#[cfg(target_os = "linux")]
pub(crate) fn kill_marked(kernel: &KernelId) {
    let mark = format!("FARCELL_KERNEL={kernel}");
    let Ok(entries) = std::fs::read_dir("/proc") else { return };
    for entry in entries.flatten() {
        let pid = entry.file_name().to_str().and_then(|name| Pid::from_raw(name.parse().ok()?));
        // The handle comes first: whatever is read afterwards is said of the process that is signalled.
        let Some(handle) = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else { continue };
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        if environment.split(|b| *b == 0).any(|variable| variable == mark.as_bytes()) {
            // It may just have ended by itself.
            let _ = pidfd_send_signal(&handle, Signal::KILL);
        }
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn kill_marked(_: &KernelId) {}

/// Ends the process with this number and start time, and no other that may have got the number since. False if it is not there.
#[cfg(target_os = "linux")]
pub(crate) fn kill_exact(pid: i64, start_time: u64) -> bool {
    let handle = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let Some(handle) = handle.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else { return false };
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // Field 22, counted behind the name, which may contain anything.
    let started = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(19)?.parse().ok());
    started == Some(start_time) && pidfd_send_signal(&handle, Signal::KILL).is_ok()
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn kill_exact(_: i64, _: u64) -> bool {
    false
}

/// Runs a command to its end.
pub(crate) async fn run(
    argv: &[String],
    env: Option<Vec<(OsString, OsString)>>,
    stdin: Bytes,
    deadline: Instant,
) -> Result<Output> {
    let (mut child, mut group) = start(argv, env)?;
    let (mut input, output, errors) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let feed = async {
        if let Some(input) = &mut input {
            // A command that ends without reading all of its input is judged by its answer, not by this.
            let _ = input.write_all(&stdin).await;
            let _ = input.shutdown().await;
        }
        drop(input);
    };
    let work = async {
        let main = async {
            let output = async {
                match output {
                    Some(output) => read_all(output).await,
                    None => Ok(Bytes::new()),
                }
            };
            let (_, stdout) = tokio::join!(feed, output);
            (child.wait().await, stdout)
        };
        let mut said = LastBytes::default();
        let ended = {
            let noise = async {
                if let Some(errors) = errors {
                    said.read(errors).await;
                }
            };
            tokio::pin!(main, noise);
            tokio::select! {
                ended = &mut main => {
                    // What it left in the background may keep its stderr open for ever.
                    let _ = tokio::time::timeout(LAST_WORDS, noise).await;
                    ended
                }
                () = &mut noise => main.await,
            }
        };
        (ended, said)
    };
    let Ok(((status, stdout), said)) = tokio::time::timeout_at(deadline, work).await else {
        return Err(Error::new(ErrorKind::Deadline, format!("{:?} did not end in time", argv[0])));
    };
    let stderr = said.to_bytes();
    let lost = |e: std::io::Error| {
        Error::new(ErrorKind::Transport, format!("the command's output was lost: {e}")).with_source(e)
    };
    group.is_over();
    Ok(Output::new(ended(status.map_err(lost)?), stdout.map_err(lost)?, stderr))
}

fn ended(status: ExitStatus) -> Ended {
    use std::os::unix::process::ExitStatusExt as _;
    match (status.code(), status.signal()) {
        (Some(code), _) => Ended::Exit(code),
        (None, Some(signal)) => Ended::Signal(signal),
        (None, None) => Ended::Unknown,
    }
}

/// The end of a stream.
pub(crate) async fn read_tail(stream: Option<impl AsyncRead + Unpin>) -> Bytes {
    let mut tail = LastBytes::default();
    if let Some(stream) = stream {
        tail.read(stream).await;
    }
    tail.to_bytes()
}
