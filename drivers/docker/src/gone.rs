//! What has become of a container that is not there any more, as far as its engine remembers.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bollard::models::EventMessage;
use bollard::query_parameters::EventsOptionsBuilder;
use futures_util::StreamExt as _;

use crate::engine::Engine;

/// An engine remembers some hundred events, and not those of before its own start.
const BACK: Duration = Duration::from_secs(24 * 3600);
/// How long it may take to say what it knows.
const ANSWER: Duration = Duration::from_secs(2);
/// How long it is silent once it has said all.
const LULL: Duration = Duration::from_millis(300);
/// What it is asked for. Podman is asked by names of its own, though it answers by Docker's.
const EVENTS: [&str; 6] = ["start", "restart", "oom", "kill", "die", "died"];

/// The end of a container, as its events tell it.
#[derive(Debug, Default, PartialEq, Eq)]
struct End {
    /// A process in it was killed for want of memory.
    memory: bool,
    /// Somebody has sent it a signal; removing does so.
    killed: bool,
    status: Option<String>,
}

impl End {
    fn learn(&mut self, event: EventMessage) {
        match event.action.as_deref() {
            // What was before is the end of another one of this name.
            _ if is_start(&event) => *self = End::default(),
            Some("oom") => self.memory = true,
            Some("kill") => self.killed = true,
            Some("die" | "died") => {
                self.status = event.actor.and_then(|actor| actor.attributes?.remove("exitCode"));
            }
            _ => {}
        }
    }

    fn tell(&self, name: &str) -> String {
        match (self.killed, self.memory, self.status.as_deref()) {
            (true, _, _) => format!("the sandbox {name} was removed"),
            (false, true, _) => format!("the sandbox {name} ran out of memory"),
            // Podman does not tell of signals.
            (false, false, Some("137")) => format!("the sandbox {name} was killed or removed"),
            (false, false, Some("0")) => format!("the sandbox {name} had no kernel any more and ended"),
            (false, false, Some(status)) => format!("the sandbox {name} ended with status {status}"),
            (false, false, None) => format!("the sandbox {name} is not there any more"),
        }
    }
}

impl Engine {
    /// What has become of a sandbox, in words.
    pub(crate) async fn why_gone(&self, name: &str) -> String {
        let mut end = End::default();
        self.remember(name, now().saturating_sub(BACK), |event| end.learn(event)).await;
        end.tell(name)
    }

    /// Whether a container was started after that moment, by the clock of the engine's machine.
    pub(crate) async fn was_started_since(&self, name: &str, since: Duration) -> bool {
        let mut started = false;
        self.remember(name, since, |event| started |= is_start(&event)).await;
        started
    }

    /// What an engine remembers of the lives of a container.
    async fn remember(&self, name: &str, since: Duration, mut learn: impl FnMut(EventMessage)) {
        let moment = |since: Duration| format!("{}.{:09}", since.as_secs(), since.subsec_nanos());
        let listen = async {
            let Ok((docker, _)) = self.client().await else { return };
            let filters =
                [("container", vec![name]), ("type", vec!["container"]), ("event", EVENTS.to_vec())];
            let options = EventsOptionsBuilder::new().since(&moment(since)).filters(&filters.into());
            let until_now = options.clone().until(&moment(now())).build();
            let mut events = std::pin::pin!(docker.events(Some(until_now)));
            let mut heard = false;
            while let Some(Ok(event)) = events.next().await {
                heard = true;
                learn(event);
            }
            if heard {
                return;
            }
            // Podman tells nothing where an end is asked for, and then goes on to listen: what it remembers comes at once.
            let mut events = std::pin::pin!(docker.events(Some(options.build())));
            while let Ok(Some(Ok(event))) = tokio::time::timeout(LULL, events.next()).await {
                learn(event);
            }
        };
        // What has been heard by then is good enough.
        let _ = tokio::time::timeout(ANSWER, listen).await;
    }
}

fn is_start(event: &EventMessage) -> bool {
    matches!(event.action.as_deref(), Some("start" | "restart"))
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use bollard::models::EventActor;

    use super::*;

    fn told(events: &[(&str, &str)]) -> String {
        let mut end = End::default();
        for (action, status) in events {
            let attributes = [("exitCode".to_owned(), (*status).to_owned())].into();
            let actor = Some(EventActor { id: None, attributes: Some(attributes) });
            end.learn(EventMessage { action: Some((*action).to_owned()), actor, ..EventMessage::default() });
        }
        end.tell("s")
    }

    #[test]
    fn an_end_is_told_as_what_it_is() {
        assert_eq!(told(&[("start", ""), ("die", "0")]), "the sandbox s had no kernel any more and ended");
        assert_eq!(told(&[("start", ""), ("oom", ""), ("die", "137")]), "the sandbox s ran out of memory");
        assert_eq!(
            told(&[("start", ""), ("oom", ""), ("kill", ""), ("die", "137")]),
            "the sandbox s was removed"
        );
        assert_eq!(told(&[("restart", ""), ("die", "137")]), "the sandbox s was killed or removed");
        assert_eq!(told(&[("start", ""), ("die", "3")]), "the sandbox s ended with status 3");
        assert_eq!(
            told(&[("oom", ""), ("start", ""), ("die", "0")]),
            "the sandbox s had no kernel any more and ended"
        );
        assert_eq!(told(&[]), "the sandbox s is not there any more");
    }
}
