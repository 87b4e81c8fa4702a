//! What went wrong, in words that a person can act on. The harness has no caller that would tell errors apart.

use std::fmt;

/// A sentence: what happened, and what to do about it.
#[derive(Debug)]
pub struct Trouble(pub String);

pub type Result<T> = std::result::Result<T, Trouble>;

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Trouble {}

/// Puts what was being done before what the system said.
pub trait While<T> {
    fn whilst(self, doing: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: fmt::Display> While<T> for std::result::Result<T, E> {
    fn whilst(self, doing: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| Trouble(format!("{}: {error}", doing())))
    }
}

pub fn trouble<T>(words: impl Into<String>) -> Result<T> {
    Err(Trouble(words.into()))
}
