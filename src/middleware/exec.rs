//! The boundary of execution: programs that the host starts on its machine and, for layers that name
//! their kinds, the work of other operators.

use std::{fmt, panic::AssertUnwindSafe, sync::Arc};

use async_trait::async_trait;
use futures::{FutureExt, future::BoxFuture};

use super::{Class, Dispatched, Settled};
use crate::protocol::{Failure, Json, RunId, TaskId};

/// The kind of operators that start programs.
pub const PROGRAMS: &str = "process";

/// A program to be started, or an operator to be executed.
#[derive(Clone, PartialEq)]
pub struct ExecCall {
    /// The run.
    pub run: RunId,
    /// The task.
    pub task: TaskId,
    /// The attempt.
    pub attempt: u32,
    /// The agent.
    pub agent: Arc<str>,
    /// The operator.
    pub operator: Arc<str>,
    /// The operator's kind; [`PROGRAMS`] for a program.
    pub kind: &'static str,
    /// The program; the operator's name for other kinds.
    pub program: String,
    /// The arguments.
    pub args: Vec<String>,
    /// The names of its environment variables.
    pub env: Vec<String>,
    /// The input of the operator. A layer may put another in its place, but not in that of a
    /// program, which has its own.
    pub input: Json,
}

/// Omits the arguments, which may contain secrets.
impl fmt::Debug for ExecCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecCall")
            .field("task", &self.task.to_string())
            .field("attempt", &self.attempt)
            .field("program", &self.program)
            .finish_non_exhaustive()
    }
}

/// A transformer or a guard of programs, or of other kinds that it names.
#[async_trait]
pub trait ExecLayer: Send + Sync {
    /// Returns the name in logs.
    fn name(&self) -> &str;

    /// Returns true if it stands around operators of a kind; by default around programs alone.
    fn stands_around(&self, kind: &str) -> bool {
        kind == PROGRAMS
    }

    /// Handles a program; without a call of `next` its own answer is final.
    ///
    /// # Errors
    /// Fails when it refuses, or with the error of `next`.
    async fn exec(&self, call: ExecCall, next: ExecNext<'_>) -> Result<Dispatched, Failure>;
}

/// Observes programs, or other kinds that it names.
pub trait ExecObserver: Send + Sync {
    /// Returns the name in logs.
    fn name(&self) -> &str;

    /// Returns true if it observes operators of a kind; by default programs alone.
    fn stands_around(&self, kind: &str) -> bool {
        kind == PROGRAMS
    }

    /// Called before a program is started.
    fn starting(&self, call: &ExecCall);

    /// Called after it ended.
    fn ended(&self, call: &ExecCall, outcome: &Result<Dispatched, Failure>);
}

/// The end of the stack, which starts the program.
#[async_trait]
pub trait ExecTerminal: Send + Sync {
    /// Runs the program to its end.
    ///
    /// # Errors
    /// Returns the failure of the attempt.
    async fn exec(&self, call: ExecCall) -> Result<Dispatched, Failure>;
}

/// The layers that every program passes through.
#[derive(Clone, Default)]
pub struct ExecStack {
    observers: Vec<Arc<dyn ExecObserver>>,
    transformers: Vec<Arc<dyn ExecLayer>>,
    guards: Vec<Arc<dyn ExecLayer>>,
}

/// Builds an [`ExecStack`].
#[derive(Default)]
pub struct ExecStackBuilder(ExecStack);

/// The remaining stack, below one layer.
#[derive(Clone, Copy)]
pub struct ExecNext<'a> {
    transformers: &'a [Arc<dyn ExecLayer>],
    guards: &'a [Arc<dyn ExecLayer>],
    terminal: &'a dyn ExecTerminal,
}

impl ExecStackBuilder {
    /// Adds an observer, inside the observers before it.
    #[must_use]
    pub fn observe(mut self, observer: impl ExecObserver + 'static) -> Self {
        self.0.observers.push(Arc::new(observer));
        self
    }

    /// Adds a transformer, inside the transformers before it.
    #[must_use]
    pub fn transform(mut self, layer: impl ExecLayer + 'static) -> Self {
        self.0.transformers.push(Arc::new(layer));
        self
    }

