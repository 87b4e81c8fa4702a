//! What every refusal by one limit says alike, spelled once, when the limit is compiled: a refusal is written often exactly
//! when there is no time to spare. `body` and `headers` put the rest between these pieces.

use std::sync::Arc;

use super::body::{Envelope, enforcement, node_ends};
use super::{Family, headers};
use crate::limit::{LimitType, Period, Posture};

/// The pieces of one limit's refusals.
#[derive(Clone, Debug)]
pub struct Wording {
    openai: Envelope,
    anthropic: Envelope,
    /// Behind the name of the node in the body.
    pub(super) node_ends: Box<[u8]>,
    /// The beginning of the body's `enforcement`.
    pub(super) enforcement: Box<[u8]>,
    /// The header lines but for the waits, in two parts: the second behind the `t` of `RateLimit`.
    pub(super) rate_limit: Box<[u8]>,
    pub(super) refused_by: Box<[u8]>,
}

impl Wording {
    pub(crate) fn of(id: &Arc<str>, kind: LimitType, period: Option<Period>, posture: Posture) -> Wording {
        Wording {
            openai: Envelope::of(id, kind, Family::OpenAi),
            anthropic: Envelope::of(id, kind, Family::Anthropic),
            node_ends: spelled(|out| node_ends(period, out)),
            enforcement: spelled(|out| enforcement(kind, posture, out)),
            rate_limit: spelled(|out| headers::rate_limit(id, out)),
            refused_by: spelled(|out| headers::refused_by(id, kind, out)),
        }
    }

    pub(super) fn envelope(&self, family: Family) -> &Envelope {
        match family {
            Family::OpenAi => &self.openai,
            Family::Anthropic => &self.anthropic,
        }
    }
}

pub(super) fn spelled(write: impl FnOnce(&mut Vec<u8>)) -> Box<[u8]> {
    let mut out = Vec::new();
    write(&mut out);
    out.into()
}
