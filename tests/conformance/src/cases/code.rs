//! Code as people write it: values, exceptions, `__main__`, await, pickling, sources.

use std::time::Duration;

use farcell_core::{Cell, Echo, NoEvents, Status, TroubleKind};

use crate::Case;
use crate::subject::{Subject, ok, run, run_for, text};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case { name: "the_value_of_a_last_expression_is_the_result", check: |s| Box::pin(values(s)) },
        Case { name: "a_value_comes_in_its_rich_forms", check: |s| Box::pin(rich_forms(s)) },
        Case { name: "echo_all_prints_every_value", check: |s| Box::pin(echo_all(s)) },
        Case {
            name: "an_exception_shows_the_cells_lines_and_none_of_ours",
            check: |s| Box::pin(exceptions(s)),
        },
        Case { name: "code_that_does_not_compile_is_an_exception", check: |s| Box::pin(bad_code(s)) },
        Case { name: "an_empty_cell_is_fine", check: |s| Box::pin(empty(s)) },
        Case { name: "code_of_any_size_runs", check: |s| Box::pin(big_code(s)) },
        Case { name: "classes_and_functions_can_be_pickled_and_shown", check: |s| Box::pin(main_is_real(s)) },
        Case { name: "a_process_pool_works", check: |s| Box::pin(process_pool(s)) },
        Case { name: "await_works_and_tasks_live_on", check: |s| Box::pin(awaiting(s)) },
        Case { name: "input_is_at_its_end", check: |s| Box::pin(input(s)) },
        Case { name: "figures_become_displays", check: |s| Box::pin(displays(s)) },
    ]
}

async fn values(s: &Subject) {
    let session = s.session("a");
    assert_eq!(text(&ok(&session, "1; 2").await), "2");
    assert!(ok(&session, "None").await.result.is_none());
    assert!(ok(&session, "x = 3").await.result.is_none());
    assert_eq!(text(&ok(&session, "# why\nx\n# because").await), "3");
    assert_eq!(text(&ok(&session, "'\\u20ac'").await), "'\u{20ac}'");
}

async fn rich_forms(s: &Subject) {
    let session = s.session("a");
    let code = "class R:\n  def __repr__(self): return 'plain'\n  def _repr_html_(self): return '<b>rich</b>'\n  \
                def _repr_png_(self): return b'\\x89PNG'\nR()";
    let result = ok(&session, code).await.result.expect("a result");
    assert_eq!(result["text/plain"], "plain");
    assert_eq!(result["text/html"], "<b>rich</b>");
    assert_eq!(result["image/png"], "iVBORw==");
    let broken =
        "class B:\n  def _repr_html_(self): raise ValueError('no')\n  def __repr__(self): return 'B'\nB()";
    assert_eq!(text(&ok(&session, broken).await), "B");
}

async fn echo_all(s: &Subject) {
    let mut cell = Cell::new("1\nfor i in range(2): i\nNone\n'a'");
    cell.echo = Echo::All;
    let reply = s.session("a").run(&cell, &NoEvents).await.unwrap();
    assert_eq!(reply.stdout, "1\n0\n1\n'a'\n");
}

async fn exceptions(s: &Subject) {
    let session = s.session("a");
    let reply = run(&session, "def f():\n    return 1 / 0\n\ntry:\n    f()\nexcept ZeroDivisionError as e:\n    raise KeyError('k') from e").await;
    assert_eq!((reply.status, reply.exit_code), (Status::Error, Some(1)));
    let error = reply.error.expect("an error");
    assert_eq!((error.kind, error.name.as_str()), (TroubleKind::Exception, "KeyError"));
    let traceback = error.traceback.expect("a traceback");
    for line in ["return 1 / 0", "raise KeyError('k') from e", "ZeroDivisionError", "<cell 1>"] {
        assert!(traceback.contains(line), "{line:?} is not in\n{traceback}");
    }
    assert!(!traceback.contains("_farcell"), "a frame of ours is in\n{traceback}");
    assert!(reply.stderr.is_empty());
    // A line of an earlier cell, called from a later one.
    let later = run(&session, "f()").await.error.unwrap().traceback.unwrap();
    assert!(later.contains("<cell 1>") && later.contains("return 1 / 0"), "{later}");
}

async fn bad_code(s: &Subject) {
    let session = s.session("a");
    let error = run(&session, "x = (1,").await.error.expect("an error");
    assert_eq!((error.kind, error.name.as_str()), (TroubleKind::Exception, "SyntaxError"));
    assert!(error.traceback.unwrap().contains("x = (1,"));
    assert_eq!(run(&session, "a\0b").await.status, Status::Error);
    let deep = run(&session, &format!("{}1{}", "(".repeat(5000), ")".repeat(5000))).await;
    assert_eq!(deep.status, Status::Error, "{:?}", deep.error);
    assert_eq!(text(&ok(&session, "1").await), "1");
}

