//! Quoting for POSIX shells: the only place where a text becomes part of a command line.

use std::borrow::Cow;

use crate::error::{Error, ErrorKind, Result};

/// Quotes one word for a POSIX shell.
///
/// # Errors
/// A NUL byte cannot be part of any argument and is refused; `shell-escape` would let it through.
pub fn quote(word: &str) -> Result<String> {
    if word.contains('\0') {
        return Err(Error::new(ErrorKind::BadInput, "a NUL byte cannot be part of a command line"));
    }
    Ok(shell_escape::unix::escape(Cow::Borrowed(word)).into_owned())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_quoted_word_reaches_the_shell_as_it_was(word in "[^\0]{0,40}") {
            let script = format!("printf %s {}", quote(&word).unwrap());
            let out = Command::new("sh").arg("-c").arg(script).output().unwrap();
            prop_assert_eq!(String::from_utf8(out.stdout).unwrap(), word);
        }
    }

    #[test]
    fn nul_is_refused() {
        assert_eq!(quote("a\0b").unwrap_err().kind(), ErrorKind::BadInput);
    }
}
