//! State: values by scope and key; list, search, link, and batches of changes.

use axum::{Json as JsonBody, extract::State, http::StatusCode};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{
    app::Api,
    body::Posted,
    params::{self, Asker, At, Params},
};
use crate::{
    blueprint::parse_duration,
    door::{Code, Problem, ProblemBody},
    engine::{ChangedView, ScopeView, StateItem, StateView},
    protocol::{ContentKind, DurationMs, Json, Lifetime, MemoryTier, Scope, StoreOptions},
    store::{Reducer, StateAct, StateChange},
};

/// The maximum length of a key, relation or prefix, in bytes.
const MOST_KEY: usize = 1_024;
/// The maximum number of links followed in a row.
const MOST_DEPTH: u32 = 64;

/// The written value.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PutBody {
    /// The value: any JSON.
    #[schema(value_type = serde_json::Value)]
    value: Json,
    /// The way to combine it with the present value: overwrite (the default), append (to an array),
    /// merge (into an object), sum (of numbers).
    #[schema(value_type = Option<String>, pattern = "^(overwrite|append|merge|sum)$")]
    reduce: Option<Reducer>,
    /// The revision that the value must have, 0 for none; else 409 `revision_mismatch`.
    if_revision: Option<u64>,
    /// After how long it expires, counted from this write: `"90s"`.
    #[schema(pattern = "^[1-9][0-9]{0,2}[smhd]$")]
    ttl: Option<String>,
    /// transient (never stored), session (goes with the session of its scope), durable.
    #[schema(value_type = Option<String>, pattern = "^(transient|session|durable)$")]
    lifetime: Option<Lifetime>,
    /// hot, warm, cold.
    #[schema(value_type = Option<String>, pattern = "^(hot|warm|cold)$")]
    tier: Option<MemoryTier>,
    /// episodic, semantic, procedural, structural, or `{"custom": "…"}`.
    #[schema(value_type = Option<serde_json::Value>)]
    content_kind: Option<ContentKind>,
    /// The importance, from 0 to 1.
    #[schema(minimum = 0, maximum = 1)]
    salience: Option<f64>,
}

/// Changes that are made together, or not at all.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct BatchBody {
    /// At most 1,000, in order; each sees those before it.
    ops: Vec<BatchOp>,
}

/// One change.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct BatchOp {
    /// put, append, merge, sum, delete, link, unlink.
    op: Op,
    /// The scope.
    #[schema(pattern = "^(global|(run|session|custom):[A-Za-z0-9_-]{1,64})$")]
    scope: String,
    /// The key; for links the one that they start from.
    #[schema(min_length = 1)]
    key: String,
    /// For put, append, merge and sum.
    #[schema(value_type = Option<serde_json::Value>)]
    value: Option<Json>,
    /// The revision that the value must have, 0 for none.
    if_revision: Option<u64>,
    /// For links: the key that they lead to.
    to: Option<String>,
    /// For links: what the one is to the other.
    relation: Option<String>,
    /// For link: anything more.
    #[schema(value_type = Option<serde_json::Value>)]
    metadata: Option<Json>,
    /// After how long it expires, counted from this write: `"90s"`.
    #[schema(pattern = "^[1-9][0-9]{0,2}[smhd]$")]
    ttl: Option<String>,
    /// transient (never stored), session (goes with the session of its scope), durable.
    #[schema(value_type = Option<String>, pattern = "^(transient|session|durable)$")]
    lifetime: Option<Lifetime>,
    /// hot, warm, cold.
    #[schema(value_type = Option<String>, pattern = "^(hot|warm|cold)$")]
    tier: Option<MemoryTier>,
    /// episodic, semantic, procedural, structural, or `{"custom": "…"}`.
    #[schema(value_type = Option<serde_json::Value>)]
    content_kind: Option<ContentKind>,
    /// The importance, from 0 to 1.
    #[schema(minimum = 0, maximum = 1)]
    salience: Option<f64>,
}

/// The change of a key in a batch.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Op {
    Put,
    Append,
    Merge,
    Sum,
    Delete,
    Link,
    Unlink,
}

/// The result of a batch.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct BatchView {
    /// In the order of the changes.
    results: Vec<ChangedView>,
}

