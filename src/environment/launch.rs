//! The start of a child: in a watched process group, with complete input.

use std::{
    ffi::{OsStr, OsString},
    io,
    os::fd::{AsFd as _, OwnedFd},
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::Arc,
};

use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, Interest, unix::AsyncFd},
    process::{Child, ChildStderr, ChildStdout, Command},
};

use super::{
    Helper,
    bubblewrap::{Bubblewrap, is_program},
    death_watch::DeathWatch,
    gate::{Gate, GateReport, whole},
    launcher::{Born, Launcher, Reports, Unborn},
    order::Order,
    plan::{NotBegun, Plan, VERB, handed_on},
};
use crate::protocol::EnvError;

/// A child that has not been started.
#[derive(Debug)]
pub struct Launch {
    program: Program,
    way: StartMethod,
    watch: Arc<DeathWatch>,
}

/// The way in which a child is started.
#[derive(Debug)]
enum StartMethod {
    /// By the host itself, in this directory. Nothing is hidden from the child, and it survives if
    /// the host is killed between the fork and the report to the watch.
    Direct(PathBuf),
    /// By the helper, which applies the plan and becomes the child.
    Helper { helper: Helper, around: Option<Bubblewrap>, plan: Plan },
    /// By the launcher, or by the helper where the launcher cannot.
    Launcher { launcher: Arc<Launcher>, helper: Helper, plan: Plan },
}

/// The stdin of a child.
#[derive(Debug)]
pub enum Input<'a> {
    /// These bytes, all of which are available at the start.
    Whole(&'a [u8]),
    /// The read end of a pipe that is written while the child runs.
    Pipe(OwnedFd),
}

/// A started child. Dropping it kills its group.
#[derive(Debug)]
pub struct Launched {
    /// The child's stdout, until it is taken.
    pub stdout: Option<ChildStdout>,
    /// The child's stderr, until it is taken.
    pub stderr: Option<ChildStderr>,
    /// The process group.
    pub group: Group,
    end: StatusSource,
    gate: Option<Gate>,
    is_around: bool,
}

/// The source of a child's status.
#[derive(Debug)]
enum StatusSource {
    /// A child of the host. The file is readable once the child has ended, and before it is awaited;
    /// there is none if the system has no more files.
    Child(Child, Option<AsyncFd<OwnedFd>>),
    Reports(Reports),
}

/// A process group. Killed at the end of its first process, or when dropped.
#[derive(Debug)]
pub struct Group {
    pid: Pid,
    watch: Option<Arc<DeathWatch>>,
    is_over: bool,
}

/// A program with its arguments and its full environment.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) name: String,
    pub(super) arguments: Vec<String>,
    pub(super) variables: Vec<(String, OsString)>,
}

/// The reason why a child within a boundary was not started.
#[derive(Debug)]
pub enum NotStarted {
    /// The boundary could not be set up.
    Boundary(EnvError),
    /// The program could not be executed.
    Program(io::Error),
}

impl Launch {
    /// Creates a launch through the helper, which applies the plan. `around` wraps the helper.
    ///
    /// # Errors
    /// Fails when the program is not found.
    pub(super) fn through(
        helper: &Helper,
        around: Option<&Bubblewrap>,
        plan: Plan,
        program: Program,
        watch: &Arc<DeathWatch>,
    ) -> io::Result<Self> {
        program.find(&plan.cwd)?;
        let way = StartMethod::Helper { helper: helper.clone(), around: around.cloned(), plan };
        Ok(Self { program, way, watch: Arc::clone(watch) })
    }

    /// Creates a launch by the launcher of a child without a boundary.
    ///
    /// # Errors
    /// Fails when the program is not found.
    pub(super) fn by(
        launcher: &Arc<Launcher>,
        helper: &Helper,
        plan: Plan,
        program: Program,
        watch: &Arc<DeathWatch>,
    ) -> io::Result<Self> {
        program.find(&plan.cwd)?;
        let (launcher, helper) = (Arc::clone(launcher), helper.clone());
        let way = StartMethod::Launcher { launcher, helper, plan };
        Ok(Self { program, way, watch: Arc::clone(watch) })
    }

    /// Creates a launch by the host itself.
    pub(super) fn direct(program: Program, cwd: &Path, watch: &Arc<DeathWatch>) -> Self {
        Self { program, way: StartMethod::Direct(cwd.to_owned()), watch: Arc::clone(watch) }
    }

