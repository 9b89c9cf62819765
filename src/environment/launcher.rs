//! The host's end of the launcher (`births.rs`): starts it, gives it orders, receives its reports.

use std::{
    collections::BTreeSet,
    io::{self, IoSlice},
    mem::MaybeUninit,
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::process::ExitStatusExt as _,
    },
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use rustix::{
    net::{
        AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
        SocketFlags, SocketType,
    },
    process::{Pid, Signal, kill_process_group},
};
use tokio::{
    net::UnixStream,
    process::{ChildStderr, ChildStdout},
};

use super::{
    Helper,
    children_lock::ChildrenLock,
    gate::whole,
    order::{FILES, LONGEST, Order, Ready, Report},
    plan::{LAUNCH, LAUNCH_COVERED, NotBegun, VERB},
};

/// The most looks for processes that a killed launcher has left: each may have started others.
const SWEEPS: usize = 8;

/// The launcher of a host. It is started with the first child, and again if it has ended.
#[derive(Debug)]
pub(super) struct Launcher {
    helper: Helper,
    lock: Arc<ChildrenLock>,
    /// For children that see the data directory.
    open: Mutex<State>,
    /// For children from whom it is hidden.
    covering: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    process: Option<Process>,
    /// True if it cannot do its work on this machine.
    unable: bool,
}

/// A running launcher. Dropping it ends it and every child that it has started.
#[derive(Debug)]
struct Process {
    orders: Arc<OwnedFd>,
    child: Child,
}

/// A child that a launcher has started.
#[derive(Debug)]
pub(super) struct Born {
    pub(super) group: Pid,
    pub(super) stdout: ChildStdout,
    pub(super) stderr: ChildStderr,
    pub(super) reports: Reports,
}

/// The reports about one child. When they are dropped, the launcher kills its process group.
#[derive(Debug)]
pub(super) struct Reports {
    socket: UnixStream,
    /// The bytes of a report that has not arrived in full.
    came: Vec<u8>,
    ended: Option<ExitStatus>,
}

/// The reason why a launcher started no child.
#[derive(Debug)]
pub(super) enum Unborn {
    /// The program could not be executed.
    Program(io::Error),
    /// The launcher cannot start this one. The helper may.
    Elsewhere,
}

impl Launcher {
    /// Creates a launcher that is the helper's program. It is not started yet.
    pub(super) fn new(helper: Helper, lock: Arc<ChildrenLock>) -> Self {
        Self { helper, lock, open: Mutex::default(), covering: Mutex::default() }
    }

    /// Starts a child.
    ///
    /// # Cancel safety
    /// Dropping the future kills the child if it has begun.
    pub(super) async fn start(&self, order: &Order, stdin: BorrowedFd<'_>) -> Result<Born, Unborn> {
        let Some(orders) = self.orders(order.cover.is_some()) else {
            return Err(Unborn::Elsewhere);
        };
        let (mut reports, out, err) = send(&orders, order, stdin).map_err(|_| Unborn::Elsewhere)?;
        let of = Arc::downgrade(&orders);
        drop(orders);
        match reports.next().await {
            Ok(Report::Begun(group)) => {
                let streams = || {
                    let stdout = ChildStdout::from_std(OwnedFd::from(out).into())?;
                    let stderr = ChildStderr::from_std(OwnedFd::from(err).into())?;
                    io::Result::Ok((stdout, stderr))
                };
                let (stdout, stderr) = streams().map_err(Unborn::Program)?;
                let group = Pid::from_raw(group).ok_or(Unborn::Elsewhere)?;
                Ok(Born { group, stdout, stderr, reports })
            }
            // Without a line that says so, the system runs no text. A helper's exec does.
            Ok(Report::Not(NotBegun { exec: Some(code), .. }))
                if code != rustix::io::Errno::NOEXEC.raw_os_error() =>
            {
                Err(Unborn::Program(io::Error::from_raw_os_error(code)))
            }
            Ok(Report::Not(_) | Report::Ended(_)) => Err(Unborn::Elsewhere),
            // It may have begun, and must not begin twice.
            Err(error) => {
                self.give_up(&of);
                Err(Unborn::Program(error))
            }
        }
    }

    /// Returns the socket for orders. Starts the launcher if it does not run.
    fn orders(&self, covers: bool) -> Option<Arc<OwnedFd>> {
        let mut state = if covers { &self.covering } else { &self.open }.lock();
        if state.unable {
            return None;
        }
        let process = state.process.as_mut();
        if !process.is_some_and(|it| matches!(it.child.try_wait(), Ok(None))) {
            state.process = None;
            let word = if covers { LAUNCH_COVERED } else { LAUNCH };
            let (process, ready) = Process::start(&self.helper, &self.lock, word)
                .inspect_err(|error| tracing::debug!(%error, "children start without a launcher"))
                .ok()?;
            state.unable = !ready.able;
            state.process = Some(process).filter(|_| ready.able);
        }
        state.process.as_ref().map(|it| Arc::clone(&it.orders))
    }

