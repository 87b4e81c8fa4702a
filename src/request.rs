//! The life of a request, from its head to its row, as one straight story. The file to read first.
//!
//! ```text
//! head → where to → who → plan → gate A → body → what is asked → route → gate B → upstream → relay → settle → row
//! ```
//!
//! Every step either goes on or stops with an answer of ours. Whatever was taken on the way (leases, reserves) is
//! given back when the request ends, however it ends; the row is written exactly once for every request that reached
//! a verdict. Figures that a caller was shown are frozen when the head is written and copied into the row.

pub mod life;

use std::borrow::Cow;
use std::ops::Range;
use std::rc::Rc;

use io::clock;
use io::http1::{FieldKind, Method, target};
use io::json::{Asked, BadBody, Splice};
use io::runtime::{give_buffer, take_buffer};
use shards::gate::{self, Ask, Verdict};
use shards::plan::NodePlan;
use shards::refusal::{LedgerBound, Refusal};
use shards::row::{Decision, Outcome};
use shards::scope::Endpoint;
use shards::settle::OutputBound;
use shards::suspend::Reason;
use shards::units::WallMs;
use smallvec::SmallVec;

use self::life::Life;
use crate::body::{self, Body, BodyFault};
use crate::caller::{self, Caller};
use crate::config::UnpricedModels;
use crate::connection::{After, Client, WRITE_STALL_NS, family_of};
use crate::core::{Core, View};
use crate::cors::Cors;
use crate::exchange::{self, Failure};
use crate::keys::Standing;
use crate::place::{self, Nowhere, Place};
use crate::relay;
use crate::respond::{self, Ending, Fault};
use crate::rules::{Credential, Rules, Upstream, ns};

/// What one image is taken to be, in tokens, before the provider reports what it was.
const IMAGE_TOKENS: u64 = 1_600;
/// Text bytes per token, for estimates.
pub const BYTES_PER_TOKEN: u64 = 4;