    /// Starts the child.
    ///
    /// # Errors
    /// Fails when the program is not found, or the system has no process, file or memory for it.
    ///
    /// # Cancel safety
    /// Dropping the future kills the child if it has begun.
    pub async fn start(self, input: Input<'_>) -> io::Result<Launched> {
        let input = match input {
            Input::Whole(bytes) => whole(bytes)?,
            Input::Pipe(end) => end,
        };
        let Self { program, way, watch } = self;
        match way {
            StartMethod::Direct(cwd) => program.begin(&cwd, input, &watch),
            StartMethod::Helper { helper, around, plan } => {
                program.pass(&helper, around.as_ref(), &plan, &input, &watch)
            }
            StartMethod::Launcher { launcher, helper, plan } => {
                crate::fault::point("operator.process_spawn");
                let order = Order {
                    cover: plan.cover.clone(),
                    cwd: plan.cwd.clone(),
                    program: program.name,
                    arguments: program.arguments,
                    variables: program.variables,
                };
                match launcher.start(&order, input.as_fd()).await {
                    Ok(born) => {
                        crate::fault::point("operator.process_spawned");
                        Ok(Launched::of(born))
                    }
                    Err(Unborn::Program(error)) => Err(error),
                    Err(Unborn::Elsewhere) => {
                        let Order { program: name, arguments, variables, .. } = order;
                        let program = Program { name, arguments, variables };
                        program.pass(&helper, None, &plan, &input, &watch)
                    }
                }
            }
        }
    }
}

impl Program {
    /// Starts the program as it is.
    fn begin(self, cwd: &Path, input: OwnedFd, watch: &Arc<DeathWatch>) -> io::Result<Launched> {
        let mut command = Command::new(self.name);
        command.args(self.arguments).env_clear().envs(self.variables).current_dir(cwd);
        spawn(command, input, watch)
    }

    /// Starts the helper, and lets it in.
    fn pass(
        self,
        helper: &Helper,
        around: Option<&Bubblewrap>,
        plan: &Plan,
        input: &OwnedFd,
        watch: &Arc<DeathWatch>,
    ) -> io::Result<Launched> {
        let mut command = match around {
            None => Command::new(helper.program()),
            Some(bubblewrap) => {
                let disk = plan.disk.map(|bytes| (plan.room.as_path(), bytes));
                let mut command = Command::new(bubblewrap.program());
                command.args(Bubblewrap::arguments(plan.closed, disk)).arg(helper.path()?);
                command
            }
        };
        let variables = self.variables.into_iter();
        command
            .arg(VERB)
            .arg(self.name)
            .args(self.arguments)
            .env_clear()
            .envs(variables.map(|(name, value)| (handed_on(name.as_ref()), value)))
            .current_dir("/");
        let (gate, theirs) = Gate::pair()?;
        let launched = spawn(command, theirs, watch)?;
        gate.open(plan, input)?;
        Ok(Launched { gate: Some(gate), is_around: around.is_some(), ..launched })
    }

    /// Searches for the program like an exec would, because the exec comes later and in another
    /// process.
    fn find(&self, cwd: &Path) -> io::Result<()> {
        if self.name.contains('/') {
            return std::fs::metadata(cwd.join(&self.name)).map(drop);
        }
        let path = self.variables.iter().rev().find(|(name, _)| name == "PATH");
        let path = path.map_or(OsStr::new("/bin:/usr/bin"), |(_, path)| path);
        let mut found = std::env::split_paths(path).map(|dir| cwd.join(dir).join(&self.name));
        let any = |file: PathBuf| is_program(&file);
        match found.any(any) {
            true => Ok(()),
            false => Err(io::Error::from_raw_os_error(rustix::io::Errno::NOENT.raw_os_error())),
        }
    }
}

/// Starts a command in a process group of its own, and reports the group to the watch.
fn spawn(mut command: Command, stdin: OwnedFd, watch: &Arc<DeathWatch>) -> io::Result<Launched> {
    watch.begin();
    command.stdin(Stdio::from(stdin)).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.process_group(0).kill_on_drop(true);
    crate::fault::point("operator.process_spawn");
    let mut child = command.spawn()?;
    crate::fault::point("operator.process_spawned");
    let pid = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
    let pid = pid.expect("a child that was not awaited has its pid");
    let group = Group { pid, watch: Some(Arc::clone(watch)), is_over: false };
    watch.add(pid);
    crate::fault::point("operator.process_watched");
    let ends = rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok();
    #[expect(deprecated, reason = "unsound only for types that are not the owner of their file")]
    let ends = ends.and_then(|ends| AsyncFd::with_interest(ends, Interest::READABLE).ok());
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let end = StatusSource::Child(child, ends);
    Ok(Launched { stdout, stderr, group, end, gate: None, is_around: false })
}

