//! TokenTriage: an LLM gateway that governs. This crate introduces the parts to each other: what runs on which
//! core and in what order ([`boot`]), the life of a request ([`request`]), configuration, command line and admin
//! pages. Decisions are in the crate `shards`, syscalls in the crate `io`.

pub mod accountant_core;
pub mod admin;
#[cfg(feature = "count-allocations")]
pub mod allocations;
pub mod audit;
pub mod blanks;
pub mod body;
pub mod boot;
pub mod caller;
pub mod cli;
pub mod config;
pub mod connection;
pub mod control;
pub mod coordination;
pub mod coordinator_core;
pub mod core;
pub mod cors;
pub mod data_core;
pub mod exchange;
pub mod identity_thread;
pub mod keys;
pub mod last_stop;
pub mod ledger;
pub mod ledger_query;
pub mod log;
pub mod me;
pub mod memory;
pub mod metrics;
pub mod mock;
pub mod place;
pub mod relay;
pub mod request;
pub mod respond;
pub mod rules;
pub mod shared;
pub mod when;
