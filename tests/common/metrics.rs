//! A scrape of `/metrics`: Prometheus text, read just far enough to sum a metric over its labels.

use std::io::Write;
use std::process::{Command, Stdio};

pub struct Metrics {
    /// `(name, labels as written, value)`.
    samples: Vec<(String, String, f64)>,
    pub text: String,
}

/// Every family that `wire.md` names and that a gateway of its own has.
const DOCUMENTED: [&str; 22] = [
    "requests_total",
    "refusals_total",
    "unauthenticated_requests_total",
    "shadow_breaches_total",
    "limit_used_ratio",
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
    "unclean_start",
    "fleet_live",
    "identity_age_seconds",
    "suspended",
    "build_info",
];

impl Metrics {
    /// Everything documented is there, no label names a tenant, and Prometheus' own linter has nothing to say.
    #[track_caller]
    pub fn assert_in_order(&self, tenants: &[&str]) {
        for name in DOCUMENTED {
            assert!(self.has(&format!("tokentriage_{name}")), "no tokentriage_{name} in\n{}", self.text);
        }
        for tenant in tenants {
            assert!(!self.text.contains(tenant), "no tenant ids as labels: {tenant}");
        }
        let promtool = Command::new("promtool")
            .args(["check", "metrics"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut promtool =
            promtool.expect("promtool is not installed; `./dev test` installs it, as does the package prometheus");
        promtool.stdin.take().expect("piped above").write_all(self.text.as_bytes()).expect("promtool reads its input");
        let said = promtool.wait_with_output().expect("promtool ends");
        let complaints = [said.stdout, said.stderr].concat();
        let complaints = String::from_utf8_lossy(&complaints);
        assert!(said.status.success() && complaints.is_empty(), "{complaints}\nof\n{}", self.text);
    }

    #[track_caller]
    pub fn parse(text: &str) -> Self {
        let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        let samples = lines.map(|line| {
            let (name_end, labels_end) = match line.find('{') {
                Some(brace) => (brace, line.rfind('}').map_or(brace, |end| end + 1)),
                None => line.find(' ').map_or((line.len(), line.len()), |space| (space, space)),
            };
            let value = line[labels_end..].split_whitespace().next().and_then(|value| value.parse().ok());
            let value = value.unwrap_or_else(|| panic!("`{line}` is no sample"));
            (line[..name_end].to_owned(), line[name_end..labels_end].to_owned(), value)
        });
        Self { samples: samples.collect(), text: text.to_owned() }
    }

    /// The sum over all label sets; `None` when there is no such metric.
    pub fn sum(&self, name: &str) -> Option<f64> {
        self.sum_where(name, &[])
    }

    /// The sum over the label sets that hold all of `wanted`, such as `code="200"`.
    pub fn sum_where(&self, name: &str, wanted: &[&str]) -> Option<f64> {
        let holds = |labels: &str| wanted.iter().all(|label| labels.contains(label));
        let matching = self.samples.iter().filter(|(n, labels, _)| n == name && holds(labels));
        matching.map(|(_, _, value)| *value).reduce(|a, b| a + b)
    }

    /// A counter that may not have been touched yet.
    pub fn count(&self, name: &str) -> u64 {
        self.sum(name).unwrap_or(0.0) as u64
    }

    pub fn has(&self, name: &str) -> bool {
        self.text.lines().any(|line| line.strip_prefix("# TYPE ").is_some_and(|rest| rest.starts_with(name)))
            || self.samples.iter().any(|(n, _, _)| n.starts_with(name))
    }
}
