//! Why ssh could not log in, read from what it said. It has one exit status for all of that.

use crate::address::Address;
use crate::failure::{self, Failure};

/// What ssh said, and what that means. The first that fits counts.
pub(super) fn of(said: &str, address: &Address) -> Failure {
    let has = |text: &str| said.contains(text);
    let line = |text: &str| said.lines().map(str::trim).find(|line| line.contains(text));
    if has("REMOTE HOST IDENTIFICATION HAS CHANGED") || has("host key for") && has("has changed") {
        return failure::key_has_changed(address, line("Offending").and_then(place));
    }
    if has("Host key verification failed") || has("authenticity of host") || has("host key is known for") {
        return failure::key_is_not_known(address);
    }
    if let Some(line) = line("Permission denied") {
        let methods = line.rsplit_once('(').map_or("", |(_, rest)| rest.trim_end_matches(['.', ')']));
        return failure::login_is_refused(address, methods);
    }
    if has("Too many authentication failures") {
        return failure::too_many_wrong_keys(address);
    }
    if let Some(line) = line("Could not resolve hostname") {
        return failure::name_is_not_known(plain(line));
    }
    if let Some(line) = line("Bad configuration option").or_else(|| line("bad configuration option")) {
        return Failure::lasting(plain(line)).hint("the ssh config has a mistake");
    }
    if has("UNKNOWN port 65535") {
        // ssh keeps what its helper says from a master's log.
        return failure::way_has_ended(address);
    }
    let last = said
        .lines()
        .map(str::trim)
        .rfind(|line| !line.is_empty())
        .map_or_else(|| format!("ssh could not log in to {address}, and does not say why"), plain);
    let hint = failure::network_hint(said).unwrap_or(if has("UNPROTECTED PRIVATE KEY") {
        "chmod 600 the key"
    } else {
        "`ssh -v` to the same host tells more"
    });
    Failure::passing(last).hint(hint)
}

/// `/path/known_hosts:7` of the line about the offending key.
fn place(line: &str) -> Option<&str> {
    line.rsplit_once(" in ").map(|(_, place)| place)
}

/// Without the program's own name in front.
fn plain(line: &str) -> String {
    line.strip_prefix("ssh: ").unwrap_or(line).to_owned()
}

#[cfg(test)]
mod tests {
    use farcell_core::ErrorKind;

    use super::*;

    #[test]
    fn each_reason_is_told_as_what_it_is() {
        let target = "ssh://box:22".parse().unwrap();
        let (address, _) = crate::address::read(&target).unwrap();
        for (said, message, is_final) in [
            (
                "@@@\n@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\nOffending ED25519 key in /home/a/.ssh/known_hosts:7\nHost key verification failed.",
                "the host key of box:22 has changed: /home/a/.ssh/known_hosts:7 has another one",
                true,
            ),
            (
                "No ED25519 host key is known for box and you have requested strict checking.\nHost key verification failed.",
                "the host key of box:22 is not known",
                true,
            ),
            (
                "a@box: Permission denied (publickey,password).",
                "box:22 refused the login (publickey,password)",
                true,
            ),
            (
                "ssh: Could not resolve hostname box: Name or service not known",
                "Could not resolve hostname box: Name or service not known",
                true,
            ),
            (
                "ssh: connect to host box port 22: Connection refused",
                "connect to host box port 22: Connection refused",
                false,
            ),
            ("", "ssh could not log in to box:22, and does not say why", false),
        ] {
            let failure = of(said, &address);
            assert_eq!(
                (failure.kind, failure.message.as_str(), failure.is_final),
                (ErrorKind::Transport, message, is_final)
            );
            assert!(failure.hint.is_some());
        }
    }
}
