//! Entries as events, and subscriptions that miss none of the durable ones.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use tokio::sync::{mpsc, oneshot};

use crate::engine::{
    EngineError, EventView, rfc3339,
    run::readers::{Held, Live, Room, Subscriber},
    shared::message::RunMsg,
    shared::shards::Shared,
    view,
};
use crate::{
    journal::{Decision, Entry, Fact, Note, Outcome},
    memory::Level,
    protocol::{Json, RunId, StepKind, TaskId},
    store::{PAGES, PageMark, StoreError},
};

/// The word of the lossy event that says: read the store.
const SYNC: &str = "sync";

/// A live subscription: durable events from a number on without a gap, lossy ones between.
///
/// The history comes in pages, each read when the one before it was taken. The run is subscribed to
/// before the last page is handed out, so that who has read what there is hears whatever comes next;
/// one that has ended is not subscribed to.
pub struct Events {
    shared: Arc<Shared>,
    run: RunId,
    room: Room,
    live: Option<mpsc::Receiver<Live>>,
    /// What is to be read of the store, the next first.
    pages: VecDeque<PageMark>,
    ready: VecDeque<EventView>,
    /// The room of what is ready.
    held: Option<Arc<Held>>,
    after: u32,
    /// Whether the store is to be looked at.
    behind: bool,
    /// Whether the store has more than `pages`.
    more: bool,
    /// Whether the run had ended when the store was looked at.
    ended: bool,
    over: bool,
}

impl Events {
    pub(crate) fn new(shared: Arc<Shared>, run: RunId, after: u32, jti: &str) -> Self {
        let room = shared.readers.room(jti);
        Self {
            shared,
            run,
            room,
            live: None,
            pages: VecDeque::new(),
            ready: VecDeque::new(),
            held: None,
            after,
            behind: true,
            more: false,
            ended: false,
            over: false,
        }
    }

    /// A subscription to a run that is to begin, and where its events are to be sent.
    pub(crate) fn from_the_first(
        shared: Arc<Shared>,
        jti: &str,
    ) -> (Subscriber, impl FnOnce(RunId) -> Self) {
        let jti = jti.to_owned();
        let (subscriber, live) = Subscriber::new(shared.readers.room(&jti));
        let open =
            move |run| Self { live: Some(live), behind: false, ..Self::new(shared, run, 0, &jti) };
        (subscriber, open)
    }

    /// The next event; none after the run's last.
    ///
    /// # Errors
    /// When the store cannot be read.
    ///
    /// # Cancel safety
    /// May be dropped between two events; what was read stays.
    pub async fn next(&mut self) -> Result<Option<EventView>, EngineError> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                if let Some(seq) = event.seq {
                    self.after = seq;
                    self.over = event.kind == "run.ended";
                }
                return Ok(Some(event));
            }
            self.held = None;
            if self.over {
                return Ok(None);
            }
            let is_last = self.pages.len() <= 1 && !self.more;
            if self.behind {
                self.look().await?;
            } else if self.live.is_none() && is_last && !self.ended {
                self.subscribe().await;
            } else if let Some(page) = self.pages.front().copied() {
                self.read(page).await?;
            } else if self.more {
                self.behind = true;
            } else {
                self.hear().await;
            }
        }
    }

    /// Takes what the run sends.
    async fn hear(&mut self) {
        let live = match &mut self.live {
            Some(live) => live.recv().await,
            None => None,
        };
        match live {
            None => (self.live, self.behind) = (None, true),
            Some(Live { event, held }) => match event.seq {
                None if event.kind == SYNC => self.behind = true,
                Some(seq) if seq <= self.after => {}
                Some(seq) if seq > self.after + 1 => self.behind = true,
                None | Some(_) => {
                    self.ready.push_back(event);
                    self.held = Some(Arc::new(held));
                }
            },
        }
    }

    /// The room that the event which came last takes up, for whoever keeps it while it asks for the
    /// next.
    pub fn held(&self) -> Option<Arc<Held>> {
        self.held.clone()
    }

    async fn subscribe(&mut self) {
        let (subscriber, live) = Subscriber::new(self.room.clone());
        let (reply, subscribed) = oneshot::channel();
        self.shared.tell(self.run.num(), RunMsg::Subscribe(subscriber, reply));
        // A run that cannot be subscribed to has ended: the store has all of it.
        if subscribed.await.is_err() && self.shared.memory.level() == Level::Full {
            // Or it cannot be read for now.
            tokio::time::sleep(Duration::from_millis(crate::engine::run::account::ROOM_MS)).await;
        }
        self.live = Some(live);
        self.behind = true;
    }

    /// Looks up where the rest of the history lies.
    async fn look(&mut self) -> Result<(), EngineError> {
        let (shared, run, after) = (Arc::clone(&self.shared), self.run.num(), self.after);
        let look = self.shared.tasks.spawn_blocking(move || {
            // Looked at before the entries: then nothing can come after those.
            let ended = shared.store.header(run)?.is_none_or(|header| header.status.is_ended());
            Ok::<_, StoreError>((ended, shared.store.pages(run, after)?))
        });
        let (ended, pages) = look.await.map_err(|_| EngineError::Stopping)??;
        // Who has seen the end already would wait for ever for what comes after it.
        self.over = ended && pages.is_empty();
        (self.behind, self.ended, self.more) = (false, ended, pages.len() == PAGES);
        self.pages = pages.into();
        Ok(())
    }

    async fn read(&mut self, page: PageMark) -> Result<(), EngineError> {
        let held = self.room.page(page.bytes).await;
        let (shared, run) = (Arc::clone(&self.shared), self.run.num());
        let read = self.shared.tasks.spawn_blocking(move || {
            let entries = shared.store.page(run, &page)?;
            let events = entries.iter().map(|entry| view(run, entry)).collect();
            Ok::<_, StoreError>(events)
        });
        self.ready = read.await.map_err(|_| EngineError::Stopping)??;
        self.held = Some(Arc::new(held));
        self.pages.pop_front();
        Ok(())
    }
}

