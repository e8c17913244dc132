//! Finds secrets by their looks. Every place is judged by a bounded number of characters behind it, so that a text costs as much as it is long.

use std::sync::LazyLock;

use aho_corasick::{AhoCorasick, AhoCorasickKind, Input, MatchKind};

use super::redact::{Chars, Finder, Rest, Verdict, whole};
use super::rules::{RULES, Rule, Shape, alnum, word};

/// The first two parts of a token of three are not longer.
const JWT_PART: usize = 2048;
/// Nor is what is before the host of a URL.
const AUTHORITY: usize = 400;
/// How much of a value is looked at to tell a secret from a word.
const VALUE: usize = 32;
/// Blanks around `=` and `:`, and quotes and backslashes, are not more than this.
const FILL: usize = 4;
/// What comes before the secret in a header.
const SCHEMES: &[&str] =
    &["basic", "bearer", "token", "digest", "negotiate", "apikey", "api-key", "key", "hawk", "gitlab"];
const LONGEST_SCHEME: usize = 10;

/// Finds secrets by their looks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shapes;

/// Built when the first text is looked at, for all that follow.
static KEYWORDS: LazyLock<Option<AhoCorasick>> = LazyLock::new(|| {
    AhoCorasick::builder()
        .match_kind(MatchKind::LeftmostLongest)
        .ascii_case_insensitive(true)
        .kind(Some(AhoCorasickKind::DFA))
        .build(RULES.iter().map(|rule| rule.keyword))
        // It is the same in every process, and a test builds it.
        .inspect_err(|e| tracing::error!(error = %e, "secrets are not looked for"))
        .ok()
});

impl Finder for Shapes {
    fn next(&self, text: &str, from: usize) -> Option<(usize, usize)> {
        let found = KEYWORDS.as_ref()?.find(Input::new(text).range(from..))?;
        // Another keyword may begin inside of this one.
        Some((found.start(), whole(text, found.start() + 1)))
    }

    fn judge(&self, text: &str, at: usize, before: [u8; 2], is_all: bool) -> Verdict<'_> {
        let found = KEYWORDS.as_ref().and_then(|words| words.find(Input::new(text).range(at..)));
        let Some(found) = found.filter(|found| found.start() == at) else { return Verdict::No };
        let rule = &RULES[found.pattern().as_usize()];
        if rule.is_exact && !text[at..].starts_with(rule.keyword) {
            return Verdict::No;
        }
        Place { text: text.as_bytes(), at, behind: found.end(), before, is_all, rule }.judge(text)
    }

    fn open_end(&self, text: &str) -> Option<(usize, usize, &str)> {
        let longest = RULES.iter().map(|rule| rule.keyword.len()).max().unwrap_or(0);
        let from = whole(text, text.len().saturating_sub(longest - 1));
        let bytes = text.as_bytes();
        (from..text.len()).find_map(|at| {
            let end = &bytes[at..];
            let is_open = RULES.iter().any(|rule| {
                let keyword = rule.keyword.as_bytes();
                keyword.len() > end.len()
                    && if rule.is_exact {
                        keyword.starts_with(end)
                    } else {
                        keyword[..end.len()].eq_ignore_ascii_case(end)
                    }
            });
            // A keyword is no secret, and what follows it is found by it even when it was shown.
            is_open.then_some((at, text.len(), ""))
        })
    }
}

/// A keyword in a text.
struct Place<'a> {
    text: &'a [u8],
    at: usize,
    /// Behind the keyword.
    behind: usize,
    before: [u8; 2],
    /// Nothing comes behind the text.
    is_all: bool,
    rule: &'static Rule,
}

/// A look at what follows: what it found, or that the text ends too early.
type Look<T> = Result<T, Ends>;

/// The text ends here, and nobody can say yet.
struct Ends;

