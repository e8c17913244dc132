//! Where code runs, as a URL: `local:`, `stdio:`, `ssh://agent@box:22`, `exec:kubectl exec -i pod --`.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result, Step};

/// A target: a scheme that names a driver, and the rest, which only that driver understands.
///
/// Most drivers read the rest as `address?option=value&…` by [`Target::address_and_options`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Target {
    text: String,
    scheme_len: usize,
}

impl Target {
    /// The scheme, such as `local` or `docker+run`.
    pub fn scheme(&self) -> &str {
        &self.text[..self.scheme_len]
    }

    /// All behind the scheme's colon, untouched.
    pub fn rest(&self) -> &str {
        &self.text[self.scheme_len + 1..]
    }

    /// The whole target as it was given.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Splits the rest into the address and the options behind its first `?`, percent-decoded.
    ///
    /// # Errors
    /// An option without `=`, one given twice, one that is not in `known`, or a value that is not UTF-8 is refused by name.
    pub fn address_and_options(&self, known: &[&str]) -> Result<(&str, Options)> {
        let bad = |message: String| Error::new(ErrorKind::BadInput, message).at(Step::Parse).on(self);
        let (address, query) = self.rest().split_once('?').unwrap_or((self.rest(), ""));
        let mut values = BTreeMap::new();
        for pair in query.split('&').filter(|p| !p.is_empty()) {
            let Some((name, value)) = pair.split_once('=') else {
                return Err(bad(format!("the option {pair:?} has no value"))
                    .with_hint(format!("write it as {pair}=VALUE")));
            };
            if !known.contains(&name) {
                return Err(bad(format!("unknown option {name:?}")).with_hint(format!(
                    "the options of {}: are: {}",
                    self.scheme(),
                    known.join(", ")
                )));
            }
            let value = percent_encoding::percent_decode_str(value)
                .decode_utf8()
                .map_err(|e| bad(format!("the value of {name:?} is not UTF-8")).with_source(e))?;
            if values.insert(name.to_owned(), value.into_owned()).is_some() {
                return Err(bad(format!("the option {name:?} is given twice")));
            }
        }
        Ok((address, Options { values }))
    }
}

/// The options of a target.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    values: BTreeMap<String, String>,
}

impl Options {
    /// The value of an option, if it was given.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }
}

impl FromStr for Target {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = |message: String| {
            Error::new(ErrorKind::BadInput, message).at(Step::Parse).with_hint(
                "a target begins with a scheme and a colon, such as local: or exec:docker exec -i web",
            )
        };
        if has_password(text) {
            // Without the text, as an error may end up in a log.
            return Err(Error::new(ErrorKind::BadInput, "the target contains a password")
                .at(Step::Parse)
                .with_hint("a password in a URL ends up in histories and logs; leave it out, and see docs/guide.md for the ways to give one"));
        }
        if let Some(c) = text.chars().find(|c| c.is_control()) {
            return Err(bad(format!("the target {text:?} contains the control character {c:?}")));
        }
        let Some(scheme_len) = text.find(':') else {
            return Err(bad(format!("{text:?} is not a target")));
        };
        let scheme = &text[..scheme_len];
        let starts_well = scheme.starts_with(|c: char| c.is_ascii_lowercase());
        if !starts_well || !scheme.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '+') {
            return Err(bad(format!("{text:?} is not a target: {scheme:?} is not a scheme")));
        }
        Ok(Target { text: text.to_owned(), scheme_len })
    }
}

/// True for `scheme://user:password@host`.
fn has_password(text: &str) -> bool {
    let Some((_, rest)) = text.split_once(':') else { return false };
    let Some(rest) = rest.strip_prefix("//") else { return false };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    match authority.rsplit_once('@') {
        // The digest of an image may stand behind its tag.
        Some((_, digest)) if is_digest(digest) => false,
        Some((user, _)) => user.contains(':'),
        // A password may hold a character that ends the authority; what stands before that is no port then.
        None => without_options(rest).contains('@') && is_no_port(authority),
    }
}

/// What stands before `?option=`; a password may hold a mere question mark.
fn without_options(rest: &str) -> &str {
    let is_option = |text: &str| {
        let name = text.split_once('=').map_or("", |(name, _)| name);
        !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c == '_')
    };
    match rest.split_once('?') {
        Some((address, options)) if is_option(options) => address,
        _ => rest,
    }
}

/// True for `sha256:` and 64 digits, which is no host and port.
fn is_digest(text: &str) -> bool {
    let digits = text.split_once(':').map_or("", |(_, digits)| digits);
    digits.len() >= 32 && digits.chars().all(|c| c.is_ascii_hexdigit())
}

fn is_no_port(authority: &str) -> bool {
    let Some((_, port)) = authority.rsplit_once(':') else { return false };
    !authority.ends_with(']') && !port.chars().all(|c| c.is_ascii_digit())
}

impl TryFrom<String> for Target {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<Target> for String {
    fn from(target: Target) -> String {
        target.text
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(text: &str) -> Target {
        text.parse().unwrap()
    }

    #[test]
    fn a_target_is_a_scheme_and_a_rest() {
        let t = target("exec:kubectl exec -i pod --");
        assert_eq!((t.scheme(), t.rest()), ("exec", "kubectl exec -i pod --"));
        assert_eq!(target("docker+run://img").scheme(), "docker+run");
    }

    #[test]
    fn what_is_no_target_is_refused() {
        for text in ["", "laptop", ":", "Local:", "9p:", "a b:", "local:\n"] {
            assert_eq!(text.parse::<Target>().unwrap_err().kind(), ErrorKind::BadInput, "{text:?}");
        }
    }

    #[test]
    fn a_password_is_refused_and_not_repeated() {
        for text in [
            "ssh://ann:sesame@box",
            "ssh://ann:ses/ame@box:22",
            "ssh://:sesame@[::1]:22/",
            "docker://a:sesame@b?x=1",
            "docker://a:sesame@b:5000",
            "ssh://ann:ses?ame@box",
        ] {
            let e = text.parse::<Target>().unwrap_err();
            assert!(e.to_string().contains("password") && !format!("{e:?}").contains("ses"), "{e:?}");
        }
        for text in [
            "ssh://box:22?jump=ann@b:7",
            "ssh://ann@[::1]:22",
            "ssh://[fe80::1]?jump=a@b",
            "exec:curl http://a:b@c",
            "docker+run://debian:12@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
            "docker+run://debian:bookworm?host=ssh://ann@box",
            "docker+run://localhost:5000/a/b@sha256:0123456789abcdef0123456789abcdef",
        ] {
            assert!(text.parse::<Target>().is_ok(), "{text}");
        }
    }

    #[test]
    fn options_are_decoded_and_unknown_ones_named() {
        let t = target("local:?dir=/tmp/a%20b&python=python3");
        let (address, options) = t.address_and_options(&["dir", "python"]).unwrap();
        assert_eq!((address, options.get("dir"), options.get("user")), ("", Some("/tmp/a b"), None));
        let e = target("local:?dri=/x").address_and_options(&["dir"]).unwrap_err();
        assert!(e.to_string().contains("\"dri\""), "{e}");
        assert!(target("local:?dir=1&dir=2").address_and_options(&["dir"]).is_err());
        assert!(target("local:?dir").address_and_options(&["dir"]).is_err());
    }
}
