//! The limits of a loop: warnings before a limit is reached, and the action when it is.

use rust_decimal::{Decimal, prelude::ToPrimitive as _};

use super::{Exceeded, LoopStop, ResponseFlow};
use crate::{
    journal::Usage,
    protocol::{
        BudgetDecision, BudgetEvent, ExitReason, Failure, LifecycleEvent, WorkflowId, failure::kind,
    },
};

impl ResponseFlow {
    /// Returns the model that replaces the agent's own after the cost limit was reached.
    pub fn downgraded(&self) -> Option<&str> {
        match &self.settings.limits.exceeded {
            Exceeded::Downgrade(model) if self.warned.exceeded => Some(model),
            Exceeded::Downgrade(_) | Exceeded::Halt | Exceeded::Continue => None,
        }
    }

    /// Stops the loop if the limit of turns is reached.
    pub(super) fn hold_turns(&mut self) -> Result<(), Box<LoopStop>> {
        if self.sums.turns < self.settings.limits.turns {
            return Ok(());
        }
        self.tell_limit_reached(self.sums.turns);
        let message = format!(
            "the model was asked {} time(s) and had not come to an end; `max_turns` allows more",
            self.sums.turns
        );
        Err(LoopStop::new(ExitReason::MaxTurns, Failure::new(kind::LIMIT, message)))
    }

    /// Warns of the limit of turns when a turn starts.
    pub(super) fn warn_of_turns(&mut self) {
        let (current, max) = (self.sums.turns, self.settings.limits.turns);
        if !self.warned.turns && self.is_near(current, max) {
            self.warned.turns = true;
            self.tell_near(current, max);
        }
    }

    /// Warns of the limit of calls when a batch starts.
    pub(super) fn warn_of_calls(&mut self) {
        let Some(max) = self.settings.limits.tool_calls else { return };
        let current = self.sums.calls;
        if !self.warned.calls && self.is_near(current, max) {
            self.warned.calls = true;
            self.tell_near(current, max);
        }
    }

    /// Returns true if a count is close enough to its limit for a warning. Never true for a limit
    /// of one.
    fn is_near(&self, current: u32, max: u32) -> bool {
        max > 1 && f64::from(current) >= f64::from(max) * self.settings.limits.warn_at
    }

    /// Reports what a call of the model cost, if that is known.
    pub(super) fn tell_cost(&mut self, used: &Usage) {
        let (Some(cost), operator) = (used.usd(), self.operator()) else { return };
        let cumulative = self.sums.used.usd().unwrap_or(cost);
        self.tell_budget(BudgetEvent::CostIncurred { operator, cost, cumulative });
    }

    /// Checks the cost against its limit.
    pub(super) fn hold_costs(&mut self) -> Result<(), Box<LoopStop>> {
        let Some(most) = self.settings.limits.cost else { return Ok(()) };
        let used = self.sums.used.usd().unwrap_or_default();
        let part = Decimal::try_from(self.settings.limits.warn_at).unwrap_or(Decimal::ONE);
        if !self.warned.cost && used > Decimal::ZERO && used >= most * part {
            self.warned.cost = true;
            let workflow = self.workflow();
            self.tell_budget(BudgetEvent::BudgetWarning { workflow, spent: used, limit: most });
        }
        if used < most {
            return Ok(());
        }
        let first = !std::mem::replace(&mut self.warned.exceeded, true);
        let action = match &self.settings.limits.exceeded {
            Exceeded::Halt => BudgetDecision::HaltWorkflow,
            Exceeded::Continue => BudgetDecision::Continue,
            Exceeded::Downgrade(to) => {
                BudgetDecision::DowngradeModel { from: self.model.clone(), to: to.clone() }
            }
        };
        let halts = action == BudgetDecision::HaltWorkflow;
        if first {
            self.tell_budget(BudgetEvent::BudgetAction { workflow: self.workflow(), action });
        }
        if !halts {
            return Ok(());
        }
        let message = format!("`max_cost` is used up: ${used} of ${most}");
        Err(LoopStop::new(ExitReason::BudgetExhausted, Failure::new(kind::BUDGET, message)))
    }

    /// Returns the elapsed time in milliseconds after which a loop with this timeout is near its
    /// end.
    pub fn near_end_ms(&self, max_ms: u64) -> u64 {
        let part = max_ms.to_f64().unwrap_or(f64::MAX) * self.settings.limits.warn_at;
        part.to_u64().unwrap_or(max_ms).min(max_ms)
    }

    fn tell_near(&mut self, current: u32, max: u32) {
        let operator = self.operator();
        self.tell_budget(BudgetEvent::StepLimitApproaching { operator, current, max });
    }

    pub(super) fn tell_limit_reached(&mut self, total_sub_dispatches: u32) {
        let operator = self.operator();
        self.tell_budget(BudgetEvent::StepLimitReached { operator, total_sub_dispatches });
    }

    pub(super) fn tell_budget(&mut self, event: BudgetEvent) {
        self.events.push(LifecycleEvent::Budget(event));
    }

    fn workflow(&self) -> WorkflowId {
        WorkflowId::new(self.settings.run.clone())
    }
}
