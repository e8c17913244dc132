//! `farcell doctor`: is a target fit for kernels, what is missing, and what to do about it.

use farcell::Result;
use farcell::link::Carrier;
use serde_json::{Value, json};

use super::context::Context;
use super::exit::Exit;
use super::output;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit status: 0 if kernels run there, 1 if something is missing that they need, 125 if it cannot be reached."
)]
pub(crate) struct Args {
    /// The target, or the name of one from the config [env: FARCELL_TARGET] [default: local:]
    target: Option<String>,
    /// The Python to use
    #[arg(long, value_name = "PATH")]
    python: Option<String>,
}

/// One finding.
struct Finding {
    what: &'static str,
    verdict: Verdict,
    told: String,
    remedy: Option<String>,
}

#[derive(Clone, Copy, PartialEq)]
enum Verdict {
    Good,
    /// Kernels run, but something is slower or less safe.
    Less,
    Bad,
}

pub(crate) async fn run(context: &Context, args: &Args) -> Result<Exit> {
    let (target, named) = context.target(args.target.as_deref())?;
    let driver = context.registry.driver(&target)?;
    let dir = named.and_then(|n| n.dir.as_deref());
    let python = args.python.as_deref().or_else(|| named.and_then(|n| n.python.as_deref()));
    let cleaner = context.registry.cleaner();
    let diagnosis = driver.doctor(&target, dir, python).await.map_err(|e| cleaner.error(e))?;
    let mut findings = findings(&diagnosis.facts, diagnosis.round_trip_ms);
    findings.insert(0, carrier(&diagnosis.carrier));
    // The target says of itself what it likes.
    findings.iter_mut().for_each(|finding| cleaner.clean(&mut finding.told));
    let bad = findings.iter().any(|f| f.verdict == Verdict::Bad);
    if context.json {
        output::document(&json!({
            "target": target, "fit": !bad, "round_trip_ms": diagnosis.round_trip_ms, "facts": diagnosis.facts,
            "findings": findings.iter().map(document).collect::<Vec<_>>(),
        }));
    } else {
        output::line(&format!("{target}"));
        for finding in &findings {
            let mark = match finding.verdict {
                Verdict::Good => "ok  ",
                Verdict::Less => "note",
                Verdict::Bad => "BAD ",
            };
            output::line(&format!("  {mark}  {:<12} {}", finding.what, finding.told));
            if let Some(remedy) = &finding.remedy {
                output::line(&format!("        {:<12} -> {remedy}", ""));
            }
        }
    }
    Ok(if bad { Exit::NOT_DONE } else { Exit::OK })
}

fn document(finding: &Finding) -> Value {
    let verdict = match finding.verdict {
        Verdict::Good => "ok",
        Verdict::Less => "note",
        Verdict::Bad => "bad",
    };
    json!({"what": finding.what, "verdict": verdict, "told": finding.told, "remedy": finding.remedy})
}

/// How steps get there: what makes cells quick or slow.
fn carrier(carrier: &Carrier) -> Finding {
    let (verdict, told) = match carrier {
        Carrier::Commands { why } => {
            (Verdict::Less, format!("each step is a command of its own, which takes longer: {why}"))
        }
        Carrier::Stream => (Verdict::Good, "a stream that is kept open".to_owned()),
        _ => (Verdict::Good, "the pipes of a child process".to_owned()),
    };
    Finding { what: "link", verdict, told, remedy: None }
}

fn findings(facts: &Value, round_trip_ms: f64) -> Vec<Finding> {
    let text = |name: &str| facts.get(name).and_then(Value::as_str).unwrap_or("?").to_owned();
    let yes = |name: &str| facts.get(name).and_then(Value::as_bool).unwrap_or(false);
    let number = |name: &str| facts.get(name).and_then(Value::as_u64);
    let good = |what, told| Finding { what, verdict: Verdict::Good, told, remedy: None };
    let less = |what, told, remedy: &str| Finding {
        what,
        verdict: Verdict::Less,
        told,
        remedy: Some(remedy.to_owned()),
    };
    let bad = |what, told, remedy: &str| Finding {
        what,
        verdict: Verdict::Bad,
        told,
        remedy: Some(remedy.to_owned()),
    };
    let mut found = vec![
        good("round trip", format!("{round_trip_ms:.1} ms for one step")),
        good("python", format!("{} ({}) on {}", text("python"), text("version"), text("platform"))),
    ];
    found.push(match facts.get("base").and_then(Value::as_str) {
        Some(base) => {
            let kind = if yes("memory_backed") { "in memory" } else { "on disk" };
            let free =
                number("free_bytes").map_or_else(String::new, |b| format!(", {} MiB free", b / 1048576));
            let told = format!("{base} ({kind}{free})");
            if number("free_bytes").is_some_and(|b| b < 64 * 1048576) {
                less(
                    "directory",
                    told,
                    "free some space: long output is kept there; or choose another: ?dir=/path",
                )
            } else {
                good("directory", told)
            }
        }
        None => bad(
            "directory",
            "no directory can be used".to_owned(),
            "make /tmp writable with mode 1777, or name a directory: ?dir=/path",
        ),
    });
    for refused in facts.get("refused").and_then(Value::as_array).into_iter().flatten() {
        let (dir, why) = (refused["dir"].as_str().unwrap_or("?"), refused["why"].as_str().unwrap_or("?"));
        found.push(good("not used", format!("{dir}: {why}")));
    }
    found.push(if yes("fifo") {
        good("wake-up", "FIFO: waiting costs nothing".to_owned())
    } else {
        less(
            "wake-up",
            "polling: FIFOs cannot be made there".to_owned(),
            "choose a directory on an ordinary file system: ?dir=/path",
        )
    });
    found.push(if yes("flock") {
        good("lock", "flock works".to_owned())
    } else {
        bad(
            "lock",
            "flock does not work there".to_owned(),
            "choose a directory on an ordinary file system: ?dir=/path",
        )
    });
    found.push(if yes("fork") {
        good("processes", limits(facts))
    } else {
        bad(
            "processes",
            "no process can be started".to_owned(),
            "raise the limit of processes (ulimit -u, pids limit of the container)",
        )
    });
    if !yes("subreaper") {
        found.push(less(
            "descendants",
            "orphans of a kernel are found by their mark only".to_owned(),
            "a Python with ctypes makes the supervisor their reaper",
        ));
    }
    let lasting = if yes("logind") && !yes("lingering") && number("uid").is_some_and(|u| u >= 1000) {
        less(
            "logout",
            "logind may end what you left running at your last logout".to_owned(),
            "loginctl enable-linger",
        )
    } else {
        good("logout", "kernels outlive it".to_owned())
    };
    found.push(lasting);
    found.push(good("kernels", kernels(number("kernels"), number("ready"))));
    found
}

fn kernels(there: Option<u64>, ready: Option<u64>) -> String {
    match (there, ready) {
        (None, _) => "unknown".to_owned(),
        (Some(n), None | Some(0)) => format!("{n} there by now"),
        (Some(n), Some(ready)) => format!("{n} there by now, and {ready} ready to be taken"),
    }
}

fn limits(facts: &Value) -> String {
    let limit = |name: &str| match facts.get("limits").and_then(|l| l.get(name)).and_then(Value::as_u64) {
        Some(n) => n.to_string(),
        None => "unlimited".to_owned(),
    };
    let cpu = facts.get("cpu").and_then(Value::as_u64).map_or_else(|| "?".to_owned(), |n| n.to_string());
    format!("{cpu} CPUs; at most {} processes, {} open files", limit("processes"), limit("open_files"))
}
