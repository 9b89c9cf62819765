//! Chains in a store: each response is a run, and its journal is the chain.
//!
//! The commit that records a step assigns its number. If another commit came first, the store
//! refuses this one, and it is retried on top. So several processes can work on the same response.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};

use super::{LoopError, MultiStepStore, StoreError, Transition, assemble::assembled};
use crate::{
    clock::Clock,
    journal::{
        AttemptClosed, AttemptOpened, Chain, Entry, Fact, Outcome, RunStarted, RunState, Scheduled,
        ScopePath, Step, StepKey, fingerprint,
    },
    protocol::{
        ChainStep, Failure, Json, NextAction, RecordedStep, RunId, StepDescriptor, StepKind,
        StepState, failure::kind,
    },
    store::{self, Header, RunStatus, RunWrite, Store, append, commit},
    tasks::Tasks,
};

/// The maximum number of attempts of a commit that loses against others.
const TRIES: u32 = 64;
/// The name of these runs in lists.
const NAME: &str = "response";

/// The chains of responses in a store.
#[derive(Clone)]
pub struct Chains {
    store: Arc<dyn Store>,
    clock: Clock,
    tasks: Tasks,
    transition: Arc<dyn Transition>,
}

/// A new response.
#[derive(Debug, Clone, PartialEq)]
pub struct NewResponse {
    /// The request.
    pub request: Json,
    /// The subject of the requester's token.
    pub principal: String,
}

/// The current journal of a run.
struct Read {
    header: Header,
    chain: Chain,
}

impl Chains {
    /// Creates chains in `store`. `transition` returns the next action of a chain.
    pub fn new(
        store: Arc<dyn Store>,
        clock: Clock,
        tasks: Tasks,
        transition: impl Transition + 'static,
    ) -> Self {
        Self { store, clock, tasks, transition: Arc::new(transition) }
    }

    /// Chains in memory, for a loop that no restart goes on with.
    ///
    /// # Panics
    /// Outside of a runtime of tokio.
    pub fn in_memory(transition: impl Transition + 'static) -> Self {
        let tasks = Tasks::new(tokio::runtime::Handle::current());
        Self::new(Arc::new(store::Memory::new()), Clock::system(), tasks, transition)
    }

    /// Starts a response and returns its id.
    ///
    /// # Errors
    /// Fails when it cannot be stored.
    pub async fn begin(&self, new: NewResponse) -> Result<String, StoreError> {
        let now_ms = self.clock.now_ms();
        let id = RunId::new(self.store.next_run(), now_ms);
        let started = RunStarted {
            blueprint: NAME.to_owned(),
            hash: String::new(),
            input: new.request,
            trigger: json!({ "kind": NAME }).into(),
            seed: 0,
            parent: None,
            depth: 0,
            workdir: None,
            principal: new.principal.clone(),
            delegate: None,
            grant: Json::null(),
            generation: 0,
            first_step: 1,
            queued: Vec::new(),
            continues: None,
        };
        // The caller drives the run; no shard has a flow for it.
        let header = Header {
            blueprint: NAME.to_owned(),
            status: RunStatus::Running,
            principal: new.principal,
            ..Header::fresh(id.num(), now_ms)
        };
        let fact = Fact::RunStarted(Box::new(started));
        self.append(header, None, Chain::full(), vec![fact]).await?;
        Ok(id.to_string())
    }

    /// Records the end of a response. Its chain is then final.
    ///
    /// # Errors
    /// Fails when the response does not exist or has ended, or the store cannot write.
    pub async fn close(
        &self,
        request_id: &str,
        outcome: &Result<Value, LoopError>,
    ) -> Result<(), StoreError> {
        let outcome = match outcome {
            Ok(value) => Outcome::Completed(value.into()),
            Err(error) => {
                let failure = Failure::new(kind::MODEL, error.to_string());
                Outcome::Failed(failure.with_data(error.payload().into()))
            }
        };
        self.change(request_id, |_| Ok((vec![Fact::RunEnded(outcome.clone())], ()))).await
    }

