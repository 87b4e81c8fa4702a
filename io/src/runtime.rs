//! What a data core runs on: one thread with tasks, alarms and sockets, over io_uring or epoll.
//!
//! The rule that everything here serves: **an operation belongs to its socket, not to the call that began it**. Under
//! io_uring a read that was handed to the kernel may complete at any moment, with bytes that would be lost: who stops waiting
//! leaves it where it is, and who asks next takes it over. Deadlines, client-gone detection and shutdown race the wait,
//! never the operation.
//!
//! The one exception is [`Socket::poll_read`], for a connection that is closed whenever its read is not awaited to the
//! end: an upstream's while it answers. It may read straight into the caller's buffer.

mod accept;
mod alarm;
mod buffers;
mod driver;
mod epoll;
mod executor;
mod socket;
mod stream;
mod task;
mod tls;
mod uring;
mod watch;

pub use accept::{Listener, StopAccepting};
pub use alarm::{Alarm, sleep};
pub use buffers::{ensure_buffer, free_unneeded, give_buffer, take_buffer};
pub use driver::{DriverChoice, DriverError, DriverInUse, DriverKind, PLAIN, run_core, run_core_on};
pub use socket::{Beside, Fill, Socket, read_beside};
pub use task::{Event, Waiter, let_others_run, spawn};
pub use tls::{ClientTls, ServerTls, TlsError};
pub(crate) use tls::{pem_roots, system_roots};
pub(crate) use watch::Watch;
