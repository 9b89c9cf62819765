//! A child process, its output and its end.

use std::{io, process::ExitStatus, time::Duration};

use futures::FutureExt as _;
use rustix::process::Signal;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, BufReader},
    process::{ChildStderr, ChildStdout},
    time::timeout,
};

use crate::{
    environment::{Input, Launch, Launched, NotStarted, Scrubber, keep_tail},
    flow::RunLimits,
    operator::{Task, agent_cli::Listener},
};

/// The number of lines of the maximum length that a stream may have.
const LINES: usize = 32;

/// The limits of a child.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// The maximum number of bytes on stdout.
    pub(super) stdout: usize,
    /// The maximum number of bytes of the result: that of every value of a run.
    pub(super) result: usize,
    /// The number of bytes of stderr that are kept, from the end.
    pub(super) stderr: usize,
    /// The time from SIGTERM to SIGKILL after a cancel.
    pub(super) terminate: Duration,
    /// The time for the child to end after its result came over HTTP.
    pub(super) report: Duration,
    /// The maximum time from start to end, if its environment has one.
    pub(super) wall: Option<Duration>,
    /// The time for its pipes to close after it ended; another process may hold them.
    pub(super) drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            stdout: 8 * 1024 * 1024,
            result: RunLimits::default().value,
            stderr: 64 * 1024,
            terminate: Duration::from_secs(2),
            report: Duration::from_secs(5),
            wall: None,
            drain: Duration::from_secs(2),
        }
    }
}

/// The way in which a child ended.
#[derive(Debug)]
pub(super) enum ChildEnd {
    /// The child exited.
    Exited(Exit),
    /// The child did not start.
    NotStarted(NotStarted),
    /// The attempt was given up.
    Canceled,
    /// Its result came over HTTP.
    Reported,
    /// The child exceeded the limit on stdout.
    Overflow,
    /// The child exceeded the time limit of its environment.
    TooLong,
}

/// The exit of a child.
#[derive(Debug)]
pub(super) struct Exit {
    /// Its status.
    pub(super) status: ExitStatus,
    /// All of stdout.
    pub(super) stdout: Vec<u8>,
    /// The end of stderr.
    pub(super) stderr: Vec<u8>,
}

impl Exit {
    /// Removes secrets; keeps the last `tail` bytes of stderr.
    pub(super) fn scrubbed(self, scrubber: &Scrubber, tail: usize) -> Self {
        if scrubber.is_empty() {
            return self;
        }
        let stderr = scrubber.scrub_tail(self.stderr, tail);
        Self { stdout: scrubber.scrub(self.stdout), stderr, ..self }
    }
}

/// A child in a process group of its own.
pub(in crate::operator) struct Running(Launched);

impl Running {
    /// Starts a child.
    ///
    /// # Cancel safety
    /// Dropping the future kills the child if it has begun.
    pub(in crate::operator) async fn start(launch: Launch, input: Input<'_>) -> io::Result<Self> {
        launch.start(input).await.map(Self)
    }

    /// Returns the pid of the child, which is the number of its group.
    pub(super) fn pid(&self) -> i32 {
        self.0.group.number()
    }

    /// Takes the pipes of its output; returns `None` if they were taken.
    pub(in crate::operator) fn pipes(&mut self) -> Option<(ChildStdout, ChildStderr)> {
        Some((self.0.stdout.take()?, self.0.stderr.take()?))
    }

