//! The layer that limits the money, tokens and time that runs use.
//!
//! | over the limit | the dispatch | the event |
//! |---|---|---|
//! | `halt` | fails, kind `budget`; so does every later one of the run | `budget_action: halt_workflow` |
//! | `continue` | continues | `budget_action: continue` |
//! | `downgrade` | continues with another model | `budget_action: downgrade_model` |
//! | `request_increase` | waits: the run is paused, and a resume grants the increase | `budget_action: request_increase` |

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Means, Span};
use crate::{
    journal::Usage,
    middleware::{
        About, Change, Dispatch, DispatchLayer, Dispatched, Next, Settled, stack::settle_now,
    },
    protocol::{
        BudgetDecision, BudgetEvent, DurationMs, Failure, Json, LifecycleEvent, OperatorId,
        WorkflowId, failure::kind,
    },
};

/// The maximum number of runs whose usage is cached; for others it comes from the journal.
const RUNS: usize = 10_000;
/// The time for which the grants of a run are stored, in milliseconds: a year.
const GRANT_MS: u64 = 365 * 86_400_000;

/// The settings of `kind = "budget"`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BudgetSettings {
    /// Money, in US dollars, as a decimal text.
    #[serde(default)]
    pub usd: Option<Decimal>,
    /// Input and output tokens.
    #[serde(default)]
    pub tokens: Option<u64>,
    /// Time since the start of the run.
    #[serde(default)]
    pub wall: Option<Span>,
    /// The span that the limit applies to.
    #[serde(default)]
    pub per: Per,
    /// The fraction of a limit at which a warning is emitted, from 0 to 1.
    #[serde(default = "four_fifths")]
    pub warn_at: f64,
    /// The action at the limit.
    #[serde(default)]
    pub on_exceeded: OnExceeded,
    /// The model to continue with, for `downgrade`.
    #[serde(default)]
    pub model: Option<String>,
    /// The increase that a resume grants, in the unit of the limit that was reached, for
    /// `request_increase`; seconds for `wall`.
    #[serde(default)]
    pub increase: Option<Decimal>,
}

fn four_fifths() -> f64 {
    0.8
}

/// The span that a limit applies to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Per {
    /// One run.
    #[default]
    Run,
    /// All runs together, within an hour.
    Hour,
    /// All runs together, within a day (UTC).
    Day,
    /// All runs together, within thirty days.
    Month,
}

impl Per {
    fn window_ms(self) -> Option<u64> {
        match self {
            Self::Run => None,
            Self::Hour => Some(3_600_000),
            Self::Day => Some(86_400_000),
            Self::Month => Some(30 * 86_400_000),
        }
    }

    /// Returns the keys of the stored window: that of its length, because two versions of a blueprint may
    /// count within windows of different lengths, and the one of all lengths, of earlier releases.
    pub(crate) fn window_keys(self) -> [&'static str; 2] {
        let own = match self {
            Self::Run => "window run",
            Self::Hour => "window hour",
            Self::Day => "window day",
            Self::Month => "window month",
        };
        [own, "window"]
    }
}

/// The action at a limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnExceeded {
    /// Fails the dispatch and every later one of the run.
    #[default]
    Halt,
    /// Emits an event and continues.
    Continue,
    /// Continues with another model.
    Downgrade,
    /// Pauses the run until an increase is granted.
    RequestIncrease,
}

