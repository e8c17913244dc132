//! The keys that are known of a host, from the same files that ssh has, and what they say about one that a server shows.

use std::fs::OpenOptions;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use hmac::{Hmac, KeyInit as _, Mac as _};
use russh::keys::ssh_key::certificate::CertType;
use russh::keys::ssh_key::known_hosts::{Entry, HostPatterns, Marker};
use russh::keys::{Algorithm, Certificate, EcdsaCurve, HashAlg, PublicKey, PublicKeyOrCertificate};
use sha1::Sha1;

use super::pattern::list_matches;
use super::settings::Settings;

/// What there is to know about one host.
#[derive(Debug, Clone, Default)]
pub(super) struct KnownHosts {
    /// The host as the files have it: `box`, `[box]:2222`.
    name: String,
    known: Vec<Known>,
    /// Where a new key is written.
    learn: Option<PathBuf>,
}

#[derive(Debug, Clone)]
struct Known {
    /// `file:line`
    place: String,
    marker: Option<Marker>,
    key: PublicKey,
    /// The line is about another port of the host. Its key is believed, and does not speak against others.
    only_host: bool,
}

/// What the files say about a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    Known,
    Unknown,
    /// There is another one, at this place.
    Changed(String),
    /// It is marked as lost, at this place.
    Revoked(String),
    /// An authority that is trusted has signed it, and not for this.
    Invalid(String),
}

impl KnownHosts {
    /// Reads the files that there are.
    pub(super) fn read(settings: &Settings) -> Self {
        let host = settings.key_alias.as_ref().unwrap_or(&settings.hostname).to_ascii_lowercase();
        let name = match settings.port {
            port if port != 22 && settings.key_alias.is_none() => format!("[{host}]:{port}"),
            _ => host.clone(),
        };
        let mut known = Vec::new();
        for path in settings.known_hosts.iter().chain(&settings.global_known_hosts) {
            let Ok(bytes) = std::fs::read(path) else { continue };
            known.extend(lines(&String::from_utf8_lossy(&bytes), path, &name, &host));
        }
        KnownHosts { name, known, learn: settings.known_hosts.first().cloned() }
    }

    /// The kinds of key to ask the server for: those that are known go first, so that it does not show another one.
    pub(super) fn algorithms(&self) -> Vec<Algorithm> {
        let mut all = vec![
            Algorithm::Ed25519,
            Algorithm::Ecdsa { curve: EcdsaCurve::NistP256 },
            Algorithm::Ecdsa { curve: EcdsaCurve::NistP384 },
            Algorithm::Ecdsa { curve: EcdsaCurve::NistP521 },
            Algorithm::Rsa { hash: Some(HashAlg::Sha512) },
            Algorithm::Rsa { hash: Some(HashAlg::Sha256) },
        ];
        let is_known = |algorithm: &Algorithm| {
            self.plain().any(|known| {
                let kind = known.key.algorithm();
                kind == *algorithm
                    || matches!((&kind, algorithm), (Algorithm::Rsa { .. }, Algorithm::Rsa { .. }))
            })
        };
        all.sort_by_key(|algorithm| !is_known(algorithm));
        all
    }

    /// True if some authority may sign keys of this host.
    pub(super) fn has_authority(&self) -> bool {
        self.marked(Marker::CertAuthority).next().is_some()
    }

    /// What the files say about what a server has shown.
    pub(super) fn judge(&self, shown: &PublicKeyOrCertificate) -> Verdict {
        let key = shown.public_key();
        let is_revoked = |known: &&Known| {
            known.key.key_data() == key.key_data()
                || shown.certificate().is_some_and(|cert| cert.signature_key() == known.key.key_data())
        };
        if let Some(known) = self.marked(Marker::Revoked).find(is_revoked) {
            return Verdict::Revoked(known.place.clone());
        }
        if let Some(certificate) = shown.certificate()
            && self
                .marked(Marker::CertAuthority)
                .any(|known| known.key.key_data() == certificate.signature_key())
        {
            return match self.check(certificate) {
                Ok(()) => Verdict::Known,
                Err(why) => Verdict::Invalid(why),
            };
        }
        if self.plain().any(|known| known.key.key_data() == key.key_data()) {
            return Verdict::Known;
        }
        // One of the same kind is what has changed; one of another kind makes it no less odd that the server does not show that.
        let others = || self.plain().filter(|known| !known.only_host);
        let other =
            others().find(|known| known.key.algorithm() == key.algorithm()).or_else(|| others().next());
        other.map_or(Verdict::Unknown, |known| Verdict::Changed(known.place.clone()))
    }

