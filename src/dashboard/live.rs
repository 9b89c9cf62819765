//! Live fragments: what changed on a page, rendered by the function that rendered the page.
//!
//! A stream begins with every fragment as it is now, so a page that was away misses nothing. The page
//! of a run is rendered again after each of its events; lists are looked at every two seconds. A
//! fragment that is as it was is not sent.

use std::{collections::HashMap, convert::Infallible, future::Future, sync::Arc, time::Duration};

use axum::{
    extract::{Path, State},
    response::sse::{Event, KeepAlive, Sse},
};
use futures::{StreamExt as _, stream::BoxStream};
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::Instant;

use super::{
    desk::Desk,
    fields::Fields,
    fragment::Fragment,
    page,
    said::Said,
    visitor::{Visitor, id},
};
use crate::{
    door::Problem,
    engine::{EngineError, EventView, Events},
    protocol::RunId,
};

/// The interval at which lists are rendered.
const LOOK: Duration = Duration::from_secs(2);
/// Events that follow a rendering within this time are shown together.
const TOGETHER: Duration = Duration::from_millis(40);
/// Events that follow the first one after a rest within this time are shown with it.
const AT_ONCE: Duration = Duration::from_millis(5);
/// A page is rendered for at most this part of the time: a run with a long history costs more.
const PART: u32 = 8;
/// The longest pause between two renderings of a run that moves.
const LONGEST_PAUSE: Duration = Duration::from_secs(3);

type Sent =
    Sse<axum::response::sse::KeepAliveStream<BoxStream<'static, Result<Event, Infallible>>>>;

/// Streams the overview.
pub(super) async fn overview(State(desk): State<Desk>, visitor: Visitor) -> Sent {
    let render = move |desk: Desk, visitor: Visitor| async move {
        Ok((Vec::from(page::overview::fragments(&desk, &visitor).await?), false))
    };
    streamed(desk, visitor, Wake::Look, render)
}

/// Streams the first page of a list of runs.
pub(super) async fn runs(State(desk): State<Desk>, visitor: Visitor, fields: Fields) -> Sent {
    let render = move |desk: Desk, visitor: Visitor| {
        let fields = fields.clone();
        async move { Ok((Vec::from(page::runs::fragments(&desk, &visitor, &fields).await?), false)) }
    };
    streamed(desk, visitor, Wake::Look, render)
}

/// Streams the inbox.
pub(super) async fn inbox(State(desk): State<Desk>, visitor: Visitor, fields: Fields) -> Sent {
    let render = move |desk: Desk, visitor: Visitor| {
        let fields = fields.clone();
        async move { Ok((Vec::from(page::inbox::fragments(&desk, &visitor, &fields).await?), false)) }
    };
    streamed(desk, visitor, Wake::Look, render)
}

/// Streams the page of a run.
pub(super) async fn run(
    State(desk): State<Desk>,
    visitor: Visitor,
    Path(run): Path<String>,
    fields: Fields,
) -> Result<Sent, Problem> {
    let run: RunId = id(&run)?;
    let last = desk.engine.run(&visitor.caller, run).await?.last_event;
    let events = desk.engine.events(&visitor.caller, run, last).await?;
    let render = move |desk: Desk, visitor: Visitor| {
        let fields = fields.clone();
        async move { Ok((page::run::fragments(&desk, &visitor, run, &fields).await?, false)) }
    };
    Ok(streamed(desk, visitor, Wake::Events(Box::new(events), None), render))
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
    let parts = desk.engine.parts(&visitor.caller, run, seq, usize::MAX).await?;
    let events = desk.engine.events(&visitor.caller, run, last).await?;
    let mut said = Said::new(seq);
    said.know(parts.items.iter().map(|it| (it.step.seq, it.step.ended_at.is_none())));
    let said = Arc::new(Mutex::new(said));
    let wake = Wake::Events(Box::new(events), Some(Arc::clone(&said)));
    let render = move |desk: Desk, visitor: Visitor| {
        let (fields, said) = (fields.clone(), Arc::clone(&said));
        async move { page::step::fragments(&desk, &visitor, (run, seq), &fields, &said).await }
    };
    Ok(streamed(desk, visitor, wake, render))
}

