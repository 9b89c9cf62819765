//! The live events of a run: server-sent events that resume without a gap.

use std::{convert::Infallible, time::Duration};

use axum::{
    Json as JsonBody,
    extract::State,
    http::HeaderMap,
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
};
use futures::{Stream, StreamExt};
use serde::Deserialize;
use tokio::time::Instant;
use utoipa::{IntoParams, ToSchema};

use super::{
    app::Api,
    params::{self, Asker, At, Params},
};
use crate::{
    clock::Clock,
    door::{Code, Problem, ProblemBody},
    engine::{EngineError, EventView, Events, rfc3339},
    protocol::Json,
};

/// The beginning and form of the stream.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct StreamParams {
    /// Only events after this number; from the first by default. Wins over `Last-Event-ID`.
    starting_after: Option<u32>,
    /// True if events of single steps may be left out where there are very many: for a client that
    /// shows
    /// how far a run is. All others are sent, and so is the last one of a flood.
    sampled: Option<bool>,
    /// `json` for a page of the past instead of a stream: the last events before `before`, in their
    /// order. `next_cursor` is the `before` of the page before it.
    #[param(inline)]
    format: Option<Format>,
    /// With `format=json`: only events with a smaller number.
    before: Option<u32>,
    /// With `format=json`: events on a page, 1 to 500, 50 by default; fewer if they are large.
    limit: Option<usize>,
}

/// The form of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Format {
    /// Server-sent events.
    Sse,
    /// A page as JSON.
    Json,
}

/// A page of a run's past events.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "the schema of `Page<EventView>` in the OpenAPI document")]
pub(super) struct EventPage {
    /// The events in their order.
    items: Vec<EventView>,
    /// Pass it as `before` to get the page before; null at the beginning.
    next_cursor: Option<String>,
}

/// The number of step events that a sampled stream sends at once; beyond it, some are omitted.
const BURST: u32 = 256;
/// The interval of step events beyond the burst.
const SAMPLE: Duration = Duration::from_millis(100);

/// Streams the events of a run until it has ended.
///
/// Each is sent as `event:` (its type), `data:` (the event as JSON) and, if it is durable, `id:`
/// (its number). Numbers have no gaps; events without one (progress) may be lost. An event `problem`
/// ends a stream that cannot go on; its data are the problem.
#[utoipa::path(
    get, path = "/v1/runs/{run}/events", operation_id = "run_events", tag = "runs",
    params(
        ("run" = String, Path, description = "The run's id."),
        StreamParams,
        ("Last-Event-ID" = Option<u32>, Header, description = "The number of the last event that was seen."),
    ),
    responses(
        (status = 200, description = "The events, or a page of them.", content(
            (EventView = "text/event-stream"), (EventPage = "application/json"),
        )),
        (status = 404, description = "`not_found`", body = ProblemBody),
    ),
)]
pub(super) async fn stream(
    State(api): State<Api>,
    Asker(caller): Asker,
    At(run): At<String>,
    Params(params): Params<StreamParams>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let run = params::id(&run)?;
    if params.format == Some(Format::Json) {
        let limit = params::page_limit(params.limit)?;
        let page = api.engine.events_page(&caller, run, params.before, limit).await?;
        return Ok(JsonBody(page).into_response());
    }
    if params.before.is_some() || params.limit.is_some() {
        return Err(params::bad_query("before and limit are for format=json"));
    }
    let after = starting_after(params.starting_after, &headers)?;
    let events = api.engine.events(&caller, run, after).await?;
    let stopping = api.stopping.clone().cancelled_owned();
    let keep_alive = KeepAlive::new().interval(api.door.limits.keep_alive);
    let sampler = params.sampled.unwrap_or(false).then(Sampler::new);
    let stream = sent(events, sampler).take_until(stopping);
    Ok(Sse::new(stream).keep_alive(keep_alive).into_response())
}

fn starting_after(asked: Option<u32>, headers: &HeaderMap) -> Result<u32, Problem> {
    match (asked, headers.get("last-event-id")) {
        (Some(after), _) => Ok(after),
        (None, None) => Ok(0),
        (None, Some(last)) => {
            last.to_str().ok().and_then(|last| last.parse().ok()).ok_or_else(|| {
                Problem::new(Code::BadHeader, "Last-Event-ID is the number of an event")
            })
        }
    }
}

fn sent(events: Events, sampler: Option<Sampler>) -> impl Stream<Item = Result<Event, Infallible>> {
    // Pulled one by one: a slow reader holds back no more than the engine's own bounded queue.
    futures::stream::unfold(Some((events, sampler)), |reading| async {
        let (mut events, mut sampler) = reading?;
        match next(&mut events, sampler.as_mut()).await {
            Ok(event) => Some((Ok(written(&event?)), Some((events, sampler)))),
            // The stream ends with the reason; a client that resumes would get the same error
            // again.
            Err(error) => Some((Ok(written(&broken(error))), None)),
        }
    })
}

/// Returns the next event to send.
async fn next(
    events: &mut Events,
    sampler: Option<&mut Sampler>,
) -> Result<Option<EventView>, EngineError> {
    let Some(sampler) = sampler else { return events.next().await };
    loop {
        let next = match sampler.due() {
            None => events.next().await,
            Some(due) => match tokio::time::timeout_at(due, events.next()).await {
                Ok(next) => next,
                Err(_) => match sampler.take(Instant::now()) {
                    Some(event) => return Ok(Some(event)),
                    None => continue,
                },
            },
        };
        let Some(event) = next? else { return Ok(None) };
        if let Some(event) = sampler.pass(event, Instant::now()) {
            return Ok(Some(event));
        }
    }
}

