//! The host's end of the launcher (`births.rs`): starts it, gives it orders, receives its reports.

use std::{
    io::{self, IoSlice},
    mem::MaybeUninit,
    ops::ControlFlow,
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::process::ExitStatusExt as _,
    },
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Weak},
    thread,
};

use parking_lot::RwLock;
use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
        SocketFlags, SocketType,
    },
    process::{Pid, WaitId, WaitIdOptions},
};
use tokio::{
    net::UnixStream,
    process::{ChildStderr, ChildStdout},
    sync::{Mutex as Turns, OwnedMutexGuard, oneshot},
};

use super::{
    Helper,
    cgroup::DYING_PAUSE,
    children_lock::ChildrenLock,
    gate::whole,
    order::{FILES, LONGEST, Order, Ready, Report},
    plan::{LAUNCH, LAUNCH_COVERED, NotBegun, VERB},
    sessions::{self, Noted},
};

/// The maximum number of looks for the end of a launcher that has closed its end of a socket: one that is
/// ending closes its files a moment before.
const ENDING_LOOKS: usize = 100;
/// The errors of a launcher for which the helper starts the child instead. The first is that of a
/// text without a line that says what runs it: the system executes none, and the helper's exec
/// does. The others are a want that passes.
const ELSEWHERE: [Errno; 5] =
    [Errno::NOEXEC, Errno::MFILE, Errno::NFILE, Errno::AGAIN, Errno::NOMEM];

/// The launcher of a host. It is started with the first child, and again if it has ended.
#[derive(Debug)]
pub(super) struct Launcher {
    helper: Helper,
    lock: Arc<ChildrenLock>,
    /// For children that see the data directory.
    open: Post,
    /// For children from whom it is hidden.
    covering: Post,
}

/// The place of one launcher.
#[derive(Debug, Default)]
struct Post {
    /// Held for writing while the launcher starts or ends, which takes a while.
    state: Arc<RwLock<State>>,
    /// Held by the one who may wait for the state on a thread of its own.
    turns: Arc<Turns<()>>,
}

#[derive(Debug, Default)]
struct State {
    process: Option<Process>,
    /// True if it cannot do its work on this machine, or its host has ended.
    unable: bool,
}

/// A running launcher. Dropping it ends it and every child that it has started.
#[derive(Debug)]
struct Process {
    orders: Arc<OwnedFd>,
    child: Child,
    /// For the next host, if this one is killed together with the launcher.
    _noted: Option<Noted>,
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
        Self { helper, lock, open: Post::default(), covering: Post::default() }
    }

    /// Starts a child.
    ///
    /// # Cancel safety
    /// Dropping the future kills the child if it has begun.
    pub(super) async fn start(&self, order: &Order, stdin: BorrowedFd<'_>) -> Result<Born, Unborn> {
        let covers = order.cover.is_some();
        let Some(orders) = self.orders(covers).await else { return Err(Unborn::Elsewhere) };
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
            Ok(Report::Not(why)) => Err(Unborn::of(&why)),
            Ok(Report::Ended(_)) => Err(Unborn::Elsewhere),
            // It may have begun, and must not begin twice. If the launcher runs, it has lost the order,
            // or kills the child when the reports are dropped.
            Err(error) => {
                self.post(covers).give_up(of).await;
                Err(Unborn::Program(error))
            }
        }
    }

    fn post(&self, covers: bool) -> &Post {
        match covers {
            true => &self.covering,
            false => &self.open,
        }
    }

    /// Returns the socket for orders. Starts the launcher if it does not run.
    async fn orders(&self, covers: bool) -> Option<Arc<OwnedFd>> {
        let post = self.post(covers);
        if let ControlFlow::Break(known) = post.glance() {
            return known;
        }
        // One of them waits for the launcher on a thread, the others here.
        let turn = post.turn().await;
        if let ControlFlow::Break(known) = post.glance() {
            return known;
        }
        let (state, lock) = (Arc::clone(&post.state), Arc::clone(&self.lock));
        let helper = self.helper.clone();
        let word = if covers { LAUNCH_COVERED } else { LAUNCH };
        let begins = move || {
            let orders = state.write().begin(&helper, &lock, word);
            drop(turn);
            orders
        };
        apart("launcher", begins).await?
    }

    /// Ends the launchers with every child that they have started. Blocks until these are gone. None
    /// is started afterwards.
    pub(super) fn end(&self) {
        for post in [&self.open, &self.covering] {
            let mut state = post.state.write();
            state.unable = true;
            state.process = None;
        }
    }
}

