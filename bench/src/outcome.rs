//! Whether a run measured what was asked of it: what its exit code says, whatever the numbers are.

use crate::results::{CellResult, Results};
use crate::targets::PEERS;
use crate::trouble::{Result, trouble};

/// An error when no cell has a valid window, when none of our gateway's has one, or when one that was named by `--only` or
/// `--also` has none.
///
/// A peer that is not installed is no fault of the run: it goes on without it, and its row says so.
pub fn judge(results: &Results, only: &[String], also: &[String]) -> Result<()> {
    let cells = || results.scenarios.iter().flat_map(|scenario| &scenario.cells);
    if cells().all(|cell| cell.valid_windows() == 0) {
        let why = cells().map(why).next().unwrap_or_default();
        return trouble(format!("nothing was measured: no cell has a valid window ({why})"));
    }
    let is_asked =
        |cell: &CellResult| also.contains(&cell.name) || only.iter().any(|part| cell.name.contains(part.as_str()));
    let missed = cells().filter(|cell| cell.valid_windows() == 0 && is_asked(cell) && !is_absent_peer(cell));
    let missed: Vec<String> = missed.map(|cell| format!("{} ({})", cell.name, why(cell))).collect();
    if !missed.is_empty() {
        return trouble(format!("asked for and not measured: {}", missed.join(", ")));
    }
    let mut ours = cells().filter(|cell| matches!(base(cell), "plain" | "governed")).peekable();
    match ours.peek().map(|cell| why(cell)) {
        Some(why) if ours.all(|cell| cell.valid_windows() == 0) => {
            trouble(format!("our gateway was not measured: none of its cells has a valid window ({why})"))
        }
        _ => Ok(()),
    }
}

fn base(cell: &CellResult) -> &str {
    cell.target.split('+').next().unwrap_or_default()
}

fn is_absent_peer(cell: &CellResult) -> bool {
    cell.skipped.is_some() && !cell.is_broken && PEERS.iter().any(|peer| peer.name == base(cell))
}

fn why(cell: &CellResult) -> String {
    if let Some(skipped) = &cell.skipped {
        return skipped.lines().next().unwrap_or_default().to_owned();
    }
    let failures = cell.windows.iter().flat_map(|window| &window.failures);
    let most = failures.max_by_key(|(_, count)| **count);
    most.map_or_else(|| "nothing was answered".to_owned(), |(words, _)| words.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::made;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn a_run_without_a_valid_window_is_an_error() {
        let mut results = made(&[("a", "rps", &[-1.0, -1.0]), ("b", "rps", &[])]);
        results.scenarios[0].cells[0].windows[1].failures.insert("connection refused".to_owned(), 3);
        let why = judge(&results, &[], &[]).unwrap_err().to_string();
        assert_eq!(why, "nothing was measured: no cell has a valid window (connection refused)");
    }

    #[test]
    fn a_cell_that_was_not_asked_for_by_name_may_fail() {
        let results = made(&[("a", "rps", &[1.0]), ("b", "rps", &[-1.0])]);
        assert!(judge(&results, &[], &[]).is_ok());
        assert!(judge(&results, &words(&["a"]), &[]).is_ok());
        let why = judge(&results, &words(&["b"]), &[]).unwrap_err().to_string();
        assert_eq!(why, "asked for and not measured: b (nothing was answered)");
        assert!(judge(&results, &[], &words(&["b"])).is_err());
    }

    #[test]
    fn a_run_that_measured_all_but_our_gateway_is_an_error() {
        let mut results = made(&[("a", "rps", &[1.0]), ("b", "rps", &[]), ("c", "rps", &[])]);
        results.scenarios[0].cells[1].target = "governed".into();
        results.scenarios[0].cells[2].target = "plain+driver=epoll".into();
        let why = judge(&results, &[], &[]).unwrap_err().to_string();
        assert!(why.starts_with("our gateway was not measured"), "{why}");
        results.scenarios[0].cells[2] = results.scenarios[0].cells[0].clone();
        results.scenarios[0].cells[2].target = "plain".into();
        assert!(judge(&results, &[], &[]).is_ok());
    }

    #[test]
    fn a_peer_that_is_not_installed_is_no_failure_and_a_missing_gateway_of_ours_is() {
        let mut results = made(&[("a", "rps", &[1.0]), ("b", "rps", &[])]);
        let cell = &mut results.scenarios[0].cells[1];
        (cell.target, cell.skipped) = ("nginx+cores=2".into(), Some("nginx is not installed".into()));
        assert!(judge(&results, &words(&["b"]), &[]).is_ok());
        results.scenarios[0].cells[1].is_broken = true;
        assert!(judge(&results, &[], &[]).is_ok(), "nobody asked for it");
        assert!(judge(&results, &words(&["b"]), &[]).is_err(), "it is there and did not start");
        results.scenarios[0].cells[1].target = "governed".into();
        assert!(judge(&results, &words(&["b"]), &[]).is_err());
    }
}