    /// Reads the output until the child or its attempt ends. Afterwards its process group is dead.
    /// With a listener, lines of stdout go to it and are not kept.
    pub(super) async fn finish(
        mut self,
        task: &Task,
        limits: Limits,
        listener: Option<&mut Listener<'_>>,
    ) -> io::Result<ChildEnd> {
        let wall = async {
            match limits.wall {
                Some(wall) => tokio::time::sleep(wall).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(wall);
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let out = self.0.stdout.take();
        let err = self.0.stderr.take();
        let ended = {
            let pump = async {
                tokio::try_join!(
                    async {
                        match listener {
                            None => collect(out, &mut stdout, limits.stdout).await,
                            Some(listener) => hear(out, listener, limits.stdout).await,
                        }
                    },
                    keep_tail(err, &mut stderr, limits.stderr).map(Ok),
                )
                .map(|_| ())
            };
            tokio::pin!(pump);
            let mut pumping = true;
            loop {
                tokio::select! {
                    biased;
                    () = task.cancel.cancelled() => {
                        self.terminate(pump, pumping, limits.terminate).await?;
                        break Err(ChildEnd::Canceled);
                    }
                    () = task.reported.cancelled() => {
                        let exit = async {
                            tokio::select! {
                                status = self.0.wait() => status.map(|_| ()),
                                () = idle_after(pump, pumping) => Ok(()),
                            }
                        };
                        let _ = timeout(limits.report, exit).await;
                        break Err(ChildEnd::Reported);
                    }
                    () = &mut wall => break Err(ChildEnd::TooLong),
                    pumped = &mut pump, if pumping => {
                        pumping = false;
                        if let Err(Overflow) = pumped {
                            break Err(ChildEnd::Overflow);
                        }
                    }
                    status = self.0.wait() => {
                        let status = status?;
                        if pumping
                            && let Ok(Err(Overflow)) = timeout(limits.drain, pump).await
                        {
                            break Err(ChildEnd::Overflow);
                        }
                        break Ok(status);
                    }
                }
            }
        };
        if ended.is_err() {
            self.0.group.kill();
            self.0.wait().await?;
        }
        Ok(match (ended, self.0.not_started()) {
            (Err(end), _) => end,
            (Ok(_), Some(why)) => ChildEnd::NotStarted(why),
            (Ok(status), None) => ChildEnd::Exited(Exit { status, stdout, stderr }),
        })
    }

    /// Sends SIGTERM to the group and waits; the caller kills what remains after `grace`.
    async fn terminate(
        &mut self,
        pump: impl Future<Output = Result<(), Overflow>>,
        pumping: bool,
        grace: Duration,
    ) -> io::Result<()> {
        self.0.group.signal(Signal::TERM);
        let exit = async {
            tokio::select! {
                status = self.0.wait() => status.map(|_| ()),
                () = idle_after(pump, pumping) => Ok(()),
            }
        };
        timeout(grace, exit).await.unwrap_or(Ok(()))
    }
}

/// Drains the pipes while something else is awaited, so that a full pipe does not block a child
/// that cleans up. Never returns.
async fn idle_after(pump: impl Future<Output = Result<(), Overflow>>, pumping: bool) {
    if pumping {
        let _ = pump.await;
    }
    std::future::pending::<()>().await;
}

/// More output than allowed.
struct Overflow;

/// Reads a stream to its end, or to one byte more than `cap`.
async fn collect(
    stream: Option<impl AsyncRead + Unpin>,
    into: &mut Vec<u8>,
    cap: usize,
) -> Result<(), Overflow> {
    let Some(stream) = stream else { return Ok(()) };
    let mut stream = stream.take(u64::try_from(cap).unwrap_or(u64::MAX).saturating_add(1));
    // A read error ends the stream; what was read before is kept.
    let _ = stream.read_to_end(into).await;
    if into.len() > cap { Err(Overflow) } else { Ok(()) }
}

/// Passes the lines of a stream on until its end. A line has at most `cap` bytes, and all of them
/// [`LINES`] times that.
async fn hear(
    stream: Option<impl AsyncRead + Unpin>,
    listener: &mut Listener<'_>,
    cap: usize,
) -> Result<(), Overflow> {
    let Some(stream) = stream else { return Ok(()) };
    let all = u64::try_from(cap.saturating_mul(LINES)).unwrap_or(u64::MAX);
    let mut stream = BufReader::new(stream.take(all.saturating_add(1)));
    let (mut line, mut read) = (Vec::new(), 0);
    loop {
        line.clear();
        let mut limited = (&mut stream).take(u64::try_from(cap).unwrap_or(u64::MAX) + 1);
        // A read error ends the stream.
        let got = limited.read_until(b'\n', &mut line).await.unwrap_or(0);
        read += got as u64;
        if got > cap || read > all {
            return Err(Overflow);
        }
        if got == 0 {
            return Ok(());
        }
        listener.line(String::from_utf8_lossy(&line).trim_end_matches(['\r', '\n']));
    }
}
