//! A stop that somebody asked for: the first SIGINT or SIGTERM ends the window under way, takes down what was started and
//! keeps what was measured; a second one ends the program at once.
//!
//! Without `listen`, a signal ends the program as it ends any other.

use std::time::Duration;

use crate::sys;
use crate::trouble::{Result, trouble};

/// From now on a signal asks for a stop. May be called again.
pub fn listen() -> Result<()> {
    match sys::catch_stop_signals() {
        Ok(()) => Ok(()),
        Err(error) => trouble(format!("cannot catch signals: {error}")),
    }
}

pub fn is_asked() -> bool {
    sys::stop_signal().is_some()
}

/// An error when a stop was asked for. Who gets it passes it on; what is kept is decided at the top.
pub fn check() -> Result<()> {
    if is_asked() { trouble("stopped by a signal") } else { Ok(()) }
}

/// Waits, but not beyond a stop.
pub fn sleep(duration: Duration) {
    sys::sleep_until_stop(duration);
}

/// The exit code of a program that a signal stopped.
pub fn exit_code() -> Option<u8> {
    u8::try_from(128 + sys::stop_signal()?).ok()
}
