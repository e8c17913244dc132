//! Secrets that the host knows by their values.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use aho_corasick::{AhoCorasick, Input, MatchKind};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::redact::{Finder, Rest, Verdict};

/// Shorter values are not taken: they would be found in texts that have nothing to do with them.
const SHORTEST: usize = 6;
/// Lines of a value that are as long as this are secrets of their own.
const SHORTEST_LINE: usize = 16;
/// Longer values are looked for in parts, so that a stream never holds back more than this.
const LONGEST: usize = 4096;
/// How much of a value may be shown before it is clear that it is one.
const SHOWN: usize = 2;

/// What makes a name look like that of a secret, wherever it stands, in capitals.
pub const SECRET_WORDS: &[&str] = &[
    "KEY",
    "TOKEN",
    "SECRET",
    "PASSWORD",
    "PASSWD",
    "PASSPHRASE",
    "PASSCODE",
    "CREDENTIAL",
    "AUTH",
    "DSN",
    "WEBHOOK",
    "BEARER",
    "COOKIE",
    "PRIVATE",
];

/// Whether a variable of this name is likely to hold a secret.
pub fn is_secret_name(name: &str) -> bool {
    // Who wrote something is told by many programs, and no secret.
    let upper = name.to_ascii_uppercase().replace("AUTHORIZ", "AUTH").replace("AUTHOR", "");
    SECRET_WORDS.iter().any(|part| upper.contains(part))
}

/// Values that must not be seen in what comes out of a cell, each under a name that is told in its place.
///
/// A value is found as it is and as quoting makes it (`\n` for a line's end, `%40` for an at sign); not in base64, nor spelt backwards. Debug output
/// tells the names alone.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secrets {
    /// From value to name.
    values: BTreeMap<String, String>,
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.values.values()).finish()
    }
}

impl Secrets {
    /// None.
    pub fn new() -> Self {
        Secrets::default()
    }

    /// Registers a value. False if it is too short to be looked for (fewer than 6 bytes).
    pub fn add(&mut self, name: &str, value: &str) -> bool {
        let value = value.trim();
        if value.len() < SHORTEST {
            return false;
        }
        let lines = value.lines().map(str::trim).filter(|line| line.len() >= SHORTEST_LINE);
        let forms = [value.to_owned(), value.escape_default().to_string(), percent_encoded(value)];
        for form in forms.into_iter().chain(lines.map(str::to_owned)) {
            for part in parts(&form) {
                self.values.entry(part.to_owned()).or_insert_with(|| name.to_owned());
            }
        }
        true
    }

    /// Registers the values of those variables whose names look like secrets.
    pub fn add_from<'a>(&mut self, variables: impl IntoIterator<Item = (&'a String, &'a String)>) {
        for (name, value) in variables {
            if is_secret_name(name) {
                self.add(name, value);
            }
        }
    }

    /// Takes over what others know.
    pub fn extend(&mut self, others: &Secrets) {
        for (value, name) in &others.values {
            self.values.entry(value.clone()).or_insert_with(|| name.clone());
        }
    }

    /// True if there is nothing to be found.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
}

fn percent_encoded(value: &str) -> String {
    const SET: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
    utf8_percent_encode(value, SET).to_string()
}

/// A value in pieces that can be looked for; a last one that is too short is left out.
fn parts(value: &str) -> impl Iterator<Item = &str> {
    let mut rest = value;
    std::iter::from_fn(move || {
        let end = (0..=rest.len().min(LONGEST)).rev().find(|at| rest.is_char_boundary(*at))?;
        let (part, behind) = rest.split_at(end);
        rest = behind;
        (part.len() >= SHORTEST).then_some(part)
    })
}

/// Finds registered values.
#[derive(Clone)]
pub(super) struct Values(Option<Arc<Known>>);

struct Known {
    automaton: AhoCorasick,
    /// Values and their names, in the automaton's order.
    secrets: Vec<(String, String)>,
}

impl fmt::Debug for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.iter().flat_map(|known| &known.secrets).map(|(_, name)| name)).finish()
    }
}

impl Values {
    pub(super) fn new(secrets: &Secrets) -> Self {
        if secrets.is_empty() {
            return Values(None);
        }
        let values = secrets.values.keys();
        let built = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(values);
        let automaton = match built {
            Ok(automaton) => automaton,
            // Only a set beyond all measure cannot be built.
            Err(e) => {
                tracing::error!(error = %e, "the registered secrets cannot be looked for");
                return Values(None);
            }
        };
        let secrets = secrets.values.iter().map(|(value, name)| (value.clone(), name.clone())).collect();
        Values(Some(Arc::new(Known { automaton, secrets })))
    }

    /// How much of the beginning of a text is the end of a value, and of which: what a cut leaves of one.
    pub(super) fn end_of_one(&self, text: &str) -> Option<(usize, &str)> {
        let secrets = self.0.iter().flat_map(|known| &known.secrets);
        let ends = secrets.filter_map(|(value, name)| {
            let starts = value.char_indices().map(|(at, _)| at).skip(1);
            let at = starts
                .take_while(|at| value.len() - at >= SHORTEST - SHOWN)
                .find(|at| text.starts_with(&value[*at..]))?;
            Some((value.len() - at, name.as_str()))
        });
        ends.max_by_key(|(length, _)| *length)
    }
}

impl Finder for Values {
    fn next(&self, text: &str, from: usize) -> Option<(usize, usize)> {
        let found = self.0.as_ref()?.automaton.find(Input::new(text).range(from..))?;
        Some((found.start(), found.end()))
    }

    fn judge(&self, text: &str, at: usize, _: [u8; 2], _: bool) -> Verdict<'_> {
        let Some(known) = &self.0 else { return Verdict::No };
        let Some(found) = known.automaton.find(Input::new(text).range(at..)) else {
            return Verdict::No;
        };
        let label = &known.secrets[found.pattern().as_usize()].1;
        Verdict::Secret { secret: found.range(), label, rest: Rest::Nothing }
    }

    fn open_end(&self, text: &str) -> Option<(usize, usize, &str)> {
        let known = self.0.as_ref()?;
        let from = text.len().saturating_sub(LONGEST);
        (from..text.len()).filter(|at| text.is_char_boundary(*at)).find_map(|at| {
            let end = &text[at..];
            let (_, name) =
                known.secrets.iter().find(|(value, _)| value.len() > end.len() && value.starts_with(end))?;
            let safe =
                (at..=at + SHOWN.min(end.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(at);
            Some((at, safe, name.as_str()))
        })
    }
}
