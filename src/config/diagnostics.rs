//! What is wrong with a configuration, and how a person is told: path, fault, place in the file, remedy.
//!
//! One shape for every fault, whoever finds it: YAML, a type, a rule of ours, the compile of limits, a missing secret
//! at boot. Each fault is told once. Decides nothing about the configuration itself.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};

use super::mask::mask_secrets;
use super::source::{self, Source};
use super::tree::{self, Span};

/// More than this is no list anybody reads; the rest is counted.
const SHOWN_MAX: usize = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    Warning,
    Error,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Diagnostic {
    pub severity: Severity,
    /// `governance.limits[0].store`; empty for the file as a whole.
    pub path: String,
    /// What is wrong.
    pub message: String,
    /// What to do about it; empty when the message says it already.
    pub remedy: String,
    /// The bytes to underline; `None` for a fault without a place.
    pub span: Option<Span>,
    /// A second place that belongs to the fault, and what it is.
    pub other: Option<(Span, String)>,
}

/// Everything that is wrong with one source. Displays as plain text with snippets.
#[derive(Clone, Debug)]
pub struct Errors {
    pub source: Source,
    /// Warnings first, then errors, each in the order of the file: what must be changed stands last, at the prompt.
    pub diagnostics: Vec<Diagnostic>,
}

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&render(&self.diagnostics, &self.source, false))
    }
}

impl std::error::Error for Errors {}

impl Errors {
    pub fn error_count(&self) -> usize {
        self.diagnostics.iter().filter(|diagnostic| diagnostic.severity == Severity::Error).count()
    }

    /// The text for a terminal or a file.
    pub fn render(&self, color: bool) -> String {
        render(&self.diagnostics, &self.source, color)
    }
}

/// Collects faults while a configuration is read and judged, and keeps one mistake from being told twice.
#[derive(Debug, Default)]
pub struct Report {
    diagnostics: Vec<Diagnostic>,
    /// Path and message of each, so that none is told twice.
    told: HashSet<(String, String)>,
    /// Paths whose text is at fault already: what follows from a missing value there is not a second mistake.
    spoilt: HashSet<String>,
    /// Sections in which such a value belongs.
    incomplete: HashSet<String>,
}

impl Report {
    /// A value that could not be read: rules about it stay silent after it, and so do those about its section as a
    /// whole, which now lacks it.
    pub fn malformed(&mut self, diagnostic: Diagnostic) {
        self.lacks(&diagnostic.path.clone());
        self.push(diagnostic);
    }

    /// A key that nobody knows. `meant` is the path it was probably meant for: what stands there counts as given.
    pub fn unknown(&mut self, diagnostic: Diagnostic, meant: Option<&str>) {
        self.spoilt.insert(diagnostic.path.clone());
        if let Some(meant) = meant {
            self.lacks(meant);
        }
        self.push(diagnostic);
    }

    fn lacks(&mut self, path: &str) {
        self.spoilt.insert(path.to_owned());
        if let Some(section) = source::parent(path) {
            self.incomplete.insert(section.to_owned());
        }
    }

    /// A rule that the configuration breaks.
    pub fn error(&mut self, path: &str, message: impl Into<String>, remedy: impl Into<String>) {
        self.rule(Severity::Error, path, message.into(), remedy.into());
    }

    /// Something that works, and that the operator should know.
    pub fn warning(&mut self, path: &str, message: impl Into<String>, remedy: impl Into<String>) {
        self.rule(Severity::Warning, path, message.into(), remedy.into());
    }

    pub fn has_errors(&self) -> bool {
        self.diagnostics.iter().any(|diagnostic| diagnostic.severity == Severity::Error)
    }

    /// Whether something at this path or inside it is wrong already.
    pub fn has_error_within(&self, outer: &str) -> bool {
        let within =
            |path: &str| path.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']));
        self.diagnostics.iter().any(|diagnostic| diagnostic.severity == Severity::Error && within(&diagnostic.path))
    }

    fn rule(&mut self, severity: Severity, path: &str, message: String, remedy: String) {
        if self.incomplete.contains(path) {
            return;
        }
        let mut around = Some(path);
        while let Some(at) = around {
            if self.spoilt.contains(at) {
                return;
            }
            around = source::parent(at);
        }
        self.push(Diagnostic { severity, path: path.to_owned(), message, remedy, span: None, other: None });
    }

