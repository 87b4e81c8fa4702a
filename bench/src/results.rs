//! What a run found, as it is kept in JSON: every window of every round, so that a reader can judge the spread.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::builds::Build;
use crate::machine::{Machine, Placement};
use crate::scenario::{Ratio, Scenario};
use crate::stats::Spread;
use crate::trouble::{Result, While};

/// The form of the file; raised when a reader of an older one would misread it.
pub const FORMAT: u32 = 1;

/// One run of one or more scenarios.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Results {
    pub format: u32,
    /// Unix seconds.
    pub began_s: u64,
    pub machine: Machine,
    /// Our gateway's files that were measured. Files of before this was kept have none.
    #[serde(default)]
    pub builds: Vec<Build>,
    pub scenarios: Vec<ScenarioResult>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ScenarioResult {
    /// As the file says it, so that a report can be read without the file.
    pub scenario: Scenario,
    pub name: String,
    pub cells: Vec<CellResult>,
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CellResult {
    pub name: String,
    pub target: String,
    pub placement: Placement,
    /// Why there is no number, when the target is not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
    /// It is installed and did not start.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_broken: bool,
    pub windows: Vec<WindowResult>,
    /// Measured once: memory, system calls, allocations, dropped rows.
    pub facts: BTreeMap<String, f64>,
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WindowResult {
    pub round: u32,
    pub is_valid: bool,
    /// Failures inside the window, by their words.
    pub failures: BTreeMap<String, u64>,
    /// Failures while warming up.
    pub early_failures: BTreeMap<String, u64>,
    pub measures: BTreeMap<String, f64>,
    /// Percentile and microseconds, for the plot.
    pub curve: Vec<(f64, f64)>,
}

impl CellResult {
    /// A measure over the valid windows, or a fact.
    pub fn measure(&self, name: &str) -> Option<Spread> {
        if let Some(fact) = self.facts.get(name) {
            return Spread::of([*fact]);
        }
        Spread::of(self.windows.iter().filter(|w| w.is_valid).filter_map(|w| w.measures.get(name).copied()))
    }

    pub fn valid_windows(&self) -> usize {
        self.windows.iter().filter(|window| window.is_valid).count()
    }
}

impl ScenarioResult {
    pub fn cell(&self, name: &str) -> Option<&CellResult> {
        self.cells.iter().find(|cell| cell.name == name)
    }

    /// A ratio round by round where both sides have the round, so that what drifts on the machine cancels out.
    pub fn ratio(&self, ratio: &Ratio) -> Option<Spread> {
        let of = self.cell(&ratio.of)?;
        let Some(over) = &ratio.over else { return of.measure(&ratio.measure) };
        let over = self.cell(over)?;
        if let (Some(of), Some(over)) = (of.facts.get(&ratio.measure), over.facts.get(&ratio.measure)) {
            return Spread::of([of / over]);
        }
        let paired = of.windows.iter().filter(|window| window.is_valid).filter_map(|window| {
            let other = over.windows.iter().find(|other| other.is_valid && other.round == window.round)?;
            Some(window.measures.get(&ratio.measure)? / other.measures.get(&ratio.measure)?)
        });
        Spread::of(paired)
    }
}

/// How a number stands to what was asked of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Aim,
    Met,
    Missed,
    Unmeasured,
    /// Nothing was asked of it.
    Told,
}

impl Standing {
    pub fn of(ratio: &Ratio, value: Option<f64>) -> Self {
        let Some(value) = value else { return Standing::Unmeasured };
        let is_met =
            ratio.at_most.is_none_or(|most| value <= most) && ratio.at_least.is_none_or(|least| value >= least);
        let is_aim = ratio.aim.is_some_and(|aim| if ratio.at_least.is_some() { value >= aim } else { value <= aim });
        match (is_met, is_aim) {
            (false, _) => Standing::Missed,
            (true, true) => Standing::Aim,
            (true, false) if ratio.at_most.is_none() && ratio.at_least.is_none() => Standing::Told,
            (true, false) => Standing::Met,
        }
    }

    pub fn word(self) -> &'static str {
        match self {
            Standing::Aim => "aim reached",
            Standing::Met => "met",
            Standing::Missed => "MISSED",
            Standing::Unmeasured => "not measured",
            Standing::Told => "",
        }
    }
}

impl Results {
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).whilst(|| format!("cannot read {}", path.display()))?;
        let results: Results =
            serde_json::from_str(&text).whilst(|| format!("{} is no result of this harness", path.display()))?;
        if results.format != FORMAT {
            return Err(crate::trouble::Trouble(format!(
                "{} has form {}, this harness reads {FORMAT}; measure again",
                path.display(),
                results.format
            )));
        }
        Ok(results)
    }

    pub fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self).whilst(|| "the result".to_owned())?;
        fs::write(path, text + "\n").whilst(|| format!("cannot write {}", path.display()))
    }
}

