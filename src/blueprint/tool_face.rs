//! A blueprint as a tool of its own, for clients of MCP.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The maximum length of a tool's name, in bytes.
pub const TOOL_NAME: usize = 64;
/// The maximum length of a tool's description, in bytes.
pub const TOOL_TEXT: usize = 1_000;

/// A blueprint as a tool: its key `mcp`.
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
    fn every_name_of_a_blueprint_becomes_one_of_a_tool() {
        for (name, tool) in [("review", "review"), ("a/b.c d", "a_b_c_d"), ("é", "_")] {
            assert_eq!(tool_name(name), tool);
            assert!(is_tool_name(tool));
        }
        assert_eq!(tool_name(&"x".repeat(99)).len(), TOOL_NAME);
        assert!(!is_tool_name("") && !is_tool_name("a b") && !is_tool_name(&"x".repeat(65)));
    }
}