    async fn read(&self, request_id: &str) -> Result<Read, StoreError> {
        let missing = || StoreError::NotFound(request_id.to_owned());
        let run: RunId = request_id.parse().map_err(|_| missing())?;
        let store = Arc::clone(&self.store);
        let read = self.tasks.spawn_blocking(move || {
            let header = store.header(run.num())?;
            let entries = store.entries(run.num(), 0)?;
            Ok::<_, store::StoreError>((header, entries))
        });
        let (header, entries) =
            read.await.map_err(|_| stopping())?.map_err(|error| broken(&error))?;
        let header = header.filter(|it| it.created_ms == run.created_ms()).ok_or_else(missing)?;
        let mut chain = Chain::full();
        for entry in &entries {
            let unread = |error: crate::journal::ChainError| {
                StoreError::SerializationError(format!("{request_id}: {error}"))
            };
            chain.apply(entry).map_err(unread)?;
        }
        Ok(Read { header, chain })
    }

    /// Appends the facts that `decide` returns for the current chain, and returns what it returns
    /// beside them. Retries if another commit came first.
    async fn change<T>(
        &self,
        request_id: &str,
        decide: impl Fn(&Chain) -> Result<(Vec<Fact>, T), StoreError>,
    ) -> Result<T, StoreError> {
        for _ in 0..TRIES {
            let Read { header, chain } = self.read(request_id).await?;
            if matches!(chain.state(), RunState::Ended(_)) {
                return Err(StoreError::AlreadyTerminal(request_id.to_owned()));
            }
            let (facts, decided) = decide(&chain)?;
            if facts.is_empty() {
                return Ok(decided);
            }
            let cursor = header.cursor;
            match self.append(header, Some(cursor), chain, facts).await {
                Err(Lost::Moved) => {}
                Err(Lost::Broken(error)) => return Err(error),
                Ok(()) => return Ok(decided),
            }
        }
        Err(StoreError::StorageError(format!("{request_id} changes all the time")))
    }

    async fn append(
        &self,
        mut header: Header,
        expected: Option<u64>,
        mut chain: Chain,
        facts: Vec<Fact>,
    ) -> Result<(), Lost> {
        let now_ms = self.clock.now_ms();
        let mut entries = Vec::with_capacity(facts.len());
        for fact in facts {
            let seq = chain.seq() + 1;
            let entry = Entry::new(seq, now_ms.max(chain.last_ms()), fact);
            let unread = |error: crate::journal::ChainError| {
                Lost::Broken(StoreError::StorageError(error.to_string()))
            };
            chain.apply(&entry).map_err(unread)?;
            entries.push(entry);
        }
        let rows = append(&*self.store, &mut header, expected, &entries);
        let (steps, done) = chain.counts();
        (header.steps, header.steps_done) = (steps, done);
        header.updated_ms = chain.last_ms();
        if let RunState::Ended(outcome) = chain.state() {
            header.ended_ms = Some(chain.last_ms());
            header.status = match outcome {
                Outcome::Completed(_) => RunStatus::Completed,
                Outcome::Failed(_) => RunStatus::Failed,
                Outcome::Canceled(_) => RunStatus::Canceled,
            };
        }
        let run = RunWrite { header, expected, entries: rows, whole: true };
        match commit(&*self.store, Vec::new(), Some(run), Vec::new()).await {
            Ok(()) => Ok(()),
            Err(store::StoreError::Moved { .. }) => Err(Lost::Moved),
            Err(store::StoreError::Closed) => Err(Lost::Broken(stopping())),
            Err(error) => Err(Lost::Broken(broken(&error))),
        }
    }

    /// Changes one open step.
    async fn change_step(
        &self,
        step_id: &str,
        decide: impl Fn(&Step) -> Option<Fact>,
    ) -> Result<(), StoreError> {
        let (request_id, number) = parts(step_id)?;
        self.change(request_id, |chain| {
            let step = open_step(chain, number, step_id)?;
            Ok((decide(step).into_iter().collect(), ()))
        })
        .await
    }

    async fn end_step(&self, step_id: &str, outcome: Outcome) -> Result<(), StoreError> {
        self.change_step(step_id, |step| {
            Some(Fact::StepEnded {
                step: step.scheduled.step,
                attempt: step.attempt,
                epoch: 1,
                outcome: outcome.clone(),
                effects: None,
                usage: None,
            })
        })
        .await
    }
}

/// The reason why a commit failed.
enum Lost {
    /// Another commit came first.
    Moved,
    Broken(StoreError),
}

impl From<Lost> for StoreError {
    fn from(lost: Lost) -> Self {
        match lost {
            Lost::Moved => Self::StorageError("the response is there already".to_owned()),
            Lost::Broken(error) => error,
        }
    }
}

