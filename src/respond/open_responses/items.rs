//! The items of a conversation: parsed from a request and checked for consistency.
//!
//! | an item | is stored as |
//! |---|---|
//! | a text instead of items | one user message |
//! | `{role, content}` | a `message`, its text as a content part |
//! | `item_reference` | the item with that id in the earlier conversation |
//! | `function_call`, `function_call_output`, `reasoning`, `compaction` | unchanged, with an id |

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::Fields;
use crate::respond::Refused;

/// The maximum number of items in a conversation.
pub const MOST_ITEMS: usize = 2_000;
/// The maximum length of a call's id, in bytes.
const CALL_ID_BYTES: usize = 64;

/// The items for a model, the oldest first.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Conversation {
    /// All items.
    pub items: Vec<Value>,
    /// The number of items, at the end, that the request itself has.
    pub own: usize,
}

/// Parses `input`: a text, or a list of items. Items without an id get one from `ids`, which
/// receives the prefix.
pub(crate) fn read_items(
    input: Option<&Value>,
    ids: &mut dyn FnMut(&str) -> String,
) -> Result<Vec<Value>, Refused> {
    let list = match input {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::String(text)) => {
            let content = json!([{ "type": "input_text", "text": text }]);
            return Ok(vec![message("user", content, ids)]);
        }
        Some(Value::Array(list)) => list,
        Some(_) => return Err(Refused::invalid("input", "must be a text or a list of items")),
    };
    if list.len() > MOST_ITEMS {
        let many = format!("has {} items; at most {MOST_ITEMS} are taken", list.len());
        return Err(Refused::invalid("input", many));
    }
    let read = |(place, item): (usize, &Value)| read_item(item, &format!("input[{place}]"), ids);
    list.iter().enumerate().map(read).collect()
}

fn message(role: &str, content: Value, ids: &mut dyn FnMut(&str) -> String) -> Value {
    json!({
        "type": "message", "id": ids("msg"), "status": "completed", "role": role,
        "content": content,
    })
}

fn read_item(
    item: &Value,
    at: &str,
    ids: &mut dyn FnMut(&str) -> String,
) -> Result<Value, Refused> {
    let fields = Fields::of(item, at, "an item")?;
    let given = fields.map;
    let kind = match fields.text("type")? {
        Some(kind) => kind,
        None if given.contains_key("role") => "message",
        None if given.contains_key("id") => "item_reference",
        None => return Err(fields.wrong("type", "is missing")),
    };
    match kind {
        "message" => read_message(&fields, ids),
        "function_call" => {
            call_id(&fields)?;
            let arguments = fields.needed("arguments")?;
            if fields.needed("name")?.is_empty() {
                return Err(fields.wrong("name", "is empty"));
            }
            if !arguments.is_empty() && serde_json::from_str::<Value>(arguments).is_err() {
                return Err(fields.wrong("arguments", "is not JSON"));
            }
            Ok(kept(given, "fc", ids))
        }
        "function_call_output" => {
            call_id(&fields)?;
            match given.get("output") {
                Some(Value::String(_)) => {}
                Some(Value::Array(parts)) => parts_of(parts, &format!("{at}.output"), "user")?,
                _ => return Err(fields.wrong("output", "must be a text or a list of parts")),
            }
            Ok(kept(given, "fco", ids))
        }
        "reasoning" => {
            if !given.get("summary").is_some_and(Value::is_array) {
                return Err(fields.wrong("summary", "must be a list"));
            }
            let mut item = given.clone();
            item.retain(|_, value| !value.is_null());
            item.entry("id").or_insert_with(|| ids("rs").into());
            Ok(Value::Object(item))
        }
        "compaction" => {
            fields.needed("encrypted_content")?;
            let mut item = given.clone();
            if !item.get("id").is_some_and(Value::is_string) {
                item.insert("id".into(), ids("cmp").into());
            }
            Ok(Value::Object(item))
        }
        "item_reference" => {
            fields.needed("id")?;
            Ok(item.clone())
        }
        other => Err(fields.wrong(
            "type",
            &format!(
                "{other:?} is none of message, function_call, function_call_output, reasoning, \
                 compaction and item_reference"
            ),
        )),
    }
}

fn call_id(fields: &Fields<'_>) -> Result<(), Refused> {
    let id = fields.needed("call_id")?;
    if id.is_empty() || id.len() > CALL_ID_BYTES {
        return Err(fields.wrong("call_id", &format!("has 1 to {CALL_ID_BYTES} bytes")));
    }
    Ok(())
}

