//! One usage object, and how several of an answer add up to one report: later figures replace earlier ones.
//!
//! Providers' totals are cumulative (Anthropic repeats them, vLLM puts running totals on every chunk), so nothing is
//! ever summed over events. An explicit zero is a zero. A figure that is no plausible count is missing, and never
//! lowers what was reported before it.

use super::{Shape, UsageSeen};
use crate::json::raw;
use compact_str::CompactString;

/// No call uses a billion tokens; a larger figure is a fault of the server.
const TOKENS_MAX: u64 = 1_000_000_000;
/// Longer names of a service tier are not kept.
const TIER_BYTES_MAX: usize = 32;

/// One figure, over all reports so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Figure {
    #[default]
    Absent,
    Null,
    Bad,
    Tokens(u64),
}

impl Figure {
    fn read(value: &[u8]) -> Figure {
        // Nine digits at most are a plausible count in themselves, and all that is met.
        if matches!(value.len(), 1..=9) && value.iter().all(u8::is_ascii_digit) {
            return Figure::Tokens(value.iter().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0')));
        }
        let text = std::str::from_utf8(value).unwrap_or_default();
        let tokens = match text.parse::<u64>() {
            Ok(tokens) => Some(tokens),
            Err(_) if text == "null" => return Figure::Null,
            // 40.0 is 40 in another spelling. Letters first: Rust would read "inf" and "nan" as numbers.
            Err(_) if text.bytes().any(|b| b.is_ascii_alphabetic() && b != b'e' && b != b'E') => None,
            Err(_) => text.parse::<f64>().ok().filter(|f| *f >= 0.0 && f.trunc() == *f).map(|f| f as u64),
        };
        tokens.filter(|tokens| *tokens <= TOKENS_MAX).map_or(Figure::Bad, Figure::Tokens)
    }

    /// Takes a later figure. One that says nothing does not erase one that did.
    fn replace(&mut self, later: Figure) {
        match (later, *self) {
            (Figure::Tokens(_), _) | (_, Figure::Absent) => *self = later,
            (Figure::Bad, Figure::Null) => *self = later,
            _ => {}
        }
    }

    fn tokens(self) -> Option<u64> {
        match self {
            Figure::Tokens(tokens) => Some(tokens),
            _ => None,
        }
    }
}

/// Everything reported so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Report {
    input: Figure,
    output: Figure,
    total: Figure,
    cached: Figure,
    cache_write: Figure,
    /// The two parts of a cache write, as Anthropic splits it.
    write_short: Figure,
    write_long: Figure,
    reasoning: Figure,
    /// Gemini counts these outside its main figures.
    tool_input: Figure,
    thoughts: Figure,
    /// Compaction runs, which Anthropic leaves out of its totals.
    compaction: Compaction,
    tier: Option<CompactString>,
    unpriced_fee: bool,
    anomaly: bool,
    seen: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Compaction {
    input: u64,
    output: u64,
    cached: u64,
    cache_write: u64,
}

impl Report {
    /// Something stood where usage should be and could not be read.
    pub(super) fn unreadable(&mut self) {
        self.anomaly = true;
    }

    /// The tier that an answer names beside its usage.
    pub(super) fn tier(&mut self, name: &[u8]) {
        let known = self.tier.as_ref().is_some_and(|tier| tier.as_bytes() == name);
        if !known && let Some(name) = tier_name(name) {
            self.tier = Some(name);
        }
    }

    /// Takes one usage object, as written.
    pub(super) fn read(&mut self, object: &[u8]) {
        self.seen = true;
        for (key, value) in raw::members(object) {
            match key {
                b"prompt_tokens" | b"input_tokens" | b"promptTokenCount" => {
                    self.take(value, |report| &mut report.input)
                }
                b"completion_tokens" | b"output_tokens" | b"candidatesTokenCount" => self.take_output(value),
                b"total_tokens" | b"totalTokenCount" => self.take(value, |report| &mut report.total),
                b"cache_read_input_tokens" | b"cachedContentTokenCount" => {
                    self.take(value, |report| &mut report.cached)
                }
                b"cache_creation_input_tokens" => self.take(value, |report| &mut report.cache_write),
                b"toolUsePromptTokenCount" => self.take(value, |report| &mut report.tool_input),
                b"thoughtsTokenCount" => self.take(value, |report| &mut report.thoughts),
                b"prompt_tokens_details" | b"input_tokens_details" => self.read_input_details(value),
                b"completion_tokens_details" | b"output_tokens_details" => self.read_output_details(value),
                b"cache_creation" => self.read_cache_creation(value),
                b"iterations" => self.read_iterations(value),
                b"server_tool_use" => {
                    let searched = |(key, value): (&[u8], &[u8])| key == b"web_search_requests" && is_positive(value);
                    self.unpriced_fee |= raw::members(value).any(searched);
                }
                b"service_tier" => self.tier(unquoted(value)),
                b"speed" if value == br#""fast""# => self.tier(b"fast"),
                b"inference_geo" => {
                    self.unpriced_fee |= !matches!(unquoted(value), b"null" | b"" | b"global" | b"not_available");
                }
                _ => {}
            }
        }
    }

