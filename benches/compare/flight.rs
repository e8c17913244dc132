//! farcell alone, at 50 ms round trip: 20 kernels on one connection run five cells each at once, counted in round trips.

use std::time::Instant;

use farcell::{Cell, Session};
use futures_util::future::try_join_all;

use crate::farcell_side::{self, Host};
use crate::options::Options;
use crate::places::{Place, ROUND_TRIP_MS};
use crate::report::{Report, Row};
use crate::samples::Samples;
use crate::side::{Done, Trouble};
use crate::work;

pub(crate) const MEASURE: &str = "100 cells in 20 kernels at once";
const KERNELS: usize = 20;
const CELLS: usize = 5;

pub(crate) fn measure(place: &Place, options: &Options, report: &mut Report) {
    let rounds = options.amount(20, 3);
    for (system, target) in place.targets() {
        let row = Row {
            measure: MEASURE,
            target: place.name.to_owned(),
            system: system.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..Row::default()
        };
        report.add(match fly(place, &target, rounds) {
            Ok(samples) => {
                let trips = samples.p50_ms() / ROUND_TRIP_MS;
                let note = format!("{trips:.2} round trips of {ROUND_TRIP_MS} ms for all of them");
                Row { figure: Some(trips), ..row }.times(&samples, rounds).noting(&note)
            }
            Err(trouble) => row.noting(&trouble.to_string()),
        });
    }
}

fn fly(place: &Place, target: &str, rounds: usize) -> Done<Samples> {
    let host = Host::new(target, &place.python, place.base.as_deref());
    let host = host.map_err(|e| Trouble::Failed(e.to_string()))?;
    let sessions = (0..KERNELS).map(|n| host.session(&format!("flight-{n}"))).collect::<Done<Vec<_>>>()?;
    host.runtime.block_on(async {
        let first = Cell::new(work::FIRST);
        try_join_all(sessions.iter().map(|session| farcell_side::run(session, &first))).await?;
        let mut samples = Samples::default();
        for _ in 0..rounds {
            let started = Instant::now();
            try_join_all(sessions.iter().map(five_cells)).await?;
            samples.push(started.elapsed());
        }
        Ok(samples)
    })
}

/// One after the other, as they are of one kernel.
async fn five_cells(session: &Session) -> Done<()> {
    for _ in 0..CELLS {
        farcell_side::run(session, &Cell::new(work::COUNT)).await?;
    }
    Ok(())
}
