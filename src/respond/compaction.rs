//! Compactions: a conversation as a summary that stands in its place.
//!
//! The item is opaque to clients, as the protocol wants it, and no secret to them: it holds what a
//! model wrote of a conversation that they have. Another server's compactions are passed on as
//! they are.

use data_encoding::BASE64;
use serde_json::{Value, json};

/// What a compaction of this server begins with; the version is a part of it.
const MARK: &str = "moonswarm.1.";

/// What a model is told that is to compact a conversation.
pub const COMPACT_INSTRUCTIONS: &str = "Do not continue the conversation. Write a summary that \
    replaces it for an assistant that goes on without having seen it: what was asked, what was \
    decided and why, every name, number, path and identifier that may still matter, what was tried \
    and what came of it, and what is still open. Write plain text, nothing around it.";

/// A conversation after it was summarised: what the user said, and the summary of the whole.
pub fn compacted(items: &[Value], summary: &str, id: String) -> Vec<Value> {
    let said = |item: &&Value| item["type"] == "message" && item["role"] == "user";
    let mut kept: Vec<Value> = items.iter().filter(said).cloned().collect();
    let encoded = BASE64.encode(summary.as_bytes());
    kept.push(
        json!({ "type": "compaction", "id": id, "encrypted_content": format!("{MARK}{encoded}") }),
    );
    kept
}

/// The items as a model is given them: this server's compactions as messages, and of what came
/// before one nothing but the instructions of the developer.
pub(super) fn unfolded(items: &[Value]) -> Option<Vec<Value>> {
    let last = items.iter().rposition(|item| summary_of(item).is_some())?;
    let stays = |item: &&Value| item["role"] == "system" || item["role"] == "developer";
    let mut unfolded: Vec<Value> = items[..last].iter().filter(stays).cloned().collect();
    let summary = summary_of(&items[last])?;
    unfolded.push(json!({
        "type": "message", "role": "user",
        "content": [{ "type": "input_text",
            "text": format!("Summary of the conversation so far:\n\n{summary}") }],
    }));
    unfolded.extend(items[last + 1..].iter().cloned());
    Some(unfolded)
}

fn summary_of(item: &Value) -> Option<String> {
    let encoded = item["encrypted_content"].as_str()?.strip_prefix(MARK)?;
    String::from_utf8(BASE64.decode(encoded.as_bytes()).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(role: &str, text: &str) -> Value {
        json!({ "type": "message", "role": role, "content": [{ "text": text }] })
    }

    #[test]
    fn a_compaction_stands_for_what_was_before_it() {
        let items =
            [message("developer", "rules"), message("user", "a"), message("assistant", "b")];
        let mut folded = compacted(&items, "they said a and b", "cmp_1".to_owned());
        assert_eq!(folded.len(), 2);
        assert_eq!(folded[0], items[1]);
        assert!(!folded[1].to_string().contains("they said"));
        folded.insert(0, items[0].clone());
        folded.push(message("user", "c"));
        let unfolded = unfolded(&folded).unwrap();
        assert_eq!(unfolded.len(), 3);
        assert_eq!((&unfolded[0], &unfolded[2]), (&items[0], &folded[3]));
        assert!(unfolded[1].to_string().contains("they said a and b"));
    }

    #[test]
    fn another_servers_compaction_is_left_alone() {
        let foreign = json!({ "type": "compaction", "id": "c", "encrypted_content": "gAAAA" });
        assert_eq!(unfolded(&[foreign, message("user", "c")]), None);
    }
}