/// Whether a file for a result can be written, asked before anything is measured. What is in it stays until there is a
/// result; a pipe or a device is not asked, because its reader would see the end.
pub fn check_writable(path: &Path) -> Result<()> {
    // Of the entry itself: a link to nothing is there, and is not ours to remove.
    let is_new = fs::symlink_metadata(path).is_err();
    let found = fs::metadata(path);
    if found.as_ref().is_ok_and(|found| !found.is_file() && !found.is_dir()) {
        return Ok(());
    }
    let opened = fs::OpenOptions::new().write(true).create(true).truncate(false).open(path);
    opened.whilst(|| format!("cannot write {}", path.display()))?;
    if is_new {
        let _ = fs::remove_file(path); // a run that fails leaves no empty file
    }
    Ok(())
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A scenario with cells of one measure each, window by window; a negative value is an invalid window.
    pub fn made(cells: &[(&str, &str, &[f64])]) -> Results {
        let names: Vec<String> = cells.iter().map(|(name, ..)| format!("{{ target: direct, name: {name} }}")).collect();
        let text = format!("{{ about: made, cells: [{}] }}", names.join(", "));
        let cell = |(name, measure, values): &(&str, &str, &[f64])| CellResult {
            name: (*name).to_owned(),
            target: "direct".to_owned(),
            placement: Placement::of(&[0, 1], 1),
            skipped: None,
            is_broken: false,
            windows: (0..)
                .zip(*values)
                .map(|(round, value)| WindowResult {
                    round,
                    is_valid: *value >= 0.0,
                    failures: BTreeMap::new(),
                    early_failures: BTreeMap::new(),
                    measures: BTreeMap::from([((*measure).to_owned(), value.abs())]),
                    curve: vec![(50.0, 100.0), (99.0, 400.0)],
                })
                .collect(),
            facts: BTreeMap::new(),
            notes: Vec::new(),
        };
        Results {
            format: FORMAT,
            began_s: 0,
            machine: Machine::default(),
            builds: Vec::new(),
            scenarios: vec![ScenarioResult {
                scenario: Scenario::parse("made", &text).unwrap(),
                name: "made".to_owned(),
                cells: cells.iter().map(cell).collect(),
                notes: Vec::new(),
            }],
        }
    }

    pub fn ratio(of: &str, over: &str) -> Ratio {
        Ratio {
            name: "r".into(),
            measure: "cpu_us".into(),
            of: of.into(),
            over: Some(over.into()),
            at_most: Some(0.95),
            at_least: None,
            aim: Some(0.75),
        }
    }

    #[test]
    fn a_ratio_is_taken_round_by_round_and_leaves_out_invalid_windows() {
        // The machine slows down by half from round to round; the ratio stays one half.
        let results = made(&[("a", "cpu_us", &[10.0, 20.0, -99.0, 40.0]), ("b", "cpu_us", &[20.0, 40.0, 60.0, 80.0])]);
        let found = results.scenarios[0].ratio(&ratio("a", "b")).unwrap();
        assert_eq!((found.low, found.median, found.high, found.count), (0.5, 0.5, 0.5, 3));
        assert_eq!(results.scenarios[0].cell("a").unwrap().valid_windows(), 3);
    }

    #[test]
    fn a_number_stands_to_what_was_asked_of_it() {
        let most = ratio("a", "b");
        let standing = |value| Standing::of(&most, value);
        assert_eq!(standing(Some(0.7)), Standing::Aim);
        assert_eq!(standing(Some(0.9)), Standing::Met);
        assert_eq!(standing(Some(1.0)), Standing::Missed);
        assert_eq!(standing(None), Standing::Unmeasured);
        let least = Ratio { at_most: None, at_least: Some(1.0), aim: Some(1.25), ..most };
        assert_eq!(Standing::of(&least, Some(1.3)), Standing::Aim);
        assert_eq!(Standing::of(&least, Some(1.1)), Standing::Met);
        assert_eq!(Standing::of(&least, Some(0.9)), Standing::Missed);
    }

    #[test]
    fn whether_a_file_can_be_written_is_known_without_touching_it() {
        let path = std::env::temp_dir().join(format!("bench-writable-{}.json", std::process::id()));
        check_writable(&path).unwrap();
        assert!(!path.exists());
        fs::write(&path, "an older result").unwrap();
        check_writable(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "an older result");
        fs::remove_file(&path).unwrap();
        let error = check_writable(Path::new("/nope/x.json")).unwrap_err().to_string();
        assert!(error.starts_with("cannot write /nope/x.json: "), "{error}");
        assert!(check_writable(&std::env::temp_dir()).is_err());
        // A link to nothing stays a link.
        let link = path.with_extension("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        check_writable(&link).unwrap();
        assert!(link.is_symlink());
        [&link, &path].into_iter().for_each(|left| fs::remove_file(left).unwrap());
        check_writable(Path::new("/dev/null")).unwrap();
    }

    #[test]
    fn a_result_of_before_builds_were_kept_is_still_read() {
        let mut old = serde_json::to_value(made(&[("a", "rps", &[1.0])])).unwrap();
        old.as_object_mut().unwrap().remove("builds");
        assert!(serde_json::from_value::<Results>(old).unwrap().builds.is_empty());
    }

    #[test]
    fn a_result_survives_its_file() {
        let results = made(&[("a", "rps", &[1.0, 2.0])]);
        let path = std::env::temp_dir().join(format!("bench-results-{}.json", std::process::id()));
        results.write(&path).unwrap();
        let back = Results::read(&path).unwrap();
        assert_eq!(serde_json::to_string(&back).unwrap(), serde_json::to_string(&results).unwrap());
        fs::remove_file(path).unwrap();
    }
}
