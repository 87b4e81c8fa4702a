//! Every command with its arguments. What can be told to be wrong from the text alone is refused here.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use shards::accountant::GroupBy;
use shards::scope::Node;

pub use crate::mock::MockArgs;

use crate::config::{default, units};
use crate::ledger_query;
use crate::when::When;

/// For scripts; also on the man page.
const EXIT_CODES: &str = "Exit codes: 0 done; 1 the configuration or the command line was refused; 2 it failed while \
                          running; 3 the answer was printed and is partial (query --fleet)";

/// An LLM gateway that governs: budgets, quotas, rates and concurrency, per node, with the truth about how exact
/// every number is.
#[derive(Debug, Parser)]
#[command(
    name = "tokentriage",
    version,
    max_term_width = 100,
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = EXIT_CODES
)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Args)]
pub struct Global {
    /// How log lines look on stderr; auto is text on a terminal and JSON elsewhere
    #[arg(long, global = true, value_enum, value_name = "FORMAT", default_value_t = LogFormat::Auto)]
    pub log_format: LogFormat,
    /// Which log lines are written, such as debug or info,tokentriage=debug [default: $TT_LOG, else info]
    #[arg(long, global = true, value_name = "FILTER")]
    pub log_level: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    Auto,
    Json,
    Text,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve
    Run(RunArgs),
    /// Check a configuration completely, without serving it
    Validate(ValidateArgs),
    /// Mint, list and revoke virtual keys
    Keys(KeysArgs),
    /// Show what was used and spent, from the ledger
    Query(QueryArgs),
    /// Show the replicas of the fleet, or remove one that is gone
    Fleet(FleetArgs),
    /// Write a commented starter configuration
    Init(InitArgs),
    /// Print the JSON Schema of the configuration, for editors
    Schema,
    /// Serve a mock OpenAI and Anthropic upstream, for a first run without a provider and for tests
    Mock(MockArgs),
    /// Print completions for a shell
    Completions(CompletionsArgs),
    /// Print the man page, or write one per command into a folder
    Man(ManArgs),
    /// Print the version, as --version does
    Version,
}

