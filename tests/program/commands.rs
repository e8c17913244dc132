//! Each subcommand at its work.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use farcell_testbed::{Bare, available};
use serde_json::json;

use super::harness::{Farcell, document, finish, is_alive, wait_until};

#[test]
fn variables_survive_from_process_to_process() {
    let farcell = Farcell::new();
    assert_eq!(farcell.ok(&["run", "x = 41"]), "");
    assert_eq!(farcell.ok(&["run", "x + 1"]), "42");
    let file = farcell.dir().join("job.py");
    std::fs::write(&file, "print('from a file', x)").unwrap();
    assert_eq!(farcell.ok(&["run", "-f", file.to_str().unwrap()]), "from a file 41");
    let mut child =
        farcell.command(&["run", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"print('from stdin', x)").unwrap();
    assert_eq!(finish(child).stdout, "from stdin 41\n");
}

#[test]
fn a_detached_cell_is_fetched_by_another_process() {
    let farcell = Farcell::new();
    farcell.ok(&["run", "import time, pathlib"]);
    let go = farcell.dir().join("go");
    let code =
        format!("print('a')\nwhile not pathlib.Path({:?}).exists(): time.sleep(0.01)\n7", go.display());
    let sent = farcell.json(&["run", "--detach", &code]);
    assert_eq!(sent["cell"]["number"], 2, "{sent}");
    let early = farcell.farcell(&["result"]);
    assert_eq!(early.code, Some(124), "{early:#?}");
    assert!(early.stderr.contains("cell 2 has been running"), "{early:#?}");
    std::fs::write(&go, "").unwrap();
    let ran = farcell.farcell(&["result", "--wait"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "a\n7\n"), "{ran:#?}");
    // It can be fetched again until a later cell has been run after its delivery.
    assert_eq!(farcell.farcell(&["result", "2"]).code, Some(0));
    farcell.ok(&["run", "1"]);
    farcell.ok(&["run", "2"]);
    assert_eq!(farcell.farcell(&["result", "2"]).code, Some(1));
}

#[test]
fn output_streams_as_it_is_printed() {
    let farcell = Farcell::new();
    farcell.ok(&["run", "import time, pathlib, sys"]);
    let go = farcell.dir().join("go");
    let code = format!(
        "print('first'); print('err', file=sys.stderr)\nwhile not pathlib.Path({:?}).exists(): time.sleep(0.01)\nprint('second')",
        go.display()
    );
    let mut child = farcell.start(&["run", &code]);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "first", "before the cell has ended");
    std::fs::write(&go, "").unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "second");
    let ran = finish(child);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), "err\n"));
}

#[test]
fn ps_tells_what_kernels_do() {
    let farcell = Farcell::new();
    assert_eq!(farcell.json(&["ps"]), json!({"kernels": []}));
    farcell.ok(&["run", "-s", "busy", "import time"]);
    farcell.ok(&["run", "-s", "quiet", "1"]);
    farcell.ok(&["run", "-s", "busy", "--detach", "time.sleep(600)"]);
    wait_until("it runs", || farcell.ok(&["ps"]).contains("running cell 2"));
    let table = farcell.ok(&["ps"]);
    assert!(table.starts_with("SESSION") && table.lines().count() == 3, "{table}");
    assert!(table.lines().any(|l| l.starts_with("quiet") && l.contains("idle")), "{table}");
    let known = farcell.command(&["ps", "--json"]).output().unwrap();
    assert!(known.status.success());
    assert!(farcell.ok(&["interrupt", "-s", "busy"]).contains("interrupted"));
    assert_eq!(farcell.farcell(&["result", "--wait", "-s", "busy"]).code, Some(130));
    assert_eq!(farcell.farcell(&["interrupt", "-s", "busy"]).code, Some(1), "nothing runs any more");
}

