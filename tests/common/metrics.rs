//! A scrape of `/metrics`: Prometheus text, read just far enough to sum a metric over its labels.

pub struct Metrics {
    /// `(name, labels as written, value)`.
    samples: Vec<(String, String, f64)>,
    pub text: String,
}

impl Metrics {
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
