//! Blueprints: publish, list, show, read the source, archive, restore, delete.

use std::collections::BTreeMap;

use axum::{Json as JsonBody, extract::State, http::StatusCode};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{
    app::Api,
    body::Raw,
    check::{self, BundleBody},
    params::{self, Asker, At, Key, Params},
};
use crate::{
    blueprint::{Bundle, Finding},
    door::{FindingBody, Problem, ProblemBody},
    engine::{BlueprintDiff, BlueprintProblem, BlueprintView, GraphView, Page, VersionView},
};

/// A stored version.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct StoredView {
    /// The name that now stands for it.
    name: String,
    /// The bundle's hash, in hex.
    hash: String,
    /// Warnings.
    #[schema(value_type = Vec<FindingBody>)]
    findings: Vec<Finding>,
}

/// Stores a version and lets the name stand for it.
#[utoipa::path(
    put, path = "/v1/blueprints/{name}", operation_id = "blueprint_put", tag = "blueprints",
    params(
        ("name" = String, Path, description = "The blueprint's name."),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes a repetition harmless for 24 hours."),
    ),
    request_body(
        content((BundleBody = "application/json"), (String = "text/plain")),
        description = "Lua source, or a bundle.",
    ),
    responses(
        (status = 200, description = "It is stored.", body = StoredView),
        (status = 409, description = "`idempotency_mismatch`, `blueprint_archived`", body = ProblemBody),
        (status = 422, description = "`blueprint_invalid` with `findings`", body = ProblemBody),
    ),
)]
pub(super) async fn put(
    State(api): State<Api>,
    Asker(caller): Asker,
    At(name): At<String>,
    key: Key,
    raw: Raw,
) -> Result<JsonBody<StoredView>, Problem> {
    let bundle = check::read_bundle(&raw)?;
    let key = key.of("PUT /v1/blueprints/{name}", &raw.bytes);
    let (stored, findings) =
        api.engine.blueprints().put_blueprint(&caller, name, bundle, key).await?;
    Ok(JsonBody(StoredView { name: stored.name, hash: stored.hash, findings }))
}

/// The names, and what keeps files from having one.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct BlueprintsView {
    /// The names with what each stands for.
    items: Vec<BlueprintView>,
    /// Always null: there is no next page.
    next_cursor: Option<String>,
    /// Files of the watched directory that are no blueprint, or whose last version is not served.
    problems: Vec<BlueprintProblem>,
}

/// The parameters of the list.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Which {
    #[serde(default)]
    archived: bool,
    #[serde(default)]
    tools: bool,
}

/// Lists the names with what each stands for.
#[utoipa::path(
    get, path = "/v1/blueprints", operation_id = "blueprint_list", tag = "blueprints",
    params(
        ("archived" = Option<bool>, Query, description = "Lists the archived blueprints instead."),
        ("tools" = Option<bool>, Query, description = "Lists only the blueprints that are tools of MCP."),
    ),
    responses(
        (status = 200, description = "All of them.", body = BlueprintsView),
        (status = 400, description = "`bad_query`", body = ProblemBody),
    ),
)]
pub(super) async fn list(
    State(api): State<Api>,
    Asker(caller): Asker,
    Params(which): Params<Which>,
) -> Result<JsonBody<BlueprintsView>, Problem> {
    let items = match (which.archived, which.tools) {
        (false, false) => api.engine.blueprints().list(&caller).await?,
        (false, true) => api.engine.blueprints().tools(&caller).await?,
        (true, tools) => {
            let mut archived = api.engine.blueprints().archived(&caller).await?;
            archived.retain(|it| !tools || it.tool.is_some());
            archived
        }
    };
    let problems = api.engine.blueprints().blueprint_problems(&caller)?;
    Ok(JsonBody(BlueprintsView { items, next_cursor: None, problems }))
}

/// Shows what `name`, or `name@hash-prefix`, stands for.
#[utoipa::path(
    get, path = "/v1/blueprints/{name}", operation_id = "blueprint_get", tag = "blueprints",
    params(("name" = String, Path, description = "`name` or `name@hash-prefix`.")),
    responses(
        (status = 200, description = "The version.", body = BlueprintView),
        (status = 404, description = "`not_found`", body = ProblemBody),
    ),
)]
pub(super) async fn get(
    State(api): State<Api>,
    Asker(caller): Asker,
    At(name): At<String>,
) -> Result<JsonBody<BlueprintView>, Problem> {
    Ok(JsonBody(api.engine.blueprints().get(&caller, &name).await?))
}

/// Archives a blueprint: nothing starts under its name until it is restored. Its runs go on, and its
/// history stays.
#[utoipa::path(
    post, path = "/v1/blueprints/{name}/archive", operation_id = "blueprint_archive", tag = "blueprints",
    params(("name" = String, Path, description = "The blueprint's name.")),
    responses(
        (status = 200, description = "It is archived.", body = BlueprintView),
        (status = 404, description = "`not_found`", body = ProblemBody),
        (status = 409, description = "`conflict`", body = ProblemBody),
    ),
)]
pub(super) async fn archive(
    State(api): State<Api>,
    Asker(caller): Asker,
    At(name): At<String>,
) -> Result<JsonBody<BlueprintView>, Problem> {
    Ok(JsonBody(api.engine.blueprints().archive(&caller, &name).await?))
}

