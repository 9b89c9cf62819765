//! The form of an answer: a schema as fields that a person can be asked one by one.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::Schema;
use crate::protocol::Json;

/// The most choices that a field lists.
const MOST_CHOICES: usize = 200;

/// A form for a person.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Form {
    /// The fields, in the schema's order. A schema of an object has one for each property; any
    /// other has a single field without a name, which is the answer itself.
    pub fields: Vec<Field>,
}

/// One thing to fill in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Field {
    /// Its key in the answer; null where the field is the answer itself.
    pub name: Option<String>,
    /// The label: the schema's `title`, or its name.
    pub label: String,
    /// The schema's `description`.
    pub description: Option<String>,
    /// `boolean`, `string`, `integer`, `number`, `choice` (one of `choices`), or `json` for
    /// everything that takes JSON to write.
    pub r#type: String,
    /// True if the answer requires it.
    pub required: bool,
    /// The default, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "some")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub default: Option<Json>,
    /// The choices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<Object>)]
    pub choices: Vec<Json>,
    /// The JSON Schema of the field alone.
    #[schema(value_type = serde_json::Value)]
    pub schema: Json,
}

/// Keeps a default of null apart from no default.
mod some {
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    use crate::protocol::Json;

    pub fn serialize<S: Serializer>(value: &Option<Json>, to: S) -> Result<S::Ok, S::Error> {
        value.serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Json>, D::Error> {
        Json::deserialize(from).map(Some)
    }
}

impl Form {
    /// The form of answers with this schema; without one an answer is any JSON.
    pub fn of(schema: Option<&Value>) -> Self {
        let anything = Value::Bool(true);
        let schema = schema.unwrap_or(&anything);
        let properties = schema.get("properties").and_then(Value::as_object);
        let Some(properties) = properties.filter(|_| is_plain_object(schema)) else {
            return Self { fields: vec![Field::of(None, schema, schema, true)] };
        };
        let required = schema.get("required").and_then(Value::as_array);
        let needs = |name: &str| required.is_some_and(|keys| keys.iter().any(|key| key == name));
        let field =
            |(name, own): (&String, &Value)| Field::of(Some(name), own, schema, needs(name));
        Self { fields: properties.iter().map(field).collect() }
    }
}

/// Returns true if the properties say all of it: nothing else applies to the same object.
fn is_plain_object(schema: &Value) -> bool {
    const MORE: [&str; 6] = ["allOf", "anyOf", "oneOf", "$ref", "if", "not"];
    let object = schema.get("type").is_none_or(|kind| kind == "object");
    object && MORE.iter().all(|keyword| schema.get(keyword).is_none())
}

impl Field {
    fn of(name: Option<&str>, own: &Value, root: &Value, required: bool) -> Self {
        let text = |key: &str| own.get(key).and_then(Value::as_str).map(str::to_owned);
        let choices: &[Value] = own.get("enum").and_then(Value::as_array).map_or(&[], |it| it);
        let choices = if choices.len() <= MOST_CHOICES { choices } else { &[] };
        let kind = match own.get("type").and_then(Value::as_str) {
            _ if !choices.is_empty() => "choice",
            Some(kind @ ("boolean" | "string" | "integer" | "number")) => kind,
            Some(_) | None => "json",
        };
        let mut schema = own.clone();
        // What it refers to stands beside it in the whole schema.
        for key in ["$defs", "definitions"] {
            if let (Value::Object(schema), Some(defs)) = (&mut schema, root.get(key)) {
                schema.insert(key.to_owned(), defs.clone());
            }
        }
        Self {
            name: name.map(str::to_owned),
            label: text("title").or(name.map(str::to_owned)).unwrap_or_else(|| "answer".into()),
            description: text("description"),
            r#type: kind.to_owned(),
            required,
            default: own.get("default").map(Json::from),
            choices: choices.iter().map(Json::from).collect(),
            schema: schema.into(),
        }
    }

    /// Returns the value of a typed line; none if an optional field is left empty.
    ///
    /// # Errors
    /// Returns the problem, as a fragment.
    pub fn read(&self, line: &str) -> Result<Option<Value>, String> {
        let line = line.trim();
        if line.is_empty() {
            return match &self.default {
                Some(default) => Ok(Some(default.to_value())),
                None if self.required => Err("it must be filled in".to_owned()),
                None => Ok(None),
            };
        }
        let value = match self.r#type.as_str() {
            "boolean" => match line.to_lowercase().as_str() {
                "y" | "yes" | "true" => Value::Bool(true),
                "n" | "no" | "false" => Value::Bool(false),
                _ => return Err("yes or no".to_owned()),
            },
            "choice" => self.choice(line)?,
            // The only way to write one that is empty.
            "string" if line == "\"\"" => Value::from(""),
            "string" => Value::from(line),
            "integer" => line
                .parse::<i64>()
                .map(Value::from)
                .map_err(|_| "it is a whole number".to_owned())?,
            "number" => {
                let number = serde_json::from_str::<serde_json::Number>(line);
                Value::Number(number.map_err(|_| "it is a number".to_owned())?)
            }
            _ => serde_json::from_str(line).map_err(|error| format!("it is JSON: {error}"))?,
        };
        let schema = Schema::compile(&self.schema, false).map_err(|error| error.to_string())?;
        match schema.accept(value) {
            Ok(value) => Ok(Some(value)),
            Err(breaches) => {
                let said: Vec<String> = breaches.into_iter().map(|it| it.message).collect();
                Err(said.join("; "))
            }
        }
    }

