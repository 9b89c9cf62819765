//! The backend: starts a child for a task, and turns its end into a reply.

use std::{collections::BTreeMap, fmt, io, path::PathBuf, sync::Arc};

use async_trait::async_trait;

use super::{
    argv::{self, Templates},
    child::{ChildEnd, Limits, Running},
    outcome::{self, failure_of, given_up},
    prepared::{Prepared, Variables},
    within,
};
use crate::{
    blueprint::Blueprint,
    environment::{Asked, Environments, Input, NotStarted, Provisioned, Scrubber, Secret, Text},
    middleware::{Dispatched, ExecCall, ExecTerminal, PROGRAMS, TaskDone},
    operator::{
        Backend, Delivery, Reply, Residence, Task,
        agent_cli::{AgentCli, CliCall, Listener},
    },
    protocol::{EnvironmentSpec, Failure, Json, failure::kind},
};

/// Returns the directory with the files of a blueprint, and writes them first if needed. Called for
/// every child, on a thread of the runtime: it must be cheap once they are there.
pub type BundleDir = Arc<dyn Fn(&Blueprint) -> io::Result<PathBuf> + Send + Sync>;

/// Runs each attempt as a child process.
#[derive(Clone)]
pub struct Process {
    bundle_dir: BundleDir,
    pub(super) environments: Arc<Environments>,
    env: Arc<BTreeMap<String, Text>>,
    /// The command line of a coding agent, in place of the agent's `command`.
    cli: Option<Arc<AgentCli>>,
    pub(super) limits: Limits,
}

impl Process {
    /// Creates an operator whose children find the files of their blueprint through `bundle_dir`.
    pub fn new(bundle_dir: BundleDir, environments: Arc<Environments>) -> Self {
        Self { bundle_dir, environments, env: Arc::default(), cli: None, limits: Limits::default() }
    }

    /// Sets variables of every child; the agent's own override them.
    #[must_use]
    pub fn with_env(self, env: BTreeMap<String, Text>) -> Self {
        Self { env: Arc::new(env), ..self }
    }

    /// Runs the command line of a coding agent in place of the agent's `command`.
    #[must_use]
    pub(in crate::operator) fn of_cli(self, cli: AgentCli) -> Self {
        Self { cli: Some(Arc::new(cli)), ..self }
    }

    /// Prepares a child before it starts: its environment, and the operator's own secrets.
    async fn prepare(&self, task: &Task) -> Result<Prepared, Failure> {
        let blueprint = task.program.blueprint();
        let bundle = (self.bundle_dir)(blueprint).map_err(|error| {
            let name = blueprint.name();
            let message = format!("failed to lay out the files of {name}: {error}");
            Failure::new(kind::PROCESS, message).retryable()
        })?;
        let workdir = argv::workdir(task)?;
        let (variables, known) = self.own_variables(task)?;
        let declared = task.agent.environment.as_ref();
        // One in code provisions for itself.
        let own = declared.filter(|it| self.environments.coded(&it.to_value()).is_none());
        let Some(declared) = own else {
            let mut scrubber = Scrubber::default();
            for (name, secret) in &known {
                scrubber.add(name, secret);
            }
            let scrubber = Arc::new(scrubber);
            let holds = (!scrubber.is_empty())
                .then(|| self.environments.held().hold(task.ticket(), Arc::clone(&scrubber)));
            return Ok(Prepared {
                bundle,
                workdir,
                variables,
                known,
                scrubber,
                provisioned: None,
                _holds: holds,
            });
        };
        let spec = self.spec(declared)?;
        let name = format!("{}-{}-{}", task.run, task.id.step(), task.attempt);
        let asked = Asked {
            name: &name,
            workdir: &workdir,
            read: &[&bundle],
            known: &known,
            ticket: Some(task.ticket()),
            workflow: Some(task.run.to_string()),
            operator: Some(task.agent_name.to_string()),
            tell: &|event| task.reporter.secret_accessed(event),
        };
        let provisioned = self.environments.provision(&spec, asked).await.map_err(failure_of)?;
        let scrubber = Arc::clone(provisioned.scrubber());
        let provisioned = Some(provisioned);
        Ok(Prepared { bundle, workdir, variables, known, scrubber, provisioned, _holds: None })
    }

    fn spec(&self, declared: &Json) -> Result<EnvironmentSpec, Failure> {
        self.environments.spec(&declared.to_value()).map_err(|refused| {
            let refused: Vec<String> = refused.iter().map(ToString::to_string).collect();
            Failure::new(kind::ENVIRONMENT, refused.join("; "))
        })
    }

