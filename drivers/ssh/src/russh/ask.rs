//! Passwords and passphrases: from the environment, or from a person, by the program that `SSH_ASKPASS` names or on the terminal.

use std::process::Stdio;

use tokio::io::AsyncReadExt as _;
use tokio::process::Command;
use tokio::sync::oneshot;
use zeroize::Zeroizing;

use crate::failure::Failure;
use crate::options::SshOptions;

/// The longest answer.
const LONGEST: u64 = 4096;

/// Something that nobody else shall see. It is wiped when it is dropped.
pub(super) type Secret = Zeroizing<String>;

/// Who knows the answers.
pub(super) struct Asker {
    given: Option<Secret>,
    ask: bool,
    /// What every question begins with.
    name: String,
}

impl Asker {
    pub(super) fn new(options: &SshOptions, batch: bool, name: &str) -> Result<Self, Failure> {
        let given = options.password()?.map(Zeroizing::new);
        Ok(Asker { given, ask: options.ask && !batch, name: name.to_owned() })
    }

    /// The answer that the environment holds.
    pub(super) fn given(&self) -> Option<Secret> {
        self.given.clone()
    }

    /// A person may be asked.
    pub(super) fn may_ask(&self) -> bool {
        self.ask
    }

    /// Asks a person, who may take their time. `None` if there is none, or who gives no answer.
    pub(super) async fn ask(&self, question: &str) -> Option<Secret> {
        if !self.ask {
            return None;
        }
        // A server's own words must not steer the terminal.
        let question: String = question.chars().filter(|c| !c.is_control()).take(200).collect();
        let question = format!("({}) {} ", self.name, question.trim());
        match askpass() {
            Some(program) => by_program(&program, &question).await,
            None => on_terminal(question).await,
        }
    }
}

/// The program to ask with, by ssh's own rules.
fn askpass() -> Option<String> {
    let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let program = variable("SSH_ASKPASS")?;
    let has_screen = variable("DISPLAY").or_else(|| variable("WAYLAND_DISPLAY")).is_some();
    let has_terminal = || std::fs::File::open("/dev/tty").is_ok();
    match variable("SSH_ASKPASS_REQUIRE").as_deref() {
        Some("never") => None,
        Some("force") => Some(program),
        Some("prefer") => has_screen.then_some(program),
        _ => (has_screen && !has_terminal()).then_some(program),
    }
}

async fn by_program(program: &str, question: &str) -> Option<Secret> {
    let mut child = Command::new(program)
        .arg(question)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .inspect_err(|e| tracing::warn!(program, error = %e, "SSH_ASKPASS cannot be started"))
        .ok()?;
    let mut answer = Zeroizing::new(String::new());
    child.stdout.take()?.take(LONGEST).read_to_string(&mut answer).await.ok()?;
    let status = child.wait().await.ok()?;
    let line = answer.lines().next().unwrap_or_default();
    status.success().then(|| Zeroizing::new(line.to_owned()))
}

/// In a thread of its own: it cannot be called back, and nothing shall wait for it when the process ends.
async fn on_terminal(question: String) -> Option<Secret> {
    let (tell, answer) = oneshot::channel();
    std::thread::Builder::new()
        .name("ssh-question".to_owned())
        .spawn(move || {
            let _ = tell.send(rpassword::prompt_password(question).ok().map(Zeroizing::new));
        })
        .ok()?;
    answer.await.ok().flatten()
}
