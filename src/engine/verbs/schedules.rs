//! Blueprints that start by themselves: at scheduled times, and on a signal to their name.
//!
//! The last time at which a schedule was checked is stored in the database. A run that it starts
//! has an idempotency key of the schedule and the time, so that a crash in between starts none
//! twice. A schedule belongs to the version that the name refers to when it is due.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use crate::engine::{
    Caller, EngineError, IdempotencyKey, Made, Program, StartRun, Started, rfc3339,
    shared::trigger_board::LastStart,
    verbs::begin::Permit,
    verbs::engine::TriggerVerbs,
    verbs::trigger_records::{TRIES, TriggerRecord, id_of},
};
use crate::{
    blueprint::{Missed, Schedule, Trigger, TriggerEvent},
    lua,
    protocol::Json,
    store::{Check, StoreError, Write},
    token::{Grant, Need, Verb},
};

/// A time that is checked later than this was missed, in milliseconds.
const GRACE_MS: u64 = 60_000;
/// The maximum number of runs for missed times of one schedule; earlier times are skipped.
const MOST_MISSED: usize = 100;
/// The maximum delay before the next check, in milliseconds: names may have moved.
const REST_MS: u64 = 10_000;

/// A cache of the host's schedules; initially empty.
#[derive(Default)]
pub struct Schedules {
    /// The triggers of a version, by its hash.
    pub(crate) triggers: HashMap<String, Arc<[Trigger]>>,
}

/// A trigger of a blueprint.
#[derive(Debug, Clone, PartialEq, Serialize, serde::Deserialize, ToSchema)]
pub struct TriggerView {
    /// `schedule`, `signal` or `watch`.
    pub kind: String,
    /// The cron expression, the signal's name, or the pattern of files.
    pub what: String,
    /// The schedule's time zone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// RFC 3339, UTC: when it is due next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_at: Option<String>,
    /// The directory that a pattern is below, where this host watches it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
    /// The reason why files are not watched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

impl TriggerView {
    pub(crate) fn of(trigger: &Trigger, now_ms: u64) -> Self {
        let bare = |kind: &str, what: &str| Self {
            kind: kind.to_owned(),
            what: what.to_owned(),
            zone: None,
            next_at: None,
            directory: None,
            problem: None,
        };
        match &trigger.event {
            TriggerEvent::Schedule { schedule, .. } => Self {
                zone: Some(schedule.zone().to_owned()),
                next_at: schedule.next(now_ms).map(rfc3339),
                ..bare("schedule", schedule.text())
            },
            TriggerEvent::Signal(name) => bare("signal", name),
            TriggerEvent::Watch { watch, .. } => bare("watch", watch.pattern()),
        }
    }
}

/// The outcome of the due times of one schedule.
struct Outcome {
    skipped: u64,
    last: Option<LastStart>,
    error: Option<String>,
}

impl Outcome {
    fn of(skipped: usize) -> Self {
        Self { skipped: skipped as u64, last: None, error: None }
    }

    fn add(&mut self, started: &Result<Started, EngineError>, now: u64) {
        match started {
            Ok(started) => {
                (self.last, self.error) = (Some(LastStart { at_ms: now, run: started.run }), None);
            }
            Err(error) => self.error = Some(error.to_string()),
        }
    }

    fn record(&self, record: &mut TriggerRecord) {
        record.skipped += self.skipped;
        if let Some(last) = self.last {
            record.started(last);
        }
        if self.error.is_some() {
            record.last_error.clone_from(&self.error);
        }
    }
}

impl TriggerVerbs<'_> {
    /// Starts the due runs of all schedules; returns the time of the next check, in Unix
    /// milliseconds.
    ///
    /// # Errors
    /// Fails when the store cannot be read or written. A run that cannot be started is logged and
    /// retried, unless that can never succeed.
    pub async fn run_schedules(self, known: &mut Schedules) -> Result<u64, EngineError> {
        let now = self.engine.shared().clock.now_ms();
        let mut next = now + REST_MS;
        let names = self.engine.read(|store| store.blueprint_names()).await?;
        known.triggers.retain(|kept, _| names.iter().any(|(_, hash, _)| hash == kept));
        let mut schedules = 0;
        for (name, hash, _) in names {
            let triggers = self.triggers(known, &name, &hash).await;
            let is_schedule = |it: &&Trigger| matches!(it.event, TriggerEvent::Schedule { .. });
            let found = triggers.iter().filter(is_schedule).count();
            schedules += i64::try_from(found).unwrap_or(i64::MAX);
            if found > 0 {
                let soon = self.run_schedules_of(&name, &triggers, now).await?;
                next = next.min(soon.unwrap_or(next));
            }
        }
        self.engine.counts().schedules.set(schedules);
        Ok(next.max(now + 1))
    }