#[async_trait]
impl MultiStepStore for Chains {
    async fn next_action_for(
        &self,
        request_id: &str,
        scope_parent: Option<&str>,
    ) -> Result<NextAction, StoreError> {
        let Read { chain, .. } = self.read(request_id).await?;
        let within = scope_parent.map(|parent| step_of(request_id, &chain, parent)).transpose()?;
        let steps = list(request_id, &chain, scope_parent)?;
        let request = chain.started().map_or(Value::Null, |(it, _)| it.input.to_value());
        let within = within.map(asked);
        Ok(self.transition.next_action(&request, within.as_ref(), &steps))
    }

    async fn record_step(
        &self,
        request_id: &str,
        scope_parent: Option<&str>,
        prev_step: Option<&str>,
        descriptor: &StepDescriptor,
    ) -> Result<RecordedStep, StoreError> {
        let StepDescriptor { kind, request_payload } = descriptor;
        let (call_id, request) = (descriptor.call_id(), Json::from(request_payload));
        let recorded = self.change(request_id, |chain| {
            let scope = scope_of(request_id, chain, scope_parent)?;
            if let Some(prev) = prev_step
                && step_of(request_id, chain, prev)?.scheduled.key.scope != scope
            {
                return Err(StoreError::NotFound(prev.to_owned()));
            }
            let mut of_scope = chain.steps().iter().filter(|it| it.scheduled.key.scope == scope);
            if let Some(known) = call_id.and_then(|id| known(of_scope.clone(), id)) {
                return Ok((Vec::new(), known));
            }
            let index = of_scope.by_ref().count();
            let number = chain.next_step();
            let named_by = if *kind == StepKind::ToolCall { "name" } else { "model" };
            let name = request_payload.get(named_by).and_then(Value::as_str);
            let name = name.unwrap_or_else(|| kind.as_str()).to_owned();
            let parent = scope_parent.map(parts).transpose()?.map(|(_, number)| number);
            let scheduled = Scheduled {
                step: number,
                prev: chain.tail(&scope),
                key: StepKey::new(scope, u32::try_from(index).unwrap_or(u32::MAX)),
                parent,
                kind: *kind,
                fingerprint: fingerprint(*kind, &name, &request),
                name,
                call_id: call_id.map(str::to_owned),
                request: request.clone(),
                attempt: 1,
                epoch: 1,
                seat_epoch: 0,
                wake_at_ms: None,
                summary: None,
            };
            Ok((vec![Fact::StepScheduled(Box::new(scheduled))], number))
        });
        let number = recorded.await?;
        Ok(RecordedStep { id: format!("{request_id}/{number}"), sequence: i64::from(number) })
    }

    async fn mark_step_processing(&self, step_id: &str) -> Result<(), StoreError> {
        self.change_step(step_id, |step| {
            (step.state == StepState::Pending).then(|| Fact::AttemptDelivered {
                step: step.scheduled.step,
                attempt: step.attempt,
                worker: "loop".to_owned(),
                deadline_ms: None,
            })
        })
        .await
    }

    async fn retry_step(&self, step_id: &str) -> Result<(), StoreError> {
        let (request_id, number) = parts(step_id)?;
        self.change(request_id, |chain| {
            let step = open_step(chain, number, step_id)?;
            let (step, attempt) = (step.scheduled.step, step.attempt);
            let error = Failure::new(kind::INTERRUPTED, "whoever executed it is gone").retryable();
            let retry_at_ms = chain.last_ms();
            let closed =
                AttemptClosed { step, attempt, error, usage: None, retry_at_ms, counts: false };
            let opened = AttemptOpened { step, attempt: attempt + 1, epoch: 1, seat_epoch: 0 };
            Ok((vec![Fact::AttemptClosed(Box::new(closed)), Fact::AttemptOpened(opened)], ()))
        })
        .await
    }

    async fn descriptor_of(&self, step_id: &str) -> Result<Option<StepDescriptor>, StoreError> {
        let (request_id, _) = parts(step_id)?;
        let Read { chain, .. } = self.read(request_id).await?;
        step_of(request_id, &chain, step_id).map(|step| Some(asked(step)))
    }

    async fn complete_step(&self, step_id: &str, payload: &Value) -> Result<(), StoreError> {
        self.end_step(step_id, Outcome::Completed(payload.into())).await
    }

