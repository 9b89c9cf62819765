//! Events of a run that layers and operators emit: budgets, compactions, observations.
//!
//! This is a vocabulary without a trait: the emitter adds the event to the stream of the run, where
//! it is numbered and durable.

use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Content, DurationMs, OperatorId, Scope, WorkflowId};

/// Money, steps and time of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "host", derive(utoipa::ToSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum BudgetEvent {
    /// Something cost money.
    CostIncurred {
        /// The spender.
        #[cfg_attr(feature = "host", schema(value_type = String))]
        operator: OperatorId,
        /// The cost.
        #[cfg_attr(feature = "host", schema(value_type = String))]
        cost: Decimal,
        /// The cost of the workflow so far, including this.
        #[cfg_attr(feature = "host", schema(value_type = String))]
        cumulative: Decimal,
    },
    /// A limit is near.
    BudgetWarning {
        /// The owner of the limit.
        #[cfg_attr(feature = "host", schema(value_type = String))]
        workflow: WorkflowId,
        /// The spent resource: money, or a number of tokens.
        #[cfg_attr(feature = "host", schema(value_type = String))]
        spent: Decimal,
        /// The limit, in the same unit.
        #[cfg_attr(feature = "host", schema(value_type = String))]
        limit: Decimal,
    },
    /// A limit was reached, and this was decided.
    BudgetAction {
        /// The owner of the limit.
        #[cfg_attr(feature = "host", schema(value_type = String))]
        workflow: WorkflowId,
        /// The decision.
        action: BudgetDecision,
    },
    /// The calls of an operator near their limit.
    StepLimitApproaching {
        /// The caller.
        #[cfg_attr(feature = "host", schema(value_type = String))]
        operator: OperatorId,
        /// The number.
        current: u32,
        /// The maximum number.
        max: u32,
    },
    /// The calls of an operator reached their limit.
    StepLimitReached {
        /// The caller.
        #[cfg_attr(feature = "host", schema(value_type = String))]
        operator: OperatorId,
        /// The number.
        #[serde(alias = "total_tool_calls")]
        total_sub_dispatches: u32,
    },
    /// An operator makes the same call again and again.
    LoopDetected {
        /// The provider.
        #[cfg_attr(feature = "host", schema(value_type = String))]
        operator: OperatorId,
        /// The name of the called function.
        #[serde(alias = "tool_name")]
        operator_name: String,
        /// The number of times in a row.
        consecutive_count: u32,
        /// The maximum number of times.
        max: u32,
    },
    /// The time of an operator nears its limit.
    TimeoutApproaching {
        /// The owner of the time.
        #[cfg_attr(feature = "host", schema(value_type = String))]
        operator: OperatorId,
        /// The time used.
        #[cfg_attr(feature = "host", schema(value_type = u64))]
        elapsed: DurationMs,
        /// The time allowed.
        #[cfg_attr(feature = "host", schema(value_type = u64))]
        max_duration: DurationMs,
    },
    /// The time of an operator is over.
    TimeoutReached {
        /// The owner of the time.
        #[cfg_attr(feature = "host", schema(value_type = String))]
        operator: OperatorId,
        /// The time used.
        #[cfg_attr(feature = "host", schema(value_type = u64))]
        elapsed: DurationMs,
    },
}

/// The action for a limit that was reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "host", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum BudgetDecision {
    /// Go on all the same.
    Continue,
    /// Go on with a cheaper model.
    DowngradeModel {
        /// The model so far.
        from: String,
        /// The model from now on.
        to: String,
    },
    /// Stop the whole workflow.
    HaltWorkflow,
    /// Ask for more.
    RequestIncrease {
        /// The amount added.
        #[cfg_attr(feature = "host", schema(value_type = String))]
        amount: Decimal,
    },
}

