//! The configuration as a whole: what is built in is valid, what is shown is what is meant, and nothing panics.

use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::Value as Json;
use shards::rate::Clock0;

use super::default::{EMBEDDED, STARTER};
use super::tree::{self, Node, Value};
use super::*;

/// Every key of the file once, away from its default where it has one.
const FULL: &str = include_str!("full.yaml");

fn loaded(text: &str) -> Loaded {
    load_in("test.yaml", text, &Surroundings::none()).unwrap_or_else(|errors| panic!("{errors}"))
}

fn errors(text: &str) -> String {
    match load_in("test.yaml", text, &Surroundings::none()) {
        Ok(loaded) => compile(&loaded, Clock0::default()).err().map(|errors| errors.to_string()).unwrap_or_default(),
        Err(errors) => errors.to_string(),
    }
}

#[test]
fn what_is_built_in_compiles() {
    for text in [EMBEDDED, STARTER, FULL] {
        compile(&loaded(text), Clock0::default()).unwrap_or_else(|errors| panic!("{errors}"));
    }
}

#[test]
fn the_embedded_default_serves_both_apis_on_loopback_without_a_network() {
    let config = loaded(EMBEDDED).config;
    assert_eq!(config.server.listen.to_string(), "127.0.0.1:8790");
    assert_eq!(config.server.admin_listen.to_string(), "127.0.0.1:9090");
    let apis: Vec<Api> = config.upstreams.iter().map(|upstream| upstream.api).collect();
    assert_eq!(apis, [Api::Anthropic, Api::Openai]);
    assert!(config.upstreams.iter().all(|upstream| upstream.base_url == BaseUrl::Mock));
    assert!(!requires_coordination(&config));
    assert_eq!(config.governance.limits.len(), 1);
}

#[test]
fn the_full_file_leaves_no_key_of_the_schema_out() {
    let schema = serde_json::to_value(schema::json_schema()).unwrap();
    let mut known = BTreeSet::new();
    keys_of_schema(&schema, &schema, "", &mut known);
    let (root, _) = tree::parse(FULL).unwrap();
    let mut used = BTreeSet::new();
    keys_of_tree(&root, "", &mut used);
    assert_eq!(used, known);
}

#[test]
fn the_built_in_files_use_keys_of_the_schema_alone() {
    let schema = serde_json::to_value(schema::json_schema()).unwrap();
    let mut known = BTreeSet::new();
    keys_of_schema(&schema, &schema, "", &mut known);
    for text in [EMBEDDED, STARTER] {
        let (root, _) = tree::parse(text).unwrap();
        let mut used = BTreeSet::new();
        keys_of_tree(&root, "", &mut used);
        assert!(used.is_subset(&known), "{:?}", used.difference(&known));
    }
}

#[test]
fn the_defaults_of_the_schema_are_the_defaults_of_the_program() {
    let schema = serde_json::to_value(schema::json_schema()).unwrap();
    let mut text = String::from("upstreams: [{ id: a, api: openai, base_url: \"builtin://mock\"");
    let upstream = &schema["$defs"]["Upstream"]["properties"];
    for (key, property) in upstream.as_object().unwrap() {
        if let Some(default) = property.get("default") {
            text.push_str(&format!(", {key}: {default}"));
        }
    }
    text.push_str(" }]\n");
    for section in ["server", "ledger", "governance", "fleet"] {
        let name = section.chars().next().unwrap().to_uppercase().to_string() + &section[1..];
        text.push_str(&format!("{section}: {{ "));
        for (key, property) in schema["$defs"][name]["properties"].as_object().unwrap() {
            if let Some(default) = property.get("default") {
                text.push_str(&format!("{key}: {default}, "));
            }
        }
        text.push_str("}\n");
    }
    text.push_str(&format!("data_dir: {}\n", schema["properties"]["data_dir"]["default"]));
    let bare = loaded("upstreams: [{ id: a, api: openai, base_url: \"builtin://mock\" }]\n");
    assert_eq!(loaded(&text).config, bare.config, "{text}");
    assert!(text.contains("connect_timeout: \"2s\"") && text.contains("segment_bytes: \"256MiB\""), "{text}");
}

#[test]
fn the_effective_configuration_is_a_file_that_means_the_same() {
    for text in [EMBEDDED, STARTER, FULL] {
        let config = loaded(text).config;
        let shown = config.effective_json();
        let again = loaded(&shown).config;
        assert_eq!(again, config, "{shown}");
    }
}

#[test]
fn amounts_pass_through_the_effective_configuration_digit_for_digit() {
    let text = FULL.replace("amount_usd: 500", "amount_usd: 12345678901.123456789");
    let shown = loaded(&text).config.effective_json();
    assert!(shown.contains("\"amount_usd\": 12345678901.123456789"), "{shown}");
}

#[test]
fn a_key_with_nothing_behind_it_is_its_default_for_a_section_and_an_error_for_a_value() {
    let text = "server:\nupstreams: [{ id: a, api: openai, base_url: \"builtin://mock\" }]\ngovernance:\n  limits:\n";
    assert_eq!(loaded(text).config.governance.limits, []);
    assert!(errors("data_dir:\n").contains("data_dir: has no value"));
}

#[test]
fn a_file_of_another_type_says_what_is_expected() {
    for text in ["- 1\n", "just words\n", "42\n"] {
        assert!(errors(text).contains("write a mapping of sections"), "{}", errors(text));
    }
}

