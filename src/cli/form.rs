//! A task for people at a terminal: what it asks, as text, and its form, field by field.

use std::io;

use anyhow::Result;
use serde_json::{Map, Value, json};

use super::{
    follow::title,
    render::{printable, unix_ms},
};
use crate::{
    blueprint::{Field, Form, default_prompt},
    engine::TaskView,
    protocol::Json,
    protocol::plain::{indented, one_line},
};

/// A task as a person reads it before they answer.
///
/// # Errors
/// None that a view can have; JSON that cannot be written.
pub fn shown(task: &TaskView) -> Result<String> {
    let mut text = format!(
        "{}  {}\nrun {} step {} {}\n",
        task.id,
        title(task),
        task.run,
        task.step,
        task.state
    );
    if !task.by.is_empty() {
        text.push_str(&format!("asks {}\n", printable(&task.by.join(", "))));
    }
    if let Some(required) = task.required.filter(|required| *required > 1) {
        text.push_str(&format!("{} of {required} have answered\n", task.answers.len()));
    }
    for answer in &task.answers {
        let output = printable(answer.output.as_str());
        text.push_str(&format!("  {} at {}: {output}\n", printable(&answer.by), answer.at));
    }
    if let Some(at) = &task.expires_at {
        text.push_str(&format!("expires {at}\n"));
    }
    if let Some(count) = task.reminders.filter(|count| *count > 0) {
        text.push_str(&format!("recalled {count} times\n"));
    }
    let input = task.input.as_ref().map_or(Value::Null, Json::to_value);
    // A prompt without a template is the input.
    let is_input = task.prompt.as_ref() == Some(&default_prompt(&input));
    if !is_input && task.input.is_some() {
        text.push_str(&format!("input: {}\n", serde_json::to_string_pretty(&input)?));
    }
    let is_empty = is_input && input.is_null();
    if let Some(prompt) = task.prompt.as_ref().filter(|_| !is_empty) {
        text.push_str(&format!("prompt:\n  {}\n", indented(prompt, "  ")));
    }
    match (&task.form, &task.output_schema) {
        (Some(form), _) => {
            text.push_str("answer:\n");
            text.extend(form.fields.iter().map(|field| format!("  {}\n", line(field))));
        }
        (None, Some(schema)) => {
            let schema = serde_json::to_string_pretty(&schema.to_value())?;
            text.push_str(&format!("answer: {schema}\n"));
        }
        (None, None) => {}
    }
    if let Some(revision) = &task.revision {
        text.push_str(&format!("revision {revision}\n"));
    }
    if let Some(command) = &task.command {
        text.push_str(&format!("→ {}\n", one_line(command)));
    }
    Ok(text)
}

/// A field in a line: its name, what fits, and what it is for.
fn line(field: &Field) -> String {
    let name = field.name.as_deref().unwrap_or("the answer");
    let kind = match field.r#type.as_str() {
        "choice" => choices(field),
        "boolean" => "yes or no".to_owned(),
        "json" => "JSON".to_owned(),
        other => other.to_owned(),
    };
    let mut text = format!("{}: {kind}", printable(name));
    if field.label != name && field.name.is_some() {
        text.push_str(&format!(" ({})", printable(&field.label)));
    }
    match &field.default {
        Some(default) => text.push_str(&format!(" [{}]", printable(default.as_str()))),
        None if !field.required => text.push_str(" (may be left out)"),
        None => {}
    }
    if let Some(what) = &field.description {
        text.push_str(&format!(" - {}", printable(what)));
    }
    text
}

fn choices(field: &Field) -> String {
    let word = |choice: &Json| match choice.to_value() {
        Value::String(text) => printable(&text),
        other => printable(&other.to_string()),
    };
    field.choices.iter().map(word).collect::<Vec<_>>().join(" | ")
}

/// Asks for every field, again until it fits; nothing where nobody answers any more.
///
/// # Errors
/// The errors of the terminal.
pub async fn fill(
    form: &Form,
    mut ask: impl AsyncFnMut(&str) -> io::Result<Option<String>>,
) -> Result<Option<Value>> {
    let mut answer = Map::new();
    for field in &form.fields {
        let mut question = format!("{}:", line(field));
        let value = loop {
            let Some(typed) = ask(&question).await? else { return Ok(None) };
            match field.read(&typed) {
                Ok(value) => break value,
                Err(why) => question = format!("{why}. {}:", line(field)),
            }
        };
        match (&field.name, value) {
            (None, value) => return Ok(value),
            (Some(name), Some(value)) => drop(answer.insert(name.clone(), value)),
            (Some(_), None) => {}
        }
    }
    Ok(Some(Value::Object(answer)))
}

