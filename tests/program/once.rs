//! Targets that can hold no kernel: what is printed, and how the program ends.

use farcell_testbed::{Bare, available};

use super::harness::{Farcell, document, finish, is_alive, signal, wait_until};

#[test]
fn a_cell_without_a_kernel_says_so_beside_its_output() {
    let Some(bare) = available(Bare::without_places(61_261)) else { return };
    let farcell = Farcell::with_target(&bare.target());
    let ran = farcell.farcell(&["run", "print('out'); x = 6; x * 7"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "out\n42\n"), "{ran:#?}");
    assert!(ran.stderr.contains("not kept") && ran.stderr.contains("dir="), "{ran:#?}");
    let ran = farcell.farcell(&["run", "--json", "x"]);
    let reply = document(&ran);
    assert_eq!(
        (ran.code, &reply["status"], &reply["kernel"]["state"]),
        (Some(1), &"error".into(), &"none".into())
    );
    assert!(
        reply["kernel"]["id"].is_null() && reply["kernel"]["note"].as_str().unwrap().contains("not kept")
    );
    assert_eq!(farcell.farcell(&["run", "import sys; sys.exit(7)"]).code, Some(7));
    assert_eq!(
        farcell.farcell(&["run", "--timeout", "300ms", "import time; time.sleep(600)"]).code,
        Some(124)
    );
    assert_eq!(farcell.farcell(&["run", "import os; os.abort()"]).code, Some(137));
}

#[test]
fn what_needs_a_kernel_is_refused() {
    let Some(bare) = available(Bare::without_places(61_262)) else { return };
    let farcell = Farcell::with_target(&bare.target());
    let code = "print('ran', file=open('/mnt/count', 'a'))";
    for (args, word) in [
        (&["run", "--reset", code][..], "a reset needs a kernel"),
        (&["run", "--tool", "t=true", "--tool-schema", "t=any", code], "a cell with tools needs a kernel"),
        (&["run", "--detach", code], "no directory can hold a kernel"),
    ] {
        let ran = farcell.farcell(args);
        assert_eq!((ran.code, bare.lines()), (Some(125), 0), "{ran:#?}");
        assert!(ran.stderr.contains(word) && ran.stderr.contains("dir="), "{ran:#?}");
    }
}

#[test]
fn ctrl_c_ends_it() {
    let Some(bare) = available(Bare::without_places(61_263)) else { return };
    let farcell = Farcell::with_target(&bare.target());
    let code =
        "import os, time; print(os.getpid(), file=open('/mnt/count', 'a'), flush=True); time.sleep(600)";
    let child = farcell.start(&["run", "--timeout", "none", code]);
    wait_until("the cell runs", || bare.lines() == 1);
    let cell = std::fs::read_to_string(bare.count()).unwrap().trim().parse().unwrap();
    assert!(is_alive(cell));
    signal(child.id().into(), "INT");
    let ran = finish(child);
    assert_eq!(ran.code, Some(130), "{ran:#?}");
    assert!(ran.stderr.contains("without a kernel"), "{ran:#?}");
    wait_until("the cell has ended", || !is_alive(cell));
}
