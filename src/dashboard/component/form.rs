//! Forms made from a schema: the fields, and the JSON that was filled in.

use maud::{Markup, html};
use serde_json::{Map, Value};

use super::{form_list::List, text};
use crate::{
    blueprint::{Field, Form},
    dashboard::fields::Fields,
    engine::Answer,
    protocol::Json,
};

/// The longest text that gets a field of one line, by the `maxLength` of its schema.
const ONE_LINE: u64 = 200;
/// The name of the field for the whole answer as JSON.
pub(in crate::dashboard) const RAW: &str = "raw";

/// A field that cannot be read.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::dashboard) struct Wrong {
    /// The name of the field in the form.
    pub field: String,
    /// The reason.
    pub reason: String,
}

/// Returns the field and the button with which a task is rejected.
pub(in crate::dashboard) fn reason(sent: Option<&Fields>) -> Markup {
    html! {
        div.field {
            label for="reason" { "Reason" }
            textarea id="reason" name="reason" required dir="auto" {
                "\n" (sent.map_or("", |sent| sent.text("reason")))
            }
        }
        button.danger name="act" value="reject" { "Reject" }
    }
}

/// Returns the fields of a form, filled with what was sent or with the defaults.
pub(in crate::dashboard) fn fields(form: &Form, sent: Option<&Fields>, wrong: &[Wrong]) -> Markup {
    let mut fields: Vec<_> = form.fields.iter().enumerate().collect();
    // A blueprint's table has no order; what is required comes first.
    fields.sort_by_key(|(_, field)| !field.required);
    html! {
        @for (at, field) in fields {
            (one(at, field, sent, wrong.iter().find(|it| it.field == name(at))))
        }
        @if form.fields.len() > 1 || form.fields.iter().any(|field| field.name.is_some()) {
            details.command open[sent.is_some_and(|sent| sent.given(RAW).is_some())] {
                summary { "or write all of it as JSON" }
                label for=(RAW) { "JSON" }
                textarea.mono id=(RAW) name=(RAW) spellcheck="false" {
                    "\n" (sent.map_or("", |sent| sent.text(RAW)))
                }
                @for it in wrong.iter().filter(|it| it.field == RAW) { p.wrong { (it.reason) } }
                button formnovalidate { "Send this JSON" }
            }
        }
    }
}

fn name(at: usize) -> String {
    format!("f{at}")
}

fn one(at: usize, field: &Field, sent: Option<&Fields>, wrong: Option<&Wrong>) -> Markup {
    let id = name(at);
    let default = || match field.default.as_ref().map(Json::to_value) {
        Some(Value::String(text)) if field.r#type != "json" => text,
        Some(other) => other.to_string(),
        None => String::new(),
    };
    let value = sent.map_or_else(default, |sent| sent.text(&id).to_owned());
    let hint = format!("{id}-hint");
    let described = field.description.is_some().then_some(hint.as_str());
    let required = field.required && field.name.is_some();
    if let Some(list) = List::of(field) {
        let inner = html! {
            @if let Some(words) = &field.description { p.hint id=(hint) { (text::line(words, 1_000)) } }
            (list.html(&id, field, sent, described))
            @if let Some(wrong) = wrong { p.wrong role="alert" { (wrong.reason) } }
        };
        return html! {
            @if let List::Some(_) = list {
                fieldset.field { legend { (text::line(&field.label, 200)) @if required { " *" } } (inner) }
            } @else {
                div.field { label for=(id) { (text::line(&field.label, 200)) @if required { " *" } } (inner) }
            }
        };
    }
    html! {
        div.field {
            label for=(id) { (text::line(&field.label, 200)) @if required { " *" } }
            @if let Some(words) = &field.description { p.hint id=(hint) { (text::line(words, 1_000)) } }
            @match field.r#type.as_str() {
                // Without a default nothing is preset: who sends the form has chosen.
                "boolean" => {
                    select id=(id) name=(id) required[required] aria-describedby=[described] {
                        option value="" { "—" }
                        @for (word, label) in [("true", "yes"), ("false", "no")] {
                            option value=(word) selected[value == word] { (label) }
                        }
                    }
                }
                "choice" => {
                    select id=(id) name=(id) required[required] aria-describedby=[described] {
                        option value="" { "—" }
                        @for choice in &field.choices {
                            @let word = choice.as_str();
                            option value=(word) selected[value == word || quoted(&value) == word] {
                                (text::short(&words_of(choice), 200))
                            }
                        }
                    }
                }
                "integer" | "number" => {
                    input type="text" inputmode="decimal" id=(id) name=(id) value=(value)
                        required[required] aria-describedby=[described];
                }
                "string" if format(field).as_deref() == Some("date") => {
                    input type="date" id=(id) name=(id) value=(value) required[required] aria-describedby=[described];
                }
                "string" if format(field).as_deref() == Some("date-time") => {
                    input type="text" id=(id) name=(id) value=(value) required[required]
                        placeholder="2026-01-31T08:00:00Z" aria-describedby=[described];
                }
                "string" if most(field).is_some_and(|most| most <= ONE_LINE) => {
                    input type="text" id=(id) name=(id) value=(value) required[required]
                        aria-describedby=[described];
                }
                "string" => {
                    textarea id=(id) name=(id) required[required] dir="auto" aria-describedby=[described] {
                        "\n" (value)
                    }
                }
                _ => {
                    textarea.mono id=(id) name=(id) spellcheck="false" placeholder="JSON"
                        required[required] aria-describedby=[described] { "\n" (value) }
                }
            }
            @if let Some(wrong) = wrong { p.wrong role="alert" { (wrong.reason) } }
        }
    }
}