impl Post {
    /// Waits for the turn, which lasts until the guard is dropped, also on another thread.
    async fn turn(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.turns).lock_owned().await
    }

    /// Returns the socket for orders, or `None` if there never is one, as far as it is known without a
    /// wait.
    fn glance(&self) -> ControlFlow<Option<Arc<OwnedFd>>> {
        let Some(state) = self.state.try_read() else { return ControlFlow::Continue(()) };
        if state.unable {
            return ControlFlow::Break(None);
        }
        match state.orders() {
            None => ControlFlow::Continue(()),
            running => ControlFlow::Break(running),
        }
    }

    /// Ends what is left of a launcher that has ended before it reported what it was ordered: every
    /// child that it has started. If another does that already, waits for it. One that runs is left
    /// alone.
    async fn give_up(&self, orders: Weak<OwnedFd>) {
        let turn = self.turn().await;
        if self.state.try_read().is_some_and(|state| state.of(&orders).is_none()) {
            return;
        }
        let (state, of) = (Arc::clone(&self.state), orders.clone());
        let ends = move || {
            let mut looks = 0..ENDING_LOOKS;
            while state.read().runs(&of) && looks.next().is_some() {
                thread::park_timeout(DYING_PAUSE);
            }
            state.write().give_up(&of);
            drop(turn);
        };
        if apart("launcher", ends).await.is_none() {
            // There is no thread for it.
            self.state.write().give_up(&orders);
        }
    }
}

impl Unborn {
    /// Returns the reason for one that a launcher reports.
    fn of(why: &NotBegun) -> Self {
        let code = why.exec.filter(|code| ELSEWHERE.iter().all(|it| it.raw_os_error() != *code));
        code.map_or(Self::Elsewhere, |code| Self::Program(io::Error::from_raw_os_error(code)))
    }
}

/// Does what takes long on a thread of its own; returns `None` if the system has none.
pub(crate) async fn apart<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (tell, done) = oneshot::channel();
    let work = move || {
        // Nobody may wait for it.
        let _ = tell.send(work());
    };
    thread::Builder::new().name(name.to_owned()).spawn(work).ok()?;
    done.await.ok()
}

impl State {
    /// Returns the socket for orders, if the launcher runs.
    fn orders(&self) -> Option<Arc<OwnedFd>> {
        let process = self.process.as_ref()?;
        process.is_alive().then(|| Arc::clone(&process.orders))
    }

    /// Starts the launcher if it does not run.
    fn begin(&mut self, helper: &Helper, lock: &ChildrenLock, word: &str) -> Option<Arc<OwnedFd>> {
        if self.unable {
            return None;
        }
        if let Some(orders) = self.orders() {
            return Some(orders);
        }
        self.process = None;
        let (process, ready) = Process::start(helper, lock, word)
            .inspect_err(|error| tracing::debug!(%error, "children start without a launcher"))
            .ok()?;
        self.unable = !ready.able;
        self.process = Some(process).filter(|_| ready.able);
        self.orders()
    }

    /// Returns the launcher with this socket, if it is the current one.
    fn of(&self, orders: &Weak<OwnedFd>) -> Option<&Process> {
        self.process.as_ref().filter(|it| Weak::ptr_eq(orders, &Arc::downgrade(&it.orders)))
    }

    /// Returns true if the launcher with this socket runs.
    fn runs(&self, orders: &Weak<OwnedFd>) -> bool {
        self.of(orders).is_some_and(Process::is_alive)
    }

