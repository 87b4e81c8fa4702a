//! The load harness of TokenTriage: measures it, and other gateways, the same way on one machine.
//!
//! It shares no HTTP code with the gateway, so that it cannot share its faults. Start reading at `run`.

mod builds;
mod cli;
mod compare;
mod folder;
mod load;
mod machine;
mod measure;
mod outcome;
mod process;
mod provider;
mod redis;
mod report;
mod results;
mod rows;
mod run;
mod say;
mod scenario;
mod smoke;
mod stats;
mod stop;
mod sys;
mod syscalls;
mod targets;
mod trouble;
mod wire;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;

use cli::{Cli, Command, Common, MockArgs};
use machine::Machine;
use report::{html, table};
use results::{FORMAT, Results};
use run::{Options, Progress};
use scenario::Scenario;
use targets::Spec;
use trouble::{Result, Trouble, While, trouble};

fn main() -> ExitCode {
    match command(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(trouble) => {
            say::aside(&format!("bench: {trouble}\n"));
            stop::exit_code().map_or(ExitCode::FAILURE, ExitCode::from)
        }
    }
}

fn command(command: Command) -> Result<()> {
    sys::raise_descriptor_limit();
    match command {
        Command::Run(args) => record(args.scenarios.iter().map(String::as_str), &args.common),
        Command::Table(common) => record(scenario::RECORD.iter().copied(), &common),
        Command::Peers(args) => {
            let peers_folder = options(&args.common)?.peers_folder;
            if args.install {
                targets::install(&peers_folder)?;
            }
            record(["peers"], &args.common)
        }
        Command::Smoke(common) => {
            stop::listen()?;
            smoke::configurations(&options(&common)?.binary)?;
            smoke::judge(&measure_named(["smoke"], &common)?)?;
            say::result("smoke: everything works\n");
            Ok(())
        }
        Command::Compare(args) => {
            let (text, moved) = compare::compare(&Results::read(&args.old)?, &Results::read(&args.new)?)?;
            say::result(&text);
            if args.fail && moved > 0 { Err(Trouble(format!("{moved} measures moved"))) } else { Ok(()) }
        }
        Command::Report(args) => {
            let runs = args.results.iter().map(|path| Results::read(path)).collect::<Result<Vec<_>>>()?;
            if let Some(path) = &args.html {
                write_page(path, &runs)?;
            }
            say::result(&table::ratios(runs.iter().flat_map(|run| &run.scenarios)));
            Ok(())
        }
        Command::Scenarios => {
            for (name, text) in scenario::BUILT_IN {
                say::result(&format!("{name:<16} {}\n", Scenario::parse(name, text)?.about));
            }
            Ok(())
        }
        Command::Targets => {
            say::result(&targets());
            Ok(())
        }
        Command::Mock(args) => mock(&args),
    }
}

fn targets() -> String {
    let mut text = String::from(
        "direct     the mock provider without a gateway\n\
         plain      ours with governance off\n\
         governed   ours with a key and five limits\n",
    );
    for peer in targets::PEERS {
        text += &format!("{:<10} {}\n", peer.name, peer.about);
    }
    text += "http://HOST:PORT[/PATH]  something that runs already\n\noptions, as in governed+limits=20+driver=epoll:\n";
    for targets::TargetOption { name, whose, about, .. } in targets::OPTIONS {
        text += &format!("  {name:<11} {whose:<18} {about}\n");
    }
    text
}

fn write_page(path: &Path, runs: &[Results]) -> Result<()> {
    std::fs::write(path, html::page(runs)).whilst(|| format!("cannot write {}", path.display()))
}

/// Runs scenarios for their numbers; an error when there are none.
fn record<'a>(names: impl IntoIterator<Item = &'a str>, common: &Common) -> Result<()> {
    outcome::judge(&measure_named(names, common)?, &common.only, &common.also)
}

