//! The command line, with a help text that teaches.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Parser, Subcommand};

/// Measures TokenTriage and other LLM gateways on one machine, one like the other.
///
/// A run starts a mock provider and each gateway, loads them in turn round after round, and says what each cost:
/// requests per second, latency, CPU per request of the gateway's process. It starts everything itself, on free loopback
/// ports, and leaves nothing behind.
#[derive(Debug, Parser)]
#[command(name = "bench", version, max_term_width = 100, arg_required_else_help = true, after_help = EXAMPLES)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "\
Examples:
  bench run steady                          small calls: direct, nginx, ours plain and governed
  bench run steady --only governed,nginx    only these cells
  bench run steady --also http://127.0.0.1:4000 --keys keys.txt
                                            your present gateway beside them, under the same load
  bench run steady --also governed+binary=/tmp/old --json new.json
                                            an older build beside the present one
  bench table --json all.json --html all.html
                                            everything the README states; takes about 20 minutes
  bench compare old.json new.json           what moved beyond noise
";

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run scenarios: built-in ones by name, others by path
    Run(RunArgs),
    /// Run every scenario whose ratios the README states, and print the table of ratios
    Table(Common),
    /// Run the other gateways that are installed beside ours
    Peers(PeersArgs),
    /// Check in a few seconds that everything works, not how fast
    Smoke(Common),
    /// Say what moved beyond noise between two results
    Compare(CompareArgs),
    /// Print the ratios of saved results, and write them as one HTML page
    Report(ReportArgs),
    /// List the scenarios that are built in
    Scenarios,
    /// List targets and their options
    Targets,
    /// Serve the mock provider until interrupted
    Mock(MockArgs),
}

#[derive(Debug, Args)]
pub struct RunArgs {
    /// Scenario names or files
    #[arg(required = true, value_name = "SCENARIO")]
    pub scenarios: Vec<String>,
    #[command(flatten)]
    pub common: Common,
}

#[derive(Clone, Debug, Args)]
pub struct Common {
    /// Measure each cell so often, in turn with the others
    #[arg(long, value_name = "N", value_parser = at_least_one::<u32>)]
    pub rounds: Option<u32>,
    /// How long a window counts, in milliseconds
    #[arg(long, value_name = "MS", value_parser = at_least_one::<u64>)]
    pub window_ms: Option<u64>,
    /// Only cells whose name contains one of these words
    #[arg(long, value_name = "WORD,…", value_delimiter = ',')]
    pub only: Vec<String>,
    /// One more target under the scenario's load; may be repeated
    #[arg(long, value_name = "TARGET")]
    pub also: Vec<String>,
    /// Our gateway [default: `tokentriage` beside this program]
    #[arg(long, value_name = "FILE")]
    pub binary: Option<PathBuf>,
    /// Keys for URL targets, one per line, used in turn
    #[arg(long, value_name = "FILE")]
    pub keys: Option<PathBuf>,
    /// Write the result, every window of it, as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a report with plots as one HTML page that needs nothing else
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct PeersArgs {
    /// First install those that PyPI has (Envoy, LiteLLM, ferrogw) into the target folder
    #[arg(long)]
    pub install: bool,
    #[command(flatten)]
    pub common: Common,
}

#[derive(Debug, Args)]
pub struct CompareArgs {
    #[arg(value_name = "OLD.json")]
    pub old: PathBuf,
    #[arg(value_name = "NEW.json")]
    pub new: PathBuf,
    /// End with an error when something moved
    #[arg(long)]
    pub fail: bool,
}

#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Results of earlier runs, as --json wrote them
    #[arg(required = true, value_name = "FILE.json")]
    pub results: Vec<PathBuf>,
    /// Where to write the page
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct MockArgs {
    /// Where to listen
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:18081")]
    pub listen: std::net::SocketAddr,
    /// Threads, each with a listener of its own
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub threads: usize,
    /// Wait before each answer, in microseconds
    #[arg(long, value_name = "US", default_value_t = 0)]
    pub delay_us: u64,
    /// Frames of a stream
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub chunks: u32,
    /// Pause between two frames, in microseconds
    #[arg(long, value_name = "US", default_value_t = 0)]
    pub gap_us: u64,
}

/// Nothing is measured in no rounds or in no time.
fn at_least_one<T: FromStr + PartialOrd + From<u8>>(text: &str) -> Result<T, String> {
    match text.parse::<T>() {
        Ok(number) if number >= T::from(1) => Ok(number),
        Ok(_) => Err("it must be at least 1".to_owned()),
        Err(_) => Err("not a whole number from 1 on".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_rounds_and_windows_of_no_length_are_refused() {
        let run = |argument: &str| Cli::try_parse_from(["bench", "run", "steady", argument]);
        assert!(run("--rounds=0").unwrap_err().to_string().contains("--rounds <N>': it must be at least 1"));
        assert!(run("--window-ms=0").unwrap_err().to_string().contains("it must be at least 1"));
        assert!(run("--window-ms=-5").unwrap_err().to_string().contains("not a whole number from 1 on"));
        assert!(run("--rounds=1").is_ok());
    }
}