impl BudgetSettings {
    /// Returns the reason why the settings cannot be used, if there is one.
    pub(in crate::middleware) fn fault(&self) -> Option<String> {
        let says = |text: &str| Some(text.to_owned());
        if self.usd.is_none() && self.tokens.is_none() && self.wall.is_none() {
            return says("it needs `usd`, `tokens` or `wall`");
        }
        if self.usd.is_some_and(|usd| usd.is_sign_negative()) {
            return says("`usd` is less than nothing");
        }
        if !(0.0..=1.0).contains(&self.warn_at) {
            return says("`warn_at` is from 0 to 1");
        }
        match self.on_exceeded {
            OnExceeded::Downgrade if self.model.is_none() => says("`downgrade` needs a `model`"),
            OnExceeded::RequestIncrease if self.per != Per::Run => {
                says("`request_increase` is for `per = \"run\"`")
            }
            OnExceeded::RequestIncrease if self.increase.is_none_or(|by| by <= Decimal::ZERO) => {
                says("`request_increase` needs an `increase` over nothing")
            }
            _ if self.wall.is_some() && self.per != Per::Run => {
                says("`wall` is for `per = \"run\"`")
            }
            _ => None,
        }
    }
}

/// The amount used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
struct Spent {
    tokens: u64,
    usd: Decimal,
}

impl Spent {
    fn of(usage: &Usage) -> Self {
        let count = |tokens: Option<u64>| tokens.unwrap_or(0);
        Self {
            tokens: count(usage.input_tokens).saturating_add(count(usage.output_tokens)),
            usd: usage.cost.as_deref().and_then(|cost| cost.parse().ok()).unwrap_or_default(),
        }
    }

    fn add(&mut self, more: Self) {
        self.tokens = self.tokens.saturating_add(more.tokens);
        self.usd = self.usd.checked_add(more.usd).unwrap_or(Decimal::MAX);
    }

    fn most(self, other: Self) -> Self {
        Self { tokens: self.tokens.max(other.tokens), usd: self.usd.max(other.usd) }
    }
}

/// The amount that all runs together used within a window.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
struct Window {
    start_ms: u64,
    spent: Spent,
}

/// The unit of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Unit {
    Usd,
    Tokens,
    Wall,
}

/// The increases that a run requested and was granted; stored.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Granted {
    usd: Decimal,
    tokens: Decimal,
    wall: Decimal,
    /// The attempts that requested an increase and wait: task, attempt, unit.
    asked: Vec<(String, u32, Unit)>,
}

impl Granted {
    fn of(&mut self, unit: Unit) -> &mut Decimal {
        match unit {
            Unit::Usd => &mut self.usd,
            Unit::Tokens => &mut self.tokens,
            Unit::Wall => &mut self.wall,
        }
    }
}

#[derive(Default)]
struct Counts {
    runs: HashMap<u64, Spent>,
    warned: HashSet<(u64, Unit)>,
    window: Window,
    /// True once the window contains what is stored.
    loaded: bool,
}

impl Counts {
    /// Returns the window of a time, which begins with nothing used and nobody warned. A clock that
    /// was set back into the window before does not begin that one again.
    fn window_at(&mut self, now_ms: u64, length: u64) -> &mut Window {
        let start_ms = now_ms - now_ms % length;
        if ![start_ms, start_ms + length].contains(&self.window.start_ms) {
            self.window = Window { start_ms, spent: Spent::default() };
            self.warned.clear();
        }
        &mut self.window
    }
}

#[derive(Default)]
struct Memory {
    counts: Mutex<Counts>,
    /// Serializes decisions about grants.
    granting: tokio::sync::Mutex<()>,
}

/// Limits the usage of runs.
#[derive(Clone)]
pub struct Budget {
    name: String,
    settings: BudgetSettings,
    means: Means,
    memory: Arc<Memory>,
}

/// The usage of one limit.
struct Level {
    unit: Unit,
    spent: Decimal,
    limit: Decimal,
}

impl Budget {
    /// Creates a budget from `settings`.
    pub fn new(name: &str, settings: BudgetSettings, means: Means) -> Self {
        let memory = means.memory(&format!("{name} {:?}", settings.per));
        Self { name: name.to_owned(), settings, means, memory }
    }

