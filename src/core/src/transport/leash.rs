//! Commands that can be ended from afar: for transports that start a process somewhere and cannot end it themselves.
//!
//! Neither ssh nor `docker exec` ends what it started when its caller has gone. So the command says its process id first, in a line of its own
//! on stderr, and whoever gives it up runs [`END`] with that id. The command stays the same process, so that its status stays its own.

use bytes::{Bytes, BytesMut};

use super::Command;

/// Ends the command whose process id is on stdin, with all of its process group.
pub const END: Command = Command::sh("read -r p; kill -9 -$p 2>/dev/null || kill -9 $p 2>/dev/null; exit 0");

/// Tells the process id and becomes the command.
const TELL: &str = "echo farcell-process $$ >&2; exec /bin/sh -c \"$1\"";
/// The same, and reads what the command has left of its input.
const TELL_AND_DRAIN: &str =
    "echo farcell-process $$ >&2; /bin/sh -c \"$1\"; s=$?; cat >/dev/null 2>&1; exit $s";
const MARK: &[u8] = b"farcell-process ";
/// What a login shell may say before the command begins.
const NOISE: usize = 64 * 1024;

impl Command {
    /// The program and its arguments, as [`Command::argv`], for a command that tells its process id.
    pub fn leashed_argv(&self) -> [&'static str; 5] {
        ["/bin/sh", "-c", TELL, "sh", self.script]
    }

    /// The same for an engine that may lose what a command has said which ends before it has read all of its input. Such a command ends with the end of
    /// its input, and a signal that ended it is a status.
    pub fn leashed_argv_that_drains(&self) -> [&'static str; 5] {
        ["/bin/sh", "-c", TELL_AND_DRAIN, "sh", self.script]
    }

    /// One line for a login shell, as [`Command::login_shell_line`], for a command that tells its process id.
    pub fn leashed_line(&self) -> String {
        format!("exec /bin/sh -c '{TELL}' sh '{}'", self.script)
    }
}

/// Finds the process id in what a leashed command says on stderr, and takes that line out.
#[derive(Debug, Default)]
pub struct Leash {
    /// What may still become the line. Empty once it was found.
    waiting: BytesMut,
    seen: usize,
    process: Option<u64>,
    over: bool,
}

impl Leash {
    /// A leash of a command that has said nothing yet.
    pub fn new() -> Self {
        Leash::default()
    }

    /// The process id, once it was told.
    pub fn process(&self) -> Option<u64> {
        self.process
    }

    /// Takes a piece of stderr; returns what of it, and of earlier pieces, is the command's own.
    pub fn take(&mut self, piece: Bytes) -> Bytes {
        if self.over {
            return piece;
        }
        self.seen += piece.len();
        self.waiting.extend_from_slice(&piece);
        let mut own = BytesMut::new();
        while let Some(end) = self.waiting.iter().position(|b| *b == b'\n') {
            let line = self.waiting.split_to(end + 1);
            match read(&line) {
                Some(process) => {
                    self.process = Some(process);
                    own.unsplit(self.finish());
                    return own.freeze();
                }
                None => own.unsplit(line),
            }
        }
        if self.seen > NOISE {
            own.unsplit(self.finish());
        }
        own.freeze()
    }

    /// Nothing is looked for any more; returns what was held back.
    pub fn finish(&mut self) -> BytesMut {
        self.over = true;
        self.waiting.split()
    }
}

/// The process id of a line. A login shell may have left something without a line's end before it.
fn read(line: &[u8]) -> Option<u64> {
    let at = line.windows(MARK.len()).rposition(|w| w == MARK)?;
    let process = std::str::from_utf8(&line[at + MARK.len()..]).ok()?.trim().parse().ok()?;
    // The groups 0 and 1 mean to `kill` its own one, and everybody.
    (process > 1).then_some(process)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(pieces: &[&'static str]) -> (Option<u64>, String) {
        let mut leash = Leash::new();
        let mut own = BytesMut::new();
        for piece in pieces {
            own.extend_from_slice(&leash.take(Bytes::from_static(piece.as_bytes())));
        }
        own.extend_from_slice(&leash.finish());
        (leash.process(), String::from_utf8(own.to_vec()).unwrap())
    }

    #[test]
    fn the_line_is_found_in_any_pieces_and_all_else_is_kept() {
        let own = |text: &str| text.to_owned();
        assert_eq!(taken(&["farcell-process 7\noops\n"]), (Some(7), own("oops\n")));
        assert_eq!(taken(&["farcell-pro", "cess 7", "1\n", "x"]), (Some(71), own("x")));
        assert_eq!(
            taken(&["hello\nfarcell-process 7\nfarcell-process 8\n"]),
            (Some(7), own("hello\nfarcell-process 8\n"))
        );
        assert_eq!(taken(&["farcell-process 1\n"]), (None, own("farcell-process 1\n")));
        assert_eq!(taken(&["stty: no tty\n", "no such thing"]), (None, own("stty: no tty\nno such thing")));
    }

    #[test]
    fn a_command_is_ended_with_its_children_by_the_id_that_it_tells() {
        use std::io::{BufRead as _, BufReader, Read as _, Write as _};
        use std::os::unix::process::CommandExt as _;
        use std::process::{Command as Process, Stdio};

        let start = |argv: &[&str]| {
            let mut process = Process::new(argv[0]);
            process.args(&argv[1..]).process_group(0);
            process.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            process.spawn().unwrap()
        };
        let mut child = start(&Command::sh("sleep 1000 | cat").leashed_argv());
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        errors.read_line(&mut line).unwrap();
        let mut leash = Leash::new();
        assert!(leash.take(Bytes::from(line.clone())).is_empty());
        assert_eq!(leash.process(), Some(u64::from(child.id())));
        let mut end = start(&END.argv());
        writeln!(end.stdin.take().unwrap(), "{}", child.id()).unwrap();
        assert!(end.wait().unwrap().success());
        // Every process of the pipeline holds this end of it.
        errors.read_to_string(&mut line).unwrap();
        assert!(!child.wait().unwrap().success());
    }
}