/// The lossy event that says: read the store.
pub(crate) fn sync(now_ms: u64) -> EventView {
    EventView { seq: None, kind: SYNC.into(), at: rfc3339(now_ms), data: Json::null() }
}

/// An entry as an event.
pub(crate) fn view(run: u64, entry: &Entry) -> EventView {
    let (kind, data) = say(run, entry);
    EventView {
        seq: Some(entry.seq),
        kind: kind.into(),
        at: rfc3339(entry.at_ms),
        data: data.into(),
    }
}

fn say(run: u64, entry: &Entry) -> (&'static str, serde_json::Value) {
    use serde_json::json;
    match &entry.fact {
        Fact::RunStarted(started) => (
            if started.generation == 0 { "run.started" } else { "run.continued" },
            json!({
                "blueprint": started.blueprint,
                "hash": started.hash,
                "input": started.input,
                "trigger": started.trigger,
                "by": started.principal,
            }),
        ),
        Fact::StepScheduled(it) | Fact::StepRecorded(it, _) => {
            let mut data = json!({
                "step": it.step,
                "scope": it.key.scope.to_string(),
                "index": it.key.index,
                "kind": it.kind.as_str(),
                "name": it.name,
                "summary": it.summary,
            });
            if let Some((composite, operator)) = it.member() {
                data["composite"] = composite.into();
                data["operator"] = operator.into();
            }
            if let Some(parent) = it.whole() {
                data["parent"] = parent.into();
            }
            if it.kind == StepKind::ToolCall {
                data["call_id"] = it.call_id.clone().into();
            }
            if it.kind == StepKind::ModelCall && it.request.to_value()["compact"] == true {
                data["compact"] = true.into();
            }
            if view::is_task(it.kind) {
                data["task"] = json!(TaskId::new(run, it.step, entry.at_ms));
            }
            match &entry.fact {
                Fact::StepRecorded(_, outcome) => {
                    let (kind, more) = ended(outcome);
                    merge(&mut data, more);
                    (kind, data)
                }
                _ => ("step.scheduled", data),
            }
        }
        Fact::AttemptDelivered { step, attempt, worker, deadline_ms } => (
            "step.started",
            json!({
                "step": step,
                "attempt": attempt,
                "worker": worker,
                "deadline": deadline_ms.map(rfc3339),
            }),
        ),
        Fact::AttemptClosed(closed) => (
            "attempt.failed",
            json!({
                "step": closed.step,
                "attempt": closed.attempt,
                "error": closed.error,
                "retry_at": rfc3339(closed.retry_at_ms),
            }),
        ),
        Fact::AttemptOpened(opened) => {
            ("attempt.opened", json!({ "step": opened.step, "attempt": opened.attempt }))
        }
        Fact::StepEnded { step, attempt, outcome, usage, .. } => {
            let (kind, more) = ended(outcome);
            let mut data = json!({ "step": step, "attempt": attempt, "usage": usage });
            merge(&mut data, more);
            (kind, data)
        }
        Fact::SignalReceived(signal) => {
            ("signal", json!({ "name": signal.name, "payload": signal.payload }))
        }
        Fact::Noted { note, .. } => noted(note),
        Fact::Decided(decision) => match decision {
            Decision::Cancel { by, reason } => {
                ("run.cancel_requested", json!({ "by": by, "reason": reason }))
            }
            Decision::Pause { by, reason } => ("run.paused", json!({ "by": by, "reason": reason })),
            Decision::Resume { by } => ("run.resumed", json!({ "by": by })),
            Decision::Copied { by, from, step } => {
                ("run.copied", json!({ "by": by, "from": from, "step": step }))
            }
            Decision::Compensate { ending } => {
                ("run.compensating", json!({ "ending": view::outcome_word(ending) }))
            }
            Decision::Seat { by, operator, session, epoch } => (
                "seat.taken",
                json!({ "by": by, "operator": operator, "session": session, "epoch": epoch }),
            ),
            Decision::Spent(spent) => ("run.spent", json!(spent)),
            Decision::Joined { session, party } => {
                ("session.joined", json!({ "session": session, "party": party }))
            }
            Decision::Escalate { step, attempt, question } => (
                "step.escalated",
                json!({ "step": step, "attempt": attempt, "question": question }),
            ),
            Decision::Follow(followed) => (
                "step.followed",
                json!({
                    "step": followed.step,
                    "attempt": followed.attempt,
                    "output": followed.output,
                    "effects": followed.effects,
                    "why": followed.why,
                    "operator": followed.operator,
                }),
            ),
            Decision::Advise { by, step, attempt, answer } => (
                "step.advised",
                json!({ "by": by, "step": step, "attempt": attempt, "answer": answer }),
            ),
            Decision::Answered { by, step, attempt, output, missing } => (
                "task_answered",
                json!({ "by": by, "step": step, "attempt": attempt, "output": output,
                    "missing": missing }),
            ),
            Decision::Remind { step, attempt, count } => {
                ("task_reminder", json!({ "step": step, "attempt": attempt, "count": count }))
            }
            Decision::Expire { by, step, attempt } => {
                ("task_expired", json!({ "by": by, "step": step, "attempt": attempt }))
            }
            Decision::Told { step, kind, data } => {
                (told(kind), json!({ "step": step, "event": data }))
            }
        },
        Fact::SecretAccessed { step, attempt, event } => {
            ("secret.accessed", json!({ "step": step, "attempt": attempt, "access": event }))
        }
        Fact::RunEnded(outcome) => {
            let mut data = json!({ "status": view::outcome_word(outcome) });
            merge(&mut data, ended(outcome).1);
            ("run.ended", data)
        }
    }
}