    /// Returns the usage that counts against the limit.
    async fn spent(&self, about: &About) -> Result<Spent, Failure> {
        if let Some(length) = self.settings.per.window_ms() {
            return self.window(length).await;
        }
        let known = Spent::of(&about.used);
        let mut memory = self.memory.counts.lock();
        if memory.runs.len() >= RUNS && !memory.runs.contains_key(&about.run.num()) {
            // The journal knows the usage of these runs.
            memory.runs.clear();
            memory.warned.clear();
        }
        let spent = memory.runs.entry(about.run.num()).or_default();
        *spent = spent.most(known);
        Ok(*spent)
    }

    async fn window(&self, length: u64) -> Result<Spent, Failure> {
        self.load(length).await?;
        let now = self.means.clock.now_ms();
        Ok(self.memory.counts.lock().window_at(now, length).spent)
    }

    /// Adds the stored usage of the window to what was counted since the start, once.
    async fn load(&self, length: u64) -> Result<(), Failure> {
        if self.memory.counts.lock().loaded {
            return Ok(());
        }
        let mut kept = None;
        for key in self.settings.per.window_keys() {
            if kept.is_none() {
                kept = self.means.keep.read(&self.name, key).await?;
            }
        }
        let kept = kept.and_then(|it| it.decode::<Window>().ok()).unwrap_or_default();
        let mut memory = self.memory.counts.lock();
        if std::mem::replace(&mut memory.loaded, true) {
            return Ok(());
        }
        let counted = memory.window.spent;
        if kept.start_ms >= memory.window.start_ms {
            memory.window = kept;
            memory.window.spent.add(counted);
        }
        if counted != Spent::default() {
            self.post(memory.window, length);
        }
        Ok(())
    }

    fn post(&self, window: Window, length: u64) {
        let Ok(value) = Json::encode(&window) else { return };
        let [key, _] = self.settings.per.window_keys();
        let (layer, key) = (self.name.clone(), key.to_owned());
        let expires_ms = Some(window.start_ms + length);
        self.means.keep.post(Change::Put { layer, key, value, expires_ms });
    }

    async fn granted(&self, about: &About) -> Result<Granted, Failure> {
        if self.settings.on_exceeded != OnExceeded::RequestIncrease {
            return Ok(Granted::default());
        }
        let kept = self.means.keep.read(&self.name, &about.run.to_string()).await?;
        Ok(kept.and_then(|it| it.decode().ok()).unwrap_or_default())
    }

    fn levels(&self, about: &About, spent: Spent, granted: &Granted) -> Vec<Level> {
        let age = self.means.clock.now_ms().saturating_sub(about.started_ms);
        let usd = self.settings.usd.map(|limit| Level {
            unit: Unit::Usd,
            spent: spent.usd,
            limit: limit.saturating_add(granted.usd),
        });
        let tokens = self.settings.tokens.map(|limit| Level {
            unit: Unit::Tokens,
            spent: spent.tokens.into(),
            limit: Decimal::from(limit).saturating_add(granted.tokens),
        });
        let wall = self.settings.wall.map(|limit| Level {
            unit: Unit::Wall,
            spent: age.into(),
            limit: granted.wall.saturating_mul(Decimal::from(1_000)).saturating_add(limit.0.into()),
        });
        [usd, tokens, wall].into_iter().flatten().collect()
    }

    fn warn(&self, about: &About, level: &Level) {
        let part = Decimal::from_f64_retain(self.settings.warn_at).unwrap_or(Decimal::ONE);
        if level.spent < level.limit.saturating_mul(part) {
            return;
        }
        let of = if self.settings.per == Per::Run { about.run.num() } else { 0 };
        if !self.memory.counts.lock().warned.insert((of, level.unit)) {
            return;
        }
        about.voice.say(LifecycleEvent::Budget(match level.unit {
            Unit::Usd | Unit::Tokens => BudgetEvent::BudgetWarning {
                workflow: workflow(about),
                spent: level.spent,
                limit: level.limit,
            },
            Unit::Wall => BudgetEvent::TimeoutApproaching {
                operator: operator(about),
                elapsed: millis(level.spent),
                max_duration: millis(level.limit),
            },
        }));
    }