#[test]
fn one_mistake_is_told_once() {
    // A misspelt key does not also count as a missing one, nor an unreadable value.
    let limit = |line: &str| {
        format!(
            "upstreams: [{{ id: a, api: openai, base_url: \"builtin://mock\" }}]\ngovernance:\n  limits:\n    \
             - {{ id: x, attach: {{ level: org }}, type: rpm, period: 1m, {line} }}\n"
        )
    };
    for line in ["amont: 5", "amount: five", "amount:", "amount: [5]", "amount: true"] {
        assert_eq!(errors(&limit(line)).matches("error: ").count(), 1, "{}", errors(&limit(line)));
    }
}

#[test]
fn nothing_that_may_be_a_secret_is_shown() {
    let text = "upstreams:\n  - { id: a, api: openai, base_url: \"https://joe:hunter2@h/v1\" }\n  \
                - { id: b, api: openai, base_url: \"https://h/v1\", api_key: hunter2 }\n  \
                - { id: c, api: openai, base_url: \"https://h/v1\", api_key_env: hunter2 }\n\
                shared_state:\n  redis: { external: allow, addr: \"joe:hunter2@h:1\", password: hunter2 }\n  \
                postgres: { external: allow, dsn: \"postgres://joe:hunter2@h/db\" }\n";
    let shown = errors(text);
    assert!(shown.matches("error: ").count() >= 6, "{shown}");
    assert!(!shown.contains("hunter2"), "{shown}");
}

#[test]
fn a_replica_without_a_name_of_its_own_is_announced_while_a_tier_is_enabled() {
    let upstream = "upstreams: [{ id: a, api: openai, base_url: \"builtin://mock\" }]\n";
    let redis = format!("{upstream}shared_state: {{ redis: {{ external: allow, addr: \"127.0.0.1:6379\" }} }}\n");
    let warned = |text: &str, surroundings: &Surroundings| {
        let loaded = load_in("t", text, surroundings).unwrap();
        loaded.warnings.iter().any(|warning| warning.path == "replica")
    };
    assert!(warned(&redis, &Surroundings::none()));
    assert!(!warned(&redis, &Surroundings { hostname: Some("web-1".to_owned()), ..Surroundings::none() }));
    assert!(!warned(&(redis.clone() + "replica: { name: a }\n"), &Surroundings::none()));
    assert!(!warned(upstream, &Surroundings::none()));
}

#[test]
fn a_variable_with_an_unusable_replica_name_is_an_error_of_its_key() {
    let text = "upstreams: [{ id: a, api: openai, base_url: \"builtin://mock\" }]\nreplica: { name_env: POD }\n";
    let around = Surroundings { variable: Box::new(|_| Some("Not Good".to_owned())), hostname: None };
    let errors = load_in("t", text, &around).unwrap_err().to_string();
    assert!(errors.starts_with("error: replica.name_env: POD holds `Not Good`, which is no DNS label\n"), "{errors}");
}

fn keys_of_schema(root: &Json, schema: &Json, path: &str, keys: &mut BTreeSet<String>) {
    if let Some(reference) = schema.get("$ref").and_then(Json::as_str) {
        let name = reference.rsplit('/').next().unwrap();
        return keys_of_schema(root, &root["$defs"][name], path, keys);
    }
    if let Some(items) = schema.get("items") {
        return keys_of_schema(root, items, &format!("{path}[]"), keys);
    }
    for (key, property) in schema.get("properties").and_then(Json::as_object).into_iter().flatten() {
        let mut at = path.to_owned();
        tree::join(&mut at, key);
        keys_of_schema(root, property, &at, keys);
        keys.insert(at);
    }
}

fn keys_of_tree(node: &Node, path: &str, keys: &mut BTreeSet<String>) {
    match &node.value {
        Value::List(items) => items.iter().for_each(|item| keys_of_tree(item, &format!("{path}[]"), keys)),
        Value::Map(entries) => {
            for entry in entries {
                let mut at = path.to_owned();
                tree::join(&mut at, &entry.key);
                keys_of_tree(&entry.node, &at, keys);
                keys.insert(at);
            }
        }
        _ => {}
    }
}

/// A valid file with one piece replaced by another: reaches further than bytes alone do.
fn spoilt() -> impl Strategy<Value = String> {
    let pieces = prop_oneof![
        "[-a-z0-9:{}\\[\\],&*!|>'\"#?%@` \\n.~é<$]{0,12}",
        Just("null".to_owned()),
        Just("[]".to_owned()),
        Just("{ a: 1 }".to_owned()),
        Just("-1".to_owned()),
        Just("1e400".to_owned()),
        Just("99999999999999999999999999999999999999999999".to_owned()),
        Just(".nan".to_owned()),
        Just("${HOME}".to_owned()),
    ];
    (0..FULL.len(), 0usize..24, pieces).prop_map(|(start, len, piece)| {
        let start = FULL.floor_char_boundary(start);
        let end = FULL.ceil_char_boundary((start + len).min(FULL.len()));
        format!("{}{piece}{}", &FULL[..start], &FULL[end..])
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_spoilt_file_loads_or_says_why_and_never_panics(text in spoilt()) {
        match load_in("t", &text, &Surroundings::none()) {
            // A limit may still be refused by the compile; only what compiles is ever shown as effective.
            Ok(loaded) if compile(&loaded, Clock0::default()).is_err() => {}
            Ok(loaded) => {
                let again = load_in("t", &loaded.config.effective_json(), &Surroundings::none());
                prop_assert_eq!(again.map(|again| again.config).map_err(|errors| errors.to_string()), Ok(loaded.config));
            }
            Err(errors) => {
                prop_assert!(errors.error_count() > 0);
                prop_assert!(errors.to_string().contains("error: "));
            }
        }
    }

    #[test]
    fn any_bytes_load_or_say_why_and_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let text = String::from_utf8_lossy(&bytes);
        let _ = load_in("t", &text, &Surroundings::none()).map_err(|errors| errors.render(true));
    }
}
