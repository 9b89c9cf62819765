//! One test on one stage: does what it asks for, and answers for the agents.

mod shown;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    path::Path,
};

use serde_json::Value;

use super::{
    budget::Budget,
    files::Files,
    prepared::{Mock, ModelAnswers, Slot, json_of, recorded, refused},
    request::{PreparedAnswer, Request, usage},
    snapshot::{Snapshots, compare},
};
use crate::{
    blueprint::{Bundle, Finding, did_you_mean, parse_duration, seconds_to_ms},
    engine::{
        self, Answer, Caller, Engine, EngineError, IdempotencyKey, Job, RunView, Stage, StartRun,
        WaitingOn,
    },
    lua::{Coverage, Limits, Program, TestFile, TestHalt},
    operator::{NO_TURN, Registry, ScriptedTurns},
    protocol::{Failure, Json, RunId, TaskId, failure::kind},
    store::{RunStatus, TaskRow},
};

/// The number of time steps after which a run counts as one that never ends.
const MOST_WAITS: usize = 100_000;
/// The memory that the name of a file takes for a run.
const FILE: usize = 512;

/// The result of one execution of a test.
#[derive(Debug, Default)]
pub(super) struct Played {
    /// The failure.
    pub failed: Option<Failure>,
    /// The commits that wrote to a journal after the test began.
    pub writes: Vec<u64>,
    /// The printed lines.
    pub said: Vec<String>,
    /// Warnings about a test that passed.
    pub findings: Vec<String>,
    /// The directories of the bundles that it ran, by hash.
    pub places: BTreeMap<String, std::path::PathBuf>,
}

/// A test that is played.
pub(super) struct Play<'a> {
    file: &'a TestFile,
    files: Files<'a>,
    path: &'a Path,
    budget: &'a Budget,
    stage: Stage,
    snapshots: Snapshots,
    known: &'a Registry,
    runs: Vec<Slot>,
    mocks: BTreeMap<String, Mock>,
    /// The answers of the models of agents.
    models: BTreeMap<String, ModelAnswers>,
    people: BTreeMap<String, VecDeque<PreparedAnswer>>,
    /// The answers to each step, one per counted attempt.
    given: HashMap<(u64, u32), Vec<Result<Json, Failure>>>,
    asked: usize,
    said: Vec<String>,
    /// The directories of the loaded bundles, by hash.
    places: BTreeMap<String, std::path::PathBuf>,
    /// Those bundles, by hash.
    bundles: BTreeMap<String, Bundle>,
}

impl<'a> Play<'a> {
    pub(super) fn new(
        file: &'a TestFile,
        (files, path): (Files<'a>, &'a Path),
        known: &'a Registry,
        budget: &'a Budget,
        snapshots: Snapshots,
        coverage: Option<Coverage>,
    ) -> Result<Self, Failure> {
        let stage = Stage::within(known, coverage, budget.of_stage());
        let stage = stage.map_err(|error| refused(&error))?;
        Ok(Self {
            file,
            files,
            path,
            budget,
            stage,
            snapshots,
            known,
            runs: Vec::new(),
            mocks: BTreeMap::new(),
            models: BTreeMap::new(),
            people: BTreeMap::new(),
            given: HashMap::new(),
            asked: 0,
            said: Vec::new(),
            places: BTreeMap::new(),
            bundles: BTreeMap::new(),
        })
    }

    /// Plays the test at a place of its file, with a crash after a commit.
    pub(super) fn run(mut self, place: usize, crash: Option<u64>) -> Result<Played, Failure> {
        if let Some(commit) = crash {
            self.stage.crash_after(commit);
        }
        let case = self.file.begin(place)?;
        let mut answer = None;
        let mut findings = Vec::new();
        let failed = loop {
            match self.file.go_on(&case, answer.as_ref()) {
                TestHalt::Passed { asserted } => {
                    // What is so without a crash is so with one.
                    if crash.is_none() {
                        findings = self.findings(asserted)?;
                    }
                    break None;
                }
                TestHalt::Failed(failure) => break Some(failure),
                TestHalt::Asks(request) => {
                    let answered = self.request(&request);
                    self.budget.exchange(request.len() + answered.as_ref().map_or(0, Json::len));
                    // A test cannot catch the end of its allowance.
                    if let Some(failure) = self.budget.failure() {
                        break Some(failure);
                    }
                    answer = Some(answered);
                }
            }
        };
        self.said.extend(self.file.said());
        let writes = self.stage.journal_writes();
        Ok(Played { failed, writes, said: self.said, places: self.places, findings })
    }

