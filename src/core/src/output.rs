//! What comes out of a cell, before anybody sees it: terminal escapes removed, then secrets redacted.
//!
//! The far side has capped it already, so what is cleaned is of bounded size. Escapes go first, as one may stand in the middle of a secret; then
//! the values that the host has registered ([`Secrets`]); then what looks like a secret. Each is one pass, and a [`Cleaner`] does to a whole
//! text what a [`CleanStream`] does to its pieces.

mod clean;
mod events;
mod redact;
mod rules;
mod secrets;
mod shapes;

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::{Map, Value};

use self::clean::Escapes;
pub(crate) use self::events::CleanEvents;
use self::redact::Redactor;
use self::secrets::Values;
pub use self::secrets::{SECRET_WORDS, Secrets, is_secret_name};
use self::shapes::{Shapes, is_mixed, key_value};
use crate::error::Error;
use crate::reply::{ErrorInfo, MimeBundle, Reply};
use crate::tools::{ToolArguments, ToolFailure, ToolOutput};

/// The mark that stands where a text was cut, as `docs/protocol.md` has it: `\n[… 17 bytes omitted …]\n`.
const CUT_BEGINS: &str = "\n[\u{2026} ";
const CUT_ENDS: [&str; 2] = [" bytes omitted \u{2026}]\n", " characters omitted \u{2026}]\n"];
/// How long a word may be that is looked at as the end of a secret.
const LONGEST_WORD: usize = 512;
/// And how short one that is none.
const SHORTEST_WORD: usize = 8;

/// Cleans texts. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Cleaner {
    values: Values,
    is_on: bool,
}

impl Default for Cleaner {
    fn default() -> Self {
        Cleaner::new(&Secrets::new())
    }
}

impl Cleaner {
    /// Removes escapes and redacts what looks like a secret, or is one of these.
    pub fn new(secrets: &Secrets) -> Self {
        Cleaner { values: Values::new(secrets), is_on: true }
    }

    /// Leaves everything as it is.
    pub fn off() -> Self {
        Cleaner { values: Values::new(&Secrets::new()), is_on: false }
    }

    /// False if it leaves everything as it is.
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// For a text that comes in pieces.
    pub fn stream(&self) -> CleanStream {
        CleanStream {
            escapes: Escapes::default(),
            values: Redactor::new(self.values.clone()),
            shapes: Redactor::new(Shapes),
            is_on: self.is_on,
        }
    }

