//! `/metrics`: the documented names are there, they count what happened, and Prometheus' own linter likes them.

mod common;

use std::io::Write;
use std::process::{Command, Stdio};

use common::*;

#[test]
fn the_documented_metrics_count_what_happened() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).limit("team_rpm", "rpm", "amount: 3, period: 100h").start();
    let key = gateway.mint(DEV1);
    for _ in 0..2 {
        gateway.post(&key, CHAT, &chat("mock")).expect(200);
    }
    gateway.post(&key, MESSAGES, &message("mock")).expect(200);
    gateway.post(&key, CHAT, &chat("mock")).expect(429);
    gateway.wait_rows(4, SOON);
    let cost_usd = (2 * OPENAI_REPLY_NANOUSD + ANTHROPIC_REPLY_NANOUSD) as f64 / 1e9;
    until("the cost to be counted", SOON, || {
        (gateway.metrics().sum("tokentriage_cost_usd_total").unwrap_or(0.0) - cost_usd).abs() < 1e-12
    });
    let metrics = gateway.metrics();
    let sum = |name: &str, label: &str| metrics.sum_where(&format!("tokentriage_{name}"), &[label]);
    assert_eq!(sum("requests_total", "code=\"200\""), Some(3.0));
    assert_eq!(sum("requests_total", "code=\"429\""), Some(1.0));
    assert_eq!(sum("requests_total", "endpoint=\"messages\""), Some(1.0));
    assert_eq!(sum("refusals_total", "limit=\"team_rpm\""), Some(1.0));
    assert_eq!(sum("dropped_rows_total", "").unwrap_or(0.0), 0.0);
    assert_eq!(sum("request_duration_seconds_count", ""), Some(4.0));
    assert_eq!(sum("upstream_first_byte_seconds_count", ""), Some(3.0));
    let names = [
        "requests_total",
        "refusals_total",
        "request_duration_seconds",
        "gateway_overhead_seconds",
        "upstream_first_byte_seconds",
        "tokens_total",
        "cost_usd_total",
        "inflight",
        "connections",
        "ring_lag_rows",
        "dropped_rows_total",
        "unpriced_rows_total",
        "ledger_write_seconds",
        "ledger_errors_total",
        "build_info",
    ];
    for name in names {
        assert!(metrics.has(&format!("tokentriage_{name}")), "no tokentriage_{name} in\n{}", metrics.text);
    }
    for tenant in ["acme", "dev1", &key.id] {
        assert!(!metrics.text.contains(tenant), "no tenant ids as labels: {tenant}");
    }
    gateway.idle_check();
}

#[test]
fn promtool_finds_nothing_to_say() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).limit("team_rpm", "rpm", "amount: 1, period: 100h").start();
    let key = gateway.mint(DEV1);
    gateway.post(&key, CHAT, &chat("mock")).expect(200);
    gateway.post(&key, CHAT, &chat("mock")).expect(429);
    let text = gateway.metrics().text;
    let promtool =
        Command::new("promtool").args(["check", "metrics"]).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut promtool =
        promtool.expect("promtool is not installed; `./dev test` installs it, as does the package prometheus");
    promtool.stdin.take().expect("piped above").write_all(text.as_bytes()).expect("promtool reads its input");
    let output = promtool.wait_with_output().expect("promtool ends");
    let complaints = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && complaints.is_empty(), "{complaints}\nof\n{text}");
}