fn most(field: &Field) -> Option<u64> {
    field.schema.to_value().get("maxLength").and_then(Value::as_u64)
}

fn format(field: &Field) -> Option<String> {
    field.schema.to_value().get("format").and_then(Value::as_str).map(str::to_owned)
}

fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

fn words_of(choice: &Json) -> String {
    match choice.to_value() {
        Value::String(text) => text,
        other => other.to_string(),
    }
}

/// Returns the answer that was sent: a rejection, or the JSON that was filled in.
///
/// # Errors
/// Fails like [`read`].
pub(in crate::dashboard) fn answer(form: &Form, sent: &Fields) -> Result<Answer, Vec<Wrong>> {
    match sent.text("act") {
        "reject" => Ok(Answer::Reject { reason: sent.text("reason").to_owned() }),
        _ => read(form, sent).map(Answer::Output),
    }
}

/// Returns the JSON that was filled in.
///
/// # Errors
/// Returns the fields that cannot be read. Whether the value fits its schema is checked by the engine.
pub(in crate::dashboard) fn read(form: &Form, sent: &Fields) -> Result<Json, Vec<Wrong>> {
    if let Some(raw) = sent.given(RAW) {
        return Json::parse(raw.trim()).map_err(|error| {
            vec![Wrong { field: RAW.to_owned(), reason: format!("this is not JSON: {error}") }]
        });
    }
    let (mut object, mut wrong) = (Map::new(), Vec::new());
    let mut whole = None;
    for (at, field) in form.fields.iter().enumerate() {
        // Browsers send the line breaks of a text as CR LF.
        let text = sent.text(&name(at)).replace("\r\n", "\n");
        let read = match List::of(field) {
            Some(list) => list.read(&name(at), field, sent),
            None => value(field, &text),
        };
        match read {
            Ok(None) => {}
            Ok(Some(value)) => match &field.name {
                Some(name) => {
                    object.insert(name.clone(), value);
                }
                None => whole = Some(value),
            },
            Err(reason) => wrong.push(Wrong { field: name(at), reason }),
        }
    }
    if !wrong.is_empty() {
        return Err(wrong);
    }
    let is_whole = form.fields.iter().any(|field| field.name.is_none());
    let value = if is_whole { whole.unwrap_or(Value::Null) } else { Value::Object(object) };
    Ok(Json::from(value))
}

