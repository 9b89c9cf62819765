//! Calls that are about a task of the session: the same over the socket and over HTTP.

use serde::{Deserialize, de::DeserializeOwned};
use utoipa::ToSchema;

use crate::{
    api::{
        app::Api,
        body::read_json,
        params,
        worker::{ProgressBody, ResultBody},
    },
    door::Problem,
    engine::{Caller, Holder, Report},
    protocol::{Json, TaskId},
};

/// A call in progress.
pub(super) struct Work<'a> {
    pub(super) api: &'a Api,
    pub(super) caller: Caller,
    /// The parameters: a JSON object.
    pub(super) params: &'a str,
}

/// A task that begins.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Accept {
    /// The task.
    #[schema(pattern = "^task_[a-z2-7]{26}$")]
    task: String,
    /// The attempt; by default the newest one that this session was sent.
    attempt: Option<u32>,
}

/// The part of a result that identifies its task; the rest is the body of the worker API.
#[derive(Debug, Deserialize)]
struct Which {
    task: String,
    attempt: Option<u32>,
    idempotency_key: Option<String>,
}

/// A task that is not taken.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Decline {
    /// The task.
    #[schema(pattern = "^task_[a-z2-7]{26}$")]
    task: String,
    /// The attempt; by default the newest one that this session was sent.
    attempt: Option<u32>,
    /// The reason, for a person.
    reason: Option<String>,
    /// Marks a repetition, as the header does.
    #[schema(pattern = "^[!-~]{1,255}$")]
    idempotency_key: Option<String>,
}

/// The progress of a task.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Progress {
    /// The task.
    #[schema(pattern = "^task_[a-z2-7]{26}$")]
    task: String,
    /// The attempt; by default the newest one that this session was sent.
    attempt: Option<u32>,
    /// One line for a person.
    text: Option<String>,
    /// Between 0 and 100.
    percent: Option<f64>,
    /// Anything more.
    #[schema(value_type = Option<serde_json::Value>)]
    data: Option<Json>,
}

/// A question about a task.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Escalate {
    /// The task.
    #[schema(pattern = "^task_[a-z2-7]{26}$")]
    task: String,
    /// The attempt; by default the newest one that this session was sent.
    attempt: Option<u32>,
    /// The question, for a person.
    question: String,
    /// Anything more.
    #[schema(value_type = Option<serde_json::Value>)]
    data: Option<Json>,
}

impl Work<'_> {
    fn read<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        read_json(self.params.as_bytes())
    }

    /// Returns the holder that works on a task: this session, for its current or former attempt.
    async fn holder(&self, task: &str, attempt: Option<u32>) -> Result<Holder, Problem> {
        let task: TaskId = params::id(task).map_err(|problem| problem.at("$.task"))?;
        Ok(self.api.engine.sessions().holder_of(&self.caller, task, attempt).await?)
    }

    /// Accepts a task, and returns the deadline of the attempt.
    pub(super) async fn accept(&self) -> Result<Option<String>, Problem> {
        let Accept { task, attempt } = self.read()?;
        Ok(self.api.engine.sessions().accept(&self.holder(&task, attempt).await?).await?)
    }

    /// Reports a result; returns false if the same one had been accepted before.
    pub(super) async fn report(&self, key: Option<String>) -> Result<bool, Problem> {
        let Which { task, attempt, idempotency_key } = self.read()?;
        let (verdict, usage, effects) = self.read::<ResultBody>()?.into_parts()?;
        let holder = self.holder(&task, attempt).await?;
        let report = Report {
            verdict,
            usage,
            effects,
            body_hash: blake3::hash(self.params.as_bytes()).to_hex().to_string(),
            body: self.params.to_owned(),
            key: params::framed_key(key.or(idempotency_key))?,
        };
        Ok(self.api.engine.tasks().report(&holder, report).await?)
    }

    /// Declines a task; returns false if the same decline had ended its attempt before.
    pub(super) async fn decline(&self, key: Option<String>) -> Result<bool, Problem> {
        let Decline { task, attempt, reason, idempotency_key } = self.read()?;
        let reason = reason.unwrap_or_else(|| "no reason was given".to_owned());
        let key = params::framed_key(key.or(idempotency_key))?;
        let holder = self.holder(&task, attempt).await?;
        Ok(self.api.engine.sessions().decline(&holder, reason, key).await?)
    }

    /// Reports how far a task is.
    pub(super) async fn progress(&self) -> Result<(), Problem> {
        let Progress { task, attempt, text, percent, data } = self.read()?;
        let said = Json::encode(&ProgressBody::new(text, percent, data)?);
        let said = said.expect("progress is plain data");
        Ok(self.api.engine.tasks().progress(&self.holder(&task, attempt).await?, said).await?)
    }

    /// Asks a senior.
    pub(super) async fn escalate(&self) -> Result<(), Problem> {
        let Escalate { task, attempt, question, data } = self.read()?;
        let question = Json::encode(&serde_json::json!({ "question": question, "data": data }));
        let question = question.expect("a question is plain data");
        Ok(self
            .api
            .engine
            .sessions()
            .escalate(&self.holder(&task, attempt).await?, question)
            .await?)
    }
}
