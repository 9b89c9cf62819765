//! The metrics, as text for Prometheus and OpenMetrics.

use std::sync::Arc;

use axum::{
    extract::State,
    http::{HeaderMap, header},
    response::{IntoResponse, Response},
};

use super::{app::Api, params::Asker};
use crate::{
    door::{Problem, ProblemBody},
    engine::Engine,
    metrics::{Format, Scrape, collect_process, log_lines, write},
};

/// Adds the numbers of a node to a reading.
#[derive(Clone)]
pub struct NodeMeasures(pub Arc<dyn Fn(&mut Scrape) + Send + Sync>);

/// Returns all metrics.
///
/// A client that accepts `application/openmetrics-text` gets OpenMetrics 1.0, and any other the text
/// format of Prometheus, 0.0.4. docs/telemetry.md describes each metric.
#[utoipa::path(
    get, path = "/metrics", operation_id = "metrics", tag = "host",
    responses(
        (status = 200, description = "The metrics.", content(
            (String = "text/plain"),
            (String = "application/openmetrics-text"),
        )),
        (status = 403, description = "`forbidden_verb`", body = ProblemBody),
    ),
)]
pub(super) async fn metrics(
    State(api): State<Api>,
    Asker(caller): Asker,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    Ok(text(&api.engine.upkeep().measure(&caller).await?, &headers))
}

/// Returns all metrics without a token, for a listener of their own.
pub(super) async fn open(
    State(engine): State<Engine>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    Ok(text(&engine.upkeep().reading().await?, &headers))
}

/// Returns the metrics of a node that stands by, without a token.
pub(super) async fn of_node(State(node): State<NodeMeasures>, headers: HeaderMap) -> Response {
    let mut scrape = Scrape::default();
    scrape.count("moonswarm_build_info", &[env!("CARGO_PKG_VERSION")], 1);
    node.0(&mut scrape);
    log_lines::collect(&mut scrape);
    collect_process(&mut scrape);
    text(&scrape, &headers)
}

fn text(scrape: &Scrape, headers: &HeaderMap) -> Response {
    let accepts = headers.get_all(header::ACCEPT).iter();
    let accepts: Vec<&str> = accepts.filter_map(|it| it.to_str().ok()).collect();
    let format = Format::accepted(&accepts.join(","));
    ([(header::CONTENT_TYPE, format.content_type())], write(scrape, format)).into_response()
}
