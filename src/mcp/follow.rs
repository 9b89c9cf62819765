//! Calls of blueprints that are tools. A call is a run: it is followed until the run ends, asks its
//! starter something, or has taken as long as a call may. Nothing is kept between two calls: the
//! state of a call names the run and what it asked, and the id of a task of the protocol is the
//! run's.

use std::time::Duration;

use rmcp::{
    RoleServer,
    model::{
        ClientResult, ContentBlock, CreateTaskResult, DetailedTask, GetTaskResult, InputRequest,
        InputRequiredResult, InputResponses, JsonObject, ServerRequest, Task, TaskPayload,
        TaskStatus,
    },
    service::{Peer, PeerRequestOptions},
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{
    answer::{Done, Trouble},
    news::{News, Told},
    questions::{self, Able, Keys, Question, Replied},
    tool::LONGEST_WAIT_S,
    transport::{Path, Transport},
};

/// The time for which one look at a run waits, in seconds.
const LOOK_S: u32 = 5;
/// The same for a client that is told what happens after each look.
const PROGRESS_S: u32 = 1;
/// The time after which a client that takes tasks gets a task in place of a result, in milliseconds.
const QUICK_MS: u32 = 250;
/// The interval at which a client should poll a task, in milliseconds.
const POLL_MS: u64 = 1_000;
/// The time in which a client must answer a question during a call.
const ANSWER_TIME: Duration = Duration::from_secs(600);

/// The abilities of the client of a call.
pub(super) struct Client<'a> {
    /// True if the client takes a task in place of a result.
    pub(super) takes_tasks: bool,
    /// The way to ask it something.
    pub(super) asked: Asked<'a>,
    /// The ways in which it can be asked.
    pub(super) able: Able,
    /// The messages that it gets during the call.
    pub(super) told: Told<'a>,
}

/// The way to ask a client something.
#[derive(Clone, Copy)]
pub(super) enum Asked<'a> {
    /// There is none: people answer in the inbox.
    Never,
    /// With a result that requires input; the client calls again.
    WithResult,
    /// With a request during the call.
    Directly(&'a Peer<RoleServer>),
}

/// The outcome of a call.
#[derive(Debug)]
pub(super) enum Called {
    /// The run has ended, or goes on without this call.
    Done(Done),
    /// The run asks its starter something.
    Asks(InputRequiredResult),
    /// The run goes on as a task.
    Task(CreateTaskResult),
}

/// A call of a blueprint.
pub(super) struct Call<'a> {
    /// The blueprint.
    pub(super) blueprint: &'a str,
    /// The input of its run.
    pub(super) input: Value,
    /// The state of the call before, if its client was asked something.
    pub(super) state: Option<String>,
    /// The answers to that; without a state, to what the run will ask first.
    pub(super) responses: Option<InputResponses>,
}

/// Calls a blueprint. Returns none if the call was canceled; its run is then canceled as well.
pub(super) async fn call(
    transport: &dyn Transport,
    asked: Call<'_>,
    client: &Client<'_>,
    canceled: &CancellationToken,
) -> Option<Result<Called, Trouble>> {
    let Call { blueprint, input, state, responses } = asked;
    if let Some(state) = state {
        let run = state.split_once('.').map(|(_, run)| run.to_owned());
        let responses = responses.unwrap_or_default();
        let called = resume(transport, &state, blueprint, &responses, client);
        return unless_canceled(transport, run, called, canceled).await;
    }
    let body = json!({ "blueprint": blueprint, "input": input });
    // Awaited also if the call is canceled: without its answer, nobody knows which run to cancel.
    let started = match transport.post(Path::new("/v1/runs"), &body).await {
        Ok(started) => started,
        Err(trouble) => return Some(Err(trouble)),
    };
    let run = started["id"].as_str().map(str::to_owned);
    let called = follow(transport, started, responses, client);
    unless_canceled(transport, run, called, canceled).await
}

/// Returns the outcome of a call, or none if it is canceled; its run is then canceled as well.
async fn unless_canceled(
    transport: &dyn Transport,
    run: Option<String>,
    called: impl Future<Output = Result<Called, Trouble>>,
    canceled: &CancellationToken,
) -> Option<Result<Called, Trouble>> {
    tokio::select! {
        biased;
        () = canceled.cancelled() => {}
        called = called => return Some(called),
    }
    if let Some(run) = run {
        cancel(transport, &run).await;
    }
    None
}

/// Follows a run that this call has started.
async fn follow(
    transport: &dyn Transport,
    mut run: Value,
    early: Option<InputResponses>,
    client: &Client<'_>,
) -> Result<Called, Trouble> {
    let id = id_of(&run);
    if client.takes_tasks {
        run = look(transport, &id, format!("{QUICK_MS}ms"), false).await?;
        return Ok(match is_ended(&run) {
            true => Called::Done(shown(&run)),
            false => Called::Task(CreateTaskResult::new(task_of(&run, TaskStatus::Working))),
        });
    }
    follow_on(transport, run, client, Replied::default(), early).await
}

