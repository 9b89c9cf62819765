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
//! A child begins only while its host waits for it and its launcher knows of it, in a process group of
//! its own within the launcher's session, so that the host finds it should the launcher be killed. At
//! the end of the orders, which is the end of the host, the launcher kills every process group that it
//! has started, and ends. An order that it cannot read, for want of files or memory, ends no other
//! child: the host hears of it, and starts that one with the helper. If there is no room even for the
//! socket of its reports, the host hears only its end, and that attempt fails; while the launcher has
//! no file at all, orders wait for the end of a child.
//!
//! A child that has ended keeps its number until its host has closed the socket of its reports. That of a
//! server of tools (`mcp/stdio.rs`) is closed with the connection, so such a child stays until then.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs::File,
    io::{self, IoSliceMut, Read as _, Write as _},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, OwnedFd},
        unix::{net::UnixStream, process::CommandExt as _},
    },
    path::Path,
    process::{Child, Command, ExitCode, Stdio},
    sync::Arc,
    thread,
    time::Duration,
};

use parking_lot::{Mutex, RwLock};
use rustix::{
    event::{PollFd, PollFlags, Timespec},
    net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags},
    process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitIdStatus, kill_process_group},
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
/// The interval of looks for the end of a child without a file that tells it, in nanoseconds.
const LOOK: i64 = 20_000_000;
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
    let mut kept = None;
    loop {
        match receive(&orders, &mut kept) {
            Ok(Received::Order(order, streams, report)) => births.begin(*order, streams, report),
            Ok(Received::Unreadable(report, error)) => {
                say(&report, &Report::Not(not_begun("read the order", &error)));
            }
            Ok(Received::Lost) => {}
            Ok(Received::End) | Err(_) => break,
        }
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

/// A message from the host, or its end.
enum Received {
    Order(Box<Order>, Streams, UnixStream),
    /// An order that cannot be read, and the socket of its reports.
    Unreadable(UnixStream, io::Error),
    /// An order that came without any of its files. Its host sees the socket of the reports close,
    /// and only that attempt fails.
    Lost,
    /// The host is gone.
    End,
}

/// Returns the next order. `kept` is a file that makes room for the socket of its reports, so that the
/// host hears why a child does not begin even if there is no room for the other files.
fn receive(orders: &OwnedFd, kept: &mut Option<OwnedFd>) -> io::Result<Received> {
    while kept.is_none() {
        // Once others have closed theirs.
        match rustix::io::fcntl_dupfd_cloexec(orders, 3) {
            Ok(file) => *kept = Some(file),
            Err(_) => {
                if !polled(orders, PollFlags::empty(), Some(0))?.is_empty() {
                    return Ok(Received::End);
                }
                thread::park_timeout(DYING_PAUSE);
            }
        }
    }
    while polled(orders, PollFlags::IN, None)?.is_empty() {}
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES))];
    let mut along = RecvAncillaryBuffer::new(&mut space);
    let mut word = [0; 2];
    *kept = None;
    let got = loop {
        let into = &mut [IoSliceMut::new(&mut word)];
        match rustix::net::recvmsg(orders, into, &mut along, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            // It is still there.
            Err(rustix::io::Errno::NOMEM | rustix::io::Errno::NOBUFS) => {
                thread::park_timeout(DYING_PAUSE);
            }
            Err(rustix::io::Errno::CONNRESET) => return Ok(Received::End),
            got => break got?,
        }
    };
    if got.bytes == 0 {
        return Ok(Received::End);
    }
    let files = along.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files.collect::<Vec<_>>()),
        _ => None,
    });
    let mut files = files.unwrap_or_default().into_iter();
    let Some(report) = files.next() else { return Ok(Received::Lost) };
    let report = UnixStream::from(report);
    Ok(match read(files.collect()) {
        Ok((order, streams)) => Received::Order(Box::new(order), streams, report),
        Err(error) => Received::Unreadable(report, error),
    })
}

/// Reads an order from its files, but for the socket of its reports.
fn read(files: Vec<OwnedFd>) -> io::Result<(Order, Streams)> {
    // The system leaves out those for which it has no room.
    let files: Result<[OwnedFd; FILES - 1], _> = files.try_into();
    let no_room = || io::Error::from_raw_os_error(rustix::io::Errno::MFILE.raw_os_error());
    let [text, stdin, stdout, stderr] = files.map_err(|_| no_room())?;
    let mut bytes = Vec::new();
    File::from(text).read_to_end(&mut bytes)?;
    let order = postcard::from_bytes(&bytes).map_err(io::Error::other)?;
    Ok((order, [stdin, stdout, stderr]))
}

