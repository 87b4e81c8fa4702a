//! The order in which a gate walks its limits: deepest node first, then limit id, then node id.
//!
//! Amounts are never compared: the first enforcing limit that is over answers, so the order alone decides which limit
//! a refused caller is told about.

use std::cmp::Ordering;

use super::Armed;

/// Total over any two armed limits of one caller.
pub(super) fn walk(left: &Armed, right: &Armed) -> Ordering {
    (right.node.depth().cmp(&left.node.depth()))
        .then_with(|| left.limit.id.cmp(&right.limit.id))
        .then_with(|| left.node.cmp(&right.node))
}
