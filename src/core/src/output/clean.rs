//! Terminal escapes out of text, in one pass.
//!
//! What goes: every sequence of ECMA-48, begun by ESC or by its one-character form of the C1 range (`CSI`, `OSC`, `DCS`, `SOS`, `PM`, `APC` with
//! all that belongs to them; other ESC and C1 controls), and all other control characters but tab, newline and carriage return. A
//! carriage return stays because progress bars live of it; backspace goes, what it would have rubbed out stays.
//!
//! A machine of our own, because those of the crates at hand (vte, and strip-ansi-escapes and anstream with it) are as linear but have an
//! unterminated OSC swallow all that follows. Here a string ends with its terminator (BEL, ST, CAN, SUB), with the next ESC, with its line, or
//! after [`LONGEST`] bytes; what comes behind is text again.

/// How long one sequence may be, in bytes: titles, links and the clipboard fit. An image of a terminal does not, and what is beyond shows as text.
const LONGEST: usize = 4096;

/// Removes escapes from text that comes in pieces. It holds nothing back: what belongs to a sequence is gone at once.
#[derive(Debug, Clone, Default)]
pub(super) struct Escapes {
    state: State,
    /// Bytes of the current sequence.
    length: usize,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Text,
    /// Behind ESC.
    Escape,
    /// Behind ESC and intermediate characters.
    Intermediate,
    /// In a control sequence: parameters, then one final character.
    Csi,
    /// In a string: OSC, DCS, SOS, PM or APC.
    String,
    /// Behind an ESC in a string: the first half of ST, or of another sequence.
    StringEscape,
}

/// Where a character leaves the machine.
enum Next {
    /// It belongs to the sequence.
    Taken(State),
    /// The sequence is over, and the character does not belong to it.
    Again(State),
}

impl Escapes {
    /// Appends what is left of `text`.
    pub(super) fn push(&mut self, text: &str, out: &mut String) {
        let mut rest = text;
        loop {
            if self.state == State::Text {
                let plain = plain_len(rest.as_bytes());
                out.push_str(&rest[..plain]);
                rest = &rest[plain..];
            }
            let Some(c) = rest.chars().next() else { return };
            match self.next(c) {
                Next::Taken(state) => {
                    self.enter(state, c.len_utf8());
                    rest = &rest[c.len_utf8()..];
                }
                // In text it is looked at anew; a character that is none of a sequence there is copied by `plain_len`.
                Next::Again(state) => self.enter(state, 0),
            }
        }
    }

    fn enter(&mut self, state: State, taken: usize) {
        self.length += taken;
        self.state = if self.length > LONGEST { State::Text } else { state };
        if self.state == State::Text {
            self.length = 0;
        }
    }

    fn next(&self, c: char) -> Next {
        use Next::{Again, Taken};
        match (self.state, c) {
            (State::Text | State::Csi | State::Intermediate | State::Escape, '\x1b') => Taken(State::Escape),
            (State::Text, '\u{9b}') | (State::Escape, '[') => Taken(State::Csi),
            (State::Text, '\u{90}' | '\u{98}' | '\u{9d}' | '\u{9e}' | '\u{9f}')
            | (State::Escape, ']' | 'P' | 'X' | '^' | '_') => Taken(State::String),
            // Any other control character.
            (State::Text, _) => Taken(State::Text),
            (State::Escape | State::Intermediate, ' '..='/') => Taken(State::Intermediate),
            (State::Escape | State::Intermediate, '0'..='~') | (State::Csi, '@'..='~') => Taken(State::Text),
            (State::Csi, ' '..='?') => Taken(State::Csi),
            (State::Escape | State::Intermediate | State::Csi, _) => Again(State::Text),
            (State::String, '\x07' | '\u{9c}' | '\x18' | '\x1a') | (State::StringEscape, '\\') => {
                Taken(State::Text)
            }
            (State::String, '\x1b') => Taken(State::StringEscape),
            (State::String, '\n' | '\r') => Again(State::Text),
            (State::String, _) => Taken(State::String),
            (State::StringEscape, _) => Again(State::Escape),
        }
    }
}

