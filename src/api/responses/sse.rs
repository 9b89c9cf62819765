//! Responses as server-sent events: `event:` is the type, there is no `id:`, and the last data are
//! `[DONE]`, except for messages.

use std::{collections::VecDeque, convert::Infallible};

use axum::response::{
    IntoResponse, Response,
    sse::{self, KeepAlive, Sse},
};
use futures::StreamExt;

use super::Answering;
use crate::{api::app::Api, respond::Event};

/// The data after the last event, except for messages.
pub(super) const DONE: &str = "[DONE]";

/// The events for a client.
pub(super) struct Feed {
    answering: Answering,
    ready: VecDeque<Event>,
    /// The last number that the client has received.
    after: Option<u64>,
    over: bool,
}

impl Feed {
    /// Returns the events after a number; all of them without one.
    pub(super) fn new(answering: Answering, after: Option<u64>) -> Self {
        Self { answering, ready: VecDeque::new(), after, over: false }
    }

    /// Returns the next event; `None` after the last, or when the store fails.
    pub(super) async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            if self.over {
                return None;
            }
            let events = self.answering.responding.stream().take();
            if events.is_empty() {
                // On an error the client resumes after the last number that it has.
                self.over = !self.answering.responding.more().await.ok()?;
            }
            self.ready.extend(events.into_iter().filter_map(|event| since(self.after, event)));
        }
    }
}

/// Filters events after a number. A client whose numbers go beyond the end has received deltas of a
/// model call that was interrupted, which no other client sees: it gets the last event under the
/// next number.
fn since(after: Option<u64>, mut event: Event) -> Option<Event> {
    let Some(after) = after else { return Some(event) };
    let number = event.data["sequence_number"].as_u64()?;
    if number > after {
        return Some(event);
    }
    if number < after && event.is_last() {
        event.data["sequence_number"] = after.saturating_add(1).into();
        return Some(event);
    }
    None
}

/// Streams the events of a response.
pub(super) fn events(api: &Api, answering: Answering, after: Option<u64>) -> Response {
    let feed = Feed::new(answering, after);
    stream(api, feed, Some(DONE), |event| vec![(Some(event.kind), event.data.to_string())])
}

/// Streams the result of `make` for each event: a name, if it has one, and the data. `last` are the
/// data after them, if there are any.
pub(super) fn stream<F>(api: &Api, feed: Feed, last: Option<&'static str>, make: F) -> Response
where
    F: FnMut(&Event) -> Vec<(Option<&'static str>, String)> + Send + 'static,
{
    let state = (feed, make, false);
    let sent = futures::stream::unfold(state, move |(mut feed, mut make, done)| async move {
        if done {
            return None;
        }
        let sent: Vec<_> = match feed.next().await {
            Some(event) => make(&event).into_iter().map(written).collect(),
            None if feed.over => {
                let last = last.map(|last| written((None, last.to_owned())));
                return Some((last.into_iter().collect(), (feed, make, true)));
            }
            // The stream failed: without the last line, no client mistakes this for the end.
            None => return None,
        };
        Some((sent, (feed, make, false)))
    });
    let sent = sent.flat_map(futures::stream::iter);
    let stopping = api.stopping.clone().cancelled_owned();
    let keep_alive = KeepAlive::new().interval(api.door.limits.keep_alive);
    Sse::new(sent.take_until(stopping)).keep_alive(keep_alive).into_response()
}

fn written((name, data): (Option<&'static str>, String)) -> Result<sse::Event, Infallible> {
    let event = sse::Event::default().data(data);
    Ok(match name {
        Some(name) => event.event(name),
        None => event,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(kind: &'static str, number: u64) -> Event {
        Event { kind, data: json!({ "type": kind, "sequence_number": number }) }
    }

    #[test]
    fn a_client_gets_what_comes_after_its_last_number() {
        let delta = "response.output_text.delta";
        assert!(since(None, event(delta, 0)).is_some());
        assert!(since(Some(3), event(delta, 3)).is_none());
        assert!(since(Some(3), event(delta, 4)).is_some());
    }

    #[test]
    fn a_client_that_heard_more_than_there_is_still_hears_the_end_once() {
        let last = "response.failed";
        assert!(since(Some(5), event(last, 5)).is_none());
        let late = since(Some(9), event(last, 5)).unwrap();
        assert_eq!(late.data["sequence_number"], 10);
    }
}
