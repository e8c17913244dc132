//! The real things to measure against: an sshd, a delaying proxy in front of it, a container. They end with this program, however it ends.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use serde_json::Value;

use crate::Result;
use crate::options::{Measure, Options};
use crate::places::{Place, ROUND_TRIP_MS, Way};

/// Everything that is needed, running.
#[derive(Debug)]
pub(crate) struct Fixtures {
    places: Vec<Place>,
    // Dropped in this order: what leads to something ends before it.
    _services: Vec<Service>,
    _bases: Vec<Base>,
}

impl Fixtures {
    pub(crate) fn start(options: &Options) -> Result<Self> {
        let mut fixtures = Fixtures { places: Vec::new(), _services: Vec::new(), _bases: Vec::new() };
        let peers = [Measure::Warm, Measure::Spawn, Measure::Output, Measure::Code, Measure::Many];
        let all = peers.into_iter().any(|measure| options.wants(measure));
        if !all && !options.wants(Measure::Flight) {
            return Ok(fixtures);
        }
        setup("python")?;
        let venv_python = prepare(&["venv", &out("venv")?])?;
        let place = |name, way, python: &str, base| Place {
            name,
            way,
            python: python.to_owned(),
            venv_python: venv_python.clone(),
            base,
        };
        if all && options.wants_place("local") {
            let base = fixtures.base()?;
            fixtures.places.push(place("local", Way::Local, &options.python, Some(base)));
        }
        for (name, host) in [("ssh", "box"), ("far", "far")] {
            if options.wants_place(name) && (all || host == "far") {
                let (config, shown) = (fixtures.ssh(host)?, if host == "far" { "ssh, 50 ms" } else { "ssh" });
                let base = fixtures.base()?;
                fixtures.places.push(place(shown, Way::Ssh { config, host }, &options.python, Some(base)));
            }
        }
        if all && options.wants_place("docker") {
            let way = fixtures.container()?;
            fixtures.places.push(place("docker", way, "/usr/bin/python3", None));
        }
        Ok(fixtures)
    }

    pub(crate) fn places(&self) -> &[Place] {
        &self.places
    }

    /// An sshd of its own, straight or behind the proxy; the file for `ssh -F`.
    fn ssh(&mut self, host: &str) -> Result<PathBuf> {
        setup("sshd")?;
        let (mut sshd, told) = Service::start(python3(&root("fixtures/sshd/serve.py")))?;
        let config = told["config"].as_str().ok_or("the sshd told no config")?.into();
        if host == "far" {
            let mut proxy = python3(&root("fixtures/proxy/delay.py"));
            proxy.arg(told["port"].to_string()).args(["--delay", &(ROUND_TRIP_MS / 2.0).to_string()]);
            let (proxy, told) = Service::start(proxy)?;
            sshd.ask(&format!("alias {host} {}", told["port"]))?;
            self._services.push(proxy);
        }
        self._services.push(sshd);
        Ok(config)
    }

    fn container(&mut self) -> Result<Way> {
        setup("docker")?;
        let image = prepare(&["image", &out("venv")?, &out("image")?])?;
        let container = format!("farcell-compare-{}", std::process::id());
        let mut command = Command::new("docker");
        command.args(["run", "--rm", "-i", "--network", "bridge", "--name", &container, &image]);
        // It lives as long as its stdin is held open, and reaps what is left to it meanwhile.
        command.args(["sh", "-c", r#"echo '{"ready": true}'; cat >/dev/null; :"#]);
        self._services.push(Service::start(command)?.0);
        Ok(Way::Docker { container, image })
    }

    fn base(&mut self) -> Result<String> {
        let base = Base::make()?;
        let path = base.path.clone();
        self._bases.push(base);
        Ok(path)
    }
}

/// A directory for kernels like the one that farcell would take: in memory where there is such a place. It goes with this program, and its kernels with it.
#[derive(Debug)]
pub(crate) struct Base {
    pub(crate) path: String,
    _remover: Service,
}

impl Base {
    pub(crate) fn make() -> Result<Self> {
        let memory = Path::new("/dev/shm");
        let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let path = tempfile::Builder::new().prefix("farcell-compare-").tempdir_in(parent)?.keep();
        let path = path.display().to_string();
        let mut remover = Command::new("sh");
        remover.args(["-c", r#"echo '{}'; cat >/dev/null; rm -rf "$1""#, "sh", &path]);
        Ok(Base { path, _remover: Service::start(remover)?.0 })
    }
}

/// A program that says when it is ready and lives until its stdin ends.
#[derive(Debug)]
struct Service {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<std::process::ChildStdout>,
}

impl Service {
    fn start(mut command: Command) -> Result<(Self, Value)> {
        // A group of its own: Ctrl-C ends us, and the end of its stdin ends it.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut child = command.spawn()?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().ok_or("no stdout")?);
        let mut service = Service { child, stdin, stdout: BufReader::new(stdout) };
        let told = service.line()?;
        Ok((service, told))
    }

    fn ask(&mut self, line: &str) -> Result<Value> {
        let stdin = self.stdin.as_mut().ok_or("it was ended")?;
        writeln!(stdin, "{line}")?;
        self.line()
    }

    fn line(&mut self) -> Result<Value> {
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        Ok(serde_json::from_str(&line).map_err(|e| format!("a fixture said {line:?}: {e}"))?)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.stdin = None;
        let _ = self.child.wait();
    }
}

/// The process that a container began with.
pub(crate) fn init_of(container: &str) -> Result<i64> {
    let output = Command::new("docker").args(["inspect", "-f", "{{.State.Pid}}", container]).output()?;
    Ok(String::from_utf8(output.stdout)?.trim().parse()?)
}

/// A file of this benchmark.
pub(crate) fn here(name: &str) -> PathBuf {
    root("benches/compare").join(name)
}

/// A file to log into.
pub(crate) fn log(name: &str) -> std::io::Result<File> {
    File::create(directory()?.join(format!("{name}.log")))
}

/// What the figures were taken on.
pub(crate) fn machine(python: &str) -> String {
    let said = |program: &str, args: &[&str]| {
        let output = Command::new(program).args(args).output();
        output.map_or_else(
            |_| format!("no {program}"),
            |o| String::from_utf8_lossy(&[o.stdout, o.stderr].concat()).trim().to_owned(),
        )
    };
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let docker = said("docker", &["version", "-f", "docker {{.Server.Version}}"]);
    format!(
        "{cores} cores, {}, {}, {}, {docker}",
        said("uname", &["-sr"]),
        said(python, &["--version"]),
        said("ssh", &["-V"])
    )
}

fn setup(what: &str) -> Result<()> {
    let status = Command::new(root("fixtures/setup")).arg(what).status()?;
    if status.success() { Ok(()) } else { Err(format!("fixtures/setup {what} failed").into()) }
}

/// Runs prepare.sh; what it printed.
fn prepare(args: &[&str]) -> Result<String> {
    let output = Command::new(here("prepare.sh")).args(args).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(format!("prepare.sh {} failed", args[0]).into());
    }
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

fn python3(script: &Path) -> Command {
    let mut command = Command::new("python3");
    command.arg(script);
    command
}

fn root(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Where this benchmark keeps what it makes, below cargo's target directory.
fn directory() -> std::io::Result<PathBuf> {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("compare");
    std::fs::create_dir_all(&directory)?;
    Ok(directory)
}

fn out(name: &str) -> Result<String> {
    Ok(directory()?.join(name).display().to_string())
}
