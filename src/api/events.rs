//! The events of a run as they happen: server-sent events that resume without a gap.

use std::convert::Infallible;

use axum::{
    extract::State,
    http::HeaderMap,
    response::sse::{Event, KeepAlive, Sse},
};
use futures::{Stream, StreamExt};
use serde::Deserialize;
use utoipa::IntoParams;

use super::{
    codes,
    door::Api,
    error::{Problem, ProblemBody},
    params::{self, Asker, At, Params},
};
use crate::{
    clock::Clock,
    engine::{EngineError, EventView, Events, rfc3339},
    protocol::Json,
};

/// Where to begin.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct StreamParams {
    /// Only events after this number; from the first by default. Wins over `Last-Event-ID`.
    starting_after: Option<u32>,
}

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
        (status = 200, description = "The events.", body = EventView, content_type = "text/event-stream"),
        (status = 404, description = "`not_found`", body = ProblemBody),
    ),
)]
pub(super) async fn stream(
    State(api): State<Api>,
    Asker(caller): Asker,
    At(run): At<String>,
    Params(params): Params<StreamParams>,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Problem> {
    let after = starting_after(params.starting_after, &headers)?;
    let events = api.engine.events(&caller, params::id(&run)?, after).await?;
    let stopping = api.stopping.clone().cancelled_owned();
    let keep_alive = KeepAlive::new().interval(api.door.limits.keep_alive);
    Ok(Sse::new(sent(events).take_until(stopping)).keep_alive(keep_alive))
}

fn starting_after(asked: Option<u32>, headers: &HeaderMap) -> Result<u32, Problem> {
    match (asked, headers.get("last-event-id")) {
        (Some(after), _) => Ok(after),
        (None, None) => Ok(0),
        (None, Some(last)) => {
            last.to_str().ok().and_then(|last| last.parse().ok()).ok_or_else(|| {
                Problem::new(codes::BAD_HEADER, "Last-Event-ID is the number of an event")
            })
        }
    }
}

fn sent(events: Events) -> impl Stream<Item = Result<Event, Infallible>> {
    // Pulled one by one: who reads slowly holds back no more than the engine's own bounded queue.
    futures::stream::unfold(Some(events), |events| async {
        let mut events = events?;
        match events.next().await {
            Ok(event) => Some((Ok(written(&event?)), Some(events))),
            // It says why it ends; whoever resumes from the last number would hear the same again.
            Err(error) => Some((Ok(written(&broken(error))), None)),
        }
    })
}

/// The last event of a stream that cannot go on: `problem`, without a number.
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
    use axum::response::IntoResponse;

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
