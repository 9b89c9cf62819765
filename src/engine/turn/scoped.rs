//! State that others share: a step of its own, done once everything before it is durable.
//!
//! A run's own state changes in memory with its transition. What lies elsewhere, and what only the
//! store can answer, is asked for after the commit that scheduled the step. A change is made once:
//! the store keeps its answer until the step's end is durable, whatever happens in between.

use std::sync::{Arc, Weak};

use crate::{
    engine::{
        run::{
            due::Due,
            open::Open,
            perform::{Held, Perform},
            resident::Run,
        },
        settings::STORAGE_RETRY_MS,
        shared::{deliveries, message::Internal},
        turn::{
            authority, boundary,
            facts::Turn,
            helping, seats,
            state::{refused, run_scope, state_failure},
            steps,
        },
    },
    fault,
    flow::{StateOp, StepOp},
    journal::{Outcome, Scheduled, StepKey},
    protocol::{ChangeKey, Failure, Json, Scope, SessionId, StoreOptions, WorkflowId},
    store::{DurableState, Reducer, StateAct, StateChange, StoreError, Write, number_text},
    token::{Need, Verb},
};

/// Decides a step on shared state: refuses it, or lets it wait for its commit.
pub(crate) fn schedule_scoped(
    turn: &mut Turn<'_>,
    key: &StepKey,
    scope: Option<&str>,
    op: StateOp,
) {
    let step = match scope {
        None => StepOp::State(op.clone()),
        Some(scope) => StepOp::Scoped { scope: scope.to_owned(), op: op.clone() },
    };
    open_state(turn, key, &step, scope, &op);
}

/// Opens a step that waits for an operation on shared state, or records its refusal.
pub(crate) fn open_state(
    turn: &mut Turn<'_>,
    key: &StepKey,
    step: &StepOp,
    scope: Option<&str>,
    op: &StateOp,
) {
    match permitted(turn, scope, op) {
        Err(failure) => steps::record(turn, key, step, Outcome::Failed(failure)),
        Ok((scope, op)) => {
            let number = steps::open(
                turn,
                key,
                step,
                Open::State { scope, op: Box::new(op), alive: Arc::default() },
            );
            turn.run.pending.after.performs.push(Perform::State { step: number });
        }
    }
}

/// Takes up a part that is an operation on state and whose end is not known.
pub(crate) fn take_up_part(turn: &mut Turn<'_>, number: u32, scope: Option<&str>, op: &StateOp) {
    match permitted(turn, scope, op) {
        Ok((scope, op)) => {
            turn.run
                .open
                .insert(number, Open::State { scope, op: Box::new(op), alive: Arc::default() });
            turn.run.pending.after.performs.push(Perform::State { step: number });
        }
        Err(failure) => {
            steps::finish_step(turn, number, Outcome::Failed(failure), None, None);
        }
    }
}

/// The scope and the operation as the layers pass them on, if the run may do that.
pub(crate) fn permitted(
    turn: &Turn<'_>,
    scope: Option<&str>,
    op: &StateOp,
) -> Result<(String, StateOp), Failure> {
    let place = match scope {
        None => run_scope(turn.run),
        Some(scope) => scope_of(turn.run, scope)?,
    };
    permit(turn, &place, op)?;
    // What is read passes the layers when it is read.
    let op = if op.is_read() { op.clone() } else { boundary::pass_change(turn, &place, op)? };
    Ok((place, op))
}

/// The text of the scope that a flow named.
pub(crate) fn scope_of(run: &Run, named: &str) -> Result<String, Failure> {
    if named == "session" {
        let session = seats::delegate_of(run).ok_or_else(|| {
            refused(
                "ctx:scope(\"session\"): the run belongs to no session; start it with a \
                 `delegate`, or name one: ctx:scope { session = \"ses_…\" }"
                    .to_owned(),
            )
        })?;
        return Ok(Scope::Session(SessionId::new(session.0)).to_string());
    }
    let within = named.strip_prefix("operator:").filter(|rest| !rest.contains(':'));
    let text = match within {
        Some(operator) => format!("operator:{}:{operator}", run.id),
        None => named.to_owned(),
    };
    let scope: Scope = text.parse().map_err(|error| refused(format!("{error}")))?;
    Ok(scope.to_string())
}