    /// Collects the warnings about a test that passed.
    fn findings(&mut self, asserted: bool) -> Result<Vec<String>, Failure> {
        let mut found = Vec::new();
        if !asserted && !self.file.has_assert() {
            found.push(
                "the test asserts nothing: end it with run:finish(), or use t.equal and the like"
                    .to_owned(),
            );
        }
        for place in 0..self.runs.len() {
            let Slot { path, id, seen, .. } = &self.runs[place];
            let (path, id, seen) = (path.clone(), *id, *seen);
            let Some(id) = id else {
                found.push(format!("the run of {path:?} never began: run:finish() lets it go on"));
                continue;
            };
            if !seen && !self.view(id)?.status.is_ended() {
                found.push(format!("the run of {path:?} was never finished: run:finish()"));
            }
        }
        let agents = self.agents();
        let answers = self.mocks.keys().chain(self.models.keys()).chain(self.people.keys());
        // A tool of a model is mocked as `agent/tool`.
        let known = |agent: &str| {
            agents.contains(agent)
                || agent.split_once('/').is_some_and(|(owner, _)| agents.contains(owner))
        };
        let mut nobody: Vec<&String> = answers.filter(|agent| !known(agent)).collect();
        nobody.sort_unstable();
        nobody.dedup();
        for agent in nobody.into_iter().filter(|_| !self.bundles.is_empty()) {
            let likely = did_you_mean(agent, agents.iter().map(String::as_str));
            let likely = likely.map_or_else(String::new, |it| format!("; did you mean `{it}`?"));
            found.push(format!("no blueprint of the test has the agent `{agent}`{likely}"));
        }
        Ok(found)
    }

    /// The agents of all blueprints that the test has named, and what can be asked without one.
    fn agents(&self) -> BTreeSet<String> {
        let mut agents: BTreeSet<String> = ["approve", "dispatch"].map(str::to_owned).into();
        for bundle in self.bundles.values() {
            if self.budget.failure().is_some() {
                break;
            }
            let compiled = Program::compile(bundle.clone(), self.known, &Limits::default());
            let Ok((program, _)) = compiled else { continue };
            let blueprint = program.blueprint();
            agents.extend(blueprint.agent_names().map(str::to_owned));
        }
        agents
    }

