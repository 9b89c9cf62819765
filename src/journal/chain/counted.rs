//! Usage and counts: what a history spent, and what the statistics of the host get of it.

use std::borrow::Cow;

use serde::Deserialize;

use super::{Chain, add_usage};
use crate::{
    journal::{Dimension, Ending, Outcome, Scheduled, Tally, Usage},
    protocol::StepKind,
};

/// The part of a model's reply that says which model it was.
#[derive(Deserialize)]
struct Reply {
    model: Option<String>,
}

/// Returns the model that answered a question to a model, if the reply says which it was.
pub(crate) fn model_of(outcome: &Outcome) -> Option<String> {
    let reply: Reply = outcome.output()?.decode().ok()?;
    reply.model.filter(|it| !it.is_empty())
}

impl Chain {
    /// Returns the counts of this history so far.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Adds the usage of a step's last attempt to the totals.
    pub(super) fn spend(&mut self, number: u32, usage: Option<&Usage>, at_ms: u64) {
        let place = number.checked_sub(self.first_step).map(|place| place as usize);
        let Some(step) = place.and_then(|place| self.steps.get(place)) else { return };
        if step.delivered_ms.is_some() || usage.is_some() {
            // A child process of the host has nothing to report.
            let is_child = step.worker.as_deref().is_some_and(|it| it.starts_with("pid "));
            let delivered = step.delivered_ms.is_some() && !is_child;
            let agent = self.charged(&step.scheduled).map(str::to_owned);
            let of_child = step.scheduled.kind == StepKind::Child;
            self.spent.add(agent.as_deref(), usage, delivered);
            // A called run counts its own.
            if let Some(usage) = usage.filter(|_| !of_child) {
                self.tally.spend(at_ms, agent.as_deref(), usage);
            }
        }
    }

    /// Adds the usage of a called run that ended after its step.
    pub(super) fn spend_late(&mut self, number: u32, usage: &Usage, at_ms: u64) {
        let place = number.checked_sub(self.first_step).map(|place| place as usize);
        if let Some(step) = place.and_then(|place| self.steps.get_mut(place)) {
            add_usage(&mut step.usage, Some(usage));
        }
        self.spend(number, Some(usage), at_ms);
    }

    /// Returns the agent or tool that a step's usage is charged to. A model call is charged to the
    /// enclosing task or tool call.
    fn charged<'a>(&'a self, mut step: &'a Scheduled) -> Option<&'a str> {
        while matches!(step.kind, StepKind::ModelCall | StepKind::Local) {
            step = &self.step(step.parent?)?.scheduled;
        }
        matches!(step.kind, StepKind::Task | StepKind::ToolCall).then_some(step.name.as_str())
    }

    /// Counts a task or a model call that ended.
    pub(super) fn count_end(
        &mut self,
        number: u32,
        outcome: &Outcome,
        usage: Option<&Usage>,
        at_ms: u64,
    ) {
        let place = number.checked_sub(self.first_step).map(|place| place as usize);
        let Some(step) = place.and_then(|place| self.steps.get(place)) else { return };
        let took_ms = at_ms.saturating_sub(step.scheduled_ms);
        let ending = Ending::from(outcome);
        let of = match step.scheduled.kind {
            // A member of a composite is a part of its task.
            StepKind::Task if step.scheduled.parent.is_some() => return,
            StepKind::Task | StepKind::ToolCall => {
                (Dimension::Agent, Cow::Borrowed(&*step.scheduled.name))
            }
            StepKind::ModelCall => {
                let name = || Cow::Borrowed(&*step.scheduled.name);
                (Dimension::Model, model_of(outcome).map_or_else(name, Cow::Owned))
            }
            _ => return,
        };
        let measure = self.tally.at(at_ms, of.0, &of.1, ending);
        measure.end(took_ms);
        if let (Dimension::Model, Some(usage)) = (of.0, usage) {
            measure.spend(usage);
        }
    }
}