    /// Ends the launchers with every child that they have started. Blocks until these are gone.
    pub(super) fn end(&self) {
        for state in [&self.open, &self.covering] {
            let process = state.lock().process.take();
            drop(process);
        }
    }

    /// Ends a launcher that did not report what it was ordered, with every child that it has started.
    fn give_up(&self, orders: &Weak<OwnedFd>) {
        let is_it = |it: &Process| Weak::ptr_eq(orders, &Arc::downgrade(&it.orders));
        for state in [&self.open, &self.covering] {
            let mut state = state.lock();
            if state.process.as_ref().is_some_and(is_it) {
                state.process = None;
            }
        }
    }
}

impl Process {
    fn start(helper: &Helper, lock: &ChildrenLock, word: &str) -> io::Result<(Self, Ready)> {
        let (ours, theirs) = pair()?;
        let mut child = Command::new(helper.program())
            .args([VERB, word])
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(theirs))
            .stdout(lock.stdout())
            .stderr(Stdio::null())
            .spawn()?;
        let mut message = [0; LONGEST];
        let ready = rustix::net::recv(&ours, &mut message[..], RecvFlags::empty())
            .map_err(io::Error::from)
            .and_then(|(length, _)| Ok(serde_json::from_slice::<Ready>(&message[..length])?));
        match ready {
            Ok(ready) => Ok((Self { orders: Arc::new(ours), child }, ready)),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The end of the orders ends it, after its children.
        let _ = rustix::net::shutdown(&*self.orders, rustix::net::Shutdown::Both);
        let _ = self.child.wait();
        // If it was killed, it may not have reported all that it had started.
        sweep(Pid::from_child(&self.child));
    }
}

/// Kills the process groups of a session: a launcher's children, who are in its session.
fn sweep(session: Pid) {
    let session = session.as_raw_nonzero().to_string();
    for _ in 0..SWEEPS {
        let Ok(entries) = std::fs::read_dir("/proc") else { return };
        let stats = entries.flatten().filter_map(|entry| {
            entry.file_name().to_str()?.parse::<u32>().ok()?;
            let stat = std::fs::read(entry.path().join("stat")).ok()?;
            Some(String::from_utf8_lossy(&stat).into_owned())
        });
        let groups: BTreeSet<i32> = stats
            .filter_map(|stat| {
                // After the name, which may contain anything: state, parent, group, session.
                let (_, after) = stat.rsplit_once(") ")?;
                let mut fields = after.split(' ').skip(2);
                let (group, of) = (fields.next()?, fields.next()?);
                (of == session).then(|| group.parse().ok())?
            })
            .collect();
        if groups.is_empty() {
            return;
        }
        for group in groups.into_iter().filter_map(Pid::from_raw) {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

impl Reports {
    /// Returns the status of the child once it has ended.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(super) async fn ended(&mut self) -> io::Result<ExitStatus> {
        loop {
            if let Some(status) = self.ended {
                return Ok(status);
            }
            if let Report::Ended(status) = self.next().await? {
                self.ended = Some(ExitStatus::from_raw(status));
            }
        }
    }

    async fn next(&mut self) -> io::Result<Report> {
        loop {
            match postcard::take_from_bytes(&self.came) {
                Ok((report, rest)) => {
                    self.came = rest.to_vec();
                    return Ok(report);
                }
                Err(postcard::Error::DeserializeUnexpectedEnd) if self.came.len() < LONGEST => {}
                Err(error) => return Err(io::Error::other(error)),
            }
            self.socket.readable().await?;
            match self.socket.try_read_buf(&mut self.came) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                Ok(_) | Err(_) => {}
            }
        }
    }
}

/// Sends an order. Returns the socket of its reports, and the child's two outputs.
fn send(
    orders: &OwnedFd,
    order: &Order,
    stdin: BorrowedFd<'_>,
) -> io::Result<(Reports, io::PipeReader, io::PipeReader)> {
    let text = whole(&postcard::to_stdvec(order).map_err(io::Error::other)?)?;
    let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let (out, stdout) = io::pipe()?;
    let (err, stderr) = io::pipe()?;
    let socket = UnixStream::from_std(ours)?;
    let reports = Reports { socket, came: Vec::new(), ended: None };
    let files: [BorrowedFd<'_>; FILES] =
        [text.as_fd(), stdin, stdout.as_fd(), stderr.as_fd(), theirs.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES))];
    let mut along = SendAncillaryBuffer::new(&mut space);
    along.push(SendAncillaryMessage::ScmRights(&files));
    // A launcher that was stopped must never block the host.
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(orders, &[IoSlice::new(b"go")], &mut along, flags)?;
    Ok((reports, out, err))
}

fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    Ok(rustix::net::socketpair(family, kind, SocketFlags::CLOEXEC, None)?)
}
