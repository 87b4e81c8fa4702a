//! The configuration file: from text to typed values, or to every mistake in it, each once and with its place.
//!
//! [`load`] reads (YAML → tree → types → rules between sections), [`compile`] turns limits and prices into what
//! requests are decided with, [`secrets`] reads the environment. `run`, `validate` and reload call these same
//! functions, so nothing is refused in one and accepted in another.

mod build;
pub mod default;
pub mod diagnostics;
mod effective;
mod leaf;
mod load;
mod mask;
mod read;
mod replica;
mod restart;
pub mod schema;
mod secrets;
mod source;
mod tree;
mod types;
pub mod units;
mod validate;

#[cfg(test)]
mod tests;

pub use diagnostics::{Diagnostic, Errors, Severity};
pub use load::{Loaded, Origin, load, load_in, load_text};
pub use replica::{BadReplicaName, ReplicaIdentity, ReplicaSource, Surroundings, resolve as resolve_replica};
pub use restart::needs_restart;
pub use secrets::{Environment, Secret, Secrets, environment, secrets};
pub use source::{Position, Source, SourceMap};
pub use types::*;
pub use validate::{Compiled, compile, fault};