    async fn fail_step(&self, step_id: &str, error: &Value) -> Result<(), StoreError> {
        let message = error["message"].as_str().map_or_else(|| error.to_string(), str::to_owned);
        let kind = error["type"].as_str().unwrap_or(kind::WORKER).to_owned();
        let failure = Failure::new(kind, message).with_data(error.into());
        self.end_step(step_id, Outcome::Failed(failure)).await
    }

    async fn cancel_step(&self, step_id: &str, reason: &str) -> Result<(), StoreError> {
        self.end_step(step_id, Outcome::Canceled(reason.to_owned())).await
    }

    async fn list_chain(
        &self,
        request_id: &str,
        scope_parent: Option<&str>,
    ) -> Result<Vec<ChainStep>, StoreError> {
        let Read { chain, .. } = self.read(request_id).await?;
        list(request_id, &chain, scope_parent)
    }

    async fn assemble_response(&self, request_id: &str) -> Result<Value, StoreError> {
        let Read { header, chain } = self.read(request_id).await?;
        Ok(assembled(request_id, &header, &chain))
    }
}

/// Returns the scope's step for a call, recorded since the last request to the model.
fn known<'a>(steps: impl Iterator<Item = &'a Step>, call_id: &str) -> Option<u32> {
    let mut found = None;
    for step in steps {
        match step.scheduled.kind {
            StepKind::ModelCall => found = None,
            _ if step.scheduled.call_id.as_deref() == Some(call_id) => {
                found = Some(step.scheduled.step);
            }
            _ => {}
        }
    }
    found
}

/// Splits a step's id into the response and the step's number.
fn parts(step_id: &str) -> Result<(&str, u32), StoreError> {
    let missing = || StoreError::NotFound(step_id.to_owned());
    let (request_id, number) = step_id.rsplit_once('/').ok_or_else(missing)?;
    Ok((request_id, number.parse().map_err(|_| missing())?))
}

fn step_of<'c>(request_id: &str, chain: &'c Chain, step_id: &str) -> Result<&'c Step, StoreError> {
    let missing = || StoreError::NotFound(step_id.to_owned());
    let (of, number) = parts(step_id)?;
    if of != request_id {
        return Err(missing());
    }
    chain.step(number).ok_or_else(missing)
}

/// Returns a step that has not ended.
fn open_step<'c>(chain: &'c Chain, number: u32, step_id: &str) -> Result<&'c Step, StoreError> {
    let step = chain.step(number).ok_or_else(|| StoreError::NotFound(step_id.to_owned()))?;
    if step.state.is_terminal() {
        return Err(StoreError::AlreadyTerminal(step_id.to_owned()));
    }
    Ok(step)
}

fn scope_of(
    request_id: &str,
    chain: &Chain,
    parent: Option<&str>,
) -> Result<ScopePath, StoreError> {
    match parent {
        None => Ok(ScopePath::main()),
        Some(parent) => {
            let key = &step_of(request_id, chain, parent)?.scheduled.key;
            Ok(key.scope.branch(key.index, 0))
        }
    }
}

fn list(
    request_id: &str,
    chain: &Chain,
    parent: Option<&str>,
) -> Result<Vec<ChainStep>, StoreError> {
    let scope = scope_of(request_id, chain, parent)?;
    let steps = chain.steps().iter().filter(|step| step.scheduled.key.scope == scope);
    Ok(steps.map(|step| shown(request_id, step)).collect())
}

/// Returns the request of a step.
fn asked(step: &Step) -> StepDescriptor {
    let it = &step.scheduled;
    let descriptor = StepDescriptor::new(it.kind, it.request.to_value());
    match &it.call_id {
        Some(call_id) => descriptor.with_call_id(call_id),
        None => descriptor,
    }
}

fn shown(request_id: &str, step: &Step) -> ChainStep {
    let it = &step.scheduled;
    let id = |number: u32| format!("{request_id}/{number}");
    let error = step.error.as_ref().filter(|_| step.state == StepState::Failed);
    ChainStep {
        id: id(it.step),
        kind: it.kind,
        state: step.state,
        sequence: i64::from(it.step),
        prev_step_id: it.prev.map(id),
        parent_step_id: it.parent.map(id),
        response_payload: step.output.as_ref().map(Json::to_value),
        error: error.map(|it| match &it.data {
            Some(data) => data.to_value(),
            None => json!({ "type": it.kind, "message": it.message }),
        }),
    }
}

fn broken(error: &store::StoreError) -> StoreError {
    StoreError::StorageError(error.to_string())
}

fn stopping() -> StoreError {
    StoreError::StorageError("the host is stopping".to_owned())
}
