//! The content of items, for the APIs that represent it differently.

use serde_json::Value;

use super::wrong::untold;
use crate::protocol::Failure;

/// A part of a message, or of the output of a call.
#[derive(Debug, PartialEq)]
pub(super) enum ContentPart<'a> {
    /// Text of any author.
    Text(&'a str),
    /// A refusal of the model, with its reason.
    Refusal(&'a str),
    /// An image.
    Image {
        /// The location of the bytes.
        at: Where<'a>,
        /// The level of detail: `low`, `high`, `auto`.
        detail: Option<&'a str>,
    },
    /// A file.
    File {
        /// The location of the bytes.
        at: Where<'a>,
        /// The file name.
        name: Option<&'a str>,
    },
}

/// The location of bytes.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(super) enum Where<'a> {
    /// In a data URL: the MIME type, and the bytes in base64.
    Data {
        /// `image/png`.
        media_type: &'a str,
        /// The bytes.
        base64: &'a str,
        /// The whole URL.
        url: &'a str,
    },
    /// At a URL.
    Url(&'a str),
    /// Stored by the provider, under an id.
    Id(&'a str),
}

/// Returns the parts of a `content` or an `output`: a text, or a list.
pub(super) fn parts(content: &Value) -> Result<Vec<ContentPart<'_>>, Failure> {
    match content {
        Value::String(text) => Ok(vec![ContentPart::Text(text)]),
        Value::Null => Ok(Vec::new()),
        Value::Array(parts) => parts.iter().map(part).collect(),
        other => Err(untold(format!("an item's content is a text or a list, not {other}"))),
    }
}

fn part(part: &Value) -> Result<ContentPart<'_>, Failure> {
    let text = |key: &str| {
        part[key].as_str().ok_or_else(|| untold(format!("a part has no text `{key}`: {part}")))
    };
    let kind = part["type"].as_str().unwrap_or_default();
    match kind {
        "input_text" | "output_text" | "text" | "summary_text" | "reasoning_text" => {
            text("text").map(ContentPart::Text)
        }
        "refusal" => text("refusal").map(ContentPart::Refusal),
        "input_image" => Ok(ContentPart::Image {
            at: place(part, ["image_url"])?,
            detail: part["detail"].as_str(),
        }),
        "input_file" => Ok(ContentPart::File {
            at: place(part, ["file_data", "file_url"])?,
            name: part["filename"].as_str(),
        }),
        other => Err(untold(format!("there is no part of type {other:?} in this API"))),
    }
}

fn place<'a, const N: usize>(part: &'a Value, keys: [&str; N]) -> Result<Where<'a>, Failure> {
    if let Some(url) = keys.iter().find_map(|key| part[key].as_str()) {
        return at(url);
    }
    match part["file_id"].as_str() {
        Some(id) => Ok(Where::Id(id)),
        None => Err(untold(format!("{} has neither address nor data", part["type"]))),
    }
}

fn at(url: &str) -> Result<Where<'_>, Failure> {
    let Some(data) = url.strip_prefix("data:") else { return Ok(Where::Url(url)) };
    let broken = || untold("a data URL is `data:TYPE;base64,DATA`");
    let (head, base64) = data.split_once(',').ok_or_else(broken)?;
    let media_type = head.strip_suffix(";base64").ok_or_else(broken)?;
    let media_type =
        media_type.split(';').next().filter(|it| it.contains('/')).ok_or_else(broken)?;
    Ok(Where::Data { media_type, base64, url })
}

/// Returns the texts of a content, concatenated.
pub(super) fn text(content: &Value) -> Result<String, Failure> {
    let parts = parts(content)?;
    Ok(parts
        .iter()
        .filter_map(|part| match part {
            ContentPart::Text(text) | ContentPart::Refusal(text) => Some(*text),
            ContentPart::Image { .. } | ContentPart::File { .. } => None,
        })
        .collect())
}

/// Returns the type of an item.
pub(super) fn kind(item: &Value) -> &str {
    match item["type"].as_str() {
        Some(kind) => kind,
        // Open Responses allows messages without a type.
        None if item["role"].is_string() => "message",
        None => "",
    }
}

/// Returns a required text of an item.
pub(super) fn needed<'a>(item: &'a Value, key: &str) -> Result<&'a str, Failure> {
    let text = item[key].as_str().filter(|text| !text.is_empty());
    text.ok_or_else(|| untold(format!("an item of type {:?} has no `{key}`", kind(item))))
}

/// Returns the failure for an item that an API cannot represent.
pub(super) fn unknown(item: &Value, api: &str) -> Failure {
    untold(format!("the {api} API has no word for an item of type {:?}", kind(item)))
}

/// Returns the text of a compaction; fails for a provider's own, which is encrypted.
pub(super) fn compacted(item: &Value) -> Result<String, Failure> {
    let said = ["summary", "content"].into_iter().find_map(|key| item.get(key));
    let text = said.map(text).transpose()?.unwrap_or_default();
    match text.as_str() {
        "" => Err(untold("a compaction that is sealed can only go back to where it came from")),
        _ => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_part_is_read() {
        let content = json!([
            {"type": "input_text", "text": "look"},
            {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "low"},
            {"type": "input_image", "image_url": "https://x/y.png"},
            {"type": "input_file", "file_id": "file_1", "filename": "a.pdf"},
            {"type": "refusal", "refusal": "no"},
        ]);
        let url = "data:image/png;base64,AAAA";
        let data = Where::Data { media_type: "image/png", base64: "AAAA", url };
        let expected = [
            ContentPart::Text("look"),
            ContentPart::Image { at: data, detail: Some("low") },
            ContentPart::Image { at: Where::Url("https://x/y.png"), detail: None },
            ContentPart::File { at: Where::Id("file_1"), name: Some("a.pdf") },
            ContentPart::Refusal("no"),
        ];
        assert_eq!(parts(&content).unwrap(), expected);
        assert_eq!(text(&content).unwrap(), "lookno");
        assert_eq!(parts(&json!("plain")).unwrap(), [ContentPart::Text("plain")]);
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        for (content, expected) in [
            (json!(7), "not 7"),
            (json!([{"type": "input_video"}]), "\"input_video\""),
            (json!([{"type": "input_image"}]), "neither address nor data"),
            (json!([{"type": "input_text"}]), "no text `text`"),
            (json!([{"type": "input_image", "image_url": "data:image/png,AA"}]), "data URL"),
        ] {
            let error = parts(&content).unwrap_err().message;
            assert!(error.contains(expected), "{content}: {error}");
        }
    }
}