    /// Takes the usage object that begins an Anthropic stream. Its output figure is a placeholder: after a cut, the
    /// text relayed says more.
    pub(super) fn read_start(&mut self, object: &[u8]) {
        let output = self.output;
        self.read(object);
        self.output = output;
    }

    /// The report so far; `None` when there was no sign of usage at all.
    pub(super) fn usage(&self, shape: Shape) -> Option<UsageSeen> {
        if !self.seen && !self.anomaly {
            return None;
        }
        let Compaction { input, output, cached, cache_write } = self.compaction;
        let plus = |figure: Option<u64>, more: u64| figure.map(|tokens| tokens + more).or((more > 0).then_some(more));
        let reported_input = self.input.tokens().map(|tokens| tokens + self.tool_input.tokens().unwrap_or(0));
        let reported_output = match (self.output, self.total, self.input) {
            (Figure::Tokens(tokens), ..) => Some(tokens + self.thoughts.tokens().unwrap_or(0)),
            // Embeddings report no output: what is left of the total is it, zero as a rule.
            (Figure::Absent, Figure::Tokens(total), Figure::Tokens(input)) => total.checked_sub(input),
            _ => None,
        };
        let split_write = match (self.write_short, self.write_long) {
            (Figure::Absent, Figure::Absent) => None,
            (short, long) => Some(short.tokens().unwrap_or(0) + long.tokens().unwrap_or(0)),
        };
        let is_null = |figure: Figure| figure == Figure::Null;
        Some(UsageSeen {
            // Without a figure of its own, a compaction's is not the whole: the part stays missing.
            input: reported_input.map(|tokens| tokens + input),
            output: reported_output.map(|tokens| tokens + output),
            cached_input: plus(self.cached.tokens(), cached),
            cache_write: plus(self.cache_write.tokens().or(split_write), cache_write),
            cache_write_long: self.write_long.tokens(),
            reasoning: self.reasoning.tokens().or(self.thoughts.tokens()),
            input_excludes_cache: shape == Shape::Anthropic,
            anomaly: self.anomaly || is_null(self.input) || is_null(self.output),
            tier: self.tier.clone(),
            unpriced_fee: self.unpriced_fee,
        })
    }

    fn take(&mut self, value: &[u8], field: impl FnOnce(&mut Report) -> &mut Figure) {
        let figure = Figure::read(value);
        self.anomaly |= figure == Figure::Bad;
        field(self).replace(figure);
    }

    /// Unlike an input figure, an earlier output figure is a running total: a bad last one leaves us without, and
    /// the estimate from relayed text is nearer the truth.
    fn take_output(&mut self, value: &[u8]) {
        self.take(value, |report| &mut report.output);
        if Figure::read(value) == Figure::Bad {
            self.output = Figure::Bad;
        }
    }

    fn read_input_details(&mut self, object: &[u8]) {
        for (key, value) in raw::members(object) {
            match key {
                b"cached_tokens" => self.take(value, |report| &mut report.cached),
                b"cache_write_tokens" => self.take(value, |report| &mut report.cache_write),
                b"cache_write_tokens_details" => {
                    for (key, value) in raw::members(value) {
                        if key == b"ttl_12h_tokens" {
                            self.take(value, |report| &mut report.write_long);
                        }
                    }
                }
                b"audio_tokens" => self.unpriced_fee |= is_positive(value),
                _ => {}
            }
        }
    }

    fn read_output_details(&mut self, object: &[u8]) {
        for (key, value) in raw::members(object) {
            match key {
                b"reasoning_tokens" | b"thinking_tokens" => self.take(value, |report| &mut report.reasoning),
                b"audio_tokens" | b"image_tokens" => self.unpriced_fee |= is_positive(value),
                _ => {}
            }
        }
    }

    fn read_cache_creation(&mut self, object: &[u8]) {
        for (key, value) in raw::members(object) {
            match key {
                b"ephemeral_5m_input_tokens" => self.take(value, |report| &mut report.write_short),
                b"ephemeral_1h_input_tokens" => self.take(value, |report| &mut report.write_long),
                _ => {}
            }
        }
    }

