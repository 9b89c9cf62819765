//! Blueprints and agents that answer like a model: each response is a run.

use std::sync::Arc;

use serde_json::Value;

use crate::engine::{
    Caller, Checked, EngineError, EventView, Events, IdempotencyKey, Program, StartRun, WaitFor,
    shared::programs,
    verbs::begin::{Basis, FOREVER, Watch},
    verbs::engine::ResponseVerbs,
};
use crate::{
    blueprint::Schema,
    lua,
    protocol::{Code, Json, RunId},
    respond::{
        Stream, candidates,
        open_responses::{Conversation, Create, last_text},
    },
    token::{Need, Verb},
};

/// A model: a blueprint, or one agent of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelView {
    /// `blueprint` or `blueprint/agent`.
    pub id: String,
    /// The time at which the blueprint's name was last set, in Unix milliseconds.
    pub created_ms: u64,
}

impl ResponseVerbs<'_> {
    /// Returns every model within the caller's scopes: every named blueprint, and its agents whose
    /// operator is a model.
    ///
    /// # Errors
    /// Fails when the caller lacks permission.
    pub async fn models(self, caller: &Caller) -> Result<Vec<ModelView>, EngineError> {
        caller.grant.check(Verb::BlueprintRead, &[])?;
        let names = self.engine.read(|store| store.blueprint_names()).await?;
        let mut models = Vec::new();
        for (name, hash, created_ms) in names {
            if !caller.grant.scopes.cover(&Need::Blueprint(&name)) {
                continue;
            }
            // A version of an older release may not compile any more; then it is not a model.
            let Ok(program) = self.engine.blueprints().program_by(hash).await else { continue };
            let agents = program.blueprint().definition().agents.iter();
            let speaks = agents.filter(|(_, agent)| self.is_model(&agent.operator));
            let speaks: Vec<String> = speaks.map(|(agent, _)| format!("{name}/{agent}")).collect();
            models.push(ModelView { id: name, created_ms });
            models.extend(speaks.into_iter().map(|id| ModelView { id, created_ms }));
        }
        Ok(models)
    }

    /// Returns one model; every agent of a blueprint can be requested by its name.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, or there is no such model.
    pub async fn model(self, caller: &Caller, id: &str) -> Result<ModelView, EngineError> {
        let (name, _) = parts(id);
        let bare = name.split('@').next().unwrap_or(name).to_owned();
        caller.grant.check(Verb::BlueprintRead, &[Need::Blueprint(&bare)])?;
        let (program, _) = self.answering(id).await?;
        self.engine.blueprints().reach(caller, Verb::BlueprintRead, &program).await?;
        let names = self.engine.read(|store| store.blueprint_names()).await?;
        let set = names.into_iter().find(|(name, ..)| *name == bare);
        Ok(ModelView { id: id.to_owned(), created_ms: set.map_or(0, |(_, _, at_ms)| at_ms) })
    }

    /// Returns the program of a model, and its agent if the name has one.
    async fn answering(self, id: &str) -> Result<(Arc<lua::Program>, Option<String>), EngineError> {
        let unknown = || EngineError::NotFound { what: "model", id: id.to_owned() };
        let (name, agent) = parts(id);
        let program = match self.engine.program_of(&Program::Named(name.to_owned())).await {
            Err(
                EngineError::NotFound { .. }
                | EngineError::Conflict { code: Code::BlueprintArchived, .. },
            ) => return Err(unknown()),
            program => program?,
        };
        match agent {
            Some(agent) if program.blueprint().agent(agent).is_none() => Err(unknown()),
            agent => Ok((program, agent.map(str::to_owned))),
        }
    }

    /// Returns whether a name refers to an agent whose operator is a model.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, or there is no such model.
    pub async fn is_agent_with_model(self, caller: &Caller, id: &str) -> Result<bool, EngineError> {
        let (program, agent) = self.answering(id).await?;
        let blueprint = program.blueprint();
        self.engine.blueprints().reach(caller, Verb::RunStart, &program).await?;
        let agent = agent.and_then(|name| blueprint.agent(&name).cloned());
        Ok(agent.is_some_and(|agent| self.is_model(agent.operator())))
    }

    fn is_model(self, operator: &str) -> bool {
        crate::blueprint::Operators::is_model(&self.engine.shared().registry, operator)
    }

    /// Starts the run that answers a request; it is durable when this returns, and its events are
    /// received from the first on. A caller with a key looks first whether the request is a repetition:
    /// [`Self::repeated_response`].
    ///
    /// # Errors
    /// Fails when the caller lacks permission, there is no such model, or the conversation does not
    /// fit the input of the blueprint or agent.
    pub async fn respond(
        self,
        caller: &Caller,
        create: Create,
        conversation: Conversation,
        key: Option<IdempotencyKey>,
    ) -> Result<Responding, EngineError> {
        self.engine.check_room()?;
        let basis = Basis::of(self.engine, None);
        let (program, agent) = self.answering(&create.model).await?;
        let blueprint = program.blueprint();
        self.engine.blueprints().reach(caller, Verb::RunStart, &program).await?;
        let text = last_text(&conversation.items);
        let definition = blueprint.definition();
        let input = match &agent {
            None => {
                let schema = definition.input.as_ref().map(Json::to_value);
                fitting(&candidates(&text, schema.as_ref()), |it| {
                    programs::accept_input(&program, it)
                })?
            }
            Some(name) => {
                let agent = blueprint.agent(name).expect("it was found a moment ago");
                let schema = agent.agent().input.as_ref().map(Json::to_value);
                fitting(&candidates(&text, schema.as_ref()), |it| accept(agent.input(), it))?
            }
        };
        let speaks = agent.as_ref().is_some_and(|name| {
            blueprint.agent(name).is_some_and(|agent| self.is_model(agent.operator()))
        });
        let stays = create.store;
        let mut trigger = crate::respond::Trigger::new(create, conversation, agent);
        if !speaks {
            trigger.ask = None;
        }
        let start = StartRun {
            input,
            trigger: Json::encode(&trigger).expect("a trigger is plain data"),
            ..StartRun::new(Program::Named(blueprint.version()))
        };
        // Subscribed before the first delta, so that none is missed.
        let (subscriber, events_of) =
            Events::from_the_first(Arc::clone(&self.engine.inner.shared), &caller.jti);
        let watch = Watch { subscriber: Some(subscriber), lets_go: !stays, ..Watch::default() };
        let found = (program, basis);
        let started = self.engine.begin_accepted(caller, start, found, key, watch).await?;
        if started.repeated {
            return Ok(Responding {
                repeated: true,
                ..self.responding(caller, started.run).await?
            });
        }
        begun(started.run, events_of(started.run)).await
    }

    /// Returns the response to a request that was made before with the same key.
    ///
    /// # Errors
    /// Fails when the key was used for another request, or the store cannot be read.
    pub async fn repeated_response(
        self,
        caller: &Caller,
        key: &IdempotencyKey,
    ) -> Result<Option<Responding>, EngineError> {
        let Some(run) = self.engine.repeated(caller, Some(key)).await? else { return Ok(None) };
        let run = run.parse().map_err(|_| crate::engine::verbs::runs::mismatch(key))?;
        Ok(Some(Responding { repeated: true, ..self.responding(caller, run).await? }))
    }

    /// Returns the current response of a run, from its durable events.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, there is no such run, or the run is not a response.
    pub async fn response(self, caller: &Caller, run: RunId) -> Result<Stream, EngineError> {
        caller.may(Verb::RunRead, run)?;
        self.response_of(run, &caller.jti).await
    }

    /// The same for whoever may see it anyway.
    pub(super) async fn response_of(self, run: RunId, jti: &str) -> Result<Stream, EngineError> {
        let seq = self.engine.header(run).await?.seq;
        let mut events = Events::new(Arc::clone(&self.engine.inner.shared), run, 0, jti);
        let mut stream = None;
        let mut seen = 0;
        // Of a run that has not ended, no more than is stored.
        while seen < seq
            && let Some(event) = events.next().await?
        {
            seen = event.seq.unwrap_or(seen);
            hear(&mut stream, run, &event);
        }
        stream.ok_or_else(|| no_response(run))
    }

    /// Deletes a run once it has ended and `answered` has completed, in whichever way.
    pub async fn let_go_once(self, run: RunId, answered: tokio::sync::oneshot::Receiver<()>) {
        loop {
            match self.engine.wait_for(run, WaitFor::Ended, FOREVER).await {
                Ok(view) if view.status.is_ended() => break,
                Ok(_) => {}
                // The next start deletes it, if it still exists.
                Err(_) => return,
            }
        }
        // Both outcomes mean that no client waits any more.
        let _ = answered.await;
        if let Err(error) = self.let_go_unstored(run).await {
            tracing::warn!(%run, %error, "could not let go a response that is not to be stored");
        }
    }

    /// Deletes every run that is not to be stored; open ones once they have ended. A run that ended
    /// a moment ago is left for the next call.
    ///
    /// # Errors
    /// Fails when the store fails.
    pub async fn let_go_left(self) -> Result<(), EngineError> {
        let settled = self
            .engine
            .shared()
            .clock
            .now_ms()
            .saturating_sub(crate::engine::verbs::retention::GRACE_MS);
        for num in self.engine.read(|store| store.unstored()).await? {
            let Some(header) = self.engine.read(move |store| store.header(num)).await? else {
                continue;
            };
            if header.ended_ms.is_some_and(|ended| ended <= settled) {
                self.let_go_unstored(RunId::new(num, header.created_ms)).await?;
            }
        }
        Ok(())
    }

    /// Takes up, at a start, the runs that are to be deleted once they have ended.
    ///
    /// # Errors
    /// Fails when the store fails.
    pub async fn take_up_unstored(self) -> Result<(), EngineError> {
        for num in self.engine.read(|store| store.unstored()).await? {
            let Some(header) = self.engine.read(move |store| store.header(num)).await? else {
                continue;
            };
            let (engine, run) = (self.engine.clone(), RunId::new(num, header.created_ms));
            // The client was connected to the previous host process.
            let (_, nobody) = tokio::sync::oneshot::channel();
            self.engine
                .shared()
                .tasks
                .spawn(async move { engine.responses().let_go_once(run, nobody).await });
        }
        Ok(())
    }

    async fn let_go_unstored(self, run: RunId) -> Result<(), EngineError> {
        let num = run.num();
        let found = self.engine.read(move |store| store.retired(num.saturating_sub(1), 1)).await?;
        if found.first().is_none_or(|found| found.num != num) {
            // Something open still needs it; it is checked again later.
            return Ok(());
        }
        self.engine.upkeep().delete_runs(Vec::new(), vec![run]).await
    }

    /// Returns a live response: its events so far, and those that follow.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, there is no such run, or it is not a response.
    pub async fn responding(self, caller: &Caller, run: RunId) -> Result<Responding, EngineError> {
        begun(run, self.engine.events(caller, run, 0).await?).await
    }
}

