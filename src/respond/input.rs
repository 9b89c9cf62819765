//! The conversion of a conversation to the input of a blueprint or an agent without a model.

use serde_json::{Value, json};

/// Returns the candidates for the input, in order: the text; its value, if it is JSON; an object
/// with the text as the only property that `schema` requires.
pub fn candidates(text: &str, schema: Option<&Value>) -> Vec<Value> {
    let mut all = vec![Value::from(text)];
    if let Ok(said) = serde_json::from_str::<Value>(text)
        && !said.is_string()
    {
        all.push(said);
    }
    if let Some(name) = schema.and_then(only_property) {
        all.push(json!({ name: text }));
    }
    all
}

/// Returns the only required property; if none is required, the only property.
fn only_property(schema: &Value) -> Option<&str> {
    let required: Vec<&str> =
        schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    match required.as_slice() {
        [only] => return Some(only),
        [] => {}
        _ => return None,
    }
    let mut properties = schema["properties"].as_object()?.keys();
    match (properties.next(), properties.next()) {
        (Some(only), None) => Some(only),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_fits_a_text_an_object_or_the_one_property_that_is_asked_for() {
        let object = json!({ "properties": { "question": {}, "n": {} }, "required": ["question"] });
        assert_eq!(candidates("hi", Some(&object)), [json!("hi"), json!({ "question": "hi" })]);
        assert_eq!(candidates(r#"{"n":1}"#, None), [json!(r#"{"n":1}"#), json!({ "n": 1 })]);
        let one = json!({ "properties": { "n": {} } });
        assert_eq!(candidates("2", Some(&one)), [json!("2"), json!(2), json!({ "n": "2" })]);
        let two = json!({ "required": ["a", "b"] });
        assert_eq!(candidates("hi", Some(&two)), [json!("hi")]);
    }
}
