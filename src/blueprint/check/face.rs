//! The key `mcp`: the blueprint as a tool.

use serde_json::Value;

use super::{checker::Checker, value::Table};
use crate::blueprint::{
    diagnostics::code,
    library,
    tool_face::{
        ClientAbility, RESOURCE, TOOL_NAME, TOOL_TEXT, ToolFace, is_resource, is_tool_name,
        tool_name,
    },
};

impl Checker<'_> {
    /// The blueprint as a tool, if it is one.
    pub(super) fn face(&mut self, table: &Table<'_>, name: &str) -> Option<ToolFace> {
        let face = match table.get("mcp")? {
            Value::Bool(false) => return None,
            Value::Bool(true) => None,
            Value::Object(_) => self.table(table, "mcp", "`mcp`"),
            other => {
                self.wrong_type(table, "mcp", "true or a table", other);
                return None;
            }
        };
        let said = match &face {
            None => [const { None }; 4],
            Some(face) => {
                self.known_keys(face, &library::keys("McpTool"), &[]);
                ["name", "description", "uri", "mime_type"].map(|key| self.text(face, key))
            }
        };
        let [own, text, uri, mime_type] = said;
        if let (Some(uri), Some(face)) = (&uri, &face)
            && !is_resource(uri)
        {
            let message = format!(
                "the address of a resource is `scheme://…` of at most {RESOURCE} bytes, with a \
                 scheme of its own and `{{name}}` for what is input"
            );
            let finding = self.at_value(&face.pointer("uri"), code::BAD_NAME, message);
            self.findings.push(finding);
        }
        if let (Some(own), Some(face)) = (&own, &face)
            && !is_tool_name(own)
        {
            let message =
                format!("the name of a tool has 1 to {TOOL_NAME} of a-z, A-Z, 0-9, `-` and `_`");
            let finding = self.at_value(&face.pointer("name"), code::BAD_NAME, message);
            self.findings.push(finding);
        }
        let Some(description) = text.or_else(|| self.text(table, "description")) else {
            self.missing(
                table,
                "description",
                "description = \"what it does, and when to use it\"",
            );
            return None;
        };
        if description.len() > TOOL_TEXT {
            let message = format!("the description of a tool has at most {TOOL_TEXT} bytes");
            let finding = self.at_key(&table.pointer("mcp"), code::OUT_OF_RANGE, message);
            self.findings.push(finding);
        }
        let needs = face.as_ref().map_or_else(Vec::new, |face| self.needs(face));
        let mut flag =
            |key: &str| face.as_ref().and_then(|face| self.boolean(face, key)).unwrap_or_default();
        Some(ToolFace {
            read_only: flag("read_only"),
            destructive: flag("destructive"),
            idempotent: flag("idempotent"),
            prompt: flag("prompt"),
            name: own.unwrap_or_else(|| tool_name(name)),
            uri,
            mime_type,
            needs,
            description,
        })
    }

    /// Reads the abilities that a client needs.
    fn needs(&mut self, face: &Table<'_>) -> Vec<ClientAbility> {
        let mut needs = Vec::new();
        for said in self.one_or_more(face, "needs") {
            match said.parse() {
                Ok(ability) if needs.contains(&ability) => {}
                Ok(ability) => needs.push(ability),
                Err(()) => {
                    let what = "one or more of \"elicitation\", \"sampling\" and \"roots\"";
                    self.wrong_type(face, "needs", what, &said.into());
                }
            }
        }
        needs
    }
}