/// Returns true if the run may do that to a scope: its starter reads and writes, its flow's
/// authority links. The run itself and its operators are the run's own.
fn permit(turn: &Turn<'_>, scope: &str, op: &StateOp) -> Result<(), Failure> {
    let own = scope == run_scope(turn.run) || is_within(turn.run, scope);
    if own {
        return Ok(());
    }
    if let StateOp::Link { key, to, .. } | StateOp::Unlink { key, to, .. } = op {
        let permitted = authority::may_link(turn, scope, [key, to]);
        return permitted.map_err(|refusal| refused(refusal.to_string()));
    }
    let verb = if op.is_read() { Verb::StateRead } else { Verb::StateWrite };
    let need = Need::State { scope, key: op.key() };
    turn.run.grant.check(verb, &[need]).map_err(|refusal| refused(refusal.to_string()))
}

/// Does what a step asked of shared state; its end comes back as a message.
pub(crate) fn perform_state(turn: &mut Turn<'_>, number: u32) {
    let Some(Open::State { scope, op, alive }) = turn.run.open.get(number) else {
        return;
    };
    if helping::needs_driver_for(turn, op) {
        return helping::leave(turn);
    }
    let alive = Arc::downgrade(alive);
    fault::point("engine.state_shared");
    let (scope, op) = (scope.clone(), op.clone());
    let (num, shared) = (turn.run.num, Arc::clone(turn.shared));
    let named = ChangeKey::new(turn.run.id.to_string(), number, 0);
    let passage = op.is_read().then(|| boundary::passage(turn));
    turn.shared.tasks.spawn(async move {
        let later = || {
            let of = alive.clone();
            shared.tell(num, Internal::StateLater { step: number, of });
        };
        // Another life of the run may have asked for the same change.
        let _alone = match passage {
            Some(_) => None,
            None => Some(shared.changing.alone((num, number)).await),
        };
        if !deliveries::settled(&shared, num, &scope).await {
            return later();
        }
        let held = match passage {
            Some(_) => None,
            None => shared.state.alone_in(&scope).await,
        };
        if alive.strong_count() == 0 {
            // It was canceled, or the run lives on elsewhere, while others wrote.
            return;
        }
        let done = match passage {
            Some(passage) => passage.read_for_step(&op, &scope).await,
            None => match execute(&shared.state, &scope, &op, (num, number), &named).await {
                Ok(done) => {
                    shared.lanes.succeeded(&scope);
                    done
                }
                Err(error) => {
                    tracing::warn!(run = num, %error, "a change of state waits for the store");
                    shared.lanes.failed(&scope, error.to_string());
                    return later();
                }
            },
        };
        let outcome = match done {
            Ok(value) => Outcome::Completed(value),
            Err(failure) => Outcome::Failed(failure),
        };
        shared.tell(num, Internal::StateDone { step: number, of: alive, outcome, held });
    });
}

/// Returns true if a task was that of a step in this life of the run.
pub(crate) fn is_of(run: &Run, number: u32, of: &Weak<()>) -> bool {
    match run.open.get(number) {
        Some(Open::State { alive, .. }) => Weak::ptr_eq(&Arc::downgrade(alive), of),
        _ => false,
    }
}

/// The store could not be written: the change is asked for again, once it may be.
pub(crate) fn state_later(turn: &mut Turn<'_>, number: u32) {
    if let Some(Open::State { scope, .. }) = turn.run.open.get(number) {
        // What the header says of it changes with the trouble.
        let told = turn.run.header.waiting_on.as_deref().unwrap_or_default();
        let is_new = |why: String| !told.contains(&why);
        let news = turn.shared.lanes.trouble(scope).is_some_and(|it| is_new(it.to_string()));
        turn.run.restate |= news;
        let due = turn.steady_ms + STORAGE_RETRY_MS;
        turn.run.timers.insert((due, number, Due::State));
    }
}

/// The result.
pub(crate) fn state_done(turn: &mut Turn<'_>, number: u32, outcome: Outcome, held: Option<Held>) {
    let Some(Open::State { op, .. }) = turn.run.open.get(number) else {
        return;
    };
    let outcome = match outcome {
        Outcome::Completed(value) if op.is_read() => {
            let key = turn.run.chain.step(number).map(|step| &step.scheduled.key);
            Outcome::Completed(match key {
                Some(key) => crate::engine::run::branches::shown(turn.run, key, value),
                None => value,
            })
        }
        outcome => outcome,
    };
    turn.run.pending.after.performs.extend(held.map(Perform::LetGo));
    if !op.is_read() {
        turn.run.pending.writes.push(Write::ForgetReceipt { run: turn.run.num, step: number });
    }
    steps::finish_step(turn, number, outcome, None, None);
}

