//! `GET /tt/api/v1/federation`: a preview. A card per configured instance of another fleet; nothing is merged across them.
//!
//! Asks each instance for its roster when the page is asked, all at once, with a deadline. Silence, a refusal and nonsense
//! are each said on the card.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::answer::{Answer, blocking, ok};
use super::{Admin, now};
use crate::config::Instance;
use crate::when;

/// For one instance: it may be far away, and a page waits for it.
const WITHIN: Duration = Duration::from_secs(2);
const ROSTER_BYTES_MAX: u64 = 1 << 20;

/// One instance.
#[derive(Debug, Serialize)]
struct Card {
    name: String,
    url: String,
    /// `reachable`, or in one word why not.
    state: &'static str,
    error: Option<String>,
    as_of: String,
    /// What its own roster says.
    n_live: Option<u64>,
    n_total: Option<u64>,
}

pub async fn cards(State(admin): State<Arc<Admin>>) -> Answer {
    let federation = admin.shared().rules.load().config.experimental.federation.clone();
    if !federation.enabled {
        return ok(&json!({
            "preview": true,
            "enabled": false,
            "cards": [],
            "note": "federation is off: set experimental.federation.enabled and list its instances to see their cards",
        }));
    }
    let asked: Vec<_> =
        federation.instances.into_iter().map(|instance| tokio::spawn(blocking(move || card(&instance)))).collect();
    let mut cards = Vec::with_capacity(asked.len());
    for card in asked {
        // Both fail only where a task panicked or the process ends.
        if let Ok(Ok(card)) = card.await {
            cards.push(card);
        }
    }
    ok(&json!({
        "preview": true,
        "enabled": true,
        "cards": cards,
        "note": "a preview: each card is what that instance says of itself, and nothing is merged across them",
    }))
}

#[derive(Deserialize)]
struct Roster {
    n_live: u64,
    n_total: u64,
}

fn card(instance: &Instance) -> Card {
    let (state, error, roster) = match ask(instance) {
        Ok(roster) => ("reachable", None, Some(roster)),
        Err((state, error)) => (state, Some(error), None),
    };
    Card {
        name: instance.name.clone(),
        url: instance.url.clone(),
        state,
        error,
        as_of: when::text(now().wall),
        n_live: roster.as_ref().map(|roster| roster.n_live),
        n_total: roster.as_ref().map(|roster| roster.n_total),
    }
}

/// The instance's roster, or why there is none. Waits at most [`WITHIN`].
fn ask(instance: &Instance) -> Result<Roster, (&'static str, String)> {
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .timeout_global(Some(WITHIN))
        .max_redirects(0) // a token goes where the operator said, nowhere else
        .http_status_as_error(false)
        .proxy(None)
        .build()
        .into();
    let url = format!("{}/tt/api/v1/fleet", instance.url.trim_end_matches('/'));
    let mut request = agent.get(&url);
    if let Some(variable) = &instance.token_env {
        let token = std::env::var(variable.as_str());
        let token = token.map_err(|_| ("misconfigured", format!("the variable {} is not set", variable.as_str())))?;
        request = request.header("authorization", format!("Bearer {}", token.trim()));
    }
    let mut response = request.call().map_err(|error| ("unreachable", error.to_string()))?;
    match response.status().as_u16() {
        200 => {}
        401 | 403 => return Err(("unauthorized", "it does not accept the token".to_owned())),
        status => return Err(("malformed", format!("it answered {status}"))),
    }
    let body = response.body_mut().with_config().limit(ROSTER_BYTES_MAX).read_to_string();
    let body = body.map_err(|error| ("unreachable", error.to_string()))?;
    let roster = serde_json::from_str::<Value>(&body).ok().and_then(|body| serde_json::from_value(body).ok());
    roster.ok_or_else(|| ("malformed", "its roster is not one of ours".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    fn answered_with(answer: &'static str) -> Card {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let serving = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = [0; 1024];
            let length = stream.read(&mut head).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
            String::from_utf8_lossy(&head[..length]).into_owned()
        });
        let card = card(&Instance { name: "eu".to_owned(), url, token_env: None });
        assert!(serving.join().unwrap().starts_with("GET /tt/api/v1/fleet HTTP/1.1\r\n"));
        card
    }

    #[test]
    fn a_card_says_what_the_instance_said_or_in_one_word_why_not() {
        let answer = "HTTP/1.1 200 OK\r\ncontent-length: 24\r\n\r\n{\"n_live\":2,\"n_total\":3}";
        let card = answered_with(answer);
        assert_eq!((card.state, card.n_live, card.n_total, card.error), ("reachable", Some(2), Some(3), None));
        for (answer, state) in [
            ("HTTP/1.1 401 No\r\ncontent-length: 0\r\n\r\n", "unauthorized"),
            ("HTTP/1.1 302 Away\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n", "malformed"),
            ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]", "malformed"),
            ("HTTP/1.1 200 OK\r\ncontent-length: 24\r\n\r\n{\"n_", "unreachable"),
            ("garbage\r\n\r\n", "unreachable"),
        ] {
            let card = answered_with(answer);
            assert_eq!((card.state, card.n_live), (state, None), "{answer}: {card:?}");
            assert!(card.error.is_some());
        }
    }
}
