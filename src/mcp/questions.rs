//! Questions by which a run asks the client that started it: its user by elicitation, its model by
//! sampling, or for its directories. Approvals are none of them: a run that asks its starter names it
//! (`by = "starter"`), and an approval cannot.

use rmcp::{
    ErrorData,
    model::{ClientCapabilities, ErrorCode, InputRequest, InputRequests, InputResponses},
};
use serde_json::{Map, Value, json};

use super::{
    answer::{Trouble, cut},
    form::{FIELD, Form, TEXT, form_of},
    transport::{Path, Transport},
};
use crate::blueprint::ClientAbility;

/// The maximum number of questions in one result.
const MOST: usize = 20;
/// The maximum number of tokens of an answer of the client's model.
const TOKENS: u32 = 4_096;

/// The way in which a client is asked something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Its user fills in a form.
    Form(Form),
    /// Its model writes a text; true if that is JSON.
    Model(bool),
    /// The client lists the directories that it works in.
    Roots,
}

/// The ways in which a client can be asked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Able {
    forms: bool,
    model: bool,
    roots: bool,
}

impl Able {
    /// Returns those that a client has declared.
    pub(super) fn of(client: &ClientCapabilities) -> Self {
        let elicits = client.elicitation.as_ref();
        Self {
            forms: elicits.is_some_and(|it| it.form.is_some() || it.url.is_none()),
            model: client.sampling.is_some(),
            roots: client.roots.is_some(),
        }
    }

    /// Returns true if there is any.
    pub(super) fn is_any(self) -> bool {
        self.forms || self.model || self.roots
    }

    /// Returns the error of a call whose client lacks what the blueprint needs.
    pub(super) fn check(self, needs: &[ClientAbility]) -> Result<(), ErrorData> {
        let has = |need: &ClientAbility| match need {
            ClientAbility::Elicitation => self.forms,
            ClientAbility::Sampling => self.model,
            ClientAbility::Roots => self.roots,
        };
        let missing: Vec<&ClientAbility> = needs.iter().filter(|need| !has(need)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let names: Vec<Value> = missing.iter().map(|need| json!(need)).collect();
        let names: Vec<&str> = names.iter().filter_map(Value::as_str).collect();
        let required: Map<String, Value> =
            names.iter().map(|name| ((*name).to_owned(), json!({}))).collect();
        let message = format!(
            "this asks its client during the call, and the client has not declared: {}",
            names.join(", ")
        );
        let data = json!({ "requiredCapabilities": required });
        Err(ErrorData::new(ErrorCode::MISSING_REQUIRED_CLIENT_CAPABILITY, message, Some(data)))
    }

    fn has(self, way: Way) -> bool {
        match way {
            Way::Form(_) => self.forms,
            Way::Model(_) => self.model,
            Way::Roots => self.roots,
        }
    }
}

/// An open question.
#[derive(Debug)]
pub(super) struct Question {
    agent: String,
    task: String,
    revision: String,
    message: String,
    way: Way,
    /// The schema of the form, or of the JSON.
    schema: Value,
}

/// The response of a client to a question.
#[derive(Debug, PartialEq)]
enum Reply {
    /// The body of the reply.
    Said(Value),
    /// Nothing: the question stays open.
    Nothing,
}

/// The outcome of the replies of a client.
#[derive(Debug, Default)]
pub(super) struct Replied {
    /// The number of replies that were accepted.
    pub(super) accepted: usize,
    /// True if the client closed a question without an answer.
    pub(super) is_closed: bool,
    /// The refusals of answers that did not fit, by the key of their question.
    pub(super) refused: Vec<(String, String)>,
}

/// Returns the questions by which a run asks its starter. A token that may not read tasks has none.
pub(super) async fn open(transport: &dyn Transport, run: &Value) -> Result<Vec<Question>, Trouble> {
    let waits = run["waiting_on"].as_array().into_iter().flatten();
    let people = waits.filter(|wait| wait["subject"]["operator_kind"] == "human");
    let tasks = people.filter_map(|wait| wait["subject"]["task"].as_str());
    let mut open = Vec::new();
    for task in tasks.take(MOST) {
        match transport.get(Path::new("/v1/tasks").at(task)).await {
            Ok(task) => open.extend(Question::of(&task)),
            // It was answered meanwhile, or is not for this token.
            Err(Trouble::Refused { status: 400..500, .. }) => {}
            Err(trouble) => return Err(trouble),
        }
    }
    Ok(open)
}

/// The keys of the questions of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keys {
    /// The agent that asks, if only one of these does: the state of the result says which question
    /// that was.
    Agents,
    /// The task and its revision, which are unique for as long as a task of the protocol lives.
    Tasks,
}

