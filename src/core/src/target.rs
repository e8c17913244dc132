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