/// Which configuration a command reads.
#[derive(Clone, Debug, Default, Args)]
pub struct ConfigArg {
    /// Configuration file [default: ./tokentriage.yaml if there is one, else the built-in configuration]
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// Which running replica a command talks to.
#[derive(Clone, Debug, Args)]
pub struct AdminArg {
    /// Talk to the admin port of a running replica, such as http://127.0.0.1:9090
    #[arg(long, value_name = "URL")]
    pub admin: Option<String>,
    /// Environment variable with the admin token [default: what the configuration names]
    #[arg(long, value_name = "NAME", requires = "admin")]
    pub admin_token_env: Option<String>,
}

/// Where a command finds what it is about: in the configuration's own files and stores, or behind a running replica.
#[derive(Clone, Debug, Args)]
pub struct At {
    #[command(flatten)]
    pub config: ConfigArg,
    #[command(flatten)]
    pub admin: AdminArg,
}

impl At {
    pub fn config(&self) -> Option<&Path> {
        self.config.config.as_deref()
    }
}

/// For programs that read the answer.
#[derive(Clone, Copy, Debug, Args)]
pub struct Output {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct RunArgs {
    #[command(flatten)]
    pub config: ConfigArg,
}

#[derive(Debug, Args)]
pub struct ValidateArgs {
    #[command(flatten)]
    pub config: ConfigArg,
}

#[derive(Debug, Args)]
pub struct KeysArgs {
    #[command(subcommand)]
    pub command: KeysCommand,
}

#[derive(Debug, Subcommand)]
pub enum KeysCommand {
    /// Make a key for a node and show it, this once
    Mint(MintArgs),
    /// List keys, without the keys themselves
    List(ListArgs),
    /// Make a key unusable
    Revoke(RevokeArgs),
}

#[derive(Debug, Args)]
pub struct MintArgs {
    /// Whose key it is, such as org:acme/team:ml/user:dev1
    #[arg(long, value_name = "NODE", value_parser = parse_node)]
    pub node: Node,
    /// A name to recognise it by
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// How long it is valid, such as 30d; for ever when omitted
    #[arg(long, value_name = "DURATION", value_parser = parse_lifetime)]
    pub expires: Option<Duration>,
    #[command(flatten)]
    pub output: Output,
    #[command(flatten)]
    pub at: At,
}

#[derive(Debug, Args)]
pub struct ListArgs {
    #[command(flatten)]
    pub output: Output,
    #[command(flatten)]
    pub at: At,
}

#[derive(Debug, Args)]
pub struct RevokeArgs {
    /// The id that `keys list` shows
    #[arg(value_name = "ID")]
    pub id: String,
    #[command(flatten)]
    pub at: At,
}

#[derive(Debug, Args)]
pub struct QueryArgs {
    /// From when: a duration ago such as 24h, or an instant such as 2026-08-01T00:00:00Z
    #[arg(long, value_name = "WHEN", default_value = "24h")]
    pub since: When,
    /// Until when; now when omitted
    #[arg(long, value_name = "WHEN")]
    pub until: Option<When>,
    /// What each line is about: node (node:org, node:team, node:user), model, upstream, endpoint, key, limit, day, hour
    #[arg(long, value_name = "WHAT,…", value_delimiter = ',', default_value = "node", value_parser = parse_group)]
    pub group_by: Vec<String>,
    /// Only this node and those below it
    #[arg(long, value_name = "NODE", value_parser = parse_node)]
    pub node: Option<Node>,
    /// Only models that fit this glob
    #[arg(long, value_name = "GLOB")]
    pub model: Option<String>,
    /// Ask every replica of the fleet instead of this ledger alone, through --admin or the configuration's own admin port;
    /// ends with exit code 3 when one did not answer, or may be missing because Redis does not say who there is
    #[arg(long)]
    pub fleet: bool,
    #[command(flatten)]
    pub output: Output,
    /// Print CSV
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
    #[command(flatten)]
    pub at: At,
}

#[derive(Debug, Args)]
pub struct FleetArgs {
    #[command(subcommand)]
    pub command: FleetCommand,
}

#[derive(Debug, Subcommand)]
pub enum FleetCommand {
    /// List the replicas a running replica knows
    List(FleetListArgs),
    /// Remove a replica that will not come back: it no longer counts, and neither does what it burned
    Decommission(DecommissionArgs),
}

#[derive(Debug, Args)]
pub struct FleetListArgs {
    #[command(flatten)]
    pub output: Output,
    #[command(flatten)]
    pub at: At,
}

#[derive(Debug, Args)]
pub struct DecommissionArgs {
    /// The name that `fleet list` shows
    #[arg(value_name = "REPLICA")]
    pub replica: String,
    /// Remove it although it is live
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub output: Output,
    #[command(flatten)]
    pub at: At,
}

#[derive(Debug, Args)]
pub struct InitArgs {
    /// The file to write
    #[arg(value_name = "FILE", default_value = default::FILE_NAME)]
    pub file: PathBuf,
    /// Overwrite a file that is there
    #[arg(long)]
    pub force: bool,
}

#[derive(Debug, Args)]
pub struct CompletionsArgs {
    #[arg(value_enum, value_name = "SHELL")]
    pub shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub struct ManArgs {
    /// Write one page per command into this folder
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

fn parse_node(text: &str) -> Result<Node, String> {
    Node::parse(text).map_err(|error| error.to_string())
}

fn parse_group(text: &str) -> Result<String, String> {
    let known = GroupBy::parse(text).map(|_| text.to_owned());
    known.ok_or_else(|| format!("write one of {}", ledger_query::GROUPS))
}

fn parse_lifetime(text: &str) -> Result<Duration, String> {
    match units::parse_duration(text) {
        Ok(Duration::ZERO) => Err("a key that is never valid helps nobody".to_owned()),
        Ok(lifetime) => Ok(lifetime),
        Err(why) => Err(format!("{why}; write {}", units::DURATION_HINT)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parsed(line: &str) -> Result<Command, String> {
        let words = line.split_whitespace();
        Cli::try_parse_from(words).map(|cli| cli.command).map_err(|error| error.to_string())
    }

    #[test]
    fn the_command_tree_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_key_is_minted_for_a_node_that_is_one() {
        let Ok(Command::Keys(KeysArgs { command: KeysCommand::Mint(mint) })) =
            parsed("tokentriage keys mint --node org:acme/team:ml --expires 30d")
        else {
            panic!("not understood")
        };
        assert_eq!(mint.node.as_str(), "org:acme/team:ml");
        assert_eq!(mint.expires, Some(Duration::from_secs(30 * 86_400)));
        assert!(parsed("tokentriage keys mint --node team:ml").unwrap_err().contains("--node"));
        assert!(parsed("tokentriage keys mint --node org:a --expires 0s").is_err());
        assert!(parsed("tokentriage keys mint").is_err());
    }

    #[test]
    fn a_query_takes_durations_instants_and_a_list_of_groups() {
        let Ok(Command::Query(query)) =
            parsed("tokentriage query --since 2026-08-01T00:00:00Z --until 1h --group-by node:team,model,hour")
        else {
            panic!("not understood")
        };
        assert_eq!(query.since, "2026-08-01T00:00:00Z".parse().unwrap());
        assert_eq!(query.until, Some(When::Distance(Duration::from_secs(3_600))));
        assert_eq!(query.group_by, ["node:team", "model", "hour"]);
        assert!(parsed("tokentriage query --group-by node:global").is_err());
        assert!(parsed("tokentriage query --since yesterday").unwrap_err().contains("24h"));
        assert!(parsed("tokentriage query --json --csv").is_err());
    }
}
