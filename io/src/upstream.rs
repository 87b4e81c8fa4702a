//! Connections to providers: names resolved off the cores, connects with a deadline, one pool per core.

mod connect;
mod pool;
mod resolve;

pub use connect::{ConnectError, Target, connect};
pub use pool::Pool;
pub use resolve::{Addresses, Resolver};
