//! Fixes the commit that the harness is built from, so that a result names it wherever and whenever it is measured.
//!
//! `BENCH_COMMIT` is `unknown` without git, or where these files are not of a working copy.

use std::path::Path;
use std::process::Command;

/// What the harness is made of: an edit is what `+` tells of.
const MADE_OF: [&str; 7] = ["build.rs", "src", "peers", "scenarios", "Cargo.toml", "../Cargo.toml", "../Cargo.lock"];

fn main() {
    for path in MADE_OF {
        println!("cargo:rerun-if-changed={path}");
    }
    // HEAD changes when another branch is checked out, its log with each commit.
    for name in ["HEAD", "logs/HEAD"] {
        if let Some(path) = git(&["rev-parse", "--git-path", name])
            && Path::new(&path).exists()
        {
            println!("cargo:rerun-if-changed={path}");
        }
    }
    println!("cargo:rustc-env=BENCH_COMMIT={}", commit().unwrap_or_else(|| "unknown".to_owned()));
}

fn commit() -> Option<String> {
    // An unpacked archive may lie inside a working copy of something else.
    git(&["ls-files", "--error-unmatch", "Cargo.toml"])?;
    let commit = git(&["rev-parse", "--short=10", "HEAD"])?;
    // Without the lock: git would write the index anew, which is not ours to touch.
    let status = ["--no-optional-locks", "status", "--porcelain", "--untracked-files=no"];
    let changed = git(&[&status[..], &MADE_OF].concat());
    let is_changed = changed.is_none_or(|list| !list.is_empty());
    Some(if is_changed { commit + "+" } else { commit })
}

/// What git says here, in the folder of this crate; `None` when it fails.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
