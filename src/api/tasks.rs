//! Tasks that wait for somebody outside the flow, and their answers.

use axum::{Json as JsonBody, extract::State, http::StatusCode};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{
    app::Api,
    body::Posted,
    params::{self, Asker, At, Key, Params},
    run_list::sought,
};
use crate::{
    blueprint::parse_duration,
    door::{Arrival, Code, Problem, ProblemBody},
    engine::{Answer, AnsweredView, LINK_MS, Page, Sought, TaskView, rfc3339},
    protocol::{Json, RunId},
    store::TaskFilter,
};

/// Which tasks to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListParams {
    /// Only tasks of this operator.
    operator: Option<String>,
    /// Only tasks of operators of this kind.
    #[param(example = "human")]
    kind: Option<String>,
    /// Only tasks of this run.
    run: Option<String>,
    /// `open` (the default), or `answered`: the answers of the last 30 days, newest first.
    #[param(inline)]
    state: Option<Listed>,
    /// The same as `state`.
    #[param(inline)]
    status: Option<Listed>,
    /// Only tasks that ask the holder of this token, or answers that they gave.
    mine: Option<bool>,
    /// Only tasks whose agent, summary, question or prompt (up to 64 KiB) has all these words; or answers
    /// whose agent or subject has them. A page looks at 2,000 tasks at most, and may be short.
    q: Option<String>,
    /// Items on a page: 1 to 500, 50 by default.
    limit: Option<usize>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

/// The state of a listed task.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Listed {
    /// The task waits for somebody, or somebody has it.
    Open,
    /// People answered it.
    Answered,
}

impl ListParams {
    fn into_filter(self) -> Result<TaskFilter, Problem> {
        let run = self.run.as_deref().map(params::id::<RunId>).transpose()?;
        Ok(TaskFilter {
            operator: self.operator,
            kind: self.kind,
            run: run.map(RunId::num),
            after: self.cursor.as_deref().map(after).transpose()?,
            limit: params::page_limit(self.limit)?,
        })
    }
}

pub(super) fn after(cursor: &str) -> Result<(u64, u32), Problem> {
    cursor
        .split_once('-')
        .and_then(|(run, step)| Some((run.parse().ok()?, step.parse().ok()?)))
        .ok_or_else(|| params::bad_query("cursor is not one of this list's"))
}

/// A page of tasks.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "the schema of `Page<TaskView>` in the OpenAPI document")]
pub(super) struct TaskPage {
    /// The open tasks, oldest first, without prompt, input and schema.
    items: Vec<TaskView>,
    /// Pass it as `cursor` to get the next page; null at the end.
    next_cursor: Option<String>,
}

/// A page of tasks, or of answers.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(super) enum InboxPage {
    /// Open tasks, oldest first.
    #[schema(value_type = TaskPage)]
    Open(Page<TaskView>),
    /// Answers, newest first.
    #[schema(value_type = AnsweredPage)]
    Answered(Page<AnsweredView>),
}

/// A page of answers.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "the schema of `Page<AnsweredView>` in the OpenAPI document")]
pub(super) struct AnsweredPage {
    /// The answers, newest first.
    items: Vec<AnsweredView>,
    /// Pass it as `cursor` to get the next page; null at the end.
    next_cursor: Option<String>,
}

/// Lists open tasks, oldest first; or the answers of people, newest first.
#[utoipa::path(
    get, path = "/v1/tasks", operation_id = "task_list", tag = "tasks",
    params(ListParams),
    responses(
        (status = 200, description = "A page of tasks.", body = InboxPage),
        (status = 404, description = "`not_found`: `cursor` or `run` names nothing", body = ProblemBody),
    ),
)]
pub(super) async fn list(
    State(api): State<Api>,
    Asker(caller): Asker,
    Params(mut params): Params<ListParams>,
) -> Result<JsonBody<InboxPage>, Problem> {
    let tasks = api.engine.tasks();
    let text = params.q.take().map(sought).transpose()?;
    let sought = Sought { mine: params.mine == Some(true), text: text.as_deref() };
    if let Some(Listed::Answered) = params.status.or(params.state) {
        if params.operator.is_some() || params.kind.is_some() || params.run.is_some() {
            let detail = "answers are listed for all tasks: leave out operator, kind and run";
            return Err(params::bad_query(detail));
        }
        let (limit, cursor) = (params::page_limit(params.limit)?, params.cursor.as_deref());
        let page = tasks.answered(&caller, sought, cursor, limit).await?;
        return Ok(JsonBody(InboxPage::Answered(page)));
    }
    let filter = params.into_filter()?;
    Ok(JsonBody(InboxPage::Open(match sought.mine || sought.text.is_some() {
        true => tasks.find(&caller, filter, sought).await?,
        false => tasks.list(&caller, filter).await?,
    })))
}

