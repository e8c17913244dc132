//! The ssh config, for machines without an ssh program that could be asked: `Host`, `Include`, and plain options. `Match` is left out, but for `Match all`.

use std::path::{Path, PathBuf};

use super::pattern::{list_matches, matches};
use crate::address::Address;
use crate::failure::Failure;

/// How deep files may include each other, as with ssh.
const DEEP: usize = 16;
/// What adds to what an earlier line says; of all others the first one counts.
const MANY: [&str; 2] = ["identityfile", "certificatefile"];

/// What the config says about a host, a line each, as `ssh -G` prints it.
pub(super) fn said(address: &Address) -> Result<String, Failure> {
    let ssh_dir = std::env::home_dir().map(|home| home.join(".ssh"));
    let mut reader = Reader { host: &address.host, ssh_dir: ssh_dir.clone(), said: Vec::new() };
    match &address.config {
        Some(path) => reader.read(path, &mut true, 0)?,
        None => {
            let own = ssh_dir.map(|dir| dir.join("config"));
            for path in own.into_iter().chain([PathBuf::from("/etc/ssh/ssh_config")]) {
                if path.exists() {
                    reader.read(&path, &mut true, 0)?;
                }
            }
        }
    }
    Ok(reader.said.iter().map(|(name, value)| format!("{name} {value}\n")).collect())
}

struct Reader<'a> {
    host: &'a str,
    ssh_dir: Option<PathBuf>,
    said: Vec<(String, String)>,
}

impl Reader<'_> {
    /// Reads a file. `applies` is whether the part that we are in is about our host.
    fn read(&mut self, path: &Path, applies: &mut bool, depth: usize) -> Result<(), Failure> {
        let bad = |why: String| {
            Failure::lasting(format!("{}: {why}", path.display())).hint("the ssh config has a mistake")
        };
        if depth > DEEP {
            return Err(bad("files include each other without end".to_owned()));
        }
        let text = std::fs::read_to_string(path).map_err(|e| bad(e.to_string()))?;
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (name, value) = option(line);
            match name.as_str() {
                "host" => *applies = list_matches(words(value).iter().map(String::as_str), self.host),
                "match" => {
                    *applies = value.eq_ignore_ascii_case("all");
                    if !*applies {
                        tracing::warn!(file = %path.display(), line, "without an ssh program this part of the config is left out");
                    }
                }
                "include" => {
                    let files: Vec<_> = words(value).iter().flat_map(|name| self.files(name)).collect();
                    for file in files {
                        // What is under a Host of that file ends with it.
                        let mut inner = *applies;
                        self.read(&file, &mut inner, depth + 1)?;
                    }
                }
                _ if *applies => self.say(name, value),
                _ => {}
            }
        }
        Ok(())
    }

    fn say(&mut self, name: String, value: &str) {
        if MANY.contains(&name.as_str()) || !self.said.iter().any(|(said, _)| *said == name) {
            let value = value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).unwrap_or(value);
            self.said.push((name, value.to_owned()));
        }
    }

    /// The files that an `Include` names, the last part of their path perhaps a pattern.
    fn files(&self, name: &str) -> Vec<PathBuf> {
        let path = match (name.strip_prefix("~/"), &self.ssh_dir) {
            (Some(rest), Some(dir)) => dir.parent().unwrap_or(dir).join(rest),
            (None, Some(dir)) => dir.join(name),
            (_, None) => PathBuf::from(name),
        };
        let (Some(dir), Some(pattern)) = (path.parent(), path.file_name().and_then(|name| name.to_str()))
        else {
            return Vec::new();
        };
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        let mut found: Vec<_> = entries
            .filter(|entry| entry.file_name().to_str().is_some_and(|name| matches(pattern, name)))
            .map(|entry| entry.path())
            .collect();
        found.sort();
        found
    }
}

/// A line's option, in small letters, and what it says: `Port 22`, `Port=22`.
fn option(line: &str) -> (String, &str) {
    let end = line.find(|c: char| c.is_whitespace() || c == '=').unwrap_or(line.len());
    let (name, value) = line.split_at(end);
    let value = value.trim_start();
    let value = value.strip_prefix('=').unwrap_or(value).trim();
    (name.to_ascii_lowercase(), value)
}

/// The words of a value, of which some may stand in quotes.
pub(super) fn words(value: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut rest = value.trim_start();
    while !rest.is_empty() {
        let (word, behind) = match rest.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
            None => rest.split_once(char::is_whitespace).unwrap_or((rest, "")),
        };
        words.push(word.to_owned());
        rest = behind.trim_start();
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(host: &str, text: &str) -> String {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("config");
        std::fs::write(&config, text.replace("DIR", dir.path().to_str().unwrap())).unwrap();
        std::fs::write(dir.path().join("a.inc"), "Host box\n\tUser included\n").unwrap();
        let target = format!("ssh:{host}?config={}", config.display());
        said(&crate::address::read(&target.parse().unwrap()).unwrap().0).unwrap()
    }

    #[test]
    fn what_is_said_first_counts_and_keys_add_up() {
        let text = "# a comment\nHost other\n Port 1\nHost b*  !bad\n HostName=10.0.0.1\n\tPort 2222\n IdentityFile \"/a b\"\nHost *\n Port 3\n IdentityFile ~/k\n User u\n";
        assert_eq!(
            asked("box", text),
            "hostname 10.0.0.1\nport 2222\nidentityfile /a b\nidentityfile ~/k\nuser u\n"
        );
        assert_eq!(asked("bad", text), "port 3\nidentityfile ~/k\nuser u\n");
    }

    #[test]
    fn files_are_included_and_matches_left_out() {
        let text =
            "Include DIR/*.inc\nMatch exec \"true\"\n Port 9\nMatch all\n User late\n Compression yes\n";
        assert_eq!(asked("box", text), "user included\ncompression yes\n");
        assert_eq!(asked("web", text), "user late\ncompression yes\n");
    }

    #[test]
    fn a_file_that_includes_itself_is_an_end() {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("config");
        std::fs::write(&config, format!("Include {}\n", config.display())).unwrap();
        let target = format!("ssh:box?config={}", config.display());
        let failure = said(&crate::address::read(&target.parse().unwrap()).unwrap().0).unwrap_err();
        assert!(failure.message.contains("without end"), "{failure:?}");
    }

    #[test]
    fn words_may_be_quoted() {
        assert_eq!(words("a  \"b c\" d"), ["a", "b c", "d"]);
    }
}
