//! What parties say to each other: plain text, or a list of blocks.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A message; a JSON string when it is text, a JSON array when it has blocks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum Content {
    /// Text alone.
    Text(String),
    /// Blocks, in reading order.
    Blocks(Vec<ContentBlock>),
}

/// One block of a message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum ContentBlock {
    /// Text.
    Text {
        /// The text itself.
        text: String,
    },
    /// A picture.
    Image {
        /// Where its bytes are.
        source: ImageSource,
        /// Its MIME type.
        media_type: String,
    },
    /// A model wants a tool called.
    ToolUse {
        /// The call's id; its result carries the same.
        id: String,
        /// The tool.
        name: String,
        /// The arguments.
        input: Value,
    },
    /// What a tool call gave.
    ToolResult {
        /// The id of the call that this answers.
        tool_use_id: String,
        /// The answer.
        content: String,
        /// Whether the tool failed.
        is_error: bool,
    },
    /// A block that this vocabulary has no word for.
    Custom {
        /// What it is.
        content_type: String,
        /// Its data.
        data: Value,
    },
}

/// Where a picture's bytes are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum ImageSource {
    /// In the message.
    Base64 {
        /// The bytes, in base64.
        data: String,
    },
    /// Elsewhere.
    Url {
        /// The address.
        url: String,
    },
}

impl Content {
    /// A message of text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// The text, or the first text block, if there is any.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Blocks(blocks) => blocks.iter().find_map(ContentBlock::as_text),
        }
    }
}

impl ContentBlock {
    fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text { text } => Some(text),
            Self::Image { .. }
            | Self::ToolUse { .. }
            | Self::ToolResult { .. }
            | Self::Custom { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn text_is_a_string_and_blocks_are_an_array() {
        assert_eq!(serde_json::to_value(Content::text("hi")).unwrap(), json!("hi"));
        assert_eq!(serde_json::from_value::<Content>(json!("hi")).unwrap(), Content::text("hi"));
        assert_eq!(
            serde_json::from_value::<Content>(json!([])).unwrap(),
            Content::Blocks(Vec::new())
        );
        assert!(serde_json::from_value::<Content>(json!({"type": "text", "text": "x"})).is_err());
    }

    #[test]
    fn every_block_survives_a_round_trip() {
        let wire = json!([
            {"type": "text", "text": "a"},
            {"type": "image", "source": {"type": "base64", "data": "AA=="}, "media_type": "image/png"},
            {"type": "image", "source": {"type": "url", "url": "https://x"}, "media_type": "image/png"},
            {"type": "tool_use", "id": "1", "name": "ls", "input": {"path": "."}},
            {"type": "tool_result", "tool_use_id": "1", "content": "ok", "is_error": false},
            {"type": "custom", "content_type": "audio", "data": [1]},
        ]);
        let content: Content = serde_json::from_value(wire.clone()).unwrap();
        assert_eq!(serde_json::to_value(&content).unwrap(), wire);
    }

    #[test]
    fn as_text_is_the_first_text_block() {
        let image = || ContentBlock::Image {
            source: ImageSource::Url { url: "u".into() },
            media_type: "image/png".into(),
        };
        let text = |text: &str| ContentBlock::Text { text: text.into() };
        let content = Content::Blocks(vec![image(), text("first"), text("second")]);
        assert_eq!(content.as_text(), Some("first"));
        assert_eq!(Content::Blocks(vec![image()]).as_text(), None);
        assert_eq!(Content::text("all").as_text(), Some("all"));
    }
}
