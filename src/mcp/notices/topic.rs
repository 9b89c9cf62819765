//! One thing that a client watches: a resource, or the list of tools.

use std::{ops::ControlFlow, sync::Arc, time::Duration};

use blake3::Hash;
use futures::{FutureExt as _, StreamExt as _};
use serde_json::Value;
use tokio::{
    sync::{mpsc, watch},
    time::{sleep, timeout},
};

use crate::mcp::{
    answer::Trouble,
    listing, resources,
    transport::{Path, Pieces, Transport},
};

/// The shortest time between two looks at a resource: a burst of events is one notice.
const QUIET: Duration = Duration::from_millis(100);
/// The time until the host is asked again after it did not answer.
const RETRY: Duration = Duration::from_secs(1);
/// The time between two looks where nothing says that there is something new to see.
const POLL: Duration = Duration::from_secs(2);
/// The time between two looks at what can only be deleted.
const SLOW: Duration = Duration::from_secs(30);
/// The time without any piece, even a comment, after which a stream is taken for dead.
const SILENT: Duration = Duration::from_secs(60);

/// The thing that a client watches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Subject {
    /// The list of tools.
    Tools,
    /// A resource, by its URI.
    Resource(String),
}

/// A subject, and what its client knows of it.
#[derive(Debug, Clone)]
pub(super) struct Topic {
    subject: Subject,
    signal: Signal,
    seen: Hash,
}

/// A source of signals that there may be something new.
#[derive(Debug, Clone)]
enum Signal {
    /// The events of a run, after this number.
    Run { run: String, after: u32 },
    /// The host itself.
    Told(watch::Receiver<u64>),
    /// Nothing does: it is looked at after this time.
    Every(Duration),
    /// It does not change.
    Never,
}

impl Topic {
    /// Reads what a client knows of a subject from now on; none if it may not read it.
    pub(super) async fn begin(
        transport: &dyn Transport,
        subject: Subject,
    ) -> Result<Option<Self>, Trouble> {
        // The signal comes first: what happens after it is seen by the look or by the signal.
        let signal = match &subject {
            Subject::Tools => match transport.moves() {
                Some(moves) => Signal::Told(moves),
                None => Signal::Every(POLL),
            },
            Subject::Resource(uri) => match resources::run_of(uri) {
                Some(run) => match run_now(transport, run).await? {
                    Some((after, _)) => Signal::Run { run: run.to_owned(), after },
                    None => return Ok(None),
                },
                None if resources::is_fixed(uri) => Signal::Never,
                // The content of an artifact stays as it is.
                None => Signal::Every(SLOW),
            },
        };
        let seen = read(transport, &subject).await?;
        Ok(seen.map(|seen| Self { subject, signal, seen }))
    }

    pub(super) fn subject(&self) -> &Subject {
        &self.subject
    }

    /// Sends the subject to `tell` after each change, until it exists no more.
    pub(super) async fn watch(
        mut self,
        transport: Arc<dyn Transport>,
        tell: mpsc::Sender<Subject>,
    ) {
        let transport = &*transport;
        match std::mem::replace(&mut self.signal, Signal::Never) {
            Signal::Never => {}
            Signal::Every(time) => loop {
                sleep(time).await;
                if self.look(transport, &tell).await.is_break() {
                    return;
                }
            },
            Signal::Told(mut moves) => {
                while moves.changed().await.is_ok() {
                    if self.look(transport, &tell).await.is_break() {
                        return;
                    }
                    sleep(QUIET).await;
                }
            }
            // It breaks off once the run exists no more.
            Signal::Run { run, after } => {
                let _ = self.watch_run(transport, &tell, &run, after).await;
            }
        }
    }