/// Goes on with a call whose client was asked something.
async fn resume(
    transport: &dyn Transport,
    state: &str,
    blueprint: &str,
    responses: &InputResponses,
    client: &Client<'_>,
) -> Result<Called, Trouble> {
    let foreign = || Trouble::Arguments("requestState is not of a call of this tool".to_owned());
    let (asked, run) = state.split_once('.').ok_or_else(foreign)?;
    let run = transport.get(Path::new("/v1/runs").at(run)).await?;
    if run["blueprint"] != blueprint {
        return Err(foreign());
    }
    let open = questions::open(transport, &run).await?;
    let replied = match asked == questions::digest(&open) {
        true => questions::reply(transport, &open, Keys::Agents, responses).await?,
        // What it asked is not what it asks now: that is asked again.
        false => Replied::default(),
    };
    if replied.is_closed && replied.accepted == 0 {
        return Ok(Called::Done(shown(&run)));
    }
    follow_on(transport, run, client, replied, None).await
}

async fn follow_on(
    transport: &dyn Transport,
    mut run: Value,
    client: &Client<'_>,
    mut replied: Replied,
    mut early: Option<InputResponses>,
) -> Result<Called, Trouble> {
    let id = id_of(&run);
    let mut news = News::default();
    // A run that only people are left to answer comes back at once: so only the first look, and
    // that after a reply, end with that.
    let mut for_people = true;
    let look_s = if client.told.is_any() { PROGRESS_S } else { LOOK_S };
    for _ in 0..LONGEST_WAIT_S / look_s {
        if is_ended(&run) {
            // It may have ended before it was looked at.
            news.tell(transport, &run, &client.told).await;
            break;
        }
        run = look(transport, &id, format!("{look_s}s"), for_people).await?;
        for_people = false;
        news.tell(transport, &run, &client.told).await;
        let open = questions::open(transport, &run).await?;
        if open.is_empty() {
            continue;
        }
        if let Some(responses) = early.take() {
            replied = questions::reply(transport, &open, Keys::Agents, &responses).await?;
            if replied.accepted > 0 {
                for_people = true;
                continue;
            }
        }
        let requests = questions::requests(&open, client.able, Keys::Agents, &replied.refused);
        if requests.is_empty() {
            break;
        }
        let peer = match client.asked {
            Asked::Never => break,
            Asked::WithResult => {
                let state = state_of(&run, &open);
                return Ok(Called::Asks(InputRequiredResult::new(Some(requests), Some(state))));
            }
            Asked::Directly(peer) => peer,
        };
        let mut responses = InputResponses::new();
        for (key, request) in requests {
            let Some(response) = ask(peer, request).await else {
                return Ok(Called::Done(shown(&run)));
            };
            responses.insert(key, response);
        }
        replied = questions::reply(transport, &open, Keys::Agents, &responses).await?;
        if replied.is_closed && replied.accepted == 0 {
            break;
        }
        for_people = true;
    }
    Ok(Called::Done(shown(&run)))
}

/// Asks a client during a call; none if it does not answer.
async fn ask(peer: &Peer<RoleServer>, question: InputRequest) -> Option<Value> {
    let question = match question {
        InputRequest::Elicitation(request) => ServerRequest::ElicitRequest(request),
        InputRequest::CreateMessage(request) => ServerRequest::CreateMessageRequest(request),
        InputRequest::ListRoots(request) => ServerRequest::ListRootsRequest(request),
        _ => return None,
    };
    let limit = PeerRequestOptions::with_timeout(ANSWER_TIME);
    let asked = peer.send_cancellable_request(question, limit).await.ok()?;
    match asked.await_response().await.ok()? {
        ClientResult::ElicitResult(answer) => serde_json::to_value(answer),
        ClientResult::CreateMessageResult(answer) => serde_json::to_value(answer),
        ClientResult::ListRootsResult(answer) => serde_json::to_value(answer),
        _ => return None,
    }
    .ok()
}

/// Returns the task of a run as the protocol shows it.
pub(super) async fn task(
    transport: &dyn Transport,
    run: &str,
    able: Able,
) -> Result<GetTaskResult, Trouble> {
    let run = transport.get(Path::new("/v1/runs").at(run)).await?;
    let payload = match run["status"].as_str() {
        Some("canceled") => TaskPayload::Cancelled,
        _ if is_ended(&run) => TaskPayload::Completed { result: result_of(&run) },
        _ => {
            let open = questions::open(transport, &run).await?;
            match questions::requests(&open, able, Keys::Tasks, &[]) {
                requests if requests.is_empty() => TaskPayload::Working,
                input_requests => TaskPayload::InputRequired { input_requests },
            }
        }
    };
    let task = task_of(&run, payload.status());
    Ok(GetTaskResult::new(DetailedTask::new(task, payload)))
}

/// Sends the answers of a client to the questions of a task.
pub(super) async fn update_task(
    transport: &dyn Transport,
    run: &str,
    responses: &InputResponses,
) -> Result<(), Trouble> {
    let run = transport.get(Path::new("/v1/runs").at(run)).await?;
    let open = questions::open(transport, &run).await?;
    let replied = questions::reply(transport, &open, Keys::Tasks, responses).await?;
    match replied.refused.into_iter().next() {
        Some((key, why)) => Err(Trouble::Arguments(format!("{key}: {why}"))),
        None => Ok(()),
    }
}

