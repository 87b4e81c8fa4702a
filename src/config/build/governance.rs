//! Governance and prices. Limits are handed on word for word: what makes one valid is decided in the pure crate.

use shards::limit::{AttachDecl, LimitDecl, MatchDecl};

use super::super::diagnostics::Report;
use super::super::leaf::{Decimal, Text};
use super::super::read::Given;
use super::super::schema;
use super::super::types::*;
use super::{required, texts};

pub fn governance(file: schema::Governance) -> Governance {
    let default = Governance::default();
    let keys = file.keys.0.unwrap_or_default();
    Governance {
        enabled: file.enabled.0.unwrap_or(default.enabled),
        unpriced_models: file.unpriced_models.0.unwrap_or(default.unpriced_models),
        keys: Keys {
            require_key: keys.require_key.0.unwrap_or(default.keys.require_key),
            anonymous: keys.anonymous.0.unwrap_or(default.keys.anonymous),
            disclose_limits: keys.disclose_limits.0.unwrap_or(default.keys.disclose_limits),
        },
        limits: limits(file.limits),
    }
}

fn limits(given: Given<Vec<Given<schema::Limit>>>) -> Vec<LimitDecl> {
    let items = given.0.unwrap_or_default().into_iter().enumerate();
    items.filter_map(|(index, item)| Some(limit(item.0?, format!("governance.limits[{index}]")))).collect()
}

fn limit(file: schema::Limit, path: String) -> LimitDecl {
    let list = |given: Given<Vec<Given<Text>>>| {
        given.0.is_some().then(|| texts(given).map(|(_, text)| text).collect::<Vec<_>>())
    };
    LimitDecl {
        path,
        id: file.id.0.map(|text| text.0),
        attach: file.attach.0.map(|attach| AttachDecl {
            node: attach.node.0.map(|text| text.0),
            level: attach.level.0.map(|text| text.0),
        }),
        match_: file.r#match.0.map(|matches| MatchDecl {
            model: list(matches.model),
            upstream: list(matches.upstream),
            endpoint: list(matches.endpoint),
        }),
        kind: file.r#type.0.map(|text| text.0),
        amount_usd: file.amount_usd.0.map(|number| number.0),
        amount: file.amount.0.map(|number| number.0),
        period: file.period.0.map(|text| text.0),
        algorithm: file.algorithm.0.map(|text| text.0),
        burst: file.burst.0.map(|number| number.0),
        store: file.store.0.map(|text| text.0),
        posture: file.posture.0.and_then(|posture| posture.mode.0).map(|text| text.0),
    }
}

pub fn pricing(given: Given<Vec<Given<schema::Price>>>, report: &mut Report) -> Vec<PriceEntry> {
    let items = given.0.unwrap_or_default().into_iter().enumerate();
    items.filter_map(|(index, item)| Some(price(item.0?, format!("pricing[{index}]"), report))).collect()
}

fn price(file: schema::Price, path: String, report: &mut Report) -> PriceEntry {
    let text = |given: Given<Decimal>| given.0.map(|number| number.0);
    let input = text(file.input_usd_per_mtok).unwrap_or_else(|| {
        let remedy = "write US dollars per million tokens; 0 is a price";
        report.error(&format!("{path}.input_usd_per_mtok"), "is missing", remedy);
        "0".to_owned()
    });
    PriceEntry {
        model: required(file.model, &format!("{path}.model"), "name a model, or a glob such as \"my-*\"", report),
        input_usd_per_mtok: input,
        output_usd_per_mtok: text(file.output_usd_per_mtok),
        cache_read_usd_per_mtok: text(file.cache_read_usd_per_mtok),
        cache_write_usd_per_mtok: text(file.cache_write_usd_per_mtok),
        path,
    }
}
