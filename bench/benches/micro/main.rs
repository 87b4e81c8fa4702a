//! Micro-benchmarks of what a request pays for on its core, piece by piece: `cargo bench -p bench`.
//!
//! Each measures one piece in a tight loop with warm caches, so it is a lower bound; what a request really costs, kernel
//! included, `bench run steady` measures.

mod account;
mod decide;
mod parse;

fn main() {
    divan::main();
}
