//! Which path leads where. Matched exactly, after the one normalisation of `io::http1::target`.

use std::borrow::Cow;

use io::http1::{Method, target};
use shards::scope::{Endpoint, Glob};

use crate::config::Api;
use crate::rules::Rules;

/// Where a path leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// To a provider, governed.
    Endpoint(Endpoint),
    /// The list of models.
    Models,
    /// One of them; its name is what follows [`MODEL`] in the path.
    Model,
    /// What the caller's limits are.
    Me,
}

/// Before a model's name.
pub const MODEL: &str = "/v1/models/";

/// A path that leads nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nowhere {
    /// 404.
    UnknownPath,
    /// 405, with the methods that are allowed.
    WrongMethod(&'static str),
    /// 400: what stands where a model's name belongs is not percent-encoded UTF-8.
    NoName,
}

/// The path of a model whose name is sent encoded (`org%2Fmodel`, as SDKs do), with the name as it is called. A name is
/// looked up here and forwarded nowhere, so that no other server can read it in another way; a path that an upstream lists
/// is forwarded, so it has its one plain spelling only.
pub fn encoded_model(rules: &Rules, sent: &[u8]) -> Result<String, Nowhere> {
    let name = sent.strip_prefix(MODEL.as_bytes()).ok_or(Nowhere::UnknownPath)?;
    let path = format!("{MODEL}{}", target::decode_name(name).ok_or(Nowhere::NoName)?);
    if rules.passthrough(&path).next().is_some() { Err(Nowhere::UnknownPath) } else { Ok(path) }
}

/// Finds a path's place. A path nobody lists is a 404: nothing else is forwarded.
///
/// The path comes back in a spelling that outlives the buffer it was read from.
pub fn of(rules: &Rules, path: &str, method: Method) -> Result<(Place, Cow<'static, str>), Nowhere> {
    let (place, known) = match path {
        "/v1/chat/completions" => (Place::Endpoint(Endpoint::ChatCompletions), "/v1/chat/completions"),
        "/v1/completions" => (Place::Endpoint(Endpoint::Completions), "/v1/completions"),
        "/v1/embeddings" => (Place::Endpoint(Endpoint::Embeddings), "/v1/embeddings"),
        "/v1/responses" => (Place::Endpoint(Endpoint::Responses), "/v1/responses"),
        "/v1/messages" => (Place::Endpoint(Endpoint::Messages), "/v1/messages"),
        "/v1/messages/count_tokens" => (Place::Endpoint(Endpoint::CountTokens), "/v1/messages/count_tokens"),
        "/v1/models" => (Place::Models, "/v1/models"),
        "/tt/v1/me" => (Place::Me, "/tt/v1/me"),
        _ if rules.passthrough(path).next().is_some() => {
            return Ok((Place::Endpoint(Endpoint::Passthrough), Cow::Owned(path.to_owned()))); // any method
        }
        _ if path.starts_with(MODEL) && matches!(method, Method::Get | Method::Head) => {
            return Ok((Place::Model, Cow::Owned(path.to_owned())));
        }
        _ if path.starts_with(MODEL) => return Err(Nowhere::WrongMethod("GET, HEAD")),
        _ => return Err(Nowhere::UnknownPath),
    };
    let (allowed, fits) = match place {
        Place::Endpoint(_) => ("POST", method == Method::Post),
        Place::Models | Place::Model | Place::Me => ("GET, HEAD", matches!(method, Method::Get | Method::Head)),
    };
    if fits { Ok((place, Cow::Borrowed(known))) } else { Err(Nowhere::WrongMethod(allowed)) }
}

/// `GET /v1/models`: the plain names upstreams list, and for their globs the names that the price table and `pricing:`
/// know. A bare `*` stands for what the maker of the upstream's API sells: who asks an `api: anthropic` upstream for
/// its models expects Claude, not the names of all the world. A name that several upstreams list is the first one's.
pub fn models(rules: &Rules) -> Vec<u8> {
    let names = names(rules);
    // One list for both families of SDKs: each finds the members it knows and passes over the other's.
    let (first, last) = (names.first().map(|(name, _)| *name), names.last().map(|(name, _)| *name));
    let data: Vec<_> = names.iter().map(|(name, owner)| shown(name, owner)).collect();
    serde_json::json!({ "object": "list", "data": data, "has_more": false, "first_id": first, "last_id": last })
        .to_string()
        .into_bytes()
}

/// `GET /v1/models/{name}`: one of the list, or a name that a glob of an upstream fits, for those are served too. A bare
/// `*` says nothing about a name, so what it would forward is found here only if it is in the list. `None`: a 404.
pub fn model(rules: &Rules, name: &str) -> Option<Vec<u8>> {
    let fits = |glob: &Glob| glob.as_str() != "*" && glob.matches(name);
    let listed = names(rules).into_iter().find(|(listed, _)| *listed == name).map(|(_, owner)| owner);
    let owner = listed.or_else(|| {
        rules.upstreams.iter().find(|upstream| upstream.models.iter().any(fits)).map(|upstream| &*upstream.id)
    })?;
    Some(shown(name, owner).to_string().into_bytes())
}

/// With the members of both families.
fn shown(name: &str, owner: &str) -> serde_json::Value {
    serde_json::json!({
        "id": name, "object": "model", "created": 0, "owned_by": owner,
        "type": "model", "display_name": name, "created_at": "1970-01-01T00:00:00Z",
    })
}

/// Every name that is listed, and its upstream.
fn names(rules: &Rules) -> Vec<(&str, &str)> {
    let mut names: Vec<(&str, &str)> = Vec::new();
    for upstream in &rules.upstreams {
        for glob in &upstream.models {
            if !glob.as_str().contains(['*', '?']) {
                names.push((glob.as_str(), &upstream.id));
            } else if glob.as_str() == "*" {
                let maker = match upstream.api {
                    Api::Openai => "openai",
                    Api::Anthropic => "anthropic",
                };
                names.extend(rules.prices.model_names_of(maker).map(|name| (name, &*upstream.id)));
                names.extend(rules.prices.own_model_names().map(|name| (name, &*upstream.id)));
            } else {
                names.extend(known_names(rules, glob).map(|name| (name, &*upstream.id)));
            }
        }
    }
    names.sort_by_key(|(name, _)| *name); // stable: of two upstreams the first in the file
    names.dedup_by_key(|(name, _)| *name);
    names
}

fn known_names<'r>(rules: &'r Rules, glob: &'r Glob) -> impl Iterator<Item = &'r str> {
    rules.prices.model_names().chain(rules.prices.own_model_names()).filter(|name| glob.matches(name))
}
