//! What runs on a data core: its accept loop, a task per connection, and housekeeping once a second.

use std::future::poll_fn;
use std::net::TcpListener;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use io::clock;
use io::cpu;
use io::doorbell::Bell;
use io::errand::Asker;
use io::listen::Listener;
use io::ring::RingSender;
use io::runtime::{DriverChoice, DriverError, Socket, let_others_run, run_core, sleep, spawn};
use shards::row::Row;

use crate::connection;
use crate::coordination::desk::{Answer, Question};
use crate::core::Core;
use crate::respond::{self, Ending, Fault};
use crate::rules::ns;
use crate::shared::Shared;

/// How long dropped connections may take to write their rows.
const CUT_NS: u64 = 1_000_000_000;

/// What a core is started with.
pub struct Start {
    /// Its number.
    pub index: usize,
    /// Its listening socket.
    pub listener: TcpListener,
    /// Its ring to the accountant.
    pub rows: RingSender<Box<Row>>,
    /// Its bell.
    pub bell: Bell,
    /// Its way to the coordinator, where there is one.
    pub asker: Option<Asker<Question, Answer>>,
    /// Which driver to use.
    pub driver: DriverChoice,
    /// The CPU to stay on, if any.
    pub pin_to: Option<usize>,
    /// Open connections of all cores together.
    pub connections: Arc<AtomicUsize>,
}

/// Runs a data core on this thread until the process has drained.
pub fn run(start: Start, shared: &Arc<Shared>) -> Result<(), DriverError> {
    if let Some(cpu) = start.pin_to
        && let Err(error) = cpu::stay_on(cpu)
    {
        tracing::warn!(cpu, %error, "a core could not be pinned");
    }
    let shared = shared.clone();
    run_core(start.driver, async move |driver| {
        let index = start.index;
        tracing::info!(
            core = index,
            driver = driver.kind.as_str(),
            setup = driver.setup,
            refused = driver.refused.join("; "),
            "data core runs"
        );
        let _ = shared.cores[index].driver.set(driver);
        if let Err(error) = serve(start, shared).await {
            tracing::error!(core = index, %error, "data core ends");
        }
    })
}

async fn serve(start: Start, shared: Arc<Shared>) -> std::io::Result<()> {
    let Start { index, listener, rows, bell, asker, connections, .. } = start;
    let listener = Listener::new(listener)?;
    let core = Rc::new(Core::new(index, shared, rows, asker)?);

    let on_ring = core.clone();
    spawn(
        async move {
            if let Err(error) = bell.listen(move || on_ring.on_ring()).await {
                // A core that cannot be woken would never drain and never see `sync: always`.
                tracing::error!(%error, "a core's doorbell broke");
                std::process::abort();
            }
        },
        || std::process::abort(),
    );
    if core.desk.is_some() {
        let asking = core.clone();
        spawn(
            async move {
                if let Some(desk) = &asking.desk {
                    desk.ring().await;
                }
            },
            || std::process::abort(),
        );
    }
    let tidy = core.clone();
    spawn(
        async move {
            while !tidy.drain.is_set() {
                sleep(Duration::from_secs(1)).await;
                tidy.housekeeping();
            }
        },
        || std::process::abort(),
    );

    let memory = core.clone();
    spawn(async move { memory.owed.keep_giving_back().await }, || std::process::abort());

    accept(&core, &listener, &connections).await;
    drop(listener);
    drain(&core).await;
    core.hang_up();
    Ok(())
}

async fn accept(core: &Rc<Core>, listener: &Listener, connections: &Arc<AtomicUsize>) {
    loop {
        let socket = match listener.accept(&core.stop).await {
            Ok(socket) => socket,
            Err(_) if core.drain.is_set() || core.shared.draining.load(Ordering::Acquire) => return,
            Err(error) => {
                // Out of descriptors, usually: callers wait in the backlog meanwhile.
                tracing::warn!(%error, "accepting a connection failed");
                sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        // On epoll a queue of callers would keep the core until it is empty.
        let_others_run().await;
        let open = Open::new(core, connections);
        let connections_max = core.view().rules.config.server.max_connections as usize;
        if connections.load(Ordering::Relaxed) > connections_max {
            let core = core.clone();
            spawn(async move { turn_away(&core, socket, open).await }, || ());
            continue;
        }
        let (core, metrics) = (core.clone(), core.metrics.clone());
        // Boxed once, at the bottom: each future around it would hold it twice, where it came from and where it is polled.
        let serving = Box::pin(connection::serve(core.clone(), connection::Client::new(socket)));
        spawn(
            async move {
                unless_cut(&core, serving).await;
                drop(open);
            },
            move || {
                metrics.with(|numbers| numbers.panics += 1);
                tracing::error!("a connection's task panicked; the connection is closed, the core goes on");
            },
        );
    }
}

/// Too many connections: said, not just closed.
async fn turn_away(core: &Core, mut socket: Socket, open: Open) {
    if core.view().rules.tls.is_some() {
        return; // plain bytes would say nothing to a TLS client, and a handshake is what there is no room for
    }
    let request_id = core.request_id(core.now().wall);
    let fault = Fault::Overloaded;
    let body = fault.body(
        shards::refusal::Family::OpenAi,
        "too many connections (server.max_connections)",
        request_id.as_str(),
    );
    let mut out = Vec::new();
    respond::begin(&mut out, fault.status(), request_id.as_bytes(), true);
    respond::end(&mut out, fault.status(), &body, Ending { close: true, ..Ending::default() });
    core.metrics.with(|numbers| *numbers.unjudged.entry(fault.status()).or_default() += 1);
    if socket.write_all(out, 1_000_000_000).await.is_ok() {
        socket.close_gently(clock::mono_ns().saturating_add(1_000_000_000)).await;
    }
    drop(open);
}

/// Counts a connection while it is open, also when its task panics.
struct Open {
    core: Rc<Core>,
    all: Arc<AtomicUsize>,
}

impl Open {
    fn new(core: &Rc<Core>, all: &Arc<AtomicUsize>) -> Self {
        all.fetch_add(1, Ordering::Relaxed);
        core.metrics.connection(1);
        core.connections.set(core.connections.get() + 1);
        Open { core: core.clone(), all: all.clone() }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.all.fetch_sub(1, Ordering::Relaxed);
        self.core.metrics.connection(-1);
        self.core.connections.set(self.core.connections.get() - 1);
    }
}

/// Waits for the requests in flight, at most `server.drain_timeout`.
async fn drain(core: &Core) {
    let timeout_ns = ns(core.view().rules.config.server.drain_timeout);
    let deadline_ns = clock::mono_ns().saturating_add(timeout_ns);
    let is_over = || clock::mono_ns() >= deadline_ns || core.cut.is_set();
    while (core.connections.get() > 0 || !core.flush_rows()) && !is_over() {
        sleep(Duration::from_millis(5)).await;
    }
    if core.connections.get() > 0 || core.cut.is_set() {
        if !core.cut.is_set() {
            tracing::warn!(
                core = core.index,
                connections = core.connections.get(),
                "the drain time is over; open connections are cut"
            );
        }
        core.cut.set();
        let deadline_ns = clock::mono_ns().saturating_add(CUT_NS);
        while (core.connections.get() > 0 || !core.flush_rows()) && clock::mono_ns() < deadline_ns {
            sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Runs a connection's task to its end, or drops it when the core cuts what still runs.
async fn unless_cut(core: &Core, task: impl Future<Output = ()>) {
    let cut = core.cut.waiter();
    let mut task = pin!(task);
    poll_fn(|cx| match task.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(()),
        Poll::Pending => cut.poll(cx),
    })
    .await;
}