/// Restores an archived blueprint: its name stands again for the version that it stood for.
#[utoipa::path(
    post, path = "/v1/blueprints/{name}/restore", operation_id = "blueprint_restore", tag = "blueprints",
    params(("name" = String, Path, description = "The blueprint's name.")),
    responses(
        (status = 200, description = "It can be started.", body = BlueprintView),
        (status = 404, description = "`not_found`", body = ProblemBody),
        (status = 409, description = "`conflict`", body = ProblemBody),
    ),
)]
pub(super) async fn restore(
    State(api): State<Api>,
    Asker(caller): Asker,
    At(name): At<String>,
) -> Result<JsonBody<BlueprintView>, Problem> {
    Ok(JsonBody(api.engine.blueprints().restore(&caller, &name).await?))
}

/// Deletes an archived blueprint that no run has, with all of its versions.
#[utoipa::path(
    delete, path = "/v1/blueprints/{name}", operation_id = "blueprint_delete", tag = "blueprints",
    params(("name" = String, Path, description = "The blueprint's name.")),
    responses(
        (status = 204, description = "It is gone."),
        (status = 404, description = "`not_found`", body = ProblemBody),
        (status = 409, description = "`in_use`, `conflict`", body = ProblemBody),
    ),
)]
pub(super) async fn delete(
    State(api): State<Api>,
    Asker(caller): Asker,
    At(name): At<String>,
) -> Result<StatusCode, Problem> {
    api.engine.blueprints().delete(&caller, &name).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Which versions to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct VersionParams {
    /// Items on a page: 1 to 500, 50 by default.
    limit: Option<usize>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

/// A page of versions.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "the schema of `Page<VersionView>` in the OpenAPI document")]
pub(super) struct VersionPage {
    /// The versions, newest first.
    items: Vec<VersionView>,
    /// Pass it as `cursor` to get the next page; null at the end.
    next_cursor: Option<String>,
}

/// Lists the stored versions of a blueprint.
#[utoipa::path(
    get, path = "/v1/blueprints/{name}/versions", operation_id = "blueprint_versions", tag = "blueprints",
    params(("name" = String, Path, description = "The blueprint's name."), VersionParams),
    responses(
        (status = 200, description = "A page of versions.", body = VersionPage),
        (status = 404, description = "`not_found`", body = ProblemBody),
    ),
)]
pub(super) async fn versions(
    State(api): State<Api>,
    Asker(caller): Asker,
    At(name): At<String>,
    Params(params): Params<VersionParams>,
) -> Result<JsonBody<Page<VersionView>>, Problem> {
    let limit = params::page_limit(params.limit)?;
    let after = params.cursor.as_deref();
    Ok(JsonBody(api.engine.blueprints().list_versions(&caller, &name, after, limit).await?))
}

/// Shows the static graph of a flow: its nodes, each with its line.
#[utoipa::path(
    get, path = "/v1/blueprints/{name}/graph", operation_id = "blueprint_graph", tag = "blueprints",
    params(("name" = String, Path, description = "`name` or `name@hash-prefix`.")),
    responses(
        (status = 200, description = "The nodes.", body = GraphView),
        (status = 404, description = "`not_found`", body = ProblemBody),
    ),
)]
pub(super) async fn graph(
    State(api): State<Api>,
    Asker(caller): Asker,
    At(name): At<String>,
) -> Result<JsonBody<GraphView>, Problem> {
    Ok(JsonBody(api.engine.blueprints().graph(&caller, &name).await?))
}

/// Which versions to compare.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct DiffParams {
    /// The first version: its hash, or the beginning of it; by default the one before `to`.
    from: Option<String>,
    /// The second version; by default the one that the name stands for.
    to: Option<String>,
}

/// Compares two versions of a blueprint: their files as text, and their declarations.
#[utoipa::path(
    get, path = "/v1/blueprints/{name}/diff", operation_id = "blueprint_diff", tag = "blueprints",
    params(("name" = String, Path, description = "The blueprint's name."), DiffParams),
    responses(
        (status = 200, description = "What differs.", body = BlueprintDiff),
        (status = 404, description = "`not_found`", body = ProblemBody),
    ),
)]
pub(super) async fn diff(
    State(api): State<Api>,
    Asker(caller): Asker,
    At(name): At<String>,
    Params(DiffParams { from, to }): Params<DiffParams>,
) -> Result<JsonBody<BlueprintDiff>, Problem> {
    let (from, to) = (from.as_deref(), to.as_deref());
    Ok(JsonBody(api.engine.blueprints().diff(&caller, &name, from, to).await?))
}

/// The files of a version.
#[derive(Debug, ToSchema)]
#[schema(as = Bundle)]
#[expect(dead_code, reason = "the schema of `Bundle` in the OpenAPI document")]
pub(super) struct FilesView {
    /// Text by relative path.
    files: BTreeMap<String, String>,
    /// The file that returns the blueprint.
    entry: String,
}

/// Gives the files of a version.
#[utoipa::path(
    get, path = "/v1/blueprints/{name}/{hash}/source", operation_id = "blueprint_source", tag = "blueprints",
    params(
        ("name" = String, Path, description = "The blueprint's name."),
        ("hash" = String, Path, description = "The version's hash, or the beginning of it."),
    ),
    responses(
        (status = 200, description = "The files.", body = FilesView),
        (status = 404, description = "`not_found`", body = ProblemBody),
    ),
)]
pub(super) async fn source(
    State(api): State<Api>,
    Asker(caller): Asker,
    At((name, hash)): At<(String, String)>,
) -> Result<JsonBody<Bundle>, Problem> {
    Ok(JsonBody(api.engine.blueprints().blueprint_source(&caller, &name, &hash).await?))
}
