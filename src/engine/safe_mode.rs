//! Taking runs up one at a time, after a host that died again and again.
//!
//! Each run is marked before it is read: a host that dies at it finds the mark at its next start
//! and lets that run rest, unread.

use tokio::sync::oneshot;

use super::{
    Engine, EngineError,
    message::{Msg, RunMsg},
};
use crate::store::Write;

/// Where the mark is kept.
const MARK: &str = "taking_up";
/// Runs that are looked up at once.
const PAGE: usize = 1_000;

impl Engine {
    /// Takes up every run that is due, one after the other, and then lets the shards do so by
    /// themselves. Answers with the runs that were quarantined: those whose mark was found.
    ///
    /// # Errors
    /// When the store cannot be read or written.
    pub async fn take_up_one_by_one(&self) -> Result<Vec<u64>, EngineError> {
        let mut quarantined = Vec::new();
        let marked = self.read(|store| store.meta(MARK)).await?;
        if let Some(run) = marked.and_then(|text| text.parse::<u64>().ok()) {
            let reason = "the host died while it took this run up".to_owned();
            match self.ask(run, |reply| RunMsg::Quarantine { reason, reply }).await {
                Ok(()) => quarantined.push(run),
                Err(EngineError::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
            self.mark(None).await?;
        }
        let shards = self.shared().shards.len() as u64;
        for shard in 0..shards {
            let now_ms = self.shared().clock.now_ms();
            let mut seen = std::collections::HashSet::new();
            loop {
                let due = self.read(move |store| store.due(shard, shards, now_ms, PAGE)).await?;
                let fresh: Vec<u64> =
                    due.iter().map(|(run, _)| *run).filter(|run| seen.insert(*run)).collect();
                if fresh.is_empty() {
                    break;
                }
                for run in fresh {
                    self.mark(Some(run)).await?;
                    self.take_up(run).await;
                    self.mark(None).await?;
                }
            }
        }
        for shard in &self.shared().shards {
            // A shard that is gone has said so in the log.
            let _ = shard.send(Msg::Recover);
        }
        Ok(quarantined)
    }

    async fn take_up(&self, run: u64) {
        let (reply, done) = oneshot::channel();
        self.shared().tell(run, RunMsg::TakeUp(reply));
        match done.await {
            Ok(Ok(())) | Err(_) => {}
            Ok(Err(error)) => tracing::warn!(run, %error, "could not take a run up"),
        }
    }

    /// Keeps a value that the host notes about itself.
    ///
    /// # Errors
    /// When it cannot be stored.
    pub async fn put_meta(&self, key: &str, value: &str) -> Result<(), EngineError> {
        let (key, value) = (key.to_owned(), value.to_owned());
        self.write(Vec::new(), vec![Write::PutMeta { key, value }]).await
    }

    /// Forgets the answers under idempotency keys that are too old to be given again.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub async fn expire_answers(&self) -> Result<(), EngineError> {
        let now_ms = self.shared().clock.now_ms();
        let before_ms = now_ms.saturating_sub(super::receive::IDEMPOTENCY_MS);
        self.write(Vec::new(), vec![Write::ExpireIdempotency { before_ms }]).await
    }

    /// Forgets what layers kept and is not to be used any more.
    ///
    /// # Errors
    /// What the store says.
    pub async fn expire_kept(&self) -> Result<(), EngineError> {
        let before_ms = self.shared().clock.now_ms();
        self.write(Vec::new(), vec![Write::ExpireKept { before_ms }]).await
    }

    async fn mark(&self, run: Option<u64>) -> Result<(), EngineError> {
        let value = run.map_or_else(String::new, |run| run.to_string());
        self.put_meta(MARK, &value).await
    }
}
