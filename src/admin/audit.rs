//! `GET /tt/api/v1/audit`: who changed what, newest first.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::answer::{Answer, Fault, blocking, ok};
use super::{Admin, query};

const ENTRIES: usize = 100;
const ENTRIES_MAX: usize = 1_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Params {
    limit: Option<usize>,
}

#[derive(Serialize)]
struct Page {
    entries: Vec<Box<RawValue>>,
}

pub async fn list(State(admin): State<Arc<Admin>>, params: Result<Query<Params>, QueryRejection>) -> Answer {
    let limit = query::params(params)?.limit.unwrap_or(ENTRIES);
    if !(1..=ENTRIES_MAX).contains(&limit) {
        return Err(Fault::bad_request("limit is out of range", format!("write 1 to {ENTRIES_MAX}")));
    }
    let entries = blocking(move || admin.audit.newest(limit)).await?.map_err(Fault::storage)?;
    ok(&Page { entries })
}
