//! The only place that knows monoio: drivers, tasks, timers, and sockets that wait for readiness.
//!
//! The rule that everything here serves: **a read, accept or connect that was handed to the kernel is never
//! dropped** while its connection lives, because under io_uring the bytes or the descriptor it completes with would be
//! lost. An operation belongs to its socket, not to the call that began it: who stops waiting leaves it where it is, and
//! who asks next takes it over. Deadlines, client-gone detection and shutdown race the wait, never the operation.
//!
//! The one exception is [`Socket::poll_read`], for a connection that is closed whenever its read is not awaited to the
//! end: an upstream's while it answers. It reads straight into the caller's buffer.

mod accept;
mod alarm;
mod buffers;
mod driver;
mod epoll;
mod socket;
mod stream;
mod task;
mod tls;
mod uring;

pub use accept::{Listener, StopAccepting};
pub use alarm::{Alarm, sleep};
pub use buffers::{free_unneeded, give_buffer, take_buffer};
pub use driver::{DriverChoice, DriverError, DriverInUse, DriverKind, run_core};
pub use socket::{Beside, Fill, Socket, read_beside};
pub use task::{Event, let_others_run, spawn};
pub use tls::{ClientTls, ServerTls, TlsError};
pub(crate) use tls::{pem_roots, system_roots};