    fn check(&self, certificate: &Certificate) -> Result<(), String> {
        if certificate.cert_type() != CertType::Host {
            return Err("it is not one for hosts".to_owned());
        }
        let host = self
            .name
            .strip_prefix('[')
            .and_then(|name| name.split_once("]:"))
            .map_or(&*self.name, |(host, _)| host);
        let principals = certificate.valid_principals();
        if !principals.is_empty() && !list_matches(principals.iter().map(String::as_str), host) {
            return Err(format!("it is for {}", principals.join(", ")));
        }
        if !certificate.critical_options().is_empty() {
            return Err("it has critical options, of which hosts have none".to_owned());
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        if !(certificate.valid_after()..certificate.valid_before()).contains(&now) {
            return Err("it is not valid at this time".to_owned());
        }
        let authorities: Vec<_> =
            self.marked(Marker::CertAuthority).map(|known| known.key.fingerprint(HashAlg::Sha256)).collect();
        certificate.validate_at(now, &authorities).map_err(|e| e.to_string())
    }

    /// Writes a new key down. The name is written in clear, whatever `HashKnownHosts` says.
    pub(super) fn learn(&self, shown: &PublicKeyOrCertificate) -> Result<(), String> {
        let Some(path) = &self.learn else { return Ok(()) };
        let failed = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
        if let Some(dir) = path.parent() {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(|e| failed(&e))?;
        }
        let key = PublicKey::new(shown.public_key().key_data().clone(), "");
        let line = format!("{} {}\n", self.name, key.to_openssh().map_err(|e| failed(&e))?.trim_end());
        let mut file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .mode(0o600)
            .open(path)
            .map_err(|e| failed(&e))?;
        let mut last = [b'\n'];
        // What is no ordinary file has no end.
        if file.seek(SeekFrom::End(-1)).is_ok() {
            let _ = file.read(&mut last);
        }
        let line = if last == *b"\n" { line } else { format!("\n{line}") };
        file.write_all(line.as_bytes()).map_err(|e| failed(&e))
    }

    fn plain(&self) -> impl Iterator<Item = &Known> {
        self.known.iter().filter(|known| known.marker.is_none())
    }

    fn marked(&self, marker: Marker) -> impl Iterator<Item = &Known> {
        self.known.iter().filter(move |known| known.marker == Some(marker))
    }
}

/// The lines of a file that are about a host.
fn lines(text: &str, path: &Path, name: &str, host: &str) -> Vec<Known> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let fields: Vec<_> = line.split_whitespace().collect();
        if fields.first().is_none_or(|first| first.starts_with('#')) {
            continue;
        }
        let count = if line.trim_start().starts_with('@') { 4 } else { 3 };
        // What we cannot read may be a kind of key that we do not know.
        let Ok(entry) = fields[..count.min(fields.len())].join(" ").parse::<Entry>() else { continue };
        let only_host = !is_about(entry.host_patterns(), name);
        if only_host && !is_about(entry.host_patterns(), host) {
            continue;
        }
        found.push(Known {
            place: format!("{}:{}", path.display(), number + 1),
            marker: entry.marker().copied(),
            key: entry.public_key().clone(),
            only_host,
        });
    }
    found
}

