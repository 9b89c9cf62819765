//! The streams of the command lines: lines of JSON while they work, and what they came to.

use serde_json::{Value, json};

use super::{
    profile::{Profile, Stream},
    prompt::{self, Conversation, is_id},
};
use crate::{
    environment::Scrubber,
    journal::Usage,
    middleware::{Short, TaskDone},
    operator::{Task, read_usage},
    protocol::{Failure, Json, ModelDelta, failure::kind},
};

/// The maximum size of a shown argument of a tool, in bytes.
const SHOWN: usize = 200;
/// The maximum size of an answer, in bytes.
const ANSWER: usize = 8 << 20;

/// Reads the stream of one attempt.
pub(in crate::operator) struct Listener<'a> {
    profile: &'a Profile,
    task: &'a Task,
    secrets: &'a Scrubber,
    /// The usage of the conversation before this attempt.
    earlier: Usage,
    heard: Received,
}

/// The content of the stream so far.
#[derive(Debug, Default)]
struct Received {
    /// The id of the conversation.
    conversation: Option<String>,
    /// The answer: the last message, unless the end has one.
    answer: String,
    /// The number of messages, which are the items of the answer.
    messages: usize,
    usage: Option<Usage>,
    /// The usage of the whole conversation, from a stream that reports that.
    total: Option<Usage>,
    /// The end of the stream: none, or what went wrong.
    end: Option<Result<(), Failure>>,
}

impl<'a> Listener<'a> {
    pub(super) fn new(
        profile: &'a Profile,
        task: &'a Task,
        earlier: Usage,
        secrets: &'a Scrubber,
    ) -> Self {
        Self { profile, task, secrets, earlier, heard: Received::default() }
    }

    /// Takes a line of stdout. One that is not of the stream is ignored: programs print notices.
    pub(in crate::operator) fn line(&mut self, line: &str) {
        let stream = self.profile.stream;
        if stream == Stream::Text {
            if self.heard.answer.len() + line.len() < ANSWER {
                self.heard.answer.push_str(line);
                self.heard.answer.push('\n');
            }
            return;
        }
        // Without secrets before any of it is passed on: a failure may quote the key that was refused.
        let event = serde_json::from_str::<Value>(line);
        let Ok(event) = event.and_then(|event| self.secrets.scrub_value(event)) else { return };
        match stream {
            Stream::ClaudeCode => self.claude_code(&event),
            Stream::Codex => self.codex(&event),
            Stream::Gemini => self.gemini(&event),
            Stream::Text => {}
        }
    }

    fn claude_code(&mut self, event: &Value) {
        self.conversation(&event["session_id"]);
        match event["type"].as_str() {
            Some("assistant") => {
                for block in event["message"]["content"].as_array().into_iter().flatten() {
                    match block["type"].as_str() {
                        Some("text") => self.message(text(&block["text"])),
                        Some("tool_use") => self.tool(text(&block["name"]), &block["input"]),
                        _ => {}
                    }
                }
            }
            Some("result") => {
                let used = &event["usage"];
                // Tokens read from and written to a cache are not included in `input_tokens`.
                let of_cache = ["cache_read_input_tokens", "cache_creation_input_tokens"];
                let input = used["input_tokens"].as_u64().map(|plain| {
                    let of_cache = of_cache.iter().filter_map(|name| used[*name].as_u64());
                    of_cache.fold(plain, u64::saturating_add)
                });
                self.heard.usage = read_usage(&json!({
                    "input": input, "output": used["output_tokens"],
                    "cached": used["cache_read_input_tokens"], "cost": event["total_cost_usd"],
                }));
                let answer = match &event["structured_output"] {
                    Value::Null => text(&event["result"]).to_owned(),
                    value => value.to_string(),
                };
                let subtype = text(&event["subtype"]);
                let is_error = event["is_error"] == true || !matches!(subtype, "success" | "");
                let failure = match subtype {
                    _ if !is_error => None,
                    "error_max_turns" => Some(self.turns()),
                    _ if answer.is_empty() => Some(self.failed(subtype)),
                    _ => Some(self.failed(&answer)),
                };
                self.heard.end = Some(match failure {
                    Some(failure) => Err(failure),
                    None => {
                        self.heard.answer = answer;
                        Ok(())
                    }
                });
            }
            _ => {}
        }
    }

