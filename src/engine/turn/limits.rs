//! What a run may have: steps, entries and tasks; a breach ends it.

use crate::{
    engine::{run::resident::Run, shard::owner::Shard},
    journal::{Outcome, RunState},
    protocol::{Failure, failure::kind},
};

impl Shard {
    /// Why a run's history may not grow, if it may not.
    pub(crate) fn long_history(&self, run: &Run) -> Option<String> {
        let most = self.shared.settings.limits.entries;
        (run.chain.entries() >= most)
            .then(|| format!("more than {most} entries in one history; use ctx:continue_as"))
    }

    /// Why a run may have no further step, if it may not.
    pub(crate) fn breach(&self, run: &Run) -> Option<String> {
        let limits = &self.shared.settings.limits;
        let (steps, _) = run.chain.counts();
        let max_steps = run
            .program
            .as_ref()
            .and_then(|program| program.blueprint().definition().max_steps)
            .map_or(limits.steps, |steps| steps.min(limits.steps));
        let open = limits.open_steps;
        match self.long_history(run).or_else(|| self.overweight(run)) {
            Some(breach) => Some(breach),
            None if steps >= max_steps => {
                Some(format!("more than {max_steps} steps in one history"))
            }
            None if run.open.len() >= open as usize => {
                Some(format!("more than {open} steps open at the same time"))
            }
            None => None,
        }
    }

    /// Why a run may have no further task, if it may not.
    pub(crate) fn task_breach(run: &Run) -> Option<String> {
        let most = run.program.as_ref()?.blueprint().definition().max_open_tasks?;
        (run.open.sums().tasks >= most as usize)
            .then(|| format!("more than {most} tasks open at the same time"))
    }

    /// Ends a run that broke a limit.
    pub(crate) fn break_limit(&mut self, run: &mut Run, message: String) {
        let ending = Outcome::Failed(Failure::new(kind::LIMIT, message));
        match run.chain.state() {
            RunState::Compensating(ending) => {
                let ending = ending.clone();
                self.end(run, ending);
            }
            RunState::Active | RunState::Ended(_) => self.wind_up(run, ending),
        }
    }
}
