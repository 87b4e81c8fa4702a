//! Tables of plain text, made for a terminal of 120 columns.

use std::fmt::Write;

use crate::results::{CellResult, ScenarioResult, Standing};
use crate::stats::Spread;

/// Columns: title, measure, digits after the point.
const PLAIN: &[(&str, &str, usize)] = &[
    ("req/s", "rps", 0),
    ("CPU µs", "cpu_us", 2),
    ("p50 µs", "p50_us", 0),
    ("p99 µs", "p99_us", 0),
    ("p99.9", "p999_us", 0),
    ("p99.99", "p9999_us", 0),
    ("busy %", "busy_percent", 0),
    ("own %", "own_busy_percent", 0),
    ("RSS MB", "rss_mb", 1),
];
const STREAM: &[(&str, &str, usize)] = &[
    ("frames/s", "frames_per_s", 0),
    ("CPU µs/stream", "cpu_us_per_stream", 1),
    ("first byte p50", "first_byte_p50_us", 0),
    ("p99 µs", "first_byte_p99_us", 0),
    ("gap p50", "gap_p50_us", 0),
    ("p99 µs", "gap_p99_us", 0),
    ("busy %", "busy_percent", 0),
    ("own %", "own_busy_percent", 0),
    ("RSS MB", "rss_mb", 1),
];

/// The numbers of one scenario.
pub fn cells(result: &ScenarioResult) -> String {
    let is_stream = result.cells.iter().any(|cell| cell.measure("frames_per_s").is_some());
    let columns = if is_stream { STREAM } else { PLAIN };
    let mut rows = vec![Vec::from([String::new()])];
    rows[0].extend(columns.iter().map(|(title, ..)| (*title).to_owned()));
    rows[0].push("valid".to_owned());
    for cell in &result.cells {
        let mut row = vec![cell.name.clone()];
        if let Some(why) = &cell.skipped {
            row.push(format!("skipped: {}", why.lines().next().unwrap_or_default()));
        } else {
            row.extend(columns.iter().map(|(_, measure, digits)| value(cell, measure, *digits)));
            row.push(format!("{}/{}", cell.valid_windows(), cell.windows.len()));
        }
        rows.push(row);
    }
    aligned(&rows)
}

fn value(cell: &CellResult, measure: &str, digits: usize) -> String {
    let Some(spread) = cell.measure(measure) else { return "·".to_owned() };
    let with_spread = matches!(measure, "cpu_us" | "cpu_us_per_stream" | "rps");
    if with_spread && spread.count > 1 {
        let percent = 100.0 * spread.half_width() / spread.median;
        return format!("{} ±{percent:.0}%", number(spread.median, digits));
    }
    number(spread.median, digits)
}

/// A number with its thousands apart.
pub fn number(value: f64, digits: usize) -> String {
    let text = format!("{value:.digits$}");
    let (whole, rest) = text.split_once('.').map_or((text.as_str(), String::new()), |(w, r)| (w, format!(".{r}")));
    let digits: Vec<char> = whole.chars().collect();
    let mut apart = String::new();
    for (index, digit) in digits.iter().enumerate() {
        let left = digits.len() - index;
        if index > 0 && left.is_multiple_of(3) && digits[index - 1].is_ascii_digit() {
            apart.push(',');
        }
        apart.push(*digit);
    }
    apart + &rest
}

/// What was measured once, one line per cell that has something to say.
pub fn facts(result: &ScenarioResult) -> String {
    let mut text = String::new();
    for cell in &result.cells {
        let facts: Vec<String> = cell
            .facts
            .iter()
            .filter(|(name, value)| !(matches!(name.as_str(), "dropped_rows" | "panics") && **value == 0.0))
            .map(|(name, value)| format!("{name} {}", number(*value, 2)))
            .collect();
        if !facts.is_empty() {
            let _ = writeln!(text, "  {}: {}", cell.name, facts.join(", "));
        }
    }
    text
}

/// What makes the numbers of some cells doubtful; empty when nothing does.
pub fn warnings(result: &ScenarioResult) -> String {
    let median = |cell: &CellResult, measure| cell.measure(measure).map(|spread| spread.median);
    let is_crowded = |cell: &&CellResult| median(cell, "others_percent").is_some_and(|others| others > OTHERS_PERCENT);
    let crowded = result.cells.iter().filter(is_crowded).map(|cell| {
        let others = median(cell, "others_percent").unwrap_or(0.0);
        format!("{} {others:.0} %", cell.name)
    });
    let is_idle = |cell: &&CellResult| {
        let used = median(cell, "own_busy_percent").map(|own| own + median(cell, "busy_percent").unwrap_or(0.0));
        may_not_wait(result, cell) && used.is_some_and(|used| used < IDLE_PERCENT)
    };
    let idle = result.cells.iter().filter(|cell| !is_crowded(cell) && is_idle(cell)).map(|cell| cell.name.clone());
    let (crowded, idle): (Vec<_>, Vec<_>) = (crowded.collect(), idle.collect());
    let mut text = String::new();
    if !crowded.is_empty() {
        let list = crowded.join(", ");
        let _ = writeln!(
            text,
            "  WARNING: others used these CPUs, too, in % of one: {list}; measure again when it is quiet"
        );
    }
    if !idle.is_empty() {
        let list = idle.join(", ");
        let _ = writeln!(
            text,
            "  WARNING: target and load were idle most of the time, held up by a disk or a quota: {list}"
        );
    }
    text
}

