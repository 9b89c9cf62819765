//! The start of a child: in a watched process group, with complete input.

use std::{
    ffi::{OsStr, OsString},
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, Command};

use super::{
    DeathWatch, Helper,
    bubblewrap::{Bubblewrap, is_program},
    gate::{Gate, Heard, whole},
    plan::{NotBegun, Plan, VERB, handed_on},
};
use crate::protocol::EnvError;

/// A child that has not been started.
#[derive(Debug)]
pub struct Launch {
    command: Command,
    plan: Option<Plan>,
    is_around: bool,
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
    /// The child; stdout and stderr are pipes.
    pub child: Child,
    /// The process group.
    pub group: Group,
    gate: Option<Gate>,
    is_around: bool,
}

/// A process group. Killed when dropped.
#[derive(Debug)]
pub struct Group {
    pid: Pid,
    watch: Arc<DeathWatch>,
}

/// A program with its arguments and its full environment.
pub(super) struct Program<'a> {
    pub(super) name: &'a str,
    pub(super) arguments: &'a [String],
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
        program: Program<'_>,
    ) -> io::Result<Self> {
        program.find(&plan.cwd)?;
        let mut command = match around {
            None => Command::new(helper.program()),
            Some(bubblewrap) => {
                let disk = plan.disk.map(|bytes| (plan.room.as_path(), bytes));
                let mut command = Command::new(bubblewrap.program());
                command.args(Bubblewrap::arguments(plan.closed, disk)).arg(helper.path()?);
                command
            }
        };
        let variables = program.variables.into_iter();
        command
            .arg(VERB)
            .arg(program.name)
            .args(program.arguments)
            .env_clear()
            .envs(variables.map(|(name, value)| (handed_on(name.as_ref()), value)))
            .current_dir("/");
        Ok(Self { command, plan: Some(plan), is_around: around.is_some() })
    }

    /// Creates a launch without a helper. Nothing is hidden from the child, and it survives if the
    /// host is killed between the fork and the report to the watch.
    pub(super) fn direct(program: Program<'_>, cwd: &Path) -> Self {
        let mut command = Command::new(program.name);
        command.args(program.arguments).env_clear().envs(program.variables).current_dir(cwd);
        Self { command, plan: None, is_around: false }
    }

    /// Starts the child.
    ///
    /// # Errors
    /// Fails when the program is not found, or the system has no process, file or memory for it.
    pub fn start(mut self, input: Input<'_>, watch: &Arc<DeathWatch>) -> io::Result<Launched> {
        watch.begin();
        let input = match input {
            Input::Whole(bytes) => whole(bytes)?,
            Input::Pipe(end) => end,
        };
        self.command.stdout(Stdio::piped()).stderr(Stdio::piped());
        self.command.process_group(0).kill_on_drop(true);
        let Self { mut command, plan, is_around } = self;
        let spawn = |mut command: Command, stdin: OwnedFd| {
            crate::fault::point("operator.process_spawn");
            let child = command.stdin(Stdio::from(stdin)).spawn()?;
            crate::fault::point("operator.process_spawned");
            let pid = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
            let pid = pid.expect("a child that was not awaited has its pid");
            let group = Group { pid, watch: Arc::clone(watch) };
            watch.add(pid);
            crate::fault::point("operator.process_watched");
            io::Result::Ok((child, group))
        };
        let Some(plan) = plan else {
            let (child, group) = spawn(command, input)?;
            return Ok(Launched { child, group, gate: None, is_around });
        };
        let (gate, theirs) = Gate::pair()?;
        command.kill_on_drop(true);
        let (child, group) = spawn(command, theirs)?;
        gate.open(&plan, &input)?;
        Ok(Launched { child, group, gate: Some(gate), is_around })
    }
}

impl Program<'_> {
    /// Searches for the program like an exec would, because the exec comes later and in another
    /// process.
    fn find(&self, cwd: &Path) -> io::Result<()> {
        if self.name.contains('/') {
            return std::fs::metadata(cwd.join(self.name)).map(drop);
        }
        let path = self.variables.iter().rev().find(|(name, _)| name == "PATH");
        let path = path.map_or(OsStr::new("/bin:/usr/bin"), |(_, path)| path);
        let mut found = std::env::split_paths(path).map(|dir| cwd.join(dir).join(self.name));
        let any = |file: PathBuf| is_program(&file);
        match found.any(any) {
            true => Ok(()),
            false => Err(io::Error::from_raw_os_error(rustix::io::Errno::NOENT.raw_os_error())),
        }
    }
}

impl Launched {
    /// Returns the reason why the child was not started; `None` if it was. Call it after the child
    /// has ended.
    pub fn not_started(&self) -> Option<NotStarted> {
        let why = match self.gate.as_ref()?.heard() {
            Heard::Begun => return None,
            Heard::Not(NotBegun { exec: Some(code), .. }) => {
                return Some(NotStarted::Program(io::Error::from_raw_os_error(code)));
            }
            Heard::Not(NotBegun { what, reason, exec: None }) => format!("{what}: {reason}"),
            // The helper always reports first, so `bwrap` never reached it.
            Heard::Nothing if self.is_around => {
                "bubblewrap did not begin the child; its stderr says why".to_owned()
            }
            // Killed before it could report anything.
            Heard::Nothing => return None,
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
        // The group may already be gone, which is fine.
        let _ = kill_process_group(self.pid, signal);
    }

    /// Kills every process of the group.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
        self.watch.remove(self.pid);
    }
}