/// The way in which the history for a model is shortened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "host", derive(utoipa::ToSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum CompactionEvent {
    /// The window fills up.
    ContextPressure {
        /// The owner of the window.
        #[cfg_attr(feature = "host", schema(value_type = String))]
        operator: OperatorId,
        /// The fill level, in percent.
        fill_percent: f64,
        /// The tokens in it.
        tokens_used: u64,
        /// The tokens that still fit.
        tokens_available: u64,
    },
    /// State that must not be lost has to be written now.
    PreCompactionFlush {
        /// The agent that is about to compact.
        #[cfg_attr(feature = "host", schema(value_type = String))]
        operator: OperatorId,
        /// The place where it is written.
        #[cfg_attr(feature = "host", schema(value_type = Value))]
        scope: Scope,
    },
    /// The history was made smaller.
    CompactionComplete {
        /// The owner of the history.
        #[cfg_attr(feature = "host", schema(value_type = String))]
        operator: OperatorId,
        /// The method.
        strategy: String,
        /// The tokens that this gained.
        tokens_freed: u64,
    },
    /// The model's provider made the history smaller.
    ProviderManaged {
        /// The owner of the history.
        #[cfg_attr(feature = "host", schema(value_type = String))]
        operator: OperatorId,
        /// The provider.
        provider: String,
        /// Tokens before.
        tokens_before: u64,
        /// Tokens after.
        tokens_after: u64,
        /// The provider's summary of what is gone.
        #[cfg_attr(feature = "host", schema(value_type = Option<Value>))]
        summary: Option<Content>,
    },
    /// The history could not be made smaller.
    CompactionFailed {
        /// The owner of the history.
        #[cfg_attr(feature = "host", schema(value_type = String))]
        operator: OperatorId,
        /// The reason.
        error: String,
        /// The method that was tried.
        strategy: String,
    },
    /// The history was left as it is.
    CompactionSkipped {
        /// The owner of the history.
        #[cfg_attr(feature = "host", schema(value_type = String))]
        operator: OperatorId,
        /// The reason.
        reason: String,
    },
    /// Something could not be written before a compaction.
    FlushFailed {
        /// The agent that is about to compact.
        #[cfg_attr(feature = "host", schema(value_type = String))]
        operator: OperatorId,
        /// The place where it should have been written.
        #[cfg_attr(feature = "host", schema(value_type = Value))]
        scope: Scope,
        /// Under which key.
        key: String,
        /// The reason for the refusal.
        error: String,
    },
    /// The quality of a compaction.
    CompactionQuality {
        /// The owner of the history.
        #[cfg_attr(feature = "host", schema(value_type = String))]
        operator: OperatorId,
        /// Tokens before.
        tokens_before: u64,
        /// Tokens after.
        tokens_after: u64,
        /// Messages that are still there.
        items_preserved: u32,
        /// Messages that are gone.
        items_lost: u32,
    },
}

/// The treatment of a message when the history is compacted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CompactionPolicy {
    /// Always kept.
    Pinned,
    /// Removed when space is needed.
    #[default]
    Normal,
    /// Removed first.
    CompressFirst,
    /// Removed when the work that it belongs to is done.
    DiscardWhenDone,
}

/// An event for watchers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "host", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct ObservableEvent {
    /// Which side tells it.
    pub source: EventSource,
    /// The kind, as the reporter names it.
    pub event_type: String,
    /// The time since the start of the workflow.
    #[cfg_attr(feature = "host", schema(value_type = u64))]
    pub timestamp: DurationMs,
    /// Its data.
    pub data: Value,
    /// Ties it to other events.
    pub trace_id: Option<String>,
    /// The workflow that it belongs to.
    #[cfg_attr(feature = "host", schema(value_type = Option<String>))]
    pub workflow_id: Option<WorkflowId>,
    /// The operator that it belongs to.
    #[cfg_attr(feature = "host", schema(value_type = Option<String>))]
    pub operator_id: Option<OperatorId>,
}

/// Which side tells an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "host", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum EventSource {
    /// An operator at work.
    Turn,
    /// The orchestrator or operator that dispatches.
    Orchestration,
    /// State.
    State,
    /// The place of execution.
    Environment,
    /// A layer between them.
    #[serde(alias = "middleware")]
    Hook,
}

impl ObservableEvent {
    /// Creates an event without references to other things.
    pub fn new(
        source: EventSource,
        event_type: impl Into<String>,
        timestamp: DurationMs,
        data: Value,
    ) -> Self {
        Self {
            source,
            event_type: event_type.into(),
            timestamp,
            data,
            trace_id: None,
            workflow_id: None,
            operator_id: None,
        }
    }
}

/// An event that the stream of a run carries in addition to the engine's own.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum LifecycleEvent {
    /// A budget: money, steps, time.
    Budget(BudgetEvent),
    /// A compaction of a model's history.
    Compaction(CompactionEvent),
    /// Any other observation.
    Observable(ObservableEvent),
}

/// The data of an event do not fit its kind.
#[derive(Debug, thiserror::Error)]
#[error("read a {kind} event: {reason}")]
pub struct EventError {
    /// The kind.
    pub kind: String,
    /// The error message.
    pub reason: String,
}