impl Place<'_> {
    fn judge(&self, text: &str) -> Verdict<'static> {
        let mut from = self.behind;
        let judged = match self.rule.shape {
            Shape::Token { least, chars } => self.at_least(least, chars),
            Shape::Word { least, chars } if self.begins_word() => self.at_least(least, chars),
            Shape::Exactly { length, chars } if self.begins_word() => self.exactly(length, chars),
            Shape::Numbered { length, chars } if self.before[1].is_ascii_digit() => {
                self.exactly(length, chars)
            }
            Shape::Word { .. } | Shape::Exactly { .. } | Shape::Numbered { .. } => Ok(None),
            Shape::Jwt if self.begins_word() => self.jwt(),
            Shape::Jwt => Ok(None),
            Shape::Pem => self.pem(),
            Shape::Url => self.url(&mut from, text),
            Shape::Header => self.header(&mut from),
            Shape::Bearer => self.bearer(&mut from),
            Shape::NamedKey => self.named(&mut from, 16, key_value, |b| key_value(b) || b == b'.'),
            Shape::NamedPassword => self.named(&mut from, 6, password_value, password_value),
        };
        let label = self.rule.label;
        match judged {
            Err(Ends) => Verdict::Open { safe: from.min(self.text.len()), label },
            Ok(None) => Verdict::No,
            Ok(Some((from, to, rest))) => Verdict::Secret { secret: from..to, label, rest },
        }
    }

    /// Whether the keyword is not the end of a longer word; behind an escape such as `\n`, as in a quoted text, it is not.
    fn begins_word(&self) -> bool {
        let [first, second] = self.before;
        !(alnum(second) || second == b'_') || (first == b'\\' && b"nrt".contains(&second))
    }

    /// How many of these characters follow, at most so many.
    fn run(&self, from: usize, most: usize, chars: Chars) -> Look<usize> {
        let rest = self.text.get(from..).unwrap_or_default();
        let run = rest.iter().take(most).take_while(|b| chars(**b)).count();
        if run < most && run == rest.len() && !self.is_all { Err(Ends) } else { Ok(run) }
    }

    /// The character there; at the very end a blank.
    fn byte(&self, at: usize) -> Look<u8> {
        match self.text.get(at) {
            Some(b) => Ok(*b),
            None if self.is_all => Ok(b' '),
            None => Err(Ends),
        }
    }

    fn at_least(&self, least: usize, chars: Chars) -> Look<Option<Found>> {
        let run = self.run(self.behind, least, chars)?;
        Ok((run == least).then_some((self.at, self.behind + run, Rest::Run(chars))))
    }

    fn exactly(&self, length: usize, chars: Chars) -> Look<Option<Found>> {
        let run = self.run(self.behind, length, chars)?;
        let end = self.behind + run;
        let next = if run == length { self.byte(end)? } else { b' ' };
        let start = if matches!(self.rule.shape, Shape::Numbered { .. }) { self.at + 1 } else { self.at };
        Ok((run == length && !word(next)).then_some((start, end, Rest::Nothing)))
    }

    fn jwt(&self) -> Look<Option<Found>> {
        let header = self.run(self.behind, JWT_PART, word)?;
        let dot = self.behind + header;
        if header < 10 || header == JWT_PART {
            return Ok(None);
        }
        for (ahead, wanted) in b".eyJ".iter().enumerate() {
            if self.byte(dot + ahead)? != *wanted {
                return Ok(None);
            }
        }
        let claims = self.run(dot + 4, 4, word)?;
        Ok((claims == 4).then_some((self.at, dot + 4 + claims, Rest::Run(|b| word(b) || b == b'.'))))
    }

    fn pem(&self) -> Look<Option<Found>> {
        let run = self.run(self.behind, 48, |b| upperish(b) || b == b' ')?;
        let name = &self.text[self.behind..self.behind + run];
        let dashes = self.run(self.behind + run, 5, |b| b == b'-')?;
        let is_private = name.windows(11).any(|w| w == b"PRIVATE KEY");
        Ok((is_private && dashes == 5).then_some((self.at, self.behind + run + 5, Rest::Block)))
    }

    fn url(&self, safe: &mut usize, text: &str) -> Look<Option<Found>> {
        let looked = self.run(self.behind, AUTHORITY, of_authority);
        let run = match looked {
            Ok(run) => run,
            Err(Ends) => {
                // Behind the colon it may be a password.
                let rest = &self.text[self.behind..];
                *safe = self.behind + rest.iter().position(|b| *b == b':').map_or(rest.len(), |at| at + 1);
                return Err(Ends);
            }
        };
        let authority = &self.text[self.behind..whole(text, self.behind + run)];
        let colon = authority.iter().position(|b| *b == b':');
        let at = authority.iter().rposition(|b| *b == b'@');
        Ok(match (colon, at) {
            (Some(colon), Some(at)) if colon + 1 < at => {
                Some((self.behind + colon + 1, self.behind + at, Rest::Nothing))
            }
            _ => None,
        })
    }

    fn header(&self, safe: &mut usize) -> Look<Option<Found>> {
        let Some(value) = self.assigned(safe)? else { return Ok(None) };
        let scheme = self.run(value, LONGEST_SCHEME + 1, |b| b.is_ascii_alphabetic() || b == b'-')?;
        let name = self.text[value..value + scheme].to_ascii_lowercase();
        if SCHEMES.iter().any(|known| known.as_bytes() == name) {
            let blanks = self.run(value + scheme, FILL, |b| b == b' ')?;
            *safe = value + scheme + blanks;
            let run = self.run(*safe, 4, of_header)?;
            return Ok((blanks > 0 && run == 4).then_some((*safe, *safe + run, Rest::Run(of_header))));
        }
        self.value(value, 8, of_header, of_header)
    }

    fn bearer(&self, safe: &mut usize) -> Look<Option<Found>> {
        if !self.begins_word() {
            return Ok(None);
        }
        *safe = self.text.len();
        let blanks = self.run(self.behind, FILL, |b| b == b' ')?;
        *safe = self.behind + blanks;
        let chars: Chars = |b| key_value(b) || b == b'.';
        if blanks == 0 { Ok(None) } else { self.value(*safe, 16, chars, chars) }
    }

    fn named(&self, safe: &mut usize, least: usize, chars: Chars, rest: Chars) -> Look<Option<Found>> {
        match self.assigned(safe)? {
            Some(value) => self.value(value, least, chars, rest),
            None => Ok(None),
        }
    }

    /// Where the value begins that is assigned to the keyword's name, if one is: `name=`, `"name": "`, `name => '`, `["name"] = b'`.
    fn assigned(&self, safe: &mut usize) -> Look<Option<usize>> {
        // As long as nothing else has come, none of it is a secret.
        *safe = self.text.len();
        let quotes = self.run(self.behind, FILL, |b| b"\"'\\`]".contains(&b))?;
        let blanks = self.run(self.behind + quotes, FILL, blank)?;
        let sign = self.behind + quotes + blanks;
        let signs = self.run(sign, 3, |b| b":=>".contains(&b))?;
        if signs == 0 || signs == 3 || self.text[sign] == b'>' {
            return Ok(None);
        }
        let blanks = self.run(sign + signs, FILL, blank)?;
        let mut value = sign + signs + blanks;
        if self.text.get(value) == Some(&b'b') && b"'\"".contains(&self.byte(value + 1)?) {
            value += 1;
        }
        value += self.run(value, FILL, |b| b"\"'\\`".contains(&b))?;
        *safe = value;
        Ok(Some(value))
    }

    /// A value that is no mere word: letters and digits, and enough different ones.
    fn value(&self, from: usize, least: usize, chars: Chars, rest: Chars) -> Look<Option<Found>> {
        let run = self.run(from, VALUE, chars)?;
        let value = &self.text[from..from + run];
        let is_secret = run >= least && is_mixed(value, least / 2);
        Ok(is_secret.then_some((from, from + run, Rest::Run(rest))))
    }
}

