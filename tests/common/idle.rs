//! The idle check that ends every case: nothing is held, nothing is lost, the next request is served.

use std::time::{Duration, Instant};

use super::bodies::{CHAT, chat};
use super::gateway::Gateway;
use super::http::{Request, exchange};
use super::ledger::Row;
use super::me::Me;
use super::wait::{PROMPTLY, until};

/// What a gateway may grow by between its start and its idle check, unless the case explains more: buffers and
/// pools that are kept, in MiB.
const RSS_GROWTH_MIB: u64 = 64;

impl Gateway {
    /// The in-flight gauges are at 0, tpm has back what was not used, the process lives and has not panicked, the
    /// next plain CHAT is 200 and memory has not grown.
    #[track_caller]
    pub fn idle_check(&self) {
        self.idle_check_allowing(RSS_GROWTH_MIB);
    }

    /// The same for a case that explains a growth of memory.
    #[track_caller]
    pub fn idle_check_allowing(&self, rss_growth_mib: u64) {
        assert!(self.process.exited().is_none(), "the gateway ended by itself");
        until("nothing in flight", PROMPTLY, || self.metrics().sum("tokentriage_inflight") == Some(0.0));
        self.wait_limits_at_rest();
        // a key of its own, on a node no case limits: K1's budget may be spent
        let key = self.mint("org:idle-check");
        self.post(&key, CHAT, &chat("mock")).expect(200);
        let log = self.log_text();
        assert!(!log.contains("panicked"), "a task panicked:\n{log}");
        let growth_kib = self.process.memory_kib("VmRSS").saturating_sub(self.rss_at_start_kib);
        assert!(growth_kib <= rss_growth_mib * 1024, "memory grew by {growth_kib} KiB since the start");
    }

    #[track_caller]
    fn wait_limits_at_rest(&self) {
        let deadline = Instant::now() + PROMPTLY;
        while let Err(held) = self.limits_at_rest() {
            assert!(Instant::now() < deadline, "{held}");
            std::thread::sleep(Duration::from_millis(5)); // the pause between two looks
        }
    }

    /// `Err` says what is still held.
    fn limits_at_rest(&self) -> Result<(), String> {
        let keys = self.minted.lock().unwrap().clone();
        for key in keys {
            // a rate that refuses the caller may refuse this question as well, and an expired key is no caller
            let answer = exchange(self.addr, &Request::get("/tt/v1/me").key(&key.secret));
            if answer.status != 200 {
                continue;
            }
            for limit in Me(answer.json()).limits() {
                if limit.kind() == "concurrency" && limit.live() != 0 {
                    return Err(format!("a lease is still held: {}", limit.0));
                }
                if limit.kind() == "tpm" {
                    // every debit is a row's usage, so a reserve that did not come back shows
                    let used: u64 = self.rows().iter().map(Row::tokens).sum();
                    if limit.remaining() + (used as f64) < limit.amount() {
                        return Err(format!("a reserve is still held, {used} tokens were used: {}", limit.0));
                    }
                }
            }
        }
        Ok(())
    }
}
