//! Stores a copied history as a new run.
//!
//! Everything is written in one commit: the new run is complete, or does not exist.

use crate::{
    engine::{
        Caller, EngineError, IdempotencyKey,
        run::values::child_id,
        shared::message::ControlAsk,
        turn::waiting,
        verbs::{engine::HistoryVerbs, runs::mismatch},
    },
    journal::{Chain, Decision, Entry, Fact, Outcome, RunState, Scheduled, Spent},
    protocol::{Code, Json, MemoryLink, RunId, StepKind},
    store::{
        Answers, Check, Header, RunStatus, RunWrite, StateAct, StateBatch, StateChange, StoreError,
        Used, Write, append, commit, fresh_nonce,
    },
};

/// The maximum length of a history that is copied, because it is one commit.
pub(crate) const MOST_ENTRIES: usize = 100_000;

/// The maximum number of links of state that are copied with it.
pub(crate) const MOST_LINKS: usize = 100_000;

/// A history that becomes a run.
pub(crate) struct Copy {
    /// The new run.
    pub(crate) id: RunId,
    /// All its histories, in order; the entries get new numbers.
    pub(crate) entries: Vec<Entry>,
    /// Its data other than the journal.
    pub(crate) writes: Vec<Write>,
    /// The idempotency key of the request.
    pub(crate) key: Option<IdempotencyKey>,
}

impl HistoryVerbs<'_> {
    /// Stores a copied history as a new run, and takes it up unless it is paused or has ended.
    /// Returns the run: that of the same request, if one with the same key was faster.
    pub(crate) async fn put_copy(self, caller: &Caller, copy: Copy) -> Result<RunId, EngineError> {
        let Copy { id, mut entries, mut writes, key } = copy;
        if entries.len() > MOST_ENTRIES {
            return Err(EngineError::Conflict {
                code: Code::HistoryTooLong,
                message: format!(
                    "copy a run: its history has {} entries; {MOST_ENTRIES} can be copied",
                    entries.len()
                ),
            });
        }
        let shared = self.engine.shared();
        for (seq, entry) in (1..).zip(&mut entries) {
            entry.seq = seq;
        }
        let chain = fold(&entries).map_err(EngineError::BadRequest)?;
        let now_ms = shared.clock.now_ms();
        self.call_anew(&mut entries, &chain, now_ms);
        let mut header = header_of(id, &chain);
        mark(&mut entries, header.status.is_ended());
        let mut before = None;
        for entry in &mut entries {
            if let Fact::RunStarted(started) = &mut entry.fact {
                started.continues = before;
            }
            before = Some(u64::from(entry.seq));
        }
        let _flight = shared.in_flight.begin(&*shared.store);
        let rows = append(&*shared.store, &mut header, None, &entries);
        header.bytes += stored(&writes);
        let goes_on = header.wake_at_ms.is_some();
        let mut checks = vec![Check::TokenLive(caller.jti.clone())];
        let kept = key.as_ref().map(|key| key.keep(&caller.subject, id.to_string(), now_ms));
        let (check, write) = kept.unzip();
        checks.extend(check);
        writes.extend(write);
        let ended = header.status.is_ended();
        let bytes = rows.iter().map(|row| row.bytes.len() as u64).sum();
        let admitted = shared.accounts.admit(&caller.jti, id.num(), now_ms);
        admitted.map_err(|exceeded| EngineError::Quota(Box::new(exceeded)))?;
        let charge = shared.accounts.charge(id.num(), &Spent::default(), bytes);
        writes.extend(charge.map(Write::PutCharge));
        let run = RunWrite { header, expected: None, entries: rows, whole: true };
        if let Err(error) = self.submit(checks, run, writes).await {
            shared.accounts.never(id.num());
            return match (error, key) {
                (EngineError::Store(StoreError::KeyUsed { .. }), Some(key)) => {
                    let made = Box::pin(self.engine.repeated(caller, Some(&key))).await?;
                    made.and_then(|made| made.parse().ok()).ok_or_else(|| mismatch(&key))
                }
                (error, _) => Err(error),
            };
        }
        if ended {
            shared.accounts.ended(id.num());
        }
        if goes_on {
            self.engine.ask::<()>(id.num(), ControlAsk::TakeUp).await?;
        }
        Ok(id)
    }

    /// A child run reports to the original run; an open call of a copy starts a child run of its
    /// own.
    fn call_anew(self, entries: &mut [Entry], chain: &Chain, now_ms: u64) {
        let is_open = |step: &Scheduled| {
            step.kind == StepKind::Child
                && child_id(step.call_id.as_deref()).is_some()
                && chain.open().any(|open| open == step.step)
        };
        for entry in entries {
            if let Fact::StepScheduled(step) = &mut entry.fact
                && is_open(step)
            {
                let child = RunId::new(self.engine.shared().store.next_run(), now_ms);
                step.call_id = Some(child.to_string());
            }
        }
    }

    async fn submit(
        self,
        checks: Vec<Check>,
        run: RunWrite,
        writes: Vec<Write>,
    ) -> Result<(), EngineError> {
        let store = &*self.engine.shared().store;
        commit(store, checks, Some(run), writes).await.map_err(|error| match error {
            StoreError::Closed => EngineError::Stopping,
            error => error.into(),
        })
    }
}

