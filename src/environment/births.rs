//! The launcher: a process that starts children for its host, and kills them when the host is gone.
//!
//! To become a child, the helper (`confine.rs`) first has to be loaded, which costs more than most
//! children do. The launcher is loaded once. A thread of it enters the namespaces of one child,
//! starts the child and waits for its end. Namespaces, Landlock and capabilities belong to a thread,
//! so that no child sees those of another.
//!
//! The launcher takes only children without a boundary; the helper starts all others. One that hides
//! the data directory for a plain user enters a user namespace before it has threads, since one of
//! several cannot. So its children share that namespace, and a Landlock domain for each keeps one
//! from inspecting another. Before Linux 6.12 no such domain leaves mounts to the child, and the
//! helper starts these children, too.
//!
//! A child begins only while its host waits for it and its launcher knows of it, in a process group of its own within the
//! launcher's session, so that the host finds it should the launcher be killed. At the end of the
//! orders, which is the end of the host, the launcher kills every process group that it has started,
//! and ends.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs::File,
    io::{self, IoSliceMut, Read as _, Write as _},
    mem::MaybeUninit,
    os::{
        fd::OwnedFd,
        unix::{
            net::UnixStream,
            process::{CommandExt as _, ExitStatusExt as _},
        },
    },
    path::Path,
    process::{Child, Command, ExitCode, ExitStatus, Stdio},
    sync::Arc,
    thread,
    time::Duration,
};

use parking_lot::{Mutex, RwLock};
use rustix::{
    event::{PollFd, PollFlags},
    net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags},
    process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process_group},
    thread::{CapabilitySet, UnshareFlags},
};
use tokio::signal::unix::{SignalKind, signal};

use super::{
    bubblewrap::is_program,
    order::{FILES, Order, Ready, Report},
    paths,
    plan::NotBegun,
    veil,
};

/// The interval and the maximum number of looks for children that were killed and are not gone.
const DYING_PAUSE: Duration = Duration::from_millis(1);
const DYING_LOOKS: usize = 5_000;
/// The stack of a thread that starts a child, in bytes.
const STACK: usize = 256 * 1024;

/// Starts children until the host is gone; `covered` ones do not see the data directory.
pub(super) fn serve(covered: bool) -> ExitCode {
    match run(covered) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("moonswarm: start children: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(covered: bool) -> io::Result<()> {
    let orders = rustix::io::fcntl_dupfd_cloexec(io::stdin(), 3)?;
    // By the session, the host finds the children of a launcher that was killed.
    rustix::process::setsid()?;
    // Before there is another thread.
    let privileged = covered.then(become_able);
    // A signal to everybody must not end the one that kills what the others leave. A handler, unlike
    // an ignored signal, does not pass to the children.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let entered = runtime.enter();
    let kinds = [SignalKind::hangup(), SignalKind::interrupt(), SignalKind::terminate()];
    let _handled = kinds.map(signal);
    drop(entered);
    let (able, privileged) = match privileged {
        None => (true, false),
        Some(Ok(privileged)) => (covers(privileged), privileged),
        Some(Err(_)) => (false, false),
    };
    rustix::net::send(&orders, &serde_json::to_vec(&Ready { able })?, SendFlags::NOSIGNAL)?;
    let births = Arc::new(Births { privileged, ..Births::default() });
    while let Some((order, streams, report)) = receive(&orders)? {
        births.begin(order, streams, report);
    }
    births.end();
    Ok(())
}

/// Enters a user namespace, unless this process may mount as it is. Returns true if its children are
/// privileged.
fn become_able() -> io::Result<bool> {
    let now = rustix::thread::capabilities(None)?;
    match now.effective.contains(CapabilitySet::SYS_ADMIN) {
        true => Ok(true),
        false => veil::unshare_as_user(UnshareFlags::empty()),
    }
}

/// Returns true if a thread can have its own mounts, and keep its child from what is outside.
fn covers(privileged: bool) -> bool {
    let tries = move || veil::unshare(UnshareFlags::NEWNS).is_ok() && keep_in(privileged).is_ok();
    let thread = thread::Builder::new().name("tries".to_owned()).spawn(tries);
    thread.is_ok_and(|thread| thread.join().unwrap_or(false))
}

/// Keeps a child from removing the cover and from inspecting others.
fn keep_in(privileged: bool) -> Result<(), String> {
    match privileged {
        true => paths::stay(),
        false => paths::keep_to_itself(),
    }
}

/// The three streams of a child.
type Streams = [OwnedFd; 3];

/// Returns the next order; `None` if the host is gone.
fn receive(orders: &OwnedFd) -> io::Result<Option<(Order, Streams, UnixStream)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES))];
    let mut along = RecvAncillaryBuffer::new(&mut space);
    let mut word = [0; 2];
    let got = loop {
        let into = &mut [IoSliceMut::new(&mut word)];
        match rustix::net::recvmsg(orders, into, &mut along, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::CONNRESET) => return Ok(None),
            got => break got?,
        }
    };
    if got.bytes == 0 {
        return Ok(None);
    }
    let files = along.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files.collect::<Vec<_>>()),
        _ => None,
    });
    let files: Result<[OwnedFd; FILES], _> = files.unwrap_or_default().try_into();
    let [text, stdin, stdout, stderr, report] =
        files.map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
    let mut bytes = Vec::new();
    File::from(text).read_to_end(&mut bytes)?;
    let order = postcard::from_bytes(&bytes).map_err(io::Error::other)?;
    Ok(Some((order, [stdin, stdout, stderr], report.into())))
}

