//! A tool: how a model sees it, who may use it, and what it does.

use std::sync::Arc;

use futures::future::BoxFuture;
use rmcp::{
    handler::server::common::schema_for_type,
    model::{JsonObject, ToolAnnotations},
    schemars::JsonSchema,
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{
    answer::{Done, Trouble},
    transport::Transport,
};
use crate::token::Verb;

/// The maximum time for which a tool waits, in seconds: clients give up after a minute.
pub(super) const LONGEST_WAIT_S: u32 = 45;

/// The effect of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Nature {
    /// Nothing.
    Reads,
    /// The tool adds something, each time.
    Adds,
    /// The tool adds or changes something; a repetition changes nothing more.
    Sets,
    /// The tool may end or replace something.
    Ends,
}

/// The structured result, of which its schema is derived.
#[cfg(test)]
#[derive(Debug, Clone, Copy)]
pub(super) enum Output {
    /// The answer of an operation of the API.
    Of(&'static str),
    /// An object with the answers of operations.
    Parts(&'static [(&'static str, Option<&'static str>)]),
}

/// The function of a tool.
pub(super) type Call = for<'a> fn(&'a dyn Transport, Value) -> BoxFuture<'a, Result<Done, Trouble>>;

/// A tool of the table.
pub(super) struct Tool {
    /// The name.
    pub(super) name: &'static str,
    /// The name for people.
    pub(super) title: &'static str,
    /// A description for a model: the purpose, and when to use it.
    pub(super) text: &'static str,
    /// Tokens with one of these verbs see it; all tokens, if there are none.
    pub(super) verbs: &'static [Verb],
    /// Its effect.
    pub(super) nature: Nature,
    /// The schema of its arguments.
    pub(super) input: fn() -> Arc<JsonObject>,
    /// Its result.
    #[cfg(test)]
    pub(super) output: Output,
    /// Its description.
    pub(super) call: Call,
}

/// Returns the schema of arguments.
pub(super) fn input<T: JsonSchema + 'static>() -> Arc<JsonObject> {
    let mut schema = (*schema_for_type::<T>()).clone();
    for noise in ["$schema", "title", "description"] {
        schema.shift_remove(noise);
    }
    schema.entry("properties").or_insert_with(|| Value::Object(JsonObject::new()));
    Arc::new(schema)
}

/// Reads the arguments of a tool.
pub(super) fn read<T: DeserializeOwned>(arguments: Value) -> Result<T, Trouble> {
    // Most arguments fit, and to know the place of a mistake costs time.
    if let Ok(read) = T::deserialize(&arguments) {
        return Ok(read);
    }
    serde_path_to_error::deserialize(arguments).map_err(|error| {
        let path = error.path().to_string();
        let place = if path == "." { String::new() } else { format!("{path}: ") };
        Trouble::Arguments(format!("{place}{}", error.inner()))
    })
}

/// Returns the time to wait as the API reads it.
pub(super) fn wait(seconds: Option<u32>) -> Option<String> {
    seconds.filter(|it| *it > 0).map(|seconds| format!("{}s", seconds.min(LONGEST_WAIT_S)))
}

impl Tool {
    /// Returns the tool as the protocol shows it, with the schema of its result.
    pub(super) fn shown(&self, output: Option<Arc<JsonObject>>) -> rmcp::model::Tool {
        let annotations = ToolAnnotations::from_raw(
            Some(self.title.to_owned()),
            Some(self.nature == Nature::Reads),
            Some(self.nature == Nature::Ends),
            Some(matches!(self.nature, Nature::Reads | Nature::Sets)),
            Some(false),
        );
        let mut tool = rmcp::model::Tool::new(self.name, self.text, (self.input)());
        tool.title = Some(self.title.to_owned());
        tool.output_schema = output;
        tool.annotations = Some(annotations);
        tool
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_shorter_than_the_patience_of_clients() {
        assert_eq!(wait(Some(600)).as_deref(), Some("45s"));
        assert_eq!((wait(Some(0)), wait(None)), (None, None));
    }
}
