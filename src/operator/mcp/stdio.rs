//! A server that is a child process: its pipes, and what it complains about.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    pin::Pin,
    process::Stdio,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
};

use rmcp::{RoleClient, transport::async_rw::AsyncRwTransport};
use tokio::{
    io::{AsyncRead, ReadBuf},
    process::{ChildStderr, ChildStdin, ChildStdout, Command},
};

use crate::{
    environment::{INHERITED, Text},
    operator::process::{DeathWatch, Running},
    protocol::{Failure, failure::kind},
};

/// The longest message of a server, in bytes.
const LONGEST: usize = 8 * 1024 * 1024;
/// The last bytes of what it complains about that are kept.
const TAIL: usize = 2 * 1024;

/// The pipes of a server, as its connection takes them.
pub(super) type Pipes = AsyncRwTransport<RoleClient, Talk, ChildStdin>;

/// The end of what a server complained about.
#[derive(Debug, Clone, Default)]
pub(super) struct Complaints(Arc<Mutex<VecDeque<u8>>>);

/// A started server: it and its group are dead once this is dropped.
pub(super) struct Started {
    pub(super) child: Running,
    pub(super) pipes: Pipes,
    pub(super) complaints: Complaints,
}

/// Starts a server.
pub(super) fn start(
    command: &[String],
    env: &BTreeMap<String, Text>,
    watch: &Arc<DeathWatch>,
) -> Result<Started, Failure> {
    let failed = |why: String| Failure::new(kind::OPERATOR_UNAVAILABLE, why).retryable();
    let program = &command[0];
    let mut child = Command::new(program);
    child.args(&command[1..]).env_clear();
    for name in INHERITED {
        if let Some(value) = std::env::var_os(name) {
            child.env(name, value);
        }
    }
    for (name, text) in env {
        let value = text.resolve().map_err(|error| failed(format!("failed to {error}")))?;
        child.env(name, value.expose());
    }
    child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = Running::spawn(&mut child, watch)
        .map_err(|error| failed(format!("failed to start the MCP server `{program}`: {error}")))?;
    let (stdin, stdout, stderr) = child.pipes().expect("the streams of a new child are pipes");
    let complaints = Complaints::default();
    let talk = Talk { stdout, stderr: Some(stderr), complaints: complaints.clone() };
    let pipes = AsyncRwTransport::new(talk, stdin).with_max_line_length(LONGEST);
    Ok(Started { child, pipes, complaints })
}

/// What a server says. Reading it keeps its stderr moving as well, so that it is never stopped by
/// a full pipe.
pub(super) struct Talk {
    stdout: ChildStdout,
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
        Pin::new(&mut self.stdout).poll_read(cx, into)
    }
}

impl Complaints {
    fn add(&self, bytes: &[u8]) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend(bytes);
        let over = kept.len().saturating_sub(TAIL);
        drop(kept.drain(..over));
    }

    /// The last line, if there is one.
    pub(super) fn last(&self) -> Option<String> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(kept.make_contiguous()).into_owned();
        let line = text.lines().rev().map(str::trim).find(|line| !line.is_empty())?;
        Some(line.chars().take(200).collect())
    }
}