    async fn watch_run(
        &mut self,
        transport: &dyn Transport,
        tell: &mpsc::Sender<Subject>,
        run: &str,
        mut after: u32,
    ) -> ControlFlow<()> {
        loop {
            let path = Path::new("/v1/runs").at(run).at("events");
            let opened = transport.open(path.with("starting_after", Some(after))).await;
            // Events without a number, between the last look and now.
            self.look(transport, tell).await?;
            if let Ok(mut pieces) = opened {
                while is_news(&mut pieces).await {
                    sleep(QUIET).await;
                    while pieces.next().now_or_never().flatten().is_some() {}
                    self.look(transport, tell).await?;
                }
            }
            match run_now(transport, run).await {
                Ok(Some((last, is_ended))) => {
                    after = last;
                    sleep(if is_ended { SLOW } else { RETRY }).await;
                }
                Ok(None) => self.look(transport, tell).await?,
                Err(_) => sleep(RETRY).await,
            }
        }
    }

    /// Looks at the subject, and tells of it if it has changed. Breaks if it exists no more, or
    /// nobody wants to know.
    async fn look(
        &mut self,
        transport: &dyn Transport,
        tell: &mpsc::Sender<Subject>,
    ) -> ControlFlow<()> {
        let now = match read(transport, &self.subject).await {
            Ok(Some(now)) if now == self.seen => return ControlFlow::Continue(()),
            Ok(now) => now,
            // The next look shows it.
            Err(_) => return ControlFlow::Continue(()),
        };
        if tell.send(self.subject.clone()).await.is_err() {
            return ControlFlow::Break(());
        }
        match now {
            Some(now) => {
                self.seen = now;
                ControlFlow::Continue(())
            }
            None => ControlFlow::Break(()),
        }
    }
}

/// Waits for a piece that is more than a comment; false where the stream has ended.
async fn is_news(pieces: &mut Pieces) -> bool {
    loop {
        match timeout(SILENT, pieces.next()).await {
            Ok(Some(Ok(piece))) => {
                let is_comment = |line: &[u8]| line.is_empty() || line.starts_with(b":");
                if !piece.split(|byte| *byte == b'\n').all(is_comment) {
                    return true;
                }
            }
            Ok(Some(Err(_)) | None) | Err(_) => return false,
        }
    }
}

/// Returns the number of the last event of a run, and true if it has ended; none if the token sees
/// no such run.
async fn run_now(transport: &dyn Transport, run: &str) -> Result<Option<(u32, bool)>, Trouble> {
    let view = match transport.get(Path::new("/v1/runs").at(run)).await {
        Ok(view) => view,
        Err(trouble) if is_refusal(&trouble) => return Ok(None),
        Err(trouble) => return Err(trouble),
    };
    let last = view["last_event"].as_u64().and_then(|last| u32::try_from(last).ok());
    Ok(Some((last.unwrap_or_default(), view["ended_at"] != Value::Null)))
}

/// Reads a subject as its client would; none if it may not, or there is none.
async fn read(transport: &dyn Transport, subject: &Subject) -> Result<Option<Hash>, Trouble> {
    let found = match subject {
        Subject::Tools => listing::tools(transport).await.map(|tools| serde_json::to_vec(&tools)),
        Subject::Resource(uri) => match resources::read(transport, uri).await {
            Ok(None) => return Ok(None),
            Ok(Some(contents)) => Ok(serde_json::to_vec(&contents)),
            Err(trouble) => Err(trouble),
        },
    };
    match found {
        Ok(text) => Ok(Some(blake3::hash(&text.unwrap_or_default()))),
        // It is too large to be read as a resource; its size changes with it.
        Err(Trouble::Arguments(why)) => Ok(Some(blake3::hash(why.as_bytes()))),
        Err(trouble) if is_refusal(&trouble) => Ok(None),
        Err(trouble) => Err(trouble),
    }
}

/// Returns true for a refusal that stays one; false if the host only has no time.
fn is_refusal(trouble: &Trouble) -> bool {
    matches!(trouble, Trouble::Refused { status: 400 | 401 | 403 | 404 | 410, .. })
}
