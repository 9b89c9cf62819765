//! A request for a response: its parameters, and the settings that the response repeats.

use serde_json::{Map, Value, json};

use super::{Fields, read_items};
use crate::{
    protocol::{FunctionTool, ModelAsk},
    respond::Refused,
};

/// The maximum number of tools in a request.
pub const MOST_TOOLS: usize = 128;
/// The maximum number of `metadata` entries, and the maximum length of a key and a value, in
/// characters.
const METADATA: (usize, usize, usize) = (16, 64, 512);
/// The maximum length of a tool's name, in bytes.
const TOOL_NAME_BYTES: usize = 64;

/// The parameters that are passed on to the model.
const OPTIONS: [&str; 12] = [
    "temperature",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "top_logprobs",
    "max_output_tokens",
    "reasoning",
    "text",
    "truncation",
    "service_tier",
    "prompt_cache_key",
    "safety_identifier",
];

/// A request for a response.
#[derive(Debug, Clone, PartialEq)]
pub struct Create {
    /// `blueprint` or `blueprint/agent`.
    pub model: String,
    /// The items of the request.
    pub items: Vec<Value>,
    /// The response whose conversation is continued.
    pub previous: Option<String>,
    /// The stored conversation that it continues.
    pub conversation: Option<String>,
    /// The settings for the agent's model.
    pub ask: ModelAsk,
    /// The settings that the response repeats.
    pub settings: Map<String, Value>,
    /// True if events are streamed.
    pub stream: bool,
    /// True if the response is returned at once, before it has ended.
    pub background: bool,
    /// True if the run is kept after its end.
    pub store: bool,
}

impl Create {
    /// Parses a body. Unknown parameters are ignored.
    ///
    /// # Errors
    /// Returns the first invalid parameter.
    pub fn read(body: &Value, ids: &mut dyn FnMut(&str) -> String) -> Result<Self, Refused> {
        let fields = Fields::of_body(body)?;
        let model = fields.needed("model")?.to_owned();
        if fields.get("prompt").is_some() {
            let message = "prompt: there are no stored ones here; send `input`";
            return Err(Refused::unsupported("prompt", message));
        }
        check_options(&fields)?;
        let previous = fields.text("previous_response_id")?.map(str::to_owned);
        let conversation = read_conversation(&fields)?;
        if previous.is_some() && conversation.is_some() {
            let what = "cannot stand beside previous_response_id";
            return Err(fields.wrong("conversation", what));
        }
        let items = read_items(fields.map.get("input"), ids)?;
        if items.is_empty() && previous.is_none() && conversation.is_none() {
            return Err(fields.wrong("input", "is missing"));
        }
        let tools = read_tools(&fields)?;
        let ask = ModelAsk {
            items: Vec::new(),
            instructions: fields.text("instructions")?.map(str::to_owned),
            tool_choice: read_tool_choice(&fields)?,
            parallel_tool_calls: fields.flag("parallel_tool_calls")?,
            max_tool_calls: fields
                .whole("max_tool_calls", 1, u64::from(u32::MAX))?
                .and_then(|most| u32::try_from(most).ok()),
            options: fields.only(&OPTIONS),
            tools,
        };
        let store = fields.flag("store")?.unwrap_or(true);
        let background = fields.flag("background")?.unwrap_or(false);
        if background && !store {
            return Err(fields.wrong("store", "must be true for a response in the background"));
        }
        Ok(Self {
            settings: settings(&fields, &ask, store, background, conversation.as_deref())?,
            model,
            items,
            previous,
            conversation,
            ask,
            stream: fields.flag("stream")?.unwrap_or(false),
            background,
            store,
        })
    }
}

