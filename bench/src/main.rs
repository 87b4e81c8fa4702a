//! The load harness of TokenTriage: not written yet. This crate holds its place in the workspace.

use std::process::ExitCode;

fn main() -> ExitCode {
    eprintln!("the load harness is not written yet");
    ExitCode::FAILURE
}