/// Whether there is nothing in a text to be removed.
pub(super) fn is_plain(text: &str) -> bool {
    plain_len(text.as_bytes()) == text.len()
}

/// How many bytes there are before the first control character.
fn plain_len(bytes: &[u8]) -> usize {
    const AT_ONCE: usize = 64;
    let mut at = 0;
    // Without a branch for each byte, which makes it as quick as memory.
    for block in bytes.chunks_exact(AT_ONCE) {
        if block.iter().fold(false, |any, b| any | needs_a_look(*b)) {
            break;
        }
        at += AT_ONCE;
    }
    while let Some(b) = bytes.get(at) {
        // C1 controls are C2 80 to C2 9F; a text never ends between the two bytes.
        let is_control =
            if *b == 0xc2 { bytes.get(at + 1).is_some_and(|b| *b < 0xa0) } else { needs_a_look(*b) };
        if is_control {
            return at;
        }
        at += 1;
    }
    at
}

fn needs_a_look(b: u8) -> bool {
    (b < b' ') & (b != b'\n') & (b != b'\t') & (b != b'\r') | (b == 0x7f) | (b == 0xc2)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cleaned(text: &str) -> String {
        let mut out = String::new();
        Escapes::default().push(text, &mut out);
        out
    }

    #[test]
    fn sequences_of_every_kind_go_and_text_stays() {
        for (text, left) in [
            ("\x1b[1;31mred\x1b[0m", "red"),
            ("\x1b]0;title\x07a\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\b", "alinkb"),
            ("a\x1bPq#0;2\x1b\\b\x1b_G\x1b\\c\x1b^p\x1b\\d\x1bXs\x1b\\e", "abcde"),
            ("\u{9b}31mred\u{9d}0;t\u{9c}x\u{85}y", "redxy"),
            ("\x1b(B\x1b7\x1b=a\x1b#8b", "ab"),
            ("a\tb\r\nc\x08\x07\x00\x7fd\u{e9}\u{c2}\u{a0}", "a\tb\r\ncd\u{e9}\u{c2}\u{a0}"),
            ("\x1b[31", ""),
            ("\x1b[3\n1m", "\n1m"),
            ("\x1b\u{e9}", "\u{e9}"),
        ] {
            assert_eq!(cleaned(text), left, "{text:?}");
            assert_eq!(is_plain(text), text == left, "{text:?}");
        }
    }

    #[test]
    fn a_string_without_an_end_takes_no_more_than_its_line() {
        assert_eq!(cleaned("a\x1b]0;never ended\nall of this"), "a\nall of this");
        assert_eq!(cleaned("\x1b]0;one\x1b[1mtwo"), "two");
        let long = format!("\x1b]0;{}end", "x".repeat(3 * LONGEST));
        let left = cleaned(&long);
        assert!(left.ends_with("xend") && left.len() > 2 * LONGEST && left.len() < 3 * LONGEST);
        assert_eq!(cleaned(&"\x1b]".repeat(1000)), "");
    }

    proptest! {
        #[test]
        fn nothing_that_a_terminal_obeys_is_left(text in "[\\x00-\\x1f\\x7f\u{80}-\u{9f}\u{e9}\\[\\]P_0;m\\\\a ]{0,200}", cut in 0usize..200) {
            let whole = cleaned(&text);
            prop_assert!(whole.chars().all(|c| !c.is_control() || "\t\n\r".contains(c)));
            prop_assert!(is_plain(&whole));
            let cut = (0..=cut.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap();
            let (mut escapes, mut pieces) = (Escapes::default(), String::new());
            escapes.push(&text[..cut], &mut pieces);
            escapes.push(&text[cut..], &mut pieces);
            prop_assert_eq!(pieces, whole);
        }

        #[test]
        fn text_without_controls_is_left_alone(text in "\\PC{0,300}") {
            prop_assert_eq!(cleaned(&text), text);
        }
    }
}
