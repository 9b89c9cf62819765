//! The variables of a flow at a step, as the API shows them.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::protocol::{Json, RunId, text::floor_char_boundary};

/// The calls of a flow, with their variables, at the moment when it requested a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LocalsView {
    /// The run.
    #[schema(value_type = String)]
    pub run: RunId,
    /// The step.
    pub step: u32,
    /// The step that the flow itself requested: another one for a part of a composite or of a model's
    /// loop.
    pub requested: u32,
    /// The kind of that step: task, timer, signal, child, state, local.
    pub kind: String,
    /// The name of that step.
    pub name: String,
    /// The blueprint that was replayed: `name@hash`.
    pub blueprint: String,
    /// The form of the flow.
    pub flow: FlowForm,
    /// The branch that requested the step, then those around it from the innermost on, then others; at
    /// most 16. Empty if the flow has no calls: it is a table, or one agent is asked.
    pub branches: Vec<LocalsBranch>,
    /// The number of other branches.
    pub more_branches: usize,
    /// The step before this one.
    pub previous: Option<u32>,
    /// The step after this one.
    pub next: Option<u32>,
}

/// The form of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FlowForm {
    /// A Luau function. Only it has locals.
    Script,
    /// A table of nodes.
    Table,
    /// One agent is asked in place of a flow: the run is a response.
    Agent,
}

/// A branch of a flow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LocalsBranch {
    /// Its name with those around it: `map, item 2`; absent for the flow's own function.
    pub branch: Option<String>,
    /// Its scope; empty for the flow's own function.
    pub scope: String,
    /// The step that it waits for.
    pub step: Option<u32>,
    /// The author's calls in progress, the innermost first; at most 20.
    pub frames: Vec<LocalsFrame>,
    /// The number of calls around those.
    pub more_frames: usize,
}

/// A call that was in progress.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LocalsFrame {
    /// The function's name, if it has one.
    pub function: Option<String>,
    /// The file in the blueprint.
    pub file: String,
    /// The line that it was in.
    pub line: u32,
    /// The text of that line; absent for a token that may not read the blueprint.
    pub text: Option<String>,
    /// Its arguments, its locals in the order of their declaration, and its upvalues.
    pub variables: Vec<LocalsVariable>,
}

/// A variable of a call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LocalsVariable {
    /// The name; `...[n]` for an argument without one.
    pub name: String,
    /// The role.
    pub role: LocalsRole,
    /// The type of the value in Lua; `null` for `swarm.null`.
    #[serde(rename = "type")]
    pub of_type: String,
    /// The value. An object whose first key begins with `$` stands for what is not shown: `$text`,
    /// `$bytes`, `$number`, `$function`, `$object`, `$cycle`, `$table`, `$more`, `$cut`, `$type`.
    #[schema(value_type = serde_json::Value)]
    pub value: Json,
}

/// The role of a variable in a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LocalsRole {
    /// An argument.
    Argument,
    /// A local.
    Local,
    /// A local of a function around this one.
    Upvalue,
}

impl LocalsRole {
    /// Returns the word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Argument => "argument",
            Self::Local => "local",
            Self::Upvalue => "upvalue",
        }
    }
}

impl LocalsVariable {
    /// Returns the value as one line of text, of at most so many bytes and a mark.
    pub fn line(&self, most: usize) -> String {
        let value = self.value.to_value();
        let mut line = String::new();
        match (&value, self.of_type.as_str()) {
            (Value::Null, of_type @ ("nil" | "null")) => line.push_str(of_type),
            _ => write(&value, most, &mut line),
        }
        if line.len() > most {
            line.truncate(floor_char_boundary(&line, most));
            line.push('…');
        }
        line
    }
}

/// Writes a value until the line is full.
fn write(value: &Value, most: usize, line: &mut String) {
    if line.len() > most {
        return;
    }
    match value {
        Value::Array(items) => {
            line.push('[');
            for (n, item) in items.iter().enumerate().take_while(|(n, _)| *n <= most) {
                line.push_str(if n == 0 { "" } else { ", " });
                write(item, most, line);
            }
            line.push(']');
        }
        Value::Object(members) => match mark(members) {
            Some(mark) => line.push_str(&mark),
            None => {
                line.push('{');
                for (n, (name, member)) in members.iter().enumerate() {
                    if line.len() > most {
                        return;
                    }
                    line.push_str(if n == 0 { "" } else { ", " });
                    match name.as_str() {
                        "$more" => line.push_str(&format!("… {member} more")),
                        _ => {
                            line.push_str(&format!("{name}: "));
                            write(member, most, line);
                        }
                    }
                }
                line.push('}');
            }
        },
        other => line.push_str(&other.to_string()),
    }
}

/// Returns the words for an object that stands for what is not shown.
fn mark(members: &serde_json::Map<String, Value>) -> Option<String> {
    let word = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let (name, value) = members.iter().next()?;
    Some(match (name.as_str(), members.len()) {
        ("$text", 2) => {
            format!("{}… ({} bytes)", value.to_string().trim_end_matches('"'), members["bytes"])
        }
        ("$bytes", 1) => format!("<{value} bytes>"),
        ("$number", 1) => word(value),
        ("$object" | "$type", 1) => format!("<{}>", word(value)),
        ("$cycle", 1) => format!("<cycle {}>", word(value)),
        ("$more", 1) => format!("… {value} more"),
        ("$cut" | "$table", 1) => "…".to_owned(),
        ("$function", 1) => {
            let name = value["name"].as_str().map(|name| format!(" {name}")).unwrap_or_default();
            let file = value["file"].as_str();
            let at = file.map(|file| format!(" {file}:{}", value["line"])).unwrap_or_default();
            format!("<function{name}{at}>")
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn line(value: Value, of_type: &str) -> String {
        let value = Json::from(value);
        let of_type = of_type.to_owned();
        LocalsVariable { name: "x".into(), role: LocalsRole::Local, of_type, value }.line(80)
    }

    #[test]
    fn a_value_is_a_line_and_what_is_not_shown_has_words() {
        assert_eq!(line(json!(null), "nil"), "nil");
        assert_eq!(line(json!(null), "null"), "null");
        assert_eq!(line(json!({ "a": [1, "x"], "b": null }), "table"), r#"{a: [1, "x"], b: null}"#);
        assert_eq!(line(json!([1, { "$more": 9 }]), "table"), "[1, … 9 more]");
        assert_eq!(line(json!({ "$more": 3, "a": 1 }), "table"), "{… 3 more, a: 1}");
        assert_eq!(line(json!({ "$object": "ctx" }), "table"), "<ctx>");
        let function = json!({ "$function": { "name": "f", "file": "m.lua", "line": 3 } });
        assert_eq!(line(function, "function"), "<function f m.lua:3>");
        assert_eq!(line(json!({ "$function": {} }), "function"), "<function>");
        assert_eq!(line(json!({ "$text": "ab", "bytes": 9000 }), "string"), "\"ab… (9000 bytes)");
        assert_eq!(
            line(json!([[{ "$cycle": "$" }, { "$cut": true }]]), "table"),
            "[[<cycle $>, …]]"
        );
        let long = line(json!(vec!["é".repeat(9); 9_000]), "table");
        assert!(long.len() < 90 && long.ends_with('…'), "{long}");
    }
}
