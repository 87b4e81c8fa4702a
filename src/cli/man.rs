//! `tokentriage man` and `tokentriage completions`: both written from the command tree, so they cannot fall behind it.

use super::{CompletionsArgs, Failure, ManArgs, Outcome, command, print};

pub fn completions(args: &CompletionsArgs) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command(), "tokentriage", &mut script);
    print(&String::from_utf8_lossy(&script))
}

pub fn pages(args: &ManArgs) -> Outcome {
    match &args.dir {
        Some(dir) => {
            let failed = |error| Failure::Runtime(format!("{}: {error}", dir.display()));
            std::fs::create_dir_all(dir).map_err(failed)?;
            clap_mangen::generate_to(command(), dir).map_err(failed)?;
            print(&format!("wrote the man pages to {}\n", dir.display()))
        }
        None => {
            let mut page = Vec::new();
            let rendered = clap_mangen::Man::new(command()).render(&mut page);
            rendered.map_err(|error| Failure::Runtime(error.to_string()))?;
            print(&String::from_utf8_lossy(&page))
        }
    }
}
