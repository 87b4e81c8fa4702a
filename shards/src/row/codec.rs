//! A row's one spelling: a line of JSON with the fields of the ledger contract, always in the same order.
//!
//! Writing allocates nothing beyond the buffer it appends to. Reading accepts unknown fields and any order, so that
//! a newer version's rows and rows that went through `jq` still read; what it cannot read is an error that names
//! the field, never a guess. `cache_write_long` is not in the contract's fields: a row read back has 0 there.

mod quick;
mod read;
mod scan;
mod write;

pub use read::{decode, decode_facts};
pub use write::encode;

use super::Row;

/// Version of the line format; a reader refuses what it was not written for.
const VERSION: u32 = 1;

/// A row as it stands in a ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRow {
    pub row: Row,
    pub replica: String,
    /// Whether the line has an `end`. Rows without one count at their start and overlap with nothing.
    pub has_interval: bool,
}

/// Why a line is no row.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RowError {
    #[error("not a row: {expected} was expected at byte {at}")]
    Syntax { at: usize, expected: &'static str },
    #[error("row format {0} is not known to this version")]
    Version(u32),
    #[error("{field} is missing")]
    Missing { field: &'static str },
    #[error("{field} has {found:?}")]
    Unknown { field: &'static str, found: String },
}

impl From<scan::Fault> for RowError {
    fn from(fault: scan::Fault) -> RowError {
        RowError::Syntax { at: fault.at, expected: fault.expected }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::LimitType;
    use crate::price::PriceSource;
    use crate::row::{Decision, Outcome, RefusedBy, RequestId};
    use crate::scope::{Endpoint, Node};
    use crate::suspend::Reason;
    use crate::units::{NanoUsd, WallMs};
    use crate::usage::{Usage, UsageSource};
    use proptest::prelude::*;
    use smallvec::SmallVec;
    use std::sync::Arc;

    pub(super) fn plain() -> Row {
        Row {
            seq: 7,
            ts: WallMs(1_796_029_687_006),
            end: WallMs(1_796_029_687_306),
            request_id: RequestId::new(WallMs(1_796_029_687_006), 31),
            node: Node::parse("org:acme/team:ml/user:dev1").unwrap(),
            key_id: Some("k1".into()),
            endpoint: Endpoint::ChatCompletions,
            model: "mock".into(),
            upstream: Some("openai".into()),
            decision: Decision::Admitted,
            outcome: Some(Outcome::Completed),
            attempts: 1,
            refused_by: None,
            shadow: SmallVec::new(),
            suspended: SmallVec::new(),
            status: 200,
            forwarded: true,
            stream: true,
            usage: Usage {
                input: 100,
                output: 40,
                cached_input: 60,
                reasoning: 10,
                source: UsageSource::Reported,
                ..Usage::default()
            },
            cost: Some(NanoUsd(446_000)),
            price: PriceSource::Config,
            reserved_tokens: 16_391,
            latency_us: 300_000,
            first_byte_us: Some(1_200),
            overhead_us: 42,
            traceparent: None,
        }
    }

    fn line(row: &Row) -> String {
        let mut out = Vec::new();
        encode(row, "tt-gov-a", &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn admitted_row_is_this_line() {
        assert_eq!(
            line(&plain()),
            concat!(
                r#"{"v":1,"seq":7,"ts":"2026-11-30T09:08:07.006Z","end":"2026-11-30T09:08:07.306Z","#,
                r#""request_id":"tt_01M8NVC96Y000000000000000Z","replica":"tt-gov-a","#,
                r#""node":"org:acme/team:ml/user:dev1","key_id":"k1","endpoint":"chat.completions","model":"mock","#,
                r#""upstream":"openai","decision":"admitted","outcome":"completed","attempts":1,"refused_by":null,"#,
                r#""shadow":[],"suspended":[],"suspended_reasons":{},"status":200,"forwarded":true,"stream":true,"#,
                r#""usage":{"input":100,"output":40,"cached_input":60,"cache_write":0,"reasoning":10,"#,
                r#""source":"reported"},"cost_nanousd":446000,"price":"config","reserved_tokens":16391,"#,
                r#""latency_us":300000,"first_byte_us":1200,"overhead_us":42,"traceparent":null}"#,
                "\n"
            )
        );
    }

    #[test]
    fn refused_row_says_by_whom_and_what_was_not_held() {
        let row = Row {
            decision: Decision::Refused,
            outcome: None,
            refused_by: Some(RefusedBy {
                limit_id: "org_rpm".into(),
                node: Node::parse("org:acme").unwrap(),
                limit_type: LimitType::Rpm,
            }),
            shadow: [Arc::from("a"), Arc::from("b")].into_iter().collect(),
            suspended: [(Arc::from("org_rpm"), Reason::RedisBreakerOpen), (Arc::from("x"), Reason::NeverSynced)]
                .into_iter()
                .collect(),
            cost: None,
            ..plain()
        };
        let line = line(&row);
        for part in [
            r#""refused_by":{"limit_id":"org_rpm","node":"org:acme","limit_type":"rpm"},"shadow":["a","b"],"#,
            r#""suspended":["org_rpm","x"],"suspended_reasons":{"org_rpm":"redis breaker open","x":"never_synced"},"#,
            r#""cost_nanousd":null,"#,
        ] {
            assert!(line.contains(part), "{part} not in {line}");
        }
        assert_eq!(decode(line.as_bytes()).unwrap().row, row);
    }

    #[test]
    fn unknown_fields_any_order_and_missing_trimmings_are_accepted() {
        let text = line(&plain());
        let newer = text.replacen("{\"v\":1,", r#"{"new":[{"v":2}],"v":1,"price_note":"x","#, 1);
        assert_eq!(decode(newer.as_bytes()).unwrap().row, plain());
        let sorted: std::collections::BTreeMap<String, serde_json::Value> = serde_json::from_str(&text).unwrap();
        assert_eq!(decode(serde_json::to_string(&sorted).unwrap().as_bytes()).unwrap().row, plain());

        let older = text.replace(r#","end":"2026-11-30T09:08:07.306Z""#, "");
        let stored = decode(older.as_bytes()).unwrap();
        assert_eq!((stored.has_interval, stored.row.end), (false, stored.row.ts));
        assert_eq!(decode_facts(older.as_bytes()).unwrap().end, stored.row.ts);
    }

    #[test]
    fn what_is_no_row_is_an_error_that_names_the_field() {
        let text = line(&plain());
        let says = |line: &str| {
            let facts = decode_facts(line.as_bytes()).err().map(|error| error.to_string());
            (decode(line.as_bytes()).unwrap_err().to_string(), facts)
        };
        let changed = |from: &str, to: &str| says(&text.replace(from, to));
        assert_eq!(says("").0, "not a row: an object was expected at byte 0");
        assert_eq!(says(&text[..200]).1.unwrap(), "not a row: the end of a string was expected at byte 197");
        assert!(says(&format!("{text}{text}")).0.starts_with("not a row: the end of the line was expected"));
        assert_eq!(changed("\"v\":1", "\"v\":2").0, "row format 2 is not known to this version");
        assert_eq!(changed("\"seq\":7,", "").1.unwrap(), "seq is missing");
        assert_eq!(changed("admitted", "perhaps").1.unwrap(), "decision has \"perhaps\"");
        assert_eq!(changed("org:acme/team:ml", "acme").0, "node has \"acme/user:dev1\"");
        assert_eq!(changed("2026-11-30T09:08:07.306Z", "later").1.unwrap(), "end has \"later\"");
        assert!(changed("\"output\":40", "\"output\":-40").1.unwrap().contains("a whole number that fits"));
        assert!(changed("\"cost_nanousd\":446000", "\"cost_nanousd\":1e400").1.is_some());
    }

    #[test]
    fn rows_as_we_write_them_are_read_the_quick_way() {
        let refused_by = RefusedBy { limit_id: "rpm".into(), node: Node::global(), limit_type: LimitType::Rpm };
        for row in [
            plain(),
            Row { key_id: None, upstream: None, cost: None, outcome: None, first_byte_us: None, ..plain() },
            Row { refused_by: Some(refused_by), traceparent: Some("00-ab".into()), forwarded: false, ..plain() },
        ] {
            assert_eq!(quick::facts(line(&row).as_bytes()), Some(row.facts()));
        }
    }

    #[test]
    fn encoding_into_a_warm_buffer_does_not_grow_it() {
        let mut out = Vec::new();
        encode(&plain(), "tt-gov-a", &mut out);
        let capacity = out.capacity();
        for _ in 0..100 {
            out.clear();
            encode(&plain(), "tt-gov-a", &mut out);
        }
        assert_eq!(out.capacity(), capacity);
    }

    fn text() -> impl Strategy<Value = String> {
        prop_oneof!["[a-z0-9_-]{1,12}", ".{0,20}", Just("\u{0}\u{1f}\"\\\n\r\t\u{7f}é🌍".to_owned())]
    }

    fn node() -> impl Strategy<Value = Node> {
        prop_oneof![Just("__global"), Just("org:a"), Just("org:a.b/team:c_d"), Just("org:a/team:b/user:c")]
            .prop_map(|text| Node::parse(text).unwrap())
    }

    prop_compose! {
        fn any_row()(
            (seq, ts, end, chance) in (any::<u64>(), 0..1i64 << 47, 0..1i64 << 47, any::<u128>()),
            (node, refused_at) in (node(), node()),
            (key_id, model, upstream, limit_id, traceparent) in (
                proptest::option::of(text()), text(), proptest::option::of(text()), text(),
                proptest::option::of(text()),
            ),
            endpoint in proptest::sample::select(Endpoint::ALL.to_vec()),
            decision in proptest::sample::select(vec![Decision::Admitted, Decision::Refused, Decision::Error]),
            outcome in proptest::option::of(proptest::sample::select(Outcome::ALL.to_vec())),
            limit_type in proptest::option::of(proptest::sample::select(LimitType::ALL.to_vec())),
            shadow in proptest::collection::vec(text(), 0..4),
            suspended in proptest::collection::btree_map(
                text(), proptest::sample::select(Reason::ALL.to_vec()), 0..3),
            (attempts, status, forwarded, stream) in any::<(u32, u16, bool, bool)>(),
            (input, output, cached_input, cache_write, reasoning) in any::<(u64, u64, u64, u64, u64)>(),
            source in proptest::sample::select(
                vec![UsageSource::Reported, UsageSource::Estimated, UsageSource::None]),
            price in proptest::sample::select(
                vec![PriceSource::Table, PriceSource::Config, PriceSource::Partial, PriceSource::Unpriced]),
            (cost, reserved_tokens, latency_us, first_byte_us, overhead_us) in
                any::<(Option<u64>, u64, u64, Option<u64>, u64)>(),
        ) -> Row {
            Row {
                seq, ts: WallMs(ts), end: WallMs(end), request_id: RequestId::new(WallMs(ts), chance), node,
                key_id: key_id.map(Arc::from), endpoint, model: model.into(), upstream: upstream.map(Arc::from),
                decision, outcome, attempts,
                refused_by: limit_type.map(|limit_type| RefusedBy {
                    limit_id: limit_id.into(), node: refused_at, limit_type,
                }),
                shadow: shadow.into_iter().map(Arc::from).collect(),
                suspended: suspended.into_iter().map(|(id, reason)| (Arc::from(id), reason)).collect(),
                status, forwarded, stream,
                usage: Usage { input, output, cached_input, cache_write, cache_write_long: 0, reasoning, source },
                cost: cost.map(NanoUsd), price, reserved_tokens, latency_us, first_byte_us, overhead_us,
                traceparent: traceparent.map(Into::into),
            }
        }
    }

    proptest! {
        #[test]
        fn every_row_is_read_back_exactly(row in any_row(), replica in text()) {
            let mut out = Vec::new();
            encode(&row, &replica, &mut out);
            prop_assert_eq!(out.iter().filter(|byte| **byte == b'\n').count(), 1, "one row, one line");
            prop_assert_eq!(&decode_facts(&out).unwrap(), &row.facts());
            prop_assert_eq!(&read::any_facts(&out).unwrap(), &row.facts());
            prop_assert_eq!(decode(&out).unwrap(), StoredRow { row, replica, has_interval: true });
        }

        /// Against serde_json: whatever is taken for a row is JSON, and its numbers are the ones that stand there.
        #[test]
        fn any_bytes_are_a_row_or_an_error(
            bytes in proptest::collection::vec(any::<u8>(), 0..300), at: proptest::sample::Index,
            piece in prop_oneof![
                proptest::collection::vec(any::<u8>(), 0..3),
                proptest::sample::select(vec!["}", "{", "[", "]", ",", ":", "\"", "\\", "0", "-", "null", " ", "\\u0041"])
                    .prop_map(|text| text.as_bytes().to_vec()),
            ],
            replaced in 0..3usize,
        ) {
            let _ = (decode(&bytes), decode_facts(&bytes));
            let mut line = line(&plain()).into_bytes();
            let at = at.index(line.len());
            let end = (at + replaced).min(line.len());
            line.splice(at..end, piece);
            let _ = decode(&line);
            prop_assert_eq!(decode_facts(&line), read::any_facts(&line), "the quick way is no other way");
            if let Ok(facts) = decode_facts(&line) {
                let json: serde_json::Value = serde_json::from_slice(&line).unwrap();
                prop_assert_eq!(json["seq"].as_u64(), Some(facts.seq));
                prop_assert_eq!(json["usage"]["output"].as_u64(), Some(facts.usage.output));
                prop_assert_eq!(json["cost_nanousd"].as_u64(), facts.cost.map(|cost| cost.0));
                prop_assert_eq!(json["model"].as_str(), Some(&*facts.model));
            }
        }
    }
}
