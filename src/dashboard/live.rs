//! Live fragments: what changed on a page, rendered by the function that rendered the page.
//!
//! A stream begins with every fragment as it is now, so a page that was away misses nothing. The page
//! of a run is rendered again after each of its events; lists are looked at every two seconds. A page
//! is rendered once for all who have it open with the same rights. A fragment that is as it was is not
//! sent.

use std::{
    convert::Infallible,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use axum::{
    extract::{Path, State},
    response::sse::{Event, KeepAlive, Sse},
};
use futures::{StreamExt as _, stream::BoxStream};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    budget::{Budget, Moving},
    desk::Desk,
    fields::Fields,
    fragment::Fragment,
    page,
    rooms::{Board, Key, Viewer},
    said::Said,
    visitor::{Visitor, id},
};
use crate::{
    door::Problem,
    engine::{EngineError, EventView, Events, Moves},
    protocol::RunId,
};

/// The interval at which lists are rendered.
const LOOK: Duration = Duration::from_secs(2);
/// Events that follow the first one after a rest within this time are shown with it.
const AT_ONCE: Duration = Duration::from_millis(5);
/// The bytes that are sent to viewers in a microsecond, about.
const SENT_IN_A_US: usize = 500;
type Sent =
    Sse<axum::response::sse::KeepAliveStream<BoxStream<'static, Result<Event, Infallible>>>>;

/// Streams the overview.
pub(super) async fn overview(State(desk): State<Desk>, visitor: Visitor) -> Sent {
    let render = move |desk: Desk, visitor: Visitor| async move {
        Ok((Vec::from(page::overview::fragments(&desk, &visitor).await?), false))
    };
    streamed(desk, visitor, Reader::Person, look, render)
}

/// Streams the first page of a list of runs.
pub(super) async fn runs(State(desk): State<Desk>, visitor: Visitor, fields: Fields) -> Sent {
    let render = move |desk: Desk, visitor: Visitor| {
        let fields = fields.clone();
        async move { Ok((Vec::from(page::runs::fragments(&desk, &visitor, &fields).await?), false)) }
    };
    streamed(desk, visitor, Reader::Rights, look, render)
}

/// Streams the inbox.
pub(super) async fn inbox(State(desk): State<Desk>, visitor: Visitor, fields: Fields) -> Sent {
    let render = move |desk: Desk, visitor: Visitor| {
        let fields = fields.clone();
        async move { Ok((Vec::from(page::inbox::fragments(&desk, &visitor, &fields).await?), false)) }
    };
    streamed(desk, visitor, Reader::Person, look, render)
}

/// Streams the page of a run.
pub(super) async fn run(
    State(desk): State<Desk>,
    visitor: Visitor,
    Path(run): Path<String>,
    fields: Fields,
) -> Result<Sent, Problem> {
    let run: RunId = id(&run)?;
    let moves = Moves::of(&desk.engine, &visitor.caller, run).await?;
    let shown = Arc::new(AtomicU32::new(0));
    let last = Arc::clone(&shown);
    let render = move |desk: Desk, visitor: Visitor| {
        let (fields, shown) = (fields.clone(), Arc::clone(&shown));
        async move {
            let (fragments, last) = page::run::fragments(&desk, &visitor, run, &fields).await?;
            shown.store(last, Ordering::Relaxed);
            Ok((fragments, false))
        }
    };
    let wake = move |_, _| async move { Ok(Wake::Moves(Box::new(moves), last)) };
    Ok(streamed(desk, visitor, Reader::Rights, wake, render))
}

/// Streams the page of a step, with what models say at the moment.
pub(super) async fn step(
    State(desk): State<Desk>,
    visitor: Visitor,
    Path((run, seq)): Path<(String, String)>,
    fields: Fields,
) -> Result<Sent, Problem> {
    let (run, seq) = page::step::place(&run, &seq)?;
    let last = desk.engine.run(&visitor.caller, run).await?.last_event;
    let said = Arc::new(Mutex::new(Said::new(seq)));
    let gathered = Arc::clone(&said);
    let wake = move |desk: Desk, visitor: Visitor| async move {
        let events = desk.engine.events(&visitor.caller, run, last).await?;
        Ok(Wake::Events(Box::new(events), gathered))
    };
    let render = move |desk: Desk, visitor: Visitor| {
        let (fields, said) = (fields.clone(), Arc::clone(&said));
        async move { page::step::fragments(&desk, &visitor, (run, seq), &fields, &said).await }
    };
    Ok(streamed(desk, visitor, Reader::Rights, wake, render))
}

/// Waits for nothing but the time.
async fn look(_: Desk, _: Visitor) -> Result<Wake, Problem> {
    Ok(Wake::Look)
}

/// The event for which a page waits before it is rendered again.
enum Wake {
    Look,
    /// The changes of a run, and the number of the last event that is shown.
    Moves(Box<Moves>, Arc<AtomicU32>),
    /// The events of a run; what models say is gathered for a page that shows it.
    Events(Box<Events>, Arc<Mutex<Said>>),
    /// Nothing more will change.
    Over,
}

impl Wake {
    /// Lets the next rendering have every fragment.
    fn begin_anew(&self) {
        if let Self::Events(_, said) = self {
            said.lock().moved = true;
        }
    }