/// Why a request gets an answer of ours, or none.
enum Stop {
    /// Something is wrong with it, or with us.
    Fault(Fault, Cow<'static, str>),
    /// Nobody knows who asks.
    Unknown(caller::Unknown),
    /// A limit refused it.
    Refused(Box<Refusal>),
    /// Nobody is there to hear an answer.
    Gone,
    /// Answered without asking any provider.
    Answered { status: u16, body: Vec<u8>, headers: Vec<u8> },
}

fn stop(fault: Fault, message: impl Into<Cow<'static, str>>) -> Stop {
    Stop::Fault(fault, message.into())
}

/// Serves the request whose head is complete in the client's buffer. Waits for the client and the provider.
pub async fn serve(core: &Rc<Core>, client: &mut Client, head_len: usize) -> After {
    let view = core.view();
    let mut life = Life::begin(core, client);
    client.end = 0;
    let after = match govern(core, &view, client, head_len, &mut life).await {
        Ok(after) => after,
        Err(stop) => answer(core, client, head_len, &mut life, stop).await,
    };
    core.owed.after_request();
    after
}

/// A path that leads nowhere, as it is answered.
fn nowhere_stop(life: &mut Life, nowhere: Nowhere, path: &str) -> Stop {
    match nowhere {
        Nowhere::UnknownPath => stop(Fault::NotFound, format!("no such path: {path}")),
        Nowhere::NoName => {
            stop(Fault::InvalidRequest, format!("{path}: a model's name in a path is percent-encoded UTF-8"))
        }
        Nowhere::WrongMethod(allowed) => {
            life.allow = Some(allowed);
            stop(Fault::MethodNotAllowed, format!("{path} takes {allowed}"))
        }
    }
}

/// The story itself.
async fn govern(
    core: &Rc<Core>,
    view: &View,
    client: &mut Client,
    head_len: usize,
    life: &mut Life,
) -> Result<After, Stop> {
    // Where to.
    let rules = &view.rules;
    let mut scratch = Vec::new();
    let sent = client.head.path(&client.buf);
    let encoded;
    let path = match target::normalise(sent, &mut scratch) {
        Some(path) => path,
        None => {
            let model = place::encoded_model(rules, sent);
            encoded = model.map_err(|nowhere| nowhere_stop(life, nowhere, &String::from_utf8_lossy(sent)))?;
            &encoded
        }
    };
    life.family = family_of(path);
    life.cors = Cors::of(&rules.config.server.cors, &client.head, &client.buf);
    if client.head.method == Method::Options {
        return Err(Stop::Answered { status: 204, body: Vec::new(), headers: life.cors.preflight() });
    }
    let found = place::of(rules, path, client.head.method);
    let (place, path) = found.map_err(|nowhere| nowhere_stop(life, nowhere, path))?;

    // Who.
    let standing = identity_standing(view, life);
    let caller = caller::identify(view, &client.head, &client.buf, life.now.wall, standing, &mut client.memo)
        .map_err(Stop::Unknown)?;
    let endpoint = match place {
        Place::Models => {
            return Err(Stop::Answered { status: 200, body: place::models(rules), headers: Vec::new() });
        }
        Place::Model => {
            let name = path.strip_prefix(place::MODEL).unwrap_or_default();
            let body = place::model(rules, name)
                .ok_or_else(|| stop(Fault::ModelNotFound, format!("no upstream lists the model {name}")))?;
            return Err(Stop::Answered { status: 200, body, headers: Vec::new() });
        }
        Place::Me => {
            let body = Box::pin(crate::me::render(core, view, &caller, life.now)).await;
            return Err(Stop::Answered { status: 200, body, headers: Vec::new() });
        }
        Place::Endpoint(endpoint) => endpoint,
    };
    life.identified(&caller, endpoint);

    // Gate A, before the body is read.
    let plan = core.plan(view, &caller.node, endpoint);
    life.judge();
    let verdict = match &core.desk {
        // Boxed, so that requests without a limit in the shared store carry no room for it.
        Some(desk) if plan.asks_store => {
            let verdict = Box::pin(desk.before_body(&plan, life.now, life.n_live, &mut life.passed)).await;
            life.store_answered();
            verdict
        }
        _ => gate::before_body(&plan, life.now, life.n_live, &mut life.passed),
    };
    if let Verdict::Refused(refusal) = verdict {
        return Err(Stop::Refused(refusal));
    }

    // The body, and what it asks for.
    let server = &rules.config.server;
    let body = body::receive(client, head_len, server.max_body_bytes, ns(server.body_timeout), &core.inspector).await;
    life.body_awaited();
    let Body { range, asked } = body.map_err(|fault| body_stop(fault, server.max_body_bytes))?;
    let asked = inspect(client, &range, asked, endpoint)?;

    // Which provider, and whether this caller may use it. What a pass-through path costs, no table knows.
    let route = view.routes.of(rules, crate::rules::api_of(endpoint), asked.model());
    let price = route.price.as_ref().filter(|_| endpoint != Endpoint::Passthrough);
    life.asked(&asked, price.map(|_| route.clone()));
    let candidates = choose(view, &caller, &route, endpoint, &path, asked.model())?;

    // Gate B, now that it is known what is asked for; then the provider whose turn it is. Whoever else serves the model
    // is asked as long as nothing was sent, after gate B looked at the limits that select it alone.
    let has_output = endpoint != Endpoint::Embeddings;
    let mut ask = Ask {
        model: asked.model(),
        upstream: "",
        input_tokens: life.estimated_input,
        output: has_output.then_some(life.bound),
        free_price: price.is_some_and(|price| price.at(life.now.wall).is_free()),
    };
    let mut answer = None;
    let mut failure = None;
    let mut tried: SmallVec<[&str; 4]> = SmallVec::new();
    for upstream in &candidates {
        ask.upstream = &upstream.id;
        if price.is_none() {
            must_be_priced(rules, &plan, &ask)?;
        }
        let beat = &core.shared.beat;
        let verdict = gate::after_failover(&plan, life.now, life.n_live, beat, &ask, &tried, &mut life.passed);
        if let Verdict::Refused(refusal) = verdict {
            return Err(Stop::Refused(refusal));
        }
        tried.push(&upstream.id);
        life.admitted();
        life.upstream(upstream);
        let call = exchange::Call { head_len, body: range.clone(), path: &path, asked: &asked, endpoint };
        match exchange::ask(core, client, upstream, &call, life).await {
            Ok(answered) => {
                answer = Some((upstream, answered));
                break;
            }
            Err(failed) => {
                life.last_byte();
                let may_try_another = matches!(failed, Failure::NotSent(_) | Failure::ConnectTimeout);
                failure = Some(failed);
                if !may_try_another {
                    break;
                }
            }
        }
    }
    let Some((upstream, answered)) = answer else {
        let failure = failure.unwrap_or_else(|| Failure::NotSent("no upstream could be asked".into()));
        return Err(exchange_stop(life, failure));
    };

    // Relay, settle, row.
    Ok(relay::relay(core, client, upstream, answered, life).await)
}

/// How far the keys may be believed; anything less than fresh is disclosed on whatever becomes of the request.
fn identity_standing(view: &View, life: &mut Life) -> Standing {
    let Some(followed) = &view.followed else { return Standing::Fresh };
    let standing = if view.keys.is_seed() { followed.standing(life.now.mono) } else { Standing::NeverSeeded };
    if standing != Standing::Fresh {
        life.passed.suspended.push((followed.limit_id.clone(), Reason::IdentityStale));
    }
    standing
}

/// What a body asks for; a pass-through body that is no JSON asks for nothing we know.
pub struct Asking(Option<Asked>);

impl Asking {
    /// The model, empty when the body names none.
    pub fn model(&self) -> &str {
        self.0.as_ref().map_or("", |asked| &asked.model)
    }