/// A page of keys.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct StatePage {
    /// The keys.
    items: Vec<StateItem>,
    /// Pass it as `cursor` to get the next page; null at the end.
    next_cursor: Option<String>,
}

/// Which keys.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListParams {
    /// Only keys that begin like this.
    prefix: Option<String>,
    /// Words that a value must have, the best first; one that ends in `*` stands for all that
    /// begin like it.
    q: Option<String>,
    /// The keys that links lead to from this one, the nearest first.
    from: Option<String>,
    /// With `from`: only along this relation.
    relation: Option<String>,
    /// With `from`: how many links in a row, 1 to 64; 1 by default.
    depth: Option<u32>,
    /// The `next_cursor` of the page before.
    cursor: Option<String>,
    /// At most this many: 1 to 500, 50 by default.
    limit: Option<usize>,
}

/// On which condition.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct DeleteParams {
    /// The revision that the value must have; else 409 `revision_mismatch`.
    if_revision: Option<u64>,
}

/// The hints of a write, as received.
struct Hints {
    ttl: Option<String>,
    lifetime: Option<Lifetime>,
    tier: Option<MemoryTier>,
    content_kind: Option<ContentKind>,
    salience: Option<f64>,
}

impl Hints {
    fn read(self) -> Result<StoreOptions, Problem> {
        let Self { ttl, lifetime, tier, content_kind, salience } = self;
        let invalid = |path: &str, detail: String| Problem::new(Code::InvalidBody, detail).at(path);
        let ttl = match ttl.as_deref().map(parse_duration) {
            None => None,
            Some(Ok(ms)) => Some(DurationMs::from_millis(ms)),
            Some(Err(error)) => return Err(invalid("$.ttl", format!("failed to {error}"))),
        };
        if salience.is_some_and(|it| !(0.0..=1.0).contains(&it)) {
            return Err(invalid("$.salience", "salience is between 0 and 1".to_owned()));
        }
        Ok(StoreOptions { tier, lifetime, content_kind, salience, ttl })
    }
}

impl BatchOp {
    fn read(self) -> Result<(Scope, StateChange), Problem> {
        let Self { op, scope, key, value, if_revision, to, relation, metadata, .. } = self;
        let Self { ttl, lifetime, tier, content_kind, salience, .. } = self;
        let hints = Hints { ttl, lifetime, tier, content_kind, salience }.read()?;
        let missing =
            |what: &str| Problem::new(Code::InvalidBody, format!("{what} is missing")).at(what);
        let put = |reducer| -> Result<StateAct, Problem> {
            let value = value.as_ref().ok_or_else(|| missing("value"))?.as_str().to_owned();
            Ok(StateAct::Put { value, reducer, hints: hints.clone() })
        };
        let ends = || -> Result<(String, String), Problem> {
            let to = to.clone().ok_or_else(|| missing("to"))?;
            let relation = relation.clone().ok_or_else(|| missing("relation"))?;
            short(&to)?;
            short(&relation)?;
            Ok((to, relation))
        };
        let act = match op {
            Op::Put => put(Reducer::Overwrite)?,
            Op::Append => put(Reducer::Append)?,
            Op::Merge => put(Reducer::Merge)?,
            Op::Sum => put(Reducer::Sum)?,
            Op::Delete => StateAct::Delete,
            Op::Link => {
                let (to, relation) = ends()?;
                let metadata = metadata.map(|json| json.as_str().to_owned());
                StateAct::Link { to, relation, metadata }
            }
            Op::Unlink => {
                let (to, relation) = ends()?;
                StateAct::Unlink { to, relation }
            }
        };
        change(&scope, key, if_revision, act)
    }
}

fn change(
    scope: &str,
    key: String,
    if_revision: Option<u64>,
    act: StateAct,
) -> Result<(Scope, StateChange), Problem> {
    short(&key)?;
    let scope = scope_of(scope)?;
    let change = StateChange { scope: scope.to_string(), key, if_revision, act };
    Ok((scope, change))
}

fn scope_of(text: &str) -> Result<Scope, Problem> {
    text.parse().map_err(|error| Problem::new(Code::BadId, format!("failed to {error}")))
}

