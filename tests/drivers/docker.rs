//! The suite in a container.

use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use farcell::docker::DockerConnector;
use farcell::{Drivers, FileCellDriver, LinkChoice};

/// One container for all cases. It reads its stdin, and so ends with this process.
static CONTAINER: OnceLock<Option<(Child, String)>> = OnceLock::new();

/// A target of the container; `None` where there is no engine.
pub(crate) fn target() -> Option<String> {
    let (_, name) = CONTAINER.get_or_init(start).as_ref()?;
    Some(format!("docker://{name}"))
}

fn start() -> Option<(Child, String)> {
    let built =
        Command::new("fixtures/images/build").arg("debian").stderr(Stdio::inherit()).output().unwrap();
    if !built.status.success() {
        assert!(
            std::env::var("CI").as_deref() != Ok("true"),
            "no image could be built: is dockerd running? `fixtures/setup docker` starts it"
        );
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED docker: no image could be built; `fixtures/setup docker` starts an engine"
        );
        return None;
    }
    let image = String::from_utf8(built.stdout).unwrap().trim().to_owned();
    let name = format!("farcell-t-{}", std::process::id());
    let child = Command::new("docker")
        .args([
            "run",
            "--rm",
            "-i",
            "--init",
            "--network",
            "none",
            "--shm-size",
            "512m",
            "--name",
            &name,
            &image,
            "cat",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    farcell_testbed::processes::wait_until("the container runs", || {
        let args = ["inspect", "-f", "{{.State.Running}}", &name];
        Command::new("docker").args(args).output().is_ok_and(|out| out.stdout == b"true\n")
    });
    Some((child, name))
}

pub(crate) fn connector() -> DockerConnector {
    DockerConnector::default()
}

pub(crate) fn drivers() -> Drivers {
    Drivers::new().with(FileCellDriver::new(connector()))
}

pub(crate) fn exec_only() -> Drivers {
    Drivers::new().with(FileCellDriver::new(connector()).links(LinkChoice::ExecOnly))
}
