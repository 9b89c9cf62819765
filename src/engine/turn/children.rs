//! Runs that a run calls: scheduled, started after the commit, ended.

use std::sync::Arc;

use crate::{
    engine::{
        Exceeded,
        run::{
            due::Due,
            loaded::Called,
            lookups::{Lookup, Publisher, Purpose},
            open::Open,
            perform::{Perform, Stored},
            resident::Run,
            values::canceled_call,
        },
        settings::STORAGE_RETRY_MS,
        shared::message::{Internal, Msg, NewRun},
        turn::{
            authority, budget,
            facts::{self, Turn},
            lookups, seats, steps,
        },
    },
    fault,
    flow::StepOp,
    journal::{Additions, Decision, Fact, Outcome, RunStarted, RunState, Spent, StepKey, Usage},
    lua::Program,
    protocol::{Failure, Json, RunId, Tags, failure::kind},
    session::EVERY,
    store::Write,
    token::Quota,
};

/// A run that a flow calls.
pub(crate) struct Call {
    pub(crate) blueprint: String,
    pub(crate) input: Json,
    pub(crate) tags: Tags,
}

pub(crate) fn schedule_child(turn: &mut Turn<'_>, key: &StepKey, call: Call) {
    let Call { blueprint, input, tags } = call;
    let depth = turn.run.chain.started().map_or(0, |(started, _)| started.depth) + 1;
    let max_depth = turn
        .run
        .program
        .as_ref()
        .and_then(|program| program.blueprint().definition().max_depth)
        .unwrap_or(turn.shared.settings.limits.depth)
        .min(turn.shared.settings.limits.depth);
    let resolved = if depth > max_depth {
        Err(Failure::new(kind::LIMIT, format!("more than {max_depth} runs below each other")))
    } else if let Some(failure) = budget::run_over_budget(turn)
        && *turn.run.chain.state() == RunState::Active
    {
        Err(failure)
    } else {
        may_call(turn, &blueprint)
            .and_then(|(program, _)| {
                let input = crate::engine::shared::programs::accept_input(&program, &input)
                    .map_err(|error| error.to_string())?;
                Ok((program, input))
            })
            .map_err(|error| Failure::new(kind::REFUSED, format!("call {blueprint}: {error}")))
    };
    let op = |blueprint, input| StepOp::Child { blueprint, input, tags: tags.clone() };
    match resolved {
        Err(failure) => {
            steps::record(turn, key, &op(blueprint, input), Outcome::Failed(failure));
        }
        Ok((program, accepted)) => {
            let child = RunId::new(turn.shared.store.next_run(), facts::time_of(turn));
            let version = program.blueprint().version();
            let op = op(blueprint, input);
            let open = Open::Child { run: child, blueprint: version, input: accepted };
            let additions = Additions::of_tags(&tags);
            let call_id = Some(child.to_string());
            let number = steps::open_with(turn, key, &op, open, call_id, additions);
            // The number is in this run's journal: no other may get it, also after a crash
            // before the called run is stored.
            turn.run.pending.writes.push(Write::ReserveRun { num: child.num() });
            turn.run.pending.after.performs.push(Perform::StartChild { step: number });
        }
    }
}

/// Hands a called run's end to its caller; its cancel is a failure that can be caught.
pub(crate) fn child_ended(turn: &mut Turn<'_>, step: u32, outcome: Outcome, usage: Option<Usage>) {
    fault::point("engine.child_ended");
    let outcome = match outcome {
        Outcome::Canceled(reason) => {
            let message = format!("the called run was canceled: {reason}");
            Outcome::Failed(Failure::new(kind::CANCELED, message))
        }
        Outcome::Completed(_) | Outcome::Failed(_) => outcome,
    };
    steps::finish_step(turn, step, outcome, None, usage);
}

/// Counts the usage of a called run that ended after its step was canceled, once.
pub(crate) fn count_late(turn: &mut Turn<'_>, number: u32, child: RunId, usage: Usage) {
    let step = turn.run.chain.step(number);
    if turn.run.is_ended() || step.and_then(canceled_call) != Some(child) {
        return;
    }
    let spent = Spent { total: usage, ..Spent::default() };
    let fact = Fact::Decided(Decision::Spent(Box::new(spent)));
    facts::append_with(turn, fact, Additions::of_call(number));
}

/// Takes up a step that calls a run, with what became of that.
pub(crate) fn take_up_child(turn: &mut Turn<'_>, number: u32, called: Option<&Called>) {
    match called {
        None | Some(Called::Open) => {}
        Some(Called::Nowhere) => {
            turn.run.pending.after.performs.push(Perform::StartChild { step: number });
        }
        Some(Called::Ended(outcome, usage)) => {
            child_ended(turn, number, outcome.clone(), usage.clone());
        }
        Some(Called::Unknown(error)) => {
            tracing::error!(run = %turn.run.id, %error, "could not look for a called run");
        }
    }
}

