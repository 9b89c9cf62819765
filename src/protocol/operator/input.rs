//! What goes into an operator.

use std::fmt;

use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::protocol::{Content, DurationMs, SessionId};

/// What is new for an operator; what is already stored it reads itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct OperatorInput {
    /// What it is asked.
    pub message: Content,
    /// Why it is asked now.
    pub trigger: TriggerType,
    /// The conversation that it goes on with; without one it is stateless.
    pub session: Option<SessionId>,
    /// What differs from its defaults.
    pub config: Option<OperatorConfig>,
    /// Data that passes through untouched.
    #[serde(default)]
    pub metadata: Value,
}

impl OperatorInput {
    /// An input without session, config or metadata.
    pub fn new(message: Content, trigger: TriggerType) -> Self {
        Self { message, trigger, session: None, config: None, metadata: Value::Null }
    }

    /// The same, within a conversation.
    #[must_use]
    pub fn with_session(mut self, session: SessionId) -> Self {
        self.session = Some(session);
        self
    }

    /// The same, with settings of its own.
    #[must_use]
    pub fn with_config(mut self, config: OperatorConfig) -> Self {
        self.config = Some(config);
        self
    }

    /// The same, with data that passes through.
    #[must_use]
    pub fn with_metadata(mut self, metadata: Value) -> Self {
        self.metadata = metadata;
        self
    }
}

/// Settings of one call; what is absent is the operator's own default.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct OperatorConfig {
    /// How often it may ask its model.
    pub max_turns: Option<u32>,
    /// What it may cost, in US dollars.
    pub max_cost: Option<Decimal>,
    /// How long it may take.
    pub max_duration: Option<DurationMs>,
    /// Which model.
    pub model: Option<String>,
    /// The only operators and tools that it may call.
    #[serde(alias = "allowed_tools")]
    pub allowed_operators: Option<Vec<String>>,
    /// What its system prompt says besides; it never replaces the prompt.
    pub system_addendum: Option<String>,
}

impl OperatorConfig {
    /// The same, with a limit on turns.
    #[must_use]
    pub fn with_max_turns(mut self, max_turns: u32) -> Self {
        self.max_turns = Some(max_turns);
        self
    }

    /// The same, with a limit on cost in US dollars.
    #[must_use]
    pub fn with_max_cost(mut self, max_cost: Decimal) -> Self {
        self.max_cost = Some(max_cost);
        self
    }

    /// The same, with a limit on time.
    #[must_use]
    pub fn with_max_duration(mut self, max_duration: DurationMs) -> Self {
        self.max_duration = Some(max_duration);
        self
    }

    /// The same, with a model.
    #[must_use]
    pub fn with_model(mut self, model: impl Into<String>) -> Self {
        self.model = Some(model.into());
        self
    }

    /// The same, with the only operators and tools that may be called.
    #[must_use]
    pub fn with_allowed_operators(mut self, operators: Vec<String>) -> Self {
        self.allowed_operators = Some(operators);
        self
    }

    /// The same, with an addition to the system prompt.
    #[must_use]
    pub fn with_system_addendum(mut self, addendum: impl Into<String>) -> Self {
        self.system_addendum = Some(addendum.into());
        self
    }
}

/// What set an operator to work.
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
    /// The clock.
    Schedule,
    /// Something outside happened: a file changed, a webhook was called.
    SystemEvent,
    /// Something else.
    Custom(String),
}

impl TriggerType {
    /// A trigger of the author's own.
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
