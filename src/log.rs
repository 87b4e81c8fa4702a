//! Log lines on stderr: JSON (`time`, `level`, `msg`, then the fields), or text where a person reads along.
//!
//! A line never makes the thread wait that writes it: lines go through a bounded queue to a thread of their own, and
//! when whatever reads stderr has stopped, lines are dropped and counted instead of stopping a data core. Decides
//! nothing about what is logged. Set up once, by the command line.

mod format;
mod queue;

use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::cli::LogFormat;
use format::{Json, Text};
use queue::Queue;

/// The variable that chooses what is logged when the command line does not.
pub const LEVEL_VARIABLE: &str = "TT_LOG";

/// Keeps the log going. Dropping it writes out what is queued, within a bound.
#[must_use = "dropping the guard ends the log"]
pub struct LogGuard(#[expect(dead_code, reason = "held for its Drop")] queue::Writer);

/// Starts the log. `Err` says what is wrong with the filter.
pub fn init(format: LogFormat, filter: Option<&str>) -> Result<LogGuard, String> {
    let from_variable = std::env::var(LEVEL_VARIABLE).ok().filter(|text| !text.is_empty());
    let (name, text) = match (filter, &from_variable) {
        (Some(text), _) => ("--log-level", text),
        (None, Some(text)) => (LEVEL_VARIABLE, text.as_str()),
        (None, None) => ("", "info"),
    };
    let filter = EnvFilter::try_new(text).map_err(|error| {
        format!("{name}: `{text}` is no log filter ({error}); write one of error, warn, info, debug, trace")
    })?;
    let is_text = match format {
        LogFormat::Json => false,
        LogFormat::Text => true,
        LogFormat::Auto => io::stderr().is_terminal(),
    };
    let (queue, writer) = Queue::to_stderr().map_err(|error| format!("the log thread did not start: {error}"))?;
    let registry = tracing_subscriber::registry().with(filter);
    let started = if is_text {
        let layer = tracing_subscriber::fmt::layer().event_format(Text).with_ansi(crate::cli::color());
        registry.with(layer.with_writer(queue)).try_init()
    } else {
        let layer = tracing_subscriber::fmt::layer().event_format(Json).with_ansi(false);
        registry.with(layer.with_writer(queue)).try_init()
    };
    started.map_err(|error| format!("the log is running already: {error}"))?;
    Ok(LogGuard(writer))
}
