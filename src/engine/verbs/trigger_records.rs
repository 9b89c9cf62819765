//! The stored record of each trigger: its pause, and its last start.
//!
//! A record belongs to the trigger, not to a version of the blueprint: a version that declares the
//! same schedule goes on with it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    blueprint::{Trigger, TriggerEvent},
    engine::{EngineError, shared::trigger_board::LastStart, verbs::engine::TriggerVerbs},
    protocol::RunId,
    store::{Check, StoreError, Write},
};

/// The number of hexadecimal digits of a trigger's id.
const ID_CHARS: usize = 16;
/// The maximum number of tries to change the stored data of triggers, which others may change
/// concurrently.
pub(super) const TRIES: usize = 8;

/// The stored data of a trigger.
#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct TriggerRecord {
    /// When it was paused, in Unix milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_ms: Option<u64>,
    /// The subject that paused it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_by: Option<String>,
    /// When it last started a run, in Unix milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_ms: Option<u64>,
    /// The run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_run: Option<RunId>,
    /// The error of the last start, if it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// The number of due times, or batches of changes, that started no run.
    #[serde(default)]
    pub skipped: u64,
}

impl TriggerRecord {
    /// Records a run that was started.
    pub(crate) fn started(&mut self, start: LastStart) {
        self.last_ms = Some(start.at_ms);
        self.last_run = Some(start.run);
        self.last_error = None;
    }
}

/// The records of a blueprint's triggers, by their ids.
pub(crate) type TriggerRecords = BTreeMap<String, TriggerRecord>;

/// Returns the key of the stored records of a blueprint.
pub(crate) fn key_of(name: &str) -> String {
    format!("triggers:{name}")
}

/// Returns the id of a blueprint's trigger: the same in every version that declares it.
pub(crate) fn id_of(name: &str, trigger: &Trigger) -> String {
    let (kind, what) = match &trigger.event {
        TriggerEvent::Schedule { schedule, .. } => {
            ("schedule", format!("{} {}", schedule.text(), schedule.zone()))
        }
        TriggerEvent::Signal(signal) => ("signal", signal.clone()),
        TriggerEvent::Watch { watch, .. } => ("watch", watch.id()),
    };
    let hash = blake3::hash(format!("{name}\0{kind}\0{what}").as_bytes()).to_hex();
    format!("trg_{}", &hash[..ID_CHARS])
}

impl TriggerVerbs<'_> {
    /// Returns the records of a blueprint's triggers.
    pub(crate) async fn records(self, name: &str) -> Result<TriggerRecords, EngineError> {
        Ok(self.stored_records(name).await?.1)
    }

    async fn stored_records(
        self,
        name: &str,
    ) -> Result<(Option<String>, TriggerRecords), EngineError> {
        let key = key_of(name);
        let stored = self.engine.read(move |store| store.meta(&key)).await?;
        let records = stored.as_deref().and_then(|text| serde_json::from_str(text).ok());
        Ok((stored, records.unwrap_or_default()))
    }

    /// Changes the record of a trigger; nothing is written if it stays as it is.
    ///
    /// # Errors
    /// Fails when the store cannot be read or written, or others change it all the time.
    pub(crate) async fn record(
        self,
        name: &str,
        id: &str,
        change: impl Fn(&mut TriggerRecord),
    ) -> Result<TriggerRecord, EngineError> {
        let key = key_of(name);
        for _ in 0..TRIES {
            let (stored, mut records) = self.stored_records(name).await?;
            let before = records.get(id).cloned().unwrap_or_default();
            let mut after = before.clone();
            change(&mut after);
            if after == before {
                return Ok(after);
            }
            records.insert(id.to_owned(), after.clone());
            let value = serde_json::to_string(&records).expect("records by id are plain data");
            let unchanged = Check::MetaIs { key: key.clone(), value: stored };
            let write = Write::PutMeta { key: key.clone(), value };
            match self.engine.write(vec![unchanged], vec![write]).await {
                Err(EngineError::Store(StoreError::Changed { .. })) => {}
                Err(error) => return Err(error),
                Ok(()) => return Ok(after),
            }
        }
        Err(StoreError::Changed { key }.into())
    }

    /// Records what a trigger did. A record that cannot be written is logged: the runs matter more.
    pub(crate) async fn note(self, name: &str, id: &str, change: impl Fn(&mut TriggerRecord)) {
        if let Err(error) = self.record(name, id, change).await {
            tracing::warn!(blueprint = name, trigger = id, %error, "could not record a trigger");
        }
    }

    /// Records a run that a trigger started.
    pub(crate) async fn note_start(self, name: &str, id: &str, run: RunId) {
        let start = LastStart { at_ms: self.engine.shared().clock.now_ms(), run };
        if self.engine.shared().triggers.started(id, start) {
            self.note(name, id, |record| record.started(start)).await;
        }
    }
}