    /// The choice that a line names, by its text or by its number from 1.
    fn choice(&self, line: &str) -> Result<Value, String> {
        let mut choices = self.choices.iter().map(Json::to_value);
        let named = choices.find(|choice| match choice {
            Value::String(text) => text == line,
            other => serde_json::to_string(other).is_ok_and(|text| text == line),
        });
        let numbered = line.parse::<usize>().ok().and_then(|n| self.choices.get(n.checked_sub(1)?));
        named
            .or(numbered.map(Json::to_value))
            .ok_or_else(|| format!("it is one of the {} choices", self.choices.len()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn form(schema: Value) -> Form {
        Form::of(Some(&schema))
    }

    #[test]
    fn an_object_has_a_field_for_each_property() {
        let form = form(json!({"type": "object", "required": ["verdict"], "properties": {
            "verdict": {"enum": ["pass", "blocked"], "title": "Verdict"},
            "count": {"type": "integer", "minimum": 1, "default": 3, "description": "how many"},
            "notes": {"type": "array", "items": {"type": "string"}},
        }}));
        let shown: Vec<_> = form
            .fields
            .iter()
            .map(|it| (it.label.as_str(), it.r#type.as_str(), it.required, it.default.is_some()))
            .collect();
        let mut sorted = shown.clone();
        sorted.sort_unstable();
        assert_eq!(
            sorted,
            [
                ("Verdict", "choice", true, false),
                ("count", "integer", false, true),
                ("notes", "json", false, false)
            ]
        );
    }

    #[test]
    fn what_is_no_object_is_one_field_without_a_name() {
        for (schema, kind) in [
            (json!({"type": "boolean"}), "boolean"),
            (json!({"anyOf": [{"type": "string"}], "properties": {"a": true}}), "json"),
            (json!(true), "json"),
        ] {
            let form = form(schema);
            assert_eq!((form.fields.len(), &form.fields[0].name), (1, &None));
            assert_eq!(form.fields[0].r#type, kind);
        }
        assert_eq!(Form::of(None).fields[0].r#type, "json");
    }

    fn read(schema: Value, line: &str) -> Result<Option<Value>, String> {
        form(json!({"type": "object", "required": ["x"], "properties": {"x": schema}})).fields[0]
            .read(line)
    }

    #[test]
    fn a_line_is_read_by_the_type_and_checked_by_the_schema() {
        for (schema, line, value) in [
            (json!({"type": "boolean"}), "Y", json!(true)),
            (json!({"type": "integer"}), " 12 ", json!(12)),
            (json!({"type": "number"}), "0.5", json!(0.5)),
            (json!({"type": "string"}), "12", json!("12")),
            (json!({"type": "string"}), "\"\"", json!("")),
            (json!({"enum": ["a", "b"]}), "b", json!("b")),
            (json!({"enum": ["a", "b"]}), "1", json!("a")),
            (json!({"enum": [2, 1]}), "1", json!(1)),
            (json!({"type": "array"}), "[1]", json!([1])),
            (json!({"type": "integer", "default": 7}), "", json!(7)),
        ] {
            assert_eq!(read(schema.clone(), line), Ok(Some(value)), "{schema} {line}");
        }
        for (schema, line) in [
            (json!({"type": "boolean"}), "maybe"),
            (json!({"type": "integer", "maximum": 3}), "4"),
            (json!({"type": "string", "minLength": 3}), "ab"),
            (json!({"enum": ["a", "b"]}), "3"),
            (json!({"type": "array"}), "[1"),
            (json!({"type": "string"}), ""),
        ] {
            assert!(read(schema.clone(), line).is_err(), "{schema} {line}");
        }
    }

    #[test]
    fn an_optional_field_may_be_left_out() {
        let form = form(json!({"type": "object", "properties": {"x": {"type": "string"}}}));
        assert_eq!(form.fields[0].read(""), Ok(None));
    }

    #[test]
    fn a_field_takes_what_it_refers_to_with_it() {
        let form = form(json!({"type": "object", "properties": {"x": {"$ref": "#/$defs/n"}},
            "$defs": {"n": {"type": "integer"}}}));
        assert_eq!(form.fields[0].read("1"), Ok(Some(json!(1))));
        assert!(form.fields[0].read("\"a\"").is_err());
    }
}
