//! Every interleaving of the accountant rolling a period and a gate reading the meter.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p shards --release --test loom_meter`. Compiles to nothing otherwise.
#![cfg(loom)]

use loom::sync::Arc;
use loom::thread;
use shards::meter::{Meter, PeriodSpan};
use shards::units::WallMs;

const JULY: PeriodSpan = PeriodSpan { start: WallMs(7_000), end: WallMs(8_000) };
const AUGUST: PeriodSpan = PeriodSpan { start: WallMs(8_000), end: WallMs(9_000) };

#[test]
fn nobody_in_the_new_period_sees_burn_of_the_old_one() {
    loom::model(|| {
        let meter = Arc::new(Meter::new());
        meter.publish(JULY, 300);
        meter.publish_remote(JULY, 20);
        let accountant = {
            let meter = meter.clone();
            thread::spawn(move || meter.publish(AUGUST, 5))
        };
        let seen = meter.observed(WallMs(8_001));
        assert!(seen == 0 || seen == 5, "{seen} is of July");
        accountant.join().expect("no panic");
        assert_eq!(meter.observed(WallMs(8_001)), 5);
    });
}