    fn codex(&mut self, event: &Value) {
        self.conversation(&event["thread_id"]);
        let item = &event["item"];
        match (event["type"].as_str(), item["type"].as_str()) {
            (Some("item.completed"), Some("agent_message")) => self.message(text(&item["text"])),
            (Some("item.started"), Some("command_execution")) => {
                self.tool("command", &item["command"]);
            }
            (Some("item.completed"), Some("file_change")) => self.tool("file", &item["changes"]),
            (Some("item.started"), Some("mcp_tool_call")) => {
                self.tool(text(&item["tool"]), &item["arguments"]);
            }
            (Some("item.started"), Some("web_search")) => self.tool("web_search", &item["query"]),
            (Some("turn.completed"), _) => {
                let mut usage = event["usage"].clone();
                usage["cached"] = usage["cached_input_tokens"].clone();
                usage["reasoning"] = usage["reasoning_output_tokens"].clone();
                // It counts the whole conversation, also what was said before this attempt.
                let total = read_usage(&usage);
                self.heard.usage = total.as_ref().map(|total| since(total, &self.earlier));
                self.heard.total = total;
                self.heard.end = Some(Ok(()));
            }
            (Some("turn.failed"), _) => {
                self.heard.end = Some(Err(self.failed(text(&event["error"]["message"]))));
            }
            (Some("error"), _) => {
                self.heard.end = Some(Err(self.failed(text(&event["message"]))));
            }
            _ => {}
        }
    }

    fn gemini(&mut self, event: &Value) {
        self.conversation(&event["session_id"]);
        match event["type"].as_str() {
            Some("message") if event["role"] == "assistant" => {
                let content = text(&event["content"]);
                if event["delta"] == true && self.heard.messages > 0 {
                    self.more(content);
                } else {
                    self.message(content);
                }
            }
            Some("tool_use") => {
                self.tool(text(&event["tool_name"]), &event["parameters"]);
                // What it says after a tool is a message of its own.
                self.heard.messages += usize::from(!self.heard.answer.is_empty());
                self.heard.answer.clear();
            }
            Some("result") => {
                let mut usage = event["stats"].clone();
                usage["input"] = usage["input_tokens"].clone();
                self.heard.usage = read_usage(&usage);
                self.heard.end = Some(match event["status"].as_str() {
                    Some("error") => Err(self.failed(text(&event["error"]["message"]))),
                    _ => Ok(()),
                });
            }
            _ => {}
        }
    }

    fn conversation(&mut self, id: &Value) {
        if let Some(id) = id.as_str().filter(|id| is_id(id)) {
            self.heard.conversation = Some(id.to_owned());
        }
    }

    /// A message begins; the last one is the answer.
    fn message(&mut self, message: &str) {
        self.heard.messages += 1;
        self.heard.answer.clear();
        self.more(message);
    }

    fn more(&mut self, delta: &str) {
        if self.heard.answer.len() + delta.len() > ANSWER {
            return;
        }
        self.heard.answer.push_str(delta);
        let item = self.heard.messages.saturating_sub(1);
        self.task.reporter.delta(ModelDelta::Text { item, part: 0, delta: delta.to_owned() });
    }

    fn tool(&self, name: &str, arguments: &Value) {
        let shown = match arguments {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            other => other.to_string(),
        };
        let shown: String = shown.chars().take(SHOWN).collect();
        self.task.reporter.progress(json!({ "tool": name, "arguments": shown }).into());
    }

    fn turns(&self) -> Failure {
        let message = format!("`{}` reached its maximum of turns", self.profile.program);
        Failure::new(kind::LIMIT, message)
    }

