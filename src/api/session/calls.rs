//! A session without a socket: its frames by polling, its calls as requests.
//!
//! Frames, numbers, seats and attempts are those of the socket. A poll is a connection for the time
//! of one request. The token of the session is taken, or the one that opened it.

use std::{io, time::Duration};

use axum::{
    Json as JsonBody,
    body::{Body, Bytes},
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use futures::stream;
use serde::{Deserialize, Serialize};
use tokio::{sync::mpsc, time::timeout};
use utoipa::{IntoParams, ToSchema};

use super::work::{Accept, Decline, Escalate, Progress, Work};
use crate::{
    api::{
        app::Api,
        body::{Posted, Raw},
        params::{self, Asker, At, Key, Params},
        sessions::{RenewBody, RenewedView, ttl},
        tasks::after,
        worker::{AcceptedView, ResultBody},
    },
    door::{Problem, ProblemBody},
    engine::{Caller, PageMemory, SpawnPage, SpawnView, TasksAsk, rfc3339},
    protocol::{Json, SessionId, TaskId},
    tasks::Tasks,
};

/// The maximum number of frames of one poll.
const MOST_FRAMES: usize = 100;
/// The size of the pieces of a long answer.
const PIECE: usize = 64 << 10;
/// The time to take a long answer, as a multiple of the one for a WebSocket message.
const TAKEN: u32 = 3;

/// Which frames, and how long to wait for them.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::api) struct NextParams {
    /// The number of the last frame that was received: it and all before count as acknowledged.
    /// Without it, every frame that was not acknowledged comes again, but for a `task/cancel`.
    after: Option<u64>,
    /// The time to wait for the first frame, such as `30s`: at most a minute, none by default.
    wait: Option<String>,
    /// The maximum number of frames: 1 to 100, 1 by default.
    max: Option<usize>,
}

/// Frames of a session.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::api) struct NextView {
    /// The frames, the oldest first: `task/spawn`, `task/cancel` and `task/answer`, each with its
    /// `seq` and `params`. None if none came in time.
    #[schema(value_type = Vec<Object>)]
    items: Vec<Json>,
    /// Pass it as `after` to the next poll.
    after: u64,
}

/// Returns the next frames of a session and waits for the first one. A newer poll or socket of the
/// session ends this one.
#[utoipa::path(
    post, path = "/v1/sessions/{session}/next", operation_id = "session_next", tag = "operators",
    params(("session" = String, Path, description = "The session's id."), NextParams),
    responses(
        (status = 200, description = "The frames, none if none came in time.", body = NextView),
        (status = 404, description = "`not_found`", body = ProblemBody),
        (status = 409, description = "`wrong_seat`, `seq_ahead`, `replaced`", body = ProblemBody),
    ),
)]
pub(in crate::api) async fn next(
    State(api): State<Api>,
    Asker(caller): Asker,
    At(session): At<String>,
    Params(params): Params<NextParams>,
) -> Result<JsonBody<NextView>, Problem> {
    let NextParams { after, wait, max } = params;
    let most = max.unwrap_or(1);
    if !(1..=MOST_FRAMES).contains(&most) {
        return Err(params::bad_query(format!("max is between 1 and {MOST_FRAMES}")));
    }
    let wait = params::wait(wait.as_deref()).map_err(params::bad_query)?.unwrap_or_default();
    let patience = async {
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = api.stopping.cancelled() => {}
        }
    };
    let session = SessionId::from(session);
    let speaker = api.engine.sessions().speaker(&caller, &session).await?;
    let polled = tokio::select! {
        biased;
        // The end of the session is stored before it ends its polls, which may take long.
        error = caller.token_revoked(&api.engine) => return Err(error.into()),
        error = speaker.token_revoked(&api.engine) => return Err(error.into()),
        polled = api.engine.sessions().poll(&speaker, &session, after, most, patience) => polled?,
    };
    let items = polled.frames.into_iter().map(Json::from_trusted).collect();
    Ok(JsonBody(NextView { items, after: polled.last }))
}

/// Which tasks of a session.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::api) struct TasksParams {
    /// Only this task.
    task: Option<String>,
    /// The maximum number of tasks: 1 to 500, all by default. A page has at most 8 MiB, unless its
    /// only task is larger.
    limit: Option<usize>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

impl TasksParams {
    /// Returns what is to be listed.
    pub(super) fn read(self) -> Result<TasksAsk, Problem> {
        let task = self.task.as_deref().map(params::id::<TaskId>).transpose()?;
        let after = self.cursor.as_deref().map(after).transpose()?;
        let limit = self.limit.map(|limit| params::page_limit(Some(limit))).transpose()?;
        Ok(TasksAsk { task, after, limit: limit.unwrap_or(usize::MAX) })
    }
}

/// A page of a session's tasks.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "the schema of `Page<SpawnView>` in the OpenAPI document")]
pub(in crate::api) struct SpawnList {
    /// The tasks, oldest first.
    items: Vec<SpawnView>,
    /// Pass it as `cursor` to get the next page; null at the end.
    next_cursor: Option<String>,
}