/// An answer as the API takes it, for exactly what was shown.
pub fn body(task: &TaskView, revision: Option<&str>, said: (&str, Value)) -> Value {
    let mut body = json!({ said.0: said.1 });
    if let Some(revision) = revision.or(task.revision.as_deref()) {
        body["revision"] = revision.into();
    }
    body
}

/// Returns the remaining time for an answer, in milliseconds.
pub fn left_ms(task: &TaskView, now_ms: u64) -> Option<u64> {
    task.expires_at.as_deref().map(|at| unix_ms(at).saturating_sub(now_ms))
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    fn form(schema: Value) -> Form {
        Form::of(Some(&schema))
    }

    async fn filled(schema: Value, lines: &[&str]) -> (Option<Value>, Vec<String>) {
        let mut lines: VecDeque<String> = lines.iter().map(|line| (*line).to_owned()).collect();
        let mut asked = Vec::new();
        let form = form(schema);
        let value = fill(&form, async |question: &str| {
            asked.push(question.to_owned());
            Ok(lines.pop_front())
        });
        (value.await.unwrap(), asked)
    }

    #[test]
    fn an_input_that_is_the_prompt_is_shown_once() {
        let shown_of = |input: Value, prompt: &str| {
            let view = json!({"id": crate::protocol::TaskId::new(7, 1, 1_000),
                "run": crate::cli::fixture::run_id(), "step": 1, "attempt": 1, "agent": "review",
                "operator": "human", "kind": "human", "state": "pending", "scheduled_at": "",
                "input": input, "prompt": prompt});
            shown(&serde_json::from_str::<TaskView>(&view.to_string()).unwrap()).unwrap()
        };
        let text = shown_of(json!("Is it blue?"), "Is it blue?");
        assert_eq!(text.matches("Is it blue?").count(), 1, "{text}");
        let input = json!({"title": "Review it", "n": 1});
        let text = shown_of(input.clone(), &format!("{input:#}"));
        assert_eq!(text.matches("Review it").count(), 2, "in the title and the prompt: {text}");
        let text = shown_of(input, "Please look at \"Review it\".");
        assert!(text.contains("input: {") && text.contains("Please look"), "{text}");
        let text = shown_of(Value::Null, "null");
        assert!(!text.contains("null"), "{text}");
    }

    #[tokio::test]
    async fn a_form_is_asked_field_by_field_and_again_until_it_fits() {
        let schema = json!({"type": "object", "required": ["verdict"], "properties": {
            "verdict": {"enum": ["pass", "blocked"]},
            "rounds": {"type": "integer", "minimum": 1, "default": 2},
            "note": {"type": "string", "description": "for the flow"}}});
        let names: Vec<_> = form(schema.clone()).fields.iter().map(|f| f.name.clone()).collect();
        let typed = |name: &Option<String>| match name.as_deref().unwrap() {
            "verdict" => vec!["maybe", "pass"],
            "rounds" => vec![""],
            _ => vec![""],
        };
        let lines: Vec<&str> = names.iter().flat_map(typed).collect();
        let (value, asked) = filled(schema, &lines).await;
        assert_eq!(value, Some(json!({"verdict": "pass", "rounds": 2})));
        assert_eq!(asked.len(), 4, "{asked:?}");
        assert!(asked.iter().any(|it| it.starts_with("it is one of the 2 choices.")), "{asked:?}");
        assert!(asked.iter().any(|it| it.contains("rounds: integer [2]")), "{asked:?}");
        assert!(asked.iter().any(|it| it.contains("(may be left out) - for the flow")));
    }

    #[tokio::test]
    async fn what_is_no_object_is_asked_once_and_an_end_of_input_is_no_answer() {
        assert_eq!(filled(json!({"type": "boolean"}), &["y"]).await.0, Some(json!(true)));
        assert_eq!(filled(json!({"type": "boolean"}), &["what", ""]).await.0, None);
    }
}
