//! The context of every command: the configuration, the target, the terminal.

use anyhow::Result;

use super::{
    beside::Beside,
    connect::{Connection, Start, Target},
    terminal::Terminal,
};
use crate::{clock::Clock, config::Config};

/// The context of every command.
#[derive(Clone)]
pub struct Context {
    /// The configuration.
    pub config: Config,
    /// The configuration of other blueprints than the one that the command line is about.
    pub beside: Beside,
    /// The address of the daemon.
    pub target: Target,
    /// The outputs.
    pub terminal: Terminal,
    /// The clock for ages.
    pub clock: Clock,
}

impl Context {
    /// Does `work` with a daemon, and ends the daemon if it was opened for it.
    ///
    /// # Errors
    /// No daemon, or what `work` runs into.
    pub async fn with<T>(
        &self,
        start: Start,
        work: impl AsyncFnOnce(&Connection) -> Result<T>,
    ) -> Result<T> {
        let at = Connection::open(&self.target, &self.config, start, self.terminal).await?;
        let done = tokio::select! {
            done = work(&at) => done,
            lost = at.lost() => Err(lost.into()),
        };
        at.close().await;
        done
    }
}
