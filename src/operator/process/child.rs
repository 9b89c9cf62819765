//! A child process with its group, its pipes and its end.

use std::{io, process::ExitStatus, sync::Arc, time::Duration};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _},
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command},
    time::timeout,
};

use super::death_watch::DeathWatch;
use crate::{environment::Scrubber, operator::Task};

/// How much and how long a child may.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// The most bytes on stdout.
    pub(super) stdout: usize,
    /// The last bytes of stderr that are kept.
    pub(super) stderr: usize,
    /// From a cancel's SIGTERM to its SIGKILL.
    pub(super) terminate: Duration,
    /// From a result that came over HTTP to the end of the child.
    pub(super) report: Duration,
    /// From its start to its end, if its environment says.
    pub(super) wall: Option<Duration>,
    /// From the child's end to the end of its pipes, which somebody else may hold.
    pub(super) drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            stdout: 8 * 1024 * 1024,
            stderr: 64 * 1024,
            terminate: Duration::from_secs(2),
            report: Duration::from_secs(5),
            wall: None,
            drain: Duration::from_secs(2),
        }
    }
}

/// How a child's time ended.
#[derive(Debug)]
pub(super) enum End {
    /// By itself.
    Exited(Exit),
    /// The attempt was given up.
    Canceled,
    /// Its result came over HTTP.
    Reported,
    /// It printed more than it may.
    Overflow,
    /// It took longer than its environment allows.
    TooLong,
}

/// What a child left.
#[derive(Debug)]
pub(super) struct Exit {
    /// Its status.
    pub(super) status: ExitStatus,
    /// All that it printed.
    pub(super) stdout: Vec<u8>,
    /// The end of what it complained about.
    pub(super) stderr: Vec<u8>,
}

impl Exit {
    /// The same without the secrets; of the complaints the last `tail` bytes.
    pub(super) fn scrubbed(self, scrubber: &Scrubber, tail: usize) -> Self {
        if scrubber.is_empty() {
            return self;
        }
        let mut stderr = match self.stderr.len() > tail {
            true => scrubber.scrub_cut(self.stderr),
            false => scrubber.scrub(self.stderr),
        };
        drop(stderr.drain(..stderr.len().saturating_sub(tail)));
        Self { stdout: scrubber.scrub(self.stdout), stderr, ..self }
    }
}

/// A child in a group of its own.
pub(in crate::operator) struct Running {
    child: Child,
    group: Group,
}

impl Running {
    /// Starts a command, whose streams are pipes.
    pub(in crate::operator) fn spawn(
        command: &mut Command,
        watch: &Arc<DeathWatch>,
    ) -> io::Result<Self> {
        crate::fault::point("operator.process_spawn");
        let child = command.process_group(0).kill_on_drop(true).spawn()?;
        crate::fault::point("operator.process_spawned");
        let pid = child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .and_then(Pid::from_raw)
            .expect("a child that was not awaited has its pid");
        watch.add(pid);
        Ok(Self { child, group: Group { pid, watch: Arc::clone(watch) } })
    }

    /// The child's pid, which is its group's number.
    pub(super) fn pid(&self) -> i32 {
        self.group.pid.as_raw_nonzero().get()
    }

    /// Its streams, for whoever speaks to it as long as it lives; nothing if they are taken.
    pub(in crate::operator) fn pipes(&mut self) -> Option<(ChildStdin, ChildStdout, ChildStderr)> {
        Some((self.child.stdin.take()?, self.child.stdout.take()?, self.child.stderr.take()?))
    }

