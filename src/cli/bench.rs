//! `farcell bench`: how quick a target is, measured through the very path that cells take.

use std::time::{Duration, Instant};

use farcell::tools::function;
use farcell::{Cell, Error, ErrorKind, NoEvents, Registry, RegistryOptions, Result, Session, Status, Tools};
use serde::Serialize;
use serde_json::json;

use super::args::{KernelArgs, SessionArgs};
use super::context::Context;
use super::exit::Exit;
use super::output;

/// A measure goes on for at most this long, so that a slow target is told of in bearable time.
const PATIENCE: Duration = Duration::from_secs(15);
const MEGABYTE: usize = 1_000_000;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
What the measures say:
  round trip    one question to a kernel: the floor of everything else
  warm cell     x += 1 in a kernel that is there, from call to reply
  tool call     a function of this program, called from a cell, from call to value
  first spawn   from call to first reply, where no kernel of this kind was before
  spawn         likewise, on a target that is warm by now
  1 MB output   a cell that prints a megabyte
  10 MB code    a cell of ten megabytes of source

The kernels that it starts are its own, and gone afterwards; yours are left alone.")]
pub(crate) struct Args {
    /// The target, or the name of one from the config [env: FARCELL_TARGET] [default: local:]
    target: Option<String>,
    /// The Python to use
    #[arg(long, value_name = "PATH")]
    python: Option<String>,
    /// How many warm cells and round trips to time; the other measures take fewer
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    count: u32,
}

/// One row of the table.
#[derive(Debug, Serialize)]
struct Measure {
    measure: &'static str,
    p50_ms: f64,
    p99_ms: f64,
    n: usize,
}

impl Measure {
    /// Of times in order, which are not none.
    fn of(measure: &'static str, times: &[f64]) -> Self {
        let at = |share: usize| times[(times.len() - 1) * share / 100];
        Measure { measure, p50_ms: at(50), p99_ms: at(99), n: times.len() }
    }
}

pub(crate) async fn run(context: &Context, args: &Args) -> Result<Exit> {
    let bench = Bench::new(context, args)?;
    let measured = bench.measure(args.count as usize).await;
    // Also after a failure: nothing of ours stays on the target.
    let disposed = bench.registry.dispose_all().await;
    let measures = measured?;
    disposed?;
    let target = bench.target();
    if context.json {
        output::document(&json!({
            "target": target, "version": env!("CARGO_PKG_VERSION"), "measures": measures,
        }));
        return Ok(Exit::OK);
    }
    output::line(&target);
    let rows: Vec<_> = measures
        .iter()
        .map(|m| vec![m.measure.to_owned(), milliseconds(m.p50_ms), milliseconds(m.p99_ms), m.n.to_string()])
        .collect();
    output::table(&["measure", "p50", "p99", "n"], &rows);
    Ok(Exit::OK)
}

fn milliseconds(value: f64) -> String {
    if value < 10.0 { format!("{value:.3} ms") } else { format!("{value:.1} ms") }
}

/// Kernels of our own on the target.
struct Bench<'a> {
    context: &'a Context,
    args: SessionArgs,
    kernel: KernelArgs,
    registry: Registry,
    warm: Session,
}

impl<'a> Bench<'a> {
    fn new(context: &'a Context, args: &Args) -> Result<Self> {
        // Nothing is remembered for other processes: what we start ends with us. And none makes room for another while it is measured.
        let options = RegistryOptions { store: None, cap: 16, ..RegistryOptions::default() };
        let registry = Registry::new(farcell::drivers(), options);
        let owner = format!("farcell-bench-{}", std::process::id());
        let args_of = SessionArgs {
            on: args.target.clone(),
            session: Some("warm".into()),
            owner: Some(owner),
            user: None,
        };
        let kernel =
            KernelArgs { python: args.python.clone(), cwd: None, env: Vec::new(), limits: Vec::new() };
        let warm = context.session_in(&registry, &args_of, Some(&kernel))?;
        Ok(Bench { context, args: args_of, kernel, registry, warm })
    }

    fn target(&self) -> String {
        self.warm.key().target.to_string()
    }

