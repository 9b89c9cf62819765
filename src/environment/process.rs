//! A command as an operator. Each call runs in its own child process.

use std::{io, process::ExitStatus, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::FutureExt as _;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    time::timeout,
};

use super::{Asked, Environments, INHERITED, Input, Launched, NotStarted, Provisioned, keep_tail};
use crate::protocol::{
    Content, EnvError, Environment, EnvironmentSpec, ExitReason, OperatorError, OperatorInput,
    OperatorOutput, SecretAccessEvent,
};

/// The size limit of an answer in bytes.
const ANSWER: usize = 8 * 1024 * 1024;
/// The number of bytes of stderr that are kept, from the end.
const COMPLAINT: usize = 64 * 1024;
/// The time for the pipes of a child to close after it ended; another process may hold them.
const DRAIN: Duration = Duration::from_secs(2);

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
        let scrubber = provisioned.scrubber();
        let (mut answer, mut complaint) = (Vec::new(), Vec::new());
        let kept = COMPLAINT + scrubber.longest();
        let work = finish(&mut launched, &mut answer, &mut complaint, kept);
        let status = match provisioned.wall() {
            None => work.await,
            Some(wall) => match timeout(wall, work).await {
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
        if answer.len() > ANSWER {
            let why = format!("stdout: it printed more than {ANSWER} bytes");
            return Err(EnvError::ResourceExceeded(why));
        }
        if !status.success() {
            let complaint = scrubber.scrub_tail(complaint, COMPLAINT);
            let last = String::from_utf8_lossy(&complaint);
            let last = last.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
            let why = format!("`{program}` ended with {status}: {last}");
            return Err(OperatorError::NonRetryable(why).into());
        }
        let answer = String::from_utf8_lossy(&scrubber.scrub(answer)).into_owned();
        Ok(OperatorOutput::new(Content::text(answer), ExitReason::Complete))
    }
}

/// Reads the output of a child until it ends, and then what is left in its pipes: all of stdout, and the
/// last `kept` bytes of stderr. A child that prints more than the limit on stdout is killed.
async fn finish(
    launched: &mut Launched,
    answer: &mut Vec<u8>,
    complaint: &mut Vec<u8>,
    kept: usize,
) -> io::Result<ExitStatus> {
    let (stdout, stderr) = (launched.stdout.take(), launched.stderr.take());
    let complaint = keep_tail(stderr, complaint, kept).map(Ok);
    let pump = async { tokio::try_join!(read(stdout, answer), complaint) };
    tokio::pin!(pump);
    let mut is_pumping = true;
    loop {
        tokio::select! {
            biased;
            pumped = &mut pump, if is_pumping => {
                is_pumping = false;
                if pumped.is_err() {
                    launched.group.kill();
                }
            }
            status = launched.wait() => {
                if is_pumping {
                    // What holds them open beyond this has left the group of the child.
                    let _ = timeout(DRAIN, pump).await;
                }
                return status;
            }
        }
    }
}

/// More output than allowed.
struct Overflow;

/// Reads a stream to its end, or beyond the limit.
async fn read(stream: Option<impl AsyncRead + Unpin>, into: &mut Vec<u8>) -> Result<(), Overflow> {
    let Some(mut stream) = stream else { return Ok(()) };
    // A read error ends the stream; what was read before is kept.
    while let Ok(1..) = stream.read_buf(into).await {
        if into.len() > ANSWER {
            return Err(Overflow);
        }
    }
    Ok(())
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
