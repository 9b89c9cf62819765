//! Blueprints as prompts and as resources: those whose key `mcp` says so, and whose publisher may
//! bring code. To get one is a run.

use rmcp::model::{
    ContentBlock, JsonObject, Prompt, PromptArgument, PromptMessage, Resource, ResourceContents,
    ResourceTemplate, Role,
};
use serde_json::Value;

use super::{prompts, published::needs_of};
use crate::blueprint::ClientAbility;

/// A blueprint as a prompt or as a resource.
#[derive(Debug)]
pub(super) struct Offered {
    /// The blueprint.
    pub(super) blueprint: String,
    /// The hash of its version.
    pub(super) version: String,
    /// The abilities that a client needs to get the prompt or the resource.
    pub(super) needs: Vec<ClientAbility>,
    face: Value,
    input: Value,
}

/// Returns those of the API's list that are prompts or resources.
pub(super) fn of(listed: &Value) -> Vec<Offered> {
    let items = listed["items"].as_array().into_iter().flatten();
    let offered = items.filter_map(|item| {
        let face = &item["tool"];
        (face["prompt"] == true || face["uri"].is_string()).then(|| Offered {
            blueprint: item["name"].as_str().unwrap_or_default().to_owned(),
            version: item["hash"].as_str().unwrap_or_default().to_owned(),
            needs: needs_of(face),
            face: face.clone(),
            input: item["input"].clone(),
        })
    });
    offered.collect()
}

impl Offered {
    fn name(&self) -> &str {
        self.face["name"].as_str().unwrap_or_default()
    }

    /// Returns the description.
    pub(super) fn text(&self) -> &str {
        self.face["description"].as_str().unwrap_or_default()
    }

    fn uri(&self) -> Option<&str> {
        self.face["uri"].as_str()
    }

    fn kind(&self) -> Option<&str> {
        self.face["mime_type"].as_str()
    }

    /// Returns true if it is the prompt of that name.
    pub(super) fn is_prompt(&self, name: &str) -> bool {
        self.face["prompt"] == true && self.name() == name
    }

    /// Returns the prompt as the protocol shows it, unless the name is one of this server's.
    pub(super) fn prompt(&self) -> Option<Prompt> {
        if !self.is_prompt(self.name()) || prompts::is_own(self.name()) {
            return None;
        }
        let required = self.input["required"].as_array().cloned().unwrap_or_default();
        let properties = self.input["properties"].as_object().into_iter().flatten();
        let arguments = properties.map(|(name, schema)| {
            let argument = PromptArgument::new(name.as_str());
            let argument = argument.with_required(required.iter().any(|it| it == name));
            match schema["description"].as_str() {
                Some(text) => argument.with_description(text),
                None => argument,
            }
        });
        let arguments: Vec<_> = arguments.collect();
        let arguments = (!arguments.is_empty()).then_some(arguments);
        let prompt = Prompt::new(self.name(), Some(self.text()), arguments);
        Some(prompt.with_title(self.blueprint.as_str()))
    }

    /// Returns the resource as the protocol shows it, if its address has no places.
    pub(super) fn resource(&self) -> Option<Resource> {
        let uri = self.uri().filter(|uri| !uri.contains('{'))?;
        let resource = Resource::new(uri, self.name());
        let resource = resource.with_title(self.blueprint.as_str()).with_description(self.text());
        Some(match self.kind() {
            Some(kind) => resource.with_mime_type(kind),
            None => resource,
        })
    }

    /// Returns the template as the protocol shows it, if its address has places.
    pub(super) fn template(&self) -> Option<ResourceTemplate> {
        let uri = self.uri().filter(|uri| uri.contains('{'))?;
        let template = ResourceTemplate::new(uri, self.name()).with_description(self.text());
        Some(match self.kind() {
            Some(kind) => template.with_mime_type(kind),
            None => template,
        })
    }

    /// Returns the input for an address: what stands at its places.
    pub(super) fn matches(&self, uri: &str) -> Option<JsonObject> {
        let mut places = JsonObject::new();
        let (mut pattern, mut rest) = (self.uri()?, uri);
        while let Some(start) = pattern.find('{') {
            let (before, place) = pattern.split_at(start);
            rest = rest.strip_prefix(before)?;
            let (name, after) = place[1..].split_once('}')?;
            // A place ends at the next letter of the pattern, or with its part of the path.
            let end = after.chars().next().unwrap_or('/');
            let length = rest.find([end, '/']).unwrap_or(rest.len());
            if length == 0 {
                return None;
            }
            places.insert(name.to_owned(), rest[..length].into());
            (pattern, rest) = (after, &rest[length..]);
        }
        (rest == pattern).then(|| self.input(places))
    }

