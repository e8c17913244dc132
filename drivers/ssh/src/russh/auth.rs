//! Logging in: what is offered, in which order, and why it was not enough.

use std::future::Future;
use std::time::Duration;

use russh::client::{AuthResult, Handle, KeyboardInteractiveAuthResponse as Reply, Prompt};
use russh::{MethodKind, MethodSet};

use super::ask::{Asker, Secret};
use super::check::{Broken, Checker, Shared};
use super::keys::{Hand, Identity, Keys, NotSigned};
use super::settings::{Method, Settings};
use crate::failure::{self, Failure};

/// How many ways to log in a server may want one after the other.
const PARTS: usize = 5;
/// How often it may ask something within one of them.
const ROUNDS: usize = 16;
/// How often a password is asked for, as with ssh.
const TIMES: usize = 3;

/// How long the end of a connection may take.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What an attempt came to.
enum Step {
    Done,
    /// It was right, and not all that the server wants.
    More(MethodSet),
    Refused,
}

/// Somebody who wants to log in.
pub(super) struct Login<'a> {
    pub(super) handle: &'a mut Handle<Checker>,
    pub(super) settings: &'a Settings,
    pub(super) asker: &'a Asker,
    pub(super) shared: &'a Shared,
    /// The host, for messages.
    pub(super) name: &'a str,
    /// How long the server may take for an answer.
    pub(super) limit: Duration,
}