    fn decided(&self, about: &About, action: BudgetDecision) {
        let event = BudgetEvent::BudgetAction { workflow: workflow(about), action };
        about.voice.say(LifecycleEvent::Budget(event));
    }

    /// Applies the action at the limit: fails, or returns the dispatch to continue with.
    async fn exceeded(&self, mut dispatch: Dispatch, over: Level) -> Result<Dispatch, Failure> {
        let about = Arc::clone(&dispatch.about);
        if over.unit == Unit::Wall {
            let elapsed = millis(over.spent);
            let event = BudgetEvent::TimeoutReached { operator: operator(&about), elapsed };
            about.voice.say(LifecycleEvent::Budget(event));
        }
        match self.settings.on_exceeded {
            OnExceeded::Halt => {
                self.decided(&about, BudgetDecision::HaltWorkflow);
                Err(self.failure(&over))
            }
            OnExceeded::Continue => {
                self.decided(&about, BudgetDecision::Continue);
                Ok(dispatch)
            }
            OnExceeded::Downgrade => {
                let to = self.settings.model.clone().unwrap_or_default();
                let from = dispatch.config.model.replace(to.clone()).unwrap_or_default();
                if from != to {
                    self.decided(&about, BudgetDecision::DowngradeModel { from, to });
                }
                Ok(dispatch)
            }
            OnExceeded::RequestIncrease => self.request(dispatch, &over).await,
        }
    }

    /// Requests an increase, or treats a resume as its grant.
    async fn request(&self, dispatch: Dispatch, over: &Level) -> Result<Dispatch, Failure> {
        let about = &dispatch.about;
        let _one_at_a_time = self.memory.granting.lock().await;
        let mut granted = self.granted(about).await?;
        let task = about.task.to_string();
        let by = self.settings.increase.unwrap_or_default();
        let asked = granted.asked.iter().position(|(it, attempt, unit)| {
            *it == task && *attempt < about.attempt && *unit == over.unit
        });
        if let Some(asked) = asked {
            // The attempt waited, and the run was resumed: that is the grant.
            granted.asked.remove(asked);
            if self.level(about, over.unit, &granted).is_some_and(|it| it.spent >= it.limit) {
                let sum = granted.of(over.unit);
                *sum = sum.saturating_add(by);
            }
            self.keep(about, &granted).await?;
            return Ok(dispatch);
        }
        if self.level(about, over.unit, &granted).is_some_and(|it| it.spent < it.limit) {
            return Ok(dispatch);
        }
        granted.asked.push((task, about.attempt, over.unit));
        self.keep(about, &granted).await?;
        self.decided(about, BudgetDecision::RequestIncrease { amount: by });
        about.voice.pause(format!(
            "{}: {}; resume the run to grant {by} more",
            self.name,
            self.failure(over).message
        ));
        let message = "the budget is used up; the run rests until more is granted";
        Err(Failure::new(kind::INTERRUPTED, message).retryable())
    }

    fn level(&self, about: &About, unit: Unit, granted: &Granted) -> Option<Level> {
        let spent = self.memory.counts.lock().runs.get(&about.run.num()).copied();
        let spent = spent.unwrap_or_default();
        self.levels(about, spent, granted).into_iter().find(|level| level.unit == unit)
    }

    async fn keep(&self, about: &About, granted: &Granted) -> Result<(), Failure> {
        let value = Json::encode(granted)
            .map_err(|error| Failure::new(kind::BUDGET, format!("keep a grant: {error}")))?;
        let (layer, key) = (self.name.clone(), about.run.to_string());
        let expires_ms = Some(self.means.clock.now_ms() + GRANT_MS);
        self.means.keep.write(Change::Put { layer, key, value, expires_ms }).await
    }

