//! What cleaning costs: a cell that prints escapes that never end beside one that prints as many plain characters, and texts through the cleaner alone.

use std::time::Instant;

use farcell::{Cell, Cleaner};

use crate::Result;
use crate::host::{self, Host};
use crate::options::Options;
use crate::report::{Report, Samples};

const MEASURE: &str = "cleaning";
const TARGET: &str = "stdio:";
const ESCAPES: &str = "unterminated OSC";
/// How many times as long as plain text of the same length escapes that never end may take.
const BOUND: f64 = 2.0;
/// How many times as long a text of twice the length may take.
const GROWTH: f64 = 3.0;
/// A million characters each.
const CELLS: [(&str, &str); 3] = [
    ("plain", "print('ab' * 500_000)"),
    (ESCAPES, "print('\\x1b]' * 500_000)"),
    ("beginnings of secrets", "print('://sk-' * 166_666)"),
];
const TEXTS: [(&str, &str); 6] = [
    ("plain", "all is well here\n"),
    (ESCAPES, "\x1b]"),
    ("unterminated CSI", "\x1b[0"),
    ("beginnings of secrets", "://a:b password= eyJ-sk-"),
    ("secrets", "password=Tr0ub4dor token=q7Rk2ZtX9mB4vL8sW3nY\n"),
    ("keys that never end", "-----BEGIN PRIVATE KEY-----\nAAAA\n"),
];
const LENGTH: usize = 1 << 20;

pub(crate) fn measure(options: &Options, report: &mut Report) -> Result<()> {
    let rounds = if options.quick { 15 } else { 60 };
    cells(options, rounds, report)?;
    texts(rounds, report);
    Ok(())
}

fn cells(options: &Options, rounds: usize, report: &mut Report) -> Result<()> {
    let host = Host::new(host::two_workers()?);
    let session = host.session(TARGET, "clean", &options.python)?;
    let mut took = CELLS.map(|_| Samples::default());
    for _ in 0..rounds {
        for ((_, code), took) in CELLS.iter().zip(&mut took) {
            let mut cell = Cell::new(*code);
            cell.max_output = 2 * LENGTH;
            let started = Instant::now();
            host.runtime.block_on(host::run(&session, &cell))?;
            took.push(started.elapsed());
        }
    }
    let plain = took[0].p50_ms();
    for ((name, _), took) in CELLS.iter().zip(&took) {
        let ratio = took.p50_ms() / plain;
        report.times(MEASURE, TARGET, &format!("1 MB printed, {name}"), took, format!("{ratio:.2} x plain"));
        // The third is text that no cell prints by accident.
        if *name == ESCAPES {
            report.verdict(
                ratio <= BOUND,
                format!("1 MB of {name} takes {ratio:.2} times as long as plain text, at most {BOUND}"),
            );
        }
    }
    Ok(())
}

fn texts(rounds: usize, report: &mut Report) {
    let cleaner = Cleaner::default();
    for (name, part) in TEXTS {
        let text = part.repeat(LENGTH / part.len());
        let (half, mut whole, mut halves) = (text.len() / 2, Samples::default(), Samples::default());
        for _ in 0..rounds {
            for (text, took) in [(&text[..], &mut whole), (&text[..half], &mut halves)] {
                let started = Instant::now();
                std::hint::black_box(cleaner.text(std::hint::black_box(text)));
                took.push(started.elapsed());
            }
        }
        let growth = whole.p50_ms() / halves.p50_ms();
        report.times(MEASURE, "cleaner", name, &whole, format!("1 MiB; {growth:.2} x half of it"));
        report.verdict(
            growth <= GROWTH,
            format!("twice as much of {name} takes {growth:.2} times as long, at most {GROWTH}"),
        );
    }
}