/// Returns the value of a field; `None` if it is left out.
fn value(field: &Field, text: &str) -> Result<Option<Value>, String> {
    let json = |text: &str| serde_json::from_str::<Value>(text);
    let empty = text.trim().is_empty();
    match field.r#type.as_str() {
        // An empty text is a text where one is required.
        "string" if empty && !field.required => Ok(None),
        "string" => Ok(Some(Value::from(text))),
        _ if empty && field.required => Err("this is required".to_owned()),
        _ if empty => Ok(None),
        "integer" | "number" => match json(text.trim()) {
            Ok(Value::Number(number)) => Ok(Some(Value::Number(number))),
            Ok(_) | Err(_) => Err("this is not a number".to_owned()),
        },
        _ => match json(text) {
            Ok(value) => Ok(Some(value)),
            Err(error) => Err(format!("this is not JSON: {error}")),
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn form() -> Form {
        Form::of(Some(&json!({
            "type": "object",
            "required": ["ship", "n", "note"],
            "properties": {
                "ship": {"type": "boolean", "title": "Ship <it>?"},
                "n": {"type": "integer"},
                "note": {"type": "string", "maxLength": 20},
                "how": {"enum": ["fast", "slow", 3]},
                "more": {"type": "array"},
                "plain": {"type": "string", "default": "x\ny"},
            },
        })))
    }

    fn sent(pairs: &[(&str, &str)]) -> Fields {
        let pairs = pairs
            .iter()
            .map(|(name, value)| format!("{name}={}", crate::dashboard::headers::escaped(value)));
        Fields::of_text(&pairs.collect::<Vec<_>>().join("&"))
    }

    #[test]
    fn a_filled_form_is_the_json_of_its_schema() {
        let all = [("f0", "true"), ("f1", "7"), ("f2", "a\r\nb"), ("f3", "3"), ("f4", "[1]")];
        let json = read(&form(), &sent(&all)).unwrap();
        assert_eq!(
            json.to_value(),
            json!({"ship": true, "n": 7, "note": "a\nb", "how": 3, "more": [1]})
        );
        let raw = read(&form(), &sent(&[("raw", "{\"x\":1}")])).unwrap();
        assert_eq!(raw.to_value(), json!({"x": 1}));
    }

    #[test]
    fn a_wrong_field_is_named_and_what_was_written_stays() {
        let sent = sent(&[("f0", ""), ("f1", "seven"), ("f4", "[")]);
        let wrong = read(&form(), &sent).unwrap_err();
        let fields: Vec<_> = wrong.iter().map(|it| it.field.as_str()).collect();
        assert_eq!(fields, ["f0", "f1", "f4"]);
        let shown = fields_of(&form(), &sent, &wrong);
        assert!(shown.contains("value=\"seven\"") && shown.contains("this is not a number"));
        assert!(shown.contains("Ship &lt;it&gt;?"), "{shown}");
    }

    #[test]
    fn what_is_required_is_chosen_and_never_preset() {
        let form = Form::of(Some(&json!({
            "type": "object",
            "required": ["approved", "how"],
            "properties": {
                "approved": {"type": "boolean"},
                "how": {"enum": ["fast", "slow"]},
                "later": {"type": "boolean", "default": false},
            },
        })));
        let shown = super::fields(&form, None, &[]).into_string();
        let open = " required><option value=\"\">—</option>";
        assert_eq!(shown.matches(open).count(), 2, "{shown}");
        assert!(shown.contains("<option value=\"false\" selected>"), "{shown}");
        assert_eq!(shown.matches(" selected>").count(), 1, "{shown}");
    }

    fn fields_of(form: &Form, sent: &Fields, wrong: &[Wrong]) -> String {
        super::fields(form, Some(sent), wrong).into_string()
    }

    #[test]
    fn lists_are_boxes_or_lines_and_a_date_has_its_own_field() {
        let form = Form::of(Some(&json!({
            "type": "object",
            "required": ["names"],
            "properties": {
                "names": {"type": "array", "items": {"type": "string"}},
                "colors": {"type": "array", "items": {"enum": ["red", "green"]}, "default": ["red"]},
                "sizes": {"type": "array", "items": {"type": "integer"}},
                "when": {"type": "string", "format": "date"},
            },
        })));
        let at = |name: &str| {
            let at = form.fields.iter().position(|it| it.name.as_deref() == Some(name));
            super::name(at.unwrap())
        };
        let (names, colors, sizes, when) = (at("names"), at("colors"), at("sizes"), at("when"));
        let plain = super::fields(&form, None, &[]).into_string();
        assert_eq!(plain.matches("type=\"checkbox\"").count(), 2, "{plain}");
        assert!(
            plain.contains("value=\"&quot;red&quot;\" checked") && plain.contains("type=\"date\"")
        );
        let read_of = |pairs: &[(&str, &str)]| read(&form, &sent(pairs)).map(|it| it.to_value());
        let all: [(&str, &str); 5] = [
            (&names, " a \r\n\r\nb"),
            (&colors, "\"green\""),
            (&colors, "\"red\""),
            (&sizes, "1\n2"),
            (&when, "2026-01-31"),
        ];
        let expected = json!({"names": ["a", "b"], "colors": ["green", "red"], "sizes": [1, 2], "when": "2026-01-31"});
        assert_eq!(read_of(&all).unwrap(), expected);
        assert_eq!(read_of(&[(&names, "[\"x\\ny\"]")]).unwrap(), json!({"names": ["x\ny"]}));
        assert_eq!(read_of(&[]).unwrap(), json!({"names": []}), "an empty list is one");
        let wrong = read_of(&[(&sizes, "1\ntwo")]).unwrap_err();
        assert_eq!(wrong[0].reason, "two is not a number");
    }

    #[test]
    fn an_answer_without_a_schema_is_json() {
        let any = Form::of(None);
        assert_eq!(read(&any, &sent(&[("f0", "\"yes\"")])).unwrap().to_value(), json!("yes"));
        assert!(read(&any, &sent(&[("f0", "yes")])).is_err());
        let text = Form::of(Some(&json!({"type": "string"})));
        assert_eq!(read(&text, &sent(&[("f0", "yes")])).unwrap().to_value(), json!("yes"));
    }
}
