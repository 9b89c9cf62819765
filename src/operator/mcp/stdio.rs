//! A server that is a child process: its pipes, and its stderr.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
};

use parking_lot::Mutex;
use rmcp::{RoleClient, transport::async_rw::AsyncRwTransport};
use tokio::{
    io::{AsyncRead, ReadBuf},
    net::unix::pipe::Sender,
    process::{ChildStderr, ChildStdout},
};

use crate::{
    environment::{Environments, INHERITED, Input, Scrubber, Text},
    operator::process::Running,
    protocol::{Failure, failure::kind},
};

/// The maximum size of a message, in bytes.
const LONGEST: usize = 8 * 1024 * 1024;
/// The reason why a server is stopped that sent more.
pub(super) const TOO_LONG: &str = "it sent a message of more than 8 MiB";
/// The number of bytes of stderr that are kept.
const TAIL: usize = 2 * 1024;

/// The pipes of a server, as its connection takes them.
pub(super) type Pipes = AsyncRwTransport<RoleClient, Talk, Sender>;

/// The end of a server's stderr.
#[derive(Debug, Clone)]
pub(super) struct Complaints {
    kept: Arc<Mutex<VecDeque<u8>>>,
    secrets: Arc<Scrubber>,
    /// True if the server sent a message that is too long.
    is_flooded: Arc<AtomicBool>,
}

/// A started server; dropping it kills its process group.
pub(super) struct Started {
    pub(super) child: Running,
    pub(super) pipes: Pipes,
    pub(super) complaints: Complaints,
    /// The secrets among its variables.
    pub(super) secrets: Arc<Scrubber>,
}

/// Starts a server.
pub(super) async fn start(
    command: &[String],
    env: &BTreeMap<String, Text>,
    environments: &Environments,
) -> Result<Started, Failure> {
    let failed = |why: String| Failure::new(kind::OPERATOR_UNAVAILABLE, why).retryable();
    let program = &command[0];
    let inherited = INHERITED.into_iter();
    let mut variables: Vec<_> =
        inherited.filter_map(|name| Some((name.to_owned(), std::env::var_os(name)?))).collect();
    let mut secrets = Scrubber::default();
    for (name, text) in env {
        let value = text.resolve().map_err(|error| failed(format!("failed to {error}")))?;
        variables.push((name.clone(), value.expose().into()));
        if text.source().is_some() {
            secrets.add(name, &value);
        }
    }
    let start = async {
        let cwd = std::env::current_dir()?;
        let (theirs, ours) = std::io::pipe()?;
        // A pipe for messages, not an input of fixed size: closing it ends the server.
        let stdin = Sender::from_owned_fd(ours.into())?;
        let launch = environments.launch(program, &command[1..], variables, &cwd, &[&cwd])?;
        let input = Input::Pipe(theirs.into());
        Ok((Running::start(launch, input).await?, stdin))
    };
    let (mut child, stdin) = start.await.map_err(|error: io::Error| {
        failed(format!("failed to start the MCP server `{program}`: {error}"))
    })?;
    let (stdout, stderr) = child.pipes().expect("the streams of a new child are pipes");
    let secrets = Arc::new(secrets);
    let complaints = Complaints {
        kept: Arc::default(),
        secrets: Arc::clone(&secrets),
        is_flooded: Arc::default(),
    };
    let talk = Talk { stdout, message: 0, stderr: Some(stderr), complaints: complaints.clone() };
    let pipes = AsyncRwTransport::new(talk, stdin).with_max_line_length(LONGEST);
    Ok(Started { child, pipes, complaints, secrets })
}

/// The output of a server. Reading it drains stderr as well, so that a full pipe never blocks the
/// server. It fails at a message that is too long: nobody knows which call that answers, and a call
/// whose answer is left out would wait for its timeout.
pub(super) struct Talk {
    stdout: ChildStdout,
    /// The bytes of the message that were read so far.
    message: usize,
    stderr: Option<ChildStderr>,
    complaints: Complaints,
}

impl AsyncRead for Talk {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut piece = [0; 1024];
        while let Some(stderr) = &mut self.stderr {
            let mut heard = ReadBuf::new(&mut piece);
            match Pin::new(stderr).poll_read(cx, &mut heard) {
                Poll::Pending => break,
                Poll::Ready(Ok(())) if !heard.filled().is_empty() => {
                    self.complaints.add(heard.filled());
                }
                Poll::Ready(_) => self.stderr = None,
            }
        }
        let before = into.filled().len();
        ready!(Pin::new(&mut self.stdout).poll_read(cx, into))?;
        Poll::Ready(self.count(&into.filled()[before..]))
    }
}

impl Talk {
    /// Counts the bytes of a message.
    fn count(&mut self, read: &[u8]) -> io::Result<()> {
        for piece in read.split_inclusive(|byte| *byte == b'\n') {
            self.message += piece.len();
            if self.message > LONGEST {
                self.complaints.is_flooded.store(true, Ordering::Release);
                return Err(io::Error::other(TOO_LONG));
            }
            if piece.ends_with(b"\n") {
                self.message = 0;
            }
        }
        Ok(())
    }
}

impl Complaints {
    fn add(&self, bytes: &[u8]) {
        let mut kept = self.kept.lock();
        kept.extend(bytes);
        let over = kept.len().saturating_sub(TAIL + self.secrets.longest());
        drop(kept.drain(..over));
    }

    /// Returns true if the server was left because of a message that is too long.
    pub(super) fn is_flooded(&self) -> bool {
        self.is_flooded.load(Ordering::Acquire)
    }

    /// Returns the last line without secrets, if there is one.
    pub(super) fn last(&self) -> Option<String> {
        let kept = Vec::from(self.kept.lock().clone());
        let text = match kept.len() > TAIL {
            true => self.secrets.scrub_cut(kept),
            false => self.secrets.scrub(kept),
        };
        let text = String::from_utf8_lossy(&text);
        let line = text.lines().rev().map(str::trim).find(|line| !line.is_empty())?;
        Some(line.chars().take(200).collect())
    }
}
