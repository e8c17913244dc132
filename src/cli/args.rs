//! Arguments that several subcommands share.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args};
use farcell::Limits;
use farcell::cell::LONGEST;

/// Arguments of every subcommand.
#[derive(Debug, Args)]
pub(crate) struct Global {
    /// Print one JSON document on stdout and nothing else
    #[arg(long, global = true, help_heading = "Global options")]
    pub(crate) json: bool,
    /// Show what cells print as it came: with terminal escapes, and with secrets
    #[arg(long, global = true, help_heading = "Global options")]
    pub(crate) raw: bool,
    /// Tell more on stderr; twice for everything
    #[arg(short, long, global = true, action = ArgAction::Count, help_heading = "Global options")]
    pub(crate) verbose: u8,
    /// The config file, instead of farcell/config.toml in the user's config directory
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "FARCELL_CONFIG",
        hide_env_values = true,
        help_heading = "Global options"
    )]
    pub(crate) config: Option<PathBuf>,
}

/// Which session.
#[derive(Debug, Clone, Args)]
pub(crate) struct SessionArgs {
    // The environment is read in `context`, not by clap: there it would count as given, and clash with `--all`.
    /// Where: a target such as local: or exec:docker exec -i web, or a name from the config
    /// [env: FARCELL_TARGET] [default: local:]
    #[arg(long, value_name = "TARGET")]
    pub(crate) on: Option<String>,
    /// The session's name [env: FARCELL_SESSION] [default: default]
    #[arg(short, long, value_name = "NAME")]
    pub(crate) session: Option<String>,
    /// Whose session: a stable identity, such as that of a conversation [env: FARCELL_OWNER]
    /// [default: default]
    #[arg(long, value_name = "OWNER")]
    pub(crate) owner: Option<String>,
    /// The account of this machine that the kernel of local: or stdio: runs under; only root may name
    /// another
    #[arg(long, value_name = "ACCOUNT")]
    pub(crate) user: Option<String>,
}

/// What a new kernel shall be like.
#[derive(Debug, Clone, Args)]
pub(crate) struct KernelArgs {
    /// The Python to run, as a path or name on the target
    #[arg(long, value_name = "PATH")]
    pub(crate) python: Option<String>,
    /// Directory to change to first; it stays for later cells
    #[arg(long, value_name = "DIR")]
    pub(crate) cwd: Option<String>,
    /// Environment variable to set first; NAME alone passes the caller's value on
    #[arg(long = "env", value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<String>,
    /// A limit of a new kernel: memory=2G, cpu=60 (seconds), processes=500, files=256 or spill=1G
    #[arg(long = "limit", value_name = "NAME=VALUE", value_parser = limit)]
    pub(crate) limits: Vec<Limit>,
}

/// One limit of a new kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    Memory(u64),
    CpuSeconds(u64),
    Processes(u64),
    OpenFiles(u64),
    Spill(u64),
}

impl Limit {
    /// Puts it in the place of what the config says.
    pub(crate) fn apply(self, limits: &mut Limits) {
        match self {
            Limit::Memory(bytes) => limits.memory_bytes = Some(bytes),
            Limit::CpuSeconds(seconds) => limits.cpu_seconds = Some(seconds),
            Limit::Processes(count) => limits.processes = Some(count),
            Limit::OpenFiles(count) => limits.open_files = Some(count),
            Limit::Spill(bytes) => limits.spill_bytes = bytes,
        }
    }
}

/// Reads a [`Limit`]; the names of the config file are understood as well.
pub(crate) fn limit(text: &str) -> Result<Limit, String> {
    let (name, value) = text.split_once('=').ok_or("write it as memory=2G")?;
    let count = || value.parse().map_err(|_| format!("{value:?} is not a number"));
    let limit = match name {
        "memory" | "memory_bytes" => Limit::Memory(size(value)?),
        "cpu" | "cpu_seconds" => Limit::CpuSeconds(duration(value)?.as_secs_f64().ceil() as u64),
        "processes" => Limit::Processes(count()?),
        "files" | "open_files" => Limit::OpenFiles(count()?),
        "spill" | "spill_bytes" => Limit::Spill(size(value)?),
        _ => return Err(format!("{name:?} is none of memory, cpu, processes, files, spill")),
    };
    Ok(limit)
}

/// Reads a duration such as `90s`, `5m`, `1h30m`, or a bare number of seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    match duration_or_none(text)? {
        Duration::ZERO => Err("it must be more than zero".to_owned()),
        parsed => Ok(parsed),
    }
}

/// The same, where zero means not at all.
pub(crate) fn duration_or_none(text: &str) -> Result<Duration, String> {
    let parsed = match text.parse::<f64>() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).map_err(|e| e.to_string())?,
        Err(_) => {
            humantime::parse_duration(text).map_err(|e| format!("{e}; write it as 90s, 5m or 1h30m"))?
        }
    };
    match parsed {
        parsed if parsed > LONGEST => {
            Err("that is longer than anybody waits; write none for no bound".to_owned())
        }
        parsed => Ok(parsed),
    }
}

/// A cell's timeout: a duration, or `none`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Timeout(pub(crate) Option<Duration>);

/// Reads a [`Timeout`].
pub(crate) fn timeout(text: &str) -> Result<Timeout, String> {
    if text == "none" { Ok(Timeout(None)) } else { duration(text).map(|d| Timeout(Some(d))) }
}

/// Reads a size in bytes, such as `4096`, `64K`, `10M`, `1G` (powers of 1024).
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let upper = text.trim().to_ascii_uppercase();
    let upper = upper.strip_suffix("IB").or_else(|| upper.strip_suffix('B')).unwrap_or(&upper);
    let (digits, shift) = match upper.char_indices().next_back() {
        Some((at, 'K')) => (&upper[..at], 10),
        Some((at, 'M')) => (&upper[..at], 20),
        Some((at, 'G')) => (&upper[..at], 30),
        _ => (upper, 0),
    };
    let number: u64 = digits.trim().parse().map_err(|_| "write it as 4096, 64K, 10M or 1G".to_owned())?;
    number.checked_mul(1 << shift).ok_or_else(|| "that is too much".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_by_their_names() {
        assert_eq!(
            (limit("memory=2G"), limit("cpu=1m")),
            (Ok(Limit::Memory(2 << 30)), Ok(Limit::CpuSeconds(60)))
        );
        assert_eq!(limit("open_files=64"), Ok(Limit::OpenFiles(64)));
        assert!(limit("memory").is_err() && limit("files=many").is_err() && limit("time=3").is_err());
    }

    #[test]
    fn durations_and_sizes_are_read_as_people_write_them() {
        assert_eq!(duration("1.5"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        assert!(duration("1e19").is_err() && duration("100000years").is_err());
        assert!(duration("0").is_err() && duration("-1").is_err() && duration("soon").is_err());
        assert_eq!(timeout("none"), Ok(Timeout(None)));
        assert_eq!((size("64K"), size("10MiB"), size("7")), (Ok(65536), Ok(10 << 20), Ok(7)));
        assert!(size("x").is_err() && size("").is_err() && size("99999999999G").is_err());
    }
}
