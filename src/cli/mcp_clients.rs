//! The configuration files of MCP clients: where they are, and how our entry is added and removed.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde_json::{Map, Value, json};

/// The name of our entry.
const NAME: &str = "moonswarm";
/// The variable with the file of the token.
pub const TOKEN_FILE: &str = "MOONSWARM_TOKEN_FILE";
/// The variable with the file of certificates to trust.
pub const CA: &str = "MOONSWARM_CA";
/// The header of our table, and the beginning of the headers of those below it.
const TABLE: &str = "[mcp_servers.moonswarm]";
const BELOW: &str = "[mcp_servers.moonswarm.";

/// A client whose configuration is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum McpClient {
    /// Claude Code: `.mcp.json`, `~/.claude.json`.
    ClaudeCode,
    /// Codex: `.codex/config.toml`.
    Codex,
    /// Cursor: `.cursor/mcp.json`.
    Cursor,
}

/// Whose configuration is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Reach {
    /// That of the current directory.
    Project,
    /// That of the user.
    User,
}

/// The command with which a client starts the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The program.
    pub command: String,
    /// Its environment.
    pub env: Vec<(&'static str, String)>,
}

impl Entry {
    /// The entry as JSON.
    pub fn to_json(&self) -> Value {
        let env: Map<String, Value> =
            self.env.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
        json!({ "command": self.command, "args": ["mcp"], "env": env })
    }

    fn to_toml(&self) -> String {
        let text = |value: &str| toml::Value::from(value).to_string();
        let mut lines = vec![
            TABLE.to_owned(),
            format!("command = {}", text(&self.command)),
            "args = [\"mcp\"]".to_owned(),
            String::new(),
            format!("{BELOW}env]"),
        ];
        lines.extend(self.env.iter().map(|(name, value)| format!("{name} = {}", text(value))));
        lines.join("\n") + "\n"
    }
}

impl McpClient {
    /// Every client.
    pub const ALL: [Self; 3] = [Self::ClaudeCode, Self::Codex, Self::Cursor];

    /// Our entry in the text of its file: the program, and the file of the token.
    pub fn entry_in(self, text: &str) -> Option<(PathBuf, PathBuf)> {
        let (program, token) = match self {
            Self::Codex => {
                let root = text.parse::<toml::Table>().ok()?;
                let ours = root.get("mcp_servers")?.get(NAME)?;
                let token = ours.get("env")?.get(TOKEN_FILE)?;
                (ours.get("command")?.as_str()?.to_owned(), token.as_str()?.to_owned())
            }
            Self::ClaudeCode | Self::Cursor => {
                let root = object(text).ok()?;
                let ours = root.get("mcpServers")?.get(NAME)?;
                let token = ours["env"][TOKEN_FILE].as_str()?;
                (ours["command"].as_str()?.to_owned(), token.to_owned())
            }
        };
        Some((program.into(), token.into()))
    }

