//! What every black-box test shares: a gateway process, upstreams to put behind it, and a client that shows the
//! bytes as they were on the wire.
//!
//! A test builds its gateway with [`Setup`], talks to it with [`http`] and [`sse`], reads its rows with
//! [`ledger`], and ends with `gateway.idle_check()`. Nothing here sleeps to get an order: [`wait`] polls a
//! condition until a deadline. Ports are free ports, files live in a folder of their own under the target folder.

#![allow(dead_code)] // every test binary compiles all of this and uses its own part

pub mod bodies;
pub mod cluster;
pub mod folder;
pub mod gateway;
pub mod http;
pub mod idle;
pub mod ledger;
pub mod me;
pub mod metrics;
pub mod mock;
pub mod pg_proxy;
pub mod postgres;
pub mod process;
pub mod proxy;
pub mod python;
pub mod redis;
pub mod scripted;
pub mod setup;
pub mod sse;
pub mod wait;

#[allow(unused_imports)] // as above
pub use {
    bodies::*,
    cluster::Cluster,
    gateway::{Gateway, Key},
    http::{Conn, Request, Response},
    ledger::Row,
    mock::Mock,
    pg_proxy::PgProxy,
    postgres::PostgresServer,
    proxy::{Mood, TcpProxy},
    redis::RedisServer,
    scripted::{Answer, Scripted},
    setup::Setup,
    sse::Stream,
    wait::{PROMPTLY, SOON, until, until_equal, until_some},
};

/// The node of K1, the key most cases use.
pub const DEV1: &str = "org:acme/team:ml/user:dev1";

/// What a healthy OpenAI-shaped reply of the mock costs: 40 x 1.00 + 60 x 0.10 + 40 x 10.00 = 446 micro-USD.
pub const OPENAI_REPLY_NANOUSD: u64 = 446_000;
/// 100 in, 40 out.
pub const OPENAI_REPLY_TOKENS: u64 = 140;
/// 25 x 1.00 + 200 x 1.25 + 1000 x 0.10 + 40 x 10.00 = 775 micro-USD.
pub const ANTHROPIC_REPLY_NANOUSD: u64 = 775_000;
/// 25 + 200 written + 1000 read in, 40 out.
pub const ANTHROPIC_REPLY_TOKENS: u64 = 1_265;