    /// Returns the variables of the operator's configuration, and the secrets among them.
    fn own_variables(&self, task: &Task) -> Result<(Variables, Vec<(String, Secret)>), Failure> {
        let given =
            |name: &str| name.starts_with("MOONSWARM_") || task.agent.env.contains_key(name);
        let (mut variables, mut known) = (Vec::new(), Vec::new());
        for (name, text) in self.env.iter().filter(|(name, _)| !given(name)) {
            let got = text.resolve();
            let failed = got.as_ref().err().map(|error| format!("failed to {error}"));
            if let Some(mut event) = text.accessed(name, failed, self.environments.now_ms()) {
                event.operator_id = Some(task.agent_name.to_string());
                task.reporter.secret_accessed(event);
            }
            let value = got.map_err(|error| {
                Failure::new(kind::PROCESS, format!("failed to {error}")).retryable()
            })?;
            if text.source().is_some() {
                known.push((name.clone(), value));
            } else {
                variables.push((name.clone(), value.expose().into()));
            }
        }
        Ok((variables, known))
    }

    async fn start(
        &self,
        task: &Task,
        input: &Json,
        stdin: Input<'_>,
        prepared: &Prepared,
        (program, arguments): (&str, Vec<String>),
    ) -> Result<Running, Failure> {
        let templates = Templates::new(task, input, &prepared.bundle);
        let surroundings = prepared
            .provisioned
            .as_ref()
            .map(|it| it.surroundings(&prepared.workdir))
            .unwrap_or_default();
        let mut variables = templates.variables(task, &prepared.bundle, surroundings)?;
        variables.extend(prepared.variables.iter().cloned());
        let known = prepared.known.iter().map(|(name, it)| (name.clone(), it.expose().into()));
        variables.extend(known);
        let within = argv::directory(task, &prepared.workdir)?;
        let not_started = |error: &io::Error| outcome::not_started(program, error);
        let launch = match &prepared.provisioned {
            None => {
                let cwd = within.unwrap_or_else(|| prepared.workdir.clone());
                let keep = [prepared.workdir.as_path(), prepared.bundle.as_path()];
                self.environments.launch(program, &arguments, variables, &cwd, &keep)
            }
            Some(provisioned) => {
                let cwd = within.unwrap_or_else(|| provisioned.work().to_owned());
                provisioned.launch(program, &arguments, &cwd, variables)
            }
        };
        let launch = launch.map_err(|error| not_started(&error))?;
        Running::start(launch, stdin).await.map_err(|error| not_started(&error))
    }

    /// Interprets the end of a child: first for its boundary and limits, then for its task.
    async fn judge(
        &self,
        task: &Task,
        program: &str,
        prepared: &Prepared,
        end: io::Result<ChildEnd>,
        listener: Option<Listener<'_>>,
    ) -> Result<Reply, Failure> {
        // After a report the exit status does not matter.
        if task.reported.is_cancelled() {
            return Ok(Reply::Parked);
        }
        let environment = prepared.provisioned.as_ref();
        match end {
            Ok(ChildEnd::Exited(exit)) => {
                let broken = environment.and_then(|it| it.broken(exit.status.success()));
                if let Some(broken) = broken {
                    return Err(failure_of(broken));
                }
                let exit = exit.scrubbed(&prepared.scrubber, self.limits.stderr);
                let check = task.agent.check || listener.is_some();
                let outcome = outcome::outcome(program, exit, check, self.limits.result).await;
                let mut done = match listener {
                    None => TaskDone::new(outcome?),
                    Some(listener) => match listener.end(outcome.map(drop)) {
                        Ok(done) => done,
                        // The tokens that it used must be paid.
                        Err(short) => return Ok(Reply::Short(short)),
                    },
                };
                // Once more: JSON has several spellings, and an answer came in pieces.
                if !prepared.scrubber.is_empty() {
                    done.output = prepared.scrubber.scrub_json(&done.output);
                }
                Ok(Reply::Done(done))
            }
            Ok(ChildEnd::NotStarted(NotStarted::Boundary(error))) => Err(failure_of(error)),
            Ok(ChildEnd::NotStarted(NotStarted::Program(error))) => Err(match environment {
                Some(_) => outcome::not_started_within(program, &error),
                None => outcome::not_started(program, &error),
            }),
            Ok(ChildEnd::Canceled) => Err(given_up()),
            Ok(ChildEnd::Reported) => Ok(Reply::Parked),
            Ok(ChildEnd::Overflow) => Err(outcome::overflow(program, self.limits.stdout)),
            Ok(ChildEnd::TooLong) => Err(match environment {
                Some(environment) => failure_of(environment.too_long()),
                None => given_up(),
            }),
            Err(error) => {
                Err(Failure::new(kind::PROCESS, format!("failed to wait for `{program}`: {error}"))
                    .retryable())
            }
        }
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
        if self.cli.is_some() { "agent_cli" } else { "process" }
    }

