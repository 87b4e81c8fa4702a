//! The kinds of value the file knows: text, whole numbers with a range, durations, sizes, decimals, names of
//! environment variables. Each says in one place how it is read, what a message asks for instead, and what the JSON
//! Schema tells an editor. Which key takes which kind is `schema`'s business.

use std::borrow::Cow;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::{Serialize, Serializer};

use super::mask;
use super::read::{DECIMAL, Given};
use super::units;

/// Reads text through a function; what the function objects to becomes the message.
struct Parsed<F> {
    expected: &'static str,
    parse: F,
}

impl<'de, T, F: FnOnce(&str) -> Result<T, String>> Visitor<'de> for Parsed<F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        (self.parse)(text).map_err(E::custom)
    }
}

/// A kind that is written as text and read by one function.
macro_rules! text_kind {
    ($(#[$doc:meta])* $name:ident($inner:ty), $expected:expr, $parse:expr, $schema:tt) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name(pub $inner);

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let parse: fn(&str) -> Result<$inner, String> = $parse;
                deserializer.deserialize_str(Parsed { expected: $expected, parse }).map($name)
            }
        }

        impl JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!($schema)
            }
        }
    };
}

text_kind!(
    /// Any text. What it must look like is a rule about its key.
    Text(String),
    "text",
    |text| Ok(text.to_owned()),
    { "type": "string" }
);

text_kind!(
    /// What a limit counts over. Calendar word or duration: which of them depends on the type of the limit.
    PeriodText(String),
    "text: a duration such as 1m for rates, one of hour, day, week, month, year for budgets and quotas",
    |text| Ok(text.to_owned()),
    { "type": "string", "pattern": "^(hour|day|week|month|year|([0-9]+(d|h|m|s|ms|us|ns))+)$" }
);

text_kind!(
    /// An IP address with a port.
    Address(SocketAddr),
    "an IP address with a port, such as 127.0.0.1:8790, 0.0.0.0:8790 or \"[::1]:8790\"",
    |text| text.parse().map_err(|_| format!("`{text}` is no IP address with a port")),
    { "type": "string", "pattern": "^.+:[0-9]{1,5}$" }
);

text_kind!(
    /// The name of an environment variable. Never the secret itself; the message does not repeat what was written.
    EnvName(String),
    "the name of an environment variable in upper case, such as OPENAI_API_KEY; the secret itself stays outside the file",
    |text| {
        let name = mask::env_name(text);
        match mask::is_env_name(name) {
            true => Ok(name.to_owned()),
            false => Err("what stands here is not the name of an environment variable".to_owned()),
        }
    },
    { "type": "string", "pattern": "^(\\$\\{[A-Z_][A-Z0-9_]*\\}|[A-Z_][A-Z0-9_]*)$" }
);

/// A length of time between two bounds, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span<const MIN_MS: u64, const MAX_MS: u64>(pub Duration);

impl<'de, const MIN_MS: u64, const MAX_MS: u64> Deserialize<'de> for Span<MIN_MS, MAX_MS> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let parse = |text: &str| {
            let duration = units::parse_duration(text)?;
            let (min, max) = (Duration::from_millis(MIN_MS), Duration::from_millis(MAX_MS));
            if (min..=max).contains(&duration) {
                return Ok(Self(duration));
            }
            let (min, max) = (units::format_duration(min), units::format_duration(max));
            Err(format!("`{text}` is outside {min} to {max}"))
        };
        deserializer.deserialize_str(Parsed { expected: units::DURATION_HINT, parse })
    }
}

impl<const MIN_MS: u64, const MAX_MS: u64> JsonSchema for Span<MIN_MS, MAX_MS> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("Duration_{MIN_MS}_{MAX_MS}").into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^([0-9]+(d|h|m|s|ms|us|ns))+$" })
    }
}

/// A count of bytes between two bounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Size<const MIN: u64, const MAX: u64>(pub u64);

impl<const MIN: u64, const MAX: u64> Size<MIN, MAX> {
    fn within(bytes: u64, written: &str) -> Result<Self, String> {
        if (MIN..=MAX).contains(&bytes) {
            return Ok(Self(bytes));
        }
        Err(format!("`{written}` is outside {} to {}", units::format_size(MIN), units::format_size(MAX)))
    }
}

impl<'de, const MIN: u64, const MAX: u64> Deserialize<'de> for Size<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bytes<const MIN: u64, const MAX: u64>;
        impl<'de, const MIN: u64, const MAX: u64> Visitor<'de> for Bytes<MIN, MAX> {
            type Value = Size<MIN, MAX>;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str(units::SIZE_HINT)
            }

            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<Self::Value, E> {
                Size::within(bytes, &bytes.to_string()).map_err(E::custom)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                units::parse_size(text).and_then(|bytes| Size::within(bytes, text)).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Bytes)
    }
}