    fn session(&self, name: String) -> Result<Session> {
        let args = SessionArgs { session: Some(name), ..self.args.clone() };
        self.context.session_in(&self.registry, &args, Some(&self.kernel))
    }

    async fn measure(&self, count: usize) -> Result<Vec<Measure>> {
        let few = count.min(5);
        let mut found = Vec::new();
        let first = self.time("first spawn", 1, async |_| cell(&self.warm, "x = 0").await).await?;
        cell(&self.warm, &format!("text = 'x' * {}", MEGABYTE - 1)).await?;
        found.push(
            self.time("round trip", count, async |_| match self.warm.probe().await? {
                Some(probe) if probe.alive => Ok(()),
                _ => Err(Error::new(ErrorKind::KernelDead, "the kernel died while it was measured")),
            })
            .await?,
        );
        found.push(self.time("warm cell", count, async |_| cell(&self.warm, "x += 1").await).await?);
        found.push(self.tool_calls(count.min(100)).await?);
        found.push(first);
        found.push(
            self.time("spawn", few, async |n| {
                let session = self.session(format!("spawn-{n}"))?;
                cell(&session, "x = 0").await
            })
            .await?,
        );
        found.push(self.time("1 MB output", few, async |_| cell(&self.warm, "print(text)").await).await?);
        let code = format!("y = 0\n{}\n", "#".repeat(10 * MEGABYTE));
        found.push(self.time("10 MB code", few, async |_| cell(&self.warm, &code).await).await?);
        Ok(found)
    }

    /// Times calls of a tool, from inside of the cell that makes them.
    async fn tool_calls(&self, count: usize) -> Result<Measure> {
        let ping = function("ping", "", json!({"properties": {}}), |_| async { Ok(json!(null)) });
        let tools = Tools::new([ping])?.budget(u32::try_from(count).unwrap_or(u32::MAX));
        let code = format!(
            "from farcell_tools import ping\nimport time\ntimes, began = [], time.time()\n\
             while len(times) < {count} and time.time() < began + {}:\n    \
             t = time.perf_counter(); ping(); times.append((time.perf_counter() - t) * 1000)\n\
             print(*times)",
            PATIENCE.as_secs()
        );
        let reply = self.warm.run(&Cell::new(code).tools(tools), &NoEvents).await?;
        let mut times: Vec<f64> = reply.stdout.split_whitespace().filter_map(|t| t.parse().ok()).collect();
        if reply.status != Status::Ok || times.is_empty() {
            let why = reply.error.map_or_else(String::new, |e| format!(": {}", e.message));
            return Err(Error::new(
                ErrorKind::KernelDead,
                format!("a cell with a tool ended with {:?}{why}", reply.status),
            ));
        }
        times.sort_by(f64::total_cmp);
        Ok(Measure::of("tool call", &times))
    }

    /// Times `step` `count` times, fewer where that would take too long.
    async fn time(
        &self,
        measure: &'static str,
        count: usize,
        step: impl AsyncFn(usize) -> Result<()>,
    ) -> Result<Measure> {
        if output::is_terminal() {
            output::aside(&format!("{measure} …"));
        }
        let began = Instant::now();
        let mut times = Vec::with_capacity(count);
        while times.len() < count && (times.is_empty() || began.elapsed() < PATIENCE) {
            let started = Instant::now();
            step(times.len()).await?;
            times.push(started.elapsed().as_secs_f64() * 1000.0);
        }
        times.sort_by(f64::total_cmp);
        Ok(Measure::of(measure, &times))
    }
}

/// Runs a cell that has to end well.
async fn cell(session: &Session, code: &str) -> Result<()> {
    let cell = Cell::new(code).timeout(Duration::from_secs(60));
    let reply = session.run(&cell, &NoEvents).await?;
    if reply.status == Status::Ok {
        return Ok(());
    }
    let why = reply.error.map_or_else(String::new, |e| format!(": {}", e.message));
    Err(Error::new(ErrorKind::KernelDead, format!("a cell ended with {:?}{why}", reply.status)))
}