impl LifecycleEvent {
    /// Returns the name of the kind in streams and effects: `budget`, `compaction`, `observable`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Budget(_) => "budget",
            Self::Compaction(_) => "compaction",
            Self::Observable(_) => "observable",
        }
    }

    /// Encodes the event as JSON.
    pub fn data(&self) -> Value {
        let data = match self {
            Self::Budget(event) => serde_json::to_value(event),
            Self::Compaction(event) => serde_json::to_value(event),
            Self::Observable(event) => serde_json::to_value(event),
        };
        data.expect("an event is plain data with text as keys")
    }

    /// Decodes an event of `kind`; returns `None` if `kind` is not a lifecycle event.
    ///
    /// # Errors
    /// Fails when the data do not fit the kind.
    pub fn read(kind: &str, data: &Value) -> Result<Option<Self>, EventError> {
        let event = match kind {
            "budget" => BudgetEvent::deserialize(data).map(Self::Budget),
            "compaction" => CompactionEvent::deserialize(data).map(Self::Compaction),
            "observable" => ObservableEvent::deserialize(data).map(Self::Observable),
            _ => return Ok(None),
        };
        event
            .map(Some)
            .map_err(|error| EventError { kind: kind.to_owned(), reason: error.to_string() })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_budget_event_survives_a_round_trip() {
        for wire in [
            json!({"type": "cost_incurred", "operator": "o", "cost": "0.10", "cumulative": "1.5"}),
            json!({"type": "budget_warning", "workflow": "w", "spent": "2", "limit": "2.50"}),
            json!({"type": "budget_action", "workflow": "w", "action": "continue"}),
            json!({"type": "budget_action", "workflow": "w",
                "action": {"downgrade_model": {"from": "a", "to": "b"}}}),
            json!({"type": "budget_action", "workflow": "w", "action": "halt_workflow"}),
            json!({"type": "budget_action", "workflow": "w",
                "action": {"request_increase": {"amount": "5"}}}),
            json!({"type": "step_limit_approaching", "operator": "o", "current": 8, "max": 10}),
            json!({"type": "step_limit_reached", "operator": "o", "total_sub_dispatches": 10}),
            json!({"type": "loop_detected", "operator": "o", "operator_name": "grep",
                "consecutive_count": 3, "max": 3}),
            json!({"type": "timeout_approaching", "operator": "o", "elapsed": 8, "max_duration": 10}),
            json!({"type": "timeout_reached", "operator": "o", "elapsed": 10}),
        ] {
            let event = LifecycleEvent::read("budget", &wire).unwrap().unwrap();
            assert_eq!((event.kind(), event.data()), ("budget", wire));
        }
    }

    #[test]
    fn every_compaction_event_survives_a_round_trip() {
        for wire in [
            json!({"type": "context_pressure", "operator": "o", "fill_percent": 81.5,
                "tokens_used": 8, "tokens_available": 2}),
            json!({"type": "pre_compaction_flush", "operator": "o", "scope": "global"}),
            json!({"type": "compaction_complete", "operator": "o", "strategy": "s",
                "tokens_freed": 5}),
            json!({"type": "provider_managed", "operator": "o", "provider": "p",
                "tokens_before": 9, "tokens_after": 3, "summary": "short"}),
            json!({"type": "compaction_failed", "operator": "o", "error": "e", "strategy": "s"}),
            json!({"type": "compaction_skipped", "operator": "o", "reason": "r"}),
            json!({"type": "flush_failed", "operator": "o", "scope": {"session": "s"}, "key": "k",
                "error": "e"}),
            json!({"type": "compaction_quality", "operator": "o", "tokens_before": 9,
                "tokens_after": 3, "items_preserved": 2, "items_lost": 4}),
        ] {
            let event = LifecycleEvent::read("compaction", &wire).unwrap().unwrap();
            assert_eq!((event.kind(), event.data()), ("compaction", wire));
        }
    }

    #[test]
    fn earlier_field_names_are_still_read() {
        let reached = json!({"type": "step_limit_reached", "operator": "o", "total_tool_calls": 4});
        let expected = BudgetEvent::StepLimitReached {
            operator: OperatorId::from("o"),
            total_sub_dispatches: 4,
        };
        assert_eq!(serde_json::from_value::<BudgetEvent>(reached).unwrap(), expected);
        let looped = json!({"type": "loop_detected", "operator": "o", "tool_name": "ls",
            "consecutive_count": 2, "max": 2});
        let Ok(BudgetEvent::LoopDetected { operator_name, .. }) = serde_json::from_value(looped)
        else {
            panic!("it is a loop");
        };
        assert_eq!(operator_name, "ls");
    }

    #[test]
    fn an_observation_counts_time_from_the_start_and_ties_to_nothing_by_itself() {
        let span = DurationMs::from_millis(12);
        let event = ObservableEvent::new(EventSource::Orchestration, "ns.what", span, json!(1));
        let wire = json!({"source": "orchestration", "event_type": "ns.what", "timestamp": 12,
            "data": 1, "trace_id": null, "workflow_id": null, "operator_id": null});
        assert_eq!(serde_json::to_value(&event).unwrap(), wire);
    }

    #[test]
    fn a_kind_that_is_none_of_these_is_nobodys_and_bad_data_are_an_error() {
        assert_eq!(LifecycleEvent::read("weather", &json!({})).unwrap(), None);
        let error = LifecycleEvent::read("budget", &json!({"type": "rain"})).unwrap_err();
        assert!(error.to_string().starts_with("read a budget event: unknown variant"), "{error}");
    }

    #[test]
    fn a_policy_is_normal_unless_somebody_says_otherwise() {
        assert_eq!(CompactionPolicy::default(), CompactionPolicy::Normal);
        assert_eq!(
            serde_json::to_value(CompactionPolicy::DiscardWhenDone).unwrap(),
            json!("discard_when_done")
        );
    }
}
