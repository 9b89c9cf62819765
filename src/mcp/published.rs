//! Blueprints as tools: those whose key `mcp` says so, and whose publisher may bring code.

use std::{collections::BTreeMap, sync::Arc};

use rmcp::{
    RoleServer,
    model::{JsonObject, ProgressNotificationParam, ProgressToken, Tool, ToolAnnotations},
    service::Peer,
};
use serde_json::{Value, json};

use super::{
    answer::{Done, Trouble},
    tool::LONGEST_WAIT_S,
    tools,
    transport::{Path, Transport},
};

/// How long one look at a run waits, in seconds; the client is told of progress after each.
const LOOK_S: u32 = 5;

/// A blueprint as a tool.
#[derive(Debug, Clone)]
pub(super) struct Published {
    /// The blueprint.
    blueprint: String,
    /// The tool as the protocol shows it.
    pub(super) tool: Tool,
    /// True if the input is one of the arguments, because it is no object.
    is_wrapped: bool,
}

/// Lists the blueprints that are tools. Where a name is taken, `run_` stands before it.
pub(super) async fn all(transport: &dyn Transport) -> Result<Vec<Published>, Trouble> {
    let listed = transport.get(Path::new("/v1/blueprints")).await?;
    let mut found: BTreeMap<String, Published> = BTreeMap::new();
    for item in listed["items"].as_array().into_iter().flatten() {
        let (face, Some(blueprint)) = (&item["tool"], item["name"].as_str()) else { continue };
        let Some(name) = face["name"].as_str() else { continue };
        let is_taken = |name: &str| tools::is_own(name) || found.contains_key(name);
        let name = if is_taken(name) { format!("run_{name}") } else { name.to_owned() };
        if is_taken(&name) {
            continue;
        }
        let (schema, is_wrapped) = arguments(&item["input"]);
        let flag = |key: &str| face[key].as_bool();
        let annotations = ToolAnnotations::from_raw(
            Some(blueprint.to_owned()),
            flag("read_only"),
            flag("destructive"),
            flag("idempotent"),
            None,
        );
        let text = face["description"].as_str().unwrap_or_default().to_owned();
        let mut tool = Tool::new(name.clone(), text, Arc::new(schema));
        tool.title = Some(blueprint.to_owned());
        tool.output_schema = Some(Arc::new(output()));
        tool.annotations = Some(annotations);
        found.insert(name, Published { blueprint: blueprint.to_owned(), tool, is_wrapped });
    }
    Ok(found.into_values().collect())
}

/// Returns the schema of the arguments for the schema of an input, and true if the input is one of
/// them. Arguments are an object.
fn arguments(input: &Value) -> (JsonObject, bool) {
    match input.as_object() {
        None => (object(json!({ "type": "object" })), false),
        Some(schema) if schema.get("type").is_some_and(|it| it == "object") => {
            (schema.clone(), false)
        }
        Some(schema) => {
            let mut schema = schema.clone();
            let definitions = schema.shift_remove("$defs");
            let mut whole = object(json!({
                "type": "object",
                "properties": { "input": schema },
                "required": ["input"],
                "additionalProperties": false,
            }));
            if let Some(definitions) = definitions {
                whole.insert("$defs".to_owned(), definitions);
            }
            (whole, true)
        }
    }
}

/// The schema of a result.
fn output() -> JsonObject {
    object(json!({
        "type": "object",
        "properties": {
            "run": { "type": "string", "description": "The run's id." },
            "status": { "type": "string", "description": "The run's status." },
            "output": { "description": "What the run returned, once it is completed." },
        },
        "required": ["run", "status"],
    }))
}

fn object(value: Value) -> JsonObject {
    match value {
        Value::Object(map) => map,
        _ => JsonObject::new(),
    }
}

impl Published {
    /// Starts a run, and follows it for as long as a tool may wait; the follower receives
    /// its status text.
    pub(super) async fn call(
        &self,
        transport: &dyn Transport,
        arguments: JsonObject,
        started: &mut Option<String>,
        follower: Option<(&Peer<RoleServer>, ProgressToken)>,
    ) -> Result<Done, Trouble> {
        let input = match self.is_wrapped {
            true => arguments.get("input").cloned().unwrap_or_default(),
            false => Value::Object(arguments),
        };
        let body = json!({ "blueprint": self.blueprint, "input": input });
        let mut run = transport.post(Path::new("/v1/runs"), &body).await?;
        let id = run["id"].as_str().unwrap_or_default().to_owned();
        *started = Some(id.clone());
        let (mut said, mut count) = (String::new(), 0_u32);
        for _ in 0..LONGEST_WAIT_S / LOOK_S {
            if !run["ended_at"].is_null() {
                break;
            }
            let path = Path::new("/v1/runs").at(&id).with("wait", Some(format!("{LOOK_S}s")));
            run = transport.get(path).await?;
            if let Some(text) = run["status_text"].as_str().filter(|text| *text != said) {
                text.clone_into(&mut said);
                count += 1;
                if let Some((peer, token)) = &follower {
                    let mut told = ProgressNotificationParam::new(token.clone(), f64::from(count));
                    told.message = Some(said.clone());
                    // A client that has gone is noticed where its answer is sent.
                    let _ = peer.notify_progress(told).await;
                }
            }
        }
        Ok(shown(&id, &run))
    }
}

/// Asks for the end of the run that a canceled call has started.
pub(super) async fn cancel(transport: &dyn Transport, run: &str) {
    let body = json!({ "reason": "the call of the tool was canceled" });
    // It may have ended.
    let _ = transport.post(Path::new("/v1/runs").at(run).at("cancel"), &body).await;
}

fn shown(id: &str, run: &Value) -> Done {
    let status = run["status"].as_str().unwrap_or_default();
    let mut value = json!({ "run": id, "status": status });
    let text = match status {
        "completed" => {
            value["output"] = run["output"].clone();
            format!("run {id} is completed")
        }
        _ if !run["ended_at"].is_null() => {
            let message = run["error"]["message"].as_str().unwrap_or("it was canceled");
            return Done::new(value, format!("run {id} is {status}: {message}")).failed();
        }
        _ => format!("run {id} goes on; call get_run with run and wait_seconds for its end"),
    };
    Done::new(value, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_an_object_whatever_the_input_is() {
        let plain = json!({ "type": "object", "properties": { "who": { "type": "string" } } });
        assert_eq!(arguments(&plain), (object(plain.clone()), false));
        assert_eq!(arguments(&Value::Null), (object(json!({ "type": "object" })), false));
        let text = json!({ "$ref": "#/$defs/t", "$defs": { "t": { "type": "string" } } });
        let (wrapped, is_wrapped) = arguments(&text);
        assert!(is_wrapped && wrapped["required"] == json!(["input"]));
        let validator = jsonschema::validator_for(&Value::Object(wrapped)).unwrap();
        assert!(validator.is_valid(&json!({ "input": "x" })));
        assert!(!validator.is_valid(&json!({ "input": 7 })) && !validator.is_valid(&json!({})));
    }
}
