//! `/mcp`: the server behind the door, beside the API.
//!
//! A message of the newest revision stands alone, and so does one of an older revision without a
//! session. `initialize` opens a session, and what names it is served in it.

use std::{borrow::Cow, sync::Arc, time::Duration};

use axum::{
    Extension, Json as JsonBody, Router,
    body::Body,
    extract::{Request as HttpRequest, State},
    http::{Method, StatusCode, request::Parts},
    middleware::from_fn_with_state,
    response::{IntoResponse, Response},
    routing::any,
};
use rmcp::{
    model::SubscriptionFilter,
    transport::{
        StreamableHttpServerConfig, StreamableHttpService,
        streamable_http_server::session::never::NeverSessionManager,
    },
};
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

use super::{
    desk::Desk,
    direct::{self, Direct},
    notices::Begun,
    observed::Observed,
    sessions::{HEADER, Sessions},
    tools,
};
use crate::{
    door::{self, Code, Door, Entered, Problem, Rule, Shape, Who},
    engine::{Bearer, Engine},
    tasks::Tasks,
};

/// The maximum size of a message.
const MESSAGE: usize = 8 << 20;
/// The interval of the comments that keep a stream open.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

type Service = StreamableHttpService<Observed, NeverSessionManager>;

/// The state of the route.
struct Mcp {
    /// Answers with JSON.
    service: Service,
    /// Answers with a stream, which has room for progress before the answer.
    streams: Service,
    /// Answers in the session of the client.
    sessions: StreamableHttpService<Observed, Sessions>,
    desk: Desk,
    engine: Engine,
    door: Arc<Door>,
}

/// Returns the router of `/mcp`, whose tools send their requests to `api`.
pub fn router(api: Router, engine: Engine, door: Arc<Door>, tasks: &Tasks) -> Router {
    let changes = engine.blueprints().changes();
    let desk = Desk::inside(api, changes, tasks.stopping().clone());
    // The first list of tools is then as fast as the others.
    drop(tasks.spawn_blocking(tools::all));
    // The door has checked Host and Origin, and limits bodies. Nothing is kept between requests.
    // Calls and subscriptions end by themselves when the host stops, with an answer.
    let config = |is_json| {
        StreamableHttpServerConfig::default()
            .disable_allowed_hosts()
            .disable_allowed_origins()
            .with_legacy_session_mode(false)
            .with_json_response(is_json)
            .with_sse_keep_alive(Some(KEEP_ALIVE))
            .with_max_request_body_bytes(MESSAGE)
    };
    let manager = Arc::new(NeverSessionManager::default());
    let service = |is_json| {
        let observed = Observed::new(desk.clone(), engine.clone());
        let manager = Arc::clone(&manager);
        StreamableHttpService::new(move || Ok(observed.clone()), manager, config(is_json))
    };
    let (service, streams) = (service(true), service(false));
    let book = Sessions::new();
    let mut kept = config(false).with_legacy_session_mode(true);
    kept.session_store = Some(Arc::clone(&book) as _);
    let sessions = {
        let (desk, engine, tasks) = (desk.clone(), engine.clone(), tasks.clone());
        let service = move || Ok(Observed::new(desk.of_session(&tasks), engine.clone()));
        StreamableHttpService::new(service, book, kept)
    };
    let rule = Rule { who: Who::AnyBearer, body: MESSAGE, page: None, shape: Shape::Problem };
    let behind = from_fn_with_state((engine.clone(), Arc::clone(&door), rule), door::pass);
    let mcp = Arc::new(Mcp { service, streams, sessions, desk, engine, door });
    Router::new().route("/mcp", any(serve).layer(behind)).with_state(mcp)
}

