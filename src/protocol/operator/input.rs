//! The input of an operator.

use std::fmt;

use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::protocol::{Content, DurationMs, SessionId};

/// The input of one call. The operator reads stored data itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct OperatorInput {
    /// The request.
    pub message: Content,
    /// The cause of the call.
    pub trigger: TriggerType,
    /// The conversation to continue; the call is stateless if absent.
    pub session: Option<SessionId>,
    /// Settings that override the operator's defaults.
    pub config: Option<OperatorConfig>,
    /// Data that is passed through unchanged.
    #[serde(default)]
    pub metadata: Value,
}

impl OperatorInput {
    /// Creates an input without session, config or metadata.
    pub fn new(message: Content, trigger: TriggerType) -> Self {
        Self { message, trigger, session: None, config: None, metadata: Value::Null }
    }

    /// Sets the conversation.
    #[must_use]
    pub fn with_session(mut self, session: SessionId) -> Self {
        self.session = Some(session);
        self
    }

    /// Sets the settings of this call.
    #[must_use]
    pub fn with_config(mut self, config: OperatorConfig) -> Self {
        self.config = Some(config);
        self
    }

    /// Sets the metadata.
    #[must_use]
    pub fn with_metadata(mut self, metadata: Value) -> Self {
        self.metadata = metadata;
        self
    }
}

/// Settings of one call; an absent setting means the operator's own default.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct OperatorConfig {
    /// The maximum number of model calls.
    pub max_turns: Option<u32>,
    /// The maximum cost, in US dollars.
    pub max_cost: Option<Decimal>,
    /// The maximum duration.
    pub max_duration: Option<DurationMs>,
    /// The model.
    pub model: Option<String>,
    /// The only operators and tools that it may call.
    #[serde(alias = "allowed_tools")]
    pub allowed_operators: Option<Vec<String>>,
    /// Text that is appended to the system prompt; never replaces it.
    pub system_addendum: Option<String>,
}

impl OperatorConfig {
    /// Sets the maximum number of model calls.
    #[must_use]
    pub fn with_max_turns(mut self, max_turns: u32) -> Self {
        self.max_turns = Some(max_turns);
        self
    }

    /// Sets the maximum cost, in US dollars.
    #[must_use]
    pub fn with_max_cost(mut self, max_cost: Decimal) -> Self {
        self.max_cost = Some(max_cost);
        self
    }

    /// Sets the maximum duration.
    #[must_use]
    pub fn with_max_duration(mut self, max_duration: DurationMs) -> Self {
        self.max_duration = Some(max_duration);
        self
    }

    /// Sets the model.
    #[must_use]
    pub fn with_model(mut self, model: impl Into<String>) -> Self {
        self.model = Some(model.into());
        self
    }

    /// Sets the only operators and tools that may be called.
    #[must_use]
    pub fn with_allowed_operators(mut self, operators: Vec<String>) -> Self {
        self.allowed_operators = Some(operators);
        self
    }

    /// Sets the addition to the system prompt.
    #[must_use]
    pub fn with_system_addendum(mut self, addendum: impl Into<String>) -> Self {
        self.system_addendum = Some(addendum.into());
        self
    }
}

/// The cause of a call.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TriggerType {
    /// A person wrote.
    User,
    /// A flow or another agent assigned it.
    Task,
    /// A signal arrived.
    Signal,
    /// A schedule fired.
    Schedule,
    /// An external event: a file changed, a webhook was called.
    SystemEvent,
    /// Any other cause.
    Custom(String),
}

impl TriggerType {
    /// Creates a custom trigger.
    pub fn custom(name: impl Into<String>) -> Self {
        Self::Custom(name.into())
    }
}

impl fmt::Display for TriggerType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User => f.write_str("user"),
            Self::Task => f.write_str("task"),
            Self::Signal => f.write_str("signal"),
            Self::Schedule => f.write_str("schedule"),
            Self::SystemEvent => f.write_str("system_event"),
            Self::Custom(name) => write!(f, "custom: {name}"),
        }
    }
}
