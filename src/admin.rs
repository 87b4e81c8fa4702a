//! The admin port: one router, served by the control thread.
//!
//! Shows what the other threads published and changes keys, rules and the audit file; nothing here is on a request's
//! path. `routes` is the whole API, and `openapi.json` beside it says the same in words for machines: a test
//! holds the two together. Whatever waits for a disk or a network runs on the blocking pool, so that probes and scrapes
//! are answered meanwhile.

mod answer;
mod audit;
mod config;
mod decisions;
mod doorway;
mod federation;
mod fleet;
mod guard;
mod health;
mod keys;
mod limits;
mod openapi;
mod query;
mod scrape;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, DefaultBodyLimit, FromRequest, Request, State};
use axum::http::header::{CACHE_CONTROL, HeaderName, HeaderValue};
use axum::http::{Method, StatusCode};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, delete, get, post};
use axum::{Extension, Router};
use io::clock;
use shards::units::{MonoNs, Now, WallMs};
use tokio::net::TcpListener;

use crate::audit::{AuditFile, Who};
use crate::control::Control;
use crate::ledger_query::Ledger;
use crate::shared::Shared;
use answer::Fault;
use doorway::{Doorway, Peer};
use guard::{Guard, Shown};
pub use keys::{Keys, Listed, check_name};

/// The largest write is a mint of a few hundred bytes.
const BODY_BYTES_MAX: usize = 64 * 1024;
/// For the whole body of a write.
const BODY_WITHIN: Duration = Duration::from_secs(10);

/// What handlers work with.
struct Admin {
    control: Arc<Control>,
    guard: Guard,
    audit: AuditFile,
    ledger: Ledger,
    metrics: prometheus_client::registry::Registry,
}

impl Admin {
    fn shared(&self) -> &Arc<Shared> {
        &self.control.shared
    }
}

/// Serves until the task is aborted.
pub async fn serve(listener: TcpListener, control: Arc<Control>) {
    let (data_dir, ledger_dir) = {
        let rules = control.shared.rules.load();
        (rules.config.data_dir.clone(), rules.config.ledger_dir())
    };
    let admin = Arc::new(Admin {
        guard: Guard::new(&control.secrets, &control.shared.replica.name),
        audit: AuditFile::of(&data_dir),
        ledger: Ledger::at(&ledger_dir),
        metrics: scrape::registry(control.shared.clone()),
        control,
    });
    let app = router(admin).into_make_service_with_connect_info::<Peer>();
    if let Err(error) = axum::serve(Doorway::new(listener), app).await {
        tracing::error!(%error, "the admin port ended");
    }
}

/// One path, what may be done to it, and who does it.
struct Route {
    path: &'static str,
    methods: &'static [&'static str],
    handler: MethodRouter<Arc<Admin>>,
}

/// The whole API.
fn routes() -> Vec<Route> {
    let route = |path, methods, handler| Route { path, methods, handler };
    vec![
        route("/livez", &["get"], get(health::live)),
        route("/readyz", &["get"], get(health::ready)),
        route("/healthz", &["get"], get(health::ready)),
        route("/metrics", &["get"], get(scrape::metrics)),
        route("/tt/api/v1/governance/health", &["get"], get(health::governance)),
        route("/tt/api/v1/governance/limits", &["get"], get(limits::list)),
        route("/tt/api/v1/fleet", &["get"], get(fleet::roster)),
        route("/tt/api/v1/fleet/decommission", &["post"], post(fleet::decommission)),
        route("/tt/api/v1/federation", &["get"], get(federation::cards)),
        route("/tt/api/v1/query", &["get"], get(query::answer)),
        route("/tt/api/v1/decisions", &["get"], get(decisions::list)),
        route("/tt/api/v1/keys", &["get", "post"], get(keys::list).post(keys::mint)),
        route("/tt/api/v1/keys/{id}", &["delete"], delete(keys::revoke)),
        route("/tt/api/v1/audit", &["get"], get(audit::list)),
        route("/tt/api/v1/config", &["get"], get(config::effective)),
        route("/tt/api/v1/config/reload", &["post"], post(config::reload)),
        route("/tt/api/v1/openapi.json", &["get"], get(openapi::document)),
    ]
}

fn router(admin: Arc<Admin>) -> Router {
    let api = routes().into_iter().fold(Router::new(), |router, route| {
        debug_assert!(!route.methods.is_empty(), "a path that can do nothing is no path");
        router.route(route.path, route.handler)
    });
    // Only a path that exists and takes the method is asked whether the write is allowed: 404 and 405 come first.
    api.route_layer(from_fn(before_a_write))
        .fallback(answer::unknown_path)
        .method_not_allowed_fallback(answer::wrong_method)
        .layer(from_fn_with_state(admin.clone(), at_the_door))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(admin)
}

/// Before everything: may this caller ask here at all?
async fn at_the_door(
    State(admin): State<Arc<Admin>>,
    ConnectInfo(Peer(peer)): ConnectInfo<Peer>,
    mut request: Request,
    next: Next,
) -> Response {
    let mut response = match admin.guard.admit(request.uri(), request.headers()) {
        Err(fault) => fault.into_response(),
        Ok(shown) => {
            request.extensions_mut().insert(Visitor { shown, peer });
            next.run(request).await
        }
    };
    let headers = response.headers_mut();
    // Answers hold tenants, spend and once a key: no cache keeps them, no browser guesses another type.
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    headers.insert(HeaderName::from_static("x-content-type-options"), HeaderValue::from_static("nosniff"));
    response
}

/// Before a handler that changes something: may the caller, and is the whole body here?
async fn before_a_write(Extension(visitor): By, request: Request, next: Next) -> Response {
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        return next.run(request).await;
    }
    if let Err(fault) = Guard::may_write(visitor.shown, request.method(), request.headers()) {
        return fault.into_response();
    }
    match whole(request).await {
        Ok(request) => next.run(request).await,
        Err(fault) => fault.into_response(),
    }
}

/// The request with its body in memory, bounded in size and time.
async fn whole(request: Request) -> Result<Request, Fault> {
    let (parts, body) = request.into_parts();
    let reading = Bytes::from_request(Request::from_parts(parts.clone(), body), &());
    let remedy = "send a smaller body, and at once";
    match tokio::time::timeout(BODY_WITHIN, reading).await {
        Ok(Ok(bytes)) => Ok(Request::from_parts(parts, Body::from(bytes))),
        Ok(Err(rejection)) if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE => {
            let message = format!("the body has more than {BODY_BYTES_MAX} bytes");
            Err(Fault::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message, remedy))
        }
        Ok(Err(_)) => Err(Fault::bad_request("the body ended early", remedy)),
        Err(_) => Err(Fault::new(StatusCode::REQUEST_TIMEOUT, "timeout", "the body did not come within 10 s", remedy)),
    }
}

/// Who asks, for the audit.
#[derive(Clone)]
struct Visitor {
    shown: Shown,
    peer: SocketAddr,
}

impl Visitor {
    fn who(&self) -> Who {
        Who::AdminApi { token: self.shown.as_str(), peer: self.peer.to_string() }
    }
}

/// The visitor as handlers take it.
type By = Extension<Visitor>;

fn now() -> Now {
    Now { mono: MonoNs(clock::mono_ns()), wall: WallMs(clock::wall_ms()) }
}
