//! Finds the word an operator probably meant. Called where a config value must be one of a few words.

/// The allowed word closest to `word`, if it is close enough to be a slip: at most a third of its letters wrong.
pub fn nearest<'a>(word: &str, allowed: &[&'a str]) -> Option<&'a str> {
    let word = word.trim().to_ascii_lowercase();
    let slips_max = |candidate: &str| (candidate.chars().count() / 3).max(1);
    allowed
        .iter()
        .map(|candidate| (slips(&word, candidate), *candidate))
        .filter(|(slips, candidate)| *slips <= slips_max(candidate))
        .min_by_key(|(slips, _)| *slips)
        .map(|(_, candidate)| candidate)
}

/// Letters to insert, drop, replace or swap with their neighbour to turn one word into the other.
fn slips(left: &str, right: &str) -> usize {
    let (left, right): (Vec<char>, Vec<char>) = (left.chars().take(128).collect(), right.chars().take(128).collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=right.len()).collect()];
    for i in 1..=left.len() {
        let mut row = vec![i];
        for j in 1..=right.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(left[i - 1] != right[j - 1]);
            let mut best = replaced.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && left[i - 1] == right[j - 2] && left[i - 2] == right[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[left.len()][right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_recognised_and_a_stranger_is_not() {
        let types = ["budget_usd", "quota_tokens", "quota_requests", "rpm", "tpm", "concurrency"];
        assert_eq!(nearest("rmp", &types), Some("rpm"));
        assert_eq!(nearest("Budget-USD", &types), Some("budget_usd"));
        assert_eq!(nearest("concurency", &types), Some("concurrency"));
        assert_eq!(nearest("quota_token", &types), Some("quota_tokens"));
        assert_eq!(nearest("spend", &types), None);
        assert_eq!(nearest("", &types), None);
    }
}