/// Takes up a step on shared state whose end is not known.
pub(crate) fn take_up_state(turn: &mut Turn<'_>, step: &Scheduled) {
    let op = step.request.decode::<StateOp>().ok();
    let named = step.request.to_value();
    let named = named.get("scope").and_then(|scope| scope.as_str());
    let scope = match named {
        None => Ok(run_scope(turn.run)),
        Some(named) => scope_of(turn.run, named),
    };
    let passed = match (op, scope) {
        (Some(op), Ok(scope)) if op.is_read() => Some((op, scope)),
        (Some(op), Ok(scope)) => {
            boundary::pass_change(turn, &scope, &op).ok().map(|op| (op, scope))
        }
        _ => None,
    };
    let Some((op, scope)) = passed else {
        let failure = refused("the state step in the journal cannot be read".to_owned());
        steps::finish_step(turn, step.step, Outcome::Failed(failure), None, None);
        return;
    };
    turn.run.open.insert(step.step, Open::State { scope, op: Box::new(op), alive: Arc::default() });
    turn.run.pending.after.performs.push(Perform::State { step: step.step });
}

/// Returns true if a scope is that of an operator within the run.
pub(crate) fn is_within(run: &Run, scope: &str) -> bool {
    let workflow = WorkflowId::new(run.id.to_string());
    matches!(scope.parse(), Ok(Scope::Operator { workflow: of, .. }) if of == workflow)
}

/// Makes a change once, however often it is asked for.
///
/// # Errors
/// The store could not be written: the change is to be asked for once more. The inner result is that
/// of a change that the store looked at.
async fn execute(
    state: &DurableState,
    scope: &str,
    op: &StateOp,
    receipt: (u64, u32),
    named: &ChangeKey,
) -> Result<Result<Json, Failure>, StoreError> {
    let change = match change_of(scope, op) {
        Ok(change) => change,
        Err(failure) => return Ok(Err(failure)),
    };
    let changed = match state.is_foreign(scope) {
        true => state.change_foreign(&change, Some(named)).await.map(|changed| vec![changed]),
        false => state.change(Vec::new(), vec![change], Some(receipt)).await,
    };
    let mut answers = match changed {
        Ok(answers) => answers,
        Err(error) if error.is_about_the_change() => {
            return Ok(Err(state_failure(op.name(), error)));
        }
        Err(error) => return Err(error),
    };
    let value = answers.pop().and_then(|answer| answer.value);
    Ok(Ok(value.map_or_else(Json::null, Json::from_trusted)))
}

fn change_of(scope: &str, op: &StateOp) -> Result<StateChange, Failure> {
    let put = |value: String, reducer, hints| StateAct::Put { value, reducer, hints };
    let none = StoreOptions::default;
    let mut if_revision = None;
    let act = match op {
        StateOp::Set { value, opts, .. } => {
            if_revision = opts.as_ref().and_then(|opts| opts.if_revision);
            let hints = opts.as_ref().map_or_else(none, |opts| opts.hints());
            put(value.as_str().to_owned(), Reducer::Overwrite, hints)
        }
        StateOp::Delete { .. } => StateAct::Delete,
        StateOp::Add { by, .. } => {
            let by = number_text(*by)
                .ok_or_else(|| refused("state.add: what is added is not a number".to_owned()))?;
            put(by, Reducer::Sum, none())
        }
        StateOp::Append { value, .. } => put(value.as_str().to_owned(), Reducer::Append, none()),
        StateOp::Merge { value, .. } => put(value.as_str().to_owned(), Reducer::Merge, none()),
        StateOp::Link { to, relation, metadata, .. } => StateAct::Link {
            to: to.clone(),
            relation: relation.clone(),
            metadata: metadata.as_ref().map(|json| json.as_str().to_owned()),
        },
        StateOp::Unlink { to, relation, .. } => {
            StateAct::Unlink { to: to.clone(), relation: relation.clone() }
        }
        StateOp::Get { .. }
        | StateOp::List { .. }
        | StateOp::Search { .. }
        | StateOp::Traverse { .. } => return Err(refused(format!("{} is a read", op.name()))),
    };
    Ok(StateChange { scope: scope.to_owned(), key: op.key().to_owned(), if_revision, act })
}
