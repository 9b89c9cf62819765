//! Server-sent events, read from the bytes as they come.

use std::pin::Pin;

use anyhow::{Context, Result};
use futures::{Stream, StreamExt};
use serde::de::DeserializeOwned;

use super::exit::Stop;
use crate::{
    engine::EventView,
    protocol::sse::{Cutter, SseError},
};

type Bytes = Pin<Box<dyn Stream<Item = reqwest::Result<Vec<u8>>> + Send>>;

/// Events as they happen.
pub struct Events<T = EventView> {
    bytes: Bytes,
    cutter: Cutter,
    ready: std::collections::VecDeque<Result<T, Stop>>,
}

impl<T: DeserializeOwned> Events<T> {
    pub(super) fn new(response: reqwest::Response) -> Self {
        let bytes = response.bytes_stream().map(|chunk| chunk.map(|chunk| chunk.to_vec()));
        Self { bytes: Box::pin(bytes), cutter: Cutter::default(), ready: Default::default() }
    }

    /// The next event; `None` where the stream ends.
    ///
    /// # Errors
    /// A connection that breaks, and a [`Stop`] where the daemon says why it cannot go on.
    ///
    /// # Cancel safety
    /// No event is lost when this is dropped.
    pub async fn next(&mut self) -> Result<Option<T>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some(event?));
            }
            let Some(chunk) = self.bytes.next().await else {
                return Ok(None);
            };
            let ready = &mut self.ready;
            self.cutter
                .feed(&chunk.context("read the events")?, |event| {
                    // An event's JSON carries its own number and kind.
                    ready.extend(match event.name.as_str() {
                        "problem" => serde_json::from_str::<EventView>(&event.data)
                            .ok()
                            .map(|it| Err(Stop::from_response(500, it.data.as_str()))),
                        _ => serde_json::from_str::<T>(&event.data).ok().map(Ok),
                    });
                    Ok::<_, SseError>(())
                })
                .map_err(|error| anyhow::anyhow!("failed to {error}"))?;
        }
    }
}