/// Reads the beginning of a response.
async fn begun(run: RunId, mut events: Events) -> Result<Responding, EngineError> {
    let mut stream = None;
    while let Some(event) = events.next().await? {
        hear(&mut stream, run, &event);
        match stream {
            Some(stream) => return Ok(Responding { run, events, stream, repeated: false }),
            None if event.kind == "run.started" => break,
            None => {}
        }
    }
    Err(no_response(run))
}

/// A live response.
pub struct Responding {
    run: RunId,
    events: Events,
    stream: Stream,
    repeated: bool,
}

impl Responding {
    /// Returns the run.
    pub fn run(&self) -> RunId {
        self.run
    }

    /// Returns true if the request was made before, and this is its response.
    pub fn is_repeated(&self) -> bool {
        self.repeated
    }

    /// Returns the response so far.
    pub fn stream(&mut self) -> &mut Stream {
        &mut self.stream
    }

    /// Waits for the next event; returns false if the response has ended.
    ///
    /// # Errors
    /// Fails when the store cannot be read.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub async fn more(&mut self) -> Result<bool, EngineError> {
        if self.stream.is_over() {
            return Ok(false);
        }
        let Some(event) = self.events.next().await? else { return Ok(false) };
        self.stream.hear(&fact(&event));
        Ok(true)
    }
}