fn check_options(fields: &Fields<'_>) -> Result<(), Refused> {
    fields.number("temperature", 0.0, 2.0)?;
    fields.number("top_p", 0.0, 1.0)?;
    fields.number("presence_penalty", -2.0, 2.0)?;
    fields.number("frequency_penalty", -2.0, 2.0)?;
    fields.whole("top_logprobs", 0, 20)?;
    fields.whole("max_output_tokens", 1, u64::from(u32::MAX))?;
    fields.word("truncation", &["auto", "disabled"])?;
    fields.word("service_tier", &["auto", "default", "flex", "scale", "priority"])?;
    for name in ["prompt_cache_key", "safety_identifier"] {
        fields.text(name)?;
    }
    for name in ["reasoning", "text"] {
        if fields.get(name).is_some_and(|value| !value.is_object()) {
            return Err(fields.wrong(name, "must be an object"));
        }
    }
    if let Some(format) =
        fields.get("text").and_then(|text| text.get("format")).filter(|it| !it.is_null())
    {
        match format["type"].as_str() {
            Some("text" | "json_object") => {}
            Some("json_schema") if !format["name"].is_string() => {
                return Err(fields.wrong("text.format.name", "is missing"));
            }
            Some("json_schema") if !format["schema"].is_object() => {
                return Err(fields.wrong("text.format.schema", "must be an object"));
            }
            Some("json_schema") => {}
            _ => {
                let words = "is none of text, json_object and json_schema";
                return Err(fields.wrong("text.format.type", words));
            }
        }
    }
    check_metadata(fields)
}

pub(crate) fn check_metadata(fields: &Fields<'_>) -> Result<(), Refused> {
    let Some(metadata) = fields.get("metadata") else { return Ok(()) };
    let Value::Object(map) = metadata else {
        return Err(fields.wrong("metadata", "must be an object"));
    };
    let (most, key_chars, value_chars) = METADATA;
    if map.len() > most {
        return Err(fields.wrong("metadata", &format!("has more than {most} entries")));
    }
    for (key, value) in map {
        if key.chars().count() > key_chars {
            return Err(fields.wrong("metadata", &format!("has a key over {key_chars} characters")));
        }
        if value.as_str().is_none_or(|text| text.chars().count() > value_chars) {
            let what = format!("must be a text of at most {value_chars} characters");
            return Err(fields.wrong(&format!("metadata.{key}"), &what));
        }
    }
    Ok(())
}

/// The id of a conversation: a text, or an object with it.
fn read_conversation(fields: &Fields<'_>) -> Result<Option<String>, Refused> {
    match fields.get("conversation") {
        None => Ok(None),
        Some(Value::String(id)) => Ok(Some(id.clone())),
        Some(Value::Object(of)) => match of.get("id").and_then(Value::as_str) {
            Some(id) => Ok(Some(id.to_owned())),
            None => Err(fields.wrong("conversation.id", "is missing")),
        },
        Some(_) => Err(fields.wrong("conversation", "must be an id, or an object with one")),
    }
}

fn read_tools(fields: &Fields<'_>) -> Result<Vec<FunctionTool>, Refused> {
    let list = match fields.get("tools") {
        None => return Ok(Vec::new()),
        Some(Value::Array(list)) => list,
        Some(_) => return Err(fields.wrong("tools", "must be a list")),
    };
    if list.len() > MOST_TOOLS {
        return Err(fields.wrong("tools", &format!("has more than {MOST_TOOLS} of them")));
    }
    let mut tools: Vec<FunctionTool> = Vec::with_capacity(list.len());
    for (place, tool) in list.iter().enumerate() {
        let at = format!("tools[{place}]");
        let tool = Fields::of(tool, &at, "a tool")?;
        let kind = tool.needed("type")?;
        if kind != "function" {
            let message = format!(
                "{kind:?} tools are not offered here; declare what an agent may use in its \
                 blueprint, or send a function"
            );
            return Err(Refused::unsupported(tool.param("type"), message));
        }
        let name = tool.needed("name")?;
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if name.is_empty() || name.len() > TOOL_NAME_BYTES || !name.chars().all(fits) {
            let what = format!("must be 1 to {TOOL_NAME_BYTES} letters, digits, `_` and `-`");
            return Err(tool.wrong("name", &what));
        }
        if tools.iter().any(|known| known.name == name) {
            return Err(tool.wrong("name", "is there twice"));
        }
        let parameters = match tool.get("parameters") {
            None => json!({ "type": "object", "properties": {} }),
            Some(schema @ Value::Object(_)) => schema.clone(),
            Some(_) => return Err(tool.wrong("parameters", "must be a JSON Schema")),
        };
        tools.push(FunctionTool {
            name: name.to_owned(),
            description: tool.text("description")?.map(str::to_owned),
            parameters,
            strict: tool.flag("strict")?,
        });
    }
    Ok(tools)
}