    /// Whether a stream is asked for.
    pub fn stream(&self) -> bool {
        self.0.as_ref().is_some_and(|asked| asked.stream)
    }

    /// The prompt in tokens, estimated: text bytes ÷ 4, and a fixed figure for each image.
    pub fn input_tokens(&self) -> u64 {
        let Some(asked) = &self.0 else { return 0 };
        (asked.input_bytes / BYTES_PER_TOKEN).saturating_add(u64::from(asked.images) * IMAGE_TOKENS)
    }

    /// What bounds the answer.
    fn output(&self) -> OutputBound {
        let asked = self.0.as_ref();
        OutputBound { cap: asked.and_then(|asked| asked.output_cap), choices: asked.map_or(1, |asked| asked.choices) }
    }

    /// What makes the body ask for usage, when the caller's stream does not report any by itself.
    pub fn usage_splice(&self) -> Option<&Splice> {
        self.0.as_ref().filter(|asked| asked.stream && !asked.include_usage).map(|asked| &asked.usage_splice)
    }
}

/// A budget cannot hold for a model whose price is not known.
fn must_be_priced(rules: &Rules, plan: &NodePlan, ask: &Ask<'_>) -> Result<(), Stop> {
    if rules.config.governance.unpriced_models == UnpricedModels::Admit {
        return Ok(());
    }
    let Some(armed) = plan.enforcing_budget_for(ask.model, ask.upstream) else { return Ok(()) };
    Err(stop(
        Fault::ModelUnpriced,
        format!(
            "no price is known for model {:?}, so budget {} cannot hold; add the model under `pricing:`, or set \
             `governance.unpriced_models: admit`",
            ask.model, armed.limit.id
        ),
    ))
}

/// Whether a body is JSON by its content type or by its looks.
fn is_json(client: &Client, body: &[u8]) -> bool {
    let content_type = client.head.fields.get(&client.buf, "content-type").unwrap_or_default();
    memchr::memmem::find(&content_type.to_ascii_lowercase(), b"json").is_some()
        || body.trim_ascii_start().starts_with(b"{")
}

/// What the body says, if it may be believed. A pass-through path may carry anything; every other one carries JSON.
fn inspect(
    client: &Client,
    range: &Range<usize>,
    asked: Result<Asked, BadBody>,
    endpoint: Endpoint,
) -> Result<Asking, Stop> {
    let encoding = client.head.fields.of_kind(&client.buf, FieldKind::ContentEncoding).next();
    if encoding.is_some_and(|encoding| !encoding.trim_ascii().eq_ignore_ascii_case(b"identity")) {
        return Err(stop(Fault::Encoded, "a compressed body cannot be governed; send it without content-encoding"));
    }
    let is_json = || is_json(client, client.buf.get(range.clone()).unwrap_or_default());
    match asked {
        Ok(asked) => Ok(Asking(Some(asked))),
        // A form or a file names no model we could match; JSON that hides its model is refused like everywhere.
        Err(_) if endpoint == Endpoint::Passthrough && !is_json() => Ok(Asking(None)),
        Err(BadBody::NoModel) if endpoint == Endpoint::Passthrough => Ok(Asking(None)),
        Err(bad) => Err(stop(Fault::InvalidRequest, bad.to_string())),
    }
}

/// Nearly always one or two, so that choosing allocates nothing; borrowed, because all cores share them and would count
/// the same references.
type Candidates<'r> = SmallVec<[&'r Upstream; 4]>;