async fn empty(s: &Subject) {
    let session = s.session("a");
    for code in ["", "   \n\n", "# only a comment", "pass"] {
        let reply = ok(&session, code).await;
        assert!(reply.result.is_none() && reply.stdout.is_empty());
    }
}

async fn big_code(s: &Subject) {
    let session = s.session("a");
    for size in [100_000, 10_000_000] {
        let code = format!("x = '{}'\nlen(x)", "\u{e9}".repeat(size / 2));
        assert_eq!(text(&run_for(&session, &code, Duration::from_secs(60)).await), (size / 2).to_string());
    }
}

async fn main_is_real(s: &Subject) {
    let session = s.session("a");
    ok(&session, "import pickle, inspect\nclass C:\n    'doc'\n    x = 1\n\ndef f(a):\n    return a + 1")
        .await;
    let reply = ok(&session, "pickle.loads(pickle.dumps(C)) is C, pickle.loads(pickle.dumps(C())).x, pickle.loads(pickle.dumps(f))(1), __name__").await;
    assert_eq!(text(&reply), "(True, 1, 2, '__main__')");
    assert_eq!(
        ok(&session, "print(inspect.getsource(f), end='')").await.stdout,
        "def f(a):\n    return a + 1\n"
    );
    let class = ok(&session, "print(inspect.getsource(C), end='')").await.stdout;
    assert!(class.starts_with("class C:\n    'doc'\n    x = 1\n"), "{class:?}");
}

async fn process_pool(s: &Subject) {
    let session = s.session("a");
    ok(&session, "from concurrent.futures import ProcessPoolExecutor\ndef sq(x): return x * x").await;
    let reply = ok(&session, "with ProcessPoolExecutor(2) as p: r = list(p.map(sq, range(5)))\nr").await;
    assert_eq!(text(&reply), "[0, 1, 4, 9, 16]");
}

async fn awaiting(s: &Subject) {
    let session = s.session("a");
    let code = "import asyncio\nseen = []\nasync def later():\n    await asyncio.sleep(0.01); seen.append(1)\n\
                task = asyncio.create_task(later())\nawait asyncio.sleep(0)\nawait asyncio.sleep(0, 'value')";
    assert_eq!(text(&ok(&session, code).await), "'value'");
    assert_eq!(
        text(&ok(&session, "await task\nseen, asyncio.get_event_loop() is task.get_loop()").await),
        "([1], True)"
    );
    let reply = run(&session, "async def boom(): raise ValueError('b')\nawait boom()").await;
    assert_eq!(reply.error.unwrap().name, "ValueError");
}

async fn input(s: &Subject) {
    let session = s.session("a");
    assert_eq!(run(&session, "input('? ')").await.error.expect("an error").name, "EOFError");
    let code = "import subprocess\nsubprocess.run(['cat'], stdout=subprocess.PIPE).stdout";
    assert_eq!(text(&ok(&session, code).await), "b''");
    ok(&session, "p = subprocess.Popen(['cat'])").await;
    assert_eq!(text(&ok(&session, "p.wait()").await), "0");
}

async fn displays(s: &Subject) {
    // matplotlib itself is not on every target; what is asked of it is just this much.
    const FAKE: &str = "
import sys, types
plt = types.ModuleType('matplotlib.pyplot')
class Figure:
    def savefig(self, f, **kw): f.write(b'\\x89PNG' + bytes([self.n]))
    def __repr__(self): return '<Figure %d>' % self.n
figs = {}
def figure():
    f = Figure(); f.n = len(figs) + 1; figs[f.n] = f
    return f
plt.figure = lambda n=None: figs[n] if n else figure()
plt.get_fignums = lambda: sorted(figs)
plt.close = lambda which=None: figs.clear() if which in (None, 'all') else [figs.pop(k) for k, v in list(figs.items()) if v is which or k == which]
sys.modules['matplotlib'] = types.ModuleType('matplotlib'); sys.modules['matplotlib'].pyplot = plt
sys.modules['matplotlib.pyplot'] = plt
";
    let session = s.session("a");
    ok(&session, FAKE).await;
    let reply = ok(&session, "f = plt.figure(); f = plt.figure(); display('between')").await;
    let pngs: Vec<_> = reply.displays.iter().filter_map(|d| d.get("image/png")).collect();
    assert_eq!(pngs, ["iVBORwE=", "iVBORwI="], "{:#?}", reply.displays);
    assert!(reply.displays.iter().any(|d| d["text/plain"] == "'between'"));
    assert!(ok(&session, "1").await.displays.is_empty(), "a shown figure is closed");
}
