//! The keys that somebody can log in with: those of an agent, and files, whose passphrase is asked for only when the server wants the key.

use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use russh::SendError;
use russh::Signer;
use russh::keys::agent::client::AgentClient;
use russh::keys::agent::{AgentIdentity, AgentSessionBinding};
use russh::keys::signature::Signer as _;
use russh::keys::ssh_encoding::Encode as _;
use russh::keys::ssh_key::private::KeypairData;
use russh::keys::{
    Certificate, HashAlg, PrivateKey, PublicKey, decode_secret_key, load_openssh_certificate, load_public_key,
};
use tokio::net::UnixStream;
use tokio::task::spawn_blocking;
use zeroize::Zeroizing;

use super::ask::{Asker, Secret};
use super::settings::Settings;

/// How long an agent may take to say what it has.
const AGENT: Duration = Duration::from_secs(5);
/// How often a passphrase is asked for, as with ssh.
const TIMES: usize = 3;

/// The way to an agent.
pub(super) type Agent = AgentClient<UnixStream>;

/// One key that can be offered.
pub(super) struct Identity {
    pub(super) public: PublicKey,
    pub(super) certificate: Option<Certificate>,
    holder: Holder,
}

#[derive(Clone)]
enum Holder {
    Agent,
    File(PathBuf, Arc<Stored>),
}

/// A private key as its file has it.
enum Stored {
    Open(PrivateKey),
    /// With a passphrase.
    Sealed(PrivateKey),
    /// With a passphrase, in a form that says nothing without it.
    Text(Secret),
}

/// Everything that there is to offer.
#[derive(Default)]
pub(super) struct Keys {
    pub(super) identities: Vec<Identity>,
    pub(super) agent: Option<Agent>,
    /// What was wrong with some of them.
    pub(super) complaints: Vec<String>,
}

impl Keys {
    /// Finds what there is, in ssh's own order: certificates, what the agent has of the configured keys, the agent's others, files.
    pub(super) async fn find(settings: &Settings, binding: Option<&AgentSessionBinding>) -> Self {
        let mut keys = Keys::default();
        let mut files = Vec::new();
        for path in &settings.identities {
            match load(path) {
                Ok(Some((public, stored))) => files.push((path, public, stored)),
                Ok(None) => {}
                Err(complaint) => keys.complaints.push(complaint),
            }
        }
        let mut held = Vec::new();
        if let Some(path) = &settings.agent {
            match listen(path, binding).await {
                Ok((agent, identities)) => {
                    keys.agent = Some(agent);
                    held = identities;
                }
                Err(why) => {
                    tracing::debug!(agent = %path.display(), why, "the ssh agent is of no use");
                }
            }
        }
        let is_file =
            |public: &PublicKey| files.iter().any(|(_, file, _)| file.key_data() == public.key_data());
        held.retain(|identity| !settings.identities_only || is_file(&identity.public_key()));
        held.sort_by_key(|identity| !is_file(&identity.public_key()));

        let certificates = settings
            .certificates
            .iter()
            .cloned()
            .chain(settings.identities.iter().map(|path| with_suffix(path, "-cert.pub")))
            .filter_map(|path| load_openssh_certificate(path).ok());
        for certificate in certificates {
            let is_it = |public: &PublicKey| public.key_data() == certificate.public_key();
            let in_agent = held.iter().any(|identity| is_it(&identity.public_key()));
            let in_file = || files.iter().find(|(_, public, stored)| is_it(public) && stored.is_some());
            let holder = match in_agent {
                true => Some(Holder::Agent),
                false => in_file()
                    .and_then(|(path, _, stored)| Some(Holder::File((*path).clone(), stored.clone()?))),
            };
            if let Some(holder) = holder {
                let public = PublicKey::new(certificate.public_key().clone(), "");
                keys.identities.push(Identity { public, certificate: Some(certificate), holder });
            }
        }
        let in_agent: Vec<_> = held.iter().map(|identity| identity.public_key().key_data().clone()).collect();
        for identity in held {
            let public = identity.public_key().into_owned();
            let certificate = match identity {
                AgentIdentity::Certificate { certificate, .. } => Some(certificate),
                AgentIdentity::PublicKey { .. } => None,
            };
            keys.identities.push(Identity { public, certificate, holder: Holder::Agent });
        }
        for (path, public, stored) in files {
            if let Some(stored) = stored
                && !in_agent.contains(public.key_data())
            {
                let holder = Holder::File(path.clone(), stored);
                keys.identities.push(Identity { public, certificate: None, holder });
            }
        }
        keys
    }
}

/// Asks an agent for what it has.
async fn listen(
    path: &Path,
    binding: Option<&AgentSessionBinding>,
) -> Result<(Agent, Vec<AgentIdentity>), String> {
    let work = async {
        let mut agent = AgentClient::connect(UnixStream::connect(path).await?);
        if let Some(binding) = binding {
            // Only some know that, and only some keys need it.
            let _ = agent.bind_session(binding, false).await;
        }
        let identities = agent.request_identities().await?;
        Ok::<_, russh::keys::Error>((agent, identities))
    };
    let found = tokio::time::timeout(AGENT, work).await.map_err(|_| "it does not answer".to_owned())?;
    found.map_err(|e| e.to_string())
}

