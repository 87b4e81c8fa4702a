//! A line exactly as we write it, read in one straight pass: what a restart does a million times.
//!
//! Mirrors [`write`](super::write) field by field. Any other shape (an escape, a suspended limit, a newer version's
//! field, damage) is `None` here and left to the general reader, which decides what it is.

use std::borrow::Cow;

use super::scan::plain_length;
use crate::row::{Decision, Outcome, RowFacts, instant};
use crate::scope::Endpoint;
use crate::units::NanoUsd;
use crate::usage::{Usage, UsageSource};

pub(super) fn facts(line: &[u8]) -> Option<RowFacts<'_>> {
    let line = std::str::from_utf8(line).ok()?;
    let mut at = Quick(line.strip_suffix('\n').unwrap_or(line));
    let seq = at.past("{\"v\":1,\"seq\":")?.number()?;
    at.past(",\"ts\":\"")?.text()?;
    let end = at.past(",\"end\":\"")?.text()?;
    at.past(",\"request_id\":\"")?.text()?;
    at.past(",\"replica\":\"")?.text()?;
    let node = at.past(",\"node\":\"")?.text()?;
    let key_id = at.past(",\"key_id\":")?.maybe_text()?;
    let endpoint = at.past(",\"endpoint\":\"")?.text()?;
    let model = at.past(",\"model\":\"")?.text()?;
    let upstream = at.past(",\"upstream\":")?.maybe_text()?;
    let decision = at.past(",\"decision\":\"")?.text()?;
    let outcome = at.past(",\"outcome\":")?.maybe_text()?;
    at.past(",\"attempts\":")?.number()?;
    let refused_by = at.past(",\"refused_by\":")?.refused_by()?;
    at.past(",\"shadow\":[],\"suspended\":[],\"suspended_reasons\":{},\"status\":")?.number()?;
    let forwarded = at.past(",\"forwarded\":")?.flag()?;
    at.past(",\"stream\":")?.flag()?;
    let usage = Usage {
        input: at.past(",\"usage\":{\"input\":")?.number()?,
        output: at.past(",\"output\":")?.number()?,
        cached_input: at.past(",\"cached_input\":")?.number()?,
        cache_write: at.past(",\"cache_write\":")?.number()?,
        cache_write_long: 0,
        reasoning: at.past(",\"reasoning\":")?.number()?,
        source: UsageSource::parse(at.past(",\"source\":\"")?.text()?)?,
    };
    let cost = at.past("},\"cost_nanousd\":")?.maybe_number()?;
    at.past(",\"price\":\"")?.text()?;
    at.past(",\"reserved_tokens\":")?.number()?;
    let latency_us = at.past(",\"latency_us\":")?.number()?;
    at.past(",\"first_byte_us\":")?.maybe_number()?;
    at.past(",\"overhead_us\":")?.number()?;
    at.past(",\"traceparent\":")?.maybe_text()?;
    if at.0 != "}" {
        return None;
    }
    Some(RowFacts {
        seq,
        end: instant::decode(end)?,
        node: Cow::Borrowed(node),
        key_id: key_id.map(Cow::Borrowed),
        endpoint: Endpoint::parse(endpoint)?,
        model: Cow::Borrowed(model),
        upstream: upstream.map(Cow::Borrowed),
        decision: Decision::parse(decision)?,
        outcome: outcome.and_then(Outcome::parse),
        refused_by: refused_by.map(Cow::Borrowed),
        forwarded,
        usage,
        cost: cost.map(NanoUsd),
        latency_us,
    })
}

/// What is left of the line.
struct Quick<'a>(&'a str);

impl<'a> Quick<'a> {
    /// Inlined, so that a text known when we compile is compared in a few words rather than by a call.
    #[inline(always)]
    fn past(&mut self, text: &'static str) -> Option<&mut Quick<'a>> {
        self.0 = self.0.strip_prefix(text)?;
        Some(self)
    }

    #[inline]
    fn number(&mut self) -> Option<u64> {
        let mut value = 0u64;
        let mut digits = 0;
        while let Some(digit @ b'0'..=b'9') = self.0.as_bytes().get(digits) {
            value = value.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?;
            digits += 1;
        }
        let is_padded = digits > 1 && self.0.starts_with('0');
        self.0 = self.0.get(digits..)?;
        (digits > 0 && !is_padded).then_some(value)
    }

    /// The rest of a string whose opening quote is behind us.
    #[inline]
    fn text(&mut self) -> Option<&'a str> {
        let (text, rest) = self.0.split_at_checked(plain_length(self.0.as_bytes()))?;
        self.0 = rest.strip_prefix('"')?;
        Some(text)
    }

    #[inline]
    fn maybe_text(&mut self) -> Option<Option<&'a str>> {
        if self.past("null").is_some() { Some(None) } else { self.past("\"")?.text().map(Some) }
    }

    #[inline]
    fn maybe_number(&mut self) -> Option<Option<u64>> {
        if self.past("null").is_some() { Some(None) } else { self.number().map(Some) }
    }

    fn flag(&mut self) -> Option<bool> {
        if self.past("true").is_some() { Some(true) } else { self.past("false").map(|_| false) }
    }

    fn refused_by(&mut self) -> Option<Option<&'a str>> {
        if self.past("null").is_some() {
            return Some(None);
        }
        let limit_id = self.past("{\"limit_id\":\"")?.text()?;
        self.past(",\"node\":\"")?.text()?;
        self.past(",\"limit_type\":\"")?.text()?;
        self.past("}").map(|_| Some(limit_id))
    }
}
