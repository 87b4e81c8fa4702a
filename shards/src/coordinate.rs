//! What a replica decides about its calls to the shared store, without touching it: which call to make, how long to
//! wait, whom an answer belongs to, and when to stop asking.
//!
//! Everything here is pure: the time comes in, and what is to be sent or said goes out as plain data. The coordinator
//! thread moves the bytes ([`lane`]); the data cores ask and wait ([`ticket`], [`deadline`]).

pub mod breaker;
pub mod deadline;
pub mod eval;
pub mod key;
pub mod lane;
pub mod numbers;
pub mod ticket;
