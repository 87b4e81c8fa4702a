//! `tokentriage init`: writes the commented starter configuration. Asks nothing, overwrites nothing unasked.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};

use super::{Failure, InitArgs, Outcome, print};
use crate::config::default::STARTER;

pub fn run(args: &InitArgs) -> Outcome {
    let name = args.file.display();
    let mut options = OpenOptions::new();
    options.write(true);
    // `create_new` decides in the kernel, so two runs at once cannot both believe they are first.
    let options = if args.force { options.create(true).truncate(true) } else { options.create_new(true) };
    let mut file = options.open(&args.file).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => {
            Failure::Refused(format!("{name} is there already; name another file, or use --force to overwrite it"))
        }
        _ => Failure::Runtime(format!("{name}: {error}")),
    })?;
    file.write_all(STARTER.as_bytes()).map_err(|error| Failure::Runtime(format!("{name}: {error}")))?;
    print(&format!("wrote {name}\n\nnext:\n  tokentriage validate -c {name}\n  tokentriage run -c {name}\n"))
}