    fn failure(&self, over: &Level) -> Failure {
        let (spent, limit) = (over.spent.normalize(), over.limit.normalize());
        let (message, unit) = match over.unit {
            Unit::Usd => (format!("{spent} of {limit} US dollars are spent"), "usd"),
            Unit::Tokens => (format!("{spent} of {limit} tokens are used"), "tokens"),
            Unit::Wall => (format!("{spent} of {limit} ms are over"), "wall"),
        };
        let data = json!({
            "code": "budget_exceeded", "layer": self.name, "unit": unit,
            "spent": spent.to_string(), "limit": limit.to_string(),
        });
        Failure::new(kind::BUDGET, message).with_data(Json::from(data))
    }

    fn add(&self, about: &About, more: Spent) -> Spent {
        let mut memory = self.memory.counts.lock();
        let Some(length) = self.settings.per.window_ms() else {
            let known = Spent::of(&about.used);
            let spent = memory.runs.entry(about.run.num()).or_default();
            *spent = spent.most(known);
            spent.add(more);
            return *spent;
        };
        memory.window_at(self.means.clock.now_ms(), length).spent.add(more);
        if memory.loaded {
            // Posted under the lock, so that the last stored value is the last counted one.
            self.post(memory.window, length);
        } else if let Some(tasks) = &self.means.tasks {
            // It was dispatched before the host started. What was counted then is read first,
            // which must not happen on this thread.
            let layer = self.clone();
            tasks.spawn(async move {
                if let Err(error) = layer.load(length).await {
                    tracing::warn!(layer = layer.name, %error, "what a layer keeps was not read");
                }
            });
        }
        memory.window.spent
    }
}

fn workflow(about: &About) -> WorkflowId {
    WorkflowId::new(about.run.to_string())
}

fn operator(about: &About) -> OperatorId {
    OperatorId::new(&*about.operator)
}

fn millis(ms: Decimal) -> DurationMs {
    DurationMs::from_millis(ms.try_into().unwrap_or(u64::MAX))
}

#[async_trait]
impl DispatchLayer for Budget {
    fn name(&self) -> &str {
        &self.name
    }

    async fn dispatch(&self, dispatch: Dispatch, next: Next<'_>) -> Result<Dispatched, Failure> {
        let (about, input) = (Arc::clone(&dispatch.about), dispatch.input.clone());
        let spent = self.spent(&about).await?;
        if about.again {
            // An earlier dispatch of this attempt was already admitted.
            return settle_now(self, &about, &input, next.run(dispatch).await);
        }
        let granted = self.granted(&about).await?;
        let levels = self.levels(&about, spent, &granted);
        levels.iter().for_each(|level| self.warn(&about, level));
        let left = levels.iter().find(|level| level.unit == Unit::Usd);
        let left = left.map(|level| level.limit.saturating_sub(level.spent).max(Decimal::ZERO));
        let over = levels.into_iter().find(|level| level.spent >= level.limit);
        let mut dispatch = match over {
            None => dispatch,
            Some(over) => self.exceeded(dispatch, over).await?,
        };
        if let (Some(left), OnExceeded::Halt) = (left, self.settings.on_exceeded) {
            let own = dispatch.config.max_cost;
            dispatch.config.max_cost = Some(own.map_or(left, |own| own.min(left)));
        }
        let outcome = next.run(dispatch).await;
        settle_now(self, &about, &input, outcome)
    }

    fn settle(&self, about: &About, _input: &Json, outcome: Settled) -> Settled {
        let usage = match &outcome {
            Ok(done) => done.usage.as_ref(),
            Err(short) => short.usage.as_ref(),
        };
        if let Some(usage) = usage {
            let more = Spent::of(usage);
            let cumulative = self.add(about, more);
            if usage.cost.is_some() && !about.model_call {
                about.voice.say(LifecycleEvent::Budget(BudgetEvent::CostIncurred {
                    operator: operator(about),
                    cost: more.usd,
                    cumulative: cumulative.usd,
                }));
            }
        }
        outcome
    }
}

#[cfg(test)]
mod tests;
