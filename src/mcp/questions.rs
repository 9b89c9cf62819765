//! Questions by which a run asks the client that started it, as elicitation. Approvals are none of
//! them: a run that asks its starter names it (`by = "starter"`), and an approval cannot.

use rmcp::model::{InputRequest, InputRequests, InputResponses};
use serde_json::{Value, json};

use super::{
    answer::{Trouble, cut},
    form::{FIELD, Form, TEXT, form_of},
    transport::{Path, Transport},
};

/// The word of `by` for the client that started the run.
const STARTER: &str = "starter";
/// The maximum number of questions in one result.
const MOST: usize = 20;

/// An open question.
#[derive(Debug)]
pub(super) struct Question {
    agent: String,
    task: String,
    revision: String,
    message: String,
    form: Form,
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

/// Returns the questions as requests to the client; a refused answer is explained.
pub(super) fn requests(
    open: &[Question],
    keys: Keys,
    refused: &[(String, String)],
) -> InputRequests {
    open.iter()
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
        let mut by = task["by"].as_array().into_iter().flatten();
        if !by.any(|who| who == STARTER) {
            return None;
        }
        let message = [text("prompt"), text("summary"), text("agent")];
        let message = message.into_iter().find(|text| !text.is_empty())?;
        let (form, schema) = form_of(&task["output_schema"]);
        Some(Self {
            agent: text("agent").to_owned(),
            task: text("id").to_owned(),
            revision: text("revision").to_owned(),
            message: cut(message, TEXT).to_owned(),
            form,
            schema,
        })
    }

    /// Returns the request to the client.
    pub(super) fn request(&self, refused: Option<&str>) -> InputRequest {
        let message = match refused {
            Some(why) => format!("{}\n\nThe answer before did not fit: {why}", self.message),
            None => self.message.clone(),
        };
        let params = json!({
            "mode": "form", "message": message, "requestedSchema": self.schema,
        });
        let request = json!({ "method": "elicitation/create", "params": params });
        serde_json::from_value(request).expect("its schema has only what clients know")
    }

    /// Reads the response of a client; the error says what does not fit.
    fn read(&self, response: &Value) -> Result<Reply, String> {
        let said = |key: &str, value: Value| {
            Ok(Reply::Said(json!({ key: value, "revision": self.revision })))
        };
        match response["action"].as_str() {
            Some("accept") => {}
            Some("decline") => return said("reject", "the client declined to answer".into()),
            Some("cancel") => return Ok(Reply::Nothing),
            _ => return Err("the action of a response is accept, decline or cancel".to_owned()),
        }
        let content = &response["content"];
        let field = || content.get(FIELD).ok_or_else(|| format!("the field {FIELD} is missing"));
        match self.form {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn question(schema: Value) -> Question {
        let task = json!({ "agent": "ask", "id": "task_a", "revision": "r1", "by": ["ann", "starter"],
            "prompt": "Which?", "output_schema": schema });
        Question::of(&task).expect("it asks the starter")
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
            assert_eq!(question.form, form, "{schema}");
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
        let keys =
            |open: &[Question], keys| requests(open, keys, &[]).into_keys().collect::<Vec<_>>();
        assert_eq!(keys(&open, Keys::Agents), ["ask"]);
        assert_eq!(keys(&open, Keys::Tasks), ["task_a.r1"]);
        let before = digest(&open);
        open.push(Question { task: "task_b".to_owned(), ..question(json!({})) });
        assert_eq!(keys(&open, Keys::Agents), ["task_a.r1", "task_b.r1"]);
        assert_ne!(digest(&open), before);
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
