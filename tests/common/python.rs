//! Running the official client SDKs, which are Python packages.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::process;

/// The Python that has them. `./dev test` makes one; a test run by hand gets it through `TT_TEST_PYTHON`.
#[track_caller]
pub fn with_sdks() -> PathBuf {
    let made = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../test-venv/bin/python");
    let python = std::env::var_os("TT_TEST_PYTHON").map_or(made, PathBuf::from);
    // found, not imported: importing both takes seconds
    let find = "from importlib.util import find_spec as f; exit(not (f('openai') and f('anthropic')))";
    let check = Command::new(&python).args(["-c", find]).output();
    assert!(
        check.is_ok_and(|output| output.status.success()),
        "{} has no openai and anthropic; `./dev test` makes an environment with both, or make one and set \
         TT_TEST_PYTHON: python3 -m venv target/test-venv && \
         target/test-venv/bin/pip install -r tests/data/requirements.txt",
        python.display()
    );
    python
}

/// Runs one of the scripts under `tests/data`; each prints a line per check and fails by its exit code.
#[track_caller]
pub fn run_sdk(script: &str, env: &[(&str, &str)]) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(script);
    let mut command = Command::new(with_sdks());
    command.arg(&script).envs(env.iter().copied()).env("PYTHONUNBUFFERED", "1");
    let (status, stdout, stderr) = process::run(&mut command, Duration::from_secs(120));
    assert!(status.success(), "{} failed, {status}:\n{stdout}\n{stderr}", script.display());
    stdout
}
