//! Two results side by side: what moved beyond noise, and which way.
//!
//! A measure moved when its medians differ by more than 3 % *and* by more than the two spreads explain: the halves of
//! the middle halves added up, widened by half. Fewer than three valid windows on a side say nothing. Facts, which are
//! measured once, moved when they differ by more than 10 %.

use crate::report::table;
use crate::results::{CellResult, Results};
use crate::stats::Spread;
use crate::trouble::{Result, trouble};

const LEAST_SHARE: f64 = 0.03;
const LEAST_FACT_SHARE: f64 = 0.10;
const SPREAD_FACTOR: f64 = 1.5;
const LEAST_WINDOWS: usize = 3;

/// Measures that are compared; the rest says how the run went, not how good the target is.
const MEASURES: &[&str] = &[
    "rps",
    "cpu_us",
    "cpu_us_per_stream",
    "frames_per_s",
    "p50_us",
    "p99_us",
    "p999_us",
    "first_byte_p50_us",
    "first_byte_p99_us",
    "gap_p99_us",
    "allocations_per_request",
    "redis_cpu_us",
];
const FACTS: &[&str] =
    &["rss_idle_mb", "rss_after_mb", "rss_peak_mb", "syscalls_per_request", "dropped_rows", "first_call_cpu_us"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Better,
    Worse,
    Same,
    TooFew,
}

/// The noise rule.
pub fn verdict(measure: &str, old: Spread, new: Spread) -> Verdict {
    if old.count.min(new.count) < LEAST_WINDOWS {
        return Verdict::TooFew;
    }
    let moved = (new.median - old.median).abs();
    let noise = SPREAD_FACTOR * (old.half_width() + new.half_width());
    if moved <= noise || moved <= LEAST_SHARE * old.median.abs() { Verdict::Same } else { direction(measure, old, new) }
}

fn direction(measure: &str, old: Spread, new: Spread) -> Verdict {
    let more_is_better = matches!(measure, "rps" | "frames_per_s");
    if (new.median > old.median) == more_is_better { Verdict::Better } else { Verdict::Worse }
}

fn fact_verdict(measure: &str, old: f64, new: f64) -> Verdict {
    if (new - old).abs() <= LEAST_FACT_SHARE * old.abs() {
        return Verdict::Same;
    }
    let one = |value: f64| Spread { median: value, low: value, high: value, count: 1 };
    direction(measure, one(old), one(new))
}

/// A table of what moved, and how many measures did not. The number of moved ones comes with it. An error when the two
/// have nothing in common.
pub fn compare(old: &Results, new: &Results) -> Result<(String, usize)> {
    if pairs(old, new).next().is_none() {
        let (old, new) = (cells(old), cells(new));
        return trouble(format!("nothing to compare: no cell is in both\n  old: {old}\n  new: {new}"));
    }
    let mut rows = vec![["", "measure", "old", "new", "change", ""].map(str::to_owned).to_vec()];
    let (mut same, mut too_few) = (0, 0);
    for (scenario, name, before, after) in pairs(old, new) {
        let windows = MEASURES.iter().filter_map(|measure| {
            let (old, new) = (before.measure(measure)?, after.measure(measure)?);
            Some((*measure, old.median, new.median, verdict(measure, old, new)))
        });
        let facts = FACTS.iter().filter_map(|fact| {
            let (old, new) = (*before.facts.get(*fact)?, *after.facts.get(*fact)?);
            Some((*fact, old, new, fact_verdict(fact, old, new)))
        });
        for (measure, old, new, verdict) in windows.chain(facts) {
            let word = match verdict {
                Verdict::Same => {
                    same += 1;
                    continue;
                }
                Verdict::TooFew => {
                    too_few += 1;
                    continue;
                }
                Verdict::Better => "better",
                Verdict::Worse => "WORSE",
            };
            let change = format!("{:+.1} %", 100.0 * (new / old - 1.0));
            let numbers = [table::number(old, 2), table::number(new, 2), change, word.to_owned()];
            rows.push([vec![format!("{scenario}: {name}"), measure.to_owned()], numbers.to_vec()].concat());
        }
    }
    let moved = rows.len() - 1;
    if moved + same + too_few == 0 {
        return trouble("nothing to compare: no cell that is in both has a valid window in both");
    }
    let mut text = match (moved, same) {
        (0, 0) => "Too few windows to tell what moved.\n".to_owned(),
        (0, _) => "Nothing moved beyond noise.\n".to_owned(),
        _ => table::aligned(&rows),
    };
    text += &format!("{moved} moved, {same} did not");
    if too_few > 0 {
        text += &format!(", {too_few} have fewer than {LEAST_WINDOWS} valid windows");
    }
    if old.machine.cpu != new.machine.cpu || old.machine.kernel != new.machine.kernel {
        text += "\nThe two were measured on different machines or kernels: this compares those, too";
    }
    Ok((text + ".\n", moved))
}