impl Keys {
    fn of(self, question: &Question, open: &[Question]) -> String {
        let is_one = open.iter().filter(|other| other.agent == question.agent).count() == 1;
        match self {
            Self::Agents if is_one => question.agent.clone(),
            Self::Agents | Self::Tasks => format!("{}.{}", question.task, question.revision),
        }
    }
}

/// Returns the questions that a client can be asked, as requests to it; a refused answer is explained.
pub(super) fn requests(
    open: &[Question],
    able: Able,
    keys: Keys,
    refused: &[(String, String)],
) -> InputRequests {
    open.iter()
        .filter(|question| able.has(question.way))
        .map(|question| {
            let key = keys.of(question, open);
            let why = refused.iter().find(|(of, _)| *of == key).map(|(_, why)| why.as_str());
            (key, question.request(why))
        })
        .collect()
}

/// Returns a digest of exactly these questions, as they are shown.
pub(super) fn digest(open: &[Question]) -> String {
    let mut hasher = blake3::Hasher::new();
    for question in open {
        hasher.update(Keys::Tasks.of(question, open).as_bytes());
    }
    hasher.finalize().to_hex()[..16].to_owned()
}

/// Sends the answers of a client. Those to questions that are not open any more have no effect.
pub(super) async fn reply(
    transport: &dyn Transport,
    open: &[Question],
    keys: Keys,
    responses: &InputResponses,
) -> Result<Replied, Trouble> {
    let mut replied = Replied::default();
    for question in open {
        let key = keys.of(question, open);
        let Some(response) = responses.get(&key) else { continue };
        let body = match question.read(response) {
            Ok(Reply::Said(body)) => body,
            Ok(Reply::Nothing) => {
                replied.is_closed = true;
                continue;
            }
            Err(why) => {
                replied.refused.push((key, why));
                continue;
            }
        };
        let path = Path::new("/v1/tasks").at(&question.task).at("reply");
        match transport.post(path, &body).await {
            Ok(_) => replied.accepted += 1,
            Err(Trouble::Refused { status: 422, detail, .. }) => {
                replied.refused.push((key, detail));
            }
            // Somebody else answered it, or it changed.
            Err(Trouble::Refused { status: 404 | 409, .. }) => {}
            Err(trouble) => return Err(trouble),
        }
    }
    Ok(replied)
}