fn read_tool_choice(fields: &Fields<'_>) -> Result<Option<Value>, Refused> {
    let Some(choice) = fields.get("tool_choice") else { return Ok(None) };
    let known = match choice {
        Value::String(word) => ["none", "auto", "required"].contains(&word.as_str()),
        Value::Object(map) => match map.get("type").and_then(Value::as_str) {
            Some("function") => map.get("name").is_some_and(Value::is_string),
            Some("allowed_tools") => {
                map.get("tools").is_some_and(Value::is_array)
                    && map.get("mode").is_none_or(|mode| {
                        mode.as_str().is_some_and(|it| ["none", "auto", "required"].contains(&it))
                    })
            }
            _ => false,
        },
        _ => false,
    };
    if !known {
        let what = "is none of \"none\", \"auto\", \"required\", a function and allowed_tools";
        return Err(fields.wrong("tool_choice", what));
    }
    let mut choice = choice.clone();
    if choice["type"] == "allowed_tools" && choice["mode"].is_null() {
        choice["mode"] = "auto".into();
    }
    Ok(Some(choice))
}

/// Returns the settings that a response repeats, with defaults where the request has none.
fn settings(
    fields: &Fields<'_>,
    ask: &ModelAsk,
    store: bool,
    background: bool,
    conversation: Option<&str>,
) -> Result<Map<String, Value>, Refused> {
    let or = |name: &str, otherwise: Value| fields.get(name).cloned().unwrap_or(otherwise);
    let tools: Vec<Value> = ask.tools.iter().map(shown_tool).collect();
    let mut text = or("text", json!({}));
    text["format"] = shown_format(&text["format"]);
    let reasoning = fields.get("reasoning").map_or(
        Value::Null,
        |given| json!({ "effort": given["effort"], "summary": given["summary"] }),
    );
    let settings = json!({
        "previous_response_id": fields.text("previous_response_id")?,
        "instructions": ask.instructions,
        "tools": tools,
        "tool_choice": ask.tool_choice.clone().unwrap_or_else(|| "auto".into()),
        "truncation": or("truncation", "disabled".into()),
        "parallel_tool_calls": ask.parallel_tool_calls.unwrap_or(true),
        "text": text,
        "top_p": or("top_p", json!(1.0)),
        "presence_penalty": or("presence_penalty", json!(0.0)),
        "frequency_penalty": or("frequency_penalty", json!(0.0)),
        "top_logprobs": or("top_logprobs", json!(0)),
        "temperature": or("temperature", json!(1.0)),
        "reasoning": reasoning,
        "max_output_tokens": or("max_output_tokens", Value::Null),
        "max_tool_calls": ask.max_tool_calls,
        "store": store,
        "background": background,
        "service_tier": match fields.text("service_tier")? {
            None | Some("auto") => "default",
            Some(tier) => tier,
        },
        "metadata": or("metadata", json!({})),
        "safety_identifier": or("safety_identifier", Value::Null),
        "prompt_cache_key": or("prompt_cache_key", Value::Null),
    });
    let Value::Object(mut settings) = settings else { return Ok(Map::new()) };
    if let Some(id) = conversation {
        settings.insert("conversation".to_owned(), json!({ "id": id }));
    }
    Ok(settings)
}

