//! How one event becomes one line.

use std::fmt;

use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// `{"time":"2026-08-01T12:00:00.000Z","level":"INFO","msg":"…","field":…}`
pub struct Json;

/// `12:00:00.000 INFO  … field=value`
pub struct Text;

impl<S: Subscriber + for<'a> LookupSpan<'a>, N: for<'a> FormatFields<'a> + 'static> FormatEvent<S, N> for Json {
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let fields = Fields::of(event);
        let now = jiff::Timestamp::now();
        let level = event.metadata().level().as_str();
        write!(writer, "{{\"time\":\"{now:.3}\",\"level\":\"{level}\",\"msg\":{}", Value::String(fields.message))?;
        for (name, value) in fields.rest {
            write!(writer, ",{}:{value}", Value::String(name))?;
        }
        writer.write_str("}\n")
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>, N: for<'a> FormatFields<'a> + 'static> FormatEvent<S, N> for Text {
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let fields = Fields::of(event);
        let now = jiff::Timestamp::now();
        let level = event.metadata().level();
        let (on, off) = if writer.has_ansi_escapes() { (color(level), "\u{1b}[0m") } else { ("", "") };
        write!(writer, "{} {on}{level:5}{off} {}", now.strftime("%H:%M:%S%.3f"), printable(&fields.message))?;
        for (name, value) in fields.rest {
            match value {
                Value::String(text) if is_word(&text) => write!(writer, " {name}={text}")?,
                value => write!(writer, " {name}={value}")?,
            }
        }
        writer.write_char('\n')
    }
}

fn color(level: &Level) -> &'static str {
    match *level {
        Level::ERROR => "\u{1b}[31m",
        Level::WARN => "\u{1b}[33m",
        Level::INFO => "\u{1b}[32m",
        _ => "\u{1b}[2m",
    }
}

/// What can stand without quotes and be told apart from its neighbours.
fn is_word(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| !c.is_whitespace() && !c.is_control() && !matches!(c, '"' | '='))
}

/// A message may repeat what came from outside; a terminal must not obey it.
fn printable(text: &str) -> String {
    text.chars().flat_map(|c| if c.is_control() { c.escape_default().collect::<Vec<_>>() } else { vec![c] }).collect()
}

/// The fields of an event in the order they were written; the message apart.
#[derive(Default)]
struct Fields {
    message: String,
    rest: Vec<(String, Value)>,
}

impl Fields {
    fn of(event: &Event<'_>) -> Self {
        let mut fields = Self::default();
        event.record(&mut fields);
        fields
    }

    fn put(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::String(text)) => self.message = text,
            // `time`, `level` and `msg` are ours; a field of that name would appear twice in one object.
            (name @ ("time" | "level" | "msg"), value) => {
                self.rest.push((format!("{name}_"), value));
            }
            (name, value) => {
                self.rest.push((name.to_owned(), value));
            }
        }
    }
}

impl Visit for Fields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        // JSON has no NaN; its absence would look like a field that was never there.
        self.put(field, serde_json::Number::from_f64(value).map_or_else(|| value.to_string().into(), Value::Number));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value.into());
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.put(field, value.to_string().into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format!("{value:?}").into());
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    /// What a layer with this format writes while `log` runs.
    fn written(json: bool, log: impl FnOnce()) -> String {
        #[derive(Clone, Default)]
        struct Buffer(Arc<Mutex<Vec<u8>>>);
        impl io::Write for Buffer {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.lock().unwrap().extend_from_slice(bytes);
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let buffer = Buffer::default();
        let writer = buffer.clone();
        let layer = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(move || writer.clone());
        if json {
            let subscriber = tracing_subscriber::registry().with(layer.event_format(Json));
            tracing::subscriber::with_default(subscriber, log);
        } else {
            let subscriber = tracing_subscriber::registry().with(layer.event_format(Text));
            tracing::subscriber::with_default(subscriber, log);
        }
        let bytes = buffer.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_json_line_has_time_level_and_msg_and_then_the_fields_as_they_were_written() {
        let line = written(true, || {
            tracing::info!(name = "tt-gov-a", source = "config", stable = true, "replica identity resolved");
        });
        let (head, rest) = line.split_once(",\"level\"").unwrap();
        assert_eq!(
            rest,
            ":\"INFO\",\"msg\":\"replica identity resolved\",\"name\":\"tt-gov-a\",\"source\":\"config\",\"stable\":true}\n"
        );
        let time: Value = serde_json::from_str(&format!("{head}}}")).unwrap();
        assert!(time["time"].as_str().unwrap().parse::<jiff::Timestamp>().is_ok(), "{time}");
    }

    #[test]
    fn a_json_line_stays_one_line_whatever_is_logged() {
        let line = written(true, || {
            let hostile = "a\"b\n{\"level\":\"x\"}\u{1b}[31m";
            tracing::warn!(hostile, level = 3, ratio = f64::NAN, error = ?Some(hostile), "{hostile}");
        });
        assert_eq!(line.matches('\n').count(), 1);
        let value: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["level"], "WARN");
        assert_eq!((&value["level_"], &value["ratio"]), (&Value::from(3), &Value::from("NaN")));
        assert_eq!(value["hostile"], value["msg"]);
    }

    #[test]
    fn a_text_line_shows_control_characters_and_does_not_obey_them() {
        let line = written(false, || {
            tracing::error!(path = "/v1/x", spaced = "a b", code = 7, "cut \u{1b}[2J\n here");
        });
        let after_time = line.split_once(' ').unwrap().1;
        assert_eq!(after_time, "ERROR cut \\u{1b}[2J\\n here path=/v1/x spaced=\"a b\" code=7\n");
    }
}
