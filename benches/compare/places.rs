//! Where it is measured. What farcell and the adapters are told of a place stands here and nowhere else.

use std::path::PathBuf;

use serde_json::{Value, json};

/// The round trip that the proxy adds.
pub(crate) const ROUND_TRIP_MS: f64 = 50.0;

/// How a place is reached.
#[derive(Debug, Clone)]
pub(crate) enum Way {
    /// It is this machine.
    Local,
    /// The sshd of the fixtures; `host` is known to the file.
    Ssh { config: PathBuf, host: &'static str },
    /// The container of the fixtures, and what it was made from.
    Docker { container: String, image: String },
}

/// A place, and the Python there.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) name: &'static str,
    pub(crate) way: Way,
    pub(crate) python: String,
    /// The Python of the peers' environment, which is there too where the place is this machine behind a door.
    pub(crate) venv_python: String,
    /// A base directory for farcell's kernels, to leave nothing behind; `None` where the place itself goes.
    pub(crate) base: Option<String>,
}

impl Place {
    /// farcell's targets here: how they are called in the table, and as what they are given.
    pub(crate) fn targets(&self) -> Vec<(&'static str, String)> {
        match &self.way {
            Way::Local => {
                vec![("farcell stdio:", "stdio:".to_owned()), ("farcell local:", "local:".to_owned())]
            }
            Way::Ssh { config, host } => {
                let target = format!("ssh:{host}?config={}", config.display());
                vec![("farcell", target.clone()), ("farcell russh", format!("{target}&driver=russh"))]
            }
            Way::Docker { container, .. } => vec![("farcell", format!("docker://{container}"))],
        }
    }

    /// The same for the adapters.
    pub(crate) fn told_to_adapters(&self) -> Value {
        let mut told = json!({ "python": self.python, "venv_python": self.venv_python, "base": self.base });
        match &self.way {
            Way::Local => told["kind"] = "local".into(),
            Way::Ssh { config, host } => {
                told["kind"] = "ssh".into();
                told["config"] = config.display().to_string().into();
                told["host"] = (*host).into();
            }
            Way::Docker { container, image } => {
                told["kind"] = "docker".into();
                told["container"] = container.as_str().into();
                told["image"] = image.as_str().into();
            }
        }
        told
    }

    /// The command that runs this place's Python with some code, with nothing else around it: the bare pipe.
    pub(crate) fn bare_command(&self, code: &str) -> Vec<String> {
        let python = [self.python.clone(), "-c".to_owned(), code.to_owned()];
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        match &self.way {
            Way::Local => python.to_vec(),
            Way::Ssh { config, host } => {
                let mut command = words("ssh -F");
                command.extend([config.display().to_string(), "-T".to_owned(), (*host).to_owned()]);
                let quoted = python.iter().map(|word| format!("'{}'", word.replace('\'', "'\\''")));
                command.push(quoted.collect::<Vec<_>>().join(" "));
                command
            }
            Way::Docker { container, .. } => {
                let mut command = words("docker exec -i");
                command.push(container.clone());
                command.extend(python);
                command
            }
        }
    }

    pub(crate) fn is_far(&self) -> bool {
        matches!(self.way, Way::Ssh { host: "far", .. })
    }

    pub(crate) fn is_local(&self) -> bool {
        matches!(self.way, Way::Local)
    }
}
