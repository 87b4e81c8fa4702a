//! Where each path of the configuration stands in the text: `governance.limits[0].store` → line, column, bytes.
//!
//! Built once from the tree and kept with the loaded configuration, so that whoever finds a fault later (the compile
//! of limits, a missing secret at boot) can point at the same place in the same words.

use std::collections::HashMap;

use super::tree::{self, Node, Span, Value};

/// The text of a configuration, its name for messages, and the place of every path in it.
#[derive(Clone, Debug, Default)]
pub struct Source {
    /// File name, or a description such as `built-in default`.
    pub name: String,
    pub text: String,
    pub map: SourceMap,
}

/// Path → place. Knows every key that stands in the file, our own or not.
#[derive(Clone, Debug, Default)]
pub struct SourceMap {
    places: HashMap<String, Place>,
}

#[derive(Clone, Debug)]
struct Place {
    key: Option<Span>,
    /// What to underline when the value is at fault: the scalar itself, or the first key of a block.
    value: Span,
}

/// A position as editors count: both from 1, the column in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    pub line: usize,
    pub column: usize,
}

impl Source {
    pub fn new(name: &str, text: &str, root: &Node) -> Self {
        let mut map = SourceMap::default();
        map.add(text, root, &mut String::new(), None);
        Self { name: name.to_owned(), text: text.to_owned(), map }
    }

    /// A source of which nothing is known but its name: a file that could not be read or parsed.
    pub fn unparsed(name: &str, text: &str) -> Self {
        Self { name: name.to_owned(), text: text.to_owned(), map: SourceMap::default() }
    }

    /// Line and column of a byte offset. An offset past the end is the end.
    pub fn position(&self, offset: usize) -> Position {
        let before = self.text.get(..tree::floor_boundary(&self.text, offset)).unwrap_or("");
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
        let column = before.get(line_start..).unwrap_or("").chars().count() + 1;
        Position { line, column }
    }
}

impl SourceMap {
    /// The bytes to underline for a fault at this path. A path that is not in the file (a missing key) is shown at
    /// the nearest thing around it that is.
    pub fn locate(&self, path: &str) -> Option<Span> {
        let mut path = path;
        loop {
            if let Some(place) = self.places.get(path) {
                return Some(place.value.clone());
            }
            path = parent(path)?;
        }
    }

    /// The bytes of the key at this path, for a fault of the key itself.
    pub fn locate_key(&self, path: &str) -> Option<Span> {
        self.places.get(path).and_then(|place| place.key.clone())
    }

    /// Whether this very path stands in the file.
    pub fn contains(&self, path: &str) -> bool {
        self.places.contains_key(path)
    }

    fn add(&mut self, text: &str, node: &Node, path: &mut String, key: Option<Span>) {
        let value = match &node.value {
            // A block has no length of its own: show the key that introduces it, or its own first key in a list.
            Value::Map(entries) => key.clone().or_else(|| entries.first().map(|entry| entry.key_span.clone())),
            Value::List(_) | Value::Null => key.clone(),
            _ => None,
        };
        let value = first_line(text, value.unwrap_or_else(|| node.span.clone()));
        if !path.is_empty() {
            self.places.insert(path.clone(), Place { key, value });
        }
        let depth = path.len();
        match &node.value {
            Value::Map(entries) => {
                for entry in entries {
                    tree::join(path, &entry.key);
                    self.add(text, &entry.node, path, Some(entry.key_span.clone()));
                    path.truncate(depth);
                }
            }
            Value::List(items) => {
                for (index, item) in items.iter().enumerate() {
                    path.push_str(&format!("[{index}]"));
                    self.add(text, item, path, None);
                    path.truncate(depth);
                }
            }
            _ => {}
        }
    }
}

/// `governance.limits[0].store` → `governance.limits[0]` → `governance.limits` → `governance` → `None`.
pub fn parent(path: &str) -> Option<&str> {
    let cut = path.rfind(['.', '['])?;
    path.get(..cut)
}

fn first_line(text: &str, span: Span) -> Span {
    let covered = text.get(span.clone()).unwrap_or("");
    match covered.find('\n') {
        Some(newline) => span.start..span.start + covered.get(..newline).unwrap_or("").trim_end().len(),
        None => span,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "server:\n  listen: ä\ngovernance:\n  limits:\n    - id: one\n      store: redis\n    - id: two\n";

    fn shown(path: &str) -> String {
        let source = Source::new("t", TEXT, &tree::parse(TEXT).unwrap().0);
        let span = source.map.locate(path).unwrap();
        let position = source.position(span.start);
        format!("{}:{} {}", position.line, position.column, &TEXT[span])
    }

    #[test]
    fn a_value_is_found_by_its_path() {
        assert_eq!(shown("governance.limits[0].store"), "6:14 redis");
        assert_eq!(shown("server.listen"), "2:11 ä");
    }

    #[test]
    fn a_missing_key_is_shown_at_the_nearest_thing_around_it() {
        assert_eq!(shown("governance.limits[1].period"), "7:7 id");
        assert_eq!(shown("governance.limits[7].period"), "4:3 limits");
        assert_eq!(shown("server.tls.cert_file"), "1:1 server");
    }

    #[test]
    fn a_path_with_nothing_around_it_has_no_place() {
        let source = Source::new("t", TEXT, &tree::parse(TEXT).unwrap().0);
        assert_eq!(source.map.locate("upstreams"), None);
        assert_eq!(source.position(10_000), Position { line: 8, column: 1 });
    }
}
