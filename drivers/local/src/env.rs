//! Which environment variables of this process a kernel on this machine gets.

use std::ffi::OsString;

/// Names that are passed on.
const NAMES: &[&str] = &[
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "TZ",
    "TERM",
    "COLORTERM",
    "NO_COLOR",
    "COLUMNS",
    "LINES",
    "TMPDIR",
    "TMP",
    "TEMP",
    "DISPLAY",
    "WAYLAND_DISPLAY",
    "VIRTUAL_ENV",
    "LD_LIBRARY_PATH",
    "MPLBACKEND",
    "MPLCONFIGDIR",
    "JAVA_HOME",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
];

/// Families of names that are passed on.
const PREFIXES: &[&str] = &["LC_", "XDG_", "PYTHON", "PYENV_", "CONDA_", "OMP_", "CUDA_", "FARCELL_TEST_"];

/// What makes a name look like that of a secret, wherever it stands.
const SECRET: &[&str] = &[
    "KEY",
    "TOKEN",
    "SECRET",
    "PASSWORD",
    "PASSWD",
    "PASSPHRASE",
    "CREDENTIAL",
    "AUTH",
    "DSN",
    "WEBHOOK",
    "BEARER",
    "COOKIE",
    "PRIVATE",
];

/// The environment of a kernel on this machine: paths, locale, terminal and the like, and nothing that looks like a secret.
pub fn kernel_environment() -> impl Iterator<Item = (OsString, OsString)> {
    std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_passed))
}

fn is_passed(name: &str) -> bool {
    let listed = NAMES.contains(&name) || PREFIXES.iter().any(|p| name.starts_with(p));
    let upper = name.to_ascii_uppercase();
    listed && !SECRET.iter().any(|s| upper.contains(s))
}

#[cfg(test)]
mod tests {
    use super::is_passed;

    #[test]
    fn secrets_are_dropped_even_from_listed_families() {
        assert!(is_passed("PATH") && is_passed("LC_ALL") && is_passed("PYTHONPATH"));
        assert!(
            !is_passed("AWS_SECRET_ACCESS_KEY")
                && !is_passed("XDG_AUTH_TOKEN")
                && !is_passed("OPENAI_API_KEY")
        );
        assert!(!is_passed("SOMETHING_ELSE"));
    }
}
