//! What the engine's errors mean.

use bollard::errors::Error as Bollard;
use farcell_core::{Error, ErrorKind, Retry, Step};

/// Nothing has reached the container.
pub(crate) fn passing(message: impl Into<String>, hint: impl Into<String>) -> Error {
    Error::new(ErrorKind::Transport, message).at(Step::Connect).with_hint(hint)
}

/// Likewise, and to try again cannot help.
pub(crate) fn lasting(message: impl Into<String>, hint: impl Into<String>) -> Error {
    passing(message, hint).retry(Retry::Never)
}

/// A sandbox is not there any more, and its kernel with it. The next cell gets another one.
pub(crate) fn sandbox_ended(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::NoKernel, why)
        .at(Step::Connect)
        .with_hint("the next cell starts a new kernel, in a new sandbox")
}

/// The engine could not be asked, or gave an answer that nobody expects. `engine` is how it was reached.
pub(crate) fn of_engine(e: Bollard, engine: &str) -> Error {
    let text = chain(&e);
    if let Bollard::DockerResponseServerError { status_code, message } = &e {
        let message = format!("the engine at {engine} refuses ({status_code}): {}", message.trim());
        return lasting(message, "`docker version` and `docker info` tell more").with_source(e);
    }
    let has = |words: &str| text.contains(words);
    let error = if has("ermission denied") {
        lasting(
            format!("the socket of the engine at {engine} is closed to this user"),
            "add the user to the group docker, or name another engine by host=",
        )
    } else if has("No such file") || matches!(e, Bollard::SocketNotFoundError(_)) {
        passing(
            format!("there is no engine at {engine}"),
            "start Docker or Podman, or name its socket by host= or DOCKER_HOST",
        )
    } else if has("Connection refused") {
        passing(format!("no engine listens at {engine}"), "start it, or name another one by host=")
    } else {
        passing(format!("the engine at {engine} does not answer: {text}"), "`docker info` tells more")
    };
    error.with_source(e)
}

/// An error with its causes, as far as they say something more.
fn chain(e: &Bollard) -> String {
    let mut text = e.to_string();
    let mut source = std::error::Error::source(e);
    while let Some(cause) = source {
        let said = cause.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        source = cause.source();
    }
    text
}
