//! `/mcp`: the server behind the door, beside the API.

use std::{sync::Arc, time::Duration};

use axum::{
    Extension, Router,
    body::Body,
    extract::{Request as HttpRequest, State},
    middleware::from_fn_with_state,
    response::{IntoResponse, Response},
    routing::any,
};
use rmcp::transport::{
    StreamableHttpServerConfig, StreamableHttpService,
    streamable_http_server::session::never::NeverSessionManager,
};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::desk::Desk;
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
    door: Arc<Door>,
}

/// Returns the router of `/mcp`, whose tools send their requests to `api`.
pub fn router(api: Router, engine: Engine, door: Arc<Door>, tasks: &Tasks) -> Router {
    let desk = Desk::inside(api);
    // The door has checked Host and Origin, and limits bodies. Nothing is kept between requests.
    let config = |is_json| {
        StreamableHttpServerConfig::default()
            .disable_allowed_hosts()
            .disable_allowed_origins()
            .with_legacy_session_mode(false)
            .with_json_response(is_json)
            .with_sse_keep_alive(Some(KEEP_ALIVE))
            .with_max_request_body_bytes(MESSAGE)
            .with_cancellation_token(tasks.stopping().clone())
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
    Router::new().route("/mcp", any(serve).layer(behind)).with_state(Mcp { service, streams, door })
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
    let (parts, body) = request.into_parts();
    let body = mcp.door.body(&parts, body, MESSAGE).await?;
    let service = if asks_for_progress(&body) { &mcp.streams } else { &mcp.service };
    let request = HttpRequest::from_parts(parts, Body::from(body));
    Ok(service.handle(request).await.into_response())
}

/// Returns true if a message has a token for the progress of its request.
fn asks_for_progress(message: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Message<'a> {
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
    message.and_then(|it| it.params?.meta?.token).is_some()
}