    fn residence(&self) -> Residence {
        Residence::Host
    }

    async fn execute(&self, task: Arc<Task>, input: Json) -> Result<Reply, Failure> {
        if task.cancel.is_cancelled() {
            return Err(given_up());
        }
        let mut prepared = tokio::select! {
            prepared = self.prepare(&task) => prepared?,
            () = task.cancel.cancelled() => return Err(given_up()),
        };
        let asked = match &self.cli {
            Some(cli) => cli.ask(&task, &input).await.map(Some),
            None => Ok(None),
        };
        let called =
            asked.and_then(|asked| Ok((called(&task, &input, &prepared, asked.as_ref())?, asked)));
        let done = match called {
            Err(failure) => Err(failure),
            Ok((call, asked)) => {
                let child = Child {
                    process: self,
                    task: &task,
                    input: &input,
                    asked: asked.as_ref(),
                    prepared: &prepared,
                };
                task.stacks.exec.run(call, &child).await
            }
        };
        if let Some(provisioned) = prepared.provisioned.take() {
            provisioned.tear_down().await;
        }
        done.map(|done| match done {
            Dispatched::Done(done) => Reply::Done(done),
            Dispatched::Short(short) => Reply::Short(short),
            Dispatched::Parked => Reply::Parked,
        })
    }
}

/// Returns the program of a task, as the layers see it.
fn called(
    task: &Task,
    input: &Json,
    prepared: &Prepared,
    asked: Option<&CliCall>,
) -> Result<ExecCall, Failure> {
    let (program, args) = match asked {
        Some(asked) => asked.argv.clone(),
        None => Templates::new(task, input, &prepared.bundle).argv(task)?,
    };
    let given = prepared.variables.iter().map(|(name, _)| name);
    let known = prepared.known.iter().map(|(name, _)| name);
    Ok(ExecCall {
        run: task.run,
        task: task.id,
        attempt: task.attempt,
        agent: Arc::clone(&task.agent_name),
        operator: Arc::clone(&task.operator),
        kind: PROGRAMS,
        input: input.clone(),
        program,
        args,
        env: task.agent.env.keys().chain(given).chain(known).cloned().collect(),
    })
}

/// The child at the end of the stack.
struct Child<'a> {
    process: &'a Process,
    task: &'a Task,
    input: &'a Json,
    asked: Option<&'a CliCall>,
    prepared: &'a Prepared,
}

#[async_trait]
impl ExecTerminal for Child<'_> {
    async fn exec(&self, call: ExecCall) -> Result<Dispatched, Failure> {
        let Self { process, task, input, asked, prepared } = *self;
        if let Some(declared) = &task.agent.environment
            && let Some(environment) = process.environments.coded(&declared.to_value())
        {
            let spec = process.spec(declared)?;
            let within = (&**environment, &spec);
            if asked.is_some() {
                let message = "an environment in code runs no command line of a coding agent";
                return Err(Failure::new(kind::ENVIRONMENT, message));
            }
            return within::execute(within, task, input, prepared, &call).await;
        }
        // When its delivery is reported, the child runs already.
        task.reporter.begins();
        let command = (call.program.as_str(), call.args);
        let stdin = match asked {
            Some(asked) => asked.input(),
            None => Input::Whole(input.as_str().as_bytes()),
        };
        let running = process.start(task, input, stdin, prepared, command).await?;
        task.reporter.delivered(Delivery { worker: format!("pid {}", running.pid()) });
        let wall = prepared.provisioned.as_ref().and_then(Provisioned::wall);
        let more = prepared.scrubber.longest();
        let limits = Limits { wall, stderr: process.limits.stderr + more, ..process.limits };
        let cli = process.cli.as_ref();
        let mut listener = cli.map(|cli| cli.listener(task, asked, &prepared.scrubber));
        let end = running.finish(task, limits, listener.as_mut()).await;
        let reply = process.judge(task, &call.program, prepared, end, listener).await?;
        Ok(match reply {
            Reply::Done(done) => Dispatched::Done(done),
            Reply::Short(short) => Dispatched::Short(short),
            Reply::Parked => Dispatched::Parked,
        })
    }
}
