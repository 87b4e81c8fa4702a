//! The operator's own prices: `pricing:` entries, compiled into the same shape as the table's.

use std::sync::Arc;

use smallvec::SmallVec;

use super::decimal::pico_per_token;
use super::{ModelPrice, Price, PriceSource, Rates};
use crate::plan::Problem;
use crate::scope::Glob;

/// One entry of `pricing:`, numbers as the text the file holds (USD per million tokens), so that 0.1 stays 0.1.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PriceOverride {
    /// Where it stands: `pricing[0]`.
    pub path: String,
    /// Glob over requested model names.
    pub model: String,
    pub input: String,
    /// Absent for what has no output, such as embeddings: output of such a model makes its row `partial`.
    pub output: Option<String>,
    /// Absent: cached tokens cost what input costs.
    pub cache_read: Option<String>,
    /// Absent: unknown, and written tokens make the row `partial`.
    pub cache_write: Option<String>,
}

pub(super) fn compile(entries: &[PriceOverride]) -> Result<Vec<(Glob, Arc<ModelPrice>)>, Vec<Problem>> {
    let mut problems = Vec::new();
    let compiled = entries.iter().map(|entry| compile_one(entry, &mut problems)).collect();
    if problems.is_empty() { Ok(compiled) } else { Err(problems) }
}

fn compile_one(entry: &PriceOverride, problems: &mut Vec<Problem>) -> (Glob, Arc<ModelPrice>) {
    if entry.model.is_empty() {
        problems.push(Problem {
            path: format!("{}.model", entry.path),
            message: "the model is empty, so this price would apply to nothing".to_owned(),
            remedy: "name a model, or a glob such as \"my-*\"".to_owned(),
        });
    }
    let mut number = |key: &str, text: &str| {
        pico_per_token(text).unwrap_or_else(|wrong| {
            problems.push(Problem {
                path: format!("{}.{key}_usd_per_mtok", entry.path),
                message: format!("{text:?} {wrong}"),
                remedy: "write USD per million tokens as a plain number, such as 1.5".to_owned(),
            });
            0
        })
    };
    let base = Rates {
        input: number("input", &entry.input),
        output: entry.output.as_deref().map(|text| number("output", text)),
        cache_read: entry.cache_read.as_deref().map(|text| number("cache_read", text)),
        cache_write: entry.cache_write.as_deref().map(|text| number("cache_write", text)),
    };
    let price = ModelPrice::flat(PriceSource::Config, Price { base, tiers: SmallVec::new() });
    (Glob::new(&entry.model), Arc::new(price))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wrong_number_is_told_once_with_its_path() {
        let entry = PriceOverride {
            path: "pricing[3]".into(),
            model: "m".into(),
            input: "-1".into(),
            output: Some("cheap".into()),
            cache_read: Some("0.1".into()),
            cache_write: Some("0.12345678".into()),
        };
        let problems = compile(&[entry]).unwrap_err();
        let told: Vec<String> = problems.iter().map(|p| format!("{}: {}", p.path, p.message)).collect();
        assert_eq!(
            told,
            [
                "pricing[3].input_usd_per_mtok: \"-1\" is not a plain decimal number of at least 0",
                "pricing[3].output_usd_per_mtok: \"cheap\" is not a plain decimal number of at least 0",
                "pricing[3].cache_write_usd_per_mtok: \"0.12345678\" has more than 6 places behind the point, which \
                 is finer than a pico-USD per token",
            ]
        );
    }

    #[test]
    fn entry_without_a_model_is_a_problem() {
        let entry = PriceOverride { path: "pricing[0]".into(), input: "1".into(), ..PriceOverride::default() };
        assert_eq!(compile(&[entry]).unwrap_err()[0].path, "pricing[0].model");
    }
}
