//! Server-sent events, read from the bytes as they come.

use std::pin::Pin;

use anyhow::{Context, Result};
use futures::{Stream, StreamExt};

use super::exit::Stop;
use crate::engine::EventView;

/// Cuts a byte stream into the data of its events. Comments, and fields other than `data`, are
/// dropped: an event's JSON carries its own number and kind.
#[derive(Debug, Default)]
struct Cutter {
    line: Vec<u8>,
    data: String,
    after_cr: bool,
}

impl Cutter {
    fn feed(&mut self, bytes: &[u8], out: &mut Vec<String>) {
        for &byte in bytes {
            let after_cr = std::mem::replace(&mut self.after_cr, byte == b'\r');
            match byte {
                b'\n' if after_cr => {}
                b'\n' | b'\r' => self.end_line(out),
                _ => self.line.push(byte),
            }
        }
    }

    fn end_line(&mut self, out: &mut Vec<String>) {
        let line = String::from_utf8_lossy(&std::mem::take(&mut self.line)).into_owned();
        if line.is_empty() {
            if !self.data.is_empty() {
                out.push(std::mem::take(&mut self.data));
            }
        } else if let Some(data) = line.strip_prefix("data:") {
            if !self.data.is_empty() {
                self.data.push('\n');
            }
            self.data.push_str(data.strip_prefix(' ').unwrap_or(data));
        }
    }
}

type Bytes = Pin<Box<dyn Stream<Item = reqwest::Result<Vec<u8>>> + Send>>;

/// A run's events as they happen.
pub struct Events {
    bytes: Bytes,
    cutter: Cutter,
    ready: std::collections::VecDeque<EventView>,
}

impl Events {
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
    pub async fn next(&mut self) -> Result<Option<EventView>> {
        loop {
            match self.ready.pop_front() {
                Some(event) if event.kind == "problem" => {
                    return Err(Stop::from_response(500, event.data.as_str()).into());
                }
                Some(event) => return Ok(Some(event)),
                None => {}
            }
            let Some(chunk) = self.bytes.next().await else {
                return Ok(None);
            };
            let mut cut = Vec::new();
            self.cutter.feed(&chunk.context("read the events")?, &mut cut);
            self.ready.extend(cut.iter().filter_map(|data| serde_json::from_str(data).ok()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(chunks: &[&str]) -> Vec<String> {
        let mut cutter = Cutter::default();
        let mut out = Vec::new();
        for chunk in chunks {
            cutter.feed(chunk.as_bytes(), &mut out);
        }
        out
    }

    #[test]
    fn an_event_is_whole_wherever_the_chunks_are_cut() {
        let text = "id: 1\nevent: log\ndata: {\"a\":\"ü\"}\n\n: ping\n\ndata:x\r\ndata:y\r\n\r\n";
        let whole = cut(&[text]);
        assert_eq!(whole, ["{\"a\":\"ü\"}", "x\ny"]);
        let mut cutter = Cutter::default();
        let mut out = Vec::new();
        for byte in text.as_bytes() {
            cutter.feed(&[*byte], &mut out);
        }
        assert_eq!(out, whole);
    }

    #[test]
    fn an_event_without_its_blank_line_is_not_there_yet() {
        assert!(cut(&["data: 1\n"]).is_empty());
    }
}
