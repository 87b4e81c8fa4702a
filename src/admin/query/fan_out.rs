//! A question put to every replica of the fleet: each answers from its own ledger, the sums are added up here.
//!
//! A replica that does not answer stays in the denominator, with the reason in words. A ledger that has moved to another
//! replica is asked there, once. Without a shared store that says who there is, no sum counts as the whole: *under-counts*, by
//! all that replicas spent whom nobody here has heard of.

use std::sync::Arc;
use std::time::Duration;

use super::super::answer::{Fault, blocking};
use super::super::fleet::{Replica, is_frozen, replicas};
use super::super::{Admin, now};
use crate::config::Secret;
use crate::ledger_query::{Coverage, ReplicaRead, Spend};

/// For one peer. All are asked at once.
const WITHIN: Duration = Duration::from_secs(2);
const ANSWER_BYTES_MAX: u64 = 16 << 20;
/// What a sum over a roster says that the store does not confirm.
const DEGRADED: &str =
    "the shared store does not answer, so nobody here knows who else there is: other replicas may be missing";

/// Adds what the peers say to our own answer. `params` is the question as it goes over the wire.
pub async fn ask(admin: Arc<Admin>, own: Spend, params: Vec<(&'static str, String)>) -> Result<Spend, Fault> {
    let now = now();
    let Some(coordination) = admin.shared().coordination.clone() else { return Ok(own) };
    let all = replicas(&admin);
    let params = Arc::new(params);
    let mut asked = Vec::new();
    for peer in &all[1.min(all.len())..] {
        let (admin, params, asked_peer) = (admin.clone(), params.clone(), peer.clone());
        let ask = move || ask_peer(&asked_peer, admin.control.secrets.peer_token.as_ref(), &params);
        asked.push((peer.clone(), tokio::spawn(blocking(ask))));
    }
    let mut answers: Vec<(Replica, Result<Spend, String>)> = Vec::with_capacity(asked.len());
    for (peer, answer) in asked {
        let answer = match answer.await {
            Ok(Ok(answer)) => answer,
            _ => Err("asking it failed inside this replica".to_owned()),
        };
        answers.push((peer, answer));
    }
    let mut merged = own;
    let mut reads = std::mem::take(&mut merged.coverage.replicas);
    let answered: Vec<(Option<String>, String)> = all
        .first()
        .into_iter()
        .chain(answers.iter().filter(|(_, answer)| answer.is_ok()).map(|(peer, _)| peer))
        .map(|replica| (replica.ledger_id.clone(), replica.id.clone()))
        .collect();
    for (peer, answer) in answers {
        let read = |as_of, error, ledger_read_by| ReplicaRead {
            id: peer.id.clone(),
            state: peer.state.to_owned(),
            as_of,
            error,
            ledger_read_by,
        };
        match answer {
            Ok(spend) => {
                let as_of = spend.coverage.replicas.first().and_then(|own| own.as_of.clone());
                merged.add(spend);
                reads.push(read(as_of, None, None));
            }
            Err(error) => {
                let heir = answered.iter().find(|(ledger, _)| ledger.is_some() && *ledger == peer.ledger_id);
                match heir {
                    Some((_, heir)) => {
                        let as_of = reads.iter().find(|read| read.id == *heir).and_then(|read| read.as_of.clone());
                        reads.push(read(as_of, None, Some(heir.clone())));
                    }
                    None => reads.push(read(None, Some(error), None)),
                }
            }
        }
    }
    let is_degraded = is_frozen(&coordination, now);
    let replicas_answered = reads.iter().filter(|read| read.error.is_none()).count();
    merged.coverage = Coverage {
        replicas_total: u32::try_from(reads.len()).unwrap_or(u32::MAX),
        replicas_answered: u32::try_from(replicas_answered).unwrap_or(u32::MAX),
        is_partial: is_degraded || replicas_answered < reads.len(),
        basis: if is_degraded { "roster_degraded" } else { "roster" }.to_owned(),
        note: is_degraded.then(|| DEGRADED.to_owned()),
        replicas: reads,
    };
    Ok(merged)
}

/// One peer's answer, or why there is none. Waits at most [`WITHIN`].
fn ask_peer(peer: &Replica, token: Option<&Secret>, params: &[(&str, String)]) -> Result<Spend, String> {
    let Some(url) = &peer.advertise_url else {
        return Err("unreachable: it advertises no URL; set fleet.advertise_url on it".to_owned());
    };
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .timeout_global(Some(WITHIN))
        .max_redirects(0) // a token goes where the peer said, nowhere else
        .http_status_as_error(false)
        .proxy(None)
        .build()
        .into();
    let mut request = agent.get(format!("{}/tt/api/v1/query", url.trim_end_matches('/')));
    for (name, value) in params {
        request = request.query(*name, value);
    }
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {}", token.expose()));
    }
    let mut response = request.call().map_err(|error| format!("unreachable: {error}"))?;
    match response.status().as_u16() {
        200 => {}
        401 | 403 => return Err("unauthorized: it does not accept our peer token; see fleet.peer_token_env".to_owned()),
        status => return Err(format!("malformed: it answered {status}")),
    }
    let body = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_string();
    let body = body.map_err(|error| format!("unreachable: {error}"))?;
    serde_json::from_str(&body).map_err(|_| "malformed: its answer is not one of ours".to_owned())
}
