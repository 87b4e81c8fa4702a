//! What one request used, settled from the provider's own report: the numbers that tokens are counted by and
//! money is computed from.
//!
//! Decides which reported numbers can be believed, how the two provider families' shapes become one, and what an
//! estimate fills in. It does not read provider JSON (that is `io::usage`), knows no price and no limit. Called
//! once per forwarded request, at settlement.
//!
//! One shape for every provider: `input` is the whole prompt; `cached_input` and `cache_write` are parts of it;
//! `reasoning` is a part of `output`. A token quota counts `input + output`.

use compact_str::CompactString;

/// More tokens than any reply can hold: 2^40 = 1.1 × 10^12, about a million times the largest prompt sold today.
/// A provider that says more is wrong, and the sum of a few such numbers must still fit 64 bits.
pub const TOKENS_ABSURD: u64 = 1 << 40;

/// Whose numbers these are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UsageSource {
    /// Every number that costs money came from the provider.
    Reported,
    /// At least one of input and output was missing or unusable and was estimated from bytes.
    Estimated,
    /// The request used nothing: it was refused, or it failed before anything could be billed.
    #[default]
    None,
}

impl UsageSource {
    pub fn as_str(self) -> &'static str {
        match self {
            UsageSource::Reported => "reported",
            UsageSource::Estimated => "estimated",
            UsageSource::None => "none",
        }
    }

    pub fn parse(text: &str) -> Option<UsageSource> {
        match text {
            "reported" => Some(UsageSource::Reported),
            "estimated" => Some(UsageSource::Estimated),
            "none" => Some(UsageSource::None),
            _ => None,
        }
    }
}

/// Settled usage of one request, in tokens. Holds by construction when it comes from [`settle_usage`]:
/// `cached_input + cache_write ≤ input`, `cache_write_long ≤ cache_write`, `reasoning ≤ output`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// The whole prompt, cache included.
    pub input: u64,
    pub output: u64,
    /// Part of `input` that was read from the provider's cache.
    pub cached_input: u64,
    /// Part of `input` that was written to the provider's cache.
    pub cache_write: u64,
    /// Part of `cache_write` that was written to live an hour or longer. Prices the row; the ledger does not keep it.
    pub cache_write_long: u64,
    /// Part of `output` that the model spent thinking.
    pub reasoning: u64,
    pub source: UsageSource,
}

impl Usage {
    /// What a token quota counts.
    pub fn total_tokens(&self) -> u64 {
        self.input.saturating_add(self.output)
    }
}

/// What the provider said. `None` is "said nothing usable"; `Some(0)` is a zero that was said.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UsageReport {
    pub input: Option<u64>,
    pub output: Option<u64>,
    pub cached_input: Option<u64>,
    pub cache_write: Option<u64>,
    pub cache_write_long: Option<u64>,
    pub reasoning: Option<u64>,
    /// Anthropic's shape: `input` leaves out what was read from and written to the cache.
    pub input_excludes_cache: bool,
    /// A number was there and could not be used: negative, fractional, a string, beyond 64 bits.
    pub anomaly: bool,
    /// The service tier the reply names.
    pub tier: Option<CompactString>,
    /// The reply bills something that no token price covers, such as a web search.
    pub unpriced_fee: bool,
}

/// What we would say ourselves, from bytes. A part that cannot have been used (the output of an embedding) is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Estimate {
    pub input: u64,
    pub output: u64,
}

/// How often a report contradicted itself or sense; feeds a counter, so that a sloppy upstream shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Anomalies {
    /// Numbers that count as missing.
    pub unusable: u32,
    /// Parts that were larger than their whole and were cut to it.
    pub clamped: u32,
}

impl Anomalies {
    pub fn count(self) -> u32 {
        self.unusable + self.clamped
    }
}