/// The upstreams to try, in order: those that serve the model and that this caller may use.
fn choose<'r>(
    view: &'r View,
    caller: &Caller,
    route: &'r crate::rules::Route,
    endpoint: Endpoint,
    path: &str,
    model: &str,
) -> Result<Candidates<'r>, Stop> {
    let mut candidates: Candidates<'r> = if endpoint == Endpoint::Passthrough {
        let mut listed: Candidates<'r> = view.rules.passthrough(path).map(|upstream| &**upstream).collect();
        // The one that serves the model goes first, if the body names one.
        listed.sort_by_key(|upstream| !upstream.models.iter().any(|glob| glob.matches(model)));
        listed
    } else {
        route.in_turn().map(|upstream| &**upstream).collect()
    };
    if candidates.is_empty() {
        let api = crate::rules::api_of(endpoint);
        return Err(if route.wrong_api {
            let message = format!(
                "model {model:?} is served by an upstream that does not speak {}: use its own API's path",
                crate::rules::api_name(api)
            );
            stop(Fault::InvalidRequest, message)
        } else {
            stop(Fault::ModelNotFound, format!("no upstream serves model {model:?}"))
        });
    }
    let ours = caller.may_use_our_credential(view);
    candidates.retain(|upstream| ours || !upstream.has_own_credential());
    let Some(first) = candidates.first() else {
        let unknown = if caller.is_unverified { caller::Unknown::Unverifiable } else { caller::Unknown::NoKey };
        return Err(Stop::Unknown(unknown));
    };
    let has_no_key = |upstream: &&Upstream| matches!(upstream.credential, Credential::Missing);
    if candidates.iter().all(has_no_key) {
        let message = format!("upstream {} has no provider key configured", first.id);
        return Err(stop(Fault::UpstreamUnconfigured, message));
    }
    candidates.retain(|upstream| !has_no_key(upstream));
    Ok(candidates)
}

fn body_stop(fault: BodyFault, body_bytes_max: u64) -> Stop {
    match fault {
        BodyFault::TooLarge => {
            stop(Fault::TooLarge, format!("the body is larger than {body_bytes_max} bytes (server.max_body_bytes)"))
        }
        BodyFault::Slow => stop(Fault::RequestTimeout, "the request's body took too long"),
        BodyFault::BadFraming(what) => stop(Fault::InvalidRequest, what),
        BodyFault::Gone => Stop::Gone,
    }
}

fn exchange_stop(life: &mut Life, failure: Failure) -> Stop {
    let (outcome, stop) = match failure {
        Failure::NotSent(why) => {
            (Outcome::UpstreamError, stop(Fault::UpstreamUnreachable, format!("no upstream could be reached: {why}")))
        }
        Failure::ConnectTimeout => {
            (Outcome::Timeout, stop(Fault::UpstreamTimeout, "connecting to the upstream took too long"))
        }
        Failure::NoAnswer => {
            (Outcome::UpstreamCut, stop(Fault::UpstreamBroken, "the upstream closed the connection without an answer"))
        }
        Failure::BadAnswer(why) => {
            (Outcome::UpstreamError, stop(Fault::UpstreamBroken, format!("the upstream's answer is not HTTP: {why}")))
        }
        Failure::AnswerTimeout => {
            (Outcome::Timeout, stop(Fault::UpstreamTimeout, "the upstream did not answer in time"))
        }
        Failure::ClientGone => (Outcome::ClientGone, Stop::Gone),
    };
    life.may_be_billed = life.sent;
    life.row.outcome = Some(outcome);
    stop
}

