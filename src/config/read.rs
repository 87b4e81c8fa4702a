//! Reads typed values out of the tree and reports every mistake on the way instead of stopping at the first.
//!
//! A serde deserialiser over [`Node`]: the file's shape is declared once, in `schema`, and serves reading, unknown-key
//! checks and the JSON Schema alike. A value that does not fit is reported with its place and then counts as not
//! given ([`Given`]); a key that a struct does not list is reported with the nearest one it does. Judges no value
//! beyond its type.

use std::cell::RefCell;
use std::fmt;

use serde::de::value::{BorrowedStrDeserializer, StrDeserializer};
use serde::de::{self, DeserializeSeed, Deserializer, EnumAccess, Expected, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, forward_to_deserialize_any};

use super::diagnostics::{Diagnostic, Report, Severity, nearest};
use super::tree::{self, Entry, Node, Value};

/// A newtype of this name asks for a number's text as it was written. Anything else is a type error.
pub const DECIMAL: &str = "$decimal";

/// A value that may be absent. Absent is also what a value is that did not fit and has been reported.
#[derive(Clone, Debug, PartialEq)]
pub struct Given<T>(pub Option<T>);

impl<T> Default for Given<T> {
    fn default() -> Self {
        Given(None)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Given<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // The fault is in the report by now; the rest of the file is read all the same.
        Ok(Given(T::deserialize(deserializer).ok()))
    }
}

/// Reads a `T` from the root of a file. `None` when the root itself is of another type.
pub fn read<'t, T: Deserialize<'t>>(root: &'t Node, report: &mut Report) -> Option<T> {
    let shared = RefCell::new(std::mem::take(report));
    let value = T::deserialize(Reader { node: root, path: String::new(), report: &shared }).ok();
    *report = shared.into_inner();
    value
}

/// Why a value was given up. The text is on its way to the report, or there already.
#[derive(Debug)]
pub enum ReadError {
    Custom(String),
    Reported,
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ReadError::Custom(message) => message,
            ReadError::Reported => "reported",
        })
    }
}

impl std::error::Error for ReadError {}

impl de::Error for ReadError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        ReadError::Custom(message.to_string())
    }
}

/// One node on its way to becoming a typed value.
struct Reader<'t, 'r> {
    node: &'t Node,
    path: String,
    report: &'r RefCell<Report>,
}

impl<'t> Reader<'t, '_> {
    fn fault(&self, message: String, remedy: String) -> ReadError {
        self.report.borrow_mut().malformed(Diagnostic {
            severity: Severity::Error,
            path: self.path.clone(),
            message,
            remedy,
            span: None,
            other: None,
        });
        ReadError::Reported
    }

    fn wrong_type(&self, expected: &dyn Expected) -> ReadError {
        let message = match &self.node.value {
            Value::Null => "has no value".to_owned(),
            value => format!("{} does not fit here", value.noun()),
        };
        let mut remedy = format!("write {expected}");
        match &self.node.value {
            Value::Null => remedy.push_str(", or remove the key"),
            Value::Bool(_) | Value::Number(_) if expected.to_string().starts_with("text") => {
                remedy = "put it in quotes to make it text".to_owned();
            }
            _ => {}
        }
        self.fault(message, remedy)
    }

    /// Hands the value to the visitor; what the visitor objects to is reported at this node, once.
    fn visit<V: Visitor<'t>>(
        self,
        expected: String,
        visit: impl FnOnce() -> Result<V::Value, ReadError>,
    ) -> Result<V::Value, ReadError> {
        visit().map_err(|error| match error {
            ReadError::Reported => ReadError::Reported,
            ReadError::Custom(message) => self.fault(message, format!("write {expected}")),
        })
    }
}

fn expecting<'de, V: Visitor<'de>>(visitor: &V) -> String {
    (visitor as &dyn Expected).to_string()
}

