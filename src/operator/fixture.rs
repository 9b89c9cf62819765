//! Attempts for the tests of operators.

use std::{
    path::PathBuf,
    sync::{Arc, LazyLock},
};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{Delivery, Registry, Reporter, Task};
use crate::{
    blueprint::{Agent, Bundle},
    environment::{Config, Environments},
    flow::TaskOpts,
    lua::{Limits, Program},
    protocol::{Json, ModelDelta, RunId, SecretAccessEvent, TaskId},
};

/// Builds a task.
pub(crate) struct Attempt {
    agent: Agent,
    workdir: PathBuf,
    heard: Arc<Heard>,
}

/// The reports of an operator about its attempt.
#[derive(Default)]
pub(super) struct Heard {
    workers: Mutex<Vec<String>>,
    secrets: Mutex<Vec<SecretAccessEvent>>,
    deltas: Mutex<Vec<ModelDelta>>,
    progress: Mutex<Vec<Json>>,
    said: Notify,
}

impl Attempt {
    pub(crate) fn new() -> Self {
        Self {
            agent: Agent { check: true, ..Agent::default() },
            workdir: std::env::temp_dir(),
            heard: Arc::default(),
        }
    }

    pub(super) fn agent(mut self, change: impl FnOnce(&mut Agent)) -> Self {
        change(&mut self.agent);
        self
    }

    pub(super) fn command<const N: usize>(self, command: [&str; N]) -> Self {
        self.agent(|agent| agent.command = command.map(str::to_owned).to_vec())
    }

    pub(super) fn workdir(mut self, workdir: impl Into<PathBuf>) -> Self {
        self.workdir = workdir.into();
        self
    }

    pub(super) fn heard(&self) -> Arc<Heard> {
        Arc::clone(&self.heard)
    }

    pub(crate) fn task(self) -> Arc<Task> {
        Arc::new(Task {
            id: TaskId::new(1, 2, 1_000),
            run: RunId::new(1, 1_000),
            attempt: 1,
            epoch: 1,
            nonce: 9,
            trace: None,
            agent_name: "worker".into(),
            agent: Arc::new(self.agent),
            operator: "process".into(),
            opts: TaskOpts::default(),
            given: Json::null(),
            trigger: crate::protocol::TriggerType::Task,
            routed: std::sync::OnceLock::new(),
            program: program(),
            workdir: self.workdir,
            own_workdir: false,
            url: Some("http://127.0.0.1:7700".into()),
            handle: "wh_test".to_owned(),
            prompt: LazyLock::new(Box::new(|| None)),
            seat: crate::session::Seat::default(),
            passed_on: false,
            lists_tools: false,
            timeout_ms: None,
            cancel: CancellationToken::new(),
            reported: CancellationToken::new(),
            config: std::sync::OnceLock::new(),
            stacks: Arc::default(),
            reporter: self.heard,
            state: Arc::new(crate::protocol::test_utils::InMemoryStore::new()),
        })
    }
}

/// Returns environments in the system's directory for temporary files.
pub(super) fn environments() -> Arc<Environments> {
    let data = std::env::temp_dir().join(format!("moonswarm-test-{}", uuid::Uuid::new_v4()));
    Arc::new(Environments::new(Config::default(), &data, crate::clock::Clock::system()))
}

/// Returns a program of one file.
pub(super) fn program() -> Arc<Program> {
    let source = "return require('swarm').blueprint { name = 'fixture', flow = function() end }";
    let bundle = Bundle::from_source("fixture.lua", source).unwrap();
    let (program, _) = Program::compile(bundle, &Registry::default(), &Limits::default()).unwrap();
    Arc::new(program)
}

impl Heard {
    /// Returns the secrets that were requested so far.
    pub(super) fn secrets(&self) -> Vec<SecretAccessEvent> {
        self.secrets.lock().clone()
    }

    /// Returns the deltas of the answer so far.
    pub(super) fn deltas(&self) -> Vec<ModelDelta> {
        self.deltas.lock().clone()
    }

    /// Returns the progress so far.
    pub(super) fn progress(&self) -> Vec<Json> {
        self.progress.lock().clone()
    }

    /// Waits for the first delivery and returns the worker's name.
    pub(super) async fn worker(&self) -> String {
        loop {
            let said = self.said.notified();
            if let Some(worker) = self.workers.lock().first() {
                return worker.clone();
            }
            said.await;
        }
    }
}

impl Reporter for Heard {
    fn delivered(&self, delivery: Delivery) {
        self.workers.lock().push(delivery.worker);
        self.said.notify_one();
    }

    fn begins(&self) {}

    fn progress(&self, data: Json) {
        self.progress.lock().push(data);
    }

    fn delta(&self, delta: ModelDelta) {
        self.deltas.lock().push(delta);
    }

    fn secret_accessed(&self, event: SecretAccessEvent) {
        self.secrets.lock().push(event);
    }
}