fn short(key: &str) -> Result<(), Problem> {
    if key.is_empty() || key.len() > MOST_KEY {
        let detail = format!("a key or relation has 1 to {MOST_KEY} bytes, not {}", key.len());
        return Err(Problem::new(Code::BadId, detail));
    }
    Ok(())
}

/// Which scopes.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ScopeParams {
    /// Only scopes that begin like this: `custom:`, `run:`.
    prefix: Option<String>,
    /// The `next_cursor` of the page before.
    cursor: Option<String>,
    /// At most this many: 1 to 500, 50 by default.
    limit: Option<usize>,
}

/// A page of scopes.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ScopePage {
    /// The scopes.
    items: Vec<ScopeView>,
    /// Pass it as `cursor` to get the next page; null at the end.
    next_cursor: Option<String>,
}

/// Lists the scopes that have stored values, with their sizes: those that the token reaches as a
/// whole. At most 1,000 keys of each are counted. Transient values, and scopes that a program keeps
/// itself, are left out.
#[utoipa::path(
    get, path = "/v1/state", operation_id = "state_scopes", tag = "state",
    params(ScopeParams),
    responses(
        (status = 200, description = "A page, sorted. It may be short and still have a next one.", body = ScopePage),
        (status = 403, description = "`forbidden_verb`", body = ProblemBody),
    ),
)]
pub(super) async fn scopes(
    State(api): State<Api>,
    Asker(caller): Asker,
    Params(asked): Params<ScopeParams>,
) -> Result<JsonBody<ScopePage>, Problem> {
    let ScopeParams { prefix, cursor, limit } = asked;
    let (prefix, limit) = (prefix.unwrap_or_default(), params::page_limit(limit)?);
    let page = api.engine.stored_state().scopes(&caller, &prefix, cursor, limit).await?;
    Ok(JsonBody(ScopePage { items: page.items, next_cursor: page.next_cursor }))
}

/// Gives a value.
#[utoipa::path(
    get, path = "/v1/state/{scope}/{key}", operation_id = "state_get", tag = "state",
    params(
        ("scope" = String, Path, description = "`global`, `run:<id>`, `session:<id>`, `operator:<run>:<operator>`, `custom:<name>`."),
        ("key" = String, Path, description = "The key, percent-encoded."),
    ),
    responses(
        (status = 200, description = "The value.", body = StateView),
        (status = 404, description = "`not_found`", body = ProblemBody),
    ),
)]
pub(super) async fn get(
    State(api): State<Api>,
    Asker(caller): Asker,
    At((scope, key)): At<(String, String)>,
) -> Result<JsonBody<StateView>, Problem> {
    Ok(JsonBody(api.engine.stored_state().state_value(&caller, &scope_of(&scope)?, &key).await?))
}

/// Writes a value, or lets a reducer change the one that is there.
#[utoipa::path(
    put, path = "/v1/state/{scope}/{key}", operation_id = "state_put", tag = "state",
    params(
        ("scope" = String, Path, description = "The scope."),
        ("key" = String, Path, description = "The key, percent-encoded."),
    ),
    request_body = PutBody,
    responses(
        (status = 200, description = "It is durable.", body = ChangedView),
        (status = 409, description = "`revision_mismatch`", body = ProblemBody),
        (status = 422, description = "`state_refused`", body = ProblemBody),
    ),
)]
pub(super) async fn put(
    State(api): State<Api>,
    Asker(caller): Asker,
    At((scope, key)): At<(String, String)>,
    posted: Posted<PutBody>,
) -> Result<JsonBody<ChangedView>, Problem> {
    let PutBody { value, reduce: reducer, if_revision, .. } = &posted.body;
    let (reducer, if_revision) = (reducer.unwrap_or_default(), *if_revision);
    let value = value.as_str().to_owned();
    let PutBody { ttl, lifetime, tier, content_kind, salience, .. } = posted.body;
    let hints = Hints { ttl, lifetime, tier, content_kind, salience }.read()?;
    let act = StateAct::Put { value, reducer, hints };
    let change = change(&scope, key, if_revision, act)?;
    let mut changed = api.engine.stored_state().change_state(&caller, vec![change]).await?;
    let changed = changed.pop();
    changed.map(JsonBody).ok_or_else(|| Problem::new(Code::Internal, "nothing was answered"))
}