/// Returns an item with an id and a status added.
fn kept(given: &Map<String, Value>, prefix: &str, ids: &mut dyn FnMut(&str) -> String) -> Value {
    let mut item = given.clone();
    if !item.get("id").is_some_and(Value::is_string) {
        item.insert("id".into(), ids(prefix).into());
    }
    if !item.get("status").is_some_and(Value::is_string) {
        item.insert("status".into(), "completed".into());
    }
    Value::Object(item)
}

fn read_message(
    fields: &Fields<'_>,
    ids: &mut dyn FnMut(&str) -> String,
) -> Result<Value, Refused> {
    let role = fields.needed("role")?;
    if !["user", "assistant", "system", "developer"].contains(&role) {
        return Err(fields.wrong("role", "is none of user, assistant, system and developer"));
    }
    let content = match fields.map.get("content") {
        Some(Value::String(text)) if role == "assistant" => {
            json!([{ "type": "output_text", "text": text, "annotations": [] }])
        }
        Some(Value::String(text)) => json!([{ "type": "input_text", "text": text }]),
        Some(Value::Array(parts)) => {
            parts_of(parts, &fields.param("content"), role)?;
            Value::Array(parts.clone())
        }
        _ => return Err(fields.wrong("content", "must be a text or a list of parts")),
    };
    let mut item = fields.map.clone();
    item.insert("type".into(), "message".into());
    item.insert("content".into(), content);
    Ok(kept(&item, "msg", ids))
}

