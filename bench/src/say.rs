//! What the harness says: results on stdout, everything else on stderr.
//!
//! Whoever reads may stop at any time, as `head` does. That is no fault, so nothing here panics.

use std::io::{ErrorKind, Write};
use std::process::exit;

/// As a program ends that SIGPIPE ended. The signal itself stays ignored: the load writes to sockets that others close.
const CLOSED: i32 = 128 + libc::SIGPIPE;

/// Prints a result. A reader that has gone wants no more of them, so the program ends; nothing may run that has to be
/// stopped first.
pub fn result(text: &str) {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::BrokenPipe => exit(CLOSED),
        Err(error) => {
            aside(&format!("bench: cannot print: {error}\n"));
            exit(1);
        }
    }
}

/// Prints what goes on. A run goes on without a reader of it.
pub fn aside(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}
