//! The only place that knows monoio: drivers, tasks, timers, and sockets that wait for readiness.
//!
//! The rule that everything here serves: **a read, accept or connect that was handed to the kernel is never
//! dropped**, because under io_uring the bytes or the descriptor it completes with would be lost. All waiting is
//! therefore done on *readiness* (a poll operation, which consumes nothing and may be dropped at any time), and a
//! read is issued only once its bytes are there. Deadlines, client-gone detection and shutdown race readiness,
//! never a read.
//!
//! The one exception is [`Socket::read`], for a connection that is closed whenever its read is not awaited to the end:
//! an upstream's while it answers. It costs the kernel one operation instead of two for each piece of an answer.

mod alarm;
mod buffers;
mod driver;
mod socket;
mod task;
mod tls;

pub use alarm::{Alarm, sleep};
pub use buffers::{give_buffer, take_buffer};
pub use driver::{DriverChoice, DriverError, DriverInUse, DriverKind, run_core};
pub(crate) use socket::writable;
pub use socket::{Beside, Fill, Socket, read_beside};
pub use task::{Event, spawn};
pub use tls::{ClientTls, ServerTls, TlsError};
pub(crate) use tls::{pem_roots, system_roots};