/// Omits step events when there are very many.
struct Sampler {
    left: u32,
    refilled: Instant,
    /// The last event that was omitted.
    owed: Option<EventView>,
}

impl Sampler {
    fn new() -> Self {
        Self { left: BURST, refilled: Instant::now(), owed: None }
    }

    /// Returns the event, if it is to be sent now.
    fn pass(&mut self, event: EventView, now: Instant) -> Option<EventView> {
        if !event.kind.starts_with("step.") && !event.kind.starts_with("attempt.") {
            return Some(event);
        }
        self.refill(now);
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                self.owed = None;
                Some(event)
            }
            None => {
                self.owed = Some(event);
                None
            }
        }
    }

    /// Returns the time at which the omitted event is to be sent.
    fn due(&self) -> Option<Instant> {
        self.owed.as_ref().map(|_| self.refilled + SAMPLE)
    }

    /// Returns the omitted event, once it is due.
    fn take(&mut self, now: Instant) -> Option<EventView> {
        let owed = self.owed.take()?;
        self.pass(owed, now)
    }

    fn refill(&mut self, now: Instant) {
        let samples = now.duration_since(self.refilled).as_millis() / SAMPLE.as_millis();
        let samples = u32::try_from(samples).unwrap_or(BURST).min(BURST);
        if samples > 0 {
            self.left = (self.left + samples).min(BURST);
            self.refilled = now;
        }
    }
}

/// Returns the last event of a stream that failed: `problem`, without a number.
pub(super) fn broken(error: EngineError) -> EventView {
    let problem = Problem::from(error);
    EventView {
        seq: None,
        kind: "problem".to_owned(),
        at: rfc3339(Clock::system().now_ms()),
        data: Json::encode(problem.body()).expect("a problem is plain data"),
    }
}

fn written(event: &EventView) -> Event {
    let data = serde_json::to_string(event).expect("an event is plain data");
    let sent = Event::default().event(&event.kind).data(data);
    match event.seq {
        Some(seq) => sent.id(seq.to_string()),
        None => sent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::StoreError;

    async fn text(event: EventView) -> String {
        let events = futures::stream::iter([Ok::<_, Infallible>(written(&event))]);
        let body = Sse::new(events).into_response().into_body();
        String::from_utf8(axum::body::to_bytes(body, 1 << 20).await.unwrap().to_vec()).unwrap()
    }

    fn event(seq: Option<u32>) -> EventView {
        EventView {
            seq,
            kind: "log".to_owned(),
            at: "2026-01-01T00:00:00.000Z".to_owned(),
            data: Json::from_trusted(r#"{"text":"a\nb"}"#),
        }
    }

    #[test]
    fn a_flood_of_steps_is_sampled_and_nothing_else_is_left_out() {
        let began = Instant::now();
        let mut sampler = Sampler::new();
        let step = |seq| EventView { kind: "step.completed".to_owned(), ..event(Some(seq)) };
        let at = |ms: u64| began + Duration::from_millis(ms);
        let (mut steps, mut logs) = (0, 0);
        for seq in 1..=10_000 {
            steps += usize::from(sampler.pass(step(seq), at(u64::from(seq) / 10)).is_some());
            logs += usize::from(sampler.pass(event(None), at(u64::from(seq) / 10)).is_some());
        }
        assert!((256..=267).contains(&steps), "{steps} in a second");
        assert_eq!(logs, 10_000);
        assert!(sampler.due().unwrap() <= at(1_100));
        assert_eq!(sampler.take(at(1_100)).unwrap().seq, Some(10_000), "the last is not lost");
        assert!(sampler.due().is_none());
        assert!((10_001..10_200).all(|seq| sampler.pass(step(seq), at(60_000)).is_some()));
    }

    #[tokio::test]
    async fn a_durable_event_has_its_number_as_id_and_a_lossy_one_has_none() {
        insta::assert_snapshot!(text(event(Some(7))).await, @r#"
        event: log
        data: {"seq":7,"type":"log","at":"2026-01-01T00:00:00.000Z","data":{"text":"a\nb"}}
        id: 7
        "#);
        assert!(!text(event(None)).await.contains("id:"));
    }

    #[tokio::test]
    async fn a_stream_that_cannot_go_on_says_why() {
        let (what, reason) = ("row 7".to_owned(), "a secret path".to_owned());
        let text = text(broken(StoreError::Damaged { what, reason }.into())).await;
        assert!(text.starts_with("event: problem\n") && text.contains(r#""code":"damaged""#));
        assert!(!text.contains("id:") && !text.contains("secret"), "{text}");
    }

    #[test]
    fn the_query_wins_over_the_header_of_a_reconnecting_browser() {
        let mut headers = HeaderMap::new();
        assert_eq!(starting_after(None, &headers).unwrap(), 0);
        headers.insert("last-event-id", "41".parse().unwrap());
        assert_eq!(starting_after(None, &headers).unwrap(), 41);
        assert_eq!(starting_after(Some(3), &headers).unwrap(), 3);
        headers.insert("last-event-id", "x".parse().unwrap());
        assert_eq!(starting_after(None, &headers).unwrap_err().code(), "bad_header");
    }
}
