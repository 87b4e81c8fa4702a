//! Which builds of our gateway were measured, told by what is in their files.
//!
//! A path says little: the file behind it is another one after the next build. Peers are not looked at; they say their
//! version themselves.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// 48 bits: two builds that somebody compares never share them by chance.
const SHOWN_BYTES: usize = 6;

/// A file of ours that was measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Build {
    pub path: PathBuf,
    /// The first 12 hexadecimal digits.
    pub sha256: String,
}

impl Build {
    /// `None` when the file cannot be read; then it cannot be started either, and its cells say so.
    pub fn of(path: &Path) -> Option<Self> {
        Some(Self { path: path.to_owned(), sha256: digest(File::open(path).ok()?).ok()? })
    }

    pub fn describe(&self) -> String {
        format!("gateway {}, SHA-256 {}…", self.path.display(), self.sha256)
    }
}

/// Each file once, in the order in which cells name them.
pub fn of<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Vec<Build> {
    let mut builds: Vec<Build> = Vec::new();
    for path in paths {
        if !builds.iter().any(|build| build.path == path) {
            builds.extend(Build::of(path));
        }
    }
    builds
}

fn digest(mut file: impl Read) -> io::Result<String> {
    let mut hash = Sha256::new();
    let mut piece = vec![0; 256 * 1024];
    loop {
        match file.read(&mut piece)? {
            0 => break,
            count => hash.update(&piece[..count]),
        }
    }
    Ok(hash.finalize().iter().take(SHOWN_BYTES).map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_is_known_by_its_bytes_and_a_missing_one_is_left_out() {
        assert_eq!(digest(&b"abc"[..]).unwrap(), "ba7816bf8f01"); // the first example of FIPS 180-2
        let here = std::env::current_exe().unwrap();
        let builds = of([here.as_path(), Path::new("/nope"), here.as_path()]);
        assert_eq!(builds.len(), 1);
        assert!(builds[0].describe().contains(&builds[0].sha256));
    }
}
