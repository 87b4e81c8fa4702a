//! What a request costs: the price of a model at an instant, and the sum over the tokens it used.
//!
//! Decides which price applies (the operator's, else the embedded table's; by date and by prompt size) and does the
//! arithmetic in whole pico-USD, rounded once. Never invents a price: what it does not know makes the row `partial`
//! or `unpriced`, and whether such a request is served is decided at gate B. Called when a request is planned (is it
//! priced, is it free) and when it is settled.

mod decimal;
mod matching;
mod overrides;
mod table;

use std::sync::Arc;

use smallvec::SmallVec;

use crate::plan::Problem;
use crate::scope::Glob;
use crate::units::{NanoUsd, WallMs};
use crate::usage::Usage;

pub use overrides::PriceOverride;

use matching::Index;

/// Pico-USD in a nano-USD: prices are per token in 10^-12 USD (1 USD per million tokens is 10^6 of them), amounts
/// are in 10^-9 USD.
const PICO_PER_NANO: u128 = 1_000;

/// What an hour-long cache write costs, in input prices.
const LONG_WRITE_FACTOR: u128 = 2;

/// Service tiers under which the table's prices hold (`on_demand` is Groq's word for its default). Any other tier the reply names (`flex` is about half,
/// `priority` about double, `batch`, `scale`, …) has a price the table does not know.
const STANDARD_TIERS: [&str; 5] = ["", "auto", "default", "standard", "on_demand"];

/// How a row's cost is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PriceSource {
    /// The embedded table.
    Table,
    /// An entry of the operator's `pricing:`.
    Config,
    /// Something that was used has no known price; the cost is the sum of what has one.
    Partial,
    /// No price at all: the cost is unknown, not zero.
    Unpriced,
}

impl PriceSource {
    pub fn as_str(self) -> &'static str {
        match self {
            PriceSource::Table => "table",
            PriceSource::Config => "config",
            PriceSource::Partial => "partial",
            PriceSource::Unpriced => "unpriced",
        }
    }

    pub fn parse(text: &str) -> Option<PriceSource> {
        match text {
            "table" => Some(PriceSource::Table),
            "config" => Some(PriceSource::Config),
            "partial" => Some(PriceSource::Partial),
            "unpriced" => Some(PriceSource::Unpriced),
            _ => None,
        }
    }
}

/// What the reply says about its own bill, beside the token counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Terms<'a> {
    /// The service tier the reply names.
    pub tier: Option<&'a str>,
    /// It bills something that no token price covers.
    pub unpriced_fee: bool,
}

/// Prices by kind of token, in pico-USD per token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rates {
    pub input: u64,
    /// `None`: not sold (an embedding), or not known.
    pub output: Option<u64>,
    /// `None`: no rebate is published, so a cached token costs what any input token does.
    pub cache_read: Option<u64>,
    /// `None`: not known. Providers ask 1.25 × input or nothing, so neither may be assumed.
    pub cache_write: Option<u64>,
}

/// A price, and the ones that replace it as a whole when the prompt is large.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Price {
    base: Rates,
    /// `(above this many input tokens, these rates)`, ascending.
    tiers: SmallVec<[(u64, Rates); 1]>,
}

impl Price {
    /// The rates for a prompt of `input_tokens`, cache reads and writes included.
    pub fn rates(&self, input_tokens: u64) -> &Rates {
        let passed = self.tiers.iter().rev().find(|(above, _)| input_tokens > *above);
        passed.map_or(&self.base, |(_, rates)| rates)
    }

    /// A price of zero is a price: such a model is served when a budget is spent.
    pub fn is_free(&self) -> bool {
        let free = |rates: &Rates| {
            rates.input == 0
                && rates.output.is_none_or(|price| price == 0)
                && rates.cache_read.is_none_or(|price| price == 0)
                && rates.cache_write.is_none_or(|price| price == 0)
        };
        free(&self.base) && self.tiers.iter().all(|(_, rates)| free(rates))
    }
}

/// The prices of one model over time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelPrice {
    source: PriceSource,
    /// `(from this instant, this price)`, ascending; never empty, and the first holds since ever.
    dated: SmallVec<[(WallMs, Price); 1]>,
}

impl ModelPrice {
    fn flat(source: PriceSource, price: Price) -> ModelPrice {
        ModelPrice { source, dated: SmallVec::from_iter([(WallMs(i64::MIN), price)]) }
    }

