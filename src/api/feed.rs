//! The feed of the host: the events of all runs as server-sent events.

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
    app::Api,
    events::broken,
    params::{Asker, Params},
    stats::time_of,
};
use crate::{
    door::{Code, Problem},
    engine::{HostEvent, HostEventView, HostEvents, HostEventsAsk, Since},
};

/// Which events to send.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct FeedParams {
    /// Types with commas between them, each whole or by its first word: `run,task.opened`; all by
    /// default.
    types: Option<String>,
    /// Only runs of this blueprint.
    blueprint: Option<String>,
    /// The beginning: the `cursor` of an event, a time (RFC 3339), an age (`24h`), or `first`. By
    /// default with what happens from now on. Wins over `Last-Event-ID`.
    since: Option<String>,
}

impl FeedParams {
    fn ask(self, last: Option<String>, now_ms: u64) -> HostEventsAsk {
        let types = self.types.as_deref().unwrap_or_default().split(',');
        let types = types.map(str::trim).filter(|it| !it.is_empty()).map(str::to_owned).collect();
        let since = match self.since.or(last) {
            None => Since::Now,
            Some(text) if text == "first" => Since::First,
            Some(text) => match time_of(&text, now_ms) {
                Some(at_ms) => Since::Time(at_ms),
                None => Since::Cursor(text),
            },
        };
        HostEventsAsk { types, blueprint: self.blueprint, since }
    }
}

/// Streams the events of all runs.
///
/// Each is sent as `event:` (its type), `data:` (the event as JSON) and `id:` (its cursor). An event
/// arrives at least once, those of a run in their order; whoever comes back with the cursor of the last
/// one misses none. An event `position` has a cursor alone: nothing that fits happened for a while. An
/// event `problem` ends a stream that cannot go on.
#[utoipa::path(
    get, path = "/v1/events", operation_id = "host_events", tag = "runs",
    params(
        FeedParams,
        ("Last-Event-ID" = Option<String>, Header, description = "The cursor of the last event that was seen."),
    ),
    responses(
        (status = 200, description = "The events.", body = HostEventView, content_type = "text/event-stream"),
    ),
)]
pub(super) async fn stream(
    State(api): State<Api>,
    Asker(caller): Asker,
    Params(params): Params<FeedParams>,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Problem> {
    let last = match headers.get("last-event-id") {
        None => None,
        Some(last) => Some(last.to_str().map(str::to_owned).map_err(|_| {
            Problem::new(Code::BadHeader, "Last-Event-ID is the cursor of an event")
        })?),
    };
    let ask = params.ask(last, api.door.clock.now_ms());
    let events = api.engine.host_events(&caller, ask).await?;
    let stopping = api.stopping.clone().cancelled_owned();
    let keep_alive = KeepAlive::new().interval(api.door.limits.keep_alive);
    Ok(Sse::new(sent(events).take_until(stopping)).keep_alive(keep_alive))
}

fn sent(events: HostEvents) -> impl Stream<Item = Result<Event, Infallible>> {
    // Pulled one by one: a slow reader holds back no more than one page.
    futures::stream::unfold(Some(events), |events| async {
        let mut events = events?;
        match events.next().await {
            Ok(HostEvent::Event(event)) => Some((Ok(written(&event)), Some(events))),
            Ok(HostEvent::Passed(cursor)) => {
                let data = serde_json::json!({ "cursor": cursor }).to_string();
                Some((Ok(Event::default().event("position").id(cursor).data(data)), Some(events)))
            }
            Err(error) => {
                let data = serde_json::to_string(&broken(error)).expect("an event is plain data");
                Some((Ok(Event::default().event("problem").data(data)), None))
            }
        }
    })
}

fn written(event: &HostEventView) -> Event {
    let data = serde_json::to_string(event).expect("an event is plain data");
    Event::default().event(&event.kind).id(&event.cursor).data(data)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(types: Option<&str>, since: Option<&str>, last: Option<&str>) -> HostEventsAsk {
        let (types, since) = (types.map(str::to_owned), since.map(str::to_owned));
        FeedParams { types, blueprint: None, since }.ask(last.map(str::to_owned), 10_000)
    }

    #[test]
    fn since_is_a_time_a_duration_the_first_or_a_cursor_and_wins_over_the_header() {
        assert_eq!(ask(None, None, None), HostEventsAsk::default());
        assert_eq!(ask(None, Some("first"), Some("x")).since, Since::First);
        assert_eq!(ask(None, Some("4s"), None).since, Since::Time(6_000));
        assert_eq!(ask(None, Some("1970-01-01T00:00:01Z"), None).since, Since::Time(1_000));
        assert_eq!(ask(None, None, Some("AQAA")).since, Since::Cursor("AQAA".to_owned()));
        assert_eq!(ask(Some("run, task.opened,"), None, None).types, ["run", "task.opened"]);
    }
}