type Loaded = (PublicKey, Option<Arc<Stored>>);

/// Reads a key's file; `None` if there is none. One with the public half alone is of use with an agent that has the other.
fn load(path: &Path) -> Result<Option<Loaded>, String> {
    let bad = |why: &dyn std::fmt::Display| format!("the key {} is of no use: {why}", path.display());
    let public_half = || load_public_key(with_suffix(path, ".pub")).ok();
    let text = match std::fs::read_to_string(path) {
        Ok(text) => Zeroizing::new(text),
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(public_half().map(|public| (public, None))),
        Err(e) => return Err(bad(&e)),
    };
    if let Ok(public) = PublicKey::from_openssh(text.trim()) {
        return Ok(Some((public, None)));
    }
    let mode = std::fs::metadata(path).map_err(|e| bad(&e))?.permissions().mode();
    if mode & 0o077 != 0 {
        return Err(bad(&"others have access to it; chmod 600 the key"));
    }
    if text.contains("BEGIN OPENSSH PRIVATE KEY") {
        let key = PrivateKey::from_openssh(text.as_str()).map_err(|e| bad(&e))?;
        let public = key.public_key().clone();
        let stored = if key.is_encrypted() { Stored::Sealed(key) } else { Stored::Open(key) };
        return Ok(Some((public, Some(Arc::new(stored)))));
    }
    if text.contains("ENCRYPTED") {
        let public = public_half().ok_or_else(|| {
            bad(&"it has a passphrase, and its public half is not beside it; `ssh-keygen -y` makes that")
        })?;
        return Ok(Some((public, Some(Arc::new(Stored::Text(text))))));
    }
    let key = decode_secret_key(&text, None).map_err(|e| bad(&e))?;
    Ok(Some((key.public_key().clone(), Some(Arc::new(Stored::Open(key))))))
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

impl Stored {
    fn open(&self, passphrase: &str) -> Option<PrivateKey> {
        match self {
            Stored::Open(key) => Some(key.clone()),
            Stored::Sealed(key) => key.decrypt(passphrase).ok(),
            Stored::Text(text) => decode_secret_key(text, Some(passphrase)).ok(),
        }
    }
}

/// Who signs for one identity.
pub(super) struct Hand<'a> {
    identity: &'a Identity,
    agent: Option<&'a mut Agent>,
    asker: &'a Asker,
}

/// Why there is no signature.
#[derive(Debug)]
pub(super) enum NotSigned {
    /// The connection is over.
    Over,
    /// The passphrase is not known.
    Sealed(PathBuf),
    Refused(String),
}

impl From<SendError> for NotSigned {
    fn from(_: SendError) -> Self {
        NotSigned::Over
    }
}

impl<'a> Hand<'a> {
    pub(super) fn new(identity: &'a Identity, agent: Option<&'a mut Agent>, asker: &'a Asker) -> Self {
        Hand { identity, agent, asker }
    }

    /// The private key of a file.
    async fn unlock(&self, path: &Path, stored: &Arc<Stored>) -> Result<PrivateKey, NotSigned> {
        if let Stored::Open(key) = &**stored {
            return Ok(key.clone());
        }
        let question = format!("Passphrase for {}:", path.display());
        for time in 0..=TIMES {
            let passphrase = match (time, self.asker.given()) {
                (0, None) => continue,
                (0, given) => given,
                _ => self.asker.ask(&question).await,
            };
            let Some(passphrase) = passphrase else { break };
            let stored = Arc::clone(stored);
            // To try one takes a while, by intent.
            let opened = spawn_blocking(move || stored.open(&passphrase)).await;
            if let Ok(Some(key)) = opened {
                return Ok(key);
            }
        }
        Err(NotSigned::Sealed(path.to_owned()))
    }
}

impl Signer for Hand<'_> {
    type Error = NotSigned;

    async fn auth_sign(
        &mut self,
        key: &AgentIdentity,
        hash: Option<HashAlg>,
        mut data: Vec<u8>,
    ) -> Result<Vec<u8>, NotSigned> {
        match (&self.identity.holder, &mut self.agent) {
            (Holder::Agent, Some(agent)) => {
                // A certificate that the agent does not have is signed for by its key.
                let plain = AgentIdentity::from(self.identity.public.clone());
                let signed = agent.sign_request(&plain, hash, data.clone()).await;
                match (signed, key) {
                    (Err(_), AgentIdentity::Certificate { .. }) => agent.sign_request(key, hash, data).await,
                    (signed, _) => signed,
                }
                .map_err(|e| NotSigned::Refused(e.to_string()))
            }
            (Holder::Agent, None) => Err(NotSigned::Refused("the agent is gone".to_owned())),
            (Holder::File(path, stored), _) => {
                let key = self.unlock(path, stored).await?;
                let failed = |e: &dyn std::fmt::Display| NotSigned::Refused(e.to_string());
                let signature = match key.key_data() {
                    KeypairData::Rsa(pair) => (pair, hash).try_sign(&data),
                    other => other.try_sign(&data),
                };
                signature.map_err(|e| failed(&e))?.encode_prefixed(&mut data).map_err(|e| failed(&e))?;
                Ok(data)
            }
        }
    }
}