    /// The last price whose date is not in the future.
    pub fn at(&self, wall: WallMs) -> &Price {
        let begun = self.dated.iter().rev().find(|(from, _)| *from <= wall);
        let (_, price) = begun.unwrap_or(&self.dated[0]); // never empty, by construction
        price
    }

    /// What `usage` costs at `wall`. Saturates at 18 billion USD a row: over-refuses.
    pub fn cost(&self, usage: &Usage, terms: Terms<'_>, wall: WallMs) -> (NanoUsd, PriceSource) {
        let rates = self.at(wall).rates(usage.input);
        let plain = usage.input.saturating_sub(usage.cached_input).saturating_sub(usage.cache_write);
        let short_write = usage.cache_write.saturating_sub(usage.cache_write_long);
        let tokens = |count: u64, price: u64| u128::from(count) * u128::from(price);
        // A write of unknown price costs at least what its tokens cost as input.
        let pico = tokens(plain, rates.input)
            + tokens(usage.cached_input, rates.cache_read.unwrap_or(rates.input))
            + tokens(short_write, rates.cache_write.unwrap_or(rates.input))
            + tokens(usage.cache_write_long, rates.input) * LONG_WRITE_FACTOR
            + tokens(usage.output, rates.output.unwrap_or(0));

        let unknown = (short_write > 0 && rates.cache_write.is_none())
            || (usage.output > 0 && rates.output.is_none())
            || terms.unpriced_fee
            || terms.tier.is_some_and(|tier| !STANDARD_TIERS.contains(&tier));
        (round_half_even(pico), if unknown { PriceSource::Partial } else { self.source })
    }
}

/// What a row records: its cost, and how that is known. `price` is what [`PriceBook::find`] gave for the requested
/// model; `None` costs an unknown amount, never nothing.
pub fn cost_of(
    price: Option<&ModelPrice>,
    usage: &Usage,
    terms: Terms<'_>,
    wall: WallMs,
) -> (Option<NanoUsd>, PriceSource) {
    price.map_or((None, PriceSource::Unpriced), |price| {
        let (cost, source) = price.cost(usage, terms, wall);
        (Some(cost), source)
    })
}

/// The one rounding: ties go to the even nano-USD, so that many small rows do not drift in one direction.
fn round_half_even(pico: u128) -> NanoUsd {
    let (whole, rest) = (pico / PICO_PER_NANO, pico % PICO_PER_NANO);
    let up = rest * 2 > PICO_PER_NANO || (rest * 2 == PICO_PER_NANO && whole % 2 == 1);
    NanoUsd(u64::try_from(whole + u128::from(up)).unwrap_or(u64::MAX))
}

/// Every price this process knows. Immutable; a reload makes a new one.
pub struct PriceBook {
    /// The operator's, in file order: the first glob that matches answers.
    overrides: Vec<(Glob, Arc<ModelPrice>)>,
    table: &'static Index,
}

impl PriceBook {
    /// The embedded table behind the operator's own prices. `Err` lists every entry that is no price, each once.
    pub fn new(overrides: &[PriceOverride]) -> Result<PriceBook, Vec<Problem>> {
        Ok(PriceBook { overrides: overrides::compile(overrides)?, table: table::embedded() })
    }

    /// The price of a model by its requested name, case included. Takes some microseconds for a name the table does
    /// not list literally: keep the answer per model, in a memory with a bound, because callers choose the names.
    pub fn find(&self, model: &str) -> Option<Arc<ModelPrice>> {
        let own = self.overrides.iter().find(|(glob, _)| glob.matches(model)).map(|(_, price)| price);
        own.or_else(|| self.table.find(model)).cloned()
    }

    /// The exact names the embedded table knows, for a list of models.
    pub fn model_names(&self) -> impl Iterator<Item = &str> {
        self.table.names()
    }

    /// The exact names that `provider` (`openai`, `anthropic`, …) sells itself, by the embedded table.
    pub fn model_names_of<'a>(&'a self, provider: &'a str) -> impl Iterator<Item = &'a str> {
        self.table.names_of(provider)
    }

    /// The operator's own names: the entries under `pricing:` that are no globs.
    pub fn own_model_names(&self) -> impl Iterator<Item = &str> {
        self.overrides.iter().map(|(glob, _)| glob.as_str()).filter(|name| !name.contains(['*', '?']))
    }