#[test]
fn logs_follow_a_running_cell() {
    let farcell = Farcell::new();
    farcell.ok(&["run", "import time, pathlib"]);
    let go = farcell.dir().join("go");
    let code = format!(
        "print('one')\nwhile not pathlib.Path({:?}).exists(): time.sleep(0.01)\nprint('two')",
        go.display()
    );
    farcell.ok(&["run", "--detach", &code]);
    wait_until("there is output", || farcell.ok(&["logs"]) == "one");
    let mut follower = farcell.start(&["logs", "-f"]);
    let mut stdout = follower.stdout.take().unwrap();
    let mut first = [0; 4];
    stdout.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"one\n");
    std::fs::write(&go, "").unwrap();
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    assert_eq!((rest.as_str(), finish(follower).code), ("two\n", Some(0)));
    assert!(farcell.ok(&["logs", "--supervisor"]).contains("20"), "a dated line");
    // Looking at the output is not fetching the reply.
    farcell.ok(&["run", "None"]);
    farcell.ok(&["run", "None"]);
    assert_eq!(farcell.ok(&["result", "2"]), "one\ntwo");
    // A cell that prints nothing has an empty log.
    assert_eq!(farcell.ok(&["logs", "--cell", "4"]), "");
}

#[test]
fn all_of_a_long_output_can_be_fetched() {
    let farcell = Farcell::new();
    let reply = farcell.json(&["run", "--max-output", "1K", "for i in range(100_000): print(i)"]);
    assert!(reply["stdout"].as_str().unwrap().len() < 1200);
    assert!(reply["output"]["spill"].is_string(), "{reply}");
    let all = farcell.ok(&["logs"]);
    assert_eq!(all.lines().count(), 100_000);
    assert!(all.ends_with("99999"));
}

#[test]
fn reset_and_stop() {
    let farcell = Farcell::new();
    farcell.ok(&["run", "x = 1"]);
    let pid = farcell.supervisor("default");
    assert!(farcell.ok(&["reset"]).starts_with("reset"));
    assert_eq!(farcell.ok(&["run", "'x' in dir()"]), "False");
    farcell.ok(&["run", "x = 1"]);
    assert_eq!(farcell.ok(&["run", "--reset", "'x' in dir()"]), "False");
    assert!(is_alive(pid), "the kernel stays");
    assert!(farcell.ok(&["stop"]).starts_with("stopped"));
    wait_until("it has ended", || !is_alive(pid));
    assert_eq!(farcell.farcell(&["stop"]).code, Some(1), "there is nothing left to stop");
    farcell.ok(&["run", "-s", "a", "1"]);
    farcell.ok(&["run", "-s", "b", "1"]);
    assert_eq!(farcell.json(&["stop", "--all"]), json!({"stopped": 2}));
}

#[test]
fn doctor_says_whether_a_target_is_fit() {
    let farcell = Farcell::new();
    let base = format!("local:?dir={}", farcell.base().display());
    let found = farcell.json(&["doctor", &base]);
    assert_eq!(found["fit"], true, "{found}");
    assert!(found["round_trip_ms"].as_f64().unwrap() > 0.0);
    let whats: Vec<_> =
        found["findings"].as_array().unwrap().iter().map(|f| f["what"].as_str().unwrap()).collect();
    for what in ["link", "python", "directory", "wake-up", "lock", "processes"] {
        assert!(whats.contains(&what), "{what} is not among {whats:?}");
    }
    let told = farcell.ok(&["doctor", &base]);
    assert!(told.contains("wake-up") && told.contains("a stream that is kept open"), "{told}");
    assert_eq!(farcell.farcell(&["doctor", "exec:false"]).code, Some(125));
    assert_eq!(farcell.farcell(&["doctor", "stdio:"]).code, Some(0));
}

