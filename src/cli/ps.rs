//! `farcell ps`: kernels, and what they do.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use farcell::{Error, ErrorKind, Key, Probe, Result, Stored};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::context::Context;
use super::exit::Exit;
use super::output;

/// How long a target is waited for.
const BOUND: Duration = Duration::from_secs(10);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Without --on: the kernels that farcell on this machine has started, by session, and sandboxes
without a kernel that it has left.
With --on: all kernels of your user on that target, whoever started them.")]
pub(crate) struct Args {
    /// Ask this target for all its kernels
    #[arg(long, value_name = "TARGET")]
    on: Option<String>,
}

/// A kernel and what it answered.
struct Seen {
    key: Option<Key>,
    stored: Option<Stored>,
    probe: Result<Option<Probe>>,
    /// What was made for a kernel that is not on record.
    housing: Option<String>,
}

pub(crate) async fn run(context: &Context, args: &Args) -> Result<Exit> {
    let seen = match &args.on {
        Some(on) => discovered(context, on).await?,
        None => recorded(context).await,
    };
    if context.json {
        output::document(&json!({ "kernels": seen.iter().map(document).collect::<Vec<_>>() }));
    } else if seen.is_empty() {
        output::aside("no kernels; `farcell run` starts one");
    } else {
        let heading = ["SESSION", "OWNER", "TARGET", "KERNEL", "STATE", "PYTHON", "AGE", "PID"];
        // Part of it is said by the targets.
        let cleaner = context.registry.cleaner();
        let cleaned = |text: String| cleaner.text(&text).replace(['\n', '\t'], " ");
        let rows = seen.iter().map(|seen| row(seen).into_iter().map(cleaned).collect());
        output::table(&heading, &rows.collect::<Vec<_>>());
    }
    Ok(Exit::OK)
}

/// Asks all recorded kernels at once; a target that does not answer holds up nobody.
async fn recorded(context: &Context) -> Vec<Seen> {
    let mut asking = JoinSet::new();
    let (houses, kernels): (Vec<_>, Vec<_>) = context
        .registry
        .stored()
        .into_iter()
        .filter(|stored| stored.kernel.is_some() || stored.is_empty_house())
        .partition(Stored::is_empty_house);
    for stored in kernels {
        let session = context.session_of(&stored.key);
        asking.spawn(async move {
            let probe = match session {
                Ok(session) => in_time(session.probe()).await,
                Err(e) => Err(e),
            };
            Some(Seen { key: Some(stored.key.clone()), stored: Some(stored), probe, housing: None })
        });
    }
    for stored in houses {
        let registry = context.registry.clone();
        asking.spawn(async move {
            let (probe, housing) = match in_time(registry.housing(&stored.key)).await {
                // Nothing came of it, or it has ended by itself.
                Ok(None) => return None,
                Ok(housing) => (Ok(None), housing),
                Err(e) => (Err(e), None),
            };
            Some(Seen { key: Some(stored.key.clone()), stored: Some(stored), probe, housing })
        });
    }
    let mut seen: Vec<_> = asking.join_all().await.into_iter().flatten().collect();
    seen.sort_by(|a, b| a.key.cmp(&b.key));
    seen
}

/// The answer of a target, which gets no longer than the others to give it.
async fn in_time<T>(answer: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::time::timeout(BOUND, answer)
        .await
        .unwrap_or_else(|_| Err(Error::new(ErrorKind::Deadline, "no answer in time")))
}

async fn discovered(context: &Context, on: &str) -> Result<Vec<Seen>> {
    let (target, named) = context.target(Some(on))?;
    let driver = context.registry.driver(&target)?;
    let probes = driver.list(&target, named.and_then(|n| n.dir.as_deref())).await;
    let probes = probes.map_err(|e| context.registry.cleaner().error(e))?;
    let stored = context.registry.stored();
    Ok(probes
        .into_iter()
        .map(|probe| {
            let id = probe.kernel.as_ref().map(|k| &k.id);
            let known = stored.iter().find(|s| s.kernel.as_ref().map(|k| &k.id) == id).cloned();
            let key = known.as_ref().map(|s| s.key.clone());
            Seen { key, stored: known, probe: Ok(Some(probe)), housing: None }
        })
        .collect())
}

fn state(seen: &Seen) -> String {
    if let Some(housing) = &seen.housing {
        return housing.clone();
    }
    match &seen.probe {
        Ok(Some(probe)) if !probe.alive => "dead".to_owned(),
        Ok(Some(probe)) => match &probe.running {
            Some(running) => {
                let secs = running.since_ms / 1000.0;
                let waiting =
                    if probe.waiting > 0 { format!(", {} waiting", probe.waiting) } else { String::new() };
                format!("running cell {} for {secs:.0} s{waiting}", running.number)
            }
            None => "idle".to_owned(),
        },
        Ok(None) => "gone".to_owned(),
        Err(e) if e.kind() == farcell::ErrorKind::KernelDead => "dead".to_owned(),
        Err(e) => format!("unknown ({})", e.message()),
    }
}

fn row(seen: &Seen) -> Vec<String> {
    let probed = seen.probe.as_ref().ok().and_then(Option::as_ref).and_then(|p| p.kernel.as_ref());
    let record = probed.or_else(|| seen.stored.as_ref().and_then(|s| s.kernel.as_ref()));
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    vec![
        or_dash(seen.key.as_ref().map(|k| k.session.clone()).or_else(|| record.map(|r| r.session.clone()))),
        or_dash(seen.key.as_ref().map(|k| k.owner.clone())),
        or_dash(seen.key.as_ref().map(|k| k.target.to_string())),
        or_dash(record.map(|r| r.id.to_string())),
        state(seen),
        or_dash(record.map(|r| r.version.clone())),
        or_dash(record.map(|r| age(r.created))),
        or_dash(record.map(|r| r.pid.to_string())),
    ]
}

fn document(seen: &Seen) -> Value {
    let probe = seen.probe.as_ref().ok().and_then(Option::as_ref);
    let record = probe.and_then(|p| p.kernel.as_ref());
    let record = record.or_else(|| seen.stored.as_ref().and_then(|s| s.kernel.as_ref()));
    json!({
        "session": seen.key.as_ref().map(|k| &k.session).or(record.map(|r| &r.session)),
        "owner": seen.key.as_ref().map(|k| &k.owner),
        "target": seen.key.as_ref().map(|k| &k.target),
        "alive": probe.map(|p| p.alive),
        "state": state(seen),
        "running": probe.and_then(|p| p.running.as_ref()),
        "waiting": probe.map(|p| p.waiting),
        "kernel": record,
    })
}

/// How long ago, in the largest whole unit.
fn age(created: f64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let seconds = (now - created).max(0.0) as u64;
    match seconds {
        0..=59 => format!("{seconds}s"),
        60..=3599 => format!("{}m", seconds / 60),
        3600..=86399 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86400),
    }
}