/// What a result has, scenario by scenario.
fn cells(results: &Results) -> String {
    let scenarios = results.scenarios.iter().map(|scenario| {
        let names: Vec<&str> = scenario.cells.iter().map(|cell| cell.name.as_str()).collect();
        format!("{} ({})", scenario.name, names.join(", "))
    });
    let scenarios: Vec<String> = scenarios.collect();
    if scenarios.is_empty() { "nothing".to_owned() } else { scenarios.join(", ") }
}

/// Cells that both have.
fn pairs<'a>(
    old: &'a Results,
    new: &'a Results,
) -> impl Iterator<Item = (&'a str, &'a str, &'a CellResult, &'a CellResult)> {
    old.scenarios.iter().flat_map(move |before| {
        let after = new.scenarios.iter().find(|after| after.name == before.name);
        before
            .cells
            .iter()
            .filter_map(move |cell| Some((before.name.as_str(), cell.name.as_str(), cell, after?.cell(&cell.name)?)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::made;

    fn spread(values: &[f64]) -> Spread {
        Spread::of(values.iter().copied()).unwrap()
    }

    #[test]
    fn a_difference_inside_the_spread_is_noise_and_one_outside_is_not() {
        let old = spread(&[10.0, 10.2, 10.4, 9.8, 9.6]); // middle half 9.8 to 10.2: half width 0.2
        assert_eq!(verdict("cpu_us", old, spread(&[10.5, 10.7, 10.9, 10.3, 10.1])), Verdict::Same); // 0.5 < 0.6
        assert_eq!(verdict("cpu_us", old, spread(&[10.8, 11.0, 11.2, 10.6, 10.4])), Verdict::Worse); // 0.8 > 0.6
        assert_eq!(verdict("cpu_us", old, spread(&[9.2, 9.0, 8.8, 9.4, 9.6])), Verdict::Better);
        assert_eq!(verdict("rps", old, spread(&[10.8, 11.0, 11.2, 10.6, 10.4])), Verdict::Better);
    }

    #[test]
    fn a_tiny_difference_without_any_spread_is_still_none() {
        assert_eq!(verdict("cpu_us", spread(&[100.0; 5]), spread(&[102.0; 5])), Verdict::Same);
        assert_eq!(verdict("cpu_us", spread(&[100.0; 5]), spread(&[104.0; 5])), Verdict::Worse);
    }

    #[test]
    fn two_windows_say_nothing() {
        assert_eq!(verdict("rps", spread(&[1.0, 1.0]), spread(&[2.0; 5])), Verdict::TooFew);
    }

    #[test]
    fn a_result_compared_with_itself_has_not_moved() {
        let results = made(&[("a", "cpu_us", &[10.0, 11.0, 12.0]), ("b", "rps", &[5.0, 6.0, 7.0])]);
        let (text, moved) = compare(&results, &results).unwrap();
        assert_eq!(moved, 0);
        assert!(text.starts_with("Nothing moved beyond noise.\n0 moved, 2 did not."), "{text}");
    }

    #[test]
    fn what_moved_is_listed_with_its_change() {
        let old = made(&[("a", "cpu_us", &[10.0, 10.0, 10.0])]);
        let new = made(&[("a", "cpu_us", &[20.0, 20.0, 20.0])]);
        let (text, moved) = compare(&old, &new).unwrap();
        assert_eq!(moved, 1);
        assert!(text.contains("made: a") && text.contains("+100.0 %") && text.contains("WORSE"), "{text}");
    }

    #[test]
    fn two_results_without_a_common_cell_are_not_compared() {
        let old = made(&[("a", "cpu_us", &[10.0; 3])]);
        let new = made(&[("b", "cpu_us", &[10.0; 3]), ("c", "cpu_us", &[10.0; 3])]);
        let error = compare(&old, &new).unwrap_err().to_string();
        assert_eq!(error, "nothing to compare: no cell is in both\n  old: made (a)\n  new: made (b, c)");
    }

    #[test]
    fn what_failed_in_one_of_them_is_not_compared() {
        let error = compare(&made(&[("a", "rps", &[5.0; 3])]), &made(&[("a", "rps", &[-5.0; 3])])).unwrap_err();
        assert!(error.to_string().contains("a valid window in both"), "{error}");
    }
}
