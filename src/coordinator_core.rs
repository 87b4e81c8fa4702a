//! The coordinator: the one thread that talks to Redis.
//!
//! Runs tokio, because sockets that may hang must not be waited for on a data core. Two connections: one for admissions
//! (5 ms each, watched by the breaker), made as soon as a limit asks for them; one for everything that waits for nobody's
//! request (convergence and heartbeats, 1 s each, which never moves the breaker), made when its first operation needs it.

mod admissions;
mod background;

use std::sync::Arc;

use io::errand::Answerer;
use io::redis::Endpoint;
use io::ring::Pager;
use tokio::sync::Notify;
use tokio::task::LocalSet;

use self::admissions::Admissions;
use crate::coordination::desk::{Answer, Question};
use crate::shared::Shared;

/// What the coordinator is started with.
pub struct Start {
    /// Where Redis is.
    pub endpoint: Endpoint,
    /// Wakes the accountant, which takes up peers' burn.
    pub pager: Arc<Pager>,
    /// The other ends of the cores' desks, in order.
    pub desks: Vec<Answerer<Question, Answer>>,
    /// Rung by the cores, and by a reload.
    pub wake: Arc<Notify>,
}

/// Runs until [`Coordination::stop`](crate::coordination::Coordination::stop).
pub fn run(start: Start, shared: &Arc<Shared>) -> std::io::Result<()> {
    let Some(coordination) = &shared.coordination else { return Ok(()) };
    // Names are resolved and copies of the roster kept on further threads: getaddrinfo and disks wait.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(4)
        .thread_name("tt-coordinator-waits")
        .build()?;
    let Start { endpoint, pager, desks, wake } = start;
    tracing::info!(redis = ?endpoint, "coordinator runs");
    let local = LocalSet::new();
    let background = background::run(endpoint.clone(), shared.clone(), coordination.clone(), pager);
    let background = local.spawn_local(background);
    let admissions =
        local.spawn_local(Admissions::new(endpoint, shared.clone(), coordination.clone(), desks).run(wake));
    let ended = runtime.block_on(local.run_until(async { tokio::try_join!(admissions, background) }));
    if let Err(error) = ended {
        std::panic::resume_unwind(error.into_panic()); // tasks end by themselves or by a panic: nobody aborts them
    }
    // A name that is still being looked up keeps nobody waiting.
    runtime.shutdown_background();
    Ok(())
}
