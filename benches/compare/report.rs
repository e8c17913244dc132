//! What was measured: rows of a table, and which bounds they keep.

use std::fmt;

use serde_json::{Value, json};

use crate::samples::Samples;

/// One row of the table.
#[derive(Debug, Clone, Default)]
pub(crate) struct Row {
    pub(crate) measure: &'static str,
    pub(crate) target: String,
    pub(crate) system: String,
    pub(crate) version: String,
    pub(crate) p50_ms: Option<f64>,
    pub(crate) p99_ms: Option<f64>,
    pub(crate) n: usize,
    pub(crate) rounds: usize,
    pub(crate) note: String,
    /// A figure that is no time; the note tells it with its unit.
    pub(crate) figure: Option<f64>,
}

impl Row {
    /// Fills in the times.
    #[must_use]
    pub(crate) fn times(mut self, samples: &Samples, rounds: usize) -> Self {
        self.p50_ms = Some(samples.p50_ms());
        self.p99_ms = Some(samples.percentile_ms(99));
        self.n = samples.len();
        self.rounds = rounds;
        self
    }

    /// Adds to the note.
    #[must_use]
    pub(crate) fn noting(mut self, note: &str) -> Self {
        if !self.note.is_empty() && !note.is_empty() {
            self.note.push_str("; ");
        }
        self.note.push_str(note);
        self
    }
}

/// What became of a bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Kept,
    Missed,
    NotMeasured,
}

/// Everything that is to be told at the end.
#[derive(Debug, Default)]
pub(crate) struct Report {
    rows: Vec<Row>,
    verdicts: Vec<(Outcome, String)>,
}

impl Report {
    pub(crate) fn add(&mut self, row: Row) {
        self.rows.push(row);
    }

    pub(crate) fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// The row of a system, if it was to be measured at all.
    pub(crate) fn row(&self, measure: &str, target: &str, system: &str) -> Option<&Row> {
        self.rows.iter().find(|r| r.measure == measure && r.target == target && r.system == system)
    }

    /// Says whether a bound was kept; `None` if there was nothing to compare.
    pub(crate) fn verdict(&mut self, kept: Option<bool>, sentence: String) {
        let outcome = match kept {
            Some(true) => Outcome::Kept,
            Some(false) => Outcome::Missed,
            None => Outcome::NotMeasured,
        };
        self.verdicts.push((outcome, sentence));
    }

    pub(crate) fn passed(&self) -> bool {
        self.verdicts.iter().all(|(outcome, _)| *outcome != Outcome::Missed)
    }

    /// The rows for programs.
    pub(crate) fn json(&self) -> String {
        let row = |r: &Row| {
            json!({
                "measure": r.measure, "target": r.target, "system": r.system, "version": r.version,
                "p50_ms": r.p50_ms, "p99_ms": r.p99_ms, "n": r.n, "rounds": r.rounds, "note": r.note,
            })
        };
        format!("{:#}\n", self.rows.iter().map(row).collect::<Value>())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |time: Option<f64>| time.map_or_else(String::new, |ms| format!("{ms:.3}"));
        writeln!(f, "| measure | target | system | version | p50 ms | p99 ms | n | rounds | note |")?;
        writeln!(f, "|---|---|---|---|--:|--:|--:|--:|---|")?;
        for r in &self.rows {
            let (p50, p99, note) = (ms(r.p50_ms), ms(r.p99_ms), r.note.replace('|', "\\|"));
            let (measure, target, system, version) = (r.measure, &r.target, &r.system, &r.version);
            writeln!(
                f,
                "| {measure} | {target} | {system} | {version} | {p50} | {p99} | {} | {} | {note} |",
                r.n, r.rounds
            )?;
        }
        writeln!(f)?;
        for (outcome, sentence) in &self.verdicts {
            let word = match outcome {
                Outcome::Kept => "kept",
                Outcome::Missed => "MISSED",
                Outcome::NotMeasured => "not measured",
            };
            writeln!(f, "- {word}: {sentence}")?;
        }
        Ok(())
    }
}
