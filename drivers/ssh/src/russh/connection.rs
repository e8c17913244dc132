//! A connection that is logged in, and how it comes about, over other hosts if need be.

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use farcell_core::remote::Remote;
use russh::client::{Config, Handle};
use russh::{Preferred, SshId};
use tokio::process::Child;

use super::ask::Asker;
use super::auth::Login;
use super::check::{Checker, Shared};
use super::known_hosts::KnownHosts;
use super::pipes::{Pipes, ending, pipes, stream};
use super::settings::{Settings, Way};
use super::way::{Stream, Switch, command, guarded, tcp};
use crate::address::{Address, HostKeys};
use crate::failure::{self, Failure};
use crate::live::{Live, NotStarted};
use crate::options::SshOptions;

/// How many hosts may lie on the way, those that the config of one adds included.
const DEEP: usize = 8;
/// What a server may send of one channel before it is told that there is room for more: enough for a fast and distant one.
const WINDOW: u32 = 4 << 20;
/// As OpenSSH has it.
const PACKET: u32 = 32 << 10;

/// A connection that is logged in.
pub(super) struct Connection {
    handle: Handle<Checker>,
    switch: Option<Switch>,
    given_up: AtomicBool,
    /// The host, for messages.
    name: String,
    /// What it runs over.
    _below: Below,
}

/// What a connection runs over, for as long as it lasts.
enum Below {
    Tcp,
    Command(#[allow(dead_code, reason = "it ends when it is dropped")] Child),
    Host(#[allow(dead_code, reason = "it ends when it is dropped")] Arc<Connection>),
}

/// Connects and logs in.
pub(super) async fn connect(address: &Address, options: &SshOptions) -> Result<Arc<Connection>, Failure> {
    over(address, options, None, DEEP).await
}

type Connecting<'a> = Pin<Box<dyn Future<Output = Result<Arc<Connection>, Failure>> + Send + 'a>>;

/// The same over a connection to another host, or as the host's own settings say.
fn over<'a>(
    address: &'a Address,
    options: &'a SshOptions,
    below: Option<Arc<Connection>>,
    depth: usize,
) -> Connecting<'a> {
    Box::pin(async move {
        let settings = Settings::of(address).await?;
        let limit = settings.connect_timeout.unwrap_or(options.connect_timeout).min(options.connect_timeout);
        let below = match (&settings.way, below) {
            (_, Some(below)) => Some(below),
            (Way::Jump(hops), None) => Some(jump(hops, address, options, depth).await?),
            _ => None,
        };
        let (stream, below): (Box<dyn Stream>, _) = match (&settings.way, below) {
            (_, Some(below)) => (Box::new(below.forward(&settings, limit).await?), Below::Host(below)),
            (Way::Command(line), None) => {
                let (stream, child) = command(line)?;
                (Box::new(stream), Below::Command(child))
            }
            (_, None) => (Box::new(tcp(&settings, limit).await?), Below::Tcp),
        };
        let connection = log_in(address, options, &settings, stream, below, limit).await?;
        Ok(Arc::new(connection))
    })
}

/// Connects to the last of some hosts, by way of the others.
async fn jump(
    hops: &str,
    to: &Address,
    options: &SshOptions,
    depth: usize,
) -> Result<Arc<Connection>, Failure> {
    let mut below = None;
    for hop in hops.split(',') {
        let depth = depth.checked_sub(1).ok_or_else(|| {
            Failure::lasting(format!("the hosts on the way to {to} lead to each other without end"))
                .hint("check ProxyJump in the ssh config")
        })?;
        let address = to.hop(hop.trim()).map_err(|why| {
            Failure::lasting(format!("the host {hop:?} on the way to {to} is not understood: {why}"))
                .hint("write jump=user@host:port")
        })?;
        below = Some(over(&address, options, below.take(), depth).await?);
    }
    below.ok_or_else(|| Failure::lasting(format!("there is no host on the way to {to}")))
}

