//! How a run ends: its output is judged, what is open is closed, what was deferred runs, or a fresh
//! history begins.

use crate::{
    engine::{
        run::{due::Due, perform::Perform, resident::Run},
        shard::owner::Shard,
    },
    fault,
    flow::{Flow as _, Input, NextAction},
    journal::{Decision, Fact, Held, Outcome, RunState},
    protocol::{Failure, Json, failure::kind},
    store::Write,
};

impl Shard {
    pub(crate) fn complete(&mut self, run: &mut Run, output: &Json) {
        let schema = run.program.as_ref().map(|program| program.blueprint().output().clone());
        let accepted = match schema {
            Some(schema) if !schema.is_any() => schema.accept(output.to_value()).map(Json::from),
            _ => Ok(output.clone()),
        };
        match accepted {
            Ok(output) => self.end(run, Outcome::Completed(output)),
            Err(violations) => {
                let message = violations.first().map_or_else(
                    || "the output does not match its schema".to_owned(),
                    |first| {
                        format!(
                            "the output does not match its schema at {}: {}",
                            first.path, first.message
                        )
                    },
                );
                self.wind_up(run, Outcome::Failed(Failure::new(kind::INVALID_RESULT, message)));
            }
        }
    }

    /// Closes what is open; then runs the compensations, if there are any, and ends the run.
    pub(crate) fn wind_up(&mut self, run: &mut Run, ending: Outcome) {
        let reason = match &ending {
            Outcome::Completed(_) => "the run completed",
            Outcome::Failed(_) => "the run failed",
            Outcome::Canceled(_) => "the run was canceled",
        };
        let is_whole = Self::finish_turn(run);
        self.close_all(run, reason);
        run.inbox.clear();
        let compensates = *run.chain.state() == RunState::Active
            && (!is_whole || run.flow.as_ref().is_some_and(|flow| flow.has_defers()));
        if compensates {
            fault::point("engine.compensate");
            self.append(run, Fact::Decided(Decision::Compensate { ending }));
            let at_ms = run.chain.last_ms();
            let due = self.steady_ms + self.shared.settings.compensation_ms;
            run.timers.keep(Due::Wall);
            run.timers.insert((due, 0, Due::Compensation));
            run.inbox.push_back((Input::Compensate, at_ms));
        } else {
            self.end(run, ending);
        }
    }

    /// Lets a flow that is stopped between two turns take its last input to its end, as a replay
    /// will; what it asks for there is never decided. Says whether it could; otherwise the run is
    /// read again.
    fn finish_turn(run: &mut Run) -> bool {
        while let Some((Input::More, at_ms)) = run.inbox.front() {
            let at_ms = *at_ms;
            let Some(flow) = run.flow.as_mut() else { return true };
            match flow.advance(Input::More, at_ms).next {
                NextAction::More => {}
                NextAction::Broken(_) => {
                    run.flow = None;
                    run.reload = true;
                    run.broken = true;
                    return false;
                }
                NextAction::Wait
                | NextAction::Complete(_)
                | NextAction::Fail(_)
                | NextAction::ContinueAs(_)
                | NextAction::Limit(_) => return true,
            }
        }
        true
    }

    /// Ends a run for ever.
    pub(crate) fn end(&mut self, run: &mut Run, outcome: Outcome) {
        fault::point("engine.end");
        self.close_all(run, "the run ended");
        self.append(run, Fact::RunEnded(outcome));
        run.inbox.clear();
        run.timers.clear();
        run.flow = None;
        run.pending.writes.push(Write::CloseTasks { run: run.num });
        if run.header.parent.is_some() {
            run.pending.after.performs.push(Perform::TellParent);
        }
        self.count_out(run.num);
    }

    pub(crate) fn continue_as(&mut self, run: &mut Run, input: Json) {
        let Some((started, _)) = run.chain.started() else { return };
        let mut started = started.clone();
        if let Some(program) = &run.program {
            match program.blueprint().input().accept(input.to_value()) {
                Ok(accepted) => started.input = accepted.into(),
                Err(violations) => {
                    let message = violations.first().map_or_else(String::new, |first| {
                        format!(
                            "continue_as: the input does not match its schema at {}: {}",
                            first.path, first.message
                        )
                    });
                    self.wind_up(run, Outcome::Failed(Failure::new(kind::INVALID_INPUT, message)));
                    return;
                }
            }
        }
        self.close_all(run, "the run began a fresh history");
        let signals = run.chain.signals();
        let (seats, spent) = (run.chain.seats().clone(), run.chain.spent().clone());
        let joined = crate::engine::turn::lineage::all_of(&self.shared.sessions, run);
        started.generation += 1;
        started.first_step = run.chain.next_step();
        started.queued = signals;
        started.seed = started.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
        self.flush(run);
        started.continues = Some(run.chain.seq().into());
        // It begins once its start is durable, with a turn of its own: a run that does nothing but
        // begin anew takes no more than others, hears of its cancel, and leaves nothing behind.
        run.fresh_after = Some(run.batches + 1);
        run.inbox.clear();
        run.timers.keep(Due::Wall);
        self.append(run, Fact::RunStarted(Box::new(started)));
        if !spent.is_empty() {
            self.append(run, Fact::Decided(Decision::Spent(Box::new(spent))));
        }
        for (session, party) in joined {
            self.join(run, session, party);
        }
        for (operator, held) in seats {
            let Held { session, epoch } = held;
            let by = "continue_as".to_owned();
            self.append(run, Fact::Decided(Decision::Seat { by, operator, session, epoch }));
        }
        self.start_flow(run);
    }
}
