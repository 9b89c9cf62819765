//! Starting a child: in a group of its own that is watched over, with an input that is whole.

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

/// What a child reads on its stdin.
#[derive(Debug)]
pub enum Input<'a> {
    /// These bytes, all of them there before it begins.
    Whole(&'a [u8]),
    /// The end of a pipe that somebody writes to as long as the child lives.
    Pipe(OwnedFd),
}

/// A child that was started, in a group that is killed once this is dropped.
#[derive(Debug)]
pub struct Launched {
    /// The child; stdout and stderr are pipes.
    pub child: Child,
    /// Its group.
    pub group: Group,
    gate: Option<Gate>,
    is_around: bool,
}

/// A process group, killed when nobody looks after it any more.
#[derive(Debug)]
pub struct Group {
    pid: Pid,
    watch: Arc<DeathWatch>,
}

/// A program with its arguments and its whole environment.
pub(super) struct Program<'a> {
    pub(super) name: &'a str,
    pub(super) arguments: &'a [String],
    pub(super) variables: Vec<(String, OsString)>,
}

/// Why a child within a boundary was not begun.
#[derive(Debug)]
pub enum NotStarted {
    /// The boundary could not be drawn.
    Boundary(EnvError),
    /// The program could not be executed.
    Program(io::Error),
}

impl Launch {
    /// One through the helper, which keeps to the plan; `around` goes around the helper.
    ///
    /// # Errors
    /// When the program is not there.
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

    /// One without a helper: nothing is hidden from it, and a host that is killed in the moment
    /// between its fork and the word to the watch leaves it behind.
    pub(super) fn direct(program: Program<'_>, cwd: &Path) -> Self {
        let mut command = Command::new(program.name);
        command.args(program.arguments).env_clear().envs(program.variables).current_dir(cwd);
        Self { command, plan: None, is_around: false }
    }

    /// Starts it.
    ///
    /// # Errors
    /// When there is no such program, or no process, file or memory for it.
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
    /// Looks for it as an exec would, which comes later and in another process.
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
    /// Why the child was not begun, once it has ended; nothing if it was.
    pub fn not_started(&self) -> Option<NotStarted> {
        let why = match self.gate.as_ref()?.heard() {
            Heard::Begun => return None,
            Heard::Not(NotBegun { exec: Some(code), .. }) => {
                return Some(NotStarted::Program(io::Error::from_raw_os_error(code)));
            }
            Heard::Not(NotBegun { what, reason, exec: None }) => format!("{what}: {reason}"),
            // The helper begins by saying so: nobody got as far as to it.
            Heard::Nothing if self.is_around => {
                "bubblewrap did not begin the child; its stderr says why".to_owned()
            }
            // Killed before it could say anything.
            Heard::Nothing => return None,
        };
        Some(NotStarted::Boundary(EnvError::ProvisionFailed(why)))
    }
}

impl Group {
    /// Its number, which is its first process's pid.
    pub fn number(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Signals every process in it.
    pub fn signal(&self, signal: Signal) {
        // The group may be gone already, which is what was wanted.
        let _ = kill_process_group(self.pid, signal);
    }

    /// Kills every process in it.
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