    /// A whole text. Where the far side has cut it, what the cut has left of a secret goes as well.
    pub fn text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if !self.is_on || self.is_plain(text) {
            return Cow::Borrowed(text);
        }
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        let mut is_behind_cut = false;
        loop {
            let cut = find_cut(rest);
            let part = cut.as_ref().map_or(rest, |(mark, _)| &rest[..*mark]);
            let start = if is_behind_cut { self.drop_fragment(part, &mut out) } else { 0 };
            let mut stream = self.stream();
            stream.push_to(&part[start..], &mut out);
            stream.finish_to(cut.is_some(), &mut out);
            let Some((mark, end)) = cut else { return Cow::Owned(out) };
            out.push_str(&rest[mark..end]);
            rest = &rest[end..];
            is_behind_cut = true;
        }
    }

    /// The same in place.
    pub fn clean(&self, text: &mut String) {
        if let Cow::Owned(cleaned) = self.text(text) {
            *text = cleaned;
        }
    }

    /// True if there is nothing to do.
    fn is_plain(&self, text: &str) -> bool {
        text.is_empty()
            || clean::is_plain(text)
                && Redactor::new(self.values.clone()).is_plain(text)
                && Redactor::new(Shapes).is_plain(text)
                && find_cut(text).is_none()
    }

    /// Leaves out what may be the end of a secret whose beginning was cut off; returns how much that was.
    fn drop_fragment(&self, part: &str, out: &mut String) -> usize {
        let block = end_of_block(part);
        let value = self.values.end_of_one(part);
        let (length, label) = match (block, value) {
            (Some(length), _) => (length, "private key"),
            (None, Some((length, name))) => (length, name),
            (None, None) => (end_of_word(part), "cut off"),
        };
        if length > 0 {
            redact::redacted(label, out);
        }
        length
    }

    /// All texts of a value, whatever they stand in.
    pub(crate) fn value(&self, value: &mut Value) {
        match value {
            Value::String(text) => self.clean(text),
            Value::Array(values) => values.iter_mut().for_each(|value| self.value(value)),
            Value::Object(fields) => self.fields(fields),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn fields(&self, fields: &mut Map<String, Value>) {
        fields.values_mut().for_each(|value| self.value(value));
        let dirty = fields.keys().filter(|key| !self.is_clean(key));
        for key in dirty.cloned().collect::<Vec<_>>() {
            if let Some(value) = fields.remove(&key) {
                fields.insert(self.text(&key).into_owned(), value);
            }
        }
    }

    /// True if there is nothing in any of its texts.
    fn is_clean_value(&self, value: &Value) -> bool {
        match value {
            Value::String(text) => self.is_clean(text),
            Value::Array(values) => values.iter().all(|value| self.is_clean_value(value)),
            Value::Object(fields) => self.are_clean(fields),
            Value::Null | Value::Bool(_) | Value::Number(_) => true,
        }
    }

    fn are_clean(&self, fields: &Map<String, Value>) -> bool {
        fields.iter().all(|(key, value)| self.is_clean(key) && self.is_clean_value(value))
    }

    fn is_clean(&self, text: &str) -> bool {
        matches!(self.text(text), Cow::Borrowed(_))
    }

    /// The texts of a display or result; images and the like are no text.
    pub(crate) fn bundle(&self, bundle: &mut MimeBundle) {
        if self.is_on {
            bundle.iter_mut().filter(|(mime, _)| is_text(mime)).for_each(|(_, value)| self.value(value));
        }
    }

    /// What a cell asked of a tool. The tool gets it as it is, and as a rule so does everybody: it may be long, and is copied only to be changed.
    pub(crate) fn arguments(&self, arguments: &mut Arc<ToolArguments>) {
        if !self.are_clean(arguments) {
            self.fields(Arc::make_mut(arguments));
        }
    }

    /// What a tool answered, as others than the cell are told.
    pub(crate) fn outcome(&self, outcome: &mut Result<ToolOutput, ToolFailure>) {
        if !self.is_on {
            return;
        }
        match outcome {
            Ok(output) => {
                if let Ok(mut value) = serde_json::from_str(output.json())
                    && !self.is_clean_value(&value)
                {
                    self.value(&mut value);
                    *output = value.into();
                }
            }
            Err(failure) => {
                self.clean(&mut failure.name);
                self.clean(&mut failure.message);
            }
        }
    }

    /// What went wrong.
    pub(crate) fn error_info(&self, error: &mut ErrorInfo) {
        self.clean(&mut error.name);
        self.clean(&mut error.message);
        error.traceback.iter_mut().for_each(|text| self.clean(text));
        error.hint.iter_mut().for_each(|text| self.clean(text));
    }

    /// Everything of a reply that the far side has said.
    pub(crate) fn reply(&self, reply: &mut Reply) {
        if !self.is_on {
            return;
        }
        self.clean(&mut reply.stdout);
        self.clean(&mut reply.stderr);
        reply.result.iter_mut().for_each(|bundle| self.bundle(bundle));
        reply.displays.iter_mut().for_each(|bundle| self.bundle(bundle));
        reply.error.iter_mut().for_each(|error| self.error_info(error));
        for error in &mut reply.tools.errors {
            self.clean(&mut error.name);
            self.clean(&mut error.message);
        }
        reply.kernel.note.iter_mut().for_each(|text| self.clean(text));
        reply.output.spill.iter_mut().for_each(|text| self.clean(text));
        reply.signal.iter_mut().for_each(|text| self.clean(text));
    }

    /// An error's texts: they may hold what a target has said.
    pub fn error(&self, error: Error) -> Error {
        error.map_texts(|text| self.clean(text))
    }
}

/// Cleans one text that comes in pieces.
///
/// What may be the beginning of a secret is held back until more has come. When nothing comes for a moment, [`CleanStream::let_go`] shows what is no
/// secret by itself: `Password: ` is seen, and what is typed behind it is not.
#[derive(Debug, Clone)]
pub struct CleanStream {
    escapes: Escapes,
    values: Redactor<Values>,
    shapes: Redactor<Shapes>,
    is_on: bool,
}

impl CleanStream {
    /// The next piece, as far as it is decided.
    pub fn push(&mut self, piece: &str) -> String {
        if !self.is_on {
            return piece.to_owned();
        }
        let mut out = String::with_capacity(piece.len());
        self.push_to(piece, &mut out);
        out
    }

    /// What is held back and can be shown without harm.
    pub fn let_go(&mut self) -> String {
        let (mut shown, mut out) = (String::new(), String::new());
        self.values.let_go(&mut shown);
        self.shapes.push(&shown, &mut out);
        self.shapes.let_go(&mut out);
        out
    }

    /// Whether [`CleanStream::let_go`] would show something.
    pub fn can_let_go(&self) -> bool {
        self.values.can_let_go() || self.shapes.can_let_go()
    }

    /// The rest. With `is_cut` the text went on, and what it was cut off in the middle of counts as a secret if it may have been one.
    pub fn finish(&mut self, is_cut: bool) -> String {
        let mut out = String::new();
        self.finish_to(is_cut, &mut out);
        out
    }

    fn push_to(&mut self, piece: &str, out: &mut String) {
        let (mut plain, mut unknown) = (String::new(), String::new());
        self.escapes.push(piece, &mut plain);
        self.values.push(&plain, &mut unknown);
        self.shapes.push(&unknown, out);
    }

    fn finish_to(&mut self, is_cut: bool, out: &mut String) {
        let mut unknown = String::new();
        self.values.finish(is_cut, &mut unknown);
        self.shapes.push(&unknown, out);
        self.shapes.finish(is_cut, out);
        self.escapes = Escapes::default();
    }
}

/// Forms that are text, whatever they are the text of.
fn is_text(mime: &str) -> bool {
    let kinds = ["image/", "audio/", "video/", "application/pdf", "application/octet-stream"];
    mime.ends_with("+xml") || !kinds.iter().any(|kind| mime.starts_with(kind))
}

/// Where the first mark of a cut begins and ends.
fn find_cut(text: &str) -> Option<(usize, usize)> {
    let mut from = 0;
    while let Some(at) = memchr::memmem::find(&text.as_bytes()[from..], CUT_BEGINS.as_bytes()) {
        let begin = from + at;
        let number = begin + CUT_BEGINS.len();
        let digits = text.as_bytes()[number..].iter().take_while(|b| b.is_ascii_digit()).count();
        let behind = &text[number + digits..];
        let end = CUT_ENDS.iter().find(|end| digits > 0 && behind.starts_with(**end));
        if let Some(end) = end {
            return Some((begin, number + digits + end.len()));
        }
        from = number;
    }
    None
}

/// How much of the beginning is the end of a private key.
fn end_of_block(part: &str) -> Option<usize> {
    let (length, is_ended) = redact::block(part, redact::LONGEST_BLOCK, true);
    let block = &part[..length];
    let is_end = is_ended && block.ends_with("-----") && block.contains("PRIVATE KEY");
    (is_end && !block.contains("-----BEGIN")).then_some(length)
}

/// How much of the beginning is one word that looks like the end of a secret.
fn end_of_word(part: &str) -> usize {
    let bytes = part.as_bytes();
    let length = bytes.iter().take(LONGEST_WORD).take_while(|b| key_value(**b) || **b == b'.').count();
    let looks_secret = length >= SHORTEST_WORD && is_mixed(&bytes[..length], SHORTEST_WORD / 2);
    // A password in front of its host.
    let is_password = length > 0 && bytes.get(length) == Some(&b'@');
    if looks_secret || is_password { length } else { 0 }
}

#[cfg(test)]
mod tests;