    /// Returns the input for texts: those whose schema is of another type are read as JSON.
    pub(super) fn input(&self, mut given: JsonObject) -> JsonObject {
        for (name, value) in &mut given {
            let kind = self.input["properties"][name]["type"].as_str();
            if let (Some("integer" | "number" | "boolean" | "object" | "array"), Some(text)) =
                (kind, value.as_str())
                && let Ok(read) = serde_json::from_str(text)
            {
                *value = read;
            }
        }
        given
    }

    /// Returns the contents of a resource for the output of its run: a text, `{text}` or `{blob}`.
    pub(super) fn contents(&self, uri: &str, output: &Value) -> ResourceContents {
        let text = output.as_str().or_else(|| output["text"].as_str());
        let contents = match (text, output["blob"].as_str()) {
            (Some(text), _) => ResourceContents::text(text, uri),
            (None, Some(blob)) => ResourceContents::blob(blob, uri),
            (None, None) => {
                let text = ResourceContents::text(output.to_string(), uri);
                return text.with_mime_type(self.kind().unwrap_or("application/json"));
            }
        };
        match self.kind() {
            Some(kind) => contents.with_mime_type(kind),
            None => contents,
        }
    }
}

/// Returns the messages for the output of a prompt's run: a text, content blocks, or messages.
pub(super) fn messages(output: &Value) -> Vec<PromptMessage> {
    let list = |key: &str| output.get(key).cloned().unwrap_or_default();
    let messages: Vec<PromptMessage> = serde_json::from_value(list("messages")).unwrap_or_default();
    if !messages.is_empty() {
        return messages;
    }
    let blocks: Vec<ContentBlock> = serde_json::from_value(list("content")).unwrap_or_default();
    if !blocks.is_empty() {
        return blocks.into_iter().map(|block| PromptMessage::new(Role::User, block)).collect();
    }
    let text = output.as_str().map_or_else(|| output.to_string(), str::to_owned);
    vec![PromptMessage::new_text(Role::User, text)]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn offered(face: Value) -> Offered {
        let input = json!({ "type": "object", "required": ["id"], "properties": {
            "id": { "type": "integer", "description": "Which." }, "part": { "type": "string" } } });
        Offered {
            blueprint: "notes".to_owned(),
            version: String::new(),
            needs: Vec::new(),
            face,
            input,
        }
    }

    #[test]
    fn an_address_gives_the_input_of_its_places() {
        let notes = offered(json!({ "uri": "notes://{id}/parts/{part}.txt" }));
        let input = notes.matches("notes://12/parts/a.txt").unwrap();
        assert_eq!(Value::Object(input), json!({ "id": 12, "part": "a" }));
        for other in [
            "notes://12/parts/.txt",
            "notes://12/x/parts/a.txt",
            "notes://12/parts/a.txt/b",
            "notes:///parts/a.txt",
            "other://12/parts/a.txt",
            "notes://12/parts/a/b.txt",
            "",
        ] {
            assert!(notes.matches(other).is_none(), "{other}");
        }
        assert!(notes.resource().is_none() && notes.template().is_some());
        let one = offered(json!({ "uri": "notes://all", "mime_type": "text/plain" }));
        assert!(one.matches("notes://all").is_some() && one.matches("notes://all/x").is_none());
        assert!(one.resource().is_some() && one.template().is_none() && one.prompt().is_none());
    }

    #[test]
    fn an_output_becomes_contents_or_messages() {
        let notes = offered(json!({ "uri": "notes://all", "mime_type": "text/plain" }));
        let shown = |output| json!(notes.contents("notes://all", &output));
        assert_eq!(shown(json!("hi"))["text"], "hi");
        assert_eq!(shown(json!({ "text": "hi" }))["mimeType"], "text/plain");
        assert_eq!(shown(json!({ "blob": "aGk=" }))["blob"], "aGk=");
        assert_eq!(shown(json!([1]))["text"], "[1]");
        let said = |output| json!(messages(&output));
        assert_eq!(said(json!("hi"))[0]["content"]["text"], "hi");
        let block = |text: &str| json!({ "type": "text", "text": text });
        let blocks = json!({ "content": [block("a"), block("b")] });
        assert_eq!(said(blocks)[1]["content"]["text"], "b");
        let own = json!([{ "role": "assistant", "content": block("x") }]);
        assert_eq!(said(json!({ "messages": own })), own);
        assert_eq!(said(json!({ "n": 1 }))[0]["content"]["text"], r#"{"n":1}"#);
    }

    #[test]
    fn a_prompt_has_the_arguments_of_the_input() {
        let prompt = json!(offered(json!({ "prompt": true, "name": "n" })).prompt().unwrap());
        let first = json!({ "name": "id", "description": "Which.", "required": true });
        assert_eq!((&prompt["arguments"][0], &prompt["name"]), (&first, &json!("n")));
        assert!(offered(json!({ "prompt": true, "name": "debug-run" })).prompt().is_none());
    }
}
