//! `bench smoke`: whether the harness and everything it starts work, in a few seconds. No number is judged.

use std::path::Path;

use crate::compare;
use crate::folder::Folder;
use crate::report::html;
use crate::results::Results;
use crate::targets::{self, Spec, Surroundings};
use crate::trouble::{Result, While, trouble};

/// Every shape of configuration that the harness writes.
const CONFIGURATIONS: &[&str] = &[
    "plain",
    "plain+driver=epoll+cores=2",
    "governed",
    "governed+limits=0",
    "governed+limits=1+store=share",
    "governed+limits=20",
    "governed+limits=20+shadow",
    "governed+refuse",
    "governed+sync=always",
    "governed+store=redis",
];

/// The gateway accepts every configuration that we write.
pub fn configurations(binary: &Path) -> Result<()> {
    let folder = Folder::new()?;
    let nobody = targets::free_addr()?;
    for name in CONFIGURATIONS {
        let around = Surroundings {
            provider: nobody,
            folder: folder.path(),
            cpus: &[],
            binary,
            counting_binary: binary,
            keys: 1,
            given_keys: None,
            peers_folder: folder.path(),
            redis: Some(nobody),
            is_private_network: false,
        };
        targets::validate(&Spec::parse(name)?, folder.path(), &around)
            .whilst(|| format!("the gateway does not accept the configuration of {name}"))?;
    }
    Ok(())
}

/// Nothing failed, and every report can be written and read.
pub fn judge(results: &Results) -> Result<()> {
    for cell in results.scenarios.iter().flat_map(|scenario| &scenario.cells) {
        let is_peer = !matches!(cell.target.split('+').next(), Some("direct" | "plain" | "governed"));
        if cell.skipped.is_some() && !is_peer {
            return trouble(format!("{} was skipped: {}", cell.name, cell.skipped.as_deref().unwrap_or_default()));
        }
        // Not whether a window is valid: on a machine that is busy otherwise, nothing may be answered within so short a one.
        for window in &cell.windows {
            let answered = window.measures.get("requests_ever").copied().unwrap_or(0.0);
            if !window.failures.is_empty() || answered == 0.0 {
                return trouble(format!("{}: {answered} answers, and {:?}", cell.name, window.failures));
            }
        }
    }
    let folder = Folder::new()?;
    let file = folder.path().join("smoke.json");
    results.write(&file)?;
    let read = Results::read(&file)?;
    let (text, moved) = compare::compare(results, &read)?;
    if moved > 0 {
        return trouble(format!("a result differs from itself:\n{text}"));
    }
    if !html::page(std::slice::from_ref(&read)).contains("</svg>") {
        return trouble("the report has no plot");
    }
    Ok(())
}