impl<const MIN: u64, const MAX: u64> JsonSchema for Size<MIN, MAX> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("Size_{MIN}_{MAX}").into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [
            { "type": "string", "pattern": "^[0-9]+(B|KiB|MiB|GiB|TiB)?$" },
            { "type": "integer", "minimum": MIN, "maximum": MAX },
        ] })
    }
}

/// A whole number between two bounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Whole<const MIN: u64, const MAX: u64>(pub u64);

struct WholeVisitor<const MIN: u64, const MAX: u64>;

impl<const MIN: u64, const MAX: u64> Visitor<'_> for WholeVisitor<MIN, MAX> {
    type Value = Whole<MIN, MAX>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "a whole number from {MIN} to {MAX}")
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Self::Value, E> {
        match (MIN..=MAX).contains(&value) {
            true => Ok(Whole(value)),
            false => Err(E::custom(format!("`{value}` is out of range"))),
        }
    }
}

impl<'de, const MIN: u64, const MAX: u64> Deserialize<'de> for Whole<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_u64(WholeVisitor)
    }
}

impl<const MIN: u64, const MAX: u64> JsonSchema for Whole<MIN, MAX> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("Whole_{MIN}_{MAX}").into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "integer", "minimum": MIN, "maximum": MAX })
    }
}

/// A number as it is written, for amounts and prices: exact, and judged where its unit is known.
#[derive(Clone, Debug, PartialEq)]
pub struct Decimal(pub String);

impl<'de> Deserialize<'de> for Decimal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let parse = |text: &str| Ok(text.to_owned());
        deserializer.deserialize_newtype_struct(DECIMAL, Parsed { expected: "a number", parse }).map(Decimal)
    }
}

impl JsonSchema for Decimal {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Decimal".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "number" })
    }
}

/// `auto`, or a value that overrules it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Auto<T> {
    Auto,
    Set(T),
}

/// How many data cores there are.
pub type Cores = Auto<u16>;
/// Whether data cores are pinned to processors.
pub type Pin = Auto<bool>;

/// More data cores than this is no machine we know of.
const CORES_MAX: u64 = 1_024;

impl<'de> Deserialize<'de> for Auto<u16> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct CoresVisitor;
        impl Visitor<'_> for CoresVisitor {
            type Value = Cores;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                write!(f, "auto or a whole number from 1 to {CORES_MAX}")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Cores, E> {
                if text == "auto" { Ok(Auto::Auto) } else { Err(E::custom(format!("`{text}` is not known here"))) }
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Cores, E> {
                let whole = WholeVisitor::<1, CORES_MAX>.visit_u64(value)?;
                Ok(Auto::Set(u16::try_from(whole.0).unwrap_or(u16::MAX))) // in range by the line above
            }
        }
        deserializer.deserialize_any(CoresVisitor)
    }
}

impl<'de> Deserialize<'de> for Auto<bool> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PinVisitor;
        impl Visitor<'_> for PinVisitor {
            type Value = Pin;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("auto, true or false")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Pin, E> {
                if text == "auto" { Ok(Auto::Auto) } else { Err(E::custom(format!("`{text}` is not known here"))) }
            }

            fn visit_bool<E: de::Error>(self, value: bool) -> Result<Pin, E> {
                Ok(Auto::Set(value))
            }
        }
        deserializer.deserialize_any(PinVisitor)
    }
}

impl<T: Serialize> Serialize for Auto<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Auto::Auto => serializer.serialize_str("auto"),
            Auto::Set(value) => value.serialize(serializer),
        }
    }
}

impl JsonSchema for Auto<u16> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Cores".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [{ "const": "auto" }, { "type": "integer", "minimum": 1, "maximum": CORES_MAX }] })
    }
}

impl JsonSchema for Auto<bool> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Pin".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "enum": ["auto", true, false] })
    }
}

/// What stands after `external:`. Kept as written: everything but the literal word is refused, by a rule that says why.
#[derive(Clone, Debug, PartialEq)]
pub struct Consent(pub String);

impl<'de> Deserialize<'de> for Consent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ConsentVisitor;
        impl Visitor<'_> for ConsentVisitor {
            type Value = Consent;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("the literal word allow")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Consent, E> {
                Ok(Consent(text.to_owned()))
            }

            fn visit_bool<E: de::Error>(self, value: bool) -> Result<Consent, E> {
                Ok(Consent(value.to_string()))
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Consent, E> {
                Ok(Consent(value.to_string()))
            }
        }
        deserializer.deserialize_any(ConsentVisitor)
    }
}

impl JsonSchema for Consent {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Consent".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "const": "allow" })
    }
}

impl<T: JsonSchema> JsonSchema for Given<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        generator.subschema_for::<T>()
    }
}