impl Question {
    fn of(task: &Value) -> Option<Self> {
        let text = |key: &str| task[key].as_str().unwrap_or_default();
        let mut by = task["by"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let wanted = &task["output_schema"];
        let (way, schema) = by.find_map(|who| {
            let is_json = wanted.is_object() && wanted["type"] != "string";
            match who {
                "starter" => {
                    let (form, schema) = form_of(wanted);
                    Some((Way::Form(form), schema))
                }
                "starter:model" => Some((Way::Model(is_json), wanted.clone())),
                "starter:roots" => Some((Way::Roots, Value::Null)),
                _ => None,
            }
        })?;
        let message = [text("prompt"), text("summary"), text("agent")];
        let message = message.into_iter().find(|text| !text.is_empty())?;
        Some(Self {
            agent: text("agent").to_owned(),
            task: text("id").to_owned(),
            revision: text("revision").to_owned(),
            message: cut(message, TEXT).to_owned(),
            way,
            schema,
        })
    }

    /// Returns the request to the client.
    pub(super) fn request(&self, refused: Option<&str>) -> InputRequest {
        let mut message = self.message.clone();
        if self.way == Way::Model(true) {
            let schema = self.schema.to_string();
            let schema = cut(&schema, TEXT);
            message.push_str(&format!("\n\nAnswer with JSON alone, of this schema: {schema}"));
        }
        if let Some(why) = refused {
            message.push_str(&format!("\n\nThe answer before did not fit: {why}"));
        }
        let request = match self.way {
            Way::Form(_) => json!({ "method": "elicitation/create", "params": {
                "mode": "form", "message": message, "requestedSchema": self.schema } }),
            Way::Model(_) => json!({ "method": "sampling/createMessage", "params": {
                "messages": [{ "role": "user", "content": { "type": "text", "text": message } }],
                "maxTokens": TOKENS } }),
            Way::Roots => json!({ "method": "roots/list" }),
        };
        serde_json::from_value(request).expect("its schema has only what clients know")
    }

    /// Reads the response of a client; the error says what does not fit.
    fn read(&self, response: &Value) -> Result<Reply, String> {
        let said = |key: &str, value: Value| {
            Ok(Reply::Said(json!({ key: value, "revision": self.revision })))
        };
        let form = match self.way {
            Way::Form(form) => form,
            Way::Model(is_json) => return said("output", read_message(response, is_json)?),
            Way::Roots => {
                let roots = response.get("roots").filter(|roots| roots.is_array());
                return said("output", roots.ok_or("a response has the array roots")?.clone());
            }
        };
        match response["action"].as_str() {
            Some("accept") => {}
            Some("decline") => return said("reject", "the client declined to answer".into()),
            Some("cancel") => return Ok(Reply::Nothing),
            _ => return Err("the action of a response is accept, decline or cancel".to_owned()),
        }
        let content = &response["content"];
        let field = || content.get(FIELD).ok_or_else(|| format!("the field {FIELD} is missing"));
        match form {
            Form::Flat => said("output", content.clone()),
            Form::Field => said("output", field()?.clone()),
            Form::Text => {
                let text = field()?.as_str().unwrap_or_default();
                let parsed = serde_json::from_str(text);
                said("output", parsed.map_err(|error| format!("{FIELD} is not JSON: {error}"))?)
            }
        }
    }
}

/// Reads the message of a model: its text, or the JSON in it.
fn read_message(response: &Value, is_json: bool) -> Result<Value, String> {
    let content = &response["content"];
    let blocks = content.as_array().map_or(std::slice::from_ref(content), Vec::as_slice);
    let texts = blocks.iter().filter(|block| block["type"] == "text");
    let texts: Vec<&str> = texts.filter_map(|block| block["text"].as_str()).collect();
    if texts.is_empty() {
        return Err("the message of the model has no text".to_owned());
    }
    let text = texts.concat();
    if !is_json {
        return Ok(text.into());
    }
    let bare = text.trim();
    let fenced = bare.strip_prefix("```").and_then(|it| it.strip_suffix("```"));
    let bare = fenced.map_or(bare, |it| it.strip_prefix("json").unwrap_or(it));
    serde_json::from_str(bare).map_err(|error| format!("the model wrote no JSON: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(schema: Value) -> Question {
        asks("starter", schema)
    }

    fn asks(by: &str, schema: Value) -> Question {
        let task = json!({ "agent": "ask", "id": "task_a", "revision": "r1", "by": ["ann", by],
            "prompt": "Which?", "output_schema": schema });
        Question::of(&task).expect("it asks the starter")
    }

    fn able() -> Able {
        Able { forms: true, model: true, roots: true }
    }

    fn read(schema: Value, response: Value) -> Result<Value, String> {
        question(schema).read(&response).map(|reply| match reply {
            Reply::Said(body) => body,
            Reply::Nothing => Value::Null,
        })
    }

    #[test]
    fn only_what_names_the_starter_is_asked() {
        assert!(
            Question::of(&json!({ "id": "t", "prompt": "Ship?", "by": ["approver"] })).is_none()
        );
        assert!(Question::of(&json!({ "id": "t", "prompt": "Ship?" })).is_none());
    }

    #[test]
    fn every_schema_becomes_a_form_that_clients_know() {
        let flat = json!({ "type": "object", "required": ["a"], "additionalProperties": false,
            "properties": { "a": { "type": "string", "enum": ["x", "y"] },
                "b": { "type": "integer", "minimum": 1, "multipleOf": 2 },
                "c": { "type": "string", "format": "ipv4" }, "d": { "type": "boolean" } } });
        let deep = json!({ "type": "object", "properties": { "a": { "type": "array" } } });
        for (schema, form) in [
            (flat, Form::Flat),
            (json!({ "type": "string", "maxLength": 3 }), Form::Field),
            (json!({ "type": "integer", "enum": [1, 2] }), Form::Text),
            (deep, Form::Text),
            (json!({}), Form::Text),
            (Value::Null, Form::Text),
        ] {
            let question = question(schema.clone());
            assert_eq!(question.way, Way::Form(form), "{schema}");
            let shown = json!(question.request(Some("too long")));
            assert_eq!(shown["method"], "elicitation/create");
            let message = shown["params"]["message"].as_str().unwrap();
            assert!(message.starts_with("Which?") && message.ends_with("did not fit: too long"));
            let fields = shown["params"]["requestedSchema"]["properties"].as_object().unwrap();
            assert!(!fields.is_empty());
        }
    }

    #[test]
    fn a_question_has_the_name_of_its_agent_unless_another_has_it_too() {
        let mut open = vec![question(json!({}))];
        let keys = |open: &[Question], keys| {
            requests(open, able(), keys, &[]).into_keys().collect::<Vec<_>>()
        };
        assert_eq!(keys(&open, Keys::Agents), ["ask"]);
        assert_eq!(keys(&open, Keys::Tasks), ["task_a.r1"]);
        let before = digest(&open);
        open.push(Question { task: "task_b".to_owned(), ..question(json!({})) });
        assert_eq!(keys(&open, Keys::Agents), ["task_a.r1", "task_b.r1"]);
        assert_ne!(digest(&open), before);
    }

    #[test]
    fn a_model_is_asked_for_a_text_or_for_json() {
        let text = asks("starter:model", json!({ "type": "string" }));
        let shown = json!(text.request(None));
        assert_eq!(shown["method"], "sampling/createMessage");
        assert_eq!(shown["params"]["messages"][0]["content"]["text"], "Which?");
        let wrote = |text: &str| {
            json!({ "role": "assistant", "model": "m",
            "content": { "type": "text", "text": text } })
        };
        let read = |question: &Question, response: Value| match question.read(&response) {
            Ok(Reply::Said(body)) => Ok(body["output"].clone()),
            Ok(Reply::Nothing) => Ok(Value::Null),
            Err(why) => Err(why),
        };
        assert_eq!(read(&text, wrote("{}")), Ok(json!("{}")));
        let blocks = json!({ "content": [{ "type": "text", "text": "a" }, { "type": "image" },
            { "type": "text", "text": "b" }] });
        assert_eq!(read(&text, blocks), Ok(json!("ab")));
        assert!(read(&text, json!({ "content": { "type": "image" } })).is_err());
        let number = asks("starter:model", json!({ "type": "integer" }));
        let shown = json!(number.request(Some("too large")))["params"]["messages"].to_string();
        assert!(shown.contains("integer") && shown.contains("too large"), "{shown}");
        assert_eq!(read(&number, wrote(" 7\n")), Ok(json!(7)));
        assert_eq!(read(&number, wrote("```json\n7\n```")), Ok(json!(7)));
        assert!(read(&number, wrote("seven")).unwrap_err().contains("no JSON"));
        let roots = asks("starter:roots", Value::Null);
        assert_eq!(json!(roots.request(None))["method"], "roots/list");
        let listed = json!([{ "uri": "file:///a" }]);
        assert_eq!(read(&roots, json!({ "roots": listed })), Ok(listed));
        assert!(read(&roots, json!({})).is_err());
    }

    #[test]
    fn a_client_is_asked_only_for_what_it_can_do() {
        let open = [
            asks("starter", Value::Null),
            Question { task: "task_b".to_owned(), ..asks("starter:model", Value::Null) },
            Question { task: "task_c".to_owned(), ..asks("starter:roots", Value::Null) },
        ];
        let methods = |able: Value| -> Vec<String> {
            let able = Able::of(&serde_json::from_value(able).unwrap());
            let asked = json!(requests(&open, able, Keys::Tasks, &[]));
            let asked = asked.as_object().unwrap().values();
            asked.map(|it| it["method"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(methods(json!({})), [""; 0]);
        assert_eq!(methods(json!({ "elicitation": {} })), ["elicitation/create"]);
        assert_eq!(methods(json!({ "elicitation": { "url": {} } })), [""; 0]);
        let both = json!({ "sampling": {}, "roots": {} });
        assert_eq!(methods(both), ["sampling/createMessage", "roots/list"]);
    }

    #[test]
    fn a_response_becomes_the_body_of_a_reply() {
        let accept = |content| json!({ "action": "accept", "content": content });
        let object = json!({ "type": "object", "properties": { "a": { "type": "string" } } });
        let said = read(object.clone(), accept(json!({ "a": "x" }))).unwrap();
        assert_eq!(said, json!({ "output": { "a": "x" }, "revision": "r1" }));
        let said = read(json!({ "type": "string" }), accept(json!({ "answer": "x" }))).unwrap();
        assert_eq!(said["output"], "x");
        let said = read(json!({ "type": "array" }), accept(json!({ "answer": "[1]" }))).unwrap();
        assert_eq!(said["output"], json!([1]));
        assert!(
            read(json!({}), accept(json!({ "answer": "[" }))).unwrap_err().contains("not JSON")
        );
        assert!(read(json!({}), accept(json!({}))).unwrap_err().contains("missing"));
        let said = read(object.clone(), json!({ "action": "decline" })).unwrap();
        assert_eq!(said["reject"], "the client declined to answer");
        assert_eq!(read(object.clone(), json!({ "action": "cancel" })).unwrap(), Value::Null);
        assert!(read(object, json!({})).unwrap_err().contains("action"));
    }
}