/// Returns the body of a long answer, with the memory that it takes until it is sent. A client that
/// does not take all of it within `patience` gets no more, and keeps no memory.
fn paced(text: Vec<u8>, held: PageMemory, patience: Duration, tasks: &Tasks) -> Body {
    let left = text.len();
    let (pieces, taken) = mpsc::channel::<Bytes>(1);
    // HTTP/2 asks for nothing as long as the client takes nothing.
    tasks.spawn(async move {
        let _held = held;
        let sent = async {
            for piece in text.chunks(PIECE) {
                if pieces.send(Bytes::copy_from_slice(piece)).await.is_err() {
                    return;
                }
            }
        };
        // The body knows how much of it is missing.
        let _ = timeout(patience, sent).await;
    });
    Body::from_stream(stream::unfold((taken, left), |(mut taken, left)| async move {
        match taken.recv().await {
            Some(piece) => {
                let left = left - piece.len();
                Some((Ok(piece), (taken, left)))
            }
            None if left > 0 => Some((Err(io::Error::from(io::ErrorKind::TimedOut)), (taken, 0))),
            None => None,
        }
    }))
}

/// Lists the tasks of a session, with everything that it needs to continue them.
#[utoipa::path(
    get, path = "/v1/sessions/{session}/tasks", operation_id = "session_tasks", tag = "operators",
    params(("session" = String, Path, description = "The session's id."), TasksParams),
    responses(
        (status = 200, description = "A page of the tasks, oldest first.", body = SpawnList),
        (status = 404, description = "`not_found`", body = ProblemBody),
        (status = 409, description = "`wrong_seat`", body = ProblemBody),
    ),
)]
pub(in crate::api) async fn tasks(
    State(api): State<Api>,
    Asker(caller): Asker,
    At(session): At<String>,
    Params(params): Params<TasksParams>,
) -> Result<Response, Problem> {
    let ask = params.read()?;
    let caller = api.engine.sessions().speaker(&caller, &SessionId::from(session)).await?;
    let SpawnPage { page, held } = api.engine.sessions().session_tasks(&caller, ask).await?;
    let text = serde_json::to_vec(&page).expect("answers are plain data");
    let head = [
        (header::CONTENT_TYPE, "application/json".to_owned()),
        (header::CONTENT_LENGTH, text.len().to_string()),
    ];
    let patience = api.door.limits.send_time.saturating_mul(TAKEN);
    Ok((head, paced(text, held, patience, &api.tasks)).into_response())
}

/// When an attempt ends.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::api) struct DeadlineView {
    /// RFC 3339, UTC: the end of the attempt; null if it has none.
    deadline: Option<String>,
}

/// Accepts a task: the attempt counts as delivered, and its time begins.
#[utoipa::path(
    post, path = "/v1/sessions/{session}/accept", operation_id = "session_accept", tag = "operators",
    params(("session" = String, Path, description = "The session's id.")),
    request_body = Accept,
    responses(
        (status = 200, description = "It is delivered.", body = DeadlineView),
        (status = 403, description = "`foreign_task`", body = ProblemBody),
        (status = 404, description = "`not_found`", body = ProblemBody),
        (status = 409, description = "`wrong_seat`, `fenced`, `run_closed`", body = ProblemBody),
    ),
)]
pub(in crate::api) async fn accept(
    State(api): State<Api>,
    Asker(caller): Asker,
    At(session): At<String>,
    raw: Raw,
) -> Result<JsonBody<DeadlineView>, Problem> {
    let deadline = work(&api, &caller, session, &raw).await?.accept().await?;
    Ok(JsonBody(DeadlineView { deadline }))
}

/// The result of a task of a session: the body of `POST /v1/worker/result`, and the task.
#[derive(Debug, ToSchema)]
#[schema(as = SessionReport)]
#[expect(dead_code, reason = "it is only described; a report is read leniently, in two parts")]
pub(in crate::api) struct ReportBody {
    /// The task.
    #[schema(pattern = "^task_[a-z2-7]{26}$")]
    task: String,
    /// The attempt; by default the newest one that this session was sent.
    attempt: Option<u32>,
    #[schema(inline)]
    #[serde(flatten)]
    result: ResultBody,
}