    /// Returns the triggers of a version; one that does not compile any more has none.
    pub(crate) async fn triggers(
        self,
        known: &mut Schedules,
        name: &str,
        hash: &str,
    ) -> Arc<[Trigger]> {
        if let Some(triggers) = known.triggers.get(hash) {
            return Arc::clone(triggers);
        }
        let face = self.engine.blueprints().face(name, hash).await.ok();
        let triggers: Arc<[Trigger]> =
            face.map_or_else(Arc::default, |face| face.on.clone().into());
        known.triggers.insert(hash.to_owned(), Arc::clone(&triggers));
        triggers
    }

    /// Starts the due runs of one blueprint. If another process handles the same schedules, no run
    /// is started twice and none is missed: each has an idempotency key of its time, and the slower
    /// process tries again.
    async fn run_schedules_of(
        self,
        name: &str,
        triggers: &[Trigger],
        now: u64,
    ) -> Result<Option<u64>, EngineError> {
        for _ in 0..TRIES {
            match self.run_schedules_as_kept(name, triggers, now).await {
                Err(EngineError::Store(StoreError::Changed { .. })) => {}
                result => return result,
            }
        }
        Ok(Some(now))
    }

    async fn run_schedules_as_kept(
        self,
        name: &str,
        triggers: &[Trigger],
        now: u64,
    ) -> Result<Option<u64>, EngineError> {
        let key = format!("schedules:{name}");
        let stored = {
            let key = key.clone();
            self.engine.read(move |store| store.meta(&key)).await?
        };
        let before: BTreeMap<String, u64> =
            stored.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        let records = self.records(name).await?;
        let (mut after, mut next, mut outcomes) = (BTreeMap::new(), None, Vec::new());
        for trigger in triggers {
            let TriggerEvent::Schedule { schedule, missed } = &trigger.event else { continue };
            let id = format!("{} {}", schedule.text(), schedule.zone());
            // A new schedule begins now; so does one that was checked while the clock was ahead.
            let last = before.get(&id).map_or(now, |last| (*last).min(now));
            let due = due(schedule, last, now);
            let mut done = due.last().copied().unwrap_or(last);
            let trigger_id = id_of(name, trigger);
            let paused = records.get(&trigger_id).is_some_and(|it| it.paused_ms.is_some());
            let chosen = if paused { Vec::new() } else { chosen(&due, *missed, now) };
            let mut result = Outcome::of(due.len() - chosen.len());
            let skipped = self.engine.counts().triggered.of(["schedule", "skipped"]);
            skipped.add(result.skipped);
            for at in chosen {
                let started = self.start_scheduled(name, trigger, schedule, at, now).await;
                result.add(&started, now);
                if let Err(error) = started {
                    tracing::warn!(blueprint = name, schedule = schedule.text(), %error, "could not start a scheduled run");
                    if matches!(
                        error,
                        EngineError::Busy { .. } | EngineError::Store(_) | EngineError::Stopping
                    ) {
                        done = at.saturating_sub(1).max(last);
                        break;
                    }
                }
            }
            after.insert(id, done);
            outcomes.push((trigger_id, result));
            next = next.into_iter().chain(schedule.next(done.max(last))).min();
        }
        if after != before {
            let value = serde_json::to_string(&after).expect("times by name are plain data");
            let unchanged = Check::MetaIs { key: key.clone(), value: stored };
            self.engine.write(vec![unchanged], vec![Write::PutMeta { key, value }]).await?;
            for (id, outcome) in outcomes {
                self.note(name, &id, |record| outcome.record(record)).await;
            }
        }
        Ok(next)
    }

    async fn start_scheduled(
        self,
        name: &str,
        trigger: &Trigger,
        schedule: &Schedule,
        at: u64,
        now: u64,
    ) -> Result<Started, EngineError> {
        let facts = json!({
            "kind": "schedule", "schedule": schedule.text(), "zone": schedule.zone(),
            "at": rfc3339(at), "missed": now.saturating_sub(at) > GRACE_MS,
        });
        let start = StartRun {
            input: trigger.input.clone().unwrap_or_else(Json::null),
            trigger: Json::from(&facts),
            tags: trigger.tags.clone(),
            ..StartRun::new(Program::Named(name.to_owned()))
        };
        let word = format!("{name} {} {} {at}", schedule.text(), schedule.zone());
        let key = IdempotencyKey { route: "schedule", body: word.clone(), key: word };
        self.start_by_itself("schedule", name, start, key).await
    }

