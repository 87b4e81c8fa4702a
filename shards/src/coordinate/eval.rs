//! One call to the shared store, as plain data: which script, for which scope, with what.

use super::key::ScopeHash;
use crate::rate::{RateParams, Script};

/// Counts `cost` units in a scope. The coordinator spells it; a [`ScriptReply`](crate::rate::ScriptReply) comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvalCall {
    pub scope: ScopeHash,
    pub script: Script,
    pub args: [u64; 3],
}

impl EvalCall {
    pub fn new(scope: ScopeHash, rate: &RateParams, cost: u64) -> EvalCall {
        EvalCall { scope, script: rate.script(), args: rate.script_args(cost) }
    }
}
