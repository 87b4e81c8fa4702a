//! The two plots of the report, drawn by hand: every window as a dot, and latency over percentiles.

use std::fmt::Write;

use super::table::number;

const WIDTH: f64 = 760.0;
const LABELS: f64 = 230.0;
/// Colours that are told apart by most eyes, on light and on dark ground (Okabe and Ito).
const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a8a8a"];

pub fn colour(index: usize) -> &'static str {
    COLOURS[index % COLOURS.len()]
}

/// Text for an attribute or an element.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// One row per cell: a dot per window and a bar at the median. The axis begins at 0, so that lengths compare.
pub fn strips(title: &str, unit: &str, rows: &[(String, Vec<f64>, f64)]) -> String {
    let most = rows.iter().flat_map(|(_, values, _)| values).fold(0.0_f64, |most, value| most.max(*value));
    if rows.is_empty() || most <= 0.0 {
        return String::new();
    }
    let (row_height, top) = (24.0, 26.0);
    let height = top + row_height * rows.len() as f64 + 22.0;
    let x = |value: f64| LABELS + (WIDTH - LABELS - 90.0) * value / (most * 1.02);
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\"><title>{0}</title>\
         <text x=\"0\" y=\"14\" class=\"head\">{0}</text>",
        escape(title)
    );
    for (index, (name, values, median)) in rows.iter().enumerate() {
        let y = top + row_height * (index as f64 + 0.5);
        let colour = colour(index);
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" class=\"end\">{}</text>\
             <line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"{colour}\" stroke-width=\"9\" opacity=\".25\"/>\
             <line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\" stroke-width=\"3\"/>",
            LABELS - 10.0,
            y + 4.0,
            escape(name),
            LABELS,
            x(*median),
            x(*median),
            x(*median),
            y - 8.0,
            y + 8.0,
        );
        for value in values {
            let _ = write!(svg, "<circle cx=\"{:.1}\" cy=\"{y:.1}\" r=\"2.6\" fill=\"{colour}\"/>", x(*value));
        }
        let digits = if *median < 100.0 { 2 } else { 0 };
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\">{} {}</text>",
            WIDTH - 84.0,
            y + 4.0,
            number(*median, digits),
            escape(unit)
        );
    }
    svg + "</svg>"
}

/// Latency in microseconds over percentiles, both axes logarithmic: each nine has the same width.
pub fn curves(title: &str, lines: &[(String, Vec<(f64, f64)>)]) -> String {
    let values = || lines.iter().flat_map(|(_, curve)| curve.iter().map(|(_, us)| us.max(1.0)));
    let (low, high) = values().fold((f64::INFINITY, 0.0_f64), |(low, high), us| (low.min(us), high.max(us)));
    if !low.is_finite() || high <= 0.0 {
        return String::new();
    }
    let (low, high) = (low.log10().floor(), high.log10().ceil().max(low.log10().floor() + 1.0));
    let (left, right, top, bottom) = (60.0, WIDTH - 10.0, 26.0, 236.0);
    let nines = |percent: f64| (1.0 / (1.0 - (percent / 100.0).min(0.999_95))).log10();
    let (first, last) = (nines(50.0), nines(99.995));
    let x = |percent: f64| left + (right - left) * (nines(percent) - first) / (last - first);
    let y = |us: f64| bottom - (bottom - top) * (us.max(1.0).log10() - low) / (high - low);
    let height = 262.0 + 18.0 * lines.len() as f64;
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\"><title>{0}</title>\
         <text x=\"0\" y=\"14\" class=\"head\">{0}</text>",
        escape(title)
    );
    let mut decade = low;
    while decade <= high {
        let at = y(10_f64.powf(decade));
        let _ = write!(
            svg,
            "<line x1=\"{left}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\" class=\"grid\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" class=\"end\">{} µs</text>",
            left - 6.0,
            at + 4.0,
            number(10_f64.powf(decade), 0)
        );
        decade += 1.0;
    }
    for percent in [50.0, 90.0, 99.0, 99.9, 99.99] {
        let _ = write!(
            svg,
            "<line x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"{top}\" y2=\"{bottom}\" class=\"grid\"/>\
             <text x=\"{0:.1}\" y=\"{1}\" class=\"middle\">p{percent}</text>",
            x(percent),
            bottom + 16.0
        );
    }
    for (index, (name, curve)) in lines.iter().enumerate() {
        let points: Vec<String> = curve.iter().map(|(p, us)| format!("{:.1},{:.1}", x(*p), y(*us))).collect();
        let at = 258.0 + 18.0 * index as f64;
        let _ = write!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{2}\" stroke-width=\"2\"/>\
             <line x1=\"{left}\" x2=\"{3}\" y1=\"{at}\" y2=\"{at}\" stroke=\"{2}\" stroke-width=\"3\"/>\
             <text x=\"{4}\" y=\"{5}\">{1}</text>",
            points.join(" "),
            escape(name),
            colour(index),
            left + 24.0,
            left + 32.0,
            at + 4.0
        );
    }
    svg + "</svg>"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_break_out_of_the_page() {
        let plot = strips("<b>", "µs", &[("a&\"b\"<script>".into(), vec![1.0, 2.0], 1.5)]);
        assert!(!plot.contains("<script>") && !plot.contains("<b>"), "{plot}");
        assert!(plot.contains("a&amp;&quot;b&quot;&lt;script&gt;"), "{plot}");
    }

    #[test]
    fn every_window_is_a_dot_and_every_cell_a_curve() {
        let plot = strips("t", "µs", &[("a".into(), vec![1.0, 2.0, 3.0], 2.0), ("b".into(), vec![4.0], 4.0)]);
        assert_eq!(plot.matches("<circle").count(), 4);
        let plot = curves("t", &[("a".into(), vec![(50.0, 10.0), (99.0, 90.0)]), ("b".into(), vec![(50.0, 20.0)])]);
        assert_eq!(plot.matches("<polyline").count(), 2);
        assert_eq!(curves("t", &[]), "");
        assert_eq!(strips("t", "µs", &[]), "");
    }
}
