use std::collections::BTreeSet;

use super::super::routes;
use super::*;

fn document() -> Value {
    serde_json::from_str(DOCUMENT).unwrap()
}

#[test]
fn the_document_names_every_route_and_no_other() {
    let document = document();
    let described: BTreeSet<(String, String)> = document["paths"]
        .as_object()
        .unwrap()
        .iter()
        .flat_map(|(path, item)| item.as_object().unwrap().keys().map(|method| (path.clone(), method.clone())))
        .collect();
    let served: BTreeSet<(String, String)> = routes()
        .iter()
        .flat_map(|route| route.methods.iter().map(|method| (route.path.to_owned(), (*method).to_owned())))
        .collect();
    assert_eq!(described, served);
}

#[test]
fn every_reference_in_the_document_leads_somewhere() {
    fn walk(value: &Value, document: &Value) {
        match value {
            Value::Object(members) => {
                if let Some(Value::String(reference)) = members.get("$ref") {
                    let pointer = reference.strip_prefix('#').unwrap();
                    assert!(document.pointer(pointer).is_some(), "{reference}");
                }
                members.values().for_each(|member| walk(member, document));
            }
            Value::Array(items) => items.iter().for_each(|item| walk(item, document)),
            _ => {}
        }
    }
    let document = document();
    walk(&document, &document);
}

#[test]
fn what_is_served_bears_the_version_of_this_binary() {
    let served: Value = serde_json::from_str(&SERVED).unwrap();
    assert_eq!(served["openapi"], "3.1.0");
    assert_eq!(served["info"]["version"], env!("CARGO_PKG_VERSION"));
}
