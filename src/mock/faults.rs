//! What the model's name asks the mock to do: `mock` is healthy, each `+word` behind it bends the answer.
//!
//! | word | effect |
//! |---|---|
//! | `status429` `status500` `status503` `status529` | answers that status in the vendor's error shape |
//! | `delayN` | waits N ms before the first byte, instead of the configured latency |
//! | `slowN` | waits N ms after each chunk of a stream |
//! | `cut` | breaks the connection in the middle of the answer |
//!
//! An unknown word changes nothing, so that a model may carry a `+` of its own. Called by `route`.

use std::time::Duration;

/// The statuses that can be asked for, with the error type OpenAI and Anthropic give them.
const STATUSES: [(u16, &str); 4] =
    [(429, "rate_limit_error"), (500, "api_error"), (503, "api_error"), (529, "overloaded_error")];

/// The faults one model name carries.
#[derive(Debug, Default, PartialEq)]
pub struct Faults {
    /// Answer this status, with this error type, instead of a reply.
    pub status: Option<(u16, &'static str)>,
    pub latency: Option<Duration>,
    pub chunk_delay: Option<Duration>,
    pub cut: bool,
}

impl Faults {
    pub fn of_model(model: &str) -> Self {
        let mut faults = Self::default();
        for word in model.split('+').skip(1) {
            if word == "cut" {
                faults.cut = true;
            } else if let Some(wait) = milliseconds(word, "delay") {
                faults.latency = Some(wait);
            } else if let Some(wait) = milliseconds(word, "slow") {
                faults.chunk_delay = Some(wait);
            } else if let Some(code) = word.strip_prefix("status") {
                faults.status = STATUSES.into_iter().find(|(status, _)| code == status.to_string()).or(faults.status);
            }
        }
        faults
    }
}

fn milliseconds(word: &str, name: &str) -> Option<Duration> {
    // u32: 49 days is more than any test waits, and the sum with the clock cannot overflow.
    word.strip_prefix(name)?.parse::<u32>().ok().map(|ms| Duration::from_millis(u64::from(ms)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_name_carries_no_fault() {
        assert_eq!(Faults::of_model("mock"), Faults::default());
        assert_eq!(Faults::of_model(""), Faults::default());
    }

    #[test]
    fn faults_add_up_in_any_order() {
        let faults = Faults::of_model("mock+slow200+cut+delay5+status529");
        assert_eq!(faults.chunk_delay, Some(Duration::from_millis(200)));
        assert_eq!(faults.latency, Some(Duration::from_millis(5)));
        assert_eq!(faults.status, Some((529, "overloaded_error")));
        assert!(faults.cut);
    }

    #[test]
    fn unknown_words_and_odd_numbers_change_nothing() {
        assert_eq!(Faults::of_model("llama+instruct+status418+slow+slow99999999999+delay-1"), Faults::default());
    }
}