/// Shows a task with its prompt, its input and the schema of an answer.
#[utoipa::path(
    get, path = "/v1/tasks/{task}", operation_id = "task_get", tag = "tasks",
    params(("task" = String, Path, description = "The task's id.")),
    responses(
        (status = 200, description = "The task.", body = TaskView),
        (status = 404, description = "`not_found`", body = ProblemBody),
    ),
)]
pub(super) async fn get(
    State(api): State<Api>,
    Asker(caller): Asker,
    At(task): At<String>,
) -> Result<JsonBody<TaskView>, Problem> {
    Ok(JsonBody(api.engine.tasks().get(&caller, params::id(&task)?).await?))
}

/// The answer of a person to a task: `output`, or `reject`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AnswerBody {
    /// The output of the task; null is one.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<serde_json::Value>)]
    output: Option<Json>,
    /// The reason for the refusal.
    reject: Option<String>,
    /// The `revision` of the task that was shown; with it, an answer to anything else is refused.
    revision: Option<String>,
}

/// Distinguishes an explicit `null` from an absent field.
pub(super) fn present<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Json>, D::Error> {
    Json::deserialize(from).map(Some)
}

impl AnswerBody {
    fn into_answer(self) -> Result<(Answer, Option<String>), Problem> {
        match (self.output, self.reject) {
            (Some(output), None) => Ok((Answer::Output(output), self.revision)),
            (None, Some(reason)) => Ok((Answer::Reject { reason }, self.revision)),
            (None, None) | (Some(_), Some(_)) => {
                Err(Problem::new(Code::InvalidBody, "give either `output` or `reject`").at("$"))
            }
        }
    }
}

/// Answers a task that waits for a person; the answer is checked against the task's schema. Where
/// several must answer, the task stays open until enough have, or one says no.
#[utoipa::path(
    post, path = "/v1/tasks/{task}/answer", operation_id = "task_answer", tag = "tasks",
    params(
        ("task" = String, Path, description = "The task's id."),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes a repetition harmless for 24 hours."),
    ),
    request_body = AnswerBody,
    responses(
        (status = 200, description = "The task, answered, or open with its answers so far.", body = TaskView),
        (status = 403, description = "`wrong_role`, `self_approval`", body = ProblemBody),
        (status = 404, description = "`not_found`", body = ProblemBody),
        (status = 409, description = "`already_accepted`, `already_answered`, `stale_task`, `not_human`, `run_closed`, `idempotency_mismatch`", body = ProblemBody),
        (status = 422, description = "`invalid_result` with `violations`", body = ProblemBody),
    ),
)]
pub(super) async fn answer(
    State(api): State<Api>,
    Asker(caller): Asker,
    At(task): At<String>,
    key: Key,
    posted: Posted<AnswerBody>,
) -> Result<JsonBody<TaskView>, Problem> {
    let answer = posted.body.into_answer()?;
    let key = key.of("POST /v1/tasks/{task}/answer", &posted.raw);
    Ok(JsonBody(api.engine.tasks().answer(&caller, params::id(&task)?, answer, key).await?))
}

/// For whom to make a link.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct LinkBody {
    /// The name of the person who answers with it: one that a token minted by the caller could have.
    #[serde(rename = "for")]
    person: String,
    /// The lifetime of the link; at most, and by default, `"7d"`.
    #[schema(pattern = "^([1-9][0-9]{0,2}[smh]|[1-7]d)$")]
    ttl: Option<String>,
}

/// A link that answers one task, once.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct LinkView {
    /// The address to give to the person, and to nobody else. It is shown this once.
    url: String,
    /// The same without the host, for one that is reached under another name.
    path: String,
    /// The subject that answers with it.
    #[serde(rename = "for")]
    person: String,
    /// The revision of the task that it answers.
    revision: String,
    /// RFC 3339, UTC.
    expires_at: String,
}

