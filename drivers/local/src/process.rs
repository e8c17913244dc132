//! A child process run to its end: stdin of any size, both outputs, a deadline, and nothing of it left behind.

use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use bytes::Bytes;
use farcell_core::streams::{LastBytes, MOST, read_at_most};
use farcell_core::{Ended, Error, ErrorKind, Instant, KernelId, Output, Result, Step};
use rustix::process::{Pid, Signal, kill_process_group};
#[cfg(target_os = "linux")]
use rustix::process::{PidfdFlags, pidfd_open, pidfd_send_signal};
use tokio::io::{AsyncRead, AsyncWriteExt as _};
use tokio::process::{Child, Command};

use crate::account::Setting;

/// How long a command that has ended is still listened to.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// Starts a child in a process group of its own, with pipes on all three.
pub(crate) fn start(argv: &[String], setting: Setting) -> Result<(Child, Group)> {
    let mut command = prepare(argv)?;
    if let Some(env) = setting.env {
        command.env_clear().envs(env);
    }
    if let Some(account) = setting.account {
        // Our supplementary groups go with it: std drops them where it changes the user as root.
        command.current_dir(account.directory()).gid(account.gid).uid(account.uid);
    }
    spawn(command, argv)
}

fn prepare(argv: &[String]) -> Result<Command> {
    let Some((program, args)) = argv.split_first() else {
        return Err(Error::new(ErrorKind::BadInput, "there is no command to run").at(Step::Parse));
    };
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.process_group(0).kill_on_drop(true);
    Ok(command)
}

fn spawn(mut command: Command, argv: &[String]) -> Result<(Child, Group)> {
    let program = &argv[0];
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

/// Runs a command to its end.
pub(crate) async fn run(
    argv: &[String],
    setting: Setting,
    stdin: Bytes,
    deadline: Instant,
) -> Result<Output> {
    finish(start(argv, setting)?, &argv[0], stdin, deadline, MOST).await
}

/// Runs a program of this machine to its end, in our own environment: `argv` with `stdin`, of whose stdout at most `most` bytes are taken.
///
/// Dropped, or when the deadline passes, it kills the program's whole process group. Should this process be killed, the program is, too (on Linux).
///
/// # Errors
/// [`ErrorKind::BadInput`] for a program that is not there, [`ErrorKind::Deadline`] for one that does not end, [`ErrorKind::Transport`] for one that cannot be
/// started or prints too much. One that fails is no error.
pub async fn run_program(argv: &[String], stdin: Bytes, deadline: Instant, most: usize) -> Result<Output> {
    let mut command = prepare(argv)?;
    die_with_us(&mut command);
    finish(spawn(command, argv)?, &argv[0], stdin, deadline, most).await
}

/// Has the kernel end the program when the thread that starts it ends: with our process at the latest.
#[cfg(target_os = "linux")]
#[allow(
    unsafe_code,
    reason = "what runs between fork and exec has to be safe there; this is one system call"
)]
fn die_with_us(command: &mut Command) {
    let tie = || Ok(rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?);
    // SAFETY: the closure makes one system call, and neither allocates nor takes a lock.
    unsafe { command.pre_exec(tie) };
}

#[cfg(not(target_os = "linux"))]
fn die_with_us(_: &mut Command) {}

/// Feeds a child and waits for its end.
async fn finish(
    (mut child, mut group): (Child, Group),
    program: &str,
    stdin: Bytes,
    deadline: Instant,
    most: usize,
) -> Result<Output> {
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
                    Some(output) => read_at_most(output, most).await,
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
        return Err(Error::new(ErrorKind::Deadline, format!("{program:?} did not end in time")));
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
