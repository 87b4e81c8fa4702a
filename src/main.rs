//! TokenTriage: an LLM gateway that governs. Introduces the commands to the parts that carry them out.

use std::process::ExitCode;

use tokentriage::boot;
use tokentriage::cli::{self, Bodies, Failure, Outcome};

#[cfg(not(feature = "count-allocations"))]
#[global_allocator]
static ALLOCATOR: tokentriage::memory::large::Allocator = tokentriage::memory::large::Allocator;
#[cfg(feature = "count-allocations")]
#[global_allocator]
static ALLOCATOR: tokentriage::allocations::Counting =
    tokentriage::allocations::Counting(tokentriage::memory::large::Allocator);

fn main() -> ExitCode {
    cli::main(&Bodies { run: boot::command, keys: cli::keys::run, query: cli::query::run, mock })
}

fn mock(args: cli::MockArgs) -> Outcome {
    tokentriage::mock::run(&args).map_err(|error| Failure::Runtime(format!("mock: {error}")))
}