/// Deletes a value with its links; one that is not there is deleted already.
#[utoipa::path(
    delete, path = "/v1/state/{scope}/{key}", operation_id = "state_delete", tag = "state",
    params(
        ("scope" = String, Path, description = "The scope."),
        ("key" = String, Path, description = "The key, percent-encoded."),
        DeleteParams,
    ),
    responses(
        (status = 204, description = "It is gone, durably."),
        (status = 409, description = "`revision_mismatch`", body = ProblemBody),
    ),
)]
pub(super) async fn delete(
    State(api): State<Api>,
    Asker(caller): Asker,
    At((scope, key)): At<(String, String)>,
    Params(params): Params<DeleteParams>,
) -> Result<StatusCode, Problem> {
    let change = change(&scope, key, params.if_revision, StateAct::Delete)?;
    api.engine.stored_state().change_state(&caller, vec![change]).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Lists the keys of a scope, or searches its values, or follows its links.
#[utoipa::path(
    get, path = "/v1/state/{scope}", operation_id = "state_list", tag = "state",
    params(("scope" = String, Path, description = "The scope."), ListParams),
    responses(
        (status = 200, description = "Sorted by key; a search by score; links by distance.", body = StatePage),
        (status = 404, description = "`not_found`: the scope is of a run that does not exist", body = ProblemBody),
        (status = 422, description = "`invalid_input`: `q` and `from` exclude each other", body = ProblemBody),
    ),
)]
pub(super) async fn list(
    State(api): State<Api>,
    Asker(caller): Asker,
    At(scope): At<String>,
    Params(params): Params<ListParams>,
) -> Result<JsonBody<StatePage>, Problem> {
    let ListParams { prefix, q, from, relation, depth, cursor, limit } = params;
    let scope = scope_of(&scope)?;
    let limit = params::page_limit(limit)?;
    let depth = depth.unwrap_or(1);
    if !(1..=MOST_DEPTH).contains(&depth) {
        return Err(params::bad_query(format!("depth is between 1 and {MOST_DEPTH}")));
    }
    let prefix = prefix.unwrap_or_default();
    let (items, next_cursor) = match (q, from) {
        (Some(_), Some(_)) => {
            return Err(Problem::new(
                Code::InvalidInput,
                "q searches and from follows links: give one of them",
            ));
        }
        (None, None) => {
            let page = api
                .engine
                .stored_state()
                .state_page(&caller, &scope, &prefix, cursor, limit)
                .await?;
            (page.items, page.next_cursor)
        }
        (Some(query), None) => (
            api.engine.stored_state().search_state(&caller, &scope, &query, &prefix, limit).await?,
            None,
        ),
        (None, Some(from)) => {
            let walk = api
                .engine
                .stored_state()
                .walk_state(&caller, &scope, &from, relation.as_deref(), depth)
                .await?;
            (walk.into_iter().take(limit).collect(), None)
        }
    };
    Ok(JsonBody(StatePage { items, next_cursor }))
}

/// Makes changes together, or none of them.
#[utoipa::path(
    post, path = "/v1/state/batch", operation_id = "state_batch", tag = "state",
    request_body = BatchBody,
    responses(
        (status = 200, description = "All are durable.", body = BatchView),
        (status = 409, description = "`revision_mismatch`: none was made", body = ProblemBody),
        (status = 422, description = "`state_refused`: none was made", body = ProblemBody),
    ),
)]
pub(super) async fn batch(
    State(api): State<Api>,
    Asker(caller): Asker,
    posted: Posted<BatchBody>,
) -> Result<JsonBody<BatchView>, Problem> {
    let mut changes = Vec::with_capacity(posted.body.ops.len());
    for (n, op) in posted.body.ops.into_iter().enumerate() {
        changes.push(op.read().map_err(|problem| problem.at(format!("$.ops[{n}]")))?);
    }
    let results = api.engine.stored_state().change_state(&caller, changes).await?;
    Ok(JsonBody(BatchView { results }))
}