/// Of one CPU. Below this, the clock of a quiet machine and its ticks are all there is.
const OTHERS_PERCENT: f64 = 25.0;
/// Of one CPU: target and load together. In a closed loop one of the two always has something to do.
const IDLE_PERCENT: f64 = 50.0;

/// Whether nothing in a cell waits by intent: a closed loop without pauses, a provider that answers at once, no store.
fn may_not_wait(result: &ScenarioResult, cell: &CellResult) -> bool {
    let scenario = &result.scenario;
    let Some(spec) = scenario.cells.iter().find(|spec| spec.name == cell.name) else { return false };
    let load = spec.load.over(&scenario.load);
    let is_closed = load.rate.is_none() && load.rate_share.is_none() && load.once != Some(true);
    let has_pauses = load.think_ms.unwrap_or(0) > 0 || scenario.provider.delay_us > 0 || scenario.provider.gap_us > 0;
    // Of something that runs elsewhere nobody knows how busy it is.
    is_closed && !has_pauses && scenario.redis.is_none() && !cell.target.starts_with("http://")
}

/// The ratios of some scenarios and how each stands to what is asked of it.
pub fn ratios<'a>(results: impl IntoIterator<Item = &'a ScenarioResult>) -> String {
    let header = ["ratio", "found", "middle half", "n", "must", "aim", ""].map(str::to_owned).to_vec();
    let mut rows = vec![header];
    for result in results {
        for ratio in &result.scenario.ratios {
            let found = result.ratio(ratio);
            let must = match (ratio.at_most, ratio.at_least) {
                (Some(most), _) => format!("≤{most}"),
                (None, Some(least)) => format!("≥{least}"),
                (None, None) => String::new(),
            };
            let aim = ratio.aim.map_or_else(String::new, |aim| aim.to_string());
            let standing = Standing::of(ratio, found.map(|spread| spread.median)).word().to_owned();
            rows.push(vec![
                ratio.name.clone(),
                found.map_or_else(|| "·".to_owned(), |spread| significant(spread.median)),
                found.filter(|spread| spread.count > 1).map_or_else(String::new, middle),
                found.map_or_else(String::new, |spread| spread.count.to_string()),
                must,
                aim,
                standing,
            ]);
        }
    }
    if rows.len() == 1 { String::new() } else { aligned(&rows) }
}

fn middle(spread: Spread) -> String {
    format!("{}–{}", significant(spread.low), significant(spread.high))
}

/// Three significant digits.
fn significant(value: f64) -> String {
    let magnitude = value.abs();
    let digits = if magnitude >= 100.0 || magnitude == 0.0 {
        0
    } else if magnitude >= 10.0 {
        1
    } else if magnitude >= 1.0 {
        2
    } else if magnitude >= 0.1 {
        3
    } else {
        4
    };
    number(value, digits)
}

/// Columns as wide as their widest word; the first to the left, numbers to the right.
pub fn aligned(rows: &[Vec<String>]) -> String {
    let width = |text: &str| text.chars().count();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    // A row of two words is a remark, which stretches no column.
    let widths: Vec<usize> = (0..columns)
        .map(|column| {
            let cells = rows.iter().filter(|row| row.len() > 2 || column == 0).filter_map(|row| row.get(column));
            cells.map(|cell| width(cell)).max().unwrap_or(0)
        })
        .collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let pad = " ".repeat(widths[column].saturating_sub(width(cell)));
            let is_left = column == 0 || row.len() <= 2;
            line += &if is_left { format!("{cell}{pad}  ") } else { format!("{pad}{cell}  ") };
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::{made, ratio};

    #[test]
    fn numbers_read_easily() {
        assert_eq!(number(1_234_567.8, 0), "1,234,568");
        assert_eq!(number(-1234.5, 1), "-1,234.5");
        assert_eq!(number(999.0, 0), "999");
        assert_eq!(significant(0.7512), "0.751");
    }

    #[test]
    fn a_table_shows_medians_spread_and_how_many_windows_count() {
        let results = made(&[("a", "cpu_us", &[10.0, 12.0, -1.0]), ("bb", "cpu_us", &[20.0, 22.0, 21.0])]);
        let text = cells(&results.scenarios[0]);
        assert!(text.contains("11.00 ±5%"), "{text}");
        assert!(text.contains("2/3") && text.contains("3/3"), "{text}");
    }

    #[test]
    fn numbers_from_a_busy_machine_carry_a_warning() {
        let mut results =
            made(&[("a", "others_percent", &[90.0, 94.0, 98.0]), ("b", "others_percent", &[3.0, 60.0, 4.0])]);
        let text = warnings(&results.scenarios[0]);
        assert!(text.contains("others used these CPUs, too, in % of one: a 94 %;"), "{text}");
        let windows = &mut results.scenarios[0].cells[1].windows;
        for window in windows {
            window.measures.insert("own_busy_percent".into(), 2.0);
        }
        let text = warnings(&results.scenarios[0]);
        assert!(text.contains("idle most of the time, held up by a disk or a quota: b\n"), "{text}");
        results.scenarios[0].scenario.load.think_ms = Some(5);
        assert!(!warnings(&results.scenarios[0]).contains("idle"));
    }

    #[test]
    fn a_ratio_says_how_it_stands() {
        let mut results = made(&[("a", "cpu_us", &[10.0, 10.0]), ("b", "cpu_us", &[20.0, 20.0])]);
        results.scenarios[0].scenario.ratios = vec![ratio("a", "b")];
        let text = ratios(&results.scenarios);
        assert!(text.contains("0.500") && text.contains("aim reached") && text.contains("≤0.95"), "{text}");
    }
}
