//! A fleet under load while everything it leans on fails at random: Redis, Postgres, and the replicas themselves.
//!
//! Callers ask at fixed times, whatever becomes of their questions; keys come and go. Meanwhile no caller may get an answer
//! that is not due: limits may refuse, revoked keys may be refused, and nothing else may go wrong. When all is healed again,
//! nothing may be held, nothing may have leaked, and the meters of every replica must be the sum of all ledgers.
//!
//! `./dev test` runs it for some seconds; `./dev soak [MINUTES] [SEED]` for as long as you like. The faults come from the
//! seed, which is printed. Needs redis-server and the programs of a Postgres server.

mod common;
mod soak;

use std::time::Duration;

/// Long enough for a dozen faults.
const SHORT_S: u64 = 12;

#[test]
fn a_fleet_survives_whatever_fails_beneath_it_and_loses_no_count() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse().expect("a whole number"));
    let length = Duration::from_secs(number("TT_SOAK_S").unwrap_or(SHORT_S));
    soak::run(length, number("TT_SOAK_SEED").unwrap_or(1));
}