    fn request(&mut self, request: &Json) -> Result<Json, Failure> {
        let request = request.decode().map_err(|error| usage(error.to_string()))?;
        let nothing = || Ok(Json::null());
        match request {
            Request::Start { path, input } => {
                let bundle = self.load(&path)?;
                let (engine_bundle, input) = (bundle.clone(), json_of(input));
                self.ask(move |engine, by| {
                    let bundle = engine_bundle.clone();
                    async move {
                        let findings = engine.blueprints().check(&by, bundle).await?;
                        let errors =
                            findings.into_iter().filter(Finding::is_error).collect::<Vec<_>>();
                        if errors.is_empty() { Ok(()) } else { Err(EngineError::Findings(errors)) }
                    }
                })?;
                self.runs.push(Slot { path, bundle, input, id: None, seen: false });
                Ok(Json::from(&serde_json::json!(self.runs.len())))
            }
            Request::Blueprint { path } => {
                let bundle = self.load(&path)?;
                self.ask(move |engine, _| {
                    let bundle = bundle.clone();
                    async move { engine.blueprints().adopt_blueprint(bundle).await.map(drop) }
                })?;
                nothing()
            }
            Request::Mock { agent, answers, again } => {
                self.stage.mock(&agent);
                let mock = match (again, answers.first()) {
                    (true, Some(only)) => Mock::Always(only.clone()),
                    _ => Mock::Sequence(answers.into(), 0),
                };
                self.mocks.insert(agent, mock);
                nothing()
            }
            Request::Model { agent, turns, function } => {
                let says = match (function, turns) {
                    (Some(function), _) => ModelAnswers::Function(function),
                    (None, turns) => {
                        let turns = turns.unwrap_or_default();
                        // What is wrong with one is said where it is written.
                        ScriptedTurns::read(turns.clone())
                            .map_err(|failure| usage(failure.message))?;
                        ModelAnswers::Turns(turns)
                    }
                };
                self.models.insert(agent, says);
                nothing()
            }
            Request::Recorded { path } => {
                for (agent, answers) in recorded(self.files, &self.beside(&path))? {
                    self.stage.mock(&agent);
                    self.mocks.insert(agent, Mock::Sequence(answers, 0));
                }
                nothing()
            }
            Request::Answer { agent, answer } => {
                self.people.entry(agent).or_default().push_back(answer);
                nothing()
            }
            Request::Signal { run, name, payload } => {
                let id = self.begun(run)?;
                self.drive()?;
                let key = self.key();
                self.ask(move |engine, by| {
                    let (name, payload) = (name.clone(), Json::from(&payload));
                    let key = key.clone();
                    async move { engine.signal(&by, id, name, payload, Some(key)).await }
                })?;
                self.drive()?;
                nothing()
            }
            Request::Advance { run, by } => {
                self.begun(run)?;
                self.drive()?;
                self.advance(&by)?;
                nothing()
            }
            Request::Cancel { run, reason } => {
                let id = self.begun(run)?;
                self.drive()?;
                let key = self.key();
                self.ask(move |engine, by| {
                    let (reason, key) = (reason.clone(), key.clone());
                    async move { engine.cancel(&by, id, reason, Some(key)).await.map(drop) }
                })?;
                self.drive()?;
                nothing()
            }
            Request::Query { run, name, argument } => {
                let id = self.begun(run)?;
                self.saw(run);
                self.drive()?;
                let argument = json_of(argument);
                self.ask(move |engine, by| {
                    let (name, argument) = (name.clone(), argument.clone());
                    async move { engine.query(&by, id, name, argument).await }
                })
            }
            Request::Finish { run } => {
                let view = self.finish(run)?;
                let error = view.error.map(|it| {
                    serde_json::json!({
                        "kind": it.kind, "message": it.message, "agent": it.agent,
                        "data": it.data.map(|data| data.to_value()),
                    })
                });
                let output = view.output.map(|output| output.to_value());
                Ok(Json::from(&serde_json::json!({
                    "status": view.status, "output": output, "error": error,
                })))
            }
            Request::Look { run } => {
                let id = self.begun(run)?;
                self.saw(run);
                self.drive()?;
                let view = self.view(id)?;
                Ok(Json::from(&serde_json::json!({
                    "status": view.status, "waiting_on": waits(&view),
                })))
            }
            Request::Steps { run } => self.steps(run),
            Request::Snapshot { name, value } => {
                match compare((self.files, self.path), &name, &value, self.snapshots) {
                    Ok(said) => {
                        self.budget.exchange(said.as_ref().map_or(0, String::len));
                        self.said.extend(said);
                        nothing()
                    }
                    Err(problem) => Ok(Json::from(&serde_json::Value::from(problem))),
                }
            }
        }
    }

    fn beside(&self, path: &str) -> std::path::PathBuf {
        self.path.parent().unwrap_or(Path::new("")).join(path)
    }

    fn load(&mut self, path: &str) -> Result<Bundle, Failure> {
        let path = self.beside(path);
        let bundle = self.files.bundle(&path)?;
        let dir = path.parent().unwrap_or(Path::new("")).to_owned();
        self.places.insert(bundle.hash().to_owned(), dir);
        self.bundles.insert(bundle.hash().to_owned(), bundle.clone());
        // Each run keeps the list of its files.
        self.budget.exchange(bundle.files().len().saturating_mul(FILE));
        Ok(bundle)
    }

    fn ask<T, F>(&mut self, ask: impl Fn(Engine, Caller) -> F) -> Result<T, Failure>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, EngineError>> + Send + 'static,
    {
        self.stage.ask(ask).map_err(|error| refused(&error))
    }

    /// A key of its own for each thing that a test does: a crash does it no second time.
    fn key(&mut self) -> IdempotencyKey {
        self.asked += 1;
        let key = format!("test-{}", self.asked);
        IdempotencyKey { route: "test", body: key.clone(), key }
    }