/// Makes a link with which a person answers the task once, without signing in. Whoever could mint a
/// token for that person may; nobody who belongs to the run's work or is behind it. It ends with the
/// first answer, with another revision of the task, and after at most 7 days.
#[utoipa::path(
    post, path = "/v1/tasks/{task}/links", operation_id = "task_link", tag = "tasks",
    params(("task" = String, Path, description = "The task's id.")),
    request_body = LinkBody,
    responses(
        (status = 201, description = "The link.", body = LinkView),
        (status = 403, description = "`forbidden_verb`, `token_widens`, `wrong_role`, `self_approval`", body = ProblemBody),
        (status = 404, description = "`not_found`", body = ProblemBody),
        (status = 409, description = "`already_accepted`, `not_human`, `run_closed`", body = ProblemBody),
    ),
)]
pub(super) async fn link(
    State(api): State<Api>,
    Asker(caller): Asker,
    arrival: Arrival,
    At(task): At<String>,
    posted: Posted<LinkBody>,
) -> Result<(StatusCode, JsonBody<LinkView>), Problem> {
    let LinkBody { person, ttl } = posted.body;
    let ttl_ms = ttl.as_deref().map_or(Ok(LINK_MS), parse_duration);
    let ttl_ms = ttl_ms.map_err(|error| {
        Problem::new(Code::InvalidBody, format!("failed to {error}")).at("$.ttl")
    })?;
    let made = api.engine.tasks().link(&caller, params::id(&task)?, &person, ttl_ms).await?;
    let path = format!("/ui/answer/{}", made.secret);
    let view = LinkView {
        url: format!("{}{path}", arrival.site.as_deref().unwrap_or(api.engine.url())),
        path,
        person: made.person,
        revision: made.revision,
        expires_at: rfc3339(made.expires_ms),
    };
    Ok((StatusCode::CREATED, JsonBody(view)))
}

/// Replies to a task by which a run asks the client that started it (`by = "starter"`), as that
/// client. It takes no right to answer for people.
#[utoipa::path(
    post, path = "/v1/tasks/{task}/reply", operation_id = "task_reply", tag = "tasks",
    params(
        ("task" = String, Path, description = "The task's id."),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes a repetition harmless for 24 hours."),
    ),
    request_body = AnswerBody,
    responses(
        (status = 200, description = "The task, answered.", body = TaskView),
        (status = 403, description = "`wrong_role`, `self_approval`", body = ProblemBody),
        (status = 404, description = "`not_found`", body = ProblemBody),
        (status = 409, description = "`already_accepted`, `already_answered`, `stale_task`, `not_human`, `run_closed`, `idempotency_mismatch`", body = ProblemBody),
        (status = 422, description = "`invalid_result` with `violations`", body = ProblemBody),
    ),
)]
pub(super) async fn reply(
    State(api): State<Api>,
    Asker(caller): Asker,
    At(task): At<String>,
    key: Key,
    posted: Posted<AnswerBody>,
) -> Result<JsonBody<TaskView>, Problem> {
    let answer = posted.body.into_answer()?;
    let key = key.of("POST /v1/tasks/{task}/reply", &posted.raw);
    Ok(JsonBody(api.engine.tasks().reply(&caller, params::id(&task)?, answer, key).await?))
}

/// Ends the time of a task that waits for a person, as if it had run out: its flow hears
/// `timeout`, or it is asked again where its agent retries.
#[utoipa::path(
    post, path = "/v1/tasks/{task}/expire", operation_id = "task_expire", tag = "tasks",
    params(
        ("task" = String, Path, description = "The task's id."),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes a repetition harmless for 24 hours."),
    ),
    responses(
        (status = 200, description = "The task, over, or asked again.", body = TaskView),
        (status = 403, description = "`self_approval`", body = ProblemBody),
        (status = 404, description = "`not_found`", body = ProblemBody),
        (status = 409, description = "`already_accepted`, `not_human`, `run_closed`, `idempotency_mismatch`", body = ProblemBody),
    ),
)]
pub(super) async fn expire(
    State(api): State<Api>,
    Asker(caller): Asker,
    At(task): At<String>,
    key: Key,
) -> Result<JsonBody<TaskView>, Problem> {
    let key = key.of("POST /v1/tasks/{task}/expire", b"");
    Ok(JsonBody(api.engine.tasks().expire(&caller, params::id(&task)?, key).await?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::body::read_json;

    fn answer_of(text: &str) -> Result<Answer, &'static str> {
        read_json::<AnswerBody>(text.as_bytes())
            .and_then(AnswerBody::into_answer)
            .map(|(answer, _)| answer)
            .map_err(|problem| problem.code().as_str())
    }

    #[test]
    fn an_answer_is_an_output_or_a_no() {
        assert!(
            matches!(answer_of(r#"{"output":null}"#), Ok(Answer::Output(json)) if json.is_null())
        );
        assert!(
            matches!(answer_of(r#"{"reject":"not yet"}"#), Ok(Answer::Reject { reason }) if reason == "not yet")
        );
        for text in ["{}", r#"{"output":1,"reject":"x"}"#] {
            assert_eq!(answer_of(text).unwrap_err(), "invalid_body");
        }
    }

    #[test]
    fn a_cursor_is_a_run_and_a_step() {
        assert_eq!(after("12-3").unwrap(), (12, 3));
        for cursor in ["", "12", "a-b", "1-2-3"] {
            assert!(after(cursor).is_err(), "{cursor}");
        }
    }
}
