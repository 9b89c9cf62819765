//! The list of runs and its filters.

use axum::{Json as JsonBody, extract::State};
use serde::Deserialize;
use utoipa::IntoParams;

use super::{
    app::Api,
    params::{self, Asker},
};
use crate::{
    door::{Code, Problem, ProblemBody},
    engine::RunList,
    protocol::{RunId, TagIs},
    store::{RunFilter, RunStatus},
};

/// The maximum number of conditions on tags.
const MOST_TAGS: usize = 8;
/// The maximum length of a text that is sought, in bytes.
const TEXT_BYTES: usize = 256;

/// Which runs to list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListParams {
    /// Only these statuses, separated by commas; it may also be given more than once.
    #[param(example = "running,waiting")]
    pub(super) status: Option<String>,
    /// Only runs of this blueprint.
    pub(super) blueprint: Option<String>,
    /// Only runs with this tag: `name=value`, or `name` for any value. It may be given more than
    /// once, at most 8 times; then all must fit.
    #[param(example = "customer=acme")]
    pub(super) tag: Option<String>,
    /// Only runs started by this subject.
    pub(super) started_by: Option<String>,
    /// Only runs that this run called.
    pub(super) parent: Option<String>,
    /// Only runs created at or after this time, RFC 3339.
    pub(super) since: Option<String>,
    /// Only runs created before this time, RFC 3339.
    pub(super) until: Option<String>,
    /// Only runs that ended at or after this time, RFC 3339.
    pub(super) ended_since: Option<String>,
    /// Only runs that ended before this time, RFC 3339.
    pub(super) ended_until: Option<String>,
    /// Only runs whose error is of this kind: `timeout`, `worker`, `limit`, an author's own.
    #[serde(alias = "error")]
    pub(super) kind: Option<String>,
    /// Only runs that had a task of this agent in their current history.
    pub(super) agent: Option<String>,
    /// Only runs that wait for this: the kind of a thing (`task`, `signal`, `timer`), or the name of
    /// an agent, a signal, an operator or its kind, a queue, a called run.
    pub(super) waiting_on: Option<String>,
    /// Only runs whose error or status text has all these words, the last letters of which may be
    /// left out with `*`; or whose id begins with this text, if it begins with `run_`. Runs with
    /// words come in the order of their numbers.
    pub(super) q: Option<String>,
    /// Only runs whose reported cost is at least this, in US dollars: `0.50`.
    pub(super) min_cost: Option<String>,
    /// Items on a page: 1 to 500, 50 by default.
    pub(super) limit: Option<usize>,
    /// `next_cursor` of the page before.
    pub(super) cursor: Option<String>,
}

impl ListParams {
    pub(super) fn into_filter(self) -> Result<RunFilter, Problem> {
        let status = self.status.iter().flat_map(|all| all.split(',')).map(status);
        let before = self.cursor.as_deref().map(|cursor| {
            cursor.parse::<RunId>().map_err(|error| match error.is_well_formed() {
                true => Problem::new(Code::NotFound, "cursor names no run"),
                false => params::bad_query("cursor is not one of this list's"),
            })
        });
        let time = |name: &str, text: Option<String>| text.map(|it| time(name, &it)).transpose();
        let parent = self.parent.as_deref().map(params::id::<RunId>).transpose()?;
        Ok(RunFilter {
            status: status.collect::<Result<_, _>>()?,
            blueprint: self.blueprint,
            since_ms: time("since", self.since)?,
            until_ms: time("until", self.until)?,
            ended_since_ms: time("ended_since", self.ended_since)?,
            ended_until_ms: time("ended_until", self.ended_until)?,
            parent: parent.map(RunId::num),
            tags: tags(self.tag.as_deref())?,
            started_by: self.started_by,
            error: self.kind,
            agent: self.agent,
            waiting_on: self.waiting_on,
            text: self.q.map(sought).transpose()?,
            min_cost: self.min_cost.as_deref().map(money).transpose()?,
            before: before.transpose()?,
            limit: params::page_limit(self.limit)?,
            look: None,
        })
    }
}

fn status(word: &str) -> Result<RunStatus, Problem> {
    RunStatus::parse(word.trim()).ok_or_else(|| {
        params::bad_query(format!(
            "{word:?} is no status: queued, running, waiting, paused, compensating, completed, failed or canceled"
        ))
    })
}

