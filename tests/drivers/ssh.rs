//! The suite over ssh to a real server.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use farcell::ssh::{SshConnector, SshOptions};
use farcell::{Drivers, FileCellDriver, LinkChoice};

static SERVER: OnceLock<(Child, String)> = OnceLock::new();

fn config() -> &'static str {
    &SERVER
        .get_or_init(|| {
            let mut child = Command::new("python3")
                .arg("fixtures/sshd/serve.py")
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut line = String::new();
            BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
            let said: serde_json::Value = serde_json::from_str(&line).unwrap();
            (child, said["config"].as_str().unwrap().to_owned())
        })
        .1
}

pub(crate) fn target(driver: &str) -> String {
    format!("ssh:box?driver={driver}&config={}", config())
}

pub(crate) fn connector() -> SshConnector {
    SshConnector::new(SshOptions::default())
}

pub(crate) fn drivers() -> Drivers {
    Drivers::new().with(FileCellDriver::new(connector()))
}

pub(crate) fn exec_only() -> Drivers {
    Drivers::new().with(FileCellDriver::new(connector()).links(LinkChoice::ExecOnly))
}
