//! The content of a message: plain text, or a list of blocks.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The content of a message: a JSON string for text, a JSON array for blocks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum Content {
    /// Plain text.
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
        /// The text.
        text: String,
    },
    /// An image.
    Image {
        /// The location of the bytes.
        source: ImageSource,
        /// The MIME type.
        media_type: String,
    },
    /// A tool call requested by a model.
    ToolUse {
        /// The id of the call; the result carries the same id.
        id: String,
        /// The name of the tool.
        name: String,
        /// The arguments.
        input: Value,
    },
    /// The result of a tool call.
    ToolResult {
        /// The id of the call.
        tool_use_id: String,
        /// The result.
        content: String,
        /// True if the tool failed.
        is_error: bool,
    },
    /// A block of any other type.
    Custom {
        /// The type.
        content_type: String,
        /// The data.
        data: Value,
    },
}

/// The location of the bytes of an image.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum ImageSource {
    /// Inline in the message.
    Base64 {
        /// The bytes, in base64.
        data: String,
    },
    /// At a URL.
    Url {
        /// The URL.
        url: String,
    },
}

impl Content {
    /// Creates a text message.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// Returns the text, or the first text block if there is one.
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