async fn serve(
    State(mcp): State<Arc<Mcp>>,
    Extension(entered): Extension<Entered>,
    request: HttpRequest,
) -> Result<Response, Problem> {
    let Some(Bearer::Caller(caller)) = entered.bearer else {
        let detail = "tools take a token for the API; this bearer is for one task";
        return Err(Problem::new(Code::ForbiddenVerb, detail));
    };
    let (mut parts, body) = request.into_parts();
    let named = parts.headers.get(HEADER).map(|id| id.to_str().unwrap_or_default());
    if named.is_some_and(|id| !Sessions::is_of(id, &caller.jti)) {
        let detail = "this token opened no such session; send `initialize` to open one";
        return Err(Problem::new(Code::NotFound, detail));
    }
    let is_named = named.is_some();
    let is_message = parts.method == Method::POST;
    let is_end = parts.method == Method::DELETE;
    let mut body = mcp.door.body(&parts, body, MESSAGE).await?;
    let head = Head::of(&body);
    let opens = is_message && head.method.as_deref() == Some("initialize");
    let listens = head.method.as_deref() == Some("subscriptions/listen");
    let has_progress = head.has_progress();
    let is_call = is_message && !is_named && head.method.as_deref() == Some(direct::CALL);
    if is_call
        && !has_progress
        && let Some(direct) = Direct::read(&parts, &body)
    {
        return Ok(direct.answer(&mcp.desk, &mcp.engine, &parts).await);
    }
    if listens && !is_named {
        match begin(&mcp.desk, &parts, &body).await {
            Ok(Some((begun, message))) => {
                parts.extensions.insert(begun);
                body = message.into();
            }
            // The protocol's own check says what is wrong with it.
            Ok(None) => {}
            Err(refusal) => return Ok(refusal.into_response()),
        }
    }
    let request = HttpRequest::from_parts(parts, Body::from(body.clone()));
    let mut response = match () {
        () if opens => Sessions::opening(&caller.jti, &body, mcp.sessions.handle(request)).await,
        () if is_named => mcp.sessions.handle(request).await,
        () if has_progress && !listens => mcp.streams.handle(request).await,
        () => mcp.service.handle(request).await,
    }
    .into_response();
    if is_end && response.status() == StatusCode::ACCEPTED {
        // It has ended already, and clients take an accepted end for a failed one.
        *response.status_mut() = StatusCode::NO_CONTENT;
    }
    Ok(response)
}

/// Begins the subscription of a message, before it is confirmed. Returns it with the message that
/// asks for what is accepted; none for a message that asks for nothing.
async fn begin(
    desk: &Desk,
    parts: &Parts,
    message: &[u8],
) -> Result<Option<(Begun, Vec<u8>)>, JsonBody<Value>> {
    let mut message: Value = serde_json::from_slice(message).unwrap_or_default();
    let Some(wanted) = message.pointer_mut("/params/notifications") else { return Ok(None) };
    let Ok(filter) = serde_json::from_value::<SubscriptionFilter>(wanted.clone()) else {
        return Ok(None);
    };
    match desk.begin(parts, &filter).await {
        Ok(begun) => {
            *wanted = json!(begun.accepted);
            Ok(Some((begun, message.to_string().into_bytes())))
        }
        Err(error) => {
            Err(JsonBody(json!({ "jsonrpc": "2.0", "id": message["id"], "error": error })))
        }
    }
}

/// The part of a message that decides who answers it.
#[derive(Default, Deserialize)]
struct Head<'a> {
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    params: Option<Params<'a>>,
}

#[derive(Deserialize)]
struct Params<'a> {
    #[serde(rename = "_meta", borrow)]
    meta: Option<Meta<'a>>,
}

#[derive(Deserialize)]
struct Meta<'a> {
    #[serde(rename = "progressToken", borrow)]
    token: Option<&'a RawValue>,
}

impl<'a> Head<'a> {
    fn of(message: &'a [u8]) -> Self {
        serde_json::from_slice(message).unwrap_or_default()
    }

    /// Returns true if the message has a token for the progress of its request.
    fn has_progress(&self) -> bool {
        let meta = self.params.as_ref().and_then(|it| it.meta.as_ref());
        meta.is_some_and(|it| it.token.is_some())
    }
}