fn parts_of(parts: &[Value], at: &str, role: &str) -> Result<(), Refused> {
    let known: &[&str] = match role {
        "assistant" => &["output_text", "refusal"],
        _ => &["input_text", "input_image", "input_file", "input_video"],
    };
    for (place, part) in parts.iter().enumerate() {
        let at = format!("{at}[{place}]");
        let fields = Fields::of(part, &at, "a content part")?;
        let kind = fields.needed("type")?;
        if !known.contains(&kind) {
            let message = format!("{kind:?} is none of {}", known.join(", "));
            return Err(fields.wrong("type", &message));
        }
        match kind {
            "input_text" | "output_text" => drop(fields.needed("text")?),
            "refusal" => drop(fields.needed("refusal")?),
            "input_image"
                if fields.text("image_url")?.is_none() && fields.text("file_id")?.is_none() =>
            {
                return Err(fields.wrong("image_url", "is missing"));
            }
            "input_file" => {
                let sources = ["file_data", "file_url", "file_id"];
                if sources.iter().all(|source| !part.get(*source).is_some_and(Value::is_string)) {
                    return Err(fields.wrong("file_data", "or file_url is missing"));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

impl Conversation {
    /// Joins the earlier conversation and the items of a request.
    ///
    /// # Errors
    /// Fails when a reference or the output of a call matches nothing, or a call has no output.
    pub fn of(earlier: Vec<Value>, added: Vec<Value>) -> Result<Self, Refused> {
        let (before, own) = (earlier.len(), added.len());
        if before + own > MOST_ITEMS {
            let message = format!(
                "the conversation has {} items; at most {MOST_ITEMS} are taken; compact it",
                before + own
            );
            return Err(Refused::invalid("input", message));
        }
        let mut items = earlier;
        for (place, item) in added.into_iter().enumerate() {
            let item = match item["type"].as_str() {
                Some("item_reference") => {
                    let found = items.iter().find(|known| known["id"] == item["id"]);
                    found.cloned().ok_or_else(|| {
                        let message =
                            format!("no item of the conversation has the id {}", item["id"]);
                        Refused::invalid(format!("input[{place}].id"), message)
                    })?
                }
                _ => item,
            };
            items.push(item);
        }
        let conversation = Self { items, own };
        conversation.check(before)?;
        Ok(conversation)
    }

    /// Checks that every output has a call before it, and every call an output.
    fn check(&self, before: usize) -> Result<(), Refused> {
        let mut open: Vec<&str> = Vec::new();
        let mut known = HashSet::new();
        for (place, item) in self.items.iter().enumerate() {
            let id = item["call_id"].as_str().unwrap_or_default();
            match item["type"].as_str() {
                Some("function_call") => {
                    known.insert(id);
                    open.push(id);
                }
                Some("function_call_output") if !known.contains(id) => {
                    let place = place.saturating_sub(before);
                    let message = format!("no call before it has the call_id {id:?}");
                    return Err(Refused::invalid(format!("input[{place}].call_id"), message));
                }
                Some("function_call_output") => open.retain(|call| *call != id),
                _ => {}
            }
        }
        match open.first() {
            None => Ok(()),
            Some(call) => {
                let message = format!("the call {call:?} has no function_call_output");
                Err(Refused::invalid("input", message))
            }
        }
    }
}

/// Returns the text of the last user message; empty if there is none.
pub fn last_text(items: &[Value]) -> String {
    let user = |item: &&Value| item["type"] == "message" && item["role"] == "user";
    let Some(last) = items.iter().rev().find(user) else { return String::new() };
    let parts = last["content"].as_array().into_iter().flatten();
    let texts: Vec<&str> = parts.filter_map(|part| part["text"].as_str()).collect();
    texts.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(input: Value) -> Result<Vec<Value>, Refused> {
        let mut n = 0;
        read_items(Some(&input), &mut |prefix| {
            n += 1;
            format!("{prefix}_{n}")
        })
    }

    #[test]
    fn a_text_is_a_message_of_the_user() {
        let expected = json!([{ "type": "message", "id": "msg_1", "status": "completed",
            "role": "user", "content": [{ "type": "input_text", "text": "hi" }] }]);
        assert_eq!(Value::Array(read(json!("hi")).unwrap()), expected);
        assert_eq!(
            Value::Array(read(json!([{ "role": "user", "content": "hi" }])).unwrap()[..].to_vec())
                [0]["content"],
            expected[0]["content"]
        );
    }

    #[test]
    fn what_an_item_lacks_is_named_with_its_place() {
        for (item, param) in [
            (json!("x"), "input[0]"),
            (json!({ "content": "x" }), "input[0].type"),
            (json!({ "type": "message", "role": "robot", "content": "x" }), "input[0].role"),
            (json!({ "role": "user", "content": 3 }), "input[0].content"),
            (
                json!({ "role": "user", "content": [{ "type": "output_text", "text": "x" }] }),
                "input[0].content[0].type",
            ),
            (
                json!({ "role": "user", "content": [{ "type": "input_image" }] }),
                "input[0].content[0].image_url",
            ),
            (
                json!({ "type": "function_call", "name": "f", "arguments": "{}" }),
                "input[0].call_id",
            ),
            (
                json!({ "type": "function_call", "call_id": "c", "name": "f", "arguments": "{" }),
                "input[0].arguments",
            ),
            (json!({ "type": "function_call_output", "call_id": "c" }), "input[0].output"),
            (json!({ "type": "reasoning" }), "input[0].summary"),
            (json!({ "type": "web_search_call" }), "input[0].type"),
        ] {
            let refused = read(json!([item])).unwrap_err();
            assert_eq!(refused.param.as_deref(), Some(param), "{item}");
        }
        let refused = read(Value::Array(vec![json!({}); MOST_ITEMS + 1])).unwrap_err();
        assert_eq!(refused.param.as_deref(), Some("input"));
    }

    #[test]
    fn a_reference_stands_for_its_item_and_a_stray_one_is_refused() {
        let earlier = read(json!("hi")).unwrap();
        let again = vec![json!({ "type": "item_reference", "id": "msg_1" })];
        let conversation = Conversation::of(earlier.clone(), again.clone()).unwrap();
        assert_eq!(conversation.items, [earlier[0].clone(), earlier[0].clone()]);
        assert_eq!(conversation.own, 1);
        let refused = Conversation::of(Vec::new(), again).unwrap_err();
        assert_eq!(refused.param.as_deref(), Some("input[0].id"));
    }

    #[test]
    fn calls_and_their_outputs_go_together() {
        let call =
            json!({ "type": "function_call", "call_id": "c", "name": "f", "arguments": "{}" });
        let output = json!({ "type": "function_call_output", "call_id": "c", "output": "1" });
        let of = |earlier: &[&Value], added: &[&Value]| {
            let list = |items: &[&Value]| items.iter().map(|item| (*item).clone()).collect();
            Conversation::of(list(earlier), list(added)).map_err(|refused| refused.param.unwrap())
        };
        assert!(of(&[&call], &[&output]).is_ok());
        assert_eq!(of(&[&call], &[]).unwrap_err(), "input");
        assert_eq!(of(&[], &[&output, &call]).unwrap_err(), "input[0].call_id");
    }

    #[test]
    fn the_last_text_is_the_users() {
        let items = read(json!([
            { "role": "user", "content": "a" },
            { "role": "user", "content": [{ "type": "input_text", "text": "b" },
                { "type": "input_image", "image_url": "x" }, { "type": "input_text", "text": "c" }] },
            { "role": "assistant", "content": "d" },
        ]));
        assert_eq!(last_text(&items.unwrap()), "b\nc");
        assert_eq!(last_text(&[]), "");
    }
}