/// The children of a launcher.
#[derive(Debug, Default)]
struct Births {
    /// True if the children have capabilities over their mounts.
    privileged: bool,
    /// Held for reading while a child is started, and for writing once no other may be.
    open: RwLock<()>,
    groups: Mutex<BTreeSet<i32>>,
}

impl Births {
    fn begin(self: &Arc<Self>, order: Order, streams: Streams, report: UnixStream) {
        let births = Arc::clone(self);
        let report = Arc::new(report);
        let to = Arc::clone(&report);
        let birth = move || births.accompany(&order, streams, &to);
        let thread = thread::Builder::new().name("child".to_owned()).stack_size(STACK);
        if let Err(error) = thread.spawn(birth) {
            say(&report, &Report::Not(not_begun("start a thread", &error)));
        }
    }

    /// Starts a child, and stays until it has ended.
    fn accompany(&self, order: &Order, streams: Streams, report: &UnixStream) {
        if is_abandoned(report) {
            return;
        }
        if let Err(why) = stand_apart(order, self.privileged) {
            return say(report, &Report::Not(why));
        }
        match self.start(order, streams, report) {
            Ok(None) => {}
            Ok(Some(mut child)) => {
                say(report, &Report::Begun(Pid::from_child(&child).as_raw_nonzero().get()));
                if let Ok(status) = self.watch(&mut child, report) {
                    say(report, &Report::Ended(status.into_raw()));
                }
            }
            Err(error) => {
                let exec = error.raw_os_error();
                let why = NotBegun { exec, ..not_begun("start the program", &error) };
                say(report, &Report::Not(why));
            }
        }
    }

    /// Starts the program, unless nobody waits for it any more.
    fn start(
        &self,
        order: &Order,
        [stdin, stdout, stderr]: Streams,
        report: &UnixStream,
    ) -> io::Result<Option<Child>> {
        let mut command = order.command();
        command.stdin(Stdio::from(stdin)).stdout(Stdio::from(stdout)).stderr(Stdio::from(stderr));
        let _open = self.open.read();
        if is_abandoned(report) {
            return Ok(None);
        }
        let child = command.spawn()?;
        self.groups.lock().insert(Pid::from_child(&child).as_raw_nonzero().get());
        Ok(Some(child))
    }