    /// Feeds and reads the child until it or its attempt ends. Its group is dead afterwards.
    pub(super) async fn finish(
        mut self,
        task: &Task,
        input: &[u8],
        limits: Limits,
    ) -> io::Result<End> {
        let wall = async {
            match limits.wall {
                Some(wall) => tokio::time::sleep(wall).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(wall);
        let stdin = self.child.stdin.take();
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let out = self.child.stdout.take();
        let err = self.child.stderr.take();
        let ended = {
            let pump = async {
                tokio::try_join!(
                    feed(stdin, input),
                    collect(out, &mut stdout, limits.stdout),
                    keep_tail(err, &mut stderr, limits.stderr),
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
                        break Err(End::Canceled);
                    }
                    () = task.reported.cancelled() => {
                        let exit = async {
                            tokio::select! {
                                status = self.child.wait() => status.map(|_| ()),
                                () = idle_after(pump, pumping) => Ok(()),
                            }
                        };
                        let _ = timeout(limits.report, exit).await;
                        break Err(End::Reported);
                    }
                    () = &mut wall => break Err(End::TooLong),
                    pumped = &mut pump, if pumping => {
                        pumping = false;
                        if let Err(Overflow) = pumped {
                            break Err(End::Overflow);
                        }
                    }
                    status = self.child.wait() => {
                        let status = status?;
                        self.group.kill();
                        if pumping
                            && let Ok(Err(Overflow)) = timeout(limits.drain, pump).await
                        {
                            break Err(End::Overflow);
                        }
                        break Ok(status);
                    }
                }
            }
        };
        if ended.is_err() {
            self.group.kill();
            self.child.wait().await?;
        }
        Ok(ended.map_or_else(|end| end, |status| End::Exited(Exit { status, stdout, stderr })))
    }

    /// Asks the group to end; what has not after `grace` is killed by the caller.
    async fn terminate(
        &mut self,
        pump: impl Future<Output = Result<(), Overflow>>,
        pumping: bool,
        grace: Duration,
    ) -> io::Result<()> {
        self.group.signal(Signal::TERM);
        let exit = async {
            tokio::select! {
                status = self.child.wait() => status.map(|_| ()),
                () = idle_after(pump, pumping) => Ok(()),
            }
        };
        timeout(grace, exit).await.unwrap_or(Ok(()))
    }
}

/// Keeps the pipes moving while something else is awaited, so that a child that cleans up is not
/// stopped by a full one. Never ends.
async fn idle_after(pump: impl Future<Output = Result<(), Overflow>>, pumping: bool) {
    if pumping {
        let _ = pump.await;
    }
    std::future::pending::<()>().await;
}

/// A process group, killed when nobody looks after it any more.
struct Group {
    pid: Pid,
    watch: Arc<DeathWatch>,
}

impl Group {
    fn signal(&self, signal: Signal) {
        // The group may be gone already, which is what was wanted.
        let _ = kill_process_group(self.pid, signal);
    }

    fn kill(&self) {
        self.signal(Signal::KILL);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
        self.watch.remove(self.pid);
    }
}

/// More output than allowed.
struct Overflow;

/// Writes the input; a child that does not read it is no failure.
async fn feed(stdin: Option<ChildStdin>, input: &[u8]) -> Result<(), Overflow> {
    if let Some(mut stdin) = stdin {
        let _ = stdin.write_all(input).await;
        let _ = stdin.shutdown().await;
    }
    Ok(())
}

/// Reads a stream to its end, or to one byte more than `cap`.
async fn collect(
    stream: Option<impl AsyncRead + Unpin>,
    into: &mut Vec<u8>,
    cap: usize,
) -> Result<(), Overflow> {
    let Some(stream) = stream else { return Ok(()) };
    let mut stream = stream.take(u64::try_from(cap).unwrap_or(u64::MAX).saturating_add(1));
    // A stream that breaks ends: what was read until then stands.
    let _ = stream.read_to_end(into).await;
    if into.len() > cap { Err(Overflow) } else { Ok(()) }
}

/// Reads a stream to its end and keeps its last `cap` bytes.
async fn keep_tail(
    stream: Option<impl AsyncRead + Unpin>,
    into: &mut Vec<u8>,
    cap: usize,
) -> Result<(), Overflow> {
    let Some(mut stream) = stream else { return Ok(()) };
    loop {
        match stream.read_buf(into).await {
            Ok(0) | Err(_) => break,
            Ok(_) if into.len() > 2 * cap => drop(into.drain(..into.len() - cap)),
            Ok(_) => {}
        }
    }
    drop(into.drain(..into.len().saturating_sub(cap)));
    Ok(())
}