    /// Ends what is left of the launcher with this socket, unless it runs.
    fn give_up(&mut self, orders: &Weak<OwnedFd>) {
        if self.of(orders).is_some_and(|it| !it.is_alive()) {
            self.process = None;
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
            Ok(ready) => {
                let noted = lock.directory().and_then(|directory| {
                    sessions::note(&directory, Pid::from_child(&child))
                        .inspect_err(|error| match error.kind() {
                            // Where `/proc` is restricted to processes, no boot has a name.
                            io::ErrorKind::NotFound => {
                                tracing::debug!(%error, "a launcher is not noted");
                            }
                            _ => tracing::warn!(%error, "a launcher is not noted"),
                        })
                        .ok()
                });
                Ok((Self { orders: Arc::new(ours), child, _noted: noted }, ready))
            }
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    }

    /// Returns true if it runs. One that has ended is left to be awaited.
    fn is_alive(&self) -> bool {
        let ends = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        let pid = Pid::from_child(&self.child);
        matches!(rustix::process::waitid(WaitId::Pid(pid), ends), Ok(None))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The end of the orders ends it, after its children.
        let _ = rustix::net::shutdown(&*self.orders, rustix::net::Shutdown::Both);
        // Until it is awaited, no other session can have its number.
        let pid = Pid::from_child(&self.child);
        let ends = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        while let Err(Errno::INTR) = rustix::process::waitid(WaitId::Pid(pid), ends) {}
        // If it was killed, it may not have reported all that it had started.
        sessions::kill(pid);
        let _ = self.child.wait();
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
        [theirs.as_fd(), text.as_fd(), stdin, stdout.as_fd(), stderr.as_fd()];
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

#[cfg(test)]
mod tests {
    use std::fs::File;

    use futures::{FutureExt as _, future::join_all};
    use rustix::process::{Signal, kill_process};

    use super::*;

    /// Returns a launcher that starts nothing.
    fn launcher() -> Launcher {
        Launcher::new(Helper::at("false"), Arc::default())
    }

    #[tokio::test]
    async fn an_order_that_a_launcher_has_lost_ends_no_other_child() {
        let (ours, theirs) = pair().unwrap();
        // It reads orders without the files that come along.
        let loses = Command::new("cat").stdin(theirs).stdout(Stdio::null()).spawn();
        let child = loses.unwrap();
        let (pid, orders) = (Pid::from_child(&child), Arc::new(ours));
        let of = Arc::downgrade(&orders);
        let launcher = launcher();
        launcher.open.state.write().process = Some(Process { orders, child, _noted: None });
        let order = Order::of("true");
        let null = File::open("/dev/null").unwrap();
        let started = launcher.start(&order, null.as_fd()).await;
        let Err(Unborn::Program(error)) = started else { panic!("it may have begun") };
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        assert!(launcher.open.state.read().runs(&of));

        kill_process(pid, Signal::KILL).unwrap();
        let ends = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        rustix::process::waitid(WaitId::Pid(pid), ends).unwrap();
        launcher.open.give_up(of).await;
        assert!(launcher.open.state.read().process.is_none(), "what it has left is ended");
        launcher.end();
        assert!(launcher.open.glance().is_break(), "no other is started");
    }

    #[tokio::test]
    async fn of_those_who_wait_for_a_launcher_one_has_a_thread() {
        let launcher = launcher();
        let mut all = Box::pin(join_all((0..8).map(|_| launcher.orders(false))));
        {
            let _starting = launcher.open.state.write();
            assert!(all.as_mut().now_or_never().is_none());
            assert_eq!(Arc::strong_count(&launcher.open.state), 2);
        }
        assert!(all.await.iter().all(Option::is_none));
    }

    #[test]
    fn a_child_that_a_launcher_has_no_files_or_memory_for_is_started_elsewhere() {
        let not = |exec| NotBegun { what: String::new(), reason: String::new(), exec };
        for code in ELSEWHERE.map(|it| Some(it.raw_os_error())).into_iter().chain([None]) {
            assert!(matches!(Unborn::of(&not(code)), Unborn::Elsewhere), "{code:?}");
        }
        let absent = not(Some(Errno::NOENT.raw_os_error()));
        assert!(matches!(Unborn::of(&absent), Unborn::Program(_)));
    }
}
