//! Results and errors of tools, as a model reads them.

use rmcp::{
    ErrorData,
    model::{CallToolResult, ContentBlock, Resource},
};
use serde_json::Value;

/// The maximum length of the JSON in the text of a result, in bytes. The structured content has all
/// of it.
const TEXT: usize = 8 * 1_024;

/// The API did not answer.
#[derive(Debug, thiserror::Error)]
#[error("the host did not answer: {0}")]
pub struct Broken(
    /// The reason.
    pub String,
);

/// A successful call.
#[derive(Debug)]
pub(super) struct Done {
    /// The structured result: an object.
    pub(super) value: Value,
    /// One or two lines about it.
    pub(super) text: String,
    /// The resource with all of it, for a client that reads texts only.
    link: Option<Box<Resource>>,
    /// The content in place of the JSON, for a client that shows images and sounds.
    blocks: Vec<ContentBlock>,
    /// True if what the call began has failed.
    is_failed: bool,
}

/// The reason why a call has no result.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The arguments do not fit the tool.
    Arguments(String),
    /// The API refused the request.
    Refused { status: u16, code: String, detail: String },
    /// The API did not answer.
    Broken(Broken),
}

impl From<Broken> for Trouble {
    fn from(broken: Broken) -> Self {
        Self::Broken(broken)
    }
}

impl Done {
    /// Returns a result. A value that is no object is wrapped, as structured content must be one.
    pub(super) fn new(value: Value, text: impl Into<String>) -> Self {
        let value = match value {
            Value::Object(_) => value,
            other => serde_json::json!({ "value": other }),
        };
        Self { value, text: text.into(), link: None, blocks: Vec::new(), is_failed: false }
    }

    /// Marks a result as that of a failure.
    pub(super) fn failed(self) -> Self {
        Self { is_failed: true, ..self }
    }

    /// Links the resource that has all of the result. The link is sent if the text is cut.
    pub(super) fn linked(self, link: Option<Resource>) -> Self {
        Self { link: link.map(Box::new), ..self }
    }

    /// Shows these blocks in place of the JSON.
    pub(super) fn with_blocks(self, blocks: Vec<ContentBlock>) -> Self {
        Self { blocks, ..self }
    }

    /// Returns the result of the protocol.
    pub(super) fn into_result(self) -> CallToolResult {
        let Self { value, text, link, blocks, is_failed } = self;
        let json = value.to_string();
        let link = link.filter(|_| json.len() > TEXT);
        let shown = match json.len() {
            0..=TEXT => json,
            bytes => format!("{}… ({bytes} bytes; structuredContent has all)", cut(&json, TEXT)),
        };
        let mut result = match is_failed {
            true => CallToolResult::structured_error(value),
            false => CallToolResult::structured(value),
        };
        result.content = match blocks.is_empty() {
            true => vec![ContentBlock::text(format!("{text}\n{shown}"))],
            false => blocks,
        };
        result.content.extend(link.map(|link| ContentBlock::resource_link(*link)));
        result
    }
}

impl Trouble {
    /// Reads a refusal of the API.
    pub(super) fn refused(status: u16, body: &[u8]) -> Self {
        let problem: Value = serde_json::from_slice(body).unwrap_or_default();
        let text = |key: &str| problem[key].as_str().unwrap_or_default().to_owned();
        let mut detail = match text("detail") {
            detail if detail.is_empty() => text("title"),
            detail => detail,
        };
        if let Some(path) = problem["path"].as_str() {
            detail.push_str(&format!(" (at {path})"));
        }
        for key in ["violations", "findings"] {
            if let Some(list) = problem[key].as_array().filter(|list| !list.is_empty()) {
                let list = Value::from(list.as_slice()).to_string();
                detail.push_str(&format!("\n{key}: {}", cut(&list, TEXT)));
            }
        }
        Self::Refused { status, code: text("code"), detail }
    }

    /// Returns the error result: what happened, and what to do next.
    pub(super) fn into_result(self) -> CallToolResult {
        CallToolResult::error(vec![ContentBlock::text(self.text())])
    }