/// Counts a called run against what its caller counts against; says whether anything counts it,
/// or nothing where it cannot begin now.
fn admit_child(turn: &mut Turn<'_>, number: u32, child: u64) -> Option<bool> {
    let Some(jti) = turn.shared.accounts.of(turn.run.num) else { return Some(false) };
    match turn.shared.accounts.admit(&jti, child, turn.now_ms) {
        Ok(charged) => Some(charged),
        // Time alone helps: it begins a little later.
        Err(Exceeded { quota: Quota::StartsPerMinute, retry_after_s: Some(after), .. }) => {
            let due = turn.steady_ms + after * 1_000;
            turn.run.timers.insert((due, number, Due::Child));
            None
        }
        Err(exceeded) => {
            let failure = exceeded.failure();
            steps::finish_step(turn, number, Outcome::Failed(failure), None, None);
            None
        }
    }
}

/// Returns the program that a reference stands for, if the run's flow may call it.
fn may_call(turn: &Turn<'_>, reference: &str) -> Result<(Arc<Program>, Publisher), String> {
    let (program, publisher) = lookups::program(turn, reference)?;
    authority::may_call(turn, &program, &publisher).map_err(|error| error.to_string())?;
    Ok((program, publisher))
}

/// Starts the child run of a step; reads its program first if that is not in memory. `stored` keeps
/// blueprints from being deleted since that read began.
pub(crate) fn start_child(turn: &mut Turn<'_>, number: u32, stored: Option<Stored>) {
    begin_child(turn, number, stored);
    lookups::forget(turn);
}

fn begin_child(turn: &mut Turn<'_>, number: u32, stored: Option<Stored>) {
    let Some(Open::Child { run: child, blueprint, input }) = turn.run.open.get(number) else {
        return;
    };
    let (child, blueprint, input) = (*child, blueprint.clone(), input.clone());
    // From the look at what is stored to the commit of the child, nobody deletes a version.
    let starts = &turn.shared.programs.starts;
    let stored = match stored {
        Some(stored) => Ok(stored),
        None => Arc::clone(starts).try_read_owned(),
    };
    let Ok(stored) = stored else {
        let due = turn.steady_ms + STORAGE_RETRY_MS;
        turn.run.timers.insert((due, number, Due::Child));
        return;
    };
    fault::point("engine.child_start");
    let lookup = Lookup::Program(blueprint.clone());
    if !lookups::is_known(turn, &lookup) {
        return lookups::ask(turn, Purpose::Child { step: number, stored }, vec![lookup]);
    }
    let (program, publisher) = match may_call(turn, &blueprint) {
        Ok(found) => found,
        Err(error) => {
            let failure = Failure::new(kind::REFUSED, format!("call {blueprint}: {error}"));
            steps::finish_step(turn, number, Outcome::Failed(failure), None, None);
            return;
        }
    };
    let Some(charged) = admit_child(turn, number, child.num()) else { return };
    let Some((parent, _)) = turn.run.chain.started() else { return };
    let started = RunStarted {
        blueprint: program.blueprint().name().to_owned(),
        hash: program.blueprint().hash().to_owned(),
        input,
        trigger: crate::engine::turn::budget::trigger(turn.run, number),
        seed: parent.seed ^ child.num().wrapping_mul(0x9e37_79b9_7f4a_7c15),
        parent: Some((turn.run.num, number)),
        depth: parent.depth + 1,
        workdir: parent.workdir.clone(),
        principal: parent.principal.clone(),
        delegate: seats::delegate_of(turn.run).map(|session| session.0),
        grant: parent.grant.clone(),
        generation: 0,
        first_step: 1,
        queued: Vec::new(),
        continues: None,
    };
    let seated = turn.run.chain.seats().iter().filter(|(operator, _)| *operator != EVERY);
    let new = NewRun {
        trace: None,
        id: child,
        program,
        started,
        grant: Arc::clone(&turn.run.grant),
        jti: None,
        key: None,
        reply: None,
        waiter: None,
        unstored: false,
        subscriber: None,
        seats: seated.map(|(name, it)| (name.clone(), it.session.as_str().into())).collect(),
        charged,
        joined: crate::engine::turn::lineage::all_of(&turn.shared.sessions, turn.run),
        tags: turn.run.chain.tags_of_child(number),
        publisher,
        place: None,
        stored: Some(stored),
    };
    turn.shared.send(child.num(), Msg::Start(Box::new(new)));
}

pub(crate) fn tell_parent(turn: &Turn<'_>) {
    let (Some((parent, step)), RunState::Ended(outcome)) =
        (turn.run.header.parent, turn.run.chain.state())
    else {
        return;
    };
    fault::point("engine.tell_parent");
    let usage = crate::engine::view::spent::total(turn.run.chain.spent());
    let (child, outcome) = (turn.run.id, outcome.clone());
    let joined = crate::engine::turn::lineage::all_of(&turn.shared.sessions, turn.run);
    let message = Internal::ChildEnded { step, child, outcome, usage, joined };
    turn.shared.tell(parent, message);
}

/// Returns true if an open step calls this very run.
pub(crate) fn is_child(run: &Run, step: u32, child: RunId) -> bool {
    run.open.get(step).is_some_and(|open| matches!(open, Open::Child { run, .. } if *run == child))
}
