//! `tokentriage schema`: the JSON Schema of the configuration file, for editors and other checkers.

use super::{Failure, Outcome, print};
use crate::config::schema::json_schema;

pub fn run() -> Outcome {
    let text = serde_json::to_string_pretty(&json_schema()).map_err(|error| Failure::Runtime(error.to_string()))?;
    print(&format!("{text}\n"))
}
