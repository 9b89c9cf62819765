//! The statistics of the host.

use axum::{Json as JsonBody, extract::State};
use serde::Deserialize;
use utoipa::IntoParams;

use super::{
    app::Api,
    params::{self, Asker, Params},
};
use crate::{
    blueprint::parse_duration,
    door::Problem,
    engine::{StatsAsk, StatsBy, StatsView},
};

/// The selection of the sums.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct StatsParams {
    /// The grouping: status (the default), blueprint, agent, model, hour, day, or run for the most
    /// expensive runs.
    by: Option<StatsBy>,
    /// The beginning: a time (RFC 3339) or how long ago (`24h`, `7d`). A day ago for hours, 30 days for
    /// the rest, by default. It is rounded down to an hour, and to a day beyond 2 days.
    since: Option<String>,
    /// Only runs of this blueprint. It does not narrow agents and models.
    blueprint: Option<String>,
    /// The maximum number of groups: 1 to 500, 100 by default; all hours and days.
    limit: Option<usize>,
}

impl StatsParams {
    fn ask(self, now_ms: u64) -> Result<StatsAsk, Problem> {
        let by = self.by.unwrap_or(StatsBy::Status);
        if self.blueprint.is_some() && matches!(by, StatsBy::Agent | StatsBy::Model) {
            return Err(params::bad_query("agents and models are not counted by blueprint"));
        }
        let since_ms = self.since.as_deref().map(|text| since(text, now_ms)).transpose()?;
        let limit = self.limit.map(|limit| params::page_limit(Some(limit))).transpose()?;
        Ok(StatsAsk { by, since_ms, blueprint: self.blueprint, limit })
    }
}

/// Returns the time that a text names: a time, or a duration before now.
fn since(text: &str, now_ms: u64) -> Result<u64, Problem> {
    time_of(text, now_ms).ok_or_else(|| {
        params::bad_query("since is a time such as 2026-01-31T08:00:00Z, or how long ago: 24h")
    })
}

/// Returns the time that a text names, in Unix milliseconds.
pub(super) fn time_of(text: &str, now_ms: u64) -> Option<u64> {
    let at = text.parse::<jiff::Timestamp>().ok();
    let at = at.map(|at| u64::try_from(at.as_millisecond()).unwrap_or(0));
    at.or_else(|| parse_duration(text).ok().map(|ms| now_ms.saturating_sub(ms)))
}

/// Sums up the runs, tasks and model calls that ended.
///
/// A run is counted when it ends. Deleted runs stay counted. Durations are at most an eighth off.
#[utoipa::path(
    get, path = "/v1/stats", operation_id = "stats", tag = "runs",
    params(StatsParams),
    responses((status = 200, description = "The sums.", body = StatsView)),
)]
pub(super) async fn stats(
    State(api): State<Api>,
    Asker(caller): Asker,
    Params(params): Params<StatsParams>,
) -> Result<JsonBody<StatsView>, Problem> {
    let ask = params.ask(api.door.clock.now_ms())?;
    Ok(JsonBody(api.engine.stats(&caller, ask).await?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn since_is_a_time_or_how_long_ago() {
        assert_eq!(since("1h", 4_000_000).unwrap(), 400_000);
        assert_eq!(since("1970-01-01T00:00:01Z", 9).unwrap(), 1_000);
        assert_eq!(since("yesterday", 9).unwrap_err().code(), "bad_query");
    }

    #[test]
    fn agents_are_not_narrowed_to_a_blueprint() {
        let ask = |by| {
            let blueprint = Some("b".to_owned());
            StatsParams { by: Some(by), since: None, blueprint, limit: None }.ask(0)
        };
        assert!(ask(StatsBy::Hour).is_ok());
        assert_eq!(ask(StatsBy::Agent).unwrap_err().code(), "bad_query");
    }
}