    /// Adds a guard, inside the guards before it.
    #[must_use]
    pub fn guard(mut self, layer: impl ExecLayer + 'static) -> Self {
        self.0.guards.push(Arc::new(layer));
        self
    }

    /// Adds every layer of another stack, each inside the layers of its class before it.
    #[must_use]
    pub fn with(mut self, other: &ExecStack) -> Self {
        self.0.observers.extend(other.observers.iter().map(Arc::clone));
        self.0.transformers.extend(other.transformers.iter().map(Arc::clone));
        self.0.guards.extend(other.guards.iter().map(Arc::clone));
        self
    }

    /// Builds the stack.
    pub fn build(self) -> ExecStack {
        self.0
    }
}

impl ExecStack {
    /// Returns a builder of an empty stack.
    pub fn builder() -> ExecStackBuilder {
        ExecStackBuilder::default()
    }

    /// Sends a program through every layer to the terminal; an empty stack calls the terminal
    /// directly.
    ///
    /// # Errors
    /// Fails when a layer refuses, or with the failure of the terminal.
    ///
    /// # Cancel safety
    /// Dropping the future drops the layer or terminal that is executing.
    pub async fn run(
        &self,
        call: ExecCall,
        terminal: &dyn ExecTerminal,
    ) -> Result<Dispatched, Failure> {
        let kind = call.kind;
        let observed = self.observers.iter().any(|it| it.stands_around(kind));
        let asked = observed.then(|| call.clone());
        if let Some(asked) = &asked {
            self.watch(kind, |observer| observer.starting(asked));
        }
        let next = ExecNext { transformers: &self.transformers, guards: &self.guards, terminal };
        let outcome = next.run(call).await;
        if let Some(asked) = &asked {
            self.watch(kind, |observer| observer.ended(asked, &outcome));
        }
        outcome
    }

    /// Returns true if a layer stands around operators of a kind.
    pub fn stands_around(&self, kind: &str) -> bool {
        let mut layers = self.transformers.iter().chain(&self.guards);
        layers.any(|it| it.stands_around(kind))
            || self.observers.iter().any(|it| it.stands_around(kind))
    }

    fn watch(&self, kind: &str, look: impl Fn(&dyn ExecObserver)) {
        for observer in self.observers.iter().filter(|it| it.stands_around(kind)) {
            if std::panic::catch_unwind(AssertUnwindSafe(|| look(&**observer))).is_err() {
                tracing::warn!(observer = observer.name(), "an observer panicked");
            }
        }
    }

    /// Returns the layers with their classes, from the outermost to the innermost.
    pub fn layers(&self) -> impl Iterator<Item = (Class, &str)> {
        let observers = self.observers.iter().map(|layer| (Class::Observer, layer.name()));
        let transformers = self.transformers.iter().map(|layer| (Class::Transformer, layer.name()));
        let guards = self.guards.iter().map(|layer| (Class::Guard, layer.name()));
        observers.chain(transformers).chain(guards)
    }
}

impl<'a> ExecNext<'a> {
    /// Passes the program to the next layer, or starts it.
    ///
    /// # Errors
    /// Fails when an inner layer refuses, or with the failure of the terminal.
    pub fn run(self, call: ExecCall) -> BoxFuture<'a, Result<Dispatched, Failure>> {
        let mut rest = self;
        while let Some((layer, transformers)) = rest.transformers.split_first() {
            rest = ExecNext { transformers, ..rest };
            if layer.stands_around(call.kind) {
                return layer.exec(call, rest);
            }
        }
        while let Some((guard, guards)) = rest.guards.split_first() {
            rest = ExecNext { guards, ..rest };
            if guard.stands_around(call.kind) {
                let guarded = guard.exec(call, rest);
                return guarded.map(|outcome| outcome.map_err(super::stack::refused)).boxed();
            }
        }
        rest.terminal.exec(call)
    }
}

/// Returns the name of an outcome: the kind of a failure, never its message.
pub(super) fn word<T>(outcome: &Result<T, Failure>) -> &str {
    match outcome {
        Ok(_) => "done",
        Err(failure) => &failure.kind,
    }
}

/// Returns the name of the outcome of a settlement.
pub(super) fn settled_word(outcome: &Settled) -> &str {
    match outcome {
        Ok(_) => "done",
        Err(short) => &short.failure.kind,
    }
}