    /// The run's id; it begins now if it has not.
    fn begun(&mut self, run: usize) -> Result<RunId, Failure> {
        let place = run.wrapping_sub(1);
        let slot = self.runs.get(place).ok_or_else(|| usage("there is no such run"))?;
        if let Some(id) = slot.id {
            return Ok(id);
        }
        let start = StartRun {
            input: slot.input.clone(),
            trigger: Json::from(&serde_json::json!({ "kind": "test" })),
            ..StartRun::new(engine::Program::Bundle(slot.bundle.clone()))
        };
        let key = self.key();
        let started = self.ask(move |engine, by| {
            let (start, key) = (start.clone(), key.clone());
            async move { engine.start(&by, start, Some(key)).await }
        })?;
        self.runs[place].id = Some(started.run);
        Ok(started.run)
    }

    fn view(&mut self, run: RunId) -> Result<RunView, Failure> {
        self.ask(move |engine, by| async move { engine.run(&by, run).await })
    }

    /// Lets everything go on that can without time passing.
    fn drive(&mut self) -> Result<(), Failure> {
        loop {
            self.stage.settle().map_err(|error| refused(&error))?;
            let jobs = self.stage.jobs();
            let mut busy = !jobs.is_empty();
            for job in jobs {
                self.answer(job)?;
            }
            for row in self.stage.asked_people() {
                busy |= self.answer_for_person(&row)?;
            }
            if !busy {
                return Ok(());
            }
        }
    }

    fn answer(&mut self, job: Job) -> Result<(), Failure> {
        let attempt = self.stage.failed_attempts(job.run, job.step);
        let known = self.given.get(&(job.run, job.step)).and_then(|all| all.get(attempt)).cloned();
        let answer = match known {
            Some(answer) => answer,
            None => {
                let answer = self.next_answer(&job)?;
                self.given.entry((job.run, job.step)).or_default().push(answer.clone());
                answer
            }
        };
        job.answer(answer);
        Ok(())
    }

    fn next_answer(&mut self, job: &Job) -> Result<Result<Json, Failure>, Failure> {
        let agent = &*job.agent;
        if job.asks_model {
            return self.turn(job);
        }
        let Some(mock) = self.mocks.get_mut(agent) else {
            return Err(usage(format!(
                "nobody answers for the agent `{agent}` (operator {}); write run:mock(\"{agent}\", …)",
                job.operator
            )));
        };
        let given = mock.next(agent)?;
        Ok(self.made(given, &job.input))
    }

    /// Returns the answer of an agent's model to a request.
    fn turn(&self, job: &Job) -> Result<Result<Json, Failure>, Failure> {
        let agent = &*job.agent;
        let turns = match self.models.get(agent) {
            None => {
                return Err(usage(format!(
                    "nobody answers for the agent `{agent}`, whose operator {} is a model; write \
                     run:mock(\"{agent}\", …) for what it comes to as a whole, or \
                     run:model(\"{agent}\", {{ … }}) for what its model says, turn by turn",
                    job.operator
                )));
            }
            Some(ModelAnswers::Turns(turns)) => turns.clone(),
            Some(ModelAnswers::Function(function)) => match self.file.answer(*function, &job.input)
            {
                // The one turn that it is, whichever of the conversation's it is.
                Ok(turn) => {
                    let mut turn = turn.to_value();
                    if let Value::String(text) = turn {
                        turn = serde_json::json!({ "text": text });
                    }
                    if let Value::Object(turn) = &mut turn {
                        turn.insert("when".to_owned(), "".into());
                    }
                    vec![turn]
                }
                Err(failure) => return Ok(Err(failure)),
            },
        };
        let turns = ScriptedTurns::read(turns).map_err(|failure| usage(failure.message))?;
        let attempt = self.stage.failed_attempts(job.run, job.step) + 1;
        match turns.reply(&job.input, &format!("{}.{}", job.run, job.step), attempt) {
            Err(failure) if failure.is(NO_TURN) => {
                Err(usage(format!("run:model(\"{agent}\", …): {}", failure.message)))
            }
            said => Ok(said),
        }
    }