#[test]
fn bench_measures_a_target_and_leaves_nothing_there() {
    let farcell = Farcell::new();
    farcell.ok(&["run", "x = 1"]);
    let kernels = || {
        let names = std::fs::read_dir(farcell.base()).unwrap().map(|e| e.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().starts_with("k-")).collect::<Vec<_>>()
    };
    let before = kernels();
    let told = farcell.json(&["bench", "--count", "3"]);
    let measures = told["measures"].as_array().unwrap();
    let names: Vec<_> = measures.iter().map(|m| m["measure"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        ["round trip", "warm cell", "tool call", "first spawn", "spawn", "1 MB output", "10 MB code"]
    );
    for measure in measures {
        let (half, most) = (measure["p50_ms"].as_f64().unwrap(), measure["p99_ms"].as_f64().unwrap());
        assert!(0.0 < half && half <= most && measure["n"].as_u64().unwrap() > 0, "{measure}");
    }
    assert_eq!(kernels(), before, "its kernels are gone, and the user's is not");
    assert_eq!(farcell.ok(&["run", "x"]), "1");
    let shown = farcell.farcell(&["bench", "stdio:", "--count", "1"]);
    assert!(shown.code == Some(0) && shown.stdout.contains("warm cell"), "{shown:?}");
    assert_eq!(farcell.farcell(&["bench", "exec:false"]).code, Some(125));
}

#[test]
fn the_config_gives_defaults_and_names_targets() {
    let farcell = Farcell::new();
    let config = farcell.dir().join("config/farcell/config.toml");
    std::fs::create_dir_all(config.parent().unwrap()).unwrap();
    let text = format!(
        "[defaults]\nsession = 'work'\ntimeout = '500ms'\nmax_kernels = 1\n[targets.here]\nurl = 'local:?dir={}'\ncwd = '/usr'\nenv = {{ A = 'b' }}\n",
        farcell.base().display()
    );
    std::fs::write(&config, text).unwrap();
    let reply = farcell.json(&["run", "--on", "here", "import os, time; os.getcwd(), os.environ['A']"]);
    assert_eq!(reply["result"]["text/plain"], "('/usr', 'b')", "{reply:#}");
    assert_eq!(reply["kernel"]["session"], "work");
    assert_eq!(farcell.farcell(&["run", "--on", "here", "time.sleep(60)"]).code, Some(124));
    // The cap of one: another session takes the kernel, and the first one is told.
    farcell.ok(&["run", "--on", "here", "-s", "other", "1"]);
    let told = farcell.json(&["run", "--on", "here", "'os' in dir()"]);
    assert_eq!(
        (&told["result"]["text/plain"], &told["kernel"]["state"]),
        (&json!("False"), &json!("lost")),
        "{told:#}"
    );
    assert!(told["kernel"]["note"].as_str().unwrap().contains("\"other\""), "{told:#}");
}

#[test]
fn ten_processes_start_one_kernel() {
    let farcell = Farcell::new();
    let children: Vec<_> = (0..10).map(|i| farcell.start(&["run", "--json", &format!("{i} * 2")])).collect();
    let replies: Vec<_> = children.into_iter().map(|c| document(&finish(c))).collect();
    for (i, reply) in replies.iter().enumerate() {
        assert_eq!(reply["result"]["text/plain"], (i * 2).to_string(), "{reply:#}");
        assert_eq!(reply["kernel"]["id"], replies[0]["kernel"]["id"]);
    }
    let mut numbers: Vec<_> = replies.iter().map(|r| r["cell"]["number"].as_u64().unwrap()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=10).collect::<Vec<_>>(), "each cell got a number of its own");
}

/// A prompt in a terminal.
fn repl(farcell: &Farcell, options: &str) -> Terminal {
    // `script` gives it a terminal, in a shell: without `exec` a shell that got Ctrl-C too would say 130 for a program that went on.
    let repl = farcell.command(&["repl"]);
    let line = format!("exec {} repl {options}", repl.get_program().to_str().unwrap());
    let mut script = std::process::Command::new("script");
    script
        .args(["-qfec", &line, "/dev/null"])
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    for (name, value) in repl.get_envs() {
        match value {
            Some(value) => script.env(name, value),
            None => script.env_remove(name),
        };
    }
    Terminal::new(script.spawn().expect("script(1) from util-linux or bsdutils"))
}

