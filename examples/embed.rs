//! farcell in a program of yours: a session, cells that share variables, output as it comes, an error, a deadline.
//!
//! `cargo run --example embed`
#![allow(clippy::print_stdout, reason = "an example")]

use std::time::Duration;

use farcell::{Cell, Event, Registry, RegistryOptions, SessionOptions, Status};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A registry is a value: it keeps the kernels, under a cap, and ends those that cannot outlive this process.
    let registry = Registry::new(farcell::drivers(), RegistryOptions::default());

    // A session is a name under an owner on a target. `stdio:` is a child process; `local:` would outlive us.
    let target = "stdio:".parse()?;
    let session = registry.session("example", "default", &target, SessionOptions::default())?;

    // Variables survive from cell to cell, and the value of a last expression comes back.
    let quiet = |_: Event| ();
    session.run(&Cell::new("squares = [n * n for n in range(10)]"), &quiet).await?;
    let reply = session.run(&Cell::new("sum(squares)"), &quiet).await?;
    println!("sum: {}", reply.result.ok_or("no result")?["text/plain"]);

    // Output arrives while the cell runs.
    let show = |event: Event| {
        if let Event::Output { text, .. } = event {
            print!("{text}");
        }
    };
    session.run(&Cell::new("import time\nfor i in range(3): print(i); time.sleep(0.1)"), &show).await?;

    // An exception is a reply, not an error of farcell's.
    let reply = session.run(&Cell::new("squares[99]"), &quiet).await?;
    let error = reply.error.ok_or("no error")?;
    println!("{}: {}", error.name, error.message);

    // A cell that runs for too long is interrupted, and the variables are still there.
    let cell = Cell::new("while True: pass").timeout(Duration::from_millis(200));
    let reply = session.run(&cell, &quiet).await?;
    assert_eq!(reply.status, Status::Timeout);
    let reply = session.run(&Cell::new("len(squares)"), &quiet).await?;
    println!("after the timeout: {}", reply.result.ok_or("no result")?["text/plain"]);

    registry.dispose_all().await?;
    Ok(())
}