/// From where to where a secret is known by now, and how it goes on.
type Found = (usize, usize, Rest);

/// Letters and digits, of at least so many kinds.
pub(super) fn is_mixed(value: &[u8], kinds: usize) -> bool {
    let mut seen = [false; 256];
    value.iter().for_each(|b| seen[usize::from(*b)] = true);
    value.iter().any(u8::is_ascii_digit)
        && value.iter().any(u8::is_ascii_alphabetic)
        && seen.iter().filter(|seen| **seen).count() >= kinds
}

fn blank(b: u8) -> bool {
    b == b' ' || b == b'\t'
}

fn upperish(b: u8) -> bool {
    b.is_ascii_uppercase() || b.is_ascii_digit()
}

pub(super) fn key_value(b: u8) -> bool {
    word(b) || b"+/=~".contains(&b)
}

fn password_value(b: u8) -> bool {
    b.is_ascii_graphic() && !b"\"'`\\[]{}()<>,;&|".contains(&b)
}

fn of_header(b: u8) -> bool {
    b.is_ascii_graphic() && !b"\"'`\\,;<>[]{}()".contains(&b)
}

fn of_authority(b: u8) -> bool {
    !(b.is_ascii_whitespace() || b.is_ascii_control() || b"/\"'`<>?#\\[]{}()|".contains(&b))
}
