//! Chance that repeats itself: what the simulations are seeded with, and how a seed that failed is named.

#![allow(dead_code)] // each test uses its own part

use std::panic::{RefUnwindSafe, catch_unwind, resume_unwind};

/// Small and good enough; the same seed gives the same run on every machine.
pub struct Dice(pub u64);

impl Dice {
    /// Below `sides`.
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % sides
    }
}

/// `SIM_SEED=17 cargo test …` runs that seed alone.
pub fn only_seed() -> Option<u64> {
    option_env!("SIM_SEED").map(|seed| seed.parse().expect("SIM_SEED is a number"))
}

/// Runs so many seeds, or the one that is asked for, and gives what each came to. A failure names its seed.
pub fn each_seed<T>(count: u64, run: impl Fn(u64) -> T + RefUnwindSafe) -> Vec<T> {
    let seeds = only_seed().map_or(0..count, |seed| seed..seed + 1);
    let named = |seed| {
        catch_unwind(|| run(seed)).unwrap_or_else(|panic| {
            eprintln!("seed {seed}: SIM_SEED={seed} cargo test -p shards --test {}", env!("CARGO_CRATE_NAME"));
            resume_unwind(panic)
        })
    };
    seeds.map(named).collect()
}
