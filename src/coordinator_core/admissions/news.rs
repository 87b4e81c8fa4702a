//! What Redis says of admissions, and when that is news: a server that refuses every call of a busy core says the same
//! thousands of times a second.

use shards::units::WallMs;

/// The same words are news again when they were not heard for this long.
const AGAIN_MS: u64 = 60_000;

/// What was heard last, and when.
#[derive(Default)]
pub struct News(Option<(String, WallMs)>);

impl News {
    /// Hears it. `true` when it is news: other words than last time, or the same after a minute without.
    pub fn heard(&mut self, error: &str, now: WallMs) -> bool {
        match &mut self.0 {
            Some((before, at)) if before == error => {
                let before = std::mem::replace(at, now);
                now.0.abs_diff(before.0) >= AGAIN_MS
            }
            other => {
                *other = Some((error.to_owned(), now));
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_news_when_they_begin_change_or_come_back() {
        let mut news = News::default();
        assert!(news.heard("OOM", WallMs(0)));
        assert!((1..100_000).all(|at_ms| !news.heard("OOM", WallMs(at_ms))), "it never stopped");
        assert!(news.heard("READONLY", WallMs(100_000)));
        assert!(!news.heard("READONLY", WallMs(159_999)) && news.heard("READONLY", WallMs(219_999)));
    }
}
