//! Which environment variables of this process a kernel on this machine gets.

use std::ffi::OsString;

use farcell_core::{Cleaner, is_secret_name};

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
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
];

/// Families of names that are passed on.
const PREFIXES: &[&str] =
    &["LC_", "XDG_", "PYTHON", "PYENV_", "CONDA_", "OMP_", "OPENBLAS_", "MKL_", "CUDA_", "FARCELL_TEST_"];

/// The environment of a kernel on this machine: paths, locale, terminal and the like. Nothing that looks like a secret, by its name or by its
/// value: a proxy is passed on, and one with a password is not.
pub fn kernel_environment() -> impl Iterator<Item = (OsString, OsString)> {
    let cleaner = Cleaner::default();
    std::env::vars_os().filter(move |(name, value)| {
        name.to_str().is_some_and(is_listed) && value.to_str().is_none_or(|value| !is_secret(&cleaner, value))
    })
}

fn is_listed(name: &str) -> bool {
    let listed = NAMES.contains(&name) || PREFIXES.iter().any(|p| name.starts_with(p));
    listed && !is_secret_name(name)
}

fn is_secret(cleaner: &Cleaner, value: &str) -> bool {
    cleaner.text(value) != value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_dropped_even_from_listed_families() {
        assert!(is_listed("PATH") && is_listed("LC_ALL") && is_listed("PYTHONPATH"));
        assert!(
            !is_listed("AWS_SECRET_ACCESS_KEY")
                && !is_listed("XDG_AUTH_TOKEN")
                && !is_listed("OPENAI_API_KEY")
        );
        assert!(!is_listed("SOMETHING_ELSE"));
    }

    #[test]
    fn a_proxy_is_passed_on_unless_it_has_a_password() {
        let cleaner = Cleaner::default();
        assert!(is_listed("https_proxy") && is_listed("NO_PROXY"));
        assert!(!is_secret(&cleaner, "http://proxy:3128") && !is_secret(&cleaner, "/usr/bin:/bin"));
        assert!(is_secret(&cleaner, "http://ann:pa55@proxy:3128"));
    }
}