#[test]
fn a_prompt_without_a_kernel_says_so_at_each_cell_and_keeps_what_it_was_started_with() {
    let Some(bare) = available(Bare::without_places(61_264)) else { return };
    let farcell = Farcell::with_target(&bare.target());
    let mut terminal = repl(&farcell, "--env A=b --cwd /usr");
    for _ in 0..2 {
        terminal.wait_for(">>> ");
        terminal.send("import os; os.getcwd() + os.environ['A'] * 3\r");
        terminal.wait_for("'/usrbbb'");
        terminal.wait_for("not kept");
    }
    terminal.wait_for(">>> ");
    terminal.send("\u{4}");
    terminal.ends_well();
}

#[test]
fn the_repl_reads_cells_from_a_terminal() {
    let farcell = Farcell::new();
    farcell.ok(&["run", "x = 20"]);
    let mut terminal = repl(&farcell, "");
    terminal.wait_for(">>> ");
    // What is typed before the prompt is there would meet a terminal that is not yet the editor's: so each cell waits for the next prompt.
    terminal.send("x * 2 + 3\r");
    terminal.wait_for("43");
    terminal.wait_for(">>> ");
    terminal.send("import time; print('up'); time.sleep(600)\r");
    terminal.wait_for("up\r\n");
    terminal.send("\u{3}");
    terminal.wait_for("KeyboardInterrupt");
    terminal.wait_for(">>> ");
    terminal.send("x - 1\r");
    terminal.wait_for("19");
    terminal.wait_for(">>> ");
    terminal.send("\u{4}");
    terminal.ends_well();
    assert_eq!(farcell.ok(&["run", "x"]), "20", "the kernel stays");
}

/// A terminal with a program in it: what it shows is read, and where its cursor is, is answered, as every terminal does.
struct Terminal {
    child: std::process::Child,
    keys: Arc<Mutex<std::process::ChildStdin>>,
    screen: std::sync::mpsc::Receiver<Vec<u8>>,
    seen: String,
    from: usize,
}

impl Terminal {
    fn new(mut child: std::process::Child) -> Self {
        const QUESTION: &[u8] = b"\x1b[6n";
        let keys = Arc::new(Mutex::new(child.stdin.take().unwrap()));
        let mut stdout = child.stdout.take().unwrap();
        let (tell, screen) = std::sync::mpsc::channel();
        let answer = Arc::clone(&keys);
        std::thread::spawn(move || {
            // A question may come in two pieces.
            let mut open = Vec::new();
            let mut buffer = [0; 4096];
            while let Ok(n @ 1..) = stdout.read(&mut buffer) {
                open.extend_from_slice(&buffer[..n]);
                while let Some(at) = open.windows(QUESTION.len()).position(|piece| piece == QUESTION) {
                    open.drain(..at + QUESTION.len());
                    // The program may be gone by now.
                    let _ = answer.lock().unwrap().write_all(b"\x1b[1;1R");
                }
                open.drain(..open.len().saturating_sub(QUESTION.len() - 1));
                if tell.send(buffer[..n].to_vec()).is_err() {
                    return;
                }
            }
        });
        Terminal { child, keys, screen, seen: String::new(), from: 0 }
    }

    fn send(&mut self, keys: &str) {
        self.keys.lock().unwrap().write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until `text` is shown after what was waited for before.
    fn wait_for(&mut self, text: &str) {
        let give_up = std::time::Instant::now() + super::harness::PATIENCE;
        loop {
            if let Some(at) = self.seen[self.from..].find(text) {
                self.from += at + text.len();
                return;
            }
            let left = give_up.saturating_duration_since(std::time::Instant::now());
            match self.screen.recv_timeout(left) {
                Ok(bytes) => self.seen.push_str(&String::from_utf8_lossy(&bytes)),
                Err(e) => panic!("no {text:?} after byte {} of {:?} ({e})", self.from, self.seen),
            }
        }
    }

    fn ends_well(mut self) {
        wait_until("the program has ended", || self.child.try_wait().unwrap().is_some());
        let status = self.child.wait().unwrap();
        self.seen.extend(self.screen.iter().map(|bytes| String::from_utf8_lossy(&bytes).into_owned()));
        assert!(status.success(), "{status}: {:?}", self.seen);
    }
}