    /// A later list replaces an earlier one, like every other figure.
    fn read_iterations(&mut self, array: &[u8]) {
        let mut sum = Compaction::default();
        for entry in raw::elements(array) {
            if !raw::members(entry).any(|(key, value)| key == b"type" && value == br#""compaction""#) {
                continue;
            }
            for (key, value) in raw::members(entry) {
                let part = match key {
                    b"input_tokens" => &mut sum.input,
                    b"output_tokens" => &mut sum.output,
                    b"cache_read_input_tokens" => &mut sum.cached,
                    b"cache_creation_input_tokens" => &mut sum.cache_write,
                    _ => continue,
                };
                match Figure::read(value) {
                    // At most a few hundred entries of a billion each fit the 8 KiB a report may have.
                    Figure::Tokens(tokens) => *part += tokens,
                    Figure::Bad => self.anomaly = true,
                    Figure::Null | Figure::Absent => {}
                }
            }
        }
        self.compaction = sum;
    }
}

fn is_positive(value: &[u8]) -> bool {
    matches!(Figure::read(value), Figure::Tokens(tokens) if tokens > 0)
}

fn unquoted(value: &[u8]) -> &[u8] {
    value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or(value)
}

fn tier_name(name: &[u8]) -> Option<CompactString> {
    let named = !name.is_empty() && name != b"null" && name.len() <= TIER_BYTES_MAX && !name.contains(&b'\\');
    std::str::from_utf8(name).ok().filter(|_| named).map(CompactString::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(shape: Shape, objects: &[&str]) -> UsageSeen {
        let mut report = Report::default();
        for object in objects {
            report.read(object.as_bytes());
        }
        report.usage(shape).unwrap()
    }

    #[test]
    fn an_openai_report_is_read_with_its_subsets() {
        let seen = usage(
            Shape::OpenAi,
            &[r#"{"prompt_tokens":100,"completion_tokens":40,"total_tokens":140,
                "prompt_tokens_details":{"cached_tokens":60,"audio_tokens":0},
                "completion_tokens_details":{"reasoning_tokens":10,"audio_tokens":0}}"#],
        );
        let expected = UsageSeen {
            input: Some(100),
            output: Some(40),
            cached_input: Some(60),
            reasoning: Some(10),
            ..UsageSeen::default()
        };
        assert_eq!(seen, expected);
    }

    #[test]
    fn a_responses_report_knows_cache_writes_that_are_kept_longer() {
        let seen = usage(
            Shape::Responses,
            &[r#"{"input_tokens":100,"input_tokens_details":{"cached_tokens":60,"cache_write_tokens":30,
                "cache_write_tokens_details":{"ttl_30m_tokens":10,"ttl_12h_tokens":20}},
                "output_tokens":40,"output_tokens_details":{"reasoning_tokens":10},"total_tokens":140}"#],
        );
        assert_eq!((seen.cache_write, seen.cache_write_long, seen.cached_input), (Some(30), Some(20), Some(60)));
        assert!(!seen.input_excludes_cache && !seen.anomaly);
    }

    #[test]
    fn anthropic_figures_replace_and_are_not_added() {
        let start =
            r#"{"input_tokens":25,"cache_creation_input_tokens":200,"cache_read_input_tokens":1000,"output_tokens":1}"#;
        let delta = r#"{"input_tokens":25,"cache_creation_input_tokens":200,"cache_read_input_tokens":1000,"output_tokens":40}"#;
        let seen = usage(Shape::Anthropic, &[start, delta]);
        assert_eq!(
            (seen.input, seen.cache_write, seen.cached_input, seen.output),
            (Some(25), Some(200), Some(1000), Some(40))
        );
        assert!(seen.input_excludes_cache);
        // Only output in the later one: the rest stays.
        let seen = usage(Shape::Anthropic, &[start, r#"{"output_tokens":40,"input_tokens":null}"#]);
        assert_eq!((seen.input, seen.output, seen.anomaly), (Some(25), Some(40), false));
        // Only the later one has them.
        let zero =
            r#"{"input_tokens":0,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":0}"#;
        let seen = usage(
            Shape::Anthropic,
            &[zero, r#"{"input_tokens":4522,"cache_creation_input_tokens":4511,"output_tokens":5}"#],
        );
        assert_eq!(
            (seen.input, seen.cache_write, seen.cached_input, seen.output),
            (Some(4522), Some(4511), Some(0), Some(5))
        );
    }

    #[test]
    fn the_output_that_begins_a_stream_is_a_placeholder() {
        let mut report = Report::default();
        report.read_start(br#"{"input_tokens":25,"output_tokens":1}"#);
        let cut = report.usage(Shape::Anthropic).unwrap();
        assert_eq!((cut.input, cut.output, cut.anomaly), (Some(25), None, false));
        report.read(br#"{"output_tokens":null}"#);
        let missing = report.usage(Shape::Anthropic).unwrap();
        assert_eq!((missing.output, missing.anomaly), (None, true));
        report.read(br#"{"output_tokens":40}"#);
        assert_eq!(report.usage(Shape::Anthropic).unwrap().output, Some(40));
    }

    #[test]
    fn compaction_runs_are_added_once_and_other_iterations_not() {
        let object = r#"{"input_tokens":10,"output_tokens":20,"iterations":[
            {"type":"message","input_tokens":10,"output_tokens":20},
            {"input_tokens":100,"output_tokens":7,"cache_read_input_tokens":3,"type":"compaction"},
            {"type":"compaction","input_tokens":1,"cache_creation_input_tokens":2}]}"#;
        for objects in [&[object][..], &[object, object]] {
            let seen = usage(Shape::Anthropic, objects);
            assert_eq!(
                (seen.input, seen.output, seen.cached_input, seen.cache_write),
                (Some(111), Some(27), Some(3), Some(2))
            );
        }
    }

    #[test]
    fn gemini_thoughts_are_output() {
        let object =
            r#"{"promptTokenCount":10,"candidatesTokenCount":20,"thoughtsTokenCount":100,"totalTokenCount":130}"#;
        let seen = usage(
            Shape::OpenAi,
            &[r#"{"promptTokenCount":10,"candidatesTokenCount":3,"thoughtsTokenCount":100}"#, object],
        );
        assert_eq!((seen.input, seen.output, seen.reasoning), (Some(10), Some(120), Some(100)));
    }

    #[test]
    fn embeddings_have_no_output() {
        let seen = usage(Shape::OpenAi, &[r#"{"prompt_tokens":8,"total_tokens":8}"#]);
        assert_eq!((seen.input, seen.output, seen.anomaly), (Some(8), Some(0), false));
    }

    #[test]
    fn a_figure_that_is_no_count_is_missing_and_flagged() {
        for bad in [
            "-100",
            "\"100\"",
            "100.5",
            "9223372036854775808",
            "1e30",
            "true",
            "[1]",
            "{}",
            "1000000001",
            "NaN",
            "-0.5",
        ] {
            let object = format!(r#"{{"prompt_tokens":{bad},"completion_tokens":{bad},"total_tokens":{bad}}}"#);
            let seen = usage(Shape::OpenAi, &[&object]);
            assert_eq!((seen.input, seen.output, seen.anomaly), (None, None, true), "{bad}");
        }
        let seen = usage(Shape::OpenAi, &[r#"{"prompt_tokens":null,"completion_tokens":null,"total_tokens":null}"#]);
        assert_eq!((seen.input, seen.output, seen.anomaly), (None, None, true));
        for whole in ["40", "40.0", "4e1"] {
            let object = format!(r#"{{"prompt_tokens":1,"completion_tokens":{whole}}}"#);
            assert_eq!(usage(Shape::OpenAi, &[&object]).output, Some(40), "{whole}");
        }
    }

    #[test]
    fn a_bad_later_figure_never_lowers_what_was_reported() {
        let start = r#"{"input_tokens":25,"output_tokens":1}"#;
        let seen = usage(Shape::Anthropic, &[start, r#"{"input_tokens":-25,"output_tokens":-40}"#]);
        assert_eq!((seen.input, seen.output, seen.anomaly), (Some(25), None, true));
        // A good one after a bad one counts; the flag stays.
        let seen = usage(Shape::OpenAi, &[r#"{"completion_tokens":-1}"#, r#"{"completion_tokens":40}"#]);
        assert_eq!((seen.output, seen.anomaly), (Some(40), true));
    }

    #[test]
    fn zeros_are_zeros_and_null_details_are_nothing() {
        let seen = usage(
            Shape::OpenAi,
            &[
                r#"{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0,"prompt_tokens_details":null,"completion_tokens_details":{"reasoning_tokens":null}}"#,
            ],
        );
        assert_eq!((seen.input, seen.output, seen.reasoning, seen.anomaly), (Some(0), Some(0), None, false));
    }

    #[test]
    fn tiers_and_fees_are_seen() {
        let seen = usage(
            Shape::Anthropic,
            &[
                r#"{"input_tokens":1,"output_tokens":1,"service_tier":"priority","server_tool_use":{"web_search_requests":2},
                "cache_creation":{"ephemeral_5m_input_tokens":3,"ephemeral_1h_input_tokens":4}}"#,
            ],
        );
        assert_eq!((seen.tier.as_deref(), seen.unpriced_fee), (Some("priority"), true));
        assert_eq!((seen.cache_write, seen.cache_write_long), (Some(7), Some(4)));
        let seen = usage(
            Shape::Anthropic,
            &[
                r#"{"service_tier":null,"speed":"fast","inference_geo":"not_available","server_tool_use":{"web_search_requests":0}}"#,
            ],
        );
        assert_eq!((seen.tier.as_deref(), seen.unpriced_fee), (Some("fast"), false));
        assert!(usage(Shape::Anthropic, &[r#"{"inference_geo":"us"}"#]).unpriced_fee);
    }
}