    /// Whether some model that fits `glob` has a price: what `validate` asks before it warns. Slow.
    pub fn prices_any(&self, glob: &Glob) -> bool {
        self.overrides.iter().any(|(own, _)| own.overlaps(glob)) || self.table.prices_any(glob)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::usage::{Estimate, UsageReport, UsageSource, settle_usage};
    use proptest::prelude::*;

    const NOW: WallMs = WallMs(1_796_000_000_000); // 2026-11-30
    const STANDARD: Terms<'static> = Terms { tier: None, unpriced_fee: false };

    /// Input 1.00, cache read 0.10, cache write 1.25, output 10.00 USD per million tokens.
    fn mock_book() -> PriceBook {
        PriceBook::new(&[PriceOverride {
            path: "pricing[0]".into(),
            model: "mock*".into(),
            input: "1.00".into(),
            output: Some("10.00".into()),
            cache_read: Some("0.10".into()),
            cache_write: Some("1.25".into()),
        }])
        .unwrap()
    }

    fn free_book(model: &str) -> PriceBook {
        PriceBook::new(&[PriceOverride {
            path: "pricing[0]".into(),
            model: model.into(),
            input: "0".into(),
            output: Some("0".into()),
            cache_read: None,
            cache_write: None,
        }])
        .unwrap()
    }

    fn table_book() -> PriceBook {
        PriceBook::new(&[]).unwrap()
    }

    fn used(input: u64, cached_input: u64, cache_write: u64, output: u64) -> Usage {
        let source = UsageSource::Reported;
        Usage { input, cached_input, cache_write, output, source, ..Usage::default() }
    }

    fn settled(report: UsageReport) -> Usage {
        settle_usage(Some(&report), Estimate::default()).0
    }

    #[test]
    fn openai_shaped_reply_costs_446_micro_usd() {
        // 40 × 1.00 + 60 × 0.10 + 40 × 10.00 = 40 + 6 + 400
        let usage = settled(UsageReport {
            input: Some(100),
            cached_input: Some(60),
            output: Some(40),
            reasoning: Some(10),
            ..UsageReport::default()
        });
        let price = mock_book().find("mock").unwrap();
        assert_eq!(price.cost(&usage, STANDARD, NOW), (NanoUsd(446_000), PriceSource::Config));
        assert_eq!(usage.total_tokens(), 140);
    }

    #[test]
    fn anthropic_shaped_reply_costs_775_micro_usd() {
        // 25 × 1.00 + 200 × 1.25 + 1000 × 0.10 + 40 × 10.00 = 25 + 250 + 100 + 400
        let usage = settled(UsageReport {
            input: Some(25),
            cache_write: Some(200),
            cached_input: Some(1000),
            output: Some(40),
            input_excludes_cache: true,
            ..UsageReport::default()
        });
        let price = mock_book().find("mock+byte1").unwrap();
        assert_eq!(price.cost(&usage, STANDARD, NOW), (NanoUsd(775_000), PriceSource::Config));
        assert_eq!(usage.total_tokens(), 1265);
    }

    #[test]
    fn embedding_of_eight_tokens_costs_8_micro_usd() {
        let usage = settled(UsageReport { input: Some(8), ..UsageReport::default() });
        assert_eq!(mock_book().find("mock").unwrap().cost(&usage, STANDARD, NOW).0, NanoUsd(8_000));
    }

    #[test]
    fn c12_more_cached_than_prompt_costs_the_prompt_at_the_cached_price() {
        let usage = settled(UsageReport {
            input: Some(100),
            cached_input: Some(500),
            output: Some(0),
            ..UsageReport::default()
        });
        // 100 × 0.10 = 10 micro-USD
        assert_eq!(mock_book().find("mock").unwrap().cost(&usage, STANDARD, NOW).0, NanoUsd(10_000));
    }

    #[test]
    fn c13_model_without_a_price_costs_an_unknown_amount() {
        for book in [mock_book(), table_book()] {
            let price = book.find("unpriced-1");
            let cost = cost_of(price.as_deref(), &used(100, 0, 0, 40), STANDARD, NOW);
            assert_eq!(cost, (None, PriceSource::Unpriced));
        }
    }

    #[test]
    fn c14_price_follows_the_requested_name_and_not_the_dated_one() {
        let mut exact = PriceOverride { path: "pricing[0]".into(), model: "mock".into(), ..PriceOverride::default() };
        exact.input = "1".into();
        let book = PriceBook::new(&[exact]).unwrap();
        assert!(book.find("mock").is_some());
        assert!(book.find("mock-2026-01-01").is_none(), "what the reply calls itself has no price of its own");
    }

    #[test]
    fn c20_price_of_zero_is_a_price() {
        let book = free_book("local");
        let price = book.find("local").unwrap();
        assert!(price.at(NOW).is_free());
        let cost = cost_of(Some(&price), &used(100, 60, 0, 40), STANDARD, NOW);
        assert_eq!(cost, (Some(NanoUsd(0)), PriceSource::Config));
        assert!(!mock_book().find("mock").unwrap().at(NOW).is_free());
    }

    #[test]
    fn half_a_nano_goes_to_the_even_neighbour_once_a_row() {
        assert_eq!(round_half_even(1_499), NanoUsd(1));
        assert_eq!(round_half_even(1_500), NanoUsd(2));
        assert_eq!(round_half_even(2_500), NanoUsd(2));
        assert_eq!(round_half_even(2_501), NanoUsd(3));
        assert_eq!(round_half_even(u128::MAX), NanoUsd(u64::MAX));

        // 0.0005 USD per million is 500 pico-USD a token: 3 input and 2 output tokens are 2,500 pico-USD. Rounded
        // by kind it would have been 2 + 1 = 3.
        let book = PriceBook::new(&[PriceOverride {
            model: "tiny".into(),
            input: "0.0005".into(),
            output: Some("0.0005".into()),
            ..PriceOverride::default()
        }])
        .unwrap();
        assert_eq!(book.find("tiny").unwrap().cost(&used(3, 0, 0, 2), STANDARD, NOW).0, NanoUsd(2));
    }

    #[test]
    fn one_hour_write_costs_twice_the_input_price() {
        let usage = Usage { cache_write_long: 50, ..used(1225, 1000, 200, 40) };
        // 25 × 1.00 + 150 × 1.25 + 50 × 2.00 + 1000 × 0.10 + 40 × 10.00 = 25 + 187.5 + 100 + 100 + 400
        assert_eq!(mock_book().find("mock").unwrap().cost(&usage, STANDARD, NOW).0, NanoUsd(812_500));
    }

    #[test]
    fn cached_tokens_without_a_price_of_their_own_cost_what_input_costs() {
        let book = PriceBook::new(&[PriceOverride {
            model: "m".into(),
            input: "2".into(),
            output: Some("3".into()),
            ..PriceOverride::default()
        }])
        .unwrap();
        let price = book.find("m").unwrap();
        assert_eq!(price.cost(&used(100, 60, 0, 0), STANDARD, NOW), (NanoUsd(200_000), PriceSource::Config));
        // Written tokens cost at least that, and we know that we do not know the rest.
        assert_eq!(price.cost(&used(100, 0, 60, 0), STANDARD, NOW), (NanoUsd(200_000), PriceSource::Partial));
        // The hour-long write has a known price.
        let long = Usage { cache_write_long: 60, ..used(100, 0, 60, 0) };
        assert_eq!(price.cost(&long, STANDARD, NOW), (NanoUsd(320_000), PriceSource::Config));
    }

    #[test]
    fn output_without_a_price_makes_the_row_partial() {
        let book = table_book();
        let embedding = book.find("text-embedding-3-small").unwrap();
        assert_eq!(embedding.cost(&used(1_000_000, 0, 0, 0), STANDARD, NOW).1, PriceSource::Table);
        assert_eq!(embedding.cost(&used(1_000_000, 0, 0, 5), STANDARD, NOW).1, PriceSource::Partial);
    }

    #[test]
    fn tier_or_fee_the_table_does_not_price_makes_the_row_partial() {
        let price = mock_book().find("mock").unwrap();
        let source = |tier, unpriced_fee| price.cost(&used(100, 60, 0, 40), Terms { tier, unpriced_fee }, NOW);
        for tier in [None, Some("default"), Some("standard"), Some("auto"), Some("on_demand"), Some("")] {
            assert_eq!(source(tier, false), (NanoUsd(446_000), PriceSource::Config));
        }
        for tier in ["flex", "priority", "batch", "scale", "fast", "not heard of yet"] {
            assert_eq!(source(Some(tier), false), (NanoUsd(446_000), PriceSource::Partial));
        }
        assert_eq!(source(None, true).1, PriceSource::Partial);
    }

    #[test]
    fn large_prompt_replaces_the_whole_price() {
        // 0.10 / 0.50 up to 100,000 input tokens, 0.50 / 2.50 above.
        let price = table_book().find("claude-haiku-5-5").unwrap();
        assert_eq!(price.cost(&used(100_000, 0, 0, 10), STANDARD, NOW).0, NanoUsd(10_000_000 + 5_000));
        assert_eq!(price.cost(&used(100_001, 0, 0, 10), STANDARD, NOW).0, NanoUsd(50_000_500 + 25_000));
        // Judged on the whole prompt: cache reads and writes count.
        let cached = price.cost(&used(100_001, 100_000, 0, 0), STANDARD, NOW).0;
        assert_eq!(cached, NanoUsd(5_000_000 + 500)); // 100,000 × 0.05 + 1 × 0.50
    }

    #[test]
    fn dated_price_begins_at_its_day_in_utc() {
        // gemini-4-argon doubles on 2026-12-01.
        let price = table_book().find("gemini-4-argon").unwrap();
        let midnight = WallMs(1_796_083_200_000);
        let usage = used(1_000, 0, 0, 0);
        let (before, after) =
            (price.cost(&usage, STANDARD, WallMs(midnight.0 - 1)).0, price.cost(&usage, STANDARD, midnight).0);
        assert_eq!(after.0, 2 * before.0);
        assert_eq!(price.at(WallMs(i64::MIN)), price.at(WallMs(0)), "the first price holds since ever");
    }

    #[test]
    fn operators_price_comes_before_the_tables_and_its_first_match_wins() {
        let entry = |model: &str, input: &str| PriceOverride {
            model: model.into(),
            input: input.into(),
            ..PriceOverride::default()
        };
        let book = PriceBook::new(&[entry("gpt-4o-mini", "7"), entry("gpt-4o*", "9")]).unwrap();
        let input_price = |model: &str| book.find(model).unwrap().at(NOW).rates(1).input;
        assert_eq!(input_price("gpt-4o-mini"), 7_000_000);
        assert_eq!(input_price("gpt-4o"), 9_000_000);
        assert_eq!(book.find("o3").unwrap().cost(&used(1, 0, 0, 0), STANDARD, NOW).1, PriceSource::Table);
    }

    #[test]
    fn glob_is_priced_when_some_model_under_it_is() {
        let book = mock_book();
        let priced = |glob: &str| book.prices_any(&Glob::new(glob));
        assert!(priced("gpt-*") && priced("claude-opus-*") && priced("mock") && priced("*") && priced("o3"));
        assert!(!priced("my-finetune") && !priced("llama-local-*"));
    }

    proptest! {
        /// Against plain fractions of a nano-USD, and never falling when a count grows.
        #[test]
        fn cost_is_the_exact_sum_and_grows_with_every_count(
            prices in (0..2_000_000_000u64, 0..2_000_000_000u64, 0..2_000_000_000u64, 0..2_000_000_000u64),
            (plain, cached, written, output) in (0..1u64 << 40, 0..1u64 << 40, 0..1u64 << 40, 0..1u64 << 40),
        ) {
            let (input, cache_read, cache_write, out) = prices;
            let base = Rates {
                input, output: Some(out), cache_read: Some(cache_read), cache_write: Some(cache_write),
            };
            let price = ModelPrice::flat(PriceSource::Table, Price { base, tiers: SmallVec::new() });
            let usage = used(plain + cached + written, cached, written, output);
            let (cost, source) = price.cost(&usage, STANDARD, NOW);
            prop_assert_eq!(source, PriceSource::Table);
            let exact = [(plain, input), (cached, cache_read), (written, cache_write), (output, out)]
                .iter().map(|&(count, price)| u128::from(count) * u128::from(price)).sum::<u128>();
            let off = (u128::from(cost.0) * PICO_PER_NANO).abs_diff(exact);
            prop_assert!(cost.0 == u64::MAX || off <= PICO_PER_NANO / 2, "{off} pico-USD off");
            let more = Usage { output: output + 1, ..usage };
            prop_assert!(price.cost(&more, STANDARD, NOW).0 >= cost);
        }
    }
}