    /// Starts a run by a trigger, with the grant of its publisher.
    pub(crate) async fn start_by_itself(
        self,
        what: &str,
        name: &str,
        start: StartRun,
        key: IdempotencyKey,
    ) -> Result<Started, EngineError> {
        let started = self.start_as_published(what, name, start, key).await;
        let outcome = if started.is_ok() { "started" } else { "failed" };
        self.engine.counts().triggered.of([what, outcome]).inc();
        started
    }

    async fn start_as_published(
        self,
        what: &str,
        name: &str,
        start: StartRun,
        key: IdempotencyKey,
    ) -> Result<Started, EngineError> {
        let program = self.engine.program_of(&start.program).await?;
        let publisher = self.engine.blueprints().publisher_of(program.blueprint().hash()).await?;
        let grant = publisher.ok_or_else(|| EngineError::NotFound {
            what: "publisher of blueprint",
            id: program.blueprint().version(),
        })?;
        grant.check(Verb::RunStart, &[Need::Blueprint(name)])?;
        let subject = format!("{what}:{name}");
        let caller = Caller {
            grant: Grant::clone(&grant).into(),
            jti: subject.clone(),
            subject,
            expires_ms: u64::MAX,
            session: None,
            trace: None,
        };
        // The working directory is the host's own: the one that is watched.
        self.engine.begin(&caller, start, Some(key), None, Permit::Given).await
    }

    /// Starts a run for each trigger of a blueprint that waits for this signal.
    ///
    /// # Errors
    /// Fails when the caller lacks permission to start it, it waits for no such signal, or the
    /// trigger is paused.
    pub async fn signal_blueprint(
        self,
        caller: &Caller,
        name: &str,
        signal: &str,
        payload: Json,
        key: Option<IdempotencyKey>,
    ) -> Result<Made, EngineError> {
        caller.grant.check(Verb::RunStart, &[Need::Blueprint(name)])?;
        let program = self.engine.program_of(&Program::Named(name.to_owned())).await?;
        let trigger = waiting(&program, signal).ok_or_else(|| EngineError::NotFound {
            what: "trigger",
            id: match signals(&program).as_slice() {
                [] => format!("{name}/{signal}: no signal starts {name}"),
                known => format!("{name}/{signal}: the signals of {name} are {}", known.join(", ")),
            },
        })?;
        self.refuse_paused(name, trigger).await?;
        let start = StartRun {
            input: trigger.input.clone().unwrap_or_else(|| payload.clone()),
            trigger: Json::from(&json!({
                "kind": "signal", "signal": signal, "payload": payload.to_value(),
            })),
            tags: trigger.tags.clone(),
            ..StartRun::new(Program::Named(name.to_owned()))
        };
        let started = self.engine.start(caller, start, key).await?;
        self.note_start(name, &id_of(name, trigger), started.run).await;
        self.engine.seen(caller, started.run).await
    }
}

fn waiting<'p>(program: &'p lua::Program, signal: &str) -> Option<&'p Trigger> {
    let on = &program.blueprint().definition().on;
    on.iter().find(|it| matches!(&it.event, TriggerEvent::Signal(name) if name == signal))
}

/// The signals that start a blueprint.
fn signals(program: &lua::Program) -> Vec<&str> {
    let on = program.blueprint().definition().on.iter();
    on.filter_map(|it| match &it.event {
        TriggerEvent::Signal(name) => Some(name.as_str()),
        _ => None,
    })
    .collect()
}

/// Returns the times of a schedule after `last` and up to `now`, oldest first; if there are too
/// many, the latest.
fn due(schedule: &Schedule, last: u64, now: u64) -> Vec<u64> {
    let mut due = std::collections::VecDeque::new();
    let mut at = last;
    // A minute is the shortest step: a year has half a million.
    for _ in 0..1_000_000 {
        match schedule.next(at).filter(|next| *next <= now) {
            Some(next) => at = next,
            None => break,
        }
        due.push_back(at);
        if due.len() > MOST_MISSED {
            due.pop_front();
        }
    }
    due.into()
}

/// Returns those of the due times for which a run is started.
fn chosen(due: &[u64], missed: Missed, now: u64) -> Vec<u64> {
    match missed {
        Missed::All => due.to_vec(),
        Missed::Once => due.last().copied().into_iter().collect(),
        Missed::Skip => {
            due.iter().copied().filter(|at| now.saturating_sub(*at) <= GRACE_MS).collect()
        }
    }
}

#[cfg(test)]
mod tests;
