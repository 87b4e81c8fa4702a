//! Every syscall of TokenTriage, and the bytes that go with them. Knows no limit, no node and no price.
//!
//! [`runtime`] is what data cores run on: the rest of the crate is either plain byte handling
//! ([`http1`], [`sse`], [`json`]) or plain threads and files ([`ledger_file`], [`ring`]). What talks to shared stores
//! ([`redis`], [`postgres`]) runs on tokio, on threads away from the data cores.

pub mod clock;
pub mod cpu;
pub mod decode;
pub mod doorbell;
pub mod errand;
pub mod http1;
pub mod json;
pub mod ledger_file;
pub mod listen;
pub mod postgres;
pub mod redis;
pub mod ring;
pub mod runtime;
pub mod sse;
mod stops;
pub mod upstream;
pub mod usage;