/// Returns the write of a scope's links; `None` if there are none.
pub(crate) fn linked(
    scope: &str,
    links: Vec<MemoryLink>,
    at_ms: u64,
) -> Result<Option<Write>, EngineError> {
    if links.len() > MOST_LINKS {
        return Err(EngineError::Conflict {
            code: Code::HistoryTooLong,
            message: format!(
                "copy a run: its state has {} links; {MOST_LINKS} can be copied",
                links.len()
            ),
        });
    }
    let change = |link: MemoryLink| StateChange {
        scope: scope.to_owned(),
        act: StateAct::link(&link),
        key: link.from_key,
        if_revision: None,
    };
    let changes: Vec<StateChange> = links.into_iter().map(change).collect();
    let batch =
        StateBatch { changes, at_ms, most: usize::MAX, receipt: None, answers: Answers::default() };
    Ok((!batch.changes.is_empty()).then(|| Write::ChangeState(Box::new(batch))))
}

/// Returns the size of the own state and the files of a copy, in bytes.
fn stored(writes: &[Write]) -> u64 {
    let bytes = writes.iter().map(|write| match write {
        Write::PutState { scope, key, value, .. } if scope.starts_with("run:") => {
            (key.len() + value.len()) as u64
        }
        Write::PutArtifact(row) => row.size,
        _ => 0,
    });
    bytes.sum()
}

/// Returns the chain of a history.
pub(crate) fn fold(entries: &[Entry]) -> Result<Chain, String> {
    let mut chain = Chain::lean();
    for entry in entries {
        chain.apply(entry).map_err(|error| error.to_string())?;
    }
    match chain.started() {
        Some(_) => Ok(chain),
        None => Err("the history has no beginning".to_owned()),
    }
}

/// Marks the entries that happened in another run. A copy is not a part of the trace in which its
/// original was started.
fn mark(entries: &mut [Entry], is_ended: bool) {
    let is_note = |it: &Entry| matches!(it.fact, Fact::Decided(Decision::Copied { .. }));
    let note = entries.iter().rev().find(|it| is_note(it)).map_or(0, |it| it.seq);
    let upto = match entries.last() {
        Some(last) if is_ended => last.seq,
        _ => note,
    };
    for entry in &mut *entries {
        if matches!(entry.fact, Fact::RunStarted(_)) {
            entry.additions.remove_trace();
        }
    }
    if let Some(first) = entries.first_mut() {
        first.additions.put_copied_upto(upto);
    }
}

/// Returns the header of a run that is not in memory.
fn header_of(id: RunId, chain: &Chain) -> Header {
    let (started, _) = chain.started().expect("it was folded from its beginning");
    let (status, error) = match (chain.state(), chain.paused()) {
        (RunState::Ended(outcome), _) => {
            let status = match outcome {
                Outcome::Completed(_) => RunStatus::Completed,
                Outcome::Failed(_) => RunStatus::Failed,
                Outcome::Canceled(_) => RunStatus::Canceled,
            };
            (status, waiting::error(outcome))
        }
        (RunState::Active | RunState::Compensating(_), Some(reason)) => {
            (RunStatus::Paused, Some(waiting::paused(reason)))
        }
        (RunState::Compensating(ending), None) => (RunStatus::Compensating, waiting::error(ending)),
        (RunState::Active, None) => (RunStatus::Running, None),
    };
    let waiting_on = chain.paused().map(|reason| {
        let resume = waiting::rests("resume", reason, chain.last_ms());
        Json::encode(&[resume]).expect("plain data").as_str().to_owned()
    });
    let (steps, done) = chain.counts();
    let before = chain.next_step() - 1 - steps;
    let said = chain.status();
    Header {
        num: id.num(),
        created_ms: id.created_ms(),
        nonce: fresh_nonce(),
        blueprint: started.blueprint.clone(),
        hash: started.hash.clone(),
        status,
        status_text: said.map(|(text, _)| text.to_owned()),
        progress: said.and_then(|(_, progress)| progress),
        cursor: 0,
        seq: chain.seq(),
        steps: before + steps,
        steps_done: before + done,
        // Due at once: the run is taken up after the write, or at the next start.
        wake_at_ms: (!status.is_ended() && status != RunStatus::Paused).then_some(0),
        epoch: 1,
        parent: None,
        principal: started.principal.clone(),
        updated_ms: chain.last_ms(),
        ended_ms: status.is_ended().then(|| chain.last_ms()),
        error,
        waiting_on,
        bytes: 0,
        tags: chain.tags().clone(),
        used: Used::encode(chain.spent(), chain.agents()),
    }
}