fn time(name: &str, text: &str) -> Result<u64, Problem> {
    let at: jiff::Timestamp = text
        .parse()
        .map_err(|_| params::bad_query(format!("{name} is a time such as 2026-01-31T08:00:00Z")))?;
    Ok(u64::try_from(at.as_millisecond()).unwrap_or(0))
}

fn money(text: &str) -> Result<rust_decimal::Decimal, Problem> {
    let wrong = |_| params::bad_query("min_cost is an amount in US dollars such as 0.50");
    text.trim().parse().map_err(wrong)
}

/// Reads conditions on tags, one a line.
fn tags(given: Option<&str>) -> Result<Vec<TagIs>, Problem> {
    let given: Vec<&str> = given.into_iter().flat_map(str::lines).collect();
    if given.len() > MOST_TAGS {
        return Err(params::bad_query(format!("tag is given at most {MOST_TAGS} times")));
    }
    let tags = given.into_iter().map(TagIs::parse).collect::<Result<_, _>>();
    tags.map_err(|error| params::bad_query(format!("failed to {error}")))
}

/// Checks a text that is sought.
///
/// # Errors
/// Returns `bad_query` if it has no word, or is too long.
pub(super) fn sought(text: String) -> Result<String, Problem> {
    if text.len() > TEXT_BYTES || !text.chars().any(char::is_alphanumeric) {
        let detail = format!("q has letters or digits, and at most {TEXT_BYTES} bytes");
        return Err(params::bad_query(detail));
    }
    Ok(text)
}

/// Lists runs, newest first.
///
/// `status`, `blueprint`, `tag` with a value, `started_by`, `parent`, `q` and the times of creation
/// are found by an index. For every other condition a page looks at 2,500 runs at most; if it ends
/// for that reason, it is `partial`, and `next_cursor` goes on.
#[utoipa::path(
    get, path = "/v1/runs", operation_id = "run_list", tag = "runs",
    params(ListParams),
    responses(
        (status = 200, description = "A page of runs.", body = RunList),
        (status = 404, description = "`not_found`: `cursor` or `run` names nothing", body = ProblemBody),
    ),
)]
pub(super) async fn list(
    State(api): State<Api>,
    Asker(caller): Asker,
    params::Listed(params): params::Listed<ListParams>,
) -> Result<JsonBody<RunList>, Problem> {
    Ok(JsonBody(api.engine.runs(&caller, params.into_filter()?).await?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter_of(query: &str) -> Result<RunFilter, Problem> {
        let uri = format!("/?{query}").parse().unwrap();
        let params = axum::extract::Query::<ListParams>::try_from_uri(&uri).unwrap();
        params.0.into_filter()
    }

    #[test]
    fn a_filter_is_read_from_the_query() {
        let id = RunId::new(9, 7);
        let query = format!(
            "status=running,waiting&since=2026-01-01T00:00:00Z&until=2026-01-02T00:00:00Z&cursor={id}\
             &parent={id}&tag=a=1%0Ab&q=disk%20full*&kind=timeout"
        );
        let filter = filter_of(&query).unwrap();
        assert_eq!(filter.status, [RunStatus::Running, RunStatus::Waiting]);
        assert_eq!((filter.before, filter.parent, filter.limit), (Some(id), Some(9), 50));
        assert_eq!(filter.since_ms, Some(1_767_225_600_000));
        assert_eq!(filter.until_ms, Some(1_767_312_000_000));
        assert_eq!(filter.tags, [TagIs::parse("a=1").unwrap(), TagIs::parse("b").unwrap()]);
        assert_eq!(
            (filter.text.as_deref(), filter.error.as_deref()),
            (Some("disk full*"), Some("timeout"))
        );
    }

    #[test]
    fn a_filter_that_cannot_be_read_is_refused() {
        let nine = ["t"; 9].join("%0A");
        for query in
            ["status=done", "since=now", "ended_until=1", "cursor=x", "tag=%20a", "q=*", "q="]
                .into_iter()
                .map(str::to_owned)
                .chain([format!("tag={nine}"), format!("q={}", "a".repeat(257))])
        {
            assert_eq!(filter_of(&query).unwrap_err().code(), "bad_query", "{query}");
        }
        assert_eq!(filter_of("parent=7").unwrap_err().code(), "bad_id");
    }
}
