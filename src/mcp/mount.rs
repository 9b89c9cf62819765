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
    service: Service,
    door: Arc<Door>,
}

/// Returns the router of `/mcp`, whose tools send their requests to `api`.
pub fn router(api: Router, engine: Engine, door: Arc<Door>, tasks: &Tasks) -> Router {
    let desk = Desk::inside(api);
    // The door has checked Host and Origin, and limits bodies. Nothing is kept between requests.
    let config = StreamableHttpServerConfig::default()
        .disable_allowed_hosts()
        .disable_allowed_origins()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        .with_sse_keep_alive(Some(KEEP_ALIVE))
        .with_max_request_body_bytes(MESSAGE)
        .with_cancellation_token(tasks.stopping().clone());
    let manager = Arc::new(NeverSessionManager::default());
    let service = StreamableHttpService::new(move || Ok(desk.clone()), manager, config);
    let rule = Rule { who: Who::AnyBearer, body: MESSAGE, page: None, shape: Shape::Problem };
    let behind = from_fn_with_state((engine, Arc::clone(&door), rule), door::pass);
    Router::new().route("/mcp", any(serve).layer(behind)).with_state(Mcp { service, door })
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
    let request = HttpRequest::from_parts(parts, Body::from(body));
    Ok(mcp.service.handle(request).await.into_response())
}
