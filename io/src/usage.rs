//! What an answer says it used: read beside the relay, never in its way.
//!
//! [`BodyScan`] takes a JSON body in arbitrary pieces and keeps a few hundred bytes whatever the length of a line;
//! [`crate::sse::SseTap`] feeds it the data of each event; [`AnswerTap`] looks at the first byte of an answer and
//! picks one of the two, through a decoder when the answer is compressed. None of them prices or settles anything:
//! `src/request.rs` copies [`UsageSeen`] into the decision's own type.

mod answer;
mod keys;
mod report;
mod scan;

pub use answer::{AnswerTap, Looks, Passed};
pub(crate) use keys::EventKind;
pub use scan::BodyScan;
pub(crate) use scan::Choices;

use compact_str::CompactString;

/// Whose answer it is: which error event fits it, and whether input tokens include cached ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shape {
    /// Chat, completions, embeddings.
    #[default]
    OpenAi,
    Responses,
    Anthropic,
}

/// The provider's own figures. `None`: not reported, or not usable; then `anomaly` says so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsageSeen {
    /// Prompt tokens; without cached and written ones when `input_excludes_cache`.
    pub input: Option<u64>,
    pub output: Option<u64>,
    /// Read from the provider's cache.
    pub cached_input: Option<u64>,
    /// Written to it.
    pub cache_write: Option<u64>,
    /// The part of `cache_write` that is kept longer (1 h or 12 h) and costs more.
    pub cache_write_long: Option<u64>,
    /// The part of `output` that was reasoning.
    pub reasoning: Option<u64>,
    pub input_excludes_cache: bool,
    /// A figure was negative, fractional, absurd or of another type, or the report was unreadable.
    pub anomaly: bool,
    /// The service tier the provider says it used.
    pub tier: Option<CompactString>,
    /// Something was used that tokens do not pay for: a web search, audio, a region with its own price.
    pub unpriced_fee: bool,
}