fn is_about(patterns: &HostPatterns, name: &str) -> bool {
    match patterns {
        HostPatterns::Patterns(patterns) => list_matches(patterns.iter().map(String::as_str), name),
        HostPatterns::HashedName { salt, hash } => Hmac::<Sha1>::new_from_slice(salt)
            .is_ok_and(|hmac| hmac.chain_update(name).verify_slice(hash).is_ok()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const A: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB9dG4kjRhQTtWTVzd2t27+t0DEHBPW7iOD23TUiYLio";
    const B: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdD7y3aLq454yWBdwLWbieU1ebz9/cu7/QEXn9OIeZJ";
    const ECDSA: &str = "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBHwf2HMM5TRXvo2SQJjsNkiDD5KqiiNjrGVv3UUh+mMT5RHxiRtOnlqvjhQtBq0VpmpCV/PwUdhOig4vkbqAcEc=";

    fn known(text: &str, name: &str, host: &str) -> KnownHosts {
        KnownHosts { name: name.to_owned(), known: lines(text, Path::new("/k"), name, host), learn: None }
    }

    fn shown(key: &str) -> PublicKeyOrCertificate {
        PublicKey::from_openssh(key).unwrap().into()
    }

    #[test]
    fn keys_are_judged() {
        let text = format!(
            "# a comment\n\nbox,10.0.0.1 {A} me@here\n*.net,!bad.net\t{A}\n@revoked * {B}\nbroken line\n[box]:2222 {ECDSA}\n"
        );
        for (name, host, key, expected) in [
            ("box", "box", A, Verdict::Known),
            ("10.0.0.1", "10.0.0.1", A, Verdict::Known),
            ("a.net", "a.net", A, Verdict::Known),
            ("bad.net", "bad.net", A, Verdict::Unknown),
            ("box", "box", B, Verdict::Revoked("/k:5".to_owned())),
            ("web", "web", B, Verdict::Revoked("/k:5".to_owned())),
            ("box", "box", ECDSA, Verdict::Changed("/k:3".to_owned())),
            // The same host's other server is believed, and is no reason for doubt.
            ("[box]:7", "box", A, Verdict::Known),
            ("[box]:7", "box", ECDSA, Verdict::Unknown),
            ("[box]:2222", "box", ECDSA, Verdict::Known),
        ] {
            assert_eq!(known(&text, name, host).judge(&shown(key)), expected, "{name} {key}");
        }
    }

    #[test]
    fn hashed_names_are_found() {
        let line = format!("|1|lcY/In3lsGnkJikLENb0DM70B/I=|Qs4e9Nr7mM6avuEv02fw2uFnwQo= {A}");
        assert_eq!(known(&line, "other", "other").judge(&shown(A)), Verdict::Unknown);
        // As `ssh-keygen -H` has written it.
        let line = format!(
            "|1|1T1Eb6bg0DLSoaeCkkfYzRJ+pVs=|{} {A}",
            hash("[box]:2222", "1T1Eb6bg0DLSoaeCkkfYzRJ+pVs=")
        );
        assert_eq!(known(&line, "[box]:2222", "box").judge(&shown(A)), Verdict::Known);
        assert_eq!(known(&line, "[box]:2223", "box").judge(&shown(A)), Verdict::Unknown);
    }

    fn hash(name: &str, salt: &str) -> String {
        let entry: Entry = format!("|1|{salt}|AAAAAAAAAAAAAAAAAAAAAAAAAAA= {A}").parse().unwrap();
        let HostPatterns::HashedName { salt, .. } = entry.host_patterns() else { panic!("not hashed") };
        let made = Hmac::<Sha1>::new_from_slice(salt).unwrap().chain_update(name).finalize().into_bytes();
        let patterns = HostPatterns::HashedName { salt: salt.clone(), hash: made.into() };
        patterns.to_string().rsplit_once('|').unwrap().1.to_owned()
    }

    #[test]
    fn the_kind_of_key_that_is_known_is_asked_for_first() {
        assert_eq!(known("", "box", "box").algorithms()[0], Algorithm::Ed25519);
        let ecdsa = known(&format!("box {ECDSA}"), "box", "box").algorithms();
        assert_eq!(ecdsa[0], Algorithm::Ecdsa { curve: EcdsaCurve::NistP256 });
        assert_eq!(ecdsa.len(), 6);
    }

    #[test]
    fn a_new_key_is_written_down_for_its_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/known_hosts");
        let mut hosts = known("", "[box]:2222", "box");
        hosts.learn = Some(path.clone());
        hosts.learn(&shown(A)).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::write(&path, "web x").unwrap();
        hosts.learn(&shown(A)).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("web x\n[box]:2222 {A}\n"));
        hosts.learn = Some("/dev/null".into());
        hosts.learn(&shown(A)).unwrap();
    }
}