/// Settles what a request used. No report at all, or one without a usable input or output, takes that part from
/// the estimate and says `Estimated`; every other number stands as reported, zeros included.
///
/// Spend never falls by a bad number: an unusable one is estimated, a part larger than its whole is cut to the
/// whole, and a prompt whose own size is missing is at least as large as the parts that were reported.
pub fn settle_usage(report: Option<&UsageReport>, estimate: Estimate) -> (Usage, Anomalies) {
    let Some(report) = report else {
        let usage = Usage {
            input: estimate.input,
            output: estimate.output,
            source: UsageSource::Estimated,
            ..Usage::default()
        };
        return (usage, Anomalies::default());
    };

    let mut anomalies = Anomalies { unusable: u32::from(report.anomaly), clamped: 0 };
    let mut believed = |number: Option<u64>| {
        let absurd = number.is_some_and(|tokens| tokens > TOKENS_ABSURD);
        anomalies.unusable += u32::from(absurd);
        number.filter(|_| !absurd)
    };
    let said_input = believed(report.input);
    let said_output = believed(report.output);
    let cached = believed(report.cached_input).unwrap_or(0);
    let long = believed(report.cache_write_long).unwrap_or(0);
    // A server that gives the one-hour part alone has written at least that.
    let written = believed(report.cache_write).unwrap_or(long);
    let reasoning = believed(report.reasoning).unwrap_or(0);

    // No overflow below: each addend is at most 2^40.
    let parts = cached + written;
    let input = match said_input {
        Some(rest) if report.input_excludes_cache => rest + parts,
        Some(whole) => whole,
        None => estimate.input.max(parts),
    };
    // An estimate of zero fills nothing in: an embedding reports no output because it has none.
    let output = said_output.unwrap_or(estimate.output);
    let estimated = said_input.is_none() || (said_output.is_none() && estimate.output > 0);

    let mut at_most = |part: u64, whole: u64| {
        anomalies.clamped += u32::from(part > whole);
        part.min(whole)
    };
    // Cached first: what is left of the prompt is the most that can have been written.
    let cached_input = at_most(cached, input);
    let cache_write = at_most(written, input - cached_input);
    let usage = Usage {
        input,
        output,
        cached_input,
        cache_write,
        cache_write_long: at_most(long, cache_write),
        reasoning: at_most(reasoning, output),
        source: if estimated { UsageSource::Estimated } else { UsageSource::Reported },
    };
    (usage, anomalies)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ESTIMATE: Estimate = Estimate { input: 7, output: 9 };

    fn openai(input: u64, output: u64) -> UsageReport {
        UsageReport { input: Some(input), output: Some(output), ..UsageReport::default() }
    }

    #[test]
    fn openai_input_includes_what_was_cached() {
        let report = UsageReport { cached_input: Some(60), reasoning: Some(10), ..openai(100, 40) };
        let (usage, anomalies) = settle_usage(Some(&report), ESTIMATE);
        assert_eq!((usage.input, usage.cached_input, usage.output, usage.reasoning), (100, 60, 40, 10));
        assert_eq!((usage.total_tokens(), usage.source, anomalies.count()), (140, UsageSource::Reported, 0));
    }

    #[test]
    fn anthropic_input_gains_what_was_read_from_and_written_to_the_cache() {
        let report = UsageReport {
            cached_input: Some(1000),
            cache_write: Some(200),
            cache_write_long: Some(50),
            input_excludes_cache: true,
            ..openai(25, 40)
        };
        let (usage, anomalies) = settle_usage(Some(&report), ESTIMATE);
        assert_eq!((usage.input, usage.cached_input, usage.cache_write, usage.cache_write_long), (1225, 1000, 200, 50));
        assert_eq!((usage.total_tokens(), anomalies.count()), (1265, 0));
    }

    #[test]
    fn c10_explicit_zero_is_a_zero_and_not_an_estimate() {
        let (usage, anomalies) = settle_usage(Some(&openai(0, 0)), ESTIMATE);
        assert_eq!(usage, Usage { source: UsageSource::Reported, ..Usage::default() });
        assert_eq!(anomalies.count(), 0);
    }

    #[test]
    fn c10_no_report_is_estimated() {
        let (usage, _) = settle_usage(None, ESTIMATE);
        assert_eq!((usage.input, usage.output, usage.source), (7, 9, UsageSource::Estimated));
    }

    #[test]
    fn c11_negative_or_odd_numbers_are_estimated_and_counted() {
        // What a reader of `prompt_tokens: -100, completion_tokens: "40"` hands over.
        let report = UsageReport { anomaly: true, ..UsageReport::default() };
        let (usage, anomalies) = settle_usage(Some(&report), ESTIMATE);
        assert_eq!((usage.input, usage.output, usage.source), (7, 9, UsageSource::Estimated));
        assert_eq!(anomalies, Anomalies { unusable: 1, clamped: 0 });
    }

    #[test]
    fn c11_absurd_numbers_are_missing_numbers() {
        let (usage, anomalies) = settle_usage(Some(&openai(1 << 63, u64::MAX)), ESTIMATE);
        assert_eq!((usage.input, usage.output, usage.source), (7, 9, UsageSource::Estimated));
        assert_eq!(anomalies.unusable, 2);

        let (usage, anomalies) = settle_usage(Some(&openai(TOKENS_ABSURD, TOKENS_ABSURD + 1)), ESTIMATE);
        assert_eq!((usage.input, usage.output, anomalies.unusable), (TOKENS_ABSURD, 9, 1));
    }

    #[test]
    fn c12_more_cached_than_prompt_is_cut_to_the_prompt() {
        let report = UsageReport { cached_input: Some(500), ..openai(100, 0) };
        let (usage, anomalies) = settle_usage(Some(&report), ESTIMATE);
        assert_eq!((usage.input, usage.cached_input, usage.source), (100, 100, UsageSource::Reported));
        assert_eq!(anomalies, Anomalies { unusable: 0, clamped: 1 });
    }

    #[test]
    fn one_missing_part_is_estimated_and_the_other_stands() {
        let report = UsageReport { output: None, ..openai(100, 0) };
        let (usage, _) = settle_usage(Some(&report), ESTIMATE);
        assert_eq!((usage.input, usage.output, usage.source), (100, 9, UsageSource::Estimated));
    }

    #[test]
    fn embedding_without_output_is_reported() {
        let report = UsageReport { input: Some(8), ..UsageReport::default() };
        let (usage, _) = settle_usage(Some(&report), Estimate { input: 7, output: 0 });
        assert_eq!((usage.input, usage.output, usage.source), (8, 0, UsageSource::Reported));
    }

    #[test]
    fn prompt_of_unknown_size_is_at_least_its_reported_parts() {
        let report = UsageReport { input: None, cached_input: Some(60), cache_write: Some(5), ..openai(0, 40) };
        let (usage, _) = settle_usage(Some(&report), ESTIMATE);
        assert_eq!((usage.input, usage.cached_input, usage.cache_write), (65, 60, 5));
        assert_eq!(usage.source, UsageSource::Estimated);
    }

    #[test]
    fn one_hour_part_alone_is_a_write() {
        let report = UsageReport { cache_write_long: Some(30), input_excludes_cache: true, ..openai(10, 1) };
        let (usage, anomalies) = settle_usage(Some(&report), ESTIMATE);
        assert_eq!((usage.input, usage.cache_write, usage.cache_write_long, anomalies.count()), (40, 30, 30, 0));
    }

    fn number() -> impl Strategy<Value = Option<u64>> {
        prop_oneof![
            Just(None),
            (0..5_000u64).prop_map(Some),
            any::<u64>().prop_map(Some),
            (TOKENS_ABSURD - 2..TOKENS_ABSURD + 3).prop_map(Some)
        ]
    }

    proptest! {
        #[test]
        fn any_report_settles_into_parts_that_fit_their_whole(
            (input, output, cached_input, cache_write, cache_write_long, reasoning) in
                (number(), number(), number(), number(), number(), number()),
            input_excludes_cache: bool,
            anomaly: bool,
            estimate in (0..1_000_000u64, 0..1_000_000u64),
        ) {
            let report = UsageReport {
                input, output, cached_input, cache_write, cache_write_long, reasoning, input_excludes_cache, anomaly,
                tier: None, unpriced_fee: false,
            };
            let estimate = Estimate { input: estimate.0, output: estimate.1 };
            let (usage, _) = settle_usage(Some(&report), estimate);
            prop_assert!(usage.cached_input + usage.cache_write <= usage.input);
            prop_assert!(usage.cache_write_long <= usage.cache_write);
            prop_assert!(usage.reasoning <= usage.output);
            // Never below what was credibly reported, nor below the estimate where nothing was.
            let usable = |n: Option<u64>| n.filter(|n| *n <= TOKENS_ABSURD);
            prop_assert!(usage.input >= usable(input).unwrap_or(estimate.input));
            prop_assert!(usage.output >= usable(output).unwrap_or(estimate.output));
            prop_assert!(usage.input <= 3 * TOKENS_ABSURD);
        }
    }
}