impl Login<'_> {
    /// Tries all that there is.
    pub(super) async fn run(mut self) -> Result<(), Failure> {
        let first =
            bounded(self.name, self.limit, self.handle.authenticate_none(&self.settings.user)).await?;
        let mut offered = match self.step(first).await? {
            (Step::Done, _) => return Ok(()),
            (_, offered) => offered,
        };
        let mut complaints = Vec::new();
        let at_first = names(&offered);
        'parts: for _ in 0..PARTS {
            for method in self.settings.methods.clone() {
                if !offered.contains(&kind(method)) {
                    continue;
                }
                let step = match method {
                    Method::Key => self.keys(&mut complaints).await?,
                    // Nobody who may have taken the host's place shall learn a password.
                    Method::Questions | Method::Password if self.shared.is_doubtful() => {
                        complaints.push("the host key has changed, so that no password is sent".to_owned());
                        Step::Refused
                    }
                    Method::Questions => self.questions().await?,
                    Method::Password => self.passwords().await?,
                };
                match step {
                    Step::Done => {
                        tracing::debug!(host = self.name, ?method, "logged in");
                        return Ok(());
                    }
                    Step::More(rest) => {
                        offered = rest;
                        continue 'parts;
                    }
                    Step::Refused => {}
                }
            }
            break;
        }
        let refused = failure::login_is_refused(self.name, &at_first);
        Err(match (complaints.is_empty(), refused.hint.clone()) {
            (false, hint) => refused.hint(format!("{}; {}", complaints.join("; "), hint.unwrap_or_default())),
            (true, _) => refused,
        })
    }

    /// Offers keys until one is taken.
    async fn keys(&mut self, complaints: &mut Vec<String>) -> Result<Step, Failure> {
        let mut keys = Keys::find(self.settings, self.handle.agent_session_binding()).await;
        complaints.append(&mut keys.complaints);
        for identity in &keys.identities {
            // A person who is asked for a passphrase takes their time.
            let limit = if self.asker.may_ask() { Duration::MAX } else { self.limit };
            let offering = bounded(self.name, limit, self.key(identity, keys.agent.as_mut()));
            let step = match offering.await? {
                Ok(result) => self.step(Ok(result)).await?.0,
                Err(NotSigned::Over) => return Err(self.over().await),
                Err(NotSigned::Sealed(path)) => {
                    complaints.push(format!("the passphrase of {} is not known", path.display()));
                    Step::Refused
                }
                Err(NotSigned::Refused(why)) => {
                    tracing::debug!(host = self.name, why, "a key that the server wants cannot sign");
                    complaints.push(format!("a key that the server wants cannot sign: {why}"));
                    Step::Refused
                }
            };
            if !matches!(step, Step::Refused) {
                return Ok(step);
            }
        }
        Ok(Step::Refused)
    }

    async fn key(
        &mut self,
        identity: &Identity,
        agent: Option<&mut super::keys::Agent>,
    ) -> Result<AuthResult, NotSigned> {
        let user = &self.settings.user;
        let hash = match identity.public.algorithm().is_rsa() {
            // A server that does not tell knows the better ones nevertheless, if it is of this decade.
            true => match self.handle.best_supported_rsa_hash().await {
                Ok(best) => best.unwrap_or(Some(russh::keys::HashAlg::Sha512)),
                Err(_) => return Err(NotSigned::Over),
            },
            false => None,
        };
        let mut hand = Hand::new(identity, agent, self.asker);
        match identity.certificate.clone() {
            Some(certificate) => {
                self.handle.authenticate_certificate_with(user, certificate, hash, &mut hand).await
            }
            None => {
                self.handle.authenticate_publickey_with(user, identity.public.clone(), hash, &mut hand).await
            }
        }
    }

    /// Answers what the server asks.
    async fn questions(&mut self) -> Result<Step, Failure> {
        let mut given = self.asker.given();
        for _ in 0..TIMES {
            let mut reply = self.start_questions().await?;
            let mut has_answered = false;
            for _ in 0..ROUNDS {
                let prompts = match reply {
                    Reply::InfoRequest { prompts, .. } => prompts,
                    Reply::Success => return Ok(Step::Done),
                    Reply::Failure { remaining_methods, partial_success: true } => {
                        return Ok(Step::More(remaining_methods));
                    }
                    Reply::Failure { .. } => break,
                };
                let answers = self.answers(&prompts, &mut given).await;
                has_answered |= answers.is_some() && !prompts.is_empty();
                // It waits for as many as it has asked for.
                let answers = answers.unwrap_or_else(|| vec![String::new(); prompts.len()]);
                let answering = self.handle.authenticate_keyboard_interactive_respond(answers);
                reply = match bounded(self.name, self.limit, answering).await? {
                    Ok(reply) => reply,
                    Err(_) => return Err(self.over().await),
                };
            }
            if self.handle.is_closed() {
                return Err(self.over().await);
            }
            if !has_answered {
                break;
            }
        }
        Ok(Step::Refused)
    }

    async fn start_questions(&mut self) -> Result<Reply, Failure> {
        let starting = self.handle.authenticate_keyboard_interactive_start(&self.settings.user, None);
        match bounded(self.name, self.limit, starting).await? {
            Ok(reply) => Ok(reply),
            Err(_) => Err(self.over().await),
        }
    }

    /// `None` if nobody knows one of the answers.
    async fn answers(&self, prompts: &[Prompt], given: &mut Option<Secret>) -> Option<Vec<String>> {
        let mut answers = Vec::with_capacity(prompts.len());
        for prompt in prompts {
            let mut answer = match given.take_if(|_| !prompt.echo) {
                Some(given) => given,
                None => self.asker.ask(&prompt.prompt).await?,
            };
            answers.push(std::mem::take(&mut *answer));
        }
        Some(answers)
    }

    /// Sends passwords until one is right.
    async fn passwords(&mut self) -> Result<Step, Failure> {
        for time in 0..=TIMES {
            let password = match (time, self.asker.given()) {
                (0, None) => continue,
                (0, given) => given,
                _ => self.asker.ask("Password:").await,
            };
            let Some(password) = password else { break };
            let sending = self.handle.authenticate_password(&self.settings.user, password.as_str());
            let sent = bounded(self.name, self.limit, sending).await?;
            match self.step(sent).await?.0 {
                Step::Refused => {}
                step => return Ok(step),
            }
        }
        Ok(Step::Refused)
    }

    /// What an answer means, and the ways that the server has besides.
    async fn step(&mut self, result: Result<AuthResult, russh::Error>) -> Result<(Step, MethodSet), Failure> {
        match result {
            Ok(AuthResult::Success) => Ok((Step::Done, MethodSet::empty())),
            // This is also what comes where the connection has ended.
            Ok(AuthResult::Failure { .. }) if self.handle.is_closed() => Err(self.over().await),
            Ok(AuthResult::Failure { remaining_methods, partial_success: true }) => {
                Ok((Step::More(remaining_methods.clone()), remaining_methods))
            }
            Ok(AuthResult::Failure { remaining_methods, .. }) => Ok((Step::Refused, remaining_methods)),
            Err(_) => Err(self.over().await),
        }
    }

    /// The server has ended the connection.
    async fn over(&mut self) -> Failure {
        // What it said at last is known when all of the connection has ended.
        let _ = tokio::time::timeout(LAST_WORDS, &mut *self.handle).await;
        let farewell = self.shared.farewell();
        if farewell.as_deref().is_some_and(|said| said.contains("Too many authentication failures")) {
            return failure::too_many_wrong_keys(self.name);
        }
        Broken::closed(self.name, farewell.as_deref())
    }
}

/// Waits for an answer of the server.
async fn bounded<T>(name: &str, limit: Duration, work: impl Future<Output = T>) -> Result<T, Failure> {
    tokio::time::timeout(limit, work).await.map_err(|_| failure::no_answer(name, limit))
}

fn kind(method: Method) -> MethodKind {
    match method {
        Method::Key => MethodKind::PublicKey,
        Method::Questions => MethodKind::KeyboardInteractive,
        Method::Password => MethodKind::Password,
    }
}

fn names(methods: &MethodSet) -> String {
    methods.iter().map(<&str>::from).collect::<Vec<_>>().join(",")
}
