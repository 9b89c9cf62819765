//! A command as an operator. Each call runs in its own child process.

use std::{io, sync::Arc};

use async_trait::async_trait;
use tokio::io::AsyncReadExt as _;

use super::{Asked, Environments, INHERITED, Input, NotStarted, Provisioned};
use crate::protocol::{
    Content, EnvError, Environment, EnvironmentSpec, ExitReason, OperatorError, OperatorInput,
    OperatorOutput, SecretAccessEvent,
};

/// The size limit of an answer in bytes.
const ANSWER: u64 = 8 * 1024 * 1024;
/// The size limit of stderr in bytes.
const COMPLAINT: u64 = 64 * 1024;

/// Receives an event for each requested secret.
pub type Listener = Arc<dyn Fn(SecretAccessEvent) + Send + Sync>;

/// Runs a command for each input. The command reads the message's text from stdin, and its output
/// is the answer.
pub struct Process {
    environments: Arc<Environments>,
    argv: Vec<String>,
    listener: Listener,
}

impl Process {
    /// Creates an environment for one command.
    pub fn new(environments: Arc<Environments>, argv: Vec<String>) -> Self {
        Self { environments, argv, listener: Arc::new(|_| ()) }
    }

    /// Sets the receiver of secret access events.
    #[must_use]
    pub fn with_listener(self, listener: Listener) -> Self {
        Self { listener, ..self }
    }

    async fn execute(
        &self,
        input: &OperatorInput,
        provisioned: &Provisioned,
    ) -> Result<OperatorOutput, EnvError> {
        let failed = |error: io::Error| {
            EnvError::OperatorError(OperatorError::Retryable(format!("the child: {error}")))
        };
        let (program, arguments) = self.argv.split_first().ok_or_else(|| {
            EnvError::OperatorError(OperatorError::NonRetryable("there is no program".into()))
        })?;
        let mut variables: Vec<_> = INHERITED
            .into_iter()
            .filter_map(|name| Some((name.to_owned(), std::env::var_os(name)?)))
            .collect();
        let here = std::env::current_dir().map_err(failed)?;
        variables.extend(provisioned.surroundings(&here));
        let text = input.message.as_text().unwrap_or_default();
        let not_started = |error: io::Error| {
            let why = format!("failed to start `{program}`: {error}");
            EnvError::OperatorError(OperatorError::NonRetryable(why))
        };
        let launch = provisioned
            .launch(program, arguments, provisioned.work(), variables)
            .map_err(not_started)?;
        let input = Input::Whole(text.as_bytes());
        let mut launched = launch.start(input).await.map_err(not_started)?;
        let (mut answer, mut complaint) = (Vec::new(), Vec::new());
        let (stdout, stderr) = (launched.stdout.take(), launched.stderr.take());
        let work = async {
            let read = async {
                match stdout {
                    Some(it) => it.take(ANSWER + 1).read_to_end(&mut answer).await.map(drop),
                    None => Ok(()),
                }
            };
            let hear = async {
                match stderr {
                    Some(it) => it.take(COMPLAINT).read_to_end(&mut complaint).await.map(drop),
                    None => Ok(()),
                }
            };
            let (read, heard) = tokio::join!(read, hear);
            read.and(heard)?;
            launched.wait().await
        };
        let status = match provisioned.wall() {
            None => work.await,
            Some(wall) => match tokio::time::timeout(wall, work).await {
                Ok(status) => status,
                Err(_) => return Err(provisioned.too_long()),
            },
        }
        .map_err(failed)?;
        match launched.not_started() {
            None => {}
            Some(NotStarted::Boundary(error)) => return Err(error),
            Some(NotStarted::Program(error)) => {
                let why = format!("failed to start `{program}`: {error}");
                return Err(OperatorError::NonRetryable(why).into());
            }
        }
        if let Some(broken) = provisioned.broken(status.success()) {
            return Err(broken);
        }
        if answer.len() as u64 > ANSWER {
            let why = format!("stdout: it printed more than {ANSWER} bytes");
            return Err(EnvError::ResourceExceeded(why));
        }
        let scrubber = provisioned.scrubber();
        if !status.success() {
            // Half a secret may stand where it was cut off.
            let cut = if complaint.len() as u64 == COMPLAINT { scrubber.longest() } else { 0 };
            let mut complaint = scrubber.scrub(complaint);
            complaint.truncate(complaint.len().saturating_sub(cut));
            let last = String::from_utf8_lossy(&complaint);
            let last = last.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
            let why = format!("`{program}` ended with {status}: {last}");
            return Err(OperatorError::NonRetryable(why).into());
        }
        let answer = String::from_utf8_lossy(&scrubber.scrub(answer)).into_owned();
        Ok(OperatorOutput::new(Content::text(answer), ExitReason::Complete))
    }
}

#[async_trait]
impl Environment for Process {
    async fn run(
        &self,
        input: OperatorInput,
        spec: &EnvironmentSpec,
    ) -> Result<OperatorOutput, EnvError> {
        let name = uuid::Uuid::new_v4().to_string();
        let workdir = std::env::current_dir()
            .map_err(|error| EnvError::ProvisionFailed(format!("find the directory: {error}")))?;
        let asked = Asked {
            name: &name,
            workdir: &workdir,
            read: &[],
            known: &[],
            ticket: None,
            workflow: None,
            operator: None,
            tell: &*self.listener,
        };
        let provisioned = self.environments.provision(spec, asked).await?;
        let output = self.execute(&input, &provisioned).await;
        provisioned.tear_down().await;
        output
    }
}
