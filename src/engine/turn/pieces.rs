//! Deltas of answers in progress: from an operator to the watchers of its run.
//!
//! The pieces of an attempt are kept while it is in progress, up to [`KEPT`]: a watcher that comes in
//! the middle of an answer receives it from its beginning, and then the rest as it comes.
//! The run is told that there is something new, not what: it takes all of it at once, so a run that
//! is behind gets fewer and longer pieces, and a flood of them fills no queue.
//!
//! Pieces are lossy, and cheap where nobody looks: a subscriber that is behind gets what is durable
//! and not them. They change nothing of a run, read no run into memory, and nothing of them is in a
//! journal.
//!
//! A flow can receive them too, with a function (`on_delta`). The function is called in a copy of
//! the flow, made by a replay before the attempt is dispatched. So nothing that it does reaches the flow,
//! and a replay, which has no pieces, has the same result. Its `ctx:log`, `ctx:status` and
//! `ctx:publish` are lossy events; every other call of `ctx` is an error, which ends the listening.

use std::sync::Arc;

use serde::Serialize;

use crate::{
    engine::{
        EventView, rfc3339,
        run::{
            feed::{Feed, Piece},
            lookups::{Lookup, Purpose},
            readers::Subscriber,
            resident::Run,
        },
        turn::{facts::Turn, lookups, replay, retell::ReplayStop},
    },
    journal::{Entry, Note, StepKey},
    lua::ScriptFlow,
    protocol::{Failure, Json, ModelDelta, failure::kind},
};

/// Copies of a run's flow at a time; a delta that would need one more is skipped.
const COPIES: usize = 4;

/// Returns the argument of a flow's listener for a piece.
#[derive(Serialize)]
struct DeltaArgument<'a> {
    step: u32,
    attempt: u32,
    agent: &'a str,
    #[serde(flatten)]
    delta: &'a ModelDelta,
}

/// Notes whether there is anybody for the pieces of a run.
pub(crate) fn count_audience(run: &Run) {
    let hears = run.flow.as_ref().is_some_and(ScriptFlow::has_listeners);
    run.audience.set(hears || !run.subscribers.is_empty());
}

/// Hands what an attempt said to the function that the flow gave for it, and to whoever
/// watches.
pub(crate) fn take_pieces(turn: &mut Turn<'_>, feed: &Feed) {
    let fresh = feed.log.lock().fresh();
    if turn.run.failed.is_some() || turn.run.is_ended() {
        return;
    }
    turn.run.subscribers.retain(|subscriber| !subscriber.is_closed());
    count_audience(turn.run);
    hand_out(turn, feed, &fresh);
}

fn hand_out(turn: &mut Turn<'_>, feed: &Feed, fresh: &[Piece]) {
    for piece in fresh {
        if !turn.run.subscribers.is_empty() {
            show(turn.run, &feed.event(piece, turn.now_ms));
        }
        if let Some(key) = heard_as(turn.run, feed.step) {
            let (step, attempt, agent) = (feed.step, feed.attempt, &*feed.agent);
            let heard = DeltaArgument { step, attempt, agent, delta: &piece.delta };
            let heard = Json::encode(&heard).expect("a delta is plain data");
            hear(turn, &key, &heard);
        }
    }
}

/// Shows a new subscriber what the attempts under way have said; from then on it hears of them
/// with all others.
pub(crate) fn show_past(turn: &mut Turn<'_>, subscriber: &Subscriber) {
    for feed in feeds(turn.run) {
        // Taken together: nothing comes to the new one twice, and nothing is between.
        let (fresh, past) = {
            let mut log = feed.log.lock();
            (log.fresh(), log.past())
        };
        hand_out(turn, &feed, &fresh);
        for piece in past {
            // Who takes no more is seen to with the next durable event.
            subscriber.send(&feed.event(&piece, turn.now_ms));
        }
    }
}

/// Calls a flow's function in its copy of the flow, and shows what it says.
fn hear(turn: &mut Turn<'_>, key: &StepKey, piece: &Json) {
    let Some(copy) = turn.run.copies.iter_mut().find(|copy| copy.listens(key)) else {
        // Its attempt is from before a restart: it is received from the next delta on.
        if wants_copy(turn.run, key) && turn.run.lookups.copying.insert(key.clone()) {
            lookups::ask(turn, Purpose::Copy { dispatch: None }, vec![Lookup::Entries]);
        }
        return;
    };
    let heard = copy.hear(key, piece, turn.now_ms);
    tell_heard(turn, key, heard);
}

