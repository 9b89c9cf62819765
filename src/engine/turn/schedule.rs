//! The dispatcher of what a flow asks for: one function per operation.

use crate::{
    engine::{
        run::{due::Due, open::Open},
        turn::{
            boundary, children,
            facts::{self, Turn},
            files, scoped, signals, steps, tasks,
        },
    },
    fault,
    flow::{StepOp, StepRequest},
    journal::Outcome,
    protocol::Json,
};

pub(crate) fn schedule(turn: &mut Turn<'_>, request: StepRequest) {
    fault::point("engine.schedule");
    let StepRequest { key, op } = request;
    let now = facts::time_of(turn);
    match op {
        StepOp::Task(task) => tasks::schedule_task(turn, key, *task),
        StepOp::Timer { wake_at_ms } if wake_at_ms <= now => {
            steps::record(turn, &key, &op, Outcome::Completed(Json::null()));
        }
        StepOp::Timer { wake_at_ms } => {
            let number = steps::open(turn, &key, &op, Open::Timer);
            turn.run.timers.insert((wake_at_ms, number, Due::Timer));
        }
        StepOp::Signal { ref name, deadline_ms } => {
            signals::schedule_wait(turn, &key, &op, name, deadline_ms, now);
        }
        StepOp::Child { blueprint, input, tags } => {
            children::schedule_child(turn, &key, children::Call { blueprint, input, tags });
        }
        StepOp::Scoped { scope, op } => scoped::schedule_scoped(turn, &key, Some(&scope), op),
        StepOp::State(state) if state.needs_store() => {
            scoped::schedule_scoped(turn, &key, None, state);
        }
        StepOp::State(ref state) => {
            let outcome = match boundary::own_state(turn, state) {
                Ok(value) => Outcome::Completed(value),
                Err(failure) => Outcome::Failed(failure),
            };
            steps::record(turn, &key, &op, outcome);
        }
        StepOp::Artifact(ref artifact) => {
            let step = turn.run.chain.next_step();
            let outcome = match files::apply_artifact(turn, step, artifact) {
                Ok(value) => Outcome::Completed(value),
                Err(failure) => Outcome::Failed(failure),
            };
            steps::record(turn, &key, &op, outcome);
        }
        StepOp::SendSignal { run: ref receiver, ref name, ref payload } => {
            let outcome = signals::send_signal(turn, receiver, name, payload);
            steps::record(turn, &key, &op, outcome);
        }
    }
}