/// Reads a stream of a child to its end and keeps its last `cap` bytes.
pub(crate) async fn keep_tail(
    stream: Option<impl AsyncRead + Unpin>,
    into: &mut Vec<u8>,
    cap: usize,
) {
    let Some(mut stream) = stream else { return };
    // A read error ends the stream; what was read before is kept.
    while let Ok(1..) = stream.read_buf(into).await {
        if into.len() > 2 * cap {
            drop(into.drain(..into.len() - cap));
        }
    }
    drop(into.drain(..into.len().saturating_sub(cap)));
}

impl Launched {
    fn of(Born { group, stdout, stderr, reports }: Born) -> Self {
        let group = Group { pid: group, watch: None, is_over: false };
        let (stdout, stderr, end) = (Some(stdout), Some(stderr), StatusSource::Reports(reports));
        Self { stdout, stderr, group, end, gate: None, is_around: false }
    }

    /// Returns the status of the child once it has ended. Its process group is dead then.
    ///
    /// # Errors
    /// Fails when the system or the launcher does not report it.
    ///
    /// # Cancel safety
    /// Cancel safe, and may be called again.
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        match &mut self.end {
            StatusSource::Child(child, Some(ends)) => {
                drop(ends.readable().await?);
                // Until the child is awaited, no other process can have its number.
                self.group.end();
                child.wait().await
            }
            StatusSource::Child(child, None) => {
                let status = child.wait().await?;
                self.group.end();
                Ok(status)
            }
            StatusSource::Reports(reports) => {
                let status = reports.ended().await?;
                // The launcher has killed it, and keeps its number until the reports are dropped.
                self.group.is_over = true;
                Ok(status)
            }
        }
    }

    /// Returns the reason why the child was not started; `None` if it was. Call it after the child
    /// has ended.
    pub fn not_started(&self) -> Option<NotStarted> {
        let why = match self.gate.as_ref()?.heard() {
            GateReport::Begun => return None,
            GateReport::Not(NotBegun { exec: Some(code), .. }) => {
                return Some(NotStarted::Program(io::Error::from_raw_os_error(code)));
            }
            GateReport::Not(NotBegun { what, reason, exec: None }) => format!("{what}: {reason}"),
            // The helper always reports first, so `bwrap` never reached it.
            GateReport::Nothing if self.is_around => {
                "bubblewrap did not begin the child; its stderr says why".to_owned()
            }
            // Killed before it could report anything.
            GateReport::Nothing => return None,
        };
        Some(NotStarted::Boundary(EnvError::ProvisionFailed(why)))
    }
}

impl Group {
    /// Returns the group's id, which is the pid of its first process.
    pub fn number(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Sends a signal to every process of the group.
    pub fn signal(&self, signal: Signal) {
        // Once it was killed at its end, its number may belong to another.
        if !self.is_over {
            // The group may already be gone, which is fine.
            let _ = kill_process_group(self.pid, signal);
        }
    }

    /// Kills every process of the group.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
    }

    /// Kills what is left of it. From now on it is left alone, by the watch, too.
    fn end(&mut self) {
        self.kill();
        self.is_over = true;
        if let Some(watch) = self.watch.take() {
            watch.remove(self.pid);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_group_is_killed_at_the_end_of_its_child_and_left_alone_afterwards() {
        let dir = tempfile::tempdir().unwrap();
        let variables = vec![("PATH".to_owned(), std::env::var_os("PATH").unwrap())];
        let arguments = ["-c", "sleep 1000 & echo $!"].map(str::to_owned).to_vec();
        let program = Program { name: "sh".to_owned(), arguments, variables };
        let watch = Arc::new(DeathWatch::default());
        let launch = Launch::direct(program, dir.path(), &watch);
        let mut launched = launch.start(Input::Whole(b"")).await.unwrap();
        assert!(!launched.group.is_over);
        assert!(launched.wait().await.unwrap().success());
        assert!(launched.group.is_over, "its number may be another's");
        assert!(launched.group.watch.is_none(), "and the watch has forgotten it");
        assert!(launched.wait().await.unwrap().success(), "it is known from now on");
        let mut sleeper = String::new();
        let mut stdout = launched.stdout.take().unwrap();
        // The sleeper held it open, and is gone.
        tokio::io::AsyncReadExt::read_to_string(&mut stdout, &mut sleeper).await.unwrap();
        assert!(!sleeper.trim().is_empty());
    }
}