/// What a flow said, as an event.
pub(crate) fn noted(note: &Note) -> (&'static str, serde_json::Value) {
    use serde_json::json;
    match note {
        Note::Status { text, progress } => {
            ("status", json!({ "text": text, "progress": progress }))
        }
        Note::Log { level, message, data } => {
            ("log", json!({ "level": level, "message": message, "data": data }))
        }
        Note::Event { topic, data } => ("event", json!({ "topic": topic, "data": data })),
    }
}

/// The word that streams name an event of a run's life by.
fn told(kind: &str) -> &'static str {
    match kind {
        "budget" => "lifecycle.budget",
        "compaction" => "lifecycle.compaction",
        _ => "lifecycle.observable",
    }
}

fn ended(outcome: &Outcome) -> (&'static str, serde_json::Value) {
    match outcome {
        Outcome::Completed(output) => ("step.completed", serde_json::json!({ "output": output })),
        Outcome::Failed(failure) => ("step.failed", serde_json::json!({ "error": failure })),
        Outcome::Canceled(reason) => ("step.canceled", serde_json::json!({ "reason": reason })),
    }
}

fn merge(into: &mut serde_json::Value, more: serde_json::Value) {
    if let (serde_json::Value::Object(into), serde_json::Value::Object(more)) = (into, more) {
        into.extend(more);
    }
}
