//! The built-in mock upstream: answers the OpenAI and Anthropic APIs without a provider, a key or a network.
//!
//! It serves the first run of a gateway that has no provider yet (`tokentriage run` without a file), tests and
//! benchmarks. It decides only how an answer looks and how long it takes; it knows nothing of limits, keys or
//! configuration, so it can stand in any process. Called by the
//! `mock` command ([`run`]) and by the embedded default, in-process ([`serve`]).
//!
//! The model's name may carry faults, as in `mock+status429` or `mock+slow200+cut`: see the module `faults`.

mod anthropic;
mod base64;
mod faults;
mod openai;
mod reply;
mod route;
mod text;

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::serve::ListenerExt;
use tokio::net::TcpListener;

/// The answer a client gets: how long, in how many pieces, how fast. Each can be bent per request by the
/// model's name.
#[derive(Debug, Clone, clap::Args)]
pub struct MockOptions {
    /// Wait this long before the first byte of every answer
    #[arg(long, value_name = "DURATION", default_value = "50ms", value_parser = crate::config::units::parse_duration)]
    pub latency: Duration,
    /// Tokens per answer; a smaller cap in the request wins
    #[arg(long, value_name = "N", default_value_t = 40)]
    pub tokens: u32,
    /// Pause after each chunk of a stream; 0ms sends them back to back
    #[arg(long, value_name = "DURATION", default_value = "10ms", value_parser = crate::config::units::parse_duration)]
    pub chunk_delay: Duration,
    /// Chunks per stream; one per token when absent
    #[arg(long, value_name = "N")]
    pub chunks: Option<u32>,
}

impl Default for MockOptions {
    fn default() -> Self {
        Self { latency: Duration::from_millis(50), tokens: 40, chunk_delay: Duration::from_millis(10), chunks: None }
    }
}

/// Arguments of `tokentriage mock`.
#[derive(Debug, Clone, clap::Args)]
pub struct MockArgs {
    /// Where to listen; port 0 takes a free one and prints it
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:18080")]
    pub listen: SocketAddr,
    #[command(flatten)]
    pub options: MockOptions,
}

/// Serves until the process is told to end. Prints the address once the port is open, on stdout, so that a
/// script that asked for port 0 can read it.
pub fn run(args: &MockArgs) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(args.listen).await?;
        println!("mock upstream on http://{}/v1", listener.local_addr()?);
        tokio::select! {
            served = serve(listener, args.options.clone()) => served,
            interrupted = tokio::signal::ctrl_c() => interrupted,
        }
    })
}

/// Serves on an open listener until the future is dropped.
pub async fn serve(listener: TcpListener, options: MockOptions) -> io::Result<()> {
    // A small chunk must leave at once: with Nagle's algorithm a stream would arrive in 40 ms lumps.
    let listener = listener.tap_io(|connection| {
        let _ = connection.set_nodelay(true); // a refused option slows the mock, it does not break it
    });
    axum::serve(listener, route::router(options)).await
}

#[cfg(test)]
mod tests;