    /// Waits for the end of a child, and kills it if the host stops listening. Then kills its group.
    fn watch(&self, child: &mut Child, report: &UnixStream) -> io::Result<ExitStatus> {
        let pid = Pid::from_child(child);
        if let Ok(ends) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
            loop {
                // A closed socket is reported without being asked for.
                let mut both =
                    [PollFd::new(&ends, PollFlags::IN), PollFd::new(report, PollFlags::empty())];
                match rustix::event::poll(&mut both, None) {
                    Err(rustix::io::Errno::INTR) => {}
                    Err(_) => break,
                    Ok(_) => {
                        if !both[1].revents().is_empty() {
                            let _ = kill_process_group(pid, Signal::KILL);
                        }
                        break;
                    }
                }
            }
        }
        // Until it is awaited, no other process can have its number.
        let ends = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        while let Err(rustix::io::Errno::INTR) = rustix::process::waitid(WaitId::Pid(pid), ends) {}
        let mut groups = self.groups.lock();
        let _ = kill_process_group(pid, Signal::KILL);
        groups.remove(&pid.as_raw_nonzero().get());
        drop(groups);
        child.wait()
    }

    /// Kills all children, and ends when they are gone. No other begins afterwards.
    fn end(&self) {
        let _shut = self.open.write();
        for group in &*self.groups.lock() {
            if let Some(group) = Pid::from_raw(*group) {
                let _ = kill_process_group(group, Signal::KILL);
            }
        }
        // A dying process keeps its files, locks and ports for a moment. Each is awaited by its thread.
        for _ in 0..DYING_LOOKS {
            if self.groups.lock().is_empty() {
                break;
            }
            thread::park_timeout(DYING_PAUSE);
        }
        std::process::exit(0);
    }
}

impl Order {
    fn command(&self) -> Command {
        let found = self.found();
        let mut command = match &found {
            Some(file) => Command::new(file),
            None => Command::new(&self.program),
        };
        let variables = self.variables.iter().map(|(name, value)| (name, value));
        command.arg0(&self.program).args(&self.arguments).env_clear().envs(variables);
        command.process_group(0);
        command
    }

    /// Looks for a program that is named without its directory. The library would fork for it.
    fn found(&self) -> Option<std::path::PathBuf> {
        if self.program.contains('/') {
            return None;
        }
        let path = self.variables.iter().rev().find(|(name, _)| name == "PATH");
        let path = path.map_or(OsStr::new("/bin:/usr/bin"), |(_, path)| path);
        let dirs = std::env::split_paths(path).filter(|dir| dir.is_absolute());
        dirs.map(|dir| dir.join(&self.program)).find(|file| is_program(file))
    }
}

/// Enters what belongs to this child alone: its mounts and its working directory.
fn stand_apart(order: &Order, privileged: bool) -> Result<(), NotBegun> {
    let step = |what: &'static str| move |error: io::Error| not_begun(what, &error);
    match &order.cover {
        None => veil::unshare(UnshareFlags::FS).map_err(step("leave the working directory"))?,
        Some(cover) => {
            veil::unshare(UnshareFlags::NEWNS).map_err(step("make the namespaces"))?;
            cover.put().map_err(step("hide the data directory"))?;
            let what = "keep the data directory hidden";
            keep_in(privileged).map_err(|reason| not_begun(what, &io::Error::other(reason)))?;
            if privileged {
                veil::give_up_looking_around().map_err(step("give up looking around"))?;
            }
        }
    }
    let what = "enter the working directory";
    std::env::set_current_dir(Path::new(&order.cwd)).map_err(step(what))
}

fn not_begun(what: &str, error: &io::Error) -> NotBegun {
    NotBegun { what: what.to_owned(), reason: error.to_string(), exec: None }
}

/// Returns true if the host has closed its end of the reports: it is gone, or needs the child no more.
/// Orders that it gave before are still there then.
fn is_abandoned(report: &UnixStream) -> bool {
    let now = rustix::event::Timespec::default();
    let mut end = [PollFd::new(report, PollFlags::empty())];
    rustix::event::poll(&mut end, Some(&now)).is_ok_and(|closed| closed > 0)
}

fn say(to: &UnixStream, report: &Report) {
    if let Ok(bytes) = postcard::to_stdvec(report) {
        // If nobody listens, nobody needs it.
        let _ = { to }.write_all(&bytes);
    }
}
