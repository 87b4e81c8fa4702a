//! The command line: what can be typed, and what each command ends with.
//!
//! Commands that need nothing but the configuration live in the modules below. The others are carried out by parts
//! of the program this module does not know; the binary hands them in as [`Bodies`]. Human output goes to stdout,
//! diagnostics and logs to stderr. Exit codes are those of [`Failure::exit_code`].

mod args;
mod fleet;
mod init;
pub mod keys;
mod man;
pub mod query;
mod remote;
mod schema;
mod table;
mod validate;

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

pub use args::*;

use crate::config::Errors;
use crate::log;

/// How a command ends that does not wholly succeed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The configuration is wrong. Shown with snippets.
    #[error("{0}")]
    Config(Box<Errors>),
    /// What was asked for cannot be done as asked.
    #[error("{0}")]
    Refused(String),
    /// It could, and went wrong.
    #[error("{0}")]
    Runtime(String),
    /// It was done and printed, and something is missing from it.
    #[error("{0}")]
    Partial(String),
    /// The reader of our output has gone, as `| head` does. Nothing to say, and to nobody.
    #[error("output closed")]
    OutputClosed,
}

pub type Outcome = Result<(), Failure>;

impl From<Errors> for Failure {
    fn from(errors: Errors) -> Self {
        Failure::Config(Box::new(errors))
    }
}

impl Failure {
    /// 1 for what the operator can correct in a file or a command, 2 for what went wrong, 3 for an answer that is not all
    /// of it: a script must not book it as if it were.
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::Config(_) | Failure::Refused(_) => 1,
            Failure::Runtime(_) => 2,
            Failure::Partial(_) => 3,
            Failure::OutputClosed => 0,
        }
    }
}

/// The commands that other parts of the program carry out.
pub struct Bodies {
    pub run: fn(RunArgs) -> Outcome,
    pub keys: fn(KeysArgs) -> Outcome,
    pub query: fn(QueryArgs) -> Outcome,
    pub mock: fn(MockArgs) -> Outcome,
}

/// Parses the command line, sets up the log, carries out the command and says what went wrong.
pub fn main(bodies: &Bodies) -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // `--help` and `--version` arrive here as well and are no error.
            let _ = error.print(); // with stderr closed there is nobody to tell
            return if error.use_stderr() { ExitCode::from(1) } else { ExitCode::SUCCESS };
        }
    };
    // Held to the end: dropping it writes out what is still queued.
    let log = match log::init(cli.global.log_format, cli.global.log_level.as_deref()) {
        Ok(log) => log,
        Err(why) => return ended(Err(Failure::Refused(why))),
    };
    let outcome = match cli.command {
        Command::Run(args) => (bodies.run)(args),
        Command::Keys(args) => (bodies.keys)(args),
        Command::Query(args) => (bodies.query)(args),
        Command::Mock(args) => (bodies.mock)(args),
        Command::Fleet(args) => fleet::run(args),
        Command::Validate(args) => validate::run(&args),
        Command::Init(args) => init::run(&args),
        Command::Schema => schema::run(),
        Command::Completions(args) => man::completions(&args),
        Command::Man(args) => man::pages(&args),
        Command::Version => print(&command().render_version()),
    };
    drop(log);
    ended(outcome)
}

fn ended(outcome: Outcome) -> ExitCode {
    let Err(failure) = outcome else { return ExitCode::SUCCESS };
    let text = match &failure {
        Failure::Config(errors) => {
            let count = errors.error_count();
            let plural = if count == 1 { "error" } else { "errors" };
            format!("{}\n{}: {count} {plural}\n", errors.render(color()), errors.source.name)
        }
        Failure::OutputClosed => String::new(),
        Failure::Partial(what) => format!("warning: {what}\n"),
        failure => format!("error: {failure}\n"),
    };
    let _ = io::stderr().write_all(text.as_bytes()); // with stderr closed the exit code has to do
    ExitCode::from(failure.exit_code())
}

/// Whether diagnostics may be coloured: on a terminal, unless `NO_COLOR` asks for none.
pub fn color() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !refused && io::stderr().is_terminal()
}

/// Writes human output. A reader that has gone ends the command quietly.
pub fn print(text: &str) -> Outcome {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::OutputClosed,
        _ => Failure::Runtime(format!("stdout: {error}")),
    })
}

/// The whole command tree, for completions and man pages.
pub fn command() -> clap::Command {
    Cli::command()
}
