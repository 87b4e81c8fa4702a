//! Lua scripts by their hash: loaded when a connection opens, loaded again when the server has lost them.
//!
//! [`Line`] is a connection that opens itself and runs batches of such calls. It is for work that can wait its turn
//! (convergence, heartbeats); admissions have their own lane. Knows the scripts of this folder by name and nothing of
//! what they count.

use std::time::Duration;

use super::connection::{Connection, Endpoint, Pipeline, Trouble};
use super::resp::Reply;

/// The scripts that replicas exchange burn and heartbeats with. Each file says what it takes and gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Script {
    Publish,
    Cells,
    Changes,
    Purge,
    Restore,
    Beat,
    Decommission,
}

impl Script {
    pub const ALL: [Script; 7] = [
        Script::Publish,
        Script::Cells,
        Script::Changes,
        Script::Purge,
        Script::Restore,
        Script::Beat,
        Script::Decommission,
    ];

    pub const fn text(self) -> &'static str {
        match self {
            Script::Publish => include_str!("publish.lua"),
            Script::Cells => include_str!("cells.lua"),
            Script::Changes => include_str!("changes.lua"),
            Script::Purge => include_str!("purge.lua"),
            Script::Restore => include_str!("restore.lua"),
            Script::Beat => include_str!("beat.lua"),
            Script::Decommission => include_str!("decommission.lua"),
        }
    }
}

/// One run of one script.
#[derive(Clone, Debug)]
pub struct Call {
    pub script: Script,
    pub keys: Vec<Vec<u8>>,
    pub args: Vec<Vec<u8>>,
}

/// A connection that opens itself when it is needed and is thrown away when anything is wrong with it.
pub struct Line {
    endpoint: Endpoint,
    open: Option<Open>,
}

struct Open {
    connection: Connection,
    /// In the order of [`Script::ALL`].
    hashes: Vec<Vec<u8>>,
}

impl Line {
    /// Opens nothing.
    pub fn new(endpoint: Endpoint) -> Line {
        Line { endpoint, open: None }
    }

    /// Runs the calls as one pipeline and gives their answers in order; an answer may be an error of the server's.
    /// Waits at most `within`, for opening and a second attempt at forgotten scripts together.
    pub async fn run(&mut self, calls: &[Call], within: Duration) -> Result<Vec<Reply>, Trouble> {
        let outcome = tokio::time::timeout(within, self.run_unbounded(calls, within)).await;
        let outcome = outcome.unwrap_or(Err(Trouble::TimedOut(within)));
        if outcome.is_err() {
            self.open = None; // a late answer would be taken for that of another call
        }
        outcome
    }

    /// One plain command, such as INFO, under the same rules.
    pub async fn command(&mut self, parts: &[&[u8]], within: Duration) -> Result<Reply, Trouble> {
        let outcome = tokio::time::timeout(within, async {
            let open = self.opened(within).await?;
            let mut commands = Pipeline::new();
            commands.push(parts);
            let replies = open.connection.call(&commands, within).await?;
            replies.into_iter().next().ok_or(Trouble::Closed)
        });
        let outcome = outcome.await.unwrap_or(Err(Trouble::TimedOut(within)));
        if outcome.is_err() {
            self.open = None;
        }
        outcome
    }

    async fn run_unbounded(&mut self, calls: &[Call], within: Duration) -> Result<Vec<Reply>, Trouble> {
        let open = self.opened(within).await?;
        let mut replies = open.call(calls, within).await?;
        let forgotten: Vec<usize> = (0..replies.len()).filter(|at| is_forgotten(&replies[*at])).collect();
        if forgotten.is_empty() {
            return Ok(replies);
        }
        // SCRIPT FLUSH, or a server that was restarted behind a proxy. What it forgot it did not run.
        open.hashes = hashes(open.connection.call(&loads(), within).await?)?;
        let again: Vec<Call> = forgotten.iter().filter_map(|at| calls.get(*at).cloned()).collect();
        for (at, reply) in forgotten.into_iter().zip(open.call(&again, within).await?) {
            replies[at] = reply;
        }
        Ok(replies)
    }

    async fn opened(&mut self, within: Duration) -> Result<&mut Open, Trouble> {
        if self.open.is_none() {
            let (connection, replies) = Connection::open(&self.endpoint, &loads(), within).await?;
            self.open = Some(Open { connection, hashes: hashes(replies)? });
        }
        self.open.as_mut().ok_or(Trouble::Closed)
    }
}

impl Open {
    async fn call(&mut self, calls: &[Call], within: Duration) -> Result<Vec<Reply>, Trouble> {
        let mut commands = Pipeline::new();
        for call in calls {
            let at = Script::ALL.iter().position(|script| *script == call.script).unwrap_or_default();
            let hash = self.hashes.get(at).map_or(&[][..], Vec::as_slice);
            let keys = call.keys.len().to_string();
            let mut parts: Vec<&[u8]> = vec![b"EVALSHA", hash, keys.as_bytes()];
            parts.extend(call.keys.iter().chain(&call.args).map(Vec::as_slice));
            commands.push(&parts);
        }
        self.connection.call(&commands, within).await
    }
}

fn loads() -> Pipeline {
    let mut commands = Pipeline::new();
    for script in Script::ALL {
        commands.push(&[b"SCRIPT", b"LOAD", script.text().as_bytes()]);
    }
    commands
}

fn hashes(replies: Vec<Reply>) -> Result<Vec<Vec<u8>>, Trouble> {
    let hash = |reply: Reply| match reply {
        Reply::Bulk(hash) | Reply::Status(hash) => Ok(hash),
        other => Err(Trouble::Refused(other.error().unwrap_or_else(|| "SCRIPT LOAD gave no hash".to_owned()))),
    };
    replies.into_iter().map(hash).collect()
}

fn is_forgotten(reply: &Reply) -> bool {
    matches!(reply, Reply::Error(text) if text.starts_with(b"NOSCRIPT"))
}
