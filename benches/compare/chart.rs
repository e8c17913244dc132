//! The chart: a warm cell and a spawn at each place, all sides, on a logarithmic scale.

use std::fmt::Write as _;

use crate::report::{Report, Row};
use crate::{spawn, warm};

const WIDTH: f64 = 900.0;
const LABELS: f64 = 190.0;
const VALUES: f64 = 90.0;
const BAR: f64 = 20.0;
const HEAD: f64 = 64.0;
/// The scale, in powers of ten of a millisecond.
const SCALE: (f64, f64) = (-2.0, 4.0);

/// One title and its bars.
struct Panel<'a> {
    title: String,
    rows: Vec<&'a Row>,
}

/// An SVG that stands by itself.
pub(crate) fn draw(report: &Report) -> String {
    let panels = panels(report);
    let height = panels.iter().map(|panel| HEAD + BAR * panel.rows.len() as f64).sum::<f64>() + 40.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"system-ui, sans-serif\" font-size=\"13\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
    );
    let mut top = 0.0;
    for panel in &panels {
        draw_panel(&mut svg, panel, top);
        top += HEAD + BAR * panel.rows.len() as f64;
    }
    let foot = "Median, milliseconds, logarithmic scale: shorter is quicker. cargo bench --bench compare -- --svg FILE";
    text(&mut svg, 12.0, top + 26.0, "start", "#666666", foot);
    svg.push_str("</svg>\n");
    svg
}

fn panels(report: &Report) -> Vec<Panel<'_>> {
    let mut panels: Vec<Panel<'_>> = Vec::new();
    for measure in [warm::MEASURE, spawn::MEASURE] {
        for row in report.rows().iter().filter(|row| row.measure == measure && row.p50_ms.is_some()) {
            let title = format!("{measure}: {}", row.target);
            match panels.iter_mut().find(|panel| panel.title == title) {
                Some(panel) => panel.rows.push(row),
                None => panels.push(Panel { title, rows: vec![row] }),
            }
        }
    }
    for panel in &mut panels {
        panel.rows.sort_by(|a, b| a.p50_ms.unwrap_or(f64::NAN).total_cmp(&b.p50_ms.unwrap_or(f64::NAN)));
    }
    panels
}

fn draw_panel(svg: &mut String, panel: &Panel<'_>, top: f64) {
    text(svg, 12.0, top + 32.0, "start\" font-weight=\"bold", "#111111", &panel.title);
    let bottom = top + HEAD + BAR * panel.rows.len() as f64 - 8.0;
    for power in SCALE.0 as i32..=SCALE.1 as i32 {
        let (x, label) = (position(10f64.powi(power)), axis_label(power));
        line(svg, x, top + HEAD - 10.0, bottom);
        text(svg, x, top + HEAD - 14.0, "middle", "#888888", &label);
    }
    for (index, row) in panel.rows.iter().enumerate() {
        draw_bar(svg, row, top + HEAD + BAR * index as f64 - 6.0);
    }
}

fn draw_bar(svg: &mut String, row: &Row, y: f64) {
    let ms = row.p50_ms.unwrap_or(f64::NAN);
    let end = position(ms);
    let fill = match row.system.as_str() {
        system if system.starts_with("farcell") => "#d9480f",
        system if system.starts_with("bare") => "#adb5bd",
        _ => "#4c6ef5",
    };
    text(svg, LABELS - 8.0, y + 13.0, "end", "#111111", &row.system);
    push(
        svg,
        format_args!(
            "<rect x=\"{LABELS}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{fill}\"/>\n",
            end - LABELS,
            BAR - 6.0
        ),
    );
    text(svg, end + 6.0, y + 12.0, "start", "#111111", &shown(ms));
}

fn position(ms: f64) -> f64 {
    let share = (ms.log10() - SCALE.0) / (SCALE.1 - SCALE.0);
    LABELS + share.clamp(0.0, 1.0) * (WIDTH - LABELS - VALUES)
}

fn axis_label(power: i32) -> String {
    if power >= 3 { format!("{} s", 10i32.pow(power.unsigned_abs() - 3)) } else { shown(10f64.powi(power)) }
}

fn shown(ms: f64) -> String {
    match ms {
        ms if ms >= 100.0 => format!("{ms:.0} ms"),
        ms if ms >= 10.0 => format!("{ms:.1} ms"),
        ms => format!("{ms:.2} ms"),
    }
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, fill: &str, what: &str) {
    let what = what.replace('&', "&amp;").replace('<', "&lt;");
    push(
        svg,
        format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"{fill}\">{what}</text>\n"
        ),
    );
}

fn line(svg: &mut String, x: f64, from: f64, to: f64) {
    push(
        svg,
        format_args!(
            "<line x1=\"{x:.1}\" y1=\"{from:.1}\" x2=\"{x:.1}\" y2=\"{to:.1}\" stroke=\"#e5e5e5\"/>\n"
        ),
    );
}

fn push(svg: &mut String, what: std::fmt::Arguments<'_>) {
    // A string takes all that is written to it.
    let _ = svg.write_fmt(what);
}