/// Reports how a task went. Accepted exactly once: the same body again is 200, another is 409.
#[utoipa::path(
    post, path = "/v1/sessions/{session}/report", operation_id = "session_report", tag = "operators",
    params(
        ("session" = String, Path, description = "The session's id."),
        ("Idempotency-Key" = Option<String>, Header, description = "Marks a repetition; without it the body does."),
    ),
    request_body = ReportBody,
    responses(
        (status = 200, description = "It is durable.", body = AcceptedView),
        (status = 403, description = "`foreign_task`", body = ProblemBody),
        (status = 404, description = "`not_found`", body = ProblemBody),
        (status = 409, description = "`wrong_seat`, `already_accepted`, `idempotency_mismatch`, `fenced`, `run_closed`", body = ProblemBody),
        (status = 422, description = "`invalid_result` with `path` and `violations`; three of them end the attempt", body = ProblemBody),
    ),
)]
pub(in crate::api) async fn report(
    State(api): State<Api>,
    Asker(caller): Asker,
    At(session): At<String>,
    key: Key,
    raw: Raw,
) -> Result<JsonBody<AcceptedView>, Problem> {
    let first = work(&api, &caller, session, &raw).await?.report(key.bare()).await?;
    Ok(JsonBody(AcceptedView::new(first)))
}

/// Reports how far a task is. It is shown to watchers, and not stored.
#[utoipa::path(
    post, path = "/v1/sessions/{session}/progress", operation_id = "session_progress", tag = "operators",
    params(("session" = String, Path, description = "The session's id.")),
    request_body = Progress,
    responses(
        (status = 204, description = "It is shown."),
        (status = 403, description = "`foreign_task`", body = ProblemBody),
        (status = 404, description = "`not_found`", body = ProblemBody),
        (status = 409, description = "`wrong_seat`, `fenced`, `run_closed`", body = ProblemBody),
    ),
)]
pub(in crate::api) async fn progress(
    State(api): State<Api>,
    Asker(caller): Asker,
    At(session): At<String>,
    raw: Raw,
) -> Result<StatusCode, Problem> {
    work(&api, &caller, session, &raw).await?.progress().await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Asks a senior; the step waits. The answer comes as the frame `task/answer`.
#[utoipa::path(
    post, path = "/v1/sessions/{session}/escalate", operation_id = "session_escalate", tag = "operators",
    params(("session" = String, Path, description = "The session's id.")),
    request_body = Escalate,
    responses(
        (status = 204, description = "It waits."),
        (status = 403, description = "`foreign_task`", body = ProblemBody),
        (status = 404, description = "`not_found`", body = ProblemBody),
        (status = 409, description = "`wrong_seat`, `question_open`, `fenced`, `run_closed`", body = ProblemBody),
    ),
)]
pub(in crate::api) async fn escalate(
    State(api): State<Api>,
    Asker(caller): Asker,
    At(session): At<String>,
    raw: Raw,
) -> Result<StatusCode, Problem> {
    work(&api, &caller, session, &raw).await?.escalate().await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Declines a task: the attempt ends, and the agent's `retry` decides whether another follows.
#[utoipa::path(
    post, path = "/v1/sessions/{session}/decline", operation_id = "session_decline", tag = "operators",
    params(
        ("session" = String, Path, description = "The session's id."),
        ("Idempotency-Key" = Option<String>, Header, description = "Marks a repetition of the decline."),
    ),
    request_body = Decline,
    responses(
        (status = 204, description = "It is declined."),
        (status = 403, description = "`foreign_task`", body = ProblemBody),
        (status = 404, description = "`not_found`", body = ProblemBody),
        (status = 409, description = "`wrong_seat`, `fenced`, `run_closed`", body = ProblemBody),
    ),
)]
pub(in crate::api) async fn decline(
    State(api): State<Api>,
    Asker(caller): Asker,
    At(session): At<String>,
    key: Key,
    raw: Raw,
) -> Result<StatusCode, Problem> {
    work(&api, &caller, session, &raw).await?.decline(key.bare()).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Renews the token of a session: it keeps its id, and is valid for longer.
#[utoipa::path(
    post, path = "/v1/sessions/{session}/renew", operation_id = "session_renew", tag = "operators",
    params(("session" = String, Path, description = "The session's id.")),
    request_body = Option<RenewBody>,
    responses(
        (status = 200, description = "The token.", body = RenewedView),
        (status = 404, description = "`not_found`", body = ProblemBody),
        (status = 409, description = "`wrong_seat`", body = ProblemBody),
    ),
)]
pub(in crate::api) async fn renew(
    State(api): State<Api>,
    Asker(caller): Asker,
    At(session): At<String>,
    posted: Posted<Option<RenewBody>>,
) -> Result<JsonBody<RenewedView>, Problem> {
    let caller = api.engine.sessions().speaker(&caller, &SessionId::from(session)).await?;
    let asked = posted.body.unwrap_or_default().ttl;
    let renewed = api.engine.sessions().renew_session(&caller, ttl(asked.as_deref())?).await?;
    let expires_at = rfc3339(renewed.expires_ms);
    Ok(JsonBody(RenewedView { token: renewed.token, expires_at }))
}

/// Returns the call in a request of a session's client.
async fn work<'a>(
    api: &'a Api,
    caller: &Caller,
    session: String,
    raw: &'a Raw,
) -> Result<Work<'a>, Problem> {
    raw.expect_json()?;
    let caller = api.engine.sessions().speaker(caller, &SessionId::from(session)).await?;
    Ok(Work { api, caller, params: raw.text()? })
}
