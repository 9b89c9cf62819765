//! Compactions: items that replace a conversation by its summary.
//!
//! The item is opaque to clients, as the protocol requires, but not secret: it contains a model's
//! summary of a conversation that they know. Compactions of other servers are passed on unchanged.

use data_encoding::BASE64;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The prefix of a compaction made by this server, including the version.
const MARK: &str = "moonswarm.1.";

/// The instructions for a model that compacts a conversation.
pub const COMPACT_INSTRUCTIONS: &str = "Do not continue the conversation. Write a summary that \
    replaces it for an assistant that goes on without having seen it: what was asked, what was \
    decided and why, every name, number, path and identifier that may still matter, what was tried \
    and what came of it, and what is still open. Write plain text, nothing around it.";

/// The content of a compaction.
#[derive(Serialize, Deserialize)]
struct Compacted {
    summary: String,
    /// System and developer messages, which are not part of the summarized conversation.
    rules: Vec<Value>,
}

fn is_rule(item: &&Value) -> bool {
    item["type"] == "message" && (item["role"] == "system" || item["role"] == "developer")
}

/// Returns the item that replaces a conversation.
pub fn compacted(items: &[Value], summary: &str, id: &str) -> Value {
    let rules = unfolded(items).unwrap_or_else(|| items.to_vec());
    let rules = rules.iter().filter(is_rule).cloned().collect();
    let held = Compacted { summary: summary.to_owned(), rules };
    let held = serde_json::to_vec(&held).expect("a summary is plain data");
    let content = format!("{MARK}{}", BASE64.encode(&held));
    json!({ "type": "compaction", "id": id, "encrypted_content": content })
}

/// Expands the last compaction of this server to a message, for a model. Of the items before it,
/// only system and developer messages remain. Returns `None` if there is no such compaction.
pub(super) fn unfolded(items: &[Value]) -> Option<Vec<Value>> {
    let (last, held) = items.iter().enumerate().rev().find_map(|(at, it)| Some((at, read(it)?)))?;
    let mut unfolded: Vec<Value> = items[..last].iter().filter(is_rule).cloned().collect();
    unfolded.extend(held.rules);
    unfolded.push(json!({
        "type": "message", "role": "user",
        "content": [{ "type": "input_text",
            "text": format!("Summary of the conversation so far:\n\n{}", held.summary) }],
    }));
    unfolded.extend(items[last + 1..].iter().cloned());
    Some(unfolded)
}

fn read(item: &Value) -> Option<Compacted> {
    let encoded = item["encrypted_content"].as_str()?.strip_prefix(MARK)?;
    serde_json::from_slice(&BASE64.decode(encoded.as_bytes()).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(role: &str, text: &str) -> Value {
        json!({ "type": "message", "role": role, "content": [{ "text": text }] })
    }

    #[test]
    fn a_compaction_stands_for_what_was_before_it_but_for_the_rules() {
        let items =
            [message("developer", "rules"), message("user", "a"), message("assistant", "b")];
        let folded = compacted(&items, "they said a and b", "cmp_1");
        assert!(!folded.to_string().contains("they said"));
        let unfolded = super::unfolded(&[folded.clone(), message("user", "c")]).unwrap();
        assert_eq!(unfolded.len(), 3);
        assert_eq!((&unfolded[0], &unfolded[2]), (&items[0], &message("user", "c")));
        assert!(unfolded[1].to_string().contains("they said a and b"));
        let again = compacted(&[folded, message("user", "c")], "and c", "cmp_2");
        let unfolded = super::unfolded(&[again]).unwrap();
        assert_eq!((unfolded.len(), &unfolded[0]), (2, &items[0]), "the rules stay");
        assert!(!unfolded[1].to_string().contains("they said"));
    }

    #[test]
    fn another_servers_compaction_is_left_alone() {
        let foreign = json!({ "type": "compaction", "id": "c", "encrypted_content": "gAAAA" });
        assert_eq!(unfolded(&[foreign, message("user", "c")]), None);
    }
}