/// Cancels the run of a task. One that has ended stays as it is.
pub(super) async fn cancel_task(transport: &dyn Transport, run: &str) -> Result<(), Trouble> {
    transport.get(Path::new("/v1/runs").at(run)).await?;
    cancel(transport, run).await;
    Ok(())
}

/// Asks for the end of the run that a canceled call has started.
async fn cancel(transport: &dyn Transport, run: &str) {
    let body = json!({ "reason": "the call of the tool was canceled" });
    // It may have ended.
    let _ = transport.post(Path::new("/v1/runs").at(run).at("cancel"), &body).await;
}

async fn look(
    transport: &dyn Transport,
    run: &str,
    wait: String,
    for_people: bool,
) -> Result<Value, Trouble> {
    let path = Path::new("/v1/runs").at(run).with("wait", Some(wait));
    transport.get(path.with("until", for_people.then_some("people"))).await
}

fn id_of(run: &Value) -> String {
    run["id"].as_str().unwrap_or_default().to_owned()
}

/// The state of a call that asks something.
fn state_of(run: &Value, open: &[Question]) -> String {
    format!("{}.{}", questions::digest(open), id_of(run))
}

fn is_ended(run: &Value) -> bool {
    !run["ended_at"].is_null()
}

fn task_of(run: &Value, status: TaskStatus) -> Task {
    let text = |key: &str| run[key].as_str().unwrap_or_default();
    let mut task = Task::new(id_of(run), status, text("created_at"), text("updated_at"))
        .with_poll_interval_ms(POLL_MS);
    task.status_message = run["status_text"].as_str().map(str::to_owned);
    task
}

fn result_of(run: &Value) -> JsonObject {
    match serde_json::to_value(shown(run).into_result()) {
        Ok(Value::Object(result)) => result,
        _ => JsonObject::new(),
    }
}

/// Returns the content blocks of an output `{content: [block, …]}`; none of any other.
fn blocks_of(output: &Value) -> Vec<ContentBlock> {
    let content = output.get("content").cloned().unwrap_or_default();
    serde_json::from_value(content).unwrap_or_default()
}

fn shown(run: &Value) -> Done {
    let id = id_of(run);
    let status = run["status"].as_str().unwrap_or_default();
    let mut value = json!({ "run": id, "status": status });
    let text = match status {
        "completed" => {
            value["output"] = run["output"].clone();
            let blocks = blocks_of(&run["output"]);
            let text = format!("run {id} is completed");
            return Done::new(value, text).with_blocks(blocks);
        }
        _ if is_ended(run) => {
            let message = run["error"]["message"].as_str().unwrap_or("it was canceled");
            return Done::new(value, format!("run {id} is {status}: {message}")).failed();
        }
        _ => format!(
            "run {id} goes on; call get_run with run and wait_seconds for its end. If it asks you, \
             list_inbox shows what, and answer_task answers"
        ),
    };
    Done::new(value, text)
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use axum::body::Bytes;
    use parking_lot::Mutex;
    use rmcp::{ServerHandler, model::ClientCapabilities, service::serve_directly};
    use tokio::sync::watch;

    use super::*;
    use crate::mcp::{
        answer::Broken,
        transport::{Pieces, Reply, Request},
    };

    /// A host, and a call that is canceled before the host has answered its first request.
    #[derive(Default)]
    struct Late {
        canceled: CancellationToken,
        requests: Mutex<Vec<String>>,
    }

    #[async_trait]
    impl Transport for Late {
        async fn send(&self, request: Request) -> Result<Reply, Broken> {
            self.requests.lock().push(format!("{} {}", request.method, request.path));
            self.canceled.cancel();
            tokio::task::yield_now().await;
            let body = Bytes::from_static(br#"{"id": "run_x"}"#);
            Ok(Reply { status: 201, kind: "application/json".to_owned(), body })
        }

        async fn stream(&self, _path: &str) -> Result<Pieces, Broken> {
            Err(Broken("it has no streams".to_owned()))
        }

        fn moves(&self) -> Option<watch::Receiver<u64>> {
            None
        }
    }

    /// A server that offers nothing.
    struct Nothing;

    impl ServerHandler for Nothing {}

    #[tokio::test]
    async fn a_call_that_is_canceled_while_its_run_starts_cancels_the_run() {
        let (near, _far) = tokio::io::duplex(64);
        let served = serve_directly::<RoleServer, _, _, _, _>(Nothing, near, None);
        let client = Client {
            takes_tasks: false,
            asked: Asked::Never,
            able: Able::of(&ClientCapabilities::default()),
            told: Told { peer: served.peer(), progress: None, logs: None },
        };
        let host = Late::default();
        let asked = Call { blueprint: "b", input: json!({}), state: None, responses: None };
        let called = call(&host, asked, &client, &host.canceled).await;
        assert!(called.is_none());
        assert_eq!(*host.requests.lock(), ["POST /v1/runs", "POST /v1/runs/run_x/cancel"]);
    }
}