/// Has the journal read for a copy of the flow, if a listener waits for the deltas of an attempt
/// that is about to be dispatched; returns true if the dispatch must wait for it.
pub(crate) fn prepare(turn: &mut Turn<'_>, step: u32, attempt: u32) -> bool {
    let Some(key) = heard_as(turn.run, step).filter(|key| wants_copy(turn.run, key)) else {
        return false;
    };
    turn.run.lookups.copying.insert(key);
    let purpose = Purpose::Copy { dispatch: Some((step, attempt)) };
    lookups::ask(turn, purpose, vec![Lookup::Entries]);
    true
}

/// Makes the copies that are asked for, from the journal that was read.
pub(crate) fn copy(turn: &mut Turn<'_>) {
    let entries = lookups::entries(turn);
    for key in std::mem::take(&mut turn.run.lookups.copying) {
        if wants_copy(turn.run, &key)
            && let Err(why) = copy_flow(turn, &key, entries.as_deref())
        {
            tell_heard(turn, &key, Err(Failure::new(kind::LIMIT, why)));
        }
    }
}

fn tell_heard(turn: &mut Turn<'_>, key: &StepKey, heard: Result<Vec<Note>, Failure>) {
    match heard {
        Ok(notes) => {
            for note in notes {
                let (kind, data) = crate::engine::view::events::noted(&note);
                show(turn.run, &said(kind, data, turn.now_ms));
            }
        }
        Err(failure) => {
            let message = format!("on_delta hears no more: {failure}");
            tracing::warn!(run = %turn.run.id, message);
            let data = serde_json::json!({ "level": "warn", "message": message });
            show(turn.run, &said("log", data, turn.now_ms));
            for flow in turn.run.flow.iter_mut().chain(&mut turn.run.copies) {
                flow.forget_listener(key);
            }
        }
    }
}

/// Returns true if a listener has no copy of the flow, and there may be one more.
fn wants_copy(run: &Run, key: &StepKey) -> bool {
    let flow = run.flow.as_ref();
    run.copies.iter().filter(|copy| is_open(copy, flow)).count() < COPIES
        && !run.copies.iter().any(|copy| copy.listens(key))
        && flow.is_some_and(|flow| flow.listens(key))
}

/// Returns true if the flow still listens to a step that a copy of it receives.
fn is_open(copy: &ScriptFlow, flow: Option<&ScriptFlow>) -> bool {
    copy.listened().any(|it| flow.is_some_and(|flow| flow.listens(it)))
}

/// Copies the flow as it is, by telling a new one its past: whatever becomes of the copy, the flow
/// stays the same.
fn copy_flow(
    turn: &mut Turn<'_>,
    key: &StepKey,
    entries: Result<&[Entry], &String>,
) -> Result<(), String> {
    let Some(program) = turn.run.program.clone() else { return Ok(()) };
    let flow = turn.run.flow.as_ref();
    turn.run.copies.retain(|copy| is_open(copy, flow));
    match replay::replay(turn, &program, entries.map_err(String::clone)?) {
        Ok(retold) => {
            turn.run.copies.extend(Some(retold.flow).filter(|flow| flow.listens(key)));
            Ok(())
        }
        Err(ReplayStop::Diverged(why)) => Err(why.message),
        Err(ReplayStop::Broken(why)) => Err(format!("its VM has no room: {why}")),
    }
}

/// The open step whose function receives the deltas of a step: its own, or the whole that it is a
/// part of.
fn heard_as(run: &Run, mut step: u32) -> Option<StepKey> {
    let flow = run.flow.as_ref().filter(|flow| flow.has_listeners())?;
    loop {
        let it = &run.chain.step(step)?.scheduled;
        if flow.listens(&it.key) {
            return Some(it.key.clone());
        }
        step = it.parent?;
    }
}

/// Returns the output of a run's open attempts, in the order of their steps.
fn feeds(run: &Run) -> Vec<Arc<Feed>> {
    let mut live: Vec<(u32, Arc<Feed>)> = run
        .open
        .numbers()
        .filter_map(|number| Some((number, Arc::clone(&run.task(number)?.live.as_ref()?.feed))))
        .collect();
    live.sort_by_key(|(number, _)| *number);
    live.into_iter().map(|(_, feed)| feed).collect()
}

fn said(kind: &str, data: serde_json::Value, now_ms: u64) -> EventView {
    EventView { seq: None, kind: kind.into(), at: rfc3339(now_ms), data: data.into() }
}

/// Sends something to each watcher that is not behind.
fn show(run: &Run, event: &EventView) {
    for subscriber in &run.subscribers {
        subscriber.offer(event);
    }
}

/// Sends an event to each watcher; one that cannot keep up is dropped and reads on from the store.
/// Returns how many were dropped.
pub(crate) fn publish(run: &mut Run, event: &crate::engine::EventView) -> u64 {
    let mut dropped = 0;
    run.subscribers.retain(|subscriber| {
        let sent = subscriber.send(event);
        dropped += u64::from(!sent && subscriber.is_slow());
        sent
    });
    dropped
}
