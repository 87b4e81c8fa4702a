//! The report as one HTML file that needs nothing else: tables, plots, and what they were measured on.

use std::fmt::Write;

use super::svg::{curves, escape, strips};
use super::table;
use crate::results::{CellResult, Results, ScenarioResult};
use crate::stats::Spread;

const STYLE: &str = "
:root { color-scheme: light dark; --ink: #1b1b1b; --faint: #8888; --ground: #fff }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e6; --ground: #161616 } }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 860px; margin: 2em auto; padding: 0 1em; color: var(--ink); background: var(--ground) }
pre { font: 12.5px/1.4 ui-monospace, monospace; overflow-x: auto; border: 1px solid var(--faint); padding: .7em }
svg { width: 100%; height: auto; margin: .6em 0 } svg text { font: 12px system-ui, sans-serif; fill: var(--ink) }
svg .head { font-weight: 600 } svg .end { text-anchor: end } svg .middle { text-anchor: middle } svg .grid { stroke: var(--faint); stroke-width: .6 }
h2 { margin-top: 2em } .note { opacity: .75 }
";

/// Plots of a scenario, where it has the measure: title, measure, unit.
const PLOTS: &[(&str, &str, &str)] = &[
    ("CPU of the gateway per request", "cpu_us", "µs"),
    ("CPU of the gateway per stream", "cpu_us_per_stream", "µs"),
    ("Requests per second", "rps", "/s"),
    ("Latency, 99th percentile", "p99_us", "µs"),
    ("First byte, 99th percentile", "first_byte_p99_us", "µs"),
    ("Gap between frames, 99th percentile", "gap_p99_us", "µs"),
    ("Resident memory under load", "rss_mb", "MB"),
];

/// The page of some runs.
pub fn page(runs: &[Results]) -> String {
    let mut html = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>TokenTriage bench</title><style>{STYLE}</style><h1>TokenTriage bench</h1>"
    );
    for run in runs {
        let _ = write!(html, "<p class=\"note\">{}</p>", escape(&run.machine.describe()));
        for build in &run.builds {
            let _ = write!(html, "<p class=\"note\">{}</p>", escape(&build.describe()));
        }
    }
    let ratios = table::ratios(runs.iter().flat_map(|run| &run.scenarios));
    if !ratios.is_empty() {
        let _ = write!(html, "<h2>Ratios</h2><pre>{}</pre>", escape(&ratios));
    }
    for scenario in runs.iter().flat_map(|run| &run.scenarios) {
        section(&mut html, scenario);
    }
    html + "</html>\n"
}

fn section(html: &mut String, scenario: &ScenarioResult) {
    let _ = write!(
        html,
        "<h2>{}</h2><p>{}</p><p class=\"note\">{}; {} rounds of {} ms after {} ms of warm-up</p><pre>{}{}{}</pre>",
        escape(&scenario.name),
        escape(&scenario.scenario.about),
        escape(&scenario.notes.join("; ")),
        scenario.scenario.rounds,
        scenario.scenario.window_ms,
        scenario.scenario.warmup_ms,
        escape(&table::cells(scenario)),
        escape(&table::facts(scenario)),
        escape(&table::warnings(scenario)),
    );
    for (title, measure, unit) in PLOTS {
        let rows: Vec<_> = scenario.cells.iter().filter_map(|cell| strip(cell, measure)).collect();
        *html += &strips(title, unit, &rows);
    }
    let lines: Vec<_> = scenario.cells.iter().filter_map(curve).collect();
    *html += &curves("Latency by percentile, median of the windows", &lines);
}

fn strip(cell: &CellResult, measure: &str) -> Option<(String, Vec<f64>, f64)> {
    let windows = cell.windows.iter().filter(|window| window.is_valid);
    let values: Vec<f64> = windows.filter_map(|window| window.measures.get(measure).copied()).collect();
    let median = Spread::of(values.iter().copied())?.median;
    Some((cell.name.clone(), values, median))
}

/// The median of the windows' curves, point by point.
fn curve(cell: &CellResult) -> Option<(String, Vec<(f64, f64)>)> {
    let windows: Vec<_> = cell.windows.iter().filter(|window| window.is_valid).collect();
    let points = windows.first()?.curve.iter().enumerate().filter_map(|(index, (percent, _))| {
        let at = windows.iter().filter_map(|window| window.curve.get(index).map(|(_, us)| *us));
        Some((*percent, Spread::of(at)?.median))
    });
    Some((cell.name.clone(), points.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builds::Build;
    use crate::results::tests::{made, ratio};

    #[test]
    fn the_page_stands_alone_and_shows_ratios_tables_and_plots() {
        let mut results = made(&[("a", "cpu_us", &[10.0, 11.0, -1.0]), ("b<", "cpu_us", &[20.0, 22.0, 21.0])]);
        results.scenarios[0].scenario.ratios = vec![ratio("a", "b<")];
        results.builds = vec![Build { path: "/old/tokentriage".into(), sha256: "0123456789ab".into() }];
        let page = page(&[results]);
        assert!(page.contains("/old/tokentriage, SHA-256 0123456789ab"));
        assert!(page.contains("aim reached"));
        assert_eq!(page.matches("<svg").count(), 2, "one strip plot, one curve");
        assert_eq!(page.matches("<circle").count(), 5, "the invalid window is no dot");
        for outside in ["http://", "https://", "<script", "src="] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert!(page.contains("b&lt;") && !page.contains("b<<"));
    }
}
