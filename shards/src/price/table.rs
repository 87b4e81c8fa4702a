//! The embedded price table: read once, turned into exact integers.
//!
//! `table.json` is data, replaced as a whole when prices change; its first line says where the facts are from. A
//! table this file cannot read exactly does not pass the tests, so it never ships.

use std::sync::{Arc, LazyLock};

use jiff::civil::{Date, Time};
use jiff::tz::Offset;
use serde::Deserialize;
use serde_json::Number;
use smallvec::SmallVec;

use super::decimal::pico_per_token;
use super::matching::{Index, Rule, rank};
use super::{ModelPrice, Price, PriceSource, Rates};
use crate::units::WallMs;

const TABLE: &str = include_str!("table.json");

/// Parsed at the first use, some milliseconds.
pub(super) fn embedded() -> &'static Index {
    static INDEX: LazyLock<Index> =
        LazyLock::new(|| parse(TABLE).expect("the embedded table was read by this crate's tests"));
    &INDEX
}

#[derive(Deserialize)]
struct TableJson {
    models: Vec<EntryJson>,
}

#[derive(Deserialize)]
struct EntryJson {
    provider: String,
    model: String,
    r#match: RuleJson,
    prices: Vec<PriceJson>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum RuleJson {
    Equals(String),
    StartsWith(String),
    EndsWith(String),
    Contains(String),
    Regex(String),
    Any(Vec<RuleJson>),
    All(Vec<RuleJson>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)] // a kind of price that nobody looks at would be an understated bill
struct PriceJson {
    valid_from: Option<String>,
    input_usd_per_mtok: AmountJson,
    output_usd_per_mtok: Option<AmountJson>,
    cache_read_usd_per_mtok: Option<AmountJson>,
    cache_write_usd_per_mtok: Option<AmountJson>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum AmountJson {
    Flat(Number),
    Tiered { base: Number, tiers: Vec<TierJson> },
}

#[derive(Deserialize)]
struct TierJson {
    above_input_tokens: u64,
    price: Number,
}

fn parse(text: &str) -> Result<Index, String> {
    let TableJson { mut models } = serde_json::from_str(text).map_err(|error| error.to_string())?;
    models.sort_by_key(|entry| rank(&entry.provider)); // stable: the table's order within a provider
    let mut index = Index::default();
    for entry in models {
        let at = |wrong: String| format!("{} {}: {wrong}", entry.provider, entry.model);
        let rule = rule(entry.r#match).map_err(at)?;
        let price = model_price(&entry.prices).map_err(at)?;
        index.note_names(&entry.provider, &rule);
        index.add(rule, Arc::new(price));
    }
    Ok(index)
}

fn rule(json: RuleJson) -> Result<Rule, String> {
    let all = |rules: Vec<RuleJson>| rules.into_iter().map(rule).collect::<Result<_, _>>();
    Ok(match json {
        RuleJson::Equals(text) => Rule::Equals(text),
        RuleJson::StartsWith(text) => Rule::StartsWith(text),
        RuleJson::EndsWith(text) => Rule::EndsWith(text),
        RuleJson::Contains(text) => Rule::Contains(text),
        RuleJson::Regex(pattern) => Rule::regex(&pattern).map_err(|error| format!("{pattern}: {error}"))?,
        RuleJson::Any(rules) => Rule::Any(all(rules)?),
        RuleJson::All(rules) => Rule::All(all(rules)?),
    })
}

fn model_price(prices: &[PriceJson]) -> Result<ModelPrice, String> {
    let mut dated = SmallVec::new();
    for price in prices {
        dated.push((valid_from(price.valid_from.as_deref())?, price_of(price)?));
    }
    dated.sort_by_key(|(from, _)| *from);
    match dated.first() {
        Some((WallMs(i64::MIN), _)) => Ok(ModelPrice { source: PriceSource::Table, dated }),
        _ => Err("has no price without a valid_from".to_owned()),
    }
}

/// A day begins at 00:00 UTC; no day is since ever.
fn valid_from(day: Option<&str>) -> Result<WallMs, String> {
    let Some(day) = day else { return Ok(WallMs(i64::MIN)) };
    let midnight = day.parse::<Date>().map(|day| day.to_datetime(Time::midnight()));
    let instant = midnight.and_then(|midnight| Offset::UTC.to_timestamp(midnight));
    instant.map(|instant| WallMs(instant.as_millisecond())).map_err(|error| format!("valid_from {day}: {error}"))
}

fn price_of(json: &PriceJson) -> Result<Price, String> {
    let amounts = [
        Some(&json.input_usd_per_mtok),
        json.output_usd_per_mtok.as_ref(),
        json.cache_read_usd_per_mtok.as_ref(),
        json.cache_write_usd_per_mtok.as_ref(),
    ];
    let mut thresholds: Vec<u64> = amounts
        .iter()
        .flatten()
        .flat_map(|amount| match amount {
            AmountJson::Flat(_) => [].as_slice(),
            AmountJson::Tiered { tiers, .. } => tiers,
        })
        .map(|tier| tier.above_input_tokens)
        .collect();
    thresholds.sort_unstable();
    thresholds.dedup();
    let tiers = thresholds.into_iter().map(|above| Ok((above, rates_above(amounts, above)?)));
    Ok(Price { base: rates_above(amounts, 0)?, tiers: tiers.collect::<Result<_, String>>()? })
}

/// The rates once the input has passed `above`; 0 is the base.
fn rates_above(amounts: [Option<&AmountJson>; 4], above: u64) -> Result<Rates, String> {
    let at = |amount: &AmountJson| {
        let number = match amount {
            AmountJson::Flat(number) => number,
            AmountJson::Tiered { base, tiers } => {
                let passed = tiers.iter().filter(|tier| tier.above_input_tokens <= above);
                passed.max_by_key(|tier| tier.above_input_tokens).map_or(base, |tier| &tier.price)
            }
        };
        let text = number.to_string(); // the shortest text of the number, which is the one in the table
        pico_per_token(&text).map_err(|wrong| format!("{text} {wrong}"))
    };
    let [input, output, cache_read, cache_write] = amounts.map(|amount| amount.map(at).transpose());
    Ok(Rates {
        input: input?.ok_or("has no input price")?,
        output: output?,
        cache_read: cache_read?,
        cache_write: cache_write?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: WallMs = WallMs(1_796_000_000_000); // 2026-11-30

    fn input_pico(model: &str) -> Option<u64> {
        embedded().find(model).map(|price| price.at(NOW).rates(1).input)
    }

    #[test]
    fn embedded_table_is_read_whole_and_exactly() {
        if let Err(wrong) = parse(TABLE) {
            panic!("{wrong}");
        }
    }

    #[test]
    fn known_names_have_known_prices() {
        for (model, pico) in [
            ("claude-opus-4-5", 5_000_000),
            ("claude-opus-4-5-20251101", 5_000_000),
            ("claude-fable-5-2-20261020", 8_000_000),
            ("gpt-6-luna", 100_000),
            ("o3", 2_000_000),
        ] {
            assert_eq!(input_pico(model), Some(pico), "{model}");
        }
        for model in ["", "mock", "local", "unpriced-1", "my-finetune", "llama3"] {
            assert_eq!(input_pico(model), None, "{model}");
        }
    }

    #[test]
    fn makers_price_comes_before_a_resellers() {
        // AWS and Google list the same bare names, AWS 10 % dearer.
        assert_eq!(input_pico("claude-sonnet-5-5"), Some(2_000_000));
        assert_eq!(input_pico("gpt-5.6-terra"), Some(2_000_000));
        // A name that says where it runs is priced there.
        assert_eq!(input_pico("us.anthropic.claude-sonnet-5-5"), Some(2_200_000));
        assert_eq!(input_pico("global.anthropic.claude-sonnet-4-5-20250929-v1:0"), Some(3_000_000));
        // A literal name wins over another provider's pattern.
        assert_eq!(input_pico("deepseek-r1-distill-llama-70b"), Some(750_000));
    }

    #[test]
    fn tiered_price_without_a_base_date_or_input_is_not_a_table() {
        let table = |prices: &str| {
            let entry = format!(r#"{{"provider":"p","model":"m","match":{{"equals":"m"}},"prices":{prices}}}"#);
            parse(&format!(r#"{{"models":[{entry}]}}"#)).err()
        };
        assert_eq!(table(r#"[{"valid_from":null,"input_usd_per_mtok":1}]"#), None);
        assert_eq!(table("[]").unwrap(), "p m: has no price without a valid_from");
        assert!(table(r#"[{"valid_from":"2026-01-01","input_usd_per_mtok":1}]"#).is_some());
        assert!(table(r#"[{"valid_from":null,"input_usd_per_mtok":-1}]"#).is_some());
        assert!(table(r#"[{"valid_from":null,"input_usd_per_mtok":1,"audio_usd_per_mtok":9}]"#).is_some());
    }
}
