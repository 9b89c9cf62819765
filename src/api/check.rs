//! The check of a blueprint, and the forms in which one is posted.

use std::collections::BTreeMap;

use axum::{Json as JsonBody, extract::State};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    app::Api,
    body::{Raw, read_json},
    params::Asker,
    runs,
};
use crate::{
    blueprint::{Bundle, Finding},
    door::{Code, FindingBody, Problem, ProblemBody},
};

/// A blueprint's files.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct BundleBody {
    /// The Lua source of the entry, instead of having it among the files.
    source: Option<String>,
    /// Text by relative path.
    files: Option<BTreeMap<String, String>>,
    /// The file that returns the blueprint; by default the only Lua file at the top, or `main.lua`.
    entry: Option<String>,
}

/// Reads a blueprint: JSON with files, or the bare Lua source. Without a type it is what it looks like:
/// no Lua file begins with a brace.
///
/// # Errors
/// Fails when the content type or the shape is wrong, or the files are not a valid bundle.
pub(super) fn read_bundle(raw: &Raw) -> Result<Bundle, Problem> {
    if raw.bytes.is_empty() {
        return Err(Problem::new(Code::InvalidBody, "the body is empty").at("$"));
    }
    let is_object = || raw.bytes.trim_ascii_start().first() == Some(&b'{');
    if raw.is_json() || (raw.is_untold() && is_object()) {
        let BundleBody { source, files, entry } = read_json(&raw.bytes)?;
        if source.is_none() && files.is_none() {
            return Err(Problem::new(Code::InvalidBody, "give `source` or `files`").at("$"));
        }
        return runs::bundle(source, files, entry);
    }
    let kind = raw.kind.as_str();
    let text = raw.is_untold()
        || kind.starts_with("text/")
        || matches!(kind, "application/x-lua" | "application/octet-stream");
    if !text {
        let detail = format!(
            "send Lua source as text/plain, or files as application/json; {kind:?} is not supported here"
        );
        return Err(Problem::new(Code::UnsupportedMediaType, detail));
    }
    runs::bundle(Some(raw.text()?.to_owned()), None, None)
}

/// The findings of a check.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct CheckView {
    /// True if it can run: no finding is an error.
    ok: bool,
    /// Errors and warnings, in the order of their places.
    #[schema(value_type = Vec<FindingBody>)]
    findings: Vec<Finding>,
}

/// Checks a blueprint and stores nothing.
#[utoipa::path(
    post, path = "/v1/check", operation_id = "blueprint_check", tag = "blueprints",
    request_body(
        content((BundleBody = "application/json"), (String = "text/plain")),
        description = "Lua source, or a bundle.",
    ),
    responses(
        (status = 200, description = "What was found.", body = CheckView),
        (status = 422, description = "`blueprint_invalid`: the files are no bundle", body = ProblemBody),
    ),
)]
pub(super) async fn check(
    State(api): State<Api>,
    Asker(caller): Asker,
    raw: Raw,
) -> Result<JsonBody<CheckView>, Problem> {
    let findings = api.engine.blueprints().check(&caller, read_bundle(&raw)?).await?;
    Ok(JsonBody(CheckView { ok: !findings.iter().any(Finding::is_error), findings }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(kind: &str, bytes: &'static [u8]) -> Result<String, &'static str> {
        let raw = Raw { bytes: bytes.into(), kind: kind.to_owned() };
        read_bundle(&raw).map(|bundle| bundle.source().to_string()).map_err(|p| p.code().as_str())
    }

    #[test]
    fn a_blueprint_comes_as_source_or_as_files() {
        let form = "application/x-www-form-urlencoded";
        for kind in ["", "text/plain", "text/x-lua", "application/octet-stream", form] {
            assert_eq!(read(kind, b"return 1"), Ok("return 1".to_owned()), "{kind}");
        }
        for kind in ["", form] {
            assert_eq!(
                read(kind, br#" {"source":"return 3"}"#),
                Ok("return 3".to_owned()),
                "{kind}"
            );
        }
        let files = br#"{"files":{"a.lua":"return 2","b/c.md":"x"}}"#;
        assert_eq!(read("application/json", files), Ok("return 2".to_owned()));
    }

    #[test]
    fn what_is_neither_is_refused() {
        assert_eq!(read("image/png", b"return 1"), Err("unsupported_media_type"));
        assert_eq!(read("text/plain", b"\xff"), Err("invalid_body"));
        assert_eq!(read("application/json", b"{}"), Err("invalid_body"));
        assert_eq!(read("application/json", br#"{"files":{}}"#), Err("blueprint_invalid"));
        assert_eq!(read("application/json", br#"{"file":{}}"#), Err("unknown_field"));
    }
}
