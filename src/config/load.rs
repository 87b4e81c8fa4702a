//! Reads a configuration from a file, from text, or from the binary itself, and reports all that is wrong with it.

use std::path::{Path, PathBuf};

use shards::rate::Clock0;

use super::build;
use super::default;
use super::diagnostics::{Diagnostic, Errors, Report, Severity};
use super::mask;
use super::read;
use super::replica::Surroundings;
use super::schema::File;
use super::source::Source;
use super::tree::{self, Node, Value};
use super::types::Config;
use super::validate;

/// A configuration without an error of its own. Limits and prices are still to be compiled.
#[derive(Clone, Debug)]
pub struct Loaded {
    pub config: Config,
    /// The text it came from, for later messages about it.
    pub source: Source,
    pub warnings: Vec<Diagnostic>,
}

/// Where a configuration comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    File(PathBuf),
    /// No file was named and there is none where one is looked for.
    Embedded,
}

impl Origin {
    /// The named file, else `./tokentriage.yaml`, else the configuration inside the binary.
    pub fn find(named: Option<&Path>) -> Self {
        match named {
            Some(path) => Origin::File(path.to_owned()),
            // A file that is there and cannot be read is an error, not a reason to serve something else.
            None if Path::new(default::FILE_NAME).try_exists().unwrap_or(true) => {
                Origin::File(default::FILE_NAME.into())
            }
            None => Origin::Embedded,
        }
    }

    pub fn load(&self) -> Result<Loaded, Errors> {
        match self {
            Origin::File(path) => load(path),
            Origin::Embedded => load_text(default::EMBEDDED_NAME, default::EMBEDDED),
        }
    }

    /// How messages name it.
    pub fn name(&self) -> String {
        match self {
            Origin::File(path) => path.display().to_string(),
            Origin::Embedded => default::EMBEDDED_NAME.to_owned(),
        }
    }
}

/// Loads a file.
pub fn load(path: &Path) -> Result<Loaded, Errors> {
    let name = path.display().to_string();
    let fault = |message: String, remedy: &str, source: Source| {
        let remedy = remedy.to_owned();
        let span = None;
        let fault = Diagnostic { severity: Severity::Error, path: String::new(), message, remedy, span, other: None };
        Errors { source, diagnostics: vec![fault] }
    };
    let unread = || Source::unparsed(&name, "");
    let length = std::fs::metadata(path).map(|meta| meta.len()).unwrap_or(0);
    if length > tree::SOURCE_BYTES_MAX as u64 {
        let message = format!("the file has {length} bytes; a configuration has at most {}", tree::SOURCE_BYTES_MAX);
        return Err(fault(message, "name the configuration file with -c", unread()));
    }
    let bytes = std::fs::read(path).map_err(|error| {
        let remedy = "name the configuration file with -c, or write one with `tokentriage init`";
        fault(format!("cannot be read: {error}"), remedy, unread())
    })?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let line = error.as_bytes().iter().take(error.utf8_error().valid_up_to()).filter(|b| **b == b'\n').count() + 1;
        fault(format!("line {line} is not UTF-8 text"), "save the file as UTF-8", unread())
    })?;
    load_text(&name, &text)
}

/// Loads a configuration from its text. `name` stands for it in messages.
pub fn load_text(name: &str, text: &str) -> Result<Loaded, Errors> {
    load_in(name, text, &Surroundings::of_process())
}

/// As [`load_text`], with the environment and host name passed in.
pub fn load_in(name: &str, text: &str, surroundings: &Surroundings) -> Result<Loaded, Errors> {
    let (root, duplicates) = tree::parse(text).map_err(|error| {
        let remedy =
            if error.span.is_some() { "correct the YAML; the rest of the file is checked after that" } else { "" };
        let fault = Diagnostic {
            severity: Severity::Error,
            path: String::new(),
            message: error.message,
            remedy: remedy.to_owned(),
            span: error.span,
            other: None,
        };
        Errors { source: Source::unparsed(name, text), diagnostics: vec![fault] }
    })?;
    let source = Source::new(name, text, &root);
    let mut report = Report::default();
    for duplicate in duplicates {
        report.malformed(Diagnostic {
            severity: Severity::Error,
            message: format!("the key `{}` stands here twice", duplicate.key),
            remedy: "keep one of the two".to_owned(),
            span: Some(duplicate.second),
            other: Some((duplicate.first, "first here".to_owned())),
            path: duplicate.path,
        });
    }
    let file: File = read::read(&root, &mut report).unwrap_or_default();
    let config = build::config(file, &mut report);
    validate::sections(&config, surroundings, &mut report);
    unexpanded(&root, &mut String::new(), &mut report);
    if report.has_errors() {
        // Compiled for its errors alone, so that one run tells everything.
        validate::limits_and_prices(&config, Clock0::default(), &mut report);
        let diagnostics = report.into_diagnostics(&source);
        return Err(Errors { source, diagnostics });
    }
    let warnings = report.into_diagnostics(&source);
    Ok(Loaded { config, source, warnings })
}

/// Warns of `${NAME}` where it stands for itself: people expect it to be replaced, and only `*_env` keys do so.
fn unexpanded(node: &Node, path: &mut String, report: &mut Report) {
    let depth = path.len();
    match &node.value {
        Value::Text(text) if text.contains("${") => {
            let key = path.rsplit('.').next().unwrap_or("");
            if !key.ends_with("_env") || mask::env_name(text) == text {
                report.warning(
                    path,
                    "`${…}` is not replaced here",
                    "only keys that end in _env take a value from the environment, by the name of the variable",
                );
            }
        }
        Value::List(items) => {
            for (index, item) in items.iter().enumerate() {
                path.push_str(&format!("[{index}]"));
                unexpanded(item, path, report);
                path.truncate(depth);
            }
        }
        Value::Map(entries) => {
            for entry in entries {
                tree::join(path, &entry.key);
                unexpanded(&entry.node, path, report);
                path.truncate(depth);
            }
        }
        _ => {}
    }
}