fn hear(stream: &mut Option<Stream>, run: RunId, event: &EventView) {
    match stream {
        Some(stream) => stream.hear(&fact(event)),
        None if event.kind == "run.started" => {
            *stream = Stream::begin(&run.to_string(), &fact(event));
        }
        None => {}
    }
}

fn fact(event: &EventView) -> crate::respond::Fact<'_> {
    crate::respond::Fact { kind: &event.kind, at: &event.at, data: &event.data }
}

fn no_response(run: RunId) -> EngineError {
    let id = crate::respond::shown_id("resp_", &run.to_string());
    EngineError::NotFound { what: "response", id }
}

/// Splits an id into `blueprint` and, after a slash, the agent.
fn parts(id: &str) -> (&str, Option<&str>) {
    match id.split_once('/') {
        Some((name, agent)) => (name, Some(agent)),
        None => (id, None),
    }
}

/// Returns the first candidate that is accepted; otherwise the error of the last candidate.
fn fitting(
    candidates: &[Value],
    accept: impl Fn(&Json) -> Result<Json, EngineError>,
) -> Result<Json, EngineError> {
    let mut refusal = None;
    for candidate in candidates {
        match accept(&Json::from(candidate)) {
            Ok(input) => return Ok(input),
            // The error for parsed JSON is more helpful than the one for its text.
            Err(error) => refusal = Some(error),
        }
    }
    Err(refusal.unwrap_or_else(|| EngineError::BadRequest("say something".to_owned())))
}

fn accept(schema: &Schema, input: &Json) -> Result<Json, EngineError> {
    schema.accept_json(input).map_err(|violations| EngineError::Invalid {
        what: Checked::Input,
        violations: violations.into_iter().map(crate::engine::view::breach).collect(),
    })
}
