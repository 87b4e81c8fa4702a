//! A Redis connection that keeps the promises the coordinator makes: each command is written at most once, an answer
//! belongs to the command at its place in line and to no other, and bytes that lie in the socket are read before
//! anybody says that an answer did not come.
//!
//! Our own and not a client crate's, because those hide just that: the crate `redis` reads answers in a task of its own,
//! so that a deadline cannot look at the socket once more, and trusts lengths that a broken peer invents. It is small
//! because it has to do little: RESP2, pipelines, a password, TLS. Knows no limit, no script and no retry.

pub mod admission;
mod connection;
pub mod resp;
mod scripts;

pub use connection::{Connection, Endpoint, Pipeline, Trouble};
pub use resp::Reply;
pub use scripts::{Call, Line, Script};