    fn failed(&self, why: &str) -> Failure {
        let why: String = why.chars().take(2_000).collect();
        Failure::new(kind::MODEL, format!("`{}` failed: {why}", self.profile.program)).retryable()
    }

    /// Returns what the attempt came to, for a program that ended with success or with a failure of
    /// its process.
    ///
    /// # Errors
    /// Returns the failure that the stream names, or that of the process, with what was used.
    pub(in crate::operator) fn end(
        self,
        process: Result<(), Failure>,
    ) -> Result<TaskDone, Box<Short>> {
        let Received { conversation, answer, usage, total, end, .. } = self.heard;
        let failure = match (end, process) {
            (Some(Err(failure)), _) | (None, Err(failure)) => Some(failure),
            (Some(Ok(())), _) => None,
            (None, Ok(())) if self.profile.stream == Stream::Text => None,
            (None, Ok(())) => {
                let message = format!("`{}` ended without a result", self.profile.program);
                Some(Failure::new(kind::PROCESS, message).retryable())
            }
        };
        if let Some(failure) = failure {
            return Err(Box::new(Short { failure, usage, effects: Vec::new() }));
        }
        let output = match &self.task.agent.output {
            Some(_) => json_in(&answer),
            None => Value::String(answer.trim_end_matches('\n').to_owned()),
        };
        let conversation = conversation.map(|id| Conversation { id, used: total });
        let kept = conversation.and_then(|it| prompt::kept(self.task, &it));
        let effects = kept.into_iter().collect();
        Ok(TaskDone { output: Json::from(output), usage, effects })
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Returns the usage since an earlier total. A total that is smaller has begun anew.
fn since(total: &Usage, earlier: &Usage) -> Usage {
    let counts =
        |of: &Usage| [of.input_tokens, of.output_tokens, of.cached_tokens, of.reasoning_tokens];
    let mut pairs = counts(total).into_iter().zip(counts(earlier));
    if pairs.any(|(total, earlier)| total.unwrap_or(0) < earlier.unwrap_or(0)) {
        return total.clone();
    }
    let less = |total: Option<u64>, earlier: Option<u64>| {
        total.map(|total| total.saturating_sub(earlier.unwrap_or(0)))
    };
    Usage {
        input_tokens: less(total.input_tokens, earlier.input_tokens),
        output_tokens: less(total.output_tokens, earlier.output_tokens),
        cached_tokens: less(total.cached_tokens, earlier.cached_tokens),
        reasoning_tokens: less(total.reasoning_tokens, earlier.reasoning_tokens),
        cost: total.cost.clone(),
    }
}

/// Returns the JSON of an answer: all of it, or the block in it; else its text, for an agent whose
/// output is one.
fn json_in(answer: &str) -> Value {
    let answer = answer.trim();
    let block = || {
        let inner = answer.split_once("```")?.1.rsplit_once("```")?.0;
        Some(inner.strip_prefix("json").unwrap_or(inner))
    };
    serde_json::from_str(answer)
        .ok()
        .or_else(|| serde_json::from_str(block()?).ok())
        .unwrap_or_else(|| Value::String(answer.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_of_a_conversation_is_that_since_its_earlier_total() {
        let used = |input, output| Usage {
            input_tokens: Some(input),
            output_tokens: Some(output),
            ..Usage::default()
        };
        assert_eq!(since(&used(20, 6), &Usage::default()), used(20, 6));
        assert_eq!(since(&used(20, 6), &used(12, 5)), used(8, 1));
        assert_eq!(since(&used(9, 6), &used(12, 5)), used(9, 6), "it has begun anew");
    }

    #[test]
    fn an_answer_is_json_or_has_a_block_of_it_or_is_a_text() {
        assert_eq!(json_in(" {\"a\":1}\n"), json!({"a": 1}));
        assert_eq!(json_in("Here:\n```json\n[1]\n```\nDone."), json!([1]));
        assert_eq!(json_in("```\n7\n```"), json!(7));
        assert_eq!(json_in("not JSON ``` at all"), json!("not JSON ``` at all"));
    }
}