/// Speaks with the server at the end of a stream until it has let us in.
async fn log_in(
    address: &Address,
    options: &SshOptions,
    settings: &Settings,
    stream: Box<dyn Stream>,
    below: Below,
    limit: Duration,
) -> Result<Connection, Failure> {
    let name = address.to_string();
    let asker = Asker::new(options, settings.batch, &format!("{}@{}", settings.user, address.host))?;
    let known = match address.host_keys {
        // As the other driver does it: what is known does not count.
        Some(HostKeys::Off) => KnownHosts::default(),
        _ => KnownHosts::read(settings),
    };
    let config = Arc::new(config(options, &known));
    let shared = Shared::default();
    let checker =
        Checker { known, host_keys: settings.host_keys, name: name.clone(), shared: shared.clone() };
    let silence = options.keepalive.max(Duration::from_secs(1)) * options.keepalive_count.max(1);
    let (stream, unless) = guarded(stream, silence);
    let greeting = tokio::time::timeout(limit, russh::client::connect_stream(config, stream, checker));
    let mut handle = match greeting.await {
        Ok(Ok(handle)) => handle,
        Ok(Err(broken)) => return Err(broken.failure(&name, matches!(below, Below::Tcp))),
        Err(_) => return Err(failure::no_answer(&name, limit)),
    };
    Login { handle: &mut handle, settings, asker: &asker, shared: &shared, name: &name, limit }.run().await?;
    Ok(Connection { handle, switch: unless.well(), given_up: AtomicBool::new(false), name, _below: below })
}

fn config(options: &SshOptions, known: &KnownHosts) -> Config {
    let preferred = Preferred {
        key: Cow::Owned(known.algorithms()),
        // A server that has a certificate shows it only to who asks, and only an authority gives it a meaning.
        host_key_certificates: match known.has_authority() {
            true => Cow::Owned(known.algorithms()),
            false => Cow::Borrowed(&[]),
        },
        ..Preferred::DEFAULT
    };
    Config {
        client_id: SshId::Standard(Cow::Borrowed(concat!("SSH-2.0-farcell_", env!("CARGO_PKG_VERSION")))),
        window_size: WINDOW,
        maximum_packet_size: PACKET,
        preferred,
        inactivity_timeout: None,
        keepalive_interval: Some(options.keepalive.max(Duration::from_secs(1))),
        keepalive_max: options.keepalive_count.max(1) as usize,
        nodelay: true,
        ..Config::default()
    }
}

impl Connection {
    /// A stream to another server, from the host that this one leads to.
    async fn forward(&self, to: &Settings, limit: Duration) -> Result<impl Stream + use<>, Failure> {
        let (host, port) = (to.hostname.as_str(), to.port);
        let opening = self.handle.channel_open_direct_tcpip(host, u32::from(port), "127.0.0.1", 0);
        let opened =
            tokio::time::timeout(limit, opening).await.map_err(|_| failure::no_answer(&self.name, limit))?;
        opened.map(stream).map_err(|e| {
            let why = match e {
                russh::Error::ChannelOpenFailure(reason) => format!("{reason:?}"),
                e => e.to_string(),
            };
            Failure::passing(format!("{} does not lead to {host} port {port}: {why}", self.name)).hint(
                "check address and port as that host sees them, and AllowTcpForwarding in its sshd_config",
            )
        })
    }
}

#[async_trait]
impl Live for Connection {
    async fn start(&self, line: &str) -> Result<Remote, NotStarted> {
        let lost = |e: russh::Error| NotStarted::Lost(e.to_string());
        let channel = self.handle.channel_open_session().await.map_err(|e| match e {
            russh::Error::ChannelOpenFailure(_) => NotStarted::Busy,
            e => lost(e),
        })?;
        let (reader, writer) = channel.split();
        writer.exec(true, line).await.map_err(lost)?;
        let Pipes { stdin, stdout, stderr, mut state } = pipes(reader, writer);
        let agreed = match state.wait_for(|state| state.agreed.is_some() || state.over).await {
            Ok(state) => state.agreed,
            Err(_) => None,
        };
        match agreed {
            Some(true) => {}
            Some(false) => return Err(NotStarted::Busy),
            None => return Err(lost(russh::Error::Disconnect)),
        }
        Ok(Remote::new(stdin, stdout, stderr, ending(state)))
    }

    fn is_over(&self) -> bool {
        self.given_up.load(Ordering::Acquire) || self.handle.is_closed()
    }

    fn give_up(&self) {
        self.given_up.store(true, Ordering::Release);
        if let Some(switch) = &self.switch {
            switch.cut();
        }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("name", &self.name).finish_non_exhaustive()
    }
}