impl<'de> Deserializer<'de> for Reader<'de, '_> {
    type Error = ReadError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        let expected = expecting(&visitor);
        match &self.node.value {
            Value::Null => Err(self.wrong_type(&visitor)),
            Value::Bool(value) => self.visit::<V>(expected, || visitor.visit_bool(*value)),
            Value::Number(text) => match text.parse() {
                Ok(whole) => self.visit::<V>(expected, || visitor.visit_u64(whole)),
                Err(_) => self.visit::<V>(expected, || visitor.visit_f64(text.parse().unwrap_or(f64::NAN))),
            },
            Value::Text(text) => self.visit::<V>(expected, || visitor.visit_borrowed_str(text)),
            Value::List(_) => self.deserialize_seq(visitor),
            Value::Map(_) => self.deserialize_map(visitor),
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        match &self.node.value {
            Value::Bool(value) => visitor.visit_bool(*value),
            _ => Err(self.wrong_type(&"true or false")),
        }
    }

    fn deserialize_u64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        let expected = expecting(&visitor);
        let Value::Number(text) = &self.node.value else { return Err(self.wrong_type(&visitor)) };
        match text.parse() {
            Ok(whole) => self.visit::<V>(expected, || visitor.visit_u64(whole)),
            Err(_) => Err(self.fault(format!("`{text}` does not fit here"), format!("write {expected}"))),
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        let expected = expecting(&visitor);
        let Value::Text(text) = &self.node.value else { return Err(self.wrong_type(&visitor)) };
        self.visit::<V>(expected, || visitor.visit_borrowed_str(text))
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        if name != DECIMAL {
            return visitor.visit_newtype_struct(self);
        }
        let expected = expecting(&visitor);
        let Value::Number(text) = &self.node.value else { return Err(self.wrong_type(&visitor)) };
        self.visit::<V>(expected, || visitor.visit_borrowed_str(text))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        let choices = variants.join(", ");
        let Value::Text(text) = &self.node.value else {
            return Err(self.wrong_type(&format!("one of {choices}").as_str()));
        };
        if variants.contains(&text.as_str()) {
            return visitor.visit_enum(Word(text));
        }
        let remedy = match nearest(text, variants) {
            Some(near) => format!("did you mean `{near}`? It is one of {choices}"),
            None => format!("write one of {choices}"),
        };
        Err(self.fault(format!("`{text}` is not known here"), remedy))
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        let items: &[Node] = match &self.node.value {
            Value::List(items) => items,
            // `limits:` with every entry commented out.
            Value::Null => &[],
            _ => return Err(self.wrong_type(&"a list")),
        };
        visitor.visit_seq(Items { items: items.iter().enumerate(), path: self.path, report: self.report })
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        self.keys(None, visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        self.keys(Some(fields), visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        visitor.visit_some(self)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        i8 i16 i32 i64 i128 u8 u16 u32 u128 f32 f64 char bytes byte_buf
        unit unit_struct tuple tuple_struct identifier
    }
}

impl<'t> Reader<'t, '_> {
    fn keys<V: Visitor<'t>>(self, fields: Option<&'static [&'static str]>, visitor: V) -> Result<V::Value, ReadError> {
        let entries: &[Entry] = match &self.node.value {
            Value::Map(entries) => entries,
            // `governance:` with every key commented out.
            Value::Null => &[],
            _ if self.path.is_empty() => return Err(self.wrong_type(&"a mapping of sections: server, upstreams, …")),
            _ => {
                let known = fields.map(|fields| format!(" with {}", fields.join(", "))).unwrap_or_default();
                return Err(self.wrong_type(&format!("a mapping{known}").as_str()));
            }
        };
        if let Some(fields) = fields {
            for entry in entries.iter().filter(|entry| !fields.contains(&entry.key.as_str())) {
                report_unknown(&self.path, entry, entries, fields, &mut self.report.borrow_mut());
            }
        }
        let known = entries.iter().filter(|entry| fields.is_none_or(|fields| fields.contains(&entry.key.as_str())));
        let entries = known.collect::<Vec<_>>().into_iter();
        visitor.visit_map(Entries { entries, value: None, path: self.path, report: self.report })
    }
}

fn report_unknown(path: &str, entry: &Entry, present: &[Entry], fields: &[&str], report: &mut Report) {
    let inside = if path.is_empty() { "at the top of the file".to_owned() } else { format!("in `{path}`") };
    let at = |key: &str| {
        let mut at = path.to_owned();
        tree::join(&mut at, key);
        at
    };
    let near = nearest(&entry.key, fields);
    let is_set = |key: &str| present.iter().any(|entry| entry.key == key);
    let remedy = match near {
        Some(near) if is_set(near) => format!("remove it: `{near}` is set already"),
        Some(near) if near.strip_suffix("_env") == Some(&entry.key) => {
            format!("did you mean `{near}`? It names the environment variable that holds the secret")
        }
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("the keys {inside} are {}", fields.join(", ")),
    };
    let meant = near.filter(|near| !is_set(near)).map(at);
    let unknown = Diagnostic {
        severity: Severity::Error,
        path: at(&entry.key),
        message: format!("unknown key `{}` {inside}", entry.key),
        remedy,
        span: Some(entry.key_span.clone()),
        other: None,
    };
    report.unknown(unknown, meant.as_deref());
}

struct Items<'t, 'r> {
    items: std::iter::Enumerate<std::slice::Iter<'t, Node>>,
    path: String,
    report: &'r RefCell<Report>,
}

impl<'t> SeqAccess<'t> for Items<'t, '_> {
    type Error = ReadError;