fn shown_tool(tool: &FunctionTool) -> Value {
    json!({
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict,
    })
}

fn shown_format(given: &Value) -> Value {
    if given["type"] != "json_schema" {
        return json!({ "type": given["type"].as_str().unwrap_or("text") });
    }
    json!({
        "type": "json_schema",
        "name": given["name"],
        "description": given["description"],
        "schema": given["schema"],
        "strict": given["strict"].as_bool().unwrap_or(false),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: Value) -> Result<Create, Refused> {
        Create::read(&body, &mut |prefix| format!("{prefix}_1"))
    }

    #[test]
    fn what_a_request_leaves_open_has_its_default() {
        let create = read(json!({ "model": "m", "input": "hi" })).unwrap();
        assert_eq!((create.stream, create.background, create.store), (false, false, true));
        assert_eq!(create.ask, ModelAsk::default());
        let settings = Value::Object(create.settings);
        for (name, value) in [
            ("tool_choice", json!("auto")),
            ("text", json!({ "format": { "type": "text" } })),
            ("temperature", json!(1.0)),
            ("service_tier", json!("default")),
            ("metadata", json!({})),
            ("truncation", json!("disabled")),
        ] {
            assert_eq!(settings[name], value, "{name}");
        }
    }

    #[test]
    fn only_what_was_said_shapes_the_answer_and_null_says_nothing() {
        let create = read(json!({
            "model": "m", "input": "hi", "temperature": 0.5, "top_p": null, "instructions": "be brief",
            "tools": [{ "type": "function", "name": "f", "strict": true }],
            "tool_choice": { "type": "function", "name": "f" }, "max_tool_calls": 3, "colour": "red",
        }));
        let ask = create.unwrap().ask;
        assert_eq!(Value::Object(ask.options), json!({ "temperature": 0.5 }));
        assert_eq!(ask.tools[0].parameters, json!({ "type": "object", "properties": {} }));
        assert_eq!((ask.max_tool_calls, ask.instructions.as_deref()), (Some(3), Some("be brief")));
    }

    #[test]
    fn a_wrong_parameter_is_named() {
        let cases = [
            (json!({}), "model"),
            (json!({ "model": 1 }), "model"),
            (json!({ "input": 1 }), "input"),
            (json!({ "input": null }), "input"),
            (json!({ "temperature": 3 }), "temperature"),
            (json!({ "top_logprobs": 1.5 }), "top_logprobs"),
            (json!({ "max_output_tokens": 0 }), "max_output_tokens"),
            (json!({ "truncation": "some" }), "truncation"),
            (json!({ "stream": "yes" }), "stream"),
            (json!({ "metadata": { "a": 1 } }), "metadata.a"),
            (json!({ "text": { "format": { "type": "xml" } } }), "text.format.type"),
            (json!({ "text": { "format": { "type": "json_schema" } } }), "text.format.name"),
            (json!({ "tools": [{ "type": "web_search" }] }), "tools[0].type"),
            (json!({ "tools": [{ "type": "function", "name": "a b" }] }), "tools[0].name"),
            (
                json!({ "tools": vec![json!({ "type": "function", "name": "a" }); 2] }),
                "tools[1].name",
            ),
            (json!({ "tool_choice": "maybe" }), "tool_choice"),
            (json!({ "background": true, "store": false }), "store"),
            (json!({ "conversation": 7 }), "conversation"),
        ];
        for (more, param) in cases {
            let mut body = json!({ "model": "m", "input": "hi" });
            match more.as_object().filter(|more| !more.is_empty()) {
                None => body = more,
                Some(more) => body.as_object_mut().unwrap().extend(more.clone()),
            }
            assert_eq!(read(body.clone()).unwrap_err().param.as_deref(), Some(param), "{body}");
        }
    }
}
