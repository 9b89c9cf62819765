//! The front of a node: one listener for clients and one for nodes, whose requests go to the engine of this
//! process while it drives, and to the node that drives otherwise.

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::{Request, State},
    http::{HeaderName, StatusCode},
    response::{IntoResponse as _, Response},
};
use parking_lot::RwLock;
use serde_json::json;
use tokio::sync::watch;
use tower::ServiceExt as _;

use super::{
    Code,
    arrival::Arrival,
    forward::{Forwarder, Passed},
    help::{self, HELP, OnHelp},
    links::{DATABASE, NOT_DRIVER},
    problem::Problem,
    unanswered::{given_up, no_driver},
};

/// The header of the answers of a node that does not drive.
const NOTHING_DONE: [(HeaderName, &str); 1] = [(NOT_DRIVER, "1")];

/// Says whether nobody else can have taken over.
pub type IsTrusted = Arc<dyn Fn() -> bool + Send + Sync>;

/// The front of a node.
#[derive(Clone)]
pub struct Front(Arc<Inner>);

struct Inner {
    role: RwLock<Option<Role>>,
    /// True while there is a role.
    drives: watch::Sender<bool>,
    /// Absent for a listener whose requests are for this process alone.
    forwarder: Option<Forwarder>,
    /// The router that answers such requests while this node stands by.
    aside: Option<Router>,
}

/// The routes that answer while this node drives.
#[derive(Clone)]
struct Role {
    router: Router,
    is_trusted: IsTrusted,
    /// Absent if this node lends no runs.
    on_help: Option<OnHelp>,
}

impl Front {
    /// Creates the front of a node that stands by.
    pub fn new(forwarder: Forwarder) -> Self {
        Self(Arc::new(Inner {
            role: RwLock::default(),
            drives: watch::Sender::new(false),
            forwarder: Some(forwarder),
            aside: None,
        }))
    }

    /// Creates a front whose requests are for this process alone: `aside` answers while this node stands
    /// by.
    pub fn of_process(aside: Router) -> Self {
        Self(Arc::new(Inner {
            role: RwLock::default(),
            drives: watch::Sender::new(false),
            forwarder: None,
            aside: Some(aside),
        }))
    }

    /// Sends requests to `router` from now on, as long as the lease is trusted, and nodes that want to help
    /// to `on_help`.
    pub fn drive(&self, router: Router, is_trusted: IsTrusted, on_help: Option<OnHelp>) {
        *self.0.role.write() = Some(Role { router, is_trusted, on_help });
        self.0.drives.send_replace(true);
    }

    /// Sends requests to the node that drives from now on.
    pub fn stand_by(&self) {
        self.0.drives.send_replace(false);
        *self.0.role.write() = None;
    }

    /// Returns the router of the listener for clients.
    pub fn router(&self) -> Router {
        Router::new().fallback(of_client).with_state(self.clone())
    }

    /// Returns the router of the listener for nodes.
    pub fn router_of_nodes(&self) -> Router {
        Router::new().fallback(of_node).with_state(self.clone())
    }

    fn role(&self) -> Option<Role> {
        self.0.role.read().clone()
    }
}

async fn of_client(State(front): State<Front>, request: Request) -> Response {
    match (front.role(), &front.0.forwarder, request.uri().path()) {
        (Some(role), _, _) if (role.is_trusted)() => run(role.router, request).await,
        (_, Some(_), "/healthz") => Json(json!({ "status": "ok" })).into_response(),
        (Some(_), Some(_), _) => {
            let detail =
                "this node cannot renew its lease, and does not know whether another has the runs";
            Problem::new(Code::NoDriver, detail).retry_after(2).into_response()
        }
        (None, Some(forwarder), _) => {
            let drives = front.0.drives.subscribe();
            let passed = match request.uri().path() {
                "/readyz" => forwarder.ready(request, drives).await,
                _ => forwarder.forward(request, drives).await,
            };
            let (request, was_sent) = match passed {
                Passed::Answered(answer) => return answer,
                Passed::Ours { request, was_sent } => (request, was_sent),
            };
            // This node has taken over while the request waited.
            match front.role() {
                Some(role) if (role.is_trusted)() => run(role.router, request).await,
                Some(_) | None => given_up(request.method(), was_sent),
            }
        }
        (_, None, _) => match front.0.aside.clone() {
            Some(aside) => run(aside, request).await,
            None => no_driver(),
        },
    }
}

async fn of_node(State(front): State<Front>, request: Request) -> Response {
    let role = front.role().filter(|role| (role.is_trusted)());
    // What a client asks for was forwarded, and says how it arrived.
    let arrival = request.extensions().get::<Arrival>();
    let is_of_client = arrival.is_some_and(|arrival| arrival.reached.is_some());
    if request.uri().path() == DATABASE && !is_of_client {
        let reaches = front.0.forwarder.as_ref().is_some_and(Forwarder::reaches_database);
        let status = if reaches { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        return match role {
            Some(_) => status.into_response(),
            None => (status, NOTHING_DONE).into_response(),
        };
    }
    match role {
        Some(role) if request.uri().path() == HELP && !is_of_client => {
            help::answer(request, role.on_help.as_ref())
        }
        Some(role) => run(role.router, request).await,
        // A request that was forwarded once is not forwarded again.
        None => (StatusCode::MISDIRECTED_REQUEST, NOTHING_DONE).into_response(),
    }
}

async fn run(router: Router, request: Request) -> Response {
    match router.oneshot(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}
