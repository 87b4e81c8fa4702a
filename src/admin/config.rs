//! The configuration in force, and reading it again.

use std::sync::Arc;

use axum::extract::{Extension, State};
use axum::http::StatusCode;
use serde::Serialize;

use super::answer::{Answer, Fault, blocking, ok};
use super::{Admin, By};
use crate::config::Config;

#[derive(Serialize)]
struct Page<'a> {
    /// Counts publications of rules and keys.
    generation: u64,
    warnings: &'a [String],
    /// A configuration file that means the same; secrets stand in it by the names of their variables.
    config: &'a Config,
}

/// `GET /tt/api/v1/config`.
pub async fn effective(State(admin): State<Arc<Admin>>) -> Answer {
    let rules = admin.shared().rules.load();
    ok(&Page { generation: admin.shared().generation(), warnings: &rules.warnings, config: &rules.config })
}

/// `POST /tt/api/v1/config/reload`. A file that does not compile changes nothing, and the answer says why.
pub async fn reload(State(admin): State<Arc<Admin>>, Extension(by): By) -> Answer {
    let reloaded = blocking(move || admin.control.reload_for(&by.who()));
    let (reloaded, audited) = reloaded.await?;
    let reloaded = reloaded.map_err(|why| {
        let remedy = "correct the file and reload again; the running configuration stays in force";
        Fault::new(StatusCode::UNPROCESSABLE_ENTITY, "config_refused", why, remedy)
    })?;
    audited.map_err(|error| Fault::storage(format!("reloaded, but that could not be audited: {error}")))?;
    ok(&reloaded)
}
