//! The frames of sessions against their published schemas.

use std::sync::OnceLock;

use serde_json::Value;

/// Panics if a message of the server is none that docs/protocol/ allows.
pub fn check_frame(message: &Value) {
    static SCHEMA: OnceLock<jsonschema::Validator> = OnceLock::new();
    check(SCHEMA.get_or_init(|| schema("docs/protocol/server.schema.json")), message);
}

/// Panics if a message of a client is none that docs/protocol/ allows.
pub fn check_call(message: &Value) {
    static SCHEMA: OnceLock<jsonschema::Validator> = OnceLock::new();
    check(SCHEMA.get_or_init(|| schema("docs/protocol/client.schema.json")), message);
}

fn schema(path: &str) -> jsonschema::Validator {
    let text = std::fs::read_to_string(super::repository(path)).unwrap();
    let schema: Value = serde_json::from_str(&text).unwrap();
    jsonschema::validator_for(&schema).unwrap()
}

fn check(schema: &jsonschema::Validator, message: &Value) {
    let wrong: Vec<String> = schema
        .iter_errors(message)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert!(wrong.is_empty(), "{message} does not match its schema: {wrong:?}");
}