/// Tells the caller what stopped its request, writes the row if a verdict was reached, and decides what becomes of
/// the connection.
async fn answer(core: &Rc<Core>, client: &mut Client, head_len: usize, life: &mut Life, mut stop: Stop) -> After {
    if let Stop::Unknown(unknown) = stop {
        if unknown.fault() == Fault::Authentication {
            core.metrics.with(|numbers| *numbers.unauthenticated.entry(unknown.as_str()).or_default() += 1);
        }
        stop = self::stop(unknown.fault(), unknown.message());
    }
    let body_unread = client.end == 0;
    let keeps = client.head.keep_alive && !core.drain.is_set();
    let is_read = !body_unread && client.buf.len() >= client.end;
    let is_slow = matches!(stop, Stop::Fault(Fault::RequestTimeout, _));
    let keeps = keeps && !is_slow && (is_read || (body_unread && body::is_skippable(client, head_len)));
    let mut out = take_buffer();
    let id = life.request_id();
    let begin = |out: &mut Vec<u8>, status, has_body| {
        respond::begin(out, status, id.as_bytes(), has_body);
        life.cors.append_to(out);
    };
    let (status, bytes) = match &mut stop {
        Stop::Gone | Stop::Unknown(_) => (499, Vec::new()), // the latter became a fault above
        Stop::Answered { status, body, headers } => {
            begin(&mut out, *status, !body.is_empty());
            out.extend_from_slice(headers);
            (*status, std::mem::take(body))
        }
        Stop::Refused(refusal) => {
            begin(&mut out, 429, true);
            refusal.bound = LedgerBound {
                tee_lag_rows: core.shared.tee_lag_rows(),
                dropped_rows: core.shared.dropped_rows(),
                convergence_lag_rows: refusal.bound.convergence_lag_rows,
                convergence_age_ms: core.shared.convergence_age_ms(clock::mono_ns),
            };
            refusal.headers(&mut out);
            let mut body = take_buffer();
            refusal.body(life.family, id.as_bytes(), &mut body);
            life.refused(refusal);
            (429, body)
        }
        Stop::Fault(fault, message) => {
            begin(&mut out, fault.status(), true);
            if let Some(allowed) = life.allow {
                io::http1::write::field(&mut out, "allow", allowed.as_bytes());
            }
            if *fault == Fault::Authentication {
                out.extend_from_slice(b"www-authenticate: Bearer\r\n");
            }
            if life.may_be_billed {
                out.extend_from_slice(b"x-should-retry: false\r\n");
            }
            if life.is_judged() {
                life.row.decision = Decision::Error;
            }
            (fault.status(), fault.body(life.family, message, id.as_str()))
        }
    };
    if life.passed.suspended.iter().any(|(_, reason)| reason.is_shared_store()) {
        out.extend_from_slice(b"x-tt-coordination: suspended\r\n");
    }
    if !life.is_judged() && status >= 400 && status != 499 {
        core.metrics.with(|numbers| *numbers.unjudged.entry(status).or_default() += 1);
    }
    if matches!(stop, Stop::Gone) {
        life.row.outcome = Some(Outcome::ClientGone);
        life.close(status, None).await;
        give_buffer(out);
        return After::Close;
    }
    life.close(status, None).await;
    core.date(WallMs(clock::wall_ms()), |date| io::http1::write::field(&mut out, "date", date.as_bytes()));
    let ending = Ending { without_body: client.head.method == Method::Head, close: !keeps };
    respond::end(&mut out, status, &bytes, ending);
    give_buffer(bytes);
    match client.socket.send(out, WRITE_STALL_NS).await {
        Err(_) => After::Close,
        Ok(()) if !keeps => After::CloseGently,
        Ok(()) if body_unread && !body::skip(client, head_len).await => After::CloseGently,
        Ok(()) => After::KeepAlive,
    }
}
