//! What is known of one request while it lives, and the one place where it ends: settlement and row.
//!
//! Dropping a [`Life`] that was judged and not closed (a panic in a task) still gives everything back and still
//! writes its row, as an error of ours.

use std::rc::Rc;

use compact_str::CompactString;
use io::clock;
use io::http1::FieldKind;
use shards::gate::Passed;
use shards::price::{PriceSource, Terms, cost_of};
use shards::refusal::{Family, Refusal};
use shards::row::{Decision, RefusedBy, RequestId, Row};
use shards::scope::{Endpoint, Node};
use shards::settle::{OutputBound, Settlement};
use shards::units::{MonoNs, NanoUsd, Now};
use shards::usage::{Estimate, Usage, UsageReport, settle_usage};

use super::Asking;
use crate::caller::Caller;
use crate::config::Sync;
use crate::connection::Client;
use crate::core::{Core, Sheet};
use crate::cors::Cors;
use crate::rules::{Route, Upstream};

/// What is to be booked for a request that ends.
pub enum Booking {
    /// Nothing was used: the reserve returns whole.
    Nothing,
    /// What the provider reported, or where it did not, an estimate.
    Used {
        /// The provider's own figures.
        report: Option<UsageReport>,
        /// Tokens of the part of the answer that was seen.
        estimated_output: u64,
    },
}

/// One request.
pub struct Life {
    core: Rc<Core>,
    /// Both clocks at the head.
    pub now: Now,
    /// Replicas that share the limits, read once: both gates and the settlement use the same number.
    pub n_live: u32,
    /// The row as far as it is known.
    pub row: Sheet<Row>,
    /// What the gates took and found.
    pub passed: Sheet<Passed>,
    /// Whose envelope our answers take.
    pub family: Family,
    /// CORS headers for every answer.
    pub cors: Cors,
    /// What a 405 says is allowed.
    pub allow: Option<&'static str>,
    /// The provider may bill for a request that got no answer: the caller must not just send it again.
    pub may_be_billed: bool,
    /// The request's own tokens, estimated.
    pub estimated_input: u64,
    /// What bounds the answer, so far as the body was understood.
    pub bound: OutputBound,
    /// Every byte of the request reached the provider's socket.
    pub sent: bool,
    /// Tokens of the answer's text that was relayed so far, estimated.
    pub relayed_tokens: u64,
    /// Where its price stands; `None` where no table knows one.
    priced_by: Option<Rc<Route>>,
    /// The body was read, so whether a price is known can be said.
    is_understood: bool,
    /// Whether this endpoint uses tokens and money at all.
    metered: bool,
    judged: bool,
    closed: bool,
    /// Monotonic ns since which the gateway is what is waited for; `None` while the provider is. A body is waited for with
    /// the clock running, and what it ran is dropped when the wait is over.
    ours_since_ns: Option<u64>,
    sent_ns: u64,
}

impl Life {
    /// A request whose head was just read.
    pub fn begin(core: &Rc<Core>, client: &Client) -> Self {
        let now = core.now();
        let traceparent = client.head.fields.of_kind(&client.buf, FieldKind::TraceParent).next().and_then(traceparent);
        let mut row = core.take_row();
        row.ts = now.wall;
        row.end = now.wall;
        row.request_id = core.request_id(now.wall);
        row.traceparent = traceparent;
        let mut passed = core.take_passed();
        let n_live;
        (n_live, passed.fleet) = core.shared.fleet_seen(now.mono);
        Life {
            core: core.clone(),
            now,
            n_live,
            row,
            passed,
            family: Family::OpenAi,
            cors: Cors::default(),
            allow: None,
            may_be_billed: false,
            estimated_input: 0,
            bound: OutputBound { cap: None, choices: 1 },
            sent: false,
            relayed_tokens: 0,
            priced_by: None,
            is_understood: false,
            metered: true,
            judged: false,
            closed: false,
            ours_since_ns: Some(now.mono.0),
            sent_ns: 0,
        }
    }

    /// The id on the response and in the row.
    pub fn request_id(&self) -> RequestId {
        self.row.request_id
    }

    /// The caller is known.
    pub fn identified(&mut self, caller: &Caller, endpoint: Endpoint) {
        self.row.node = caller.node.clone();
        self.row.key_id = caller.key_id.clone();
        self.row.endpoint = endpoint;
        self.metered = endpoint != Endpoint::CountTokens;
    }

    /// From here on a row is due.
    pub fn judge(&mut self) {
        self.judged = true;
    }

    /// Whether a row is due.
    pub fn is_judged(&self) -> bool {
        self.judged
    }

    /// Gate A has waited for the shared store: that time is ours, not the body's.
    pub fn store_answered(&mut self) {
        let now_ns = clock::mono_ns();
        self.add_overhead(now_ns);
        self.ours_since_ns = Some(now_ns);
    }

    /// The body came in, or will not: what follows is our time again.
    pub fn body_awaited(&mut self) {
        self.ours_since_ns = Some(clock::mono_ns());
    }

    /// The body was understood.
    pub fn asked(&mut self, asked: &Asking, priced_by: Option<Rc<Route>>) {
        self.priced_by = priced_by;
        self.is_understood = true;
        self.row.model = CompactString::from(asked.model());
        self.row.stream = asked.stream();
        self.estimated_input = asked.input_tokens();
        self.bound = asked.output();
    }

    /// Both gates let it pass.
    pub fn admitted(&mut self) {
        self.row.decision = Decision::Admitted;
    }

