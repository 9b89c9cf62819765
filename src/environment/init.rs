//! The init of a container: what process 1 has to do besides its own work.
//!
//! The kernel makes process 1 the parent of every process whose own has ended, such as what a child
//! has left in the background. Whoever does not await them has a zombie of each for ever. The host
//! cannot await just anybody: its libraries await the children that they have started. So process 1
//! starts the same program once more, passes signals on to it, awaits everybody, and ends with it.

use std::{
    future::poll_fn,
    io::{self, IsTerminal as _},
    os::unix::process::CommandExt as _,
    process::{Child, Command, ExitCode},
    task::Poll,
};

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process};
use tokio::signal::unix::{self, SignalKind};

use super::own_file;

/// A kind of signal that is awaited, and the signal that is passed on for it.
type Heard = (unix::Signal, Option<Signal>);

/// Starts the running program once more if this process is the first of its process namespace, awaits
/// all processes, and returns the exit code of that program. Returns `None` in any other process, or
/// if the program cannot be started once more.
///
/// A program that embeds a host and may be the first of a container calls this in its `main`, right
/// after [`super::confined`] and before it has threads.
pub fn init() -> Option<ExitCode> {
    if !rustix::process::getpid().is_init() {
        return None;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().ok()?;
    let entered = runtime.enter();
    // Before there is a child whose end could be missed.
    let heard = listen().ok()?;
    drop(entered);
    let program = begin().ok()?;
    Some(runtime.block_on(accompany(Pid::from_child(&program), heard)))
}

fn listen() -> io::Result<Vec<Heard>> {
    let kinds = [
        (SignalKind::child(), None),
        (SignalKind::hangup(), Some(Signal::HUP)),
        (SignalKind::terminate(), Some(Signal::TERM)),
        (SignalKind::user_defined1(), Some(Signal::USR1)),
        (SignalKind::user_defined2(), Some(Signal::USR2)),
        (SignalKind::interrupt(), Some(Signal::INT)),
        (SignalKind::quit(), Some(Signal::QUIT)),
    ];
    // A terminal tells the program itself, and a second one would stop it at once.
    let has_terminal = io::stdin().is_terminal();
    let passed = |signal: Option<Signal>| {
        signal.filter(|it| !has_terminal || ![Signal::INT, Signal::QUIT].contains(it))
    };
    kinds.into_iter().map(|(kind, signal)| Ok((unix::signal(kind)?, passed(signal)))).collect()
}

fn begin() -> io::Result<Child> {
    let mut words = std::env::args_os();
    let name = words.next().unwrap_or_default();
    // A manager's watchdog for this process is for that one.
    Command::new(own_file()?).arg0(name).args(words).env_remove("WATCHDOG_PID").spawn()
}

/// Awaits every process that ends, and passes signals on, until the program has ended. Returns its
/// exit code.
async fn accompany(program: Pid, mut heard: Vec<Heard>) -> ExitCode {
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid == program => return code(status),
            Ok(Some(_)) | Err(rustix::io::Errno::INTR) => continue,
            Ok(None) => {}
            Err(_) => return ExitCode::FAILURE,
        }
        let next = poll_fn(|cx| {
            let ready = heard
                .iter_mut()
                .find_map(|(kind, signal)| kind.poll_recv(cx).is_ready().then_some(*signal));
            ready.map_or(Poll::Pending, Poll::Ready)
        });
        if let Some(signal) = next.await {
            let _ = kill_process(program, signal);
        }
    }
}

/// Returns the exit code as shells count it: 128 plus the signal for a killed program.
fn code(status: WaitStatus) -> ExitCode {
    let killed = || status.terminating_signal().map(|signal| 128 + signal);
    let code = status.exit_status().or_else(killed);
    code.and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
}
