//! The arguments of a call, validated against the schema of their tool.

use serde_json::Value;

/// Validates arguments. An invalid schema accepts everything, and so does this crate without its
/// feature `schemas`: then the tool decides.
#[cfg(feature = "schemas")]
pub(super) fn fitting(parameters: &Value, arguments: Value) -> Result<Value, String> {
    use crate::schema::{Schema, first_of};
    let Ok(schema) = Schema::compile_value(parameters.clone(), false) else {
        return Ok(arguments);
    };
    let valid = schema.validate(&arguments);
    valid.map(|()| arguments).map_err(|violations| first_of(&violations))
}

#[cfg(not(feature = "schemas"))]
#[expect(clippy::unnecessary_wraps, reason = "the other one can fail")]
pub(super) fn fitting(_: &Value, arguments: Value) -> Result<Value, String> {
    Ok(arguments)
}