    fn push(&mut self, diagnostic: Diagnostic) {
        if self.told.insert((diagnostic.path.clone(), diagnostic.message.clone())) {
            self.diagnostics.push(diagnostic);
        }
    }

    /// Everything found, each with its place, in the order of the file; what has no place comes first.
    pub fn into_diagnostics(mut self, source: &Source) -> Vec<Diagnostic> {
        for diagnostic in &mut self.diagnostics {
            if diagnostic.span.is_none() {
                diagnostic.span = source.map.locate(&diagnostic.path);
            }
        }
        self.diagnostics.sort_by_cached_key(|diagnostic| {
            (diagnostic.severity, diagnostic.span.as_ref().map(|span| span.start), diagnostic.path.clone())
        });
        self.diagnostics
    }
}

/// The nearest of the known words, when it is near enough to be what was meant.
pub fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let written = word.to_ascii_lowercase();
    let scored = known.iter().map(|candidate| (strsim::damerau_levenshtein(&written, candidate), *candidate));
    let (distance, candidate) = scored.min_by_key(|(distance, _)| *distance)?;
    // A third of the word may be wrong (`amont`, `listen_adress`); further off is a guess. A known word that starts
    // with what was written, or the other way round, is near as well: `password` for `password_env`.
    let near = distance <= (written.len().max(candidate.len()) / 3).max(1);
    if near {
        return Some(candidate);
    }
    known.iter().copied().find(|candidate| {
        written.len() >= 3
            && (candidate.starts_with(&written) || written.starts_with(candidate) && candidate.len() >= 3)
    })
}

/// Renders diagnostics with snippets of the source, most severe first, as they are given. Secrets that stand in the
/// shown lines are masked. Ends with a newline unless there is nothing to say.
pub fn render(diagnostics: &[Diagnostic], source: &Source, color: bool) -> String {
    let renderer = if color { Renderer::styled() } else { Renderer::plain() };
    let mut text = String::new();
    for diagnostic in diagnostics.iter().take(SHOWN_MAX) {
        text.push_str(&render_one(&renderer, diagnostic, source));
        text.push_str("\n\n");
    }
    if diagnostics.len() > SHOWN_MAX {
        text.push_str(&format!("and {} more\n\n", diagnostics.len() - SHOWN_MAX));
    }
    if text.ends_with("\n\n") {
        text.pop();
    }
    text
}

fn render_one(renderer: &Renderer, diagnostic: &Diagnostic, source: &Source) -> String {
    let level = match diagnostic.severity {
        Severity::Error => Level::ERROR,
        Severity::Warning => Level::WARNING,
    };
    let title = match (diagnostic.path.is_empty(), diagnostic.span.is_none() && !source.name.is_empty()) {
        (true, true) => format!("{}: {}", source.name, diagnostic.message),
        (true, false) => diagnostic.message.clone(),
        (false, _) => format!("{}: {}", diagnostic.path, diagnostic.message),
    };
    let title = level.primary_title(title);
    let lines: Vec<Line> = [
        diagnostic.span.as_ref().map(|span| Line::at(source, span, AnnotationKind::Primary, None)),
        diagnostic
            .other
            .as_ref()
            .map(|(span, label)| Line::at(source, span, AnnotationKind::Context, Some(label.as_str()))),
    ]
    .into_iter()
    .flatten()
    .collect();
    let mut group = Group::with_title(title);
    for line in &lines {
        let annotation = line.kind.span(line.span.clone()).label(line.label.unwrap_or(""));
        group = group.element(
            Snippet::source(line.text.as_ref())
                .line_start(line.number)
                .path(source.name.as_str())
                .annotation(annotation),
        );
    }
    if !diagnostic.remedy.is_empty() {
        group = group.element(Level::HELP.message(diagnostic.remedy.as_str()));
    }
    renderer.render(&[group])
}

/// One line of the source as it is shown. Only the line itself goes to the renderer, so that the cost of a message
/// does not grow with the file.
struct Line<'a> {
    text: Cow<'a, str>,
    number: usize,
    span: Span,
    kind: AnnotationKind,
    label: Option<&'a str>,
}