/// Runs scenarios and prints what they found, each as soon as it is known.
fn measure_named<'a>(names: impl IntoIterator<Item = &'a str>, common: &Common) -> Result<Results> {
    let mut options = options(common)?;
    let scenarios = names.into_iter().map(|name| run::chosen(Scenario::find(name)?, &options));
    let scenarios = scenarios.collect::<Result<Vec<_>>>()?;
    let has_cell = |word: &&String| scenarios.iter().flat_map(|of| &of.cells).any(|cell| cell.name.contains(*word));
    if let Some(word) = options.only.iter().find(|word| !has_cell(word)) {
        return trouble(format!("--only {word}: no cell has this in its name"));
    }
    for path in common.json.iter().chain(&common.html) {
        results::check_writable(path)?;
    }
    let targets = scenarios.iter().flat_map(|scenario| &scenario.cells).map(|cell| &cell.target);
    let specs = targets.map(|target| Spec::parse(target)).collect::<Result<Vec<_>>>()?;
    let ours = specs.iter().filter(|spec| spec.is_ours());
    let builds = builds::of(ours.map(|spec| targets::binary(spec, &options.binary, &options.counting_binary)));
    if !specs.iter().any(Spec::is_elsewhere) {
        // Before the first thread. No firewall rule and no connection tracking of the host is measured then, and nobody
        // outside can reach what is started. Where it is refused, the run says so.
        options.is_private_network = sys::enter_private_network().is_ok();
    }
    stop::listen()?;
    folder::remove_left_behind();
    let progress = Progress::new();
    let machine = Machine::here();
    progress.line(&machine.describe());
    builds.iter().for_each(|build| progress.line(&build.describe()));
    if !options.is_private_network {
        progress.line("in the host's own network: its firewall rules are measured too");
    }
    let began = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let began_s = began.map_or(0, |since| since.as_secs());
    let mut results = Results { format: FORMAT, began_s, machine, builds, scenarios: Vec::new() };
    for scenario in &scenarios {
        let result = match run::scenario(scenario, &options, &progress) {
            Err(_) if stop::is_asked() => break,
            result => result?,
        };
        let notes = result.notes.join("; ");
        let (cells, facts, warnings) = (table::cells(&result), table::facts(&result), table::warnings(&result));
        let text = format!("\n{}: {notes}\n{cells}\n{facts}{warnings}", result.name);
        results.scenarios.push(result);
        // After each, so that an interrupted run leaves what it has.
        if let Some(path) = &common.json {
            results.write(path)?;
        }
        if let Some(path) = &common.html {
            write_page(path, std::slice::from_ref(&results))?;
        }
        // After the files: nobody may be left to print for.
        say::result(&text);
        if stop::is_asked() {
            break;
        }
    }
    let ratios = table::ratios(&results.scenarios);
    if !ratios.is_empty() {
        say::result(&format!("\n{ratios}\n"));
    }
    if stop::is_asked() {
        progress.clear();
        let left = if results.scenarios.is_empty() { "nothing was measured" } else { "what was measured stands above" };
        return trouble(format!("interrupted; {left}"));
    }
    Ok(results)
}

fn options(common: &Common) -> Result<Options> {
    let here = std::env::current_exe().whilst(|| "this program's own path".to_owned())?;
    let beside = here.parent().unwrap_or(Path::new("."));
    let target = beside.parent().unwrap_or(Path::new("."));
    if let Some(path) = common.binary.as_ref().filter(|path| !path.is_file()) {
        return trouble(format!("--binary {}: there is no such file", path.display()));
    }
    let given_keys = match &common.keys {
        None => None,
        Some(path) => {
            let text = std::fs::read_to_string(path).whilst(|| format!("cannot read {}", path.display()))?;
            let keys: Vec<String> = text.lines().map(str::trim).filter(|k| !k.is_empty()).map(str::to_owned).collect();
            if keys.is_empty() {
                return Err(Trouble(format!("{} holds no key", path.display())));
            }
            Some(Arc::from(keys))
        }
    };
    Ok(Options {
        rounds: common.rounds,
        window_ms: common.window_ms,
        only: common.only.clone(),
        also: common.also.clone(),
        binary: common.binary.clone().unwrap_or_else(|| beside.join("tokentriage")),
        counting_binary: target.join("counting").join("release").join("tokentriage"),
        peers_folder: target.join("bench-peers"),
        given_keys,
        is_private_network: false,
    })
}

fn mock(args: &MockArgs) -> Result<()> {
    let settings = provider::Settings {
        delay_us: args.delay_us,
        chunks: args.chunks,
        gap_us: args.gap_us,
        ..provider::Settings::default()
    };
    let provider = provider::Provider::start_at(args.listen, &settings, args.threads.max(1), &sys::usable_cpus())
        .whilst(|| format!("cannot listen on {}", args.listen))?;
    say::result(&format!("mock provider on http://{}/v1\n", provider.addr));
    provider.join();
    Ok(())
}
