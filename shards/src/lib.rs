//! Every decision and every shared counter of TokenTriage. Pure: time comes in as `now`, bytes come in as
//! plain data; nothing here reads a clock, a socket, a file, the environment or a random number.
//!
//! Read in the order a request meets it: [`plan`] (what was configured) → [`registry`] (the counters) →
//! [`gate`] (the two decisions) → [`settle`] (what is given back) → [`row`] (what is written down) →
//! [`accountant`] (what is folded into meters).

pub mod accountant;
pub mod cell;
pub mod converge;
pub mod coordinate;
pub mod duration;
pub mod gate;
pub mod gauge;
pub mod limit;
pub mod membership;
pub mod meter;
pub mod plan;
pub mod price;
pub mod rate;
pub mod refusal;
pub mod registry;
pub mod row;
pub mod scope;
pub mod settle;
pub mod suspend;
pub mod units;
pub mod usage;
