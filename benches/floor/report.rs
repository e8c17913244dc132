//! What was measured: rows of a table, and which thresholds they keep.

use std::fmt;

use serde_json::{Value, json};

pub(crate) use crate::samples::Samples;

/// One row of the table.
#[derive(Debug)]
struct Row {
    measure: &'static str,
    target: String,
    system: String,
    p50_ms: Option<f64>,
    p99_ms: Option<f64>,
    n: usize,
    note: String,
}

/// A threshold, and whether it was kept.
#[derive(Debug)]
struct Verdict {
    kept: bool,
    sentence: String,
}

/// Everything that is to be told at the end.
#[derive(Debug, Default)]
pub(crate) struct Report {
    rows: Vec<Row>,
    verdicts: Vec<Verdict>,
}

impl Report {
    /// A row of times.
    pub(crate) fn times(
        &mut self,
        measure: &'static str,
        target: &str,
        system: &str,
        samples: &Samples,
        note: String,
    ) {
        self.rows.push(Row {
            measure,
            target: target.to_owned(),
            system: system.to_owned(),
            p50_ms: Some(samples.p50_ms()),
            p99_ms: Some(samples.percentile_ms(99)),
            n: samples.len(),
            note,
        });
    }

    /// A row of something else, which the note tells.
    pub(crate) fn fact(&mut self, measure: &'static str, target: &str, system: &str, n: usize, note: String) {
        let (target, system) = (target.to_owned(), system.to_owned());
        self.rows.push(Row { measure, target, system, p50_ms: None, p99_ms: None, n, note });
    }

    /// Says whether a threshold was kept.
    pub(crate) fn verdict(&mut self, kept: bool, sentence: String) {
        self.verdicts.push(Verdict { kept, sentence });
    }

    pub(crate) fn passed(&self) -> bool {
        self.verdicts.iter().all(|v| v.kept)
    }

    /// The rows for programs.
    pub(crate) fn json(&self) -> String {
        let row = |r: &Row| {
            json!({
                "measure": r.measure, "target": r.target, "system": r.system,
                "p50_ms": r.p50_ms, "p99_ms": r.p99_ms, "n": r.n, "note": r.note,
            })
        };
        format!("{:#}\n", self.rows.iter().map(row).collect::<Value>())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |time: Option<f64>| time.map_or_else(String::new, |ms| format!("{ms:.3}"));
        writeln!(f, "| measure | target | system | p50 ms | p99 ms | n | note |")?;
        writeln!(f, "|---|---|---|--:|--:|--:|---|")?;
        for r in &self.rows {
            let (p50, p99) = (ms(r.p50_ms), ms(r.p99_ms));
            writeln!(
                f,
                "| {} | {} | {} | {p50} | {p99} | {} | {} |",
                r.measure, r.target, r.system, r.n, r.note
            )?;
        }
        writeln!(f)?;
        for v in &self.verdicts {
            writeln!(f, "- {}: {}", if v.kept { "kept" } else { "MISSED" }, v.sentence)?;
        }
        Ok(())
    }
}
