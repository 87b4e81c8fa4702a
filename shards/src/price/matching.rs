//! Which entry of the table a model name means.
//!
//! Names that the table lists literally are found by hash and win over patterns, whichever provider has them; the
//! patterns are then tried in order. The order puts those who make a model before those who resell it, because a
//! bare name sent to a gateway is nearly always the maker's, and the same model costs 10 % more elsewhere.

use std::collections::HashMap;
use std::sync::Arc;

use regex_lite::Regex;

use super::ModelPrice;
use crate::scope::Glob;

/// Tried in this order, then all others in the table's order. Resellers whose patterns say where a model runs
/// (`us.anthropic.claude-…` is AWS) come before the one whose patterns only look for the model's name anywhere.
const PROVIDERS_FIRST: [&str; 13] = [
    "openai",
    "anthropic",
    "x-ai",
    "mistral",
    "cohere",
    "deepseek",
    "moonshotai",
    "minimax",
    "zai",
    "perplexity",
    "voyageai",
    "aws",
    "google",
];

/// Place of a provider in the order of trying; lower is earlier.
pub(super) fn rank(provider: &str) -> usize {
    PROVIDERS_FIRST.iter().position(|known| *known == provider).unwrap_or(PROVIDERS_FIRST.len())
}

/// One condition on a model name.
#[derive(Debug)]
pub(super) enum Rule {
    Equals(String),
    StartsWith(String),
    EndsWith(String),
    Contains(String),
    Matches(Regex),
    MatchesNot(Regex),
    Any(Vec<Rule>),
    All(Vec<Rule>),
}

impl Rule {
    /// A table pattern. The one shape that the regex crate does not have, "nowhere in the name", is taken apart
    /// here. `Err` is the pattern's fault.
    pub(super) fn regex(pattern: &str) -> Result<Rule, regex_lite::Error> {
        let nowhere = pattern.strip_prefix("^(?!.*").and_then(|rest| rest.strip_suffix(')'));
        match nowhere {
            Some(unwanted) => Regex::new(unwanted).map(Rule::MatchesNot),
            None => Regex::new(pattern).map(Rule::Matches),
        }
    }

    fn matches(&self, model: &str) -> bool {
        match self {
            Rule::Equals(text) => model == text,
            Rule::StartsWith(text) => model.starts_with(text.as_str()),
            Rule::EndsWith(text) => model.ends_with(text.as_str()),
            Rule::Contains(text) => model.contains(text.as_str()),
            Rule::Matches(regex) => regex.is_match(model),
            Rule::MatchesNot(regex) => !regex.is_match(model),
            Rule::Any(rules) => rules.iter().any(|rule| rule.matches(model)),
            Rule::All(rules) => rules.iter().all(|rule| rule.matches(model)),
        }
    }

    /// Whether a name this rule was written for fits the glob. A rule that looks for a text anywhere in a name fits
    /// nearly every glob in theory; what is asked here is whether the operator meant models like it.
    fn is_meant_by(&self, glob: &Glob) -> bool {
        match self {
            Rule::Equals(text) | Rule::EndsWith(text) | Rule::Contains(text) => glob.matches(text),
            Rule::StartsWith(text) => glob.overlaps(&Glob::new(&format!("{text}*"))),
            // The dated spellings of a name that is listed literally as well.
            Rule::Matches(_) => false,
            Rule::MatchesNot(_) => true,
            Rule::Any(rules) => rules.iter().any(|rule| rule.is_meant_by(glob)),
            Rule::All(rules) => rules.iter().all(|rule| rule.is_meant_by(glob)),
        }
    }
}

/// The table, ready to be asked.
#[derive(Default)]
pub(super) struct Index {
    exact: HashMap<String, Arc<ModelPrice>>,
    /// The names among them whose maker sells them under its own API: (provider, name).
    own: Vec<(String, String)>,
    patterns: Vec<(Rule, Arc<ModelPrice>)>,
}

impl Index {
    /// Adds an entry behind all earlier ones.
    pub(super) fn add(&mut self, rule: Rule, price: Arc<ModelPrice>) {
        match rule {
            Rule::Equals(name) => {
                self.exact.entry(name).or_insert(price);
            }
            Rule::Any(rules) => rules.into_iter().for_each(|rule| self.add(rule, price.clone())),
            pattern => self.patterns.push((pattern, price)),
        }
    }

    /// The literal names of an entry, which its provider sells.
    pub(super) fn note_names(&mut self, provider: &str, rule: &Rule) {
        match rule {
            Rule::Equals(name) => self.own.push((provider.to_owned(), name.clone())),
            Rule::Any(rules) => rules.iter().for_each(|rule| self.note_names(provider, rule)),
            _ => {}
        }
    }

    pub(super) fn names_of<'a>(&'a self, provider: &'a str) -> impl Iterator<Item = &'a str> {
        self.own.iter().filter(move |(own, _)| own == provider).map(|(_, name)| name.as_str())
    }

    pub(super) fn find(&self, model: &str) -> Option<&Arc<ModelPrice>> {
        let fitting = || self.patterns.iter().find(|(rule, _)| rule.matches(model)).map(|(_, price)| price);
        self.exact.get(model).or_else(fitting)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.exact.keys().map(String::as_str)
    }

    pub(super) fn prices_any(&self, glob: &Glob) -> bool {
        // A glob without wildcards is a name, and a name has an exact answer.
        self.find(glob.as_str()).is_some()
            || self.exact.keys().any(|name| glob.matches(name))
            || self.patterns.iter().any(|(rule, _)| rule.is_meant_by(glob))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_look_where_they_say() {
        let text = |text: &str| text.to_owned();
        assert!(
            Rule::StartsWith(text("gpt-4")).matches("gpt-4o") && !Rule::StartsWith(text("gpt-4")).matches("x-gpt-4")
        );
        assert!(Rule::EndsWith(text("-mini")).matches("o4-mini") && !Rule::EndsWith(text("-mini")).matches("o4-minis"));
        assert!(Rule::Contains(text("nova")).matches("us.nova-2") && !Rule::Contains(text("nova")).matches("super"));
        let dated = Rule::regex(r"^gpt-6\.1-sol-\d{4}-\d{2}-\d{2}$").unwrap();
        assert!(dated.matches("gpt-6.1-sol-2026-11-01") && !dated.matches("gpt-6.1-sol-2026-11-01x"));
        assert!(!dated.matches("gpt-6x1-sol-2026-11-01"));
    }

    #[test]
    fn pattern_that_excludes_speech_models_excludes_them_alone() {
        let no_speech = Rule::regex("^(?!.*-[tT][tT][sS](?:$|-))").unwrap();
        assert!(no_speech.matches("gemini-2.5-pro") && no_speech.matches("gemini-ttsx") && no_speech.matches("tts"));
        assert!(!no_speech.matches("gemini-2.5-pro-TTS") && !no_speech.matches("gemini-2.5-tts-preview"));
    }

    #[test]
    fn unreadable_pattern_is_an_error() {
        assert!(Rule::regex("(").is_err());
    }
}
