//! The triggers of the host: what starts by itself, when, and what it did last.

use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use crate::{
    blueprint::{Missed, Trigger, TriggerEvent},
    engine::{
        Caller, EngineError, IdempotencyKey, Made, Page, Program, StartRun, TriggerView, rfc3339,
        verbs::{
            begin::Permit,
            engine::TriggerVerbs,
            trigger_records::{TriggerRecord, id_of},
        },
    },
    protocol::{Code, Json, RunId},
    token::{Need, Verb},
};

/// The maximum number of blueprints that one page looks at.
const MOST_BLUEPRINTS: usize = 500;

/// A trigger of a stored blueprint.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TriggerEntry {
    /// Its id: the same in every version that declares it.
    pub id: String,
    /// The blueprint's name.
    pub blueprint: String,
    /// Its condition, and its next time.
    #[serde(flatten)]
    pub trigger: TriggerView,
    /// The path of the API that a webhook posts to, for a signal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The rule for times or changes that pass while no host runs: `skip`, `once` or `all`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub missed: Option<Missed>,
    /// RFC 3339, UTC: when it last started a run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_at: Option<String>,
    /// The run that it started last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub last_run: Option<RunId>,
    /// The error of the last start, if it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// The number of due times and batches of changes that started no run.
    pub skipped: u64,
    /// RFC 3339, UTC: when it was paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_at: Option<String>,
    /// The subject that paused it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_by: Option<String>,
}

/// A trigger that was found by its id.
struct Found {
    name: String,
    trigger: Trigger,
    view: TriggerView,
}