impl<'a> Line<'a> {
    fn at(source: &'a Source, span: &Span, kind: AnnotationKind, label: Option<&'a str>) -> Self {
        let text = &source.text;
        let offset = tree::floor_boundary(text, span.start);
        let start = text.get(..offset).and_then(|before| before.rfind('\n')).map_or(0, |newline| newline + 1);
        let end = text.get(offset..).and_then(|after| after.find('\n')).map_or(text.len(), |len| offset + len);
        let line = text.get(start..end).unwrap_or("").trim_end_matches('\r');
        let from = (offset - start).min(line.len());
        // At least one character is underlined, unless the line has none there.
        let to = tree::ceil_boundary(line, span.end.saturating_sub(start).max(from + 1));
        Self { text: mask_secrets(line), number: source.position(offset).line, span: from..to, kind, label }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Source {
        Source::new("tt.yaml", text, &tree::parse(text).unwrap().0)
    }

    fn rendered(text: &str, fill: impl FnOnce(&mut Report)) -> String {
        let source = source(text);
        let mut report = Report::default();
        fill(&mut report);
        render(&report.into_diagnostics(&source), &source, false)
    }

    #[test]
    fn a_fault_shows_path_line_column_caret_and_remedy() {
        let text = rendered("governance:\n  limits:\n    - id: one\n      store: redis\n", |report| {
            report.error("governance.limits[0].store", "no redis", "use local or share");
        });
        insta::assert_snapshot!(text, @r"
        error: governance.limits[0].store: no redis
         --> tt.yaml:4:14
          |
        4 |       store: redis
          |              ^^^^^
          |
          = help: use local or share
        ");
    }

    #[test]
    fn a_second_place_is_shown_with_its_label() {
        let source = source("a: 1\nb: 2\n");
        let diagnostic = Diagnostic {
            severity: Severity::Error,
            path: "a".into(),
            message: "twice".into(),
            remedy: String::new(),
            span: Some(5..6),
            other: Some((0..1, "first here".into())),
        };
        insta::assert_snapshot!(render(&[diagnostic], &source, false), @r"
        error: a: twice
         --> tt.yaml:2:1
          |
        2 | b: 2
          | ^
          |
         ::: tt.yaml:1:1
          |
        1 | a: 1
          | - first here
        ");
    }

    #[test]
    fn what_follows_from_a_mistake_is_not_told_again() {
        let text = rendered("a: 1\nb: 2\n", |report| {
            report.malformed(Diagnostic {
                severity: Severity::Error,
                path: "a".into(),
                message: "found a number".into(),
                remedy: String::new(),
                span: None,
                other: None,
            });
            report.error("a", "a is missing", "write a");
            report.error("a.b", "b is missing", "write b");
            report.error("ab", "told", "");
            report.error("ab", "told", "");
        });
        assert_eq!(text.matches("missing").count(), 0, "{text}");
        assert_eq!(text.matches("told").count(), 1, "{text}");
    }

    #[test]
    fn the_end_of_a_line_or_of_the_file_can_be_underlined() {
        let source = source("a: 1\nbé: \n# ü");
        for start in 0..=source.text.len() + 3 {
            for end in start..=source.text.len() + 3 {
                let diagnostic = Diagnostic {
                    severity: Severity::Warning,
                    path: String::new(),
                    message: "m".into(),
                    remedy: "r".into(),
                    span: Some(start..end),
                    other: None,
                };
                assert!(render(&[diagnostic], &source, true).contains("tt.yaml"));
            }
        }
    }

    #[test]
    fn a_near_key_is_offered_and_a_far_one_is_not() {
        let known = ["listen", "admin_listen", "amount", "password_env", "tls"];
        assert_eq!(nearest("lisen", &known), Some("listen"));
        assert_eq!(nearest("amont", &known), Some("amount"));
        assert_eq!(nearest("Listen", &known), Some("listen"));
        assert_eq!(nearest("password", &known), Some("password_env"));
        assert_eq!(nearest("zebra", &known), None);
        assert_eq!(nearest("x", &known), None);
    }
}
