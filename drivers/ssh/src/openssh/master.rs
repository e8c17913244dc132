//! Starting the ssh program as a master: what it is told beyond its user's config, and why.

use std::ffi::OsString;
use std::fs::File;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

use super::askpass::Askpass;
use super::sockets::Socket;
use super::verdict;
use super::{percent, quoted};
use crate::address::{Address, HostKeys};
use crate::failure::Failure;
use crate::options::SshOptions;

/// How long a master stays that nobody uses, where none is to be kept: long enough to be found by who has just started it.
const ALONE: Duration = Duration::from_secs(5);

/// Logs in. Returns when the master has, and has gone into the background.
pub(super) async fn start(address: &Address, options: &SshOptions, socket: &Socket) -> Result<(), Failure> {
    let log = socket.log();
    let said =
        File::create(&log).map_err(|e| Failure::local(format!("cannot write {}: {e}", log.display())))?;
    let askpass = Askpass::of(options, socket.dir())?;
    let mut command = Command::new("ssh");
    command.args(arguments(address, options, &socket.path(), askpass.is_some()));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said);
    // Until it is in the background it ends with us.
    command.kill_on_drop(true);
    if let Some(askpass) = &askpass {
        askpass.apply(&mut command);
    }
    let status = command.status().await.map_err(|e| {
        let missing = e.kind() == std::io::ErrorKind::NotFound;
        let failure = Failure::local(if missing {
            "there is no program ssh".to_owned()
        } else {
            format!("cannot start ssh: {e}")
        });
        failure.hint("install openssh-client, or write driver=russh, which needs none")
    })?;
    let said = std::fs::read(&log).unwrap_or_default();
    // Whatever stays in it is of no use to anybody.
    let _ = std::fs::remove_file(&log);
    if status.success() {
        return Ok(());
    }
    Err(verdict::of(&String::from_utf8_lossy(&said), address))
}

fn arguments(address: &Address, options: &SshOptions, socket: &Path, has_password: bool) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = ["-M", "-N", "-f", "-S"].map(OsString::from).to_vec();
    arguments.push(socket.into());
    let mut option = |name: &str, value: &str| {
        arguments.push("-o".into());
        arguments.push(format!("{name}={value}").into());
    };
    let persist = options.control_persist.max(ALONE);
    option("ControlPersist", &format!("{}s", seconds(persist)));
    option("ServerAliveInterval", &seconds(options.keepalive).to_string());
    option("ServerAliveCountMax", &options.keepalive_count.max(1).to_string());
    option("ConnectTimeout", &seconds(options.connect_timeout).to_string());
    // What a config says for people at a terminal would be in the way of commands.
    option("RequestTTY", "no");
    option("RemoteCommand", "none");
    option("PermitLocalCommand", "no");
    option("ClearAllForwardings", "yes");
    // The reason of a failure is what we are after.
    option("LogLevel", "INFO");
    if !options.ask && !has_password {
        option("BatchMode", "yes");
    }
    if has_password {
        option("NumberOfPasswordPrompts", "1");
    }
    match address.host_keys {
        None => {}
        Some(HostKeys::Strict) => option("StrictHostKeyChecking", "yes"),
        Some(HostKeys::AcceptNew) => option("StrictHostKeyChecking", "accept-new"),
        Some(HostKeys::Off) => {
            option("StrictHostKeyChecking", "no");
            option("GlobalKnownHostsFile", "/dev/null");
            if address.known_hosts.is_none() {
                option("UserKnownHostsFile", "/dev/null");
            }
        }
    }
    if let Some(path) = &address.known_hosts {
        option("UserKnownHostsFile", &quoted(path));
    }
    if address.identity.is_some() {
        option("IdentitiesOnly", "yes");
    }
    let mut pair = |name: &str, value: OsString| arguments.extend([name.into(), value]);
    if let Some(path) = &address.identity {
        pair("-i", percent(path).into());
    }
    if let Some(path) = &address.config {
        pair("-F", path.into());
    }
    if let Some(jump) = &address.jump {
        pair("-J", jump.into());
    }
    if let Some(user) = &address.user {
        pair("-l", user.into());
    }
    if let Some(port) = address.port {
        pair("-p", port.to_string().into());
    }
    pair("--", address.host.clone().into());
    arguments
}

/// Whole seconds, as ssh counts, and at least one.
fn seconds(duration: Duration) -> u64 {
    duration.as_millis().div_ceil(1000).max(1).try_into().unwrap_or(u64::MAX)
}
