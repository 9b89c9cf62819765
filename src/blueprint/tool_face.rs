//! A blueprint as a tool of its own, for clients of MCP.

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The maximum length of a tool's name, in bytes.
pub const TOOL_NAME: usize = 64;
/// The maximum length of a tool's description, in bytes.
pub const TOOL_TEXT: usize = 1_000;

/// The maximum length of the address of a resource, in bytes.
pub const RESOURCE: usize = 512;

/// A blueprint as a tool, or as a prompt or a resource: its key `mcp`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ToolFace {
    /// The name: the blueprint's, unless it has another.
    pub name: String,
    /// A description for a model: the purpose, and when to use it.
    pub description: String,
    /// True if it changes nothing.
    pub read_only: bool,
    /// True if it may end or replace something.
    pub destructive: bool,
    /// True if a repetition changes nothing more.
    pub idempotent: bool,
    /// True if it is a prompt in place of a tool.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub prompt: bool,
    /// The address of the resource that it is in place of a tool, with `{name}` for what is input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
    /// The type of that resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mime_type: Option<String>,
    /// The abilities that a client needs to call the tool.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<ClientAbility>,
}

/// Something that a client of MCP can be asked for during a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ClientAbility {
    /// To ask its user.
    Elicitation,
    /// To ask its model.
    Sampling,
    /// The directories that it works in.
    Roots,
}

impl FromStr for ClientAbility {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "elicitation" => Ok(Self::Elicitation),
            "sampling" => Ok(Self::Sampling),
            "roots" => Ok(Self::Roots),
            _ => Err(()),
        }
    }
}

/// Returns true if this is the address of a resource: with a scheme of its own, and places that are
/// apart.
pub fn is_resource(uri: &str) -> bool {
    let Some((scheme, rest)) = uri.split_once("://") else { return false };
    let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"+-.".contains(&b);
    let is_scheme = !scheme.is_empty() && scheme.bytes().all(fits) && scheme != "moonswarm";
    let mut places = rest.split('{');
    let is_begun = places.next().is_some_and(|it| !it.contains('}'));
    let is_place = |it: &str| {
        it.split_once('}').is_some_and(|(name, after)| {
            !name.is_empty() && !name.contains('/') && !after.contains('}')
        })
    };
    let are_apart = places.all(is_place) && !rest.contains("}{");
    is_scheme && is_begun && are_apart && !rest.is_empty() && uri.len() <= RESOURCE
}

/// Returns true if clients take this as the name of a tool.
pub fn is_tool_name(name: &str) -> bool {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    (1..=TOOL_NAME).contains(&name.len()) && name.bytes().all(fits)
}

/// Returns the name of a blueprint as the name of a tool.
pub fn tool_name(blueprint: &str) -> String {
    let fits = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    blueprint.chars().map(fits).take(TOOL_NAME).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_a_resource_has_a_scheme_and_places_that_are_apart() {
        for uri in ["notes://all", "a+b.c-1://{id}/x/{part}.txt", "test://{x}"] {
            assert!(is_resource(uri), "{uri}");
        }
        let wrong =
            "notes ://x notes:// moonswarm://x N://x n://{} n://{a}{b} n://{a n://a} n://{a/b}";
        for uri in wrong.split(' ') {
            assert!(!is_resource(uri), "{uri}");
        }
        assert!(!is_resource("") && !is_resource(&format!("n://{}", "x".repeat(RESOURCE))));
    }

    #[test]
    fn every_name_of_a_blueprint_becomes_one_of_a_tool() {
        for (name, tool) in [("review", "review"), ("a/b.c d", "a_b_c_d"), ("é", "_")] {
            assert_eq!(tool_name(name), tool);
            assert!(is_tool_name(tool));
        }
        assert_eq!(tool_name(&"x".repeat(99)).len(), TOOL_NAME);
        assert!(!is_tool_name("") && !is_tool_name("a b") && !is_tool_name(&"x".repeat(65)));
    }
}