    /// Returns the error of a request that is no call of a tool.
    pub(super) fn into_error(self) -> ErrorData {
        let text = self.text();
        match self {
            Self::Refused { status: 404, .. } => ErrorData::resource_not_found(text, None),
            Self::Arguments(_) | Self::Refused { status: 400..500, .. } => {
                ErrorData::invalid_params(text, None)
            }
            Self::Refused { .. } | Self::Broken(_) => ErrorData::internal_error(text, None),
        }
    }

    /// Returns what happened, and what to do next.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Arguments(detail) => {
                format!("The arguments do not fit: {detail}\nNext: correct them and call again.")
            }
            Self::Broken(broken) => {
                format!("{broken}\nNext: call again; if it persists, ask a person to look at it.")
            }
            Self::Refused { status, code, detail } => {
                let next = next_step(code, *status);
                format!("{detail} ({code}, {status})\nNext: {next}")
            }
        }
    }
}

/// Returns what helps after a refusal.
fn next_step(code: &str, status: u16) -> &'static str {
    match code {
        "not_found" | "bad_id" => {
            "check the id; list_runs, list_blueprints, list_inbox and list_sessions show those that exist."
        }
        "forbidden_verb" | "forbidden_scope" | "forbidden" => {
            "this token may not do that; ask a person to do it, or for a token that may."
        }
        "self_approval" | "wrong_role" | "not_human" => {
            "leave it: a person answers it in the inbox. Wait with get_run."
        }
        "unauthenticated" | "token_revoked" => "ask a person for a new token.",
        "blueprint_invalid" => "correct the findings; check_blueprint and run_tests store nothing.",
        "invalid_result" => "correct the output as the violations say, and report it again.",
        "invalid_input" | "invalid_body" | "bad_query" | "unknown_field" => {
            "correct the arguments and call again."
        }
        "already_accepted" | "fenced" | "run_closed" => {
            "drop this task; its result is no longer wanted. Call next_task."
        }
        "foreign_task" => "this session does not have that task. Call next_task.",
        "wrong_seat" => "use a session that this token opened; open_session opens one.",
        "replaced" => "another poll of this session is active; do not poll twice at once.",
        "seq_ahead" => "call next_task without `after`.",
        "question_open" => "wait for the answer with next_task.",
        "revision_mismatch" => "read the value again with get_state, and decide anew.",
        "rate_limited" | "busy" => "wait a few seconds and call again.",
        _ if status >= 500 || status == 429 => "wait a few seconds and call again.",
        _ => "search_docs with the code in parentheses explains it.",
    }
}

/// Returns the beginning of a text, at most `most` bytes.
pub(super) fn cut(text: &str, most: usize) -> &str {
    let mut end = most.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(result: &CallToolResult) -> String {
        serde_json::to_value(result).unwrap()["content"][0]["text"].as_str().unwrap().to_owned()
    }

    #[test]
    fn a_refusal_says_what_to_do_next() {
        let problem = br#"{"status":409,"code":"fenced","title":"t","detail":"over"}"#;
        let result = Trouble::refused(409, problem).into_result();
        assert_eq!(result.is_error, Some(true));
        let said = text(&result);
        assert!(said.starts_with("over (fenced, 409)\nNext: drop this task"), "{said}");
        let result = Trouble::refused(503, b"not JSON").into_result();
        assert!(text(&result).contains("call again"));
    }

    #[test]
    fn a_result_is_an_object_with_a_text() {
        let done = Done::new(serde_json::json!([1]), "one").into_result();
        assert_eq!(done.structured_content, Some(serde_json::json!({"value": [1]})));
        assert_eq!(text(&done), "one\n{\"value\":[1]}");
        let long = Done::new("é".repeat(TEXT).into(), "long");
        let long = long.linked(Some(Resource::new("moonswarm://runs/r", "r"))).into_result();
        assert!(text(&long).len() < TEXT + 200);
        assert_eq!(serde_json::to_value(&long).unwrap()["content"][1]["type"], "resource_link");
    }
}