impl TriggerVerbs<'_> {
    /// Lists the triggers of all blueprints that the token reaches, by blueprint.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, or the store cannot be read.
    pub async fn list(
        self,
        caller: &Caller,
        blueprint: Option<&str>,
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<Page<TriggerEntry>, EngineError> {
        caller.grant.check(Verb::BlueprintRead, &[])?;
        let names = self.reached(caller, Verb::BlueprintRead, blueprint).await?;
        let first = cursor.map_or(0, |it| names.partition_point(|(name, _)| name.as_str() <= it));
        let (mut items, mut next_cursor) = (Vec::new(), None);
        for (at, (name, hash)) in names.iter().enumerate().skip(first) {
            if items.len() >= limit || at - first >= MOST_BLUEPRINTS {
                next_cursor = Some(names[at - 1].0.clone());
                break;
            }
            let records = self.records(name).await?;
            for found in self.declared(name, hash).await {
                let id = id_of(name, &found.trigger);
                let record = records.get(&id).cloned().unwrap_or_default();
                items.push(self.entry(found, id, record));
            }
        }
        Ok(Page { items, next_cursor })
    }

    /// Pauses a trigger: it starts nothing until it is resumed, and what was due then is skipped.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, or there is none.
    pub async fn pause(self, caller: &Caller, id: &str) -> Result<TriggerEntry, EngineError> {
        let (at_ms, by) = (self.engine.shared().clock.now_ms(), caller.subject.clone());
        self.mark(caller, id, |record| {
            if record.paused_ms.is_none() {
                record.paused_ms = Some(at_ms);
                record.paused_by = Some(by.clone());
            }
        })
        .await
    }

    /// Resumes a paused trigger.
    ///
    /// # Errors
    /// As [`TriggerVerbs::pause`].
    pub async fn resume(self, caller: &Caller, id: &str) -> Result<TriggerEntry, EngineError> {
        self.mark(caller, id, |record| (record.paused_ms, record.paused_by) = (None, None)).await
    }

    async fn mark(
        self,
        caller: &Caller,
        id: &str,
        change: impl Fn(&mut TriggerRecord),
    ) -> Result<TriggerEntry, EngineError> {
        let found = self.find(caller, Verb::TriggerPause, id).await?;
        let record = self.record(&found.name, id, change).await?;
        Ok(self.entry(found, id.to_owned(), record))
    }

    /// Starts the run of a trigger now, with the rights of the caller, paused or not. The payload is
    /// that of a signal.
    ///
    /// # Errors
    /// Fails when the caller may not start the blueprint, there is no such trigger, or the run
    /// cannot be started.
    pub async fn fire(
        self,
        caller: &Caller,
        id: &str,
        payload: Json,
        key: Option<IdempotencyKey>,
    ) -> Result<Made, EngineError> {
        let Found { name, trigger, view } = self.find(caller, Verb::RunStart, id).await?;
        let at = rfc3339(self.engine.shared().clock.now_ms());
        let input = |default: Json| trigger.input.clone().unwrap_or(default);
        let (input, facts) = match &trigger.event {
            TriggerEvent::Schedule { schedule, .. } => {
                let facts = json!({
                    "kind": "schedule", "schedule": schedule.text(), "zone": schedule.zone(),
                    "at": at, "missed": false, "fired": true,
                });
                (input(Json::null()), facts)
            }
            TriggerEvent::Watch { watch, .. } => {
                let facts = json!({
                    "kind": "watch", "watch": watch.pattern(), "root": watch.root(), "at": at,
                    "missed": false, "fired": true, "changes": [], "more": 0,
                });
                (input(Json::null()), facts)
            }
            TriggerEvent::Signal(signal) => {
                let facts = json!({
                    "kind": "signal", "signal": signal, "payload": payload.to_value(), "fired": true,
                });
                (input(payload), facts)
            }
        };
        let start = StartRun {
            input,
            trigger: Json::from(&facts),
            // That of a watch is the host's own choice.
            workdir: view.directory,
            tags: trigger.tags.clone(),
            ..StartRun::new(Program::Named(name.clone()))
        };
        let started = self.engine.begin(caller, start, key, None, Permit::Given).await?;
        self.note_start(&name, id, started.run).await;
        self.engine.seen(caller, started.run).await
    }

    /// Refuses a signal whose trigger is paused.
    pub(crate) async fn refuse_paused(
        self,
        name: &str,
        trigger: &Trigger,
    ) -> Result<(), EngineError> {
        let id = id_of(name, trigger);
        let paused = self.records(name).await?.get(&id).is_some_and(|it| it.paused_ms.is_some());
        if !paused {
            return Ok(());
        }
        Err(EngineError::Conflict {
            code: Code::TriggerPaused,
            message: format!("trigger {id} of {name} is paused; `moonswarm triggers resume {id}`"),
        })
    }

    /// Returns the names that a token reaches with a verb, in their order, each with its version.
    async fn reached(
        self,
        caller: &Caller,
        verb: Verb,
        only: Option<&str>,
    ) -> Result<Vec<(String, String)>, EngineError> {
        let names = self.engine.read(|store| store.blueprint_names()).await?;
        let mut names: Vec<_> = names
            .into_iter()
            .filter(|(name, ..)| only.is_none_or(|only| only == name))
            .filter(|(name, ..)| caller.grant.check(verb, &[Need::Blueprint(name)]).is_ok())
            .map(|(name, hash, _)| (name, hash))
            .collect();
        names.sort();
        Ok(names)
    }

    /// Returns the triggers that a version declares; one that does not compile any more has none.
    async fn declared(self, name: &str, hash: &str) -> Vec<Found> {
        let Ok(face) = self.engine.blueprints().face(name, hash).await else {
            return Vec::new();
        };
        let on = &face.on;
        if on.is_empty() {
            return Vec::new();
        }
        let view = self.engine.blueprints().view_stored(name.to_owned(), hash.to_owned(), 0).await;
        let found = on.iter().zip(view.on).map(|(trigger, view)| Found {
            name: name.to_owned(),
            trigger: trigger.clone(),
            view,
        });
        found.collect()
    }

    async fn find(self, caller: &Caller, verb: Verb, id: &str) -> Result<Found, EngineError> {
        caller.grant.check(verb, &[])?;
        for (name, hash) in self.reached(caller, verb, None).await? {
            let mut declared = self.declared(&name, &hash).await.into_iter();
            if let Some(found) = declared.find(|it| id_of(&name, &it.trigger) == id) {
                return Ok(found);
            }
        }
        Err(EngineError::NotFound { what: "trigger", id: id.chars().take(64).collect() })
    }

    fn entry(self, found: Found, id: String, record: TriggerRecord) -> TriggerEntry {
        let Found { name, trigger, view } = found;
        let mut entry = TriggerEntry {
            path: None,
            missed: None,
            last_at: record.last_ms.map(rfc3339),
            last_run: record.last_run,
            last_error: record.last_error,
            skipped: record.skipped,
            paused_at: record.paused_ms.map(rfc3339),
            paused_by: record.paused_by,
            blueprint: name,
            trigger: view,
            id,
        };
        match &trigger.event {
            TriggerEvent::Schedule { missed, .. } | TriggerEvent::Watch { missed, .. } => {
                entry.missed = Some(*missed);
            }
            TriggerEvent::Signal(signal) => {
                entry.path = Some(format!("/v1/blueprints/{}/signals/{signal}", entry.blueprint));
            }
        }
        let newest = self.engine.shared().triggers.last(&entry.id);
        if let Some(last) = newest.filter(|it| record.last_ms.is_none_or(|at| it.at_ms >= at)) {
            entry.last_at = Some(rfc3339(last.at_ms));
            entry.last_run = Some(last.run);
        }
        if entry.paused_at.is_some() {
            entry.trigger.next_at = None;
        }
        entry
    }
}