    /// Waits for a change. The first change after a rest is shown at once, those that follow it together
    /// after a pause.
    async fn next(&mut self, page: Moving) {
        match self {
            Self::Look => {
                let until = page.until.max(Instant::now() + LOOK);
                // It does not move: it is only looked at.
                drop(page);
                tokio::time::sleep_until(until).await;
            }
            Self::Over => {}
            Self::Moves(moves, shown) => {
                tokio::time::sleep_until(page.until).await;
                drop(page);
                match moves.next(shown.load(Ordering::Relaxed)).await {
                    // The rest of the same commit, and what the run does next, come with it.
                    Ok(true) => tokio::time::sleep(AT_ONCE).await,
                    Ok(false) | Err(_) => *self = Self::Over,
                }
            }
            Self::Events(events, said) => {
                // Returns true at the end.
                let take = |next: Result<Option<EventView>, EngineError>| {
                    let Ok(Some(event)) = next else { return true };
                    said.lock().take(&event);
                    false
                };
                let (mut moved, mut until) = (false, page.until);
                let mut page = Some(page);
                loop {
                    let over = match tokio::time::timeout_at(until, events.next()).await {
                        Ok(next) => take(next),
                        Err(_) if moved => return,
                        Err(_) => {
                            drop(page.take());
                            let over = take(events.next().await);
                            until = Instant::now() + AT_ONCE;
                            over
                        }
                    };
                    moved = true;
                    if over {
                        break;
                    }
                }
                *self = Self::Over;
            }
        }
    }
}

/// Those who see the same page.
enum Reader {
    /// All who have the same rights.
    Rights,
    /// All sign-ins of one person with the same rights.
    Person,
}

impl Reader {
    fn key(&self, visitor: &Visitor) -> Key {
        let grant = serde_json::to_string(&*visitor.caller.grant).expect("a grant is plain data");
        let rights = match self {
            Self::Rights => grant,
            Self::Person => format!("{grant} {}", visitor.caller.subject),
        };
        Key { page: visitor.at.clone(), url: visitor.url.clone(), rights }
    }
}

/// Returns a stream of the fragments that changed. `wake` says what to wait for, and `render` also
/// whether more may follow; they are called for the first viewer of the page.
fn streamed<W, V, R, F>(desk: Desk, visitor: Visitor, reader: Reader, wake: W, render: R) -> Sent
where
    W: FnOnce(Desk, Visitor) -> V + Send + 'static,
    V: Future<Output = Result<Wake, Problem>> + Send + 'static,
    R: Fn(Desk, Visitor) -> F + Send + Sync + 'static,
    F: Future<Output = Result<(Vec<Fragment>, bool), Problem>> + Send + 'static,
{
    let keep_alive = KeepAlive::new().interval(desk.door.limits.keep_alive);
    let stopping = desk.stopping.clone().cancelled_owned();
    let signed_out = Arc::clone(&desk.sign_ins).ended(visitor.signed_in.clone());
    let form = visitor.signed_in.form.clone();
    let (viewer, board) = desk.rooms.enter(reader.key(&visitor), form);
    if let Some(board) = board {
        let tasks = desk.tasks.clone();
        // It ends with its last viewer, and when the host stops.
        drop(tasks.spawn(rendered(desk, visitor, board, wake, render)));
    }
    let batches = futures::stream::unfold(Some(viewer), |viewer| async {
        let (batch, viewer) = next(viewer?).await?;
        Some((futures::stream::iter(batch.into_iter().map(Ok)), viewer))
    });
    Sse::new(batches.flatten().take_until(stopping).take_until(signed_out).boxed())
        .keep_alive(keep_alive)
}

/// Returns what changed for a viewer, and the viewer if more may follow.
async fn next(mut viewer: Viewer) -> Option<(Vec<Event>, Option<Viewer>)> {
    let changes = viewer.next().await?;
    let event = |data: String| Event::default().event("fragment").data(data);
    let mut batch: Vec<_> = changes.fragments.into_iter().map(event).collect();
    if changes.over {
        batch.push(Event::default().event("end").data("{}"));
    }
    Some((batch, (!changes.over).then_some(viewer)))
}

/// Renders a page for its viewers, until the last one has left or nothing will change any more.
async fn rendered<W, V, R, F>(desk: Desk, mut visitor: Visitor, board: Board, wake: W, render: R)
where
    W: FnOnce(Desk, Visitor) -> V,
    V: Future<Output = Result<Wake, Problem>>,
    R: Fn(Desk, Visitor) -> F,
    F: Future<Output = Result<(Vec<Fragment>, bool), Problem>>,
{
    // If it fails, the pages ask again, and the answer says why.
    let Ok(mut wake) = wake(desk.clone(), visitor.clone()).await else { return };
    desk.rooms.mark().clone_into(&mut visitor.signed_in.form);
    let mut budget = Budget::new(desk.rooms.moving());
    loop {
        let began = Instant::now();
        visitor.now_ms = desk.door.clock.now_ms();
        let Ok((fragments, last)) = render(desk.clone(), visitor.clone()).await else { return };
        let over = last || matches!(wake, Wake::Over);
        let sent = board.show(fragments, over);
        if over {
            return;
        }
        let cost = began.elapsed() + Duration::from_micros((sent / SENT_IN_A_US) as u64);
        tokio::select! {
            () = wake.next(budget.spend(cost)) => {}
            () = board.asked() => wake.begin_anew(),
            () = board.left() => {
                if board.close() {
                    return;
                }
                wake.begin_anew();
            }
            () = desk.stopping.cancelled() => return,
        }
    }
}