    fn made(&self, given: PreparedAnswer, input: &Json) -> Result<Json, Failure> {
        match given {
            PreparedAnswer { failure: Some(failure), .. } => Err(failure.into()),
            PreparedAnswer { function: Some(function), .. } => self.file.answer(function, input),
            PreparedAnswer { value, .. } => Ok(json_of(value)),
        }
    }

    /// Answers a person's task, if the test says what. Where several people have to answer, each
    /// answer is another person's.
    fn answer_for_person(&mut self, row: &TaskRow) -> Result<bool, Failure> {
        let task = TaskId::new(row.run, row.step, row.scheduled_ms);
        let view =
            self.ask(move |engine, by| async move { engine.tasks().get(&by, task).await })?;
        let place = view.answers.len();
        let known = self.given.get(&(row.run, row.step)).and_then(|all| all.get(place)).cloned();
        let answer = match known {
            Some(answer) => answer,
            None => {
                let next = self.people.get_mut(&row.agent).and_then(VecDeque::pop_front);
                let given = match (next, self.mocks.get_mut(&row.agent)) {
                    (Some(given), _) => given,
                    (None, Some(mock)) => mock.next(&row.agent)?,
                    (None, None) => return Ok(false),
                };
                let answer = match given.reject.clone() {
                    Some(reason) => Err(Failure::new(kind::HUMAN_REJECTED, reason)),
                    None => self.made(given, &view.input.unwrap_or_else(Json::null)),
                };
                self.given.entry((row.run, row.step)).or_default().push(answer.clone());
                answer
            }
        };
        let answer = match answer {
            Ok(output) => Answer::Output(output),
            // Nobody answers: the task ends when its time is over.
            Err(failure) if failure.is(kind::TIMEOUT) => return Ok(false),
            Err(failure) => Answer::Reject { reason: failure.message },
        };
        let key = self.key();
        self.ask(move |engine, mut by| {
            let (answer, key) = (answer.clone(), key.clone());
            by.subject = format!("person-{}", place + 1);
            async move { engine.tasks().answer(&by, task, (answer, None), Some(key)).await.map(drop) }
        })?;
        Ok(true)
    }

    fn finish(&mut self, run: usize) -> Result<RunView, Failure> {
        let id = self.begun(run)?;
        for _ in 0..MOST_WAITS {
            self.drive()?;
            let view = self.view(id)?;
            if view.status.is_ended() {
                return Ok(view);
            }
            if view.status == RunStatus::Paused {
                let why = view.error.map(|error| error.message).unwrap_or_default();
                return Err(Failure::new("paused", format!("the run rests: {why}")));
            }
            match self.stage.next_due() {
                Some(due) => self.stage.pass_to(due),
                None => {
                    let waits: Vec<_> = view.waiting_on.iter().map(ToString::to_string).collect();
                    return Err(usage(format!(
                        "the run never ends: it waits for {}",
                        if waits.is_empty() { "nothing".to_owned() } else { waits.join(", ") }
                    )));
                }
            }
        }
        Err(usage(format!("the run did not end within {MOST_WAITS} waits")))
    }

    /// Lets time pass, with all that is due on the way.
    fn advance(&mut self, by: &serde_json::Value) -> Result<(), Failure> {
        let ms = match by {
            serde_json::Value::String(text) => parse_duration(text).ok(),
            other => other.as_f64().and_then(seconds_to_ms),
        };
        let ms = ms.ok_or_else(|| usage(format!("run:advance: {by} is not a duration")))?;
        let until = self.stage.now_ms().saturating_add(ms);
        for _ in 0..MOST_WAITS {
            match self.stage.next_due().filter(|due| *due <= until) {
                Some(due) => self.stage.pass_to(due),
                None => break,
            }
            self.drive()?;
        }
        self.stage.pass_to(until);
        self.drive()
    }

    fn saw(&mut self, run: usize) {
        if let Some(slot) = self.runs.get_mut(run.wrapping_sub(1)) {
            slot.seen = true;
        }
    }
}

/// Returns the waits of a run: the data, and the words.
fn waits(run: &RunView) -> Vec<Value> {
    let one = |on: &WaitingOn| {
        let mut shown = serde_json::json!(on);
        shown["what"] = on.to_string().into();
        shown
    };
    run.waiting_on.iter().map(one).collect()
}