    /// A gate refused it, which the caller is told already: the row takes the refusal's node over.
    pub fn refused(&mut self, refusal: &mut Refusal) {
        self.row.decision = Decision::Refused;
        let limit = &refusal.limit;
        let node = std::mem::replace(&mut refusal.node, Node::global());
        self.row.refused_by = Some(RefusedBy { limit_id: limit.id.clone(), node, limit_type: limit.kind });
    }

    /// It is about to be sent to this upstream.
    pub fn upstream(&mut self, upstream: &Upstream) {
        self.row.upstream = Some(upstream.id.clone());
        let now_ns = clock::mono_ns();
        self.add_overhead(now_ns);
        self.sent_ns = now_ns; // for an answer that comes before the request was written to its end
    }

    /// The last byte of the request was written, at that time (monotonic ns).
    pub fn request_sent(&mut self, at_ns: u64) {
        self.sent = true;
        self.sent_ns = at_ns;
    }

    /// The first byte of the answer is here.
    pub fn first_byte(&mut self) {
        let now_ns = clock::mono_ns();
        self.row.first_byte_us = Some(now_ns.saturating_sub(self.sent_ns) / 1_000);
    }

    /// The last byte of the answer is here, or none will come; what is left is our work.
    pub fn last_byte(&mut self) {
        self.ours_since_ns = Some(clock::mono_ns());
    }

    /// Books what the gateway took until now.
    fn add_overhead(&mut self, now_ns: u64) {
        let since_ns = self.ours_since_ns.take();
        self.row.overhead_us += since_ns.map_or(0, |since_ns| now_ns.saturating_sub(since_ns) / 1_000);
    }

    /// Ends the request: books, gives back, writes the row. With `ledger.sync: always` it waits until the row is on
    /// disk, so that the caller's last byte comes after it. `None` books an estimate if the request was sent.
    pub async fn close(&mut self, status: u16, booking: Option<Booking>) {
        let Some(number) = self.settle(status, booking) else { return };
        self.core.ease().await;
        let always = self.core.view().rules.config.ledger.sync == Sync::Always;
        if always {
            self.core.synced(number).await;
        }
    }

    fn settle(&mut self, status: u16, booking: Option<Booking>) -> Option<u64> {
        if self.closed || !self.judged {
            self.closed = true;
            return None;
        }
        self.closed = true;
        let end_ns = clock::mono_ns();
        let booking = booking.unwrap_or(if self.sent {
            Booking::Used { report: None, estimated_output: self.relayed_tokens }
        } else {
            Booking::Nothing
        });
        let (usage, tier, fee) = self.usage(booking);
        let settlement = match usage {
            Some(usage) => Settlement::Used { tokens: usage.total_tokens() },
            None => Settlement::Returned,
        };
        self.passed.held.settle(MonoNs(end_ns), self.n_live, settlement);
        self.passed.held.give_back();
        self.add_overhead(end_ns);

        let row = &mut self.row;
        row.status = status;
        row.usage = usage.unwrap_or_default();
        let terms = Terms { tier: tier.as_deref(), unpriced_fee: fee };
        (row.cost, row.price) = if self.metered && self.is_understood {
            let price = self.priced_by.as_ref().and_then(|route| route.price.as_deref());
            cost_of(price, &row.usage, terms, self.now.wall)
        } else {
            (Some(NanoUsd(0)), PriceSource::Table) // refused unread, or counted tokens, which is free everywhere
        };
        row.shadow = std::mem::take(&mut self.passed.shadow);
        row.suspended = std::mem::take(&mut self.passed.suspended);
        row.reserved_tokens = self.passed.reserved_tokens;
        row.latency_us = end_ns.saturating_sub(self.now.mono.0) / 1_000;
        row.end = shards::units::WallMs(clock::wall_ms().max(row.ts.0));
        self.core.hand_over(row)
    }

    /// What was used, by the provider's word or by estimate; `None` when nothing is booked.
    fn usage(&self, booking: Booking) -> (Option<Usage>, Option<CompactString>, bool) {
        match booking {
            Booking::Used { report, estimated_output } if self.metered => {
                // Leaving early is not free, however short the question.
                let output = self.bound.hold_estimate(estimated_output);
                let estimate = Estimate { input: self.estimated_input.max(1), output };
                let (usage, anomalies) = settle_usage(report.as_ref(), estimate);
                if anomalies.count() > 0 {
                    self.core.metrics.with(|numbers| numbers.usage_anomalies += u64::from(anomalies.count()));
                }
                let (tier, fee) = report.map_or((None, false), |report| (report.tier, report.unpriced_fee));
                (Some(usage), tier, fee)
            }
            _ => (None, None, false),
        }
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        if self.judged && !self.closed {
            let status = if self.row.status == 0 { 500 } else { self.row.status };
            if self.core.cut.is_set() {
                self.last_byte();
            }
            // Cut by a stop that waits no longer, or a bug: an error of ours, so no outcome of the caller's or provider's.
            self.row.decision = Decision::Error;
            self.settle(status, None);
        }
        self.core.give_passed(&mut self.passed);
        self.core.give_row(&mut self.row);
    }
}

/// A well-formed W3C trace context, to be recorded; anything else is only passed on.
fn traceparent(value: &[u8]) -> Option<CompactString> {
    let is_form = value.len() == 55
        && value.iter().enumerate().all(|(at, byte)| match at {
            2 | 35 | 52 => *byte == b'-',
            _ => byte.is_ascii_digit() || (b'a'..=b'f').contains(byte),
        });
    is_form.then(|| std::str::from_utf8(value).ok().map(CompactString::from)).flatten()
}
