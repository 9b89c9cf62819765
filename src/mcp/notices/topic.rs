//! One thing that a client watches: a resource, or the lists of tools, prompts and resources.

use std::{collections::BTreeSet, ops::ControlFlow, sync::Arc, time::Duration};

use blake3::Hash;
use futures::{FutureExt as _, StreamExt as _};
use serde_json::Value;
use tokio::{
    sync::{mpsc, watch},
    time::{sleep, timeout},
};

use crate::mcp::{
    answer::Trouble,
    listing::{self, List},
    resources,
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

/// The thing that a notice is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Subject {
    /// A list.
    List(List),
    /// A resource, by its URI.
    Resource(String),
}

/// The thing that a client watches. Lists are watched together, because they come from one look.
#[derive(Debug, Clone)]
pub(super) enum Wanted {
    /// These lists.
    Lists(BTreeSet<List>),
    /// A resource, by its URI.
    Resource(String),
}

/// A thing that is watched, and what its client knows of it.
#[derive(Debug, Clone)]
pub(super) struct Topic {
    wanted: Wanted,
    signal: Signal,
    seen: Vec<(Subject, Hash)>,
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
    /// The resource does not change.
    Never,
}

impl Topic {
    /// Reads what a client knows from now on; none if it may not read it.
    pub(super) async fn begin(
        transport: &dyn Transport,
        wanted: Wanted,
    ) -> Result<Option<Self>, Trouble> {
        // The signal comes first: what happens after it is seen by the look or by the signal.
        let signal = match &wanted {
            Wanted::Lists(_) => of_blueprints(transport),
            Wanted::Resource(uri) => match resources::run_of(uri) {
                Some(run) => match run_now(transport, run).await? {
                    Some((after, _)) => Signal::Run { run: run.to_owned(), after },
                    None => return Ok(None),
                },
                None if resources::is_fixed(uri) => Signal::Never,
                None if !resources::is_own(uri) => of_blueprints(transport),
                // The content of an artifact stays as it is.
                None => Signal::Every(SLOW),
            },
        };
        let seen = read(transport, &wanted).await?;
        Ok(seen.map(|seen| Self { wanted, signal, seen }))
    }

    /// Returns it for a client that knows something older: its first look tells of everything.
    pub(super) fn outdated(mut self) -> Self {
        for (_, seen) in &mut self.seen {
            *seen = Hash::from_bytes([0; 32]);
        }
        if let Signal::Told(moves) = &mut self.signal {
            moves.mark_changed();
        }
        self
    }

    /// Returns everything that its notices can be about.
    pub(super) fn subjects(&self) -> impl Iterator<Item = &Subject> {
        self.seen.iter().map(|(subject, _)| subject)
    }

    /// Sends the subjects to `tell` after each change, until they exist no more.
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

    /// Looks again, and tells of what has changed. Breaks if it exists no more, or nobody wants to
    /// know.
    async fn look(
        &mut self,
        transport: &dyn Transport,
        tell: &mpsc::Sender<Subject>,
    ) -> ControlFlow<()> {
        // What cannot be read now is seen by the next look.
        let Ok(now) = read(transport, &self.wanted).await else {
            return ControlFlow::Continue(());
        };
        let is_over = now.is_none();
        let before = match now {
            Some(now) => std::mem::replace(&mut self.seen, now),
            None => std::mem::take(&mut self.seen),
        };
        for seen in before {
            if self.seen.contains(&seen) {
                continue;
            }
            if tell.send(seen.0).await.is_err() {
                return ControlFlow::Break(());
            }
        }
        if is_over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// Returns what says that blueprints may have changed.
fn of_blueprints(transport: &dyn Transport) -> Signal {
    transport.moves().map_or(Signal::Every(POLL), Signal::Told)
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

/// Reads what is watched as its client would; none if it may not, or there is none.
async fn read(
    transport: &dyn Transport,
    wanted: &Wanted,
) -> Result<Option<Vec<(Subject, Hash)>>, Trouble> {
    let found = match wanted {
        Wanted::Lists(lists) => listing::texts(transport, lists).await.map(|texts| {
            let hashed = texts.into_iter();
            hashed.map(|(list, text)| (Subject::List(list), blake3::hash(&text))).collect()
        }),
        // To read it is a run; it is watched by the version of its blueprint.
        Wanted::Resource(uri) if !resources::is_own(uri) => {
            match listing::offered(transport).await {
                Ok(offered) => {
                    let Some(found) = offered.iter().find(|it| it.matches(uri).is_some()) else {
                        return Ok(None);
                    };
                    let seen = blake3::hash(found.version.as_bytes());
                    Ok(vec![(Subject::Resource(uri.clone()), seen)])
                }
                Err(trouble) => Err(trouble),
            }
        }
        Wanted::Resource(uri) => {
            let hashed = |text: &[u8]| vec![(Subject::Resource(uri.clone()), blake3::hash(text))];
            match resources::read(transport, uri).await {
                Ok(None) => return Ok(None),
                Ok(Some(contents)) => {
                    Ok(hashed(&serde_json::to_vec(&contents).unwrap_or_default()))
                }
                // It is too large to be read as a resource; its size changes with it.
                Err(Trouble::Arguments(why)) => Ok(hashed(why.as_bytes())),
                Err(trouble) => Err(trouble),
            }
        }
    };
    match found {
        Ok(seen) => Ok(Some(seen)),
        Err(trouble) if is_refusal(&trouble) => Ok(None),
        Err(trouble) => Err(trouble),
    }
}

/// Returns true for a refusal that stays one; false if the host only has no time.
fn is_refusal(trouble: &Trouble) -> bool {
    matches!(trouble, Trouble::Refused { status: 400 | 401 | 403 | 404 | 410, .. })
}
