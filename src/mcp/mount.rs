//! `/mcp`: the server behind the door, beside the API.

use std::{borrow::Cow, sync::Arc, time::Duration};

use axum::{
    Extension, Json as JsonBody, Router,
    body::Body,
    extract::{Request as HttpRequest, State},
    http::HeaderMap,
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

use super::{desk::Desk, notices::Begun};
use crate::{
    door::{self, Code, Door, Problem, Rule, Shape, Who},
    engine::{Bearer, Engine},
    tasks::Tasks,
};

/// The maximum size of a message.
const MESSAGE: usize = 8 << 20;
/// The interval of the comments that keep a stream open.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

type Service = StreamableHttpService<Desk, NeverSessionManager>;

/// The state of the route.
#[derive(Clone)]
struct Mcp {
    /// Answers with JSON.
    service: Service,
    /// Answers with a stream, which has room for progress before the answer.
    streams: Service,
    desk: Desk,
    door: Arc<Door>,
}

/// Returns the router of `/mcp`, whose tools send their requests to `api`.
pub fn router(api: Router, engine: Engine, door: Arc<Door>, tasks: &Tasks) -> Router {
    let changes = engine.blueprints().changes();
    let desk = Desk::inside(api, changes, tasks.stopping().clone());
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
        let desk = desk.clone();
        let manager = Arc::clone(&manager);
        StreamableHttpService::new(move || Ok(desk.clone()), manager, config(is_json))
    };
    let (service, streams) = (service(true), service(false));
    let rule = Rule { who: Who::AnyBearer, body: MESSAGE, page: None, shape: Shape::Problem };
    let behind = from_fn_with_state((engine, Arc::clone(&door), rule), door::pass);
    Router::new().route("/mcp", any(serve).layer(behind)).with_state(Mcp {
        service,
        streams,
        desk,
        door,
    })
}

async fn serve(
    State(mcp): State<Mcp>,
    Extension(bearer): Extension<Bearer>,
    request: HttpRequest,
) -> Result<Response, Problem> {
    if matches!(bearer, Bearer::Holder(_)) {
        let detail = "tools take a token for the API; this bearer is for one task";
        return Err(Problem::new(Code::ForbiddenVerb, detail));
    }
    let (mut parts, body) = request.into_parts();
    let mut body = mcp.door.body(&parts, body, MESSAGE).await?;
    let service = match Kind::of(&body) {
        Kind::Answered => &mcp.service,
        Kind::WithProgress => &mcp.streams,
        Kind::Listens => {
            match begin(&mcp.desk, &parts.headers, &body).await {
                Ok(Some((begun, message))) => {
                    parts.extensions.insert(begun);
                    body = message.into();
                }
                // The protocol's own check says what is wrong with it.
                Ok(None) => {}
                Err(refusal) => return Ok(refusal.into_response()),
            }
            &mcp.service
        }
    };
    let request = HttpRequest::from_parts(parts, Body::from(body));
    Ok(service.handle(request).await.into_response())
}

/// Begins the subscription of a message, before it is confirmed. Returns it with the message that
/// asks for what is accepted; none for a message that asks for nothing.
async fn begin(
    desk: &Desk,
    headers: &HeaderMap,
    message: &[u8],
) -> Result<Option<(Begun, Vec<u8>)>, JsonBody<Value>> {
    let mut message: Value = serde_json::from_slice(message).unwrap_or_default();
    let Some(wanted) = message.pointer_mut("/params/notifications") else { return Ok(None) };
    let Ok(filter) = serde_json::from_value::<SubscriptionFilter>(wanted.clone()) else {
        return Ok(None);
    };
    match desk.begin(headers, &filter).await {
        Ok(begun) => {
            *wanted = json!(begun.accepted);
            Ok(Some((begun, message.to_string().into_bytes())))
        }
        Err(error) => {
            Err(JsonBody(json!({ "jsonrpc": "2.0", "id": message["id"], "error": error })))
        }
    }
}

/// What a message needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// An answer.
    Answered,
    /// A stream for progress before the answer.
    WithProgress,
    /// A stream of notices.
    Listens,
}

impl Kind {
    fn of(message: &[u8]) -> Self {
        #[derive(Deserialize)]
        struct Message<'a> {
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
        let message: Option<Message<'_>> = serde_json::from_slice(message).ok();
        let Some(message) = message else { return Self::Answered };
        let token = message.params.and_then(|it| it.meta?.token);
        match (message.method.as_deref(), token) {
            (Some("subscriptions/listen"), _) => Self::Listens,
            (_, Some(_)) => Self::WithProgress,
            (_, None) => Self::Answered,
        }
    }
}
