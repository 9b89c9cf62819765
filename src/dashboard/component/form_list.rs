//! Lists in forms: boxes to check, or a line for each item.

use maud::{Markup, html};
use serde_json::Value;

use super::text;
use crate::{blueprint::Field, dashboard::fields::Fields, protocol::Json};

/// The most choices that have a box each; a list of others is written as JSON.
const MOST: usize = 50;

/// A list whose items a person can write without JSON.
pub(super) enum List {
    /// Some of these.
    Some(Vec<Value>),
    /// Texts, each on a line.
    Texts,
    /// Numbers, each on a line.
    Numbers,
}

impl List {
    /// Returns the list that a field takes, if it is one.
    pub(super) fn of(field: &Field) -> Option<Self> {
        let schema = field.schema.to_value();
        if field.r#type != "json" || schema.get("type")? != "array" {
            return None;
        }
        let items = schema.get("items")?;
        match (
            items.get("enum").and_then(Value::as_array),
            items.get("type").and_then(Value::as_str),
        ) {
            (Some(choices), _) if choices.len() <= MOST => Some(Self::Some(choices.clone())),
            (None, Some("string")) => Some(Self::Texts),
            (None, Some("integer" | "number")) => Some(Self::Numbers),
            _ => None,
        }
    }

    /// Returns the field, with what was sent or with its default.
    pub(super) fn html(
        &self,
        id: &str,
        field: &Field,
        sent: Option<&Fields>,
        described: Option<&str>,
    ) -> Markup {
        let default = field.default.as_ref().map(Json::to_value);
        let default = default.as_ref().and_then(Value::as_array).map_or(&[][..], |it| it);
        match self {
            Self::Some(choices) => html! {
                @for choice in choices {
                    @let word = choice.to_string();
                    @let checked = match sent {
                        Some(sent) => sent.all(id).any(|it| it == word),
                        None => default.contains(choice),
                    };
                    label.choice {
                        input type="checkbox" name=(id) value=(word) checked[checked] aria-describedby=[described];
                        (text::short(&plain(choice), 200))
                    }
                }
            },
            Self::Texts | Self::Numbers => {
                let lines: Vec<_> = default.iter().map(plain).collect();
                // A text of several lines would become several items.
                let is_split = lines.iter().any(|line| line.contains('\n'));
                let written = match (sent, is_split) {
                    (Some(sent), _) => sent.text(id).to_owned(),
                    (None, true) => Value::from(default).to_string(),
                    (None, false) => lines.join("\n"),
                };
                html! {
                    textarea id=(id) name=(id) rows="4" placeholder="one on each line" dir="auto" aria-describedby=[described] {
                        "\n" (written)
                    }
                }
            }
        }
    }

    /// Returns the list that was sent; `None` if it is left out.
    ///
    /// # Errors
    /// Returns the reason why a line cannot be read.
    pub(super) fn read(
        &self,
        id: &str,
        field: &Field,
        sent: &Fields,
    ) -> Result<Option<Value>, String> {
        let json = |text: &str| serde_json::from_str::<Value>(text);
        let items: Vec<Value> = match self {
            Self::Some(_) => {
                let chosen = sent.all(id).filter(|it| !it.is_empty()).map(json);
                chosen
                    .collect::<Result<_, _>>()
                    .map_err(|error| format!("this is not JSON: {error}"))?
            }
            Self::Texts | Self::Numbers => {
                let text = sent.text(id).trim();
                if text.starts_with('[') {
                    return json(text)
                        .map(Some)
                        .map_err(|error| format!("this is not JSON: {error}"));
                }
                let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
                let read = |line: &str| match self {
                    Self::Numbers => match json(line) {
                        Ok(Value::Number(number)) => Ok(Value::Number(number)),
                        Ok(_) | Err(_) => Err(format!("{} is not a number", text::short(line, 40))),
                    },
                    _ => Ok(Value::from(line)),
                };
                lines.map(read).collect::<Result<_, _>>()?
            }
        };
        Ok((!items.is_empty() || field.required).then(|| Value::from(items)))
    }
}

fn plain(item: &Value) -> String {
    match item {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