    /// The word of the command line.
    pub fn word(self) -> &'static str {
        match self {
            Self::ClaudeCode => "claude-code",
            Self::Codex => "codex",
            Self::Cursor => "cursor",
        }
    }

    /// The file that is changed.
    pub fn file(self, reach: Reach, home: &Path, here: &Path) -> PathBuf {
        let root = match reach {
            Reach::Project => here,
            Reach::User => home,
        };
        root.join(match (self, reach) {
            (Self::ClaudeCode, Reach::Project) => ".mcp.json",
            (Self::ClaudeCode, Reach::User) => ".claude.json",
            (Self::Codex, _) => ".codex/config.toml",
            (Self::Cursor, _) => ".cursor/mcp.json",
        })
    }

    /// The addition to the file, for a person.
    pub fn shown(self, entry: &Entry) -> String {
        match self {
            Self::Codex => entry.to_toml(),
            Self::ClaudeCode | Self::Cursor => {
                let servers = json!({ "mcpServers": { NAME: entry.to_json() } });
                format!("{servers:#}")
            }
        }
    }

    /// The text of the file with our entry, in place of an earlier one.
    ///
    /// # Errors
    /// A file that is not what it should be; it is left alone.
    pub fn with(self, text: &str, entry: &Entry) -> Result<String, String> {
        if self == Self::Codex {
            let mut text = self.without(text)?.unwrap_or_else(|| text.to_owned());
            if !text.is_empty() && !text.ends_with('\n') {
                text.push('\n');
            }
            if !text.is_empty() {
                text.push('\n');
            }
            text.push_str(&entry.to_toml());
            return checked(text);
        }
        let mut root = object(text)?;
        let servers = root.entry("mcpServers").or_insert_with(|| json!({}));
        let servers = servers.as_object_mut().ok_or("mcpServers is not an object")?;
        servers.insert(NAME.to_owned(), entry.to_json());
        Ok(format!("{:#}\n", Value::Object(root)))
    }

    /// The text of the file without our entry; none, if it has none.
    ///
    /// # Errors
    /// A file that is not what it should be; it is left alone.
    pub fn without(self, text: &str) -> Result<Option<String>, String> {
        if self == Self::Codex {
            checked(text.to_owned())?;
            let (mut kept, mut ours, mut found) = (String::new(), false, false);
            for line in text.split_inclusive('\n') {
                let head = line.trim();
                if head.starts_with('[') {
                    ours = head.starts_with(TABLE) || head.starts_with(BELOW);
                    found |= ours;
                }
                if !ours {
                    kept.push_str(line);
                }
            }
            // The empty line that was put before it goes as well.
            let kept = format!("{}\n", kept.trim_end());
            let kept = if kept == "\n" { String::new() } else { kept };
            return if found { checked(kept).map(Some) } else { Ok(None) };
        }
        let mut root = object(text)?;
        let Some(servers) = root.get_mut("mcpServers").and_then(Value::as_object_mut) else {
            return Ok(None);
        };
        if servers.shift_remove(NAME).is_none() {
            return Ok(None);
        }
        if servers.is_empty() {
            root.shift_remove("mcpServers");
        }
        Ok(Some(format!("{:#}\n", Value::Object(root))))
    }
}

fn object(text: &str) -> Result<Map<String, Value>, String> {
    if text.trim().is_empty() {
        return Ok(Map::new());
    }
    match serde_json::from_str(text) {
        Ok(Value::Object(root)) => Ok(root),
        Ok(_) => Err("it is not a JSON object".to_owned()),
        Err(error) => Err(format!("it is not JSON: {error}")),
    }
}

fn checked(text: String) -> Result<String, String> {
    match text.parse::<toml::Table>() {
        Ok(_) => Ok(text),
        Err(error) => Err(format!("it is not TOML: {}", error.message())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Entry {
        let env = vec![("MOONSWARM_TOKEN_FILE", "/home/a b/\"x\".token".to_owned())];
        Entry { command: "moonswarm".to_owned(), env }
    }

    #[test]
    fn our_entry_is_added_beside_others_and_taken_back() {
        let json = "{\n  \"theme\": \"dark\",\n  \"mcpServers\": {\n    \"other\": {\n      \"command\": \"x\"\n    }\n  }\n}\n";
        let toml = "model = \"m\" # mine\n\n[mcp_servers.other]\ncommand = \"x\"\n";
        for (client, before) in
            [(McpClient::ClaudeCode, json), (McpClient::Cursor, json), (McpClient::Codex, toml)]
        {
            let once = client.with(before, &entry()).unwrap();
            let (program, token) = client.entry_in(&once).unwrap();
            assert_eq!(program, Path::new("moonswarm"));
            assert_eq!(token, Path::new("/home/a b/\"x\".token"));
            assert_eq!(client.entry_in(before), None);
            assert!(once.contains("MOONSWARM_TOKEN_FILE") && once.contains("other"), "{once}");
            assert_eq!(client.with(&once, &entry()).unwrap(), once, "twice is once");
            assert_eq!(client.without(&once).unwrap().as_deref(), Some(before));
            assert_eq!(client.without(before).unwrap(), None, "nothing of ours is there");
        }
    }

    #[test]
    fn a_table_after_ours_stays() {
        let text = format!("{}\n[tools]\nweb = true\n", entry().to_toml());
        assert_eq!(
            McpClient::Codex.without(&text).unwrap().as_deref(),
            Some("[tools]\nweb = true\n")
        );
    }

    #[test]
    fn a_file_that_is_new_gets_our_entry_alone_and_a_broken_one_is_left() {
        for client in [McpClient::ClaudeCode, McpClient::Codex, McpClient::Cursor] {
            let text = client.with("", &entry()).unwrap();
            assert!(text.starts_with(['{', '[']), "{text}");
            assert!(client.with("[broken", &entry()).is_err());
            assert!(client.without("[broken").is_err());
        }
        assert!(McpClient::Cursor.with("[1]", &entry()).is_err());
    }
}
