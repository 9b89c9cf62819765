//! The events of a response as the events of a message.

use serde_json::{Value, json};

use super::answer::{calls, head, reason, usage};
use crate::respond::{Event, chat::Stops, response::ended};

/// An event: its name, and its data.
type Sent = (&'static str, Value);

/// A block that is being sent.
#[derive(Debug, PartialEq, Eq)]
struct Block {
    /// The item, and the part of a message.
    of: (String, Option<u64>),
    /// Its number for the client.
    index: u64,
    /// True if some of its text was sent.
    has_text: bool,
}

/// Converts the events of a response to events of a message.
#[derive(Debug)]
pub struct Events {
    head: Value,
    stops: Stops,
    open: Vec<Block>,
    next: u64,
}

impl Events {
    /// Creates a converter for a response.
    pub fn new(response: &Value, stops: Stops) -> Self {
        Self { head: head(response), stops, open: Vec::new(), next: 0 }
    }

    /// Returns the events for an event of the response.
    pub fn of(&mut self, event: &Event) -> Vec<(&'static str, String)> {
        let sent = self.converted(event).into_iter();
        sent.map(|(name, mut data)| {
            data["type"] = name.into();
            (name, data.to_string())
        })
        .collect()
    }

    fn converted(&mut self, event: &Event) -> Vec<Sent> {
        let data = &event.data;
        let text = || data["delta"].as_str().unwrap_or_default();
        let item = || data["item_id"].as_str().unwrap_or_default().to_owned();
        let place = || Some(data["content_index"].as_u64().unwrap_or_default());
        if self.stops.met().is_some() && !event.is_last() {
            return Vec::new();
        }
        match event.kind {
            "response.created" => vec![("message_start", json!({ "message": self.head }))],
            "response.output_text.delta" => self.said((item(), place()), text()),
            "response.refusal.delta" => self.said((item(), place()), text()),
            "response.content_part.done" => self.end_text(&(item(), place())),
            "response.reasoning_summary_part.added" => self.begin_thought(item()),
            "response.reasoning_summary_text.delta" | "response.reasoning.delta" => {
                self.thought(item(), text())
            }
            "response.output_item.done" if data["item"]["type"] == "reasoning" => {
                self.end_thought(&data["item"])
            }
            _ if event.is_last() => self.end(&data["response"]),
            _ => Vec::new(),
        }
    }

    /// Opens the block of a part, if it is not open.
    fn open(&mut self, of: (String, Option<u64>), block: Value, sent: &mut Vec<Sent>) -> usize {
        if let Some(at) = self.open.iter().position(|it| it.of == of) {
            return at;
        }
        let index = self.begin(block, sent);
        self.open.push(Block { of, index, has_text: false });
        self.open.len() - 1
    }

    fn begin(&mut self, block: Value, sent: &mut Vec<Sent>) -> u64 {
        let index = self.next;
        self.next += 1;
        sent.push(("content_block_start", json!({ "index": index, "content_block": block })));
        index
    }

    fn close(&mut self, of: &(String, Option<u64>)) -> Option<Sent> {
        let at = self.open.iter().position(|it| it.of == *of)?;
        let block = self.open.remove(at);
        Some(stop(block.index))
    }

    /// Sends a piece of a text, as far as the stops pass it.
    fn said(&mut self, of: (String, Option<u64>), piece: &str) -> Vec<Sent> {
        let piece = self.stops.feed(piece);
        let mut sent = Vec::new();
        if !piece.is_empty() {
            let at = self.open(of, json!({ "type": "text", "text": "" }), &mut sent);
            sent.push(delta(self.open[at].index, "text_delta", "text", &piece));
        }
        sent
    }

    fn end_text(&mut self, of: &(String, Option<u64>)) -> Vec<Sent> {
        // A stop does not reach from one block into the next.
        let rest = self.stops.rest();
        let mut sent = Vec::new();
        if !rest.is_empty() {
            let at = self.open(of.clone(), json!({ "type": "text", "text": "" }), &mut sent);
            sent.push(delta(self.open[at].index, "text_delta", "text", &rest));
        }
        sent.extend(self.close(of));
        sent
    }

    fn begin_thought(&mut self, item: String) -> Vec<Sent> {
        let mut sent = Vec::new();
        let block = json!({ "type": "thinking", "thinking": "", "signature": "" });
        let at = self.open((item, None), block, &mut sent);
        if self.open[at].has_text {
            sent.push(delta(self.open[at].index, "thinking_delta", "thinking", "\n\n"));
        }
        sent
    }

    fn thought(&mut self, item: String, piece: &str) -> Vec<Sent> {
        let mut sent = Vec::new();
        let block = json!({ "type": "thinking", "thinking": "", "signature": "" });
        let at = self.open((item, None), block, &mut sent);
        self.open[at].has_text = true;
        sent.push(delta(self.open[at].index, "thinking_delta", "thinking", piece));
        sent
    }

    fn end_thought(&mut self, item: &Value) -> Vec<Sent> {
        let of = (item["id"].as_str().unwrap_or_default().to_owned(), None);
        let signature = item["encrypted_content"].as_str().unwrap_or_default();
        let mut sent = Vec::new();
        match self.open.iter().find(|it| it.of == of) {
            Some(block) if !signature.is_empty() => {
                sent.push(delta(block.index, "signature_delta", "signature", signature));
            }
            None if !signature.is_empty() => {
                let block = json!({ "type": "redacted_thinking", "data": signature });
                let index = self.begin(block, &mut sent);
                sent.push(stop(index));
            }
            Some(_) | None => {}
        }
        sent.extend(self.close(&of));
        sent
    }

    fn end(&mut self, response: &Value) -> Vec<Sent> {
        if let Err(error) = ended(response) {
            let error = json!({ "type": "api_error", "message": error["message"] });
            return vec![("error", json!({ "error": error }))];
        }
        let mut sent: Vec<Sent> = self.open.drain(..).map(|block| stop(block.index)).collect();
        if self.stops.met().is_none() {
            for call in calls(response) {
                let input = call["input"].to_string();
                let mut begun = call;
                begun["input"] = json!({});
                let index = self.begin(begun, &mut sent);
                sent.push(delta(index, "input_json_delta", "partial_json", &input));
                sent.push(stop(index));
            }
        }
        let ended = json!({
            "stop_reason": reason(response, &self.stops),
            "stop_sequence": self.stops.met(),
        });
        sent.push(("message_delta", json!({ "delta": ended, "usage": usage(response) })));
        sent.push(("message_stop", json!({})));
        sent
    }
}

fn stop(index: u64) -> Sent {
    ("content_block_stop", json!({ "index": index }))
}

fn delta(index: u64, kind: &str, field: &str, text: &str) -> Sent {
    ("content_block_delta", json!({ "index": index, "delta": { "type": kind, field: text } }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::respond::messages::answer::{
        message,
        tests::{call, response, said, thought},
    };

    fn event(kind: &'static str, data: Value) -> Event {
        Event { kind, data }
    }

    /// The events of a thought, a text in two pieces, and a call.
    fn all(whole: &Value) -> Vec<Event> {
        let text = |delta: &str| json!({ "item_id": "m", "content_index": 0, "delta": delta });
        vec![
            event("response.created", json!({})),
            event("response.reasoning_summary_part.added", json!({ "item_id": "rs" })),
            event(
                "response.reasoning_summary_text.delta",
                json!({ "item_id": "rs", "delta": "hm" }),
            ),
            event("response.output_item.done", json!({ "item": thought("hm") })),
            event("response.output_text.delta", text("one t")),
            event("response.output_text.delta", text("wo")),
            event("response.content_part.done", json!({ "item_id": "m", "content_index": 0 })),
            event("response.completed", json!({ "response": whole })),
        ]
    }

    /// Builds the message as a client does.
    fn built(sent: &[(&str, String)]) -> Value {
        let mut message = Value::Null;
        let mut open = std::collections::BTreeSet::new();
        for (name, data) in sent {
            let data: Value = serde_json::from_str(data).unwrap();
            assert_eq!(data["type"], *name);
            let index = data["index"].as_u64().unwrap_or_default() as usize;
            match *name {
                "message_start" => message = data["message"].clone(),
                "content_block_start" => {
                    let content = message["content"].as_array_mut().unwrap();
                    assert_eq!(content.len(), index, "blocks are numbered in order");
                    content.push(data["content_block"].clone());
                    open.insert(index);
                }
                "content_block_delta" => {
                    assert!(open.contains(&index));
                    let block = &mut message["content"][index];
                    for (name, piece) in data["delta"].as_object().unwrap() {
                        let piece = piece.as_str().unwrap();
                        match name.as_str() {
                            "type" => {}
                            "partial_json" => block["input"] = serde_json::from_str(piece).unwrap(),
                            name => {
                                let text = block[name].as_str().unwrap_or_default().to_owned();
                                block[name] = (text + piece).into();
                            }
                        }
                    }
                }
                "content_block_stop" => assert!(open.remove(&index)),
                "message_delta" => {
                    for name in ["stop_reason", "stop_sequence"] {
                        message[name] = data["delta"][name].clone();
                    }
                    message["usage"] = data["usage"].clone();
                }
                "message_stop" => assert!(open.is_empty()),
                other => panic!("{other}"),
            }
        }
        message
    }

    #[test]
    fn the_events_build_the_message_also_where_it_is_cut() {
        for stop in [json!(null), json!(["tw"]), json!(["wo"]), json!(["none"])] {
            let stops =
                || Stops::of(&json!({ "stop_sequences": stop }), "stop_sequences", 4).unwrap();
            let whole = response(json!([thought("hm"), said("one two"), call("2")]));
            let mut events = Events::new(&whole, stops());
            let sent: Vec<_> = all(&whole).iter().flat_map(|event| events.of(event)).collect();
            assert_eq!(built(&sent), message(&whole, stops()).unwrap(), "{stop}");
            assert_eq!(sent.last().unwrap().0, "message_stop");
        }
    }

    #[test]
    fn a_failure_is_an_error_event() {
        let mut failed = response(json!([]));
        failed["status"] = "failed".into();
        failed["error"] = json!({ "code": "server_error", "message": "m" });
        let mut events = Events::new(&failed, Stops::default());
        let sent = events.of(&event("response.failed", json!({ "response": failed })));
        assert_eq!(sent[0].0, "error");
        assert!(sent[0].1.contains(r#""type":"api_error""#), "{sent:?}");
    }
}
