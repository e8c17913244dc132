//! The patterns of ssh's files: `*`, `?`, and `!` in front of what shall not match.

/// True if `text` is what `pattern` describes, without regard to case.
pub(super) fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.to_ascii_lowercase().into_bytes(), text.to_ascii_lowercase().into_bytes());
    let (mut p, mut t) = (0, 0);
    // Where the last star stood, and from which byte of the text on it has to match.
    let mut star = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(&c) if c == b'?' || c == text[t] => {
                p += 1;
                t += 1;
            }
            _ => match &mut star {
                Some((at, from)) => {
                    *from += 1;
                    (p, t) = (*at + 1, *from);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == b'*')
}

/// True if one of the patterns matches, and none that is negated.
pub(super) fn list_matches<'a>(patterns: impl IntoIterator<Item = &'a str>, text: &str) -> bool {
    let mut found = false;
    for pattern in patterns {
        match pattern.strip_prefix('!') {
            Some(negated) if matches(negated, text) => return false,
            Some(_) => {}
            None => found |= matches(pattern, text),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_ssh_has_them() {
        for (pattern, text, expected) in [
            ("box", "BOX", true),
            ("*", "", true),
            ("*.example.net", "a.b.example.net", true),
            ("*.example.net", "example.net", false),
            ("b?x*", "box", true),
            ("a*b*c", "aXbXbc", true),
            ("a*b", "abc", false),
            ("[*.example.net]:999", "[a.example.net]:999", true),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
        assert!(list_matches(["*", "!web*"], "box"));
        assert!(!list_matches(["*", "!web*"], "web1"));
        assert!(!list_matches(["!web*"], "box"), "a negation alone matches nothing");
    }
}