/// The event for which a page waits before it is rendered again.
enum Wake {
    Look,
    /// The events of a run; what models say is gathered for a page that shows it.
    Events(Box<Events>, Option<Arc<Mutex<Said>>>),
    /// Nothing more will change.
    Over,
}

impl Wake {
    /// Waits for a change; `cost` is the time that the last rendering took. The first change after a rest
    /// is shown at once, those that follow it together after a pause.
    async fn next(&mut self, cost: Duration) {
        let pause = TOGETHER.max(cost.saturating_mul(PART)).min(LONGEST_PAUSE);
        match self {
            Self::Look => tokio::time::sleep(LOOK.max(pause)).await,
            Self::Over => {}
            Self::Events(events, said) => {
                // Returns true at the end.
                let take = |next: Result<Option<EventView>, EngineError>| {
                    let Ok(Some(event)) = next else { return true };
                    if let Some(said) = &said {
                        said.lock().take(&event);
                    }
                    false
                };
                let mut moved = false;
                let mut until = Instant::now() + pause;
                loop {
                    let over = match tokio::time::timeout_at(until, events.next()).await {
                        Ok(next) => take(next),
                        Err(_) if moved => return,
                        Err(_) => {
                            let over = take(events.next().await);
                            // The rest of the same commit comes with it.
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

/// Returns a stream of the fragments that changed; `render` says as well whether more may follow.
fn streamed<R, F>(desk: Desk, visitor: Visitor, wake: Wake, render: R) -> Sent
where
    R: Fn(Desk, Visitor) -> F + Send + 'static,
    F: Future<Output = Result<(Vec<Fragment>, bool), Problem>> + Send,
{
    let keep_alive = KeepAlive::new().interval(desk.door.limits.keep_alive);
    let stopping = desk.stopping.clone().cancelled_owned();
    let state = Some(Streaming { desk, visitor, wake, render, seen: HashMap::new(), cost: None });
    let batches = futures::stream::unfold(state, |state| async {
        let mut state = state?;
        let (batch, more) = state.step().await;
        Some((futures::stream::iter(batch.into_iter().map(Ok)), more.then_some(state)))
    });
    Sse::new(batches.flatten().take_until(stopping).boxed()).keep_alive(keep_alive)
}

struct Streaming<R> {
    desk: Desk,
    visitor: Visitor,
    wake: Wake,
    render: R,
    seen: HashMap<&'static str, blake3::Hash>,
    /// The time that the last rendering took; `None` before the first.
    cost: Option<Duration>,
}

impl<R, F> Streaming<R>
where
    R: Fn(Desk, Visitor) -> F,
    F: Future<Output = Result<(Vec<Fragment>, bool), Problem>>,
{
    /// Waits for a change, and returns what it changed, and whether more may follow.
    async fn step(&mut self) -> (Vec<Event>, bool) {
        if let Some(cost) = self.cost {
            self.wake.next(cost).await;
        }
        let began = Instant::now();
        self.visitor.now_ms = self.desk.door.clock.now_ms();
        let rendered = (self.render)(self.desk.clone(), self.visitor.clone()).await;
        let Ok((fragments, last)) = rendered else {
            // The page asks again, and its answer says why.
            return (Vec::new(), false);
        };
        self.cost = Some(began.elapsed());
        let mut batch = Vec::new();
        for Fragment { id, html } in fragments {
            let html = html.into_string();
            let hash = blake3::hash(html.as_bytes());
            if self.seen.insert(id, hash) != Some(hash) {
                let data = json!({ "id": id, "html": html }).to_string();
                batch.push(Event::default().event("fragment").data(data));
            }
        }
        let over = last || matches!(self.wake, Wake::Over);
        if over {
            batch.push(Event::default().event("end").data("{}"));
        }
        (batch, !over)
    }
}
