//! Finding our frames in what a command printed: banners before them, noise behind them, an end that came too early.

use bytes::Bytes;
use serde_json::Value;

use crate::id::Nonce;

/// What a command's stdout turned out to be.
#[derive(Debug, PartialEq)]
pub enum Answer {
    /// A whole answer.
    Whole {
        /// The chunks of output records before it.
        chunks: Vec<Bytes>,
        /// The answer itself.
        value: Value,
        /// The same as it came.
        text: Bytes,
        /// Where it ends in what was printed; the line break that closes it comes behind.
        end: usize,
    },
    /// The target has no usable Python; the text says what was tried.
    NoPython(String),
    /// It began, and its end is missing or damaged.
    Broken,
    /// It is whole, and no JSON that we can read.
    Nonsense(String),
    /// Nothing of ours is in it.
    Absent,
}

/// Reads the answer in `stdout`.
pub fn parse(nonce: &Nonce, stdout: &Bytes) -> Answer {
    let mark = nonce.as_str().as_bytes();
    let mut chunks = Vec::new();
    let mut at = 0;
    let mut seen = false;
    while let Some(found) = find(&stdout[at..], mark) {
        seen = true;
        let head_at = at + found + mark.len();
        let Some(line_len) = stdout[head_at..].iter().position(|b| *b == b'\n') else {
            return Answer::Broken;
        };
        let line = String::from_utf8_lossy(&stdout[head_at..head_at + line_len]);
        let mut words = line.split_ascii_whitespace();
        let payload_at = head_at + line_len + 1;
        let kind = words.next();
        if kind == Some("no-python") {
            return Answer::NoPython(words.collect::<Vec<_>>().join(" "));
        }
        let length = words.next().and_then(|n| n.parse::<usize>().ok());
        let (Some(kind), Some(length)) = (kind, length) else { return Answer::Broken };
        let Some(end) = payload_at.checked_add(length).filter(|end| *end <= stdout.len()) else {
            return Answer::Broken;
        };
        let payload = stdout.slice(payload_at..end);
        match kind {
            "out" => chunks.push(payload),
            "json" => {
                return match serde_json::from_slice(&payload) {
                    Ok(value) => Answer::Whole { chunks, value, text: payload, end },
                    Err(e) => Answer::Nonsense(e.to_string()),
                };
            }
            _ => return Answer::Broken,
        }
        at = end;
    }
    if seen { Answer::Broken } else { Answer::Absent }
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    const NONCE: &str = "0123456789abcdef0123456789abcdef";

    fn answer(text: &[u8]) -> Answer {
        parse(&Nonce::fixed(NONCE), &Bytes::copy_from_slice(text))
    }

    #[test]
    fn an_answer_is_found_between_noise() {
        let text = format!("Welcome!\nlast login{NONCE} out 3\na\nb\n{NONCE} json 10\n{{\"ok\":true}}\nbye");
        // The length counts bytes of the payload alone.
        let text = text.replace("json 10", "json 11");
        let (chunks, value) = (vec![Bytes::from_static(b"a\nb")], json!({"ok": true}));
        let (end, json) = (text.len() - 4, Bytes::from_static(b"{\"ok\":true}"));
        assert_eq!(answer(text.as_bytes()), Answer::Whole { chunks, value, text: json, end });
    }

    #[test]
    fn no_python_says_what_was_tried() {
        let text = format!("motd\n{NONCE} no-python python3 python=2.7\n");
        assert_eq!(answer(text.as_bytes()), Answer::NoPython("python3 python=2.7".to_owned()));
    }

    #[test]
    fn without_our_mark_it_is_absent() {
        assert_eq!(answer(b"sh: not found\n"), Answer::Absent);
        assert_eq!(answer(b""), Answer::Absent);
    }

    proptest! {
        #[test]
        fn an_answer_cut_short_is_broken_never_wrong(cut in 0usize..200, payload in "[a-z\n]{0,60}") {
            let json = json!({"ok": true, "text": payload}).to_string();
            let text = format!("{NONCE} out {}\n{payload}\n{NONCE} json {}\n{json}\n", payload.len(), json.len());
            let cut = cut.min(text.len());
            match answer(&text.as_bytes()[..cut]) {
                Answer::Whole { chunks, value, .. } => {
                    prop_assert!(cut >= text.len() - 1);
                    prop_assert_eq!(&chunks[0][..], payload.as_bytes());
                    prop_assert_eq!(value["ok"].as_bool(), Some(true));
                }
                Answer::Broken => prop_assert!(cut < text.len() - 1),
                Answer::Absent => prop_assert!(cut < NONCE.len()),
                Answer::NoPython(_) | Answer::Nonsense(_) => prop_assert!(false),
            }
        }
    }
}