/// Waits until something of `what` happens to a file, or it is closed at the other end, which is
/// reported without being asked for; at most for some nanoseconds, if there is a limit. Returns what
/// happened.
fn polled(file: &impl AsFd, what: PollFlags, limit: Option<i64>) -> io::Result<PollFlags> {
    let limit = limit.map(|nanos| Timespec { tv_sec: 0, tv_nsec: nanos });
    let mut one = [PollFd::new(file, what)];
    match rustix::event::poll(&mut one, limit.as_ref()) {
        Ok(_) => Ok(one[0].revents()),
        Err(rustix::io::Errno::INTR) => Ok(PollFlags::empty()),
        Err(error) => Err(error.into()),
    }
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
                let pid = Pid::from_child(&child);
                say(report, &Report::Begun(pid.as_raw_nonzero().get()));
                if let Some(status) = self.watch(pid, report) {
                    say(report, &Report::Ended(status));
                    // Until the child is awaited, no other process can have the number that the host
                    // may still give signals to.
                    while polled(report, PollFlags::empty(), None).is_ok_and(|it| it.is_empty()) {}
                }
                let _ = child.wait();
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
    /// Returns its status; the child is still to be awaited.
    fn watch(&self, pid: Pid, report: &UnixStream) -> Option<i32> {
        let over = match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
            Ok(ends) => is_over(&ends, report),
            Err(_) => is_over_without_file(pid, report),
        };
        if !over {
            let _ = kill_process_group(pid, Signal::KILL);
        }
        let status = status_of(pid, WaitIdOptions::empty());
        let mut groups = self.groups.lock();
        let _ = kill_process_group(pid, Signal::KILL);
        groups.remove(&pid.as_raw_nonzero().get());
        status
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

/// Waits until a child has ended, or its host stops listening. Returns true if the child has ended.
fn is_over(ends: &OwnedFd, report: &UnixStream) -> bool {
    loop {
        // A closed socket is reported without being asked for.
        let mut both = [PollFd::new(ends, PollFlags::IN), PollFd::new(report, PollFlags::empty())];
        match rustix::event::poll(&mut both, None) {
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
            Ok(_) => return both[1].revents().is_empty(),
        }
    }
}

/// Waits like [`is_over`], but looks again and again: the system has no file left for the end.
fn is_over_without_file(pid: Pid, report: &UnixStream) -> bool {
    while status_of(pid, WaitIdOptions::NOHANG).is_none() {
        match polled(report, PollFlags::empty(), Some(LOOK)) {
            Ok(nothing) if nothing.is_empty() => {}
            Ok(_) | Err(_) => return false,
        }
    }
    true
}

/// Returns the wait status of a child that has ended, and leaves the child to be awaited: until then
/// no other process can have its number.
fn status_of(pid: Pid, how: WaitIdOptions) -> Option<i32> {
    let how = how | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    loop {
        match rustix::process::waitid(WaitId::Pid(pid), how) {
            Err(rustix::io::Errno::INTR) => {}
            ended => return raw(&ended.ok()??),
        }
    }
}

/// Returns a status as `wait` would.
fn raw(status: &WaitIdStatus) -> Option<i32> {
    const CORE: i32 = 0x80;
    let killed = |signal: i32| if status.dumped() { signal | CORE } else { signal };
    let exited = || status.exit_status().map(|code| (code & 0xff) << 8);
    status.terminating_signal().map(killed).or_else(exited)
}

/// Returns true if the host has closed its end of the reports: it is gone, or needs the child no more.
/// Orders that it gave before are still there then.
fn is_abandoned(report: &UnixStream) -> bool {
    polled(report, PollFlags::empty(), Some(0)).is_ok_and(|what| !what.is_empty())
}

fn say(to: &UnixStream, report: &Report) {
    if let Ok(bytes) = postcard::to_stdvec(report) {
        // If nobody listens, nobody needs it.
        let _ = { to }.write_all(&bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::{io::IoSlice, os::fd::BorrowedFd};

    use rustix::net::{
        AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SocketFlags, SocketType,
    };

    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        rustix::net::socketpair(family, kind, SocketFlags::CLOEXEC, None).unwrap()
    }

    fn send(orders: &OwnedFd, files: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES))];
        let mut along = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            along.push(SendAncillaryMessage::ScmRights(files));
        }
        let word = [IoSlice::new(b"go")];
        rustix::net::sendmsg(orders, &word, &mut along, SendFlags::NOSIGNAL).unwrap();
    }

    #[test]
    fn an_order_that_came_in_part_is_said_to_be_unreadable_and_the_next_one_is_read() {
        let (host, launcher) = pair();
        let (mut kept, null) = (None, File::open("/dev/null").unwrap());
        let (ours, theirs) = UnixStream::pair().unwrap();
        send(&host, &[theirs.as_fd(), null.as_fd()]);
        let Ok(Received::Unreadable(report, error)) = receive(&launcher, &mut kept) else {
            panic!("files are missing")
        };
        assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::MFILE.raw_os_error()));
        drop((theirs, report));
        assert!(is_abandoned(&ours), "it holds no other end");

        send(&host, &[]);
        assert!(matches!(receive(&launcher, &mut kept), Ok(Received::Lost)));

        let order = Order::of("true");
        let text = crate::environment::gate::whole(&postcard::to_stdvec(&order).unwrap()).unwrap();
        let (_ours, theirs) = UnixStream::pair().unwrap();
        let null = null.as_fd();
        send(&host, &[theirs.as_fd(), text.as_fd(), null, null, null]);
        let Ok(Received::Order(read, ..)) = receive(&launcher, &mut kept) else {
            panic!("it is whole")
        };
        assert_eq!(*read, order);
        drop(host);
        assert!(matches!(receive(&launcher, &mut kept), Ok(Received::End)));
    }

    #[test]
    fn a_child_is_watched_without_a_file_and_its_status_is_as_wait_gives_it() {
        use std::os::unix::process::ExitStatusExt as _;
        for script in ["exit 7", "kill -TERM $$"] {
            let mut child = Command::new("sh").args(["-c", script]).spawn().unwrap();
            let (_host, report) = UnixStream::pair().unwrap();
            let pid = Pid::from_child(&child);
            assert!(is_over_without_file(pid, &report));
            let status = status_of(pid, WaitIdOptions::empty()).unwrap();
            assert_eq!(child.wait().unwrap().into_raw(), status, "{script}");
        }
        let mut sleeps = Command::new("sleep").arg("1000").process_group(0).spawn().unwrap();
        let births = Births::default();
        let (host, report) = UnixStream::pair().unwrap();
        drop(host);
        assert!(!is_over_without_file(Pid::from_child(&sleeps), &report));
        let status = births.watch(Pid::from_child(&sleeps), &report);
        assert_eq!(status, Some(9), "it is killed, since nobody listens");
        assert_eq!(sleeps.wait().unwrap().into_raw(), 9);
    }
}