    fn next_element_seed<S: DeserializeSeed<'t>>(&mut self, seed: S) -> Result<Option<S::Value>, ReadError> {
        let Some((index, node)) = self.items.next() else { return Ok(None) };
        let path = format!("{}[{index}]", self.path);
        seed.deserialize(Reader { node, path, report: self.report }).map(Some)
    }
}

struct Entries<'t, 'r> {
    entries: std::vec::IntoIter<&'t Entry>,
    value: Option<&'t Entry>,
    path: String,
    report: &'r RefCell<Report>,
}

impl<'t> MapAccess<'t> for Entries<'t, '_> {
    type Error = ReadError;

    fn next_key_seed<S: DeserializeSeed<'t>>(&mut self, seed: S) -> Result<Option<S::Value>, ReadError> {
        self.value = self.entries.next();
        let Some(entry) = self.value else { return Ok(None) };
        seed.deserialize(BorrowedStrDeserializer::new(&entry.key)).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'t>>(&mut self, seed: S) -> Result<S::Value, ReadError> {
        let Some(entry) = self.value.take() else { return Err(de::Error::custom("a value before its key")) };
        let mut path = self.path.clone();
        tree::join(&mut path, &entry.key);
        seed.deserialize(Reader { node: &entry.node, path, report: self.report })
    }
}

/// A word of an enumeration.
struct Word<'t>(&'t str);

impl<'t> EnumAccess<'t> for Word<'t> {
    type Error = ReadError;
    type Variant = Self;

    fn variant_seed<S: DeserializeSeed<'t>>(self, seed: S) -> Result<(S::Value, Self), ReadError> {
        Ok((seed.deserialize(StrDeserializer::new(self.0))?, self))
    }
}

impl<'t> de::VariantAccess<'t> for Word<'t> {
    type Error = ReadError;

    fn unit_variant(self) -> Result<(), ReadError> {
        Ok(())
    }

    fn newtype_variant_seed<S: DeserializeSeed<'t>>(self, _seed: S) -> Result<S::Value, ReadError> {
        Err(de::Error::custom("a word carries no value"))
    }

    fn tuple_variant<V: Visitor<'t>>(self, _len: usize, _visitor: V) -> Result<V::Value, ReadError> {
        Err(de::Error::custom("a word carries no value"))
    }

    fn struct_variant<V: Visitor<'t>>(
        self,
        _fields: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, ReadError> {
        Err(de::Error::custom("a word carries no value"))
    }
}
