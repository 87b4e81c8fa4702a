//! How many tokens a `tpm` reserve takes, and what becomes of it when the request is over.
//!
//! Pure sums. The gate takes the reserve, [`crate::gate::Held`] gives it back or corrects it; this file says by how
//! much, and how much an estimate of the answer may come to. Counting the tokens of a request or of an answer is done
//! elsewhere.

use crate::rate::RESERVE_CAP_TOKENS;

/// What the parsed request says about its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputBound {
    /// The largest cap in the body; `None` when the caller bounded nothing.
    pub cap: Option<u64>,
    /// Answers asked for: `n`, for each prompt. 0 reads as 1.
    pub choices: u64,
}

impl OutputBound {
    /// Tokens of an answer that were estimated from its text, held to what the request allowed: choices × cap, for a
    /// provider ends each choice at its cap. A cap of 0 allows no text, so text that came all the same was not held to it.
    /// Only for estimates: what a provider reports stands.
    pub fn hold_estimate(self, tokens: u64) -> u64 {
        match self.cap {
            Some(each) if each > 0 => tokens.min(each.saturating_mul(self.choices.max(1))),
            _ => tokens,
        }
    }
}

/// Tokens to reserve under a limit that holds at most `burst`: input + min(choices × min(cap, 16,384), burst − input). Cut to
/// the burst, so that a call that bounds nothing is not refused for ever; an input that alone is over the burst stays
/// over it, and is refused as *never*. `output` is `None` for endpoints that answer no text.
pub fn reserve_tokens(input: u64, output: Option<OutputBound>, burst: u64) -> u64 {
    let Some(OutputBound { cap, choices }) = output else { return input };
    let each = cap.unwrap_or(RESERVE_CAP_TOKENS).min(RESERVE_CAP_TOKENS);
    let wanted = each.saturating_mul(choices.max(1));
    input.saturating_add(wanted.min(burst.saturating_sub(input)))
}

/// What the request came to, for its reserves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// Input and output as recorded on the row, reported or estimated: the signed difference is booked.
    Used { tokens: u64 },
    /// Nothing was used: the whole reserve goes back.
    Returned,
}

impl Settlement {
    /// A provider that answered with an error, or was never sent the whole request, used nothing. Once the request was
    /// written, what the row says was used is booked, also when the caller left early.
    pub fn of(request_written: bool, provider_error: bool, tokens: u64) -> Settlement {
        if request_written && !provider_error { Settlement::Used { tokens } } else { Settlement::Returned }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn asks(cap: Option<u64>, choices: u64) -> Option<OutputBound> {
        Some(OutputBound { cap, choices })
    }

    #[test]
    fn an_unbounded_question_of_31_bytes_reserves_16_391() {
        assert_eq!(reserve_tokens(31 / 4, asks(None, 1), 20_000), 7 + 16_384);
    }

    #[test]
    fn a_bound_lowers_the_reserve_and_more_choices_multiply_it() {
        assert_eq!(reserve_tokens(100, asks(Some(500), 1), 50_000), 600);
        assert_eq!(reserve_tokens(100, asks(Some(500), 4), 50_000), 2_100);
        assert_eq!(reserve_tokens(100, asks(Some(0), 1), 50_000), 100);
        assert_eq!(reserve_tokens(100, asks(Some(u64::MAX), 1), 50_000), 16_484, "no cap reserves more than 16,384");
        assert_eq!(reserve_tokens(100, None, 50_000), 100, "embeddings answer no text");
        assert_eq!(reserve_tokens(100, asks(Some(500), 0), 50_000), 600);
    }

    #[test]
    fn a_reserve_is_cut_to_the_burst_but_its_input_is_not() {
        assert_eq!(reserve_tokens(5_000, asks(None, 1), 16_384), 16_384);
        assert_eq!(reserve_tokens(16_384, asks(None, 1), 16_384), 16_384);
        assert_eq!(reserve_tokens(16_385, asks(None, 1), 16_384), 16_385, "over the burst: never");
        assert_eq!(reserve_tokens(1, asks(Some(16_384), u64::MAX), 20_000), 20_000);
    }

    #[test]
    fn an_estimate_of_389_tokens_is_held_to_the_300_that_were_asked_for() {
        let held = |cap, choices| OutputBound { cap, choices }.hold_estimate(389);
        assert_eq!(held(Some(300), 1), 300);
        assert_eq!(held(Some(300), 0), 300);
        assert_eq!(held(Some(389), 1), 389);
        assert_eq!(held(Some(150), 2), 300, "each of two choices may have 150");
        assert_eq!(held(Some(300), 2), 389, "600 were asked for");
        assert_eq!(held(None, 1), 389, "nothing bounded it");
        assert_eq!(held(Some(0), 1), 389, "what came was not held to it");
        assert_eq!(held(Some(u64::MAX), u64::MAX), 389);
    }

    #[test]
    fn only_a_request_that_was_written_and_not_answered_with_an_error_used_anything() {
        assert_eq!(Settlement::of(true, false, 140), Settlement::Used { tokens: 140 });
        assert_eq!(Settlement::of(false, false, 140), Settlement::Returned);
        assert_eq!(Settlement::of(true, true, 140), Settlement::Returned);
    }

    proptest! {
        #[test]
        fn a_reserve_holds_its_input_and_fits_the_burst_if_the_input_does(
            input: u64, cap: Option<u64>, choices: u64, burst in 1u64..
        ) {
            let reserve = reserve_tokens(input, asks(cap, choices), burst);
            prop_assert!(reserve >= input);
            prop_assert_eq!(reserve <= burst, input <= burst);
        }
    }
}
