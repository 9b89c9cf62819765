//! The frames of sessions against their published schema.

use std::sync::OnceLock;

use serde_json::Value;

/// Panics if a message is none that docs/protocol/ allows.
pub fn check_frame(message: &Value) {
    static SCHEMA: OnceLock<jsonschema::Validator> = OnceLock::new();
    let schema = SCHEMA.get_or_init(|| {
        let text = std::fs::read_to_string(super::repository("docs/protocol/server.schema.json"));
        let schema: Value = serde_json::from_str(&text.unwrap()).unwrap();
        jsonschema::validator_for(&schema).unwrap()
    });
    let wrong: Vec<String> = schema
        .iter_errors(message)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert!(wrong.is_empty(), "{message} breaks its schema: {wrong:?}");
}
