//! The backend: from a task to a child and from its end to a reply.

use std::{collections::BTreeMap, fmt, io, path::PathBuf, process::Stdio, sync::Arc};

use async_trait::async_trait;
use tokio::process::Command;

use super::{
    argv::{self, Templates},
    child::{End, Limits, Running},
    death_watch::DeathWatch,
    outcome,
};
use crate::{
    blueprint::Blueprint,
    environment::Text,
    middleware::TaskDone,
    operator::{Backend, Delivery, Reply, Residence, Task},
    protocol::{Failure, Json, failure::kind},
};

/// Gives the directory that has a blueprint's files, writing them first if nobody did. Called
/// for every child, on a thread of the runtime: it must be cheap once they are there.
pub type BundleDir = Arc<dyn Fn(&Blueprint) -> io::Result<PathBuf> + Send + Sync>;

/// Runs each attempt as a child process.
#[derive(Clone)]
pub struct Process {
    bundle_dir: BundleDir,
    watch: Arc<DeathWatch>,
    env: Arc<BTreeMap<String, Text>>,
    pub(super) limits: Limits,
}

impl Process {
    /// An operator whose children find their blueprint's files by `bundle_dir`.
    pub fn new(bundle_dir: BundleDir) -> Self {
        Self { bundle_dir, watch: Arc::default(), env: Arc::default(), limits: Limits::default() }
    }

    /// The same, with variables that every child gets, below those of its agent.
    #[must_use]
    pub fn with_env(self, env: BTreeMap<String, Text>) -> Self {
        Self { env: Arc::new(env), ..self }
    }

    fn start(&self, task: &Task, input: &Json) -> Result<(String, Running), Failure> {
        let bundle = (self.bundle_dir)(task.program.blueprint()).map_err(|error| {
            Failure::new(
                kind::PROCESS,
                format!(
                    "failed to lay out the files of {}: {error}",
                    task.program.blueprint().name()
                ),
            )
            .retryable()
        })?;
        let templates = Templates::new(task, input, &bundle);
        let (program, arguments) = templates.argv(task)?;
        let mut command = Command::new(&program);
        command.args(arguments).env_clear().envs(templates.variables(task, &bundle)?);
        let given =
            |name: &str| name.starts_with("MOONSWARM_") || task.agent.env.contains_key(name);
        for (name, text) in self.env.iter().filter(|(name, _)| !given(name)) {
            let value = text.resolve().map_err(|error| {
                Failure::new(kind::PROCESS, format!("failed to {error}")).retryable()
            })?;
            command.env(name, value.expose());
        }
        command
            .current_dir(argv::directory(task)?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let running = Running::spawn(&mut command, &self.watch)
            .map_err(|error| outcome::not_started(&program, &error))?;
        Ok((program, running))
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process").field("limits", &self.limits).finish_non_exhaustive()
    }
}

#[async_trait]
impl Backend for Process {
    fn kind(&self) -> &'static str {
        "process"
    }

    fn residence(&self) -> Residence {
        Residence::Host
    }

    async fn execute(&self, task: Arc<Task>, input: Json) -> Result<Reply, Failure> {
        let canceled = || Failure::new(kind::CANCELED, "the attempt was given up");
        if task.cancel.is_cancelled() {
            return Err(canceled());
        }
        let (program, running) = self.start(&task, &input)?;
        task.reporter.delivered(Delivery { worker: format!("pid {}", running.pid()) });
        let end = running.finish(&task, input.as_str().as_bytes(), self.limits).await;
        // A child that reported and then ended at once is done, whatever its exit says.
        if task.reported.is_cancelled() {
            return Ok(Reply::Parked);
        }
        match end {
            Ok(End::Exited(exit)) => {
                let output = outcome::outcome(&program, exit, task.agent.check)?;
                Ok(Reply::Done(TaskDone { output, usage: None, effects: Vec::new() }))
            }
            Ok(End::Canceled) => Err(canceled()),
            Ok(End::Reported) => Ok(Reply::Parked),
            Ok(End::Overflow) => Err(outcome::overflow(&program, self.limits.stdout)),
            Err(error) => {
                Err(Failure::new(kind::PROCESS, format!("failed to wait for `{program}`: {error}"))
                    .retryable())
            }
        }
    }
}
