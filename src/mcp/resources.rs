//! Resources: pages of the documentation, files for editors, and what runs have produced.

use std::sync::OnceLock;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use rmcp::model::{Resource, ResourceContents, ResourceTemplate};
use serde_json::Value;

use super::{
    answer::Trouble,
    docs,
    transport::{Path, Transport},
};
use crate::blueprint::stubs;

const MARKDOWN: &str = "text/markdown";
const JSON: &str = "application/json";
/// The maximum size of a resource that is read from the host, in bytes; larger ones are read with
/// the tools, which return parts.
const LONGEST: usize = 1 << 20;

/// A text that does not change while the program runs.
struct Fixed {
    uri: String,
    title: String,
    kind: &'static str,
    text: String,
}

/// The fixed resources, in the order in which clients see them.
fn fixed() -> &'static [Fixed] {
    static FIXED: OnceLock<Vec<Fixed>> = OnceLock::new();
    FIXED.get_or_init(|| {
        let page = |(name, text): (&str, &str)| Fixed {
            uri: format!("moonswarm://docs/{name}"),
            title: docs::heading(text).to_owned(),
            kind: MARKDOWN,
            text: text.to_owned(),
        };
        let file = |path: &str, title: &str, kind, text: &str| Fixed {
            uri: format!("moonswarm://{path}"),
            title: title.to_owned(),
            kind,
            text: text.to_owned(),
        };
        let schema = include_str!("../../docs/protocol/flow.schema.json");
        docs::pages()
            .map(page)
            .chain([
                file(
                    "schema/flow.json",
                    "The JSON schema of a flow written as a table",
                    JSON,
                    schema,
                ),
                file(
                    "stubs/moonswarm.d.luau",
                    "The types of everything that a blueprint can call",
                    "text/plain",
                    &stubs::luau(),
                ),
            ])
            .collect()
    })
}

/// Returns the fixed resources as the protocol shows them.
pub(super) fn list() -> Vec<Resource> {
    let shown = |it: &Fixed| {
        let name = it.uri.rsplit('/').next().unwrap_or_default();
        Resource::new(it.uri.as_str(), name)
            .with_title(it.title.as_str())
            .with_mime_type(it.kind)
            .with_size(it.text.len() as u64)
    };
    fixed().iter().map(shown).collect()
}

/// Returns the resources that a client names by an id.
pub(super) fn templates() -> Vec<ResourceTemplate> {
    let template =
        |uri: &str, name: &str, text: &str| ResourceTemplate::new(uri, name).with_description(text);
    vec![
        template("moonswarm://runs/{run}", "run", "A run: status, output or error, and its waits.")
            .with_mime_type(JSON),
        template(
            "moonswarm://runs/{run}/steps/{seq}",
            "step",
            "A step of a run, with its request, response and error.",
        )
        .with_mime_type(JSON),
        template("moonswarm://artifacts/{artifact}", "artifact", "A file that a run produced."),
    ]
}

/// Returns true for the address of a resource that is no blueprint.
pub(super) fn is_own(uri: &str) -> bool {
    uri.starts_with("moonswarm://")
}

/// Returns true if the text of a resource does not change while the program runs.
pub(super) fn is_fixed(uri: &str) -> bool {
    fixed().iter().any(|it| it.uri == uri)
}

/// Returns the run whose events say that a resource may have changed: itself, or the run of a step.
pub(super) fn run_of(uri: &str) -> Option<&str> {
    let path = uri.strip_prefix("moonswarm://runs/")?;
    path.split('/').next()
}

/// Reads a resource, or returns none if there is none of that URI.
pub(super) async fn read(
    transport: &dyn Transport,
    uri: &str,
) -> Result<Option<ResourceContents>, Trouble> {
    if let Some(it) = fixed().iter().find(|it| it.uri == uri) {
        let text = ResourceContents::text(it.text.as_str(), uri).with_mime_type(it.kind);
        return Ok(Some(text));
    }
    let Some(path) = uri.strip_prefix("moonswarm://") else { return Ok(None) };
    let parts: Vec<&str> = path.split('/').collect();
    let path = match parts.as_slice() {
        ["runs", run] => Path::new("/v1/runs").at(run),
        ["runs", run, "steps", seq] => Path::new("/v1/runs").at(run).at("steps").at(seq),
        ["artifacts", artifact] => return artifact_of(transport, uri, artifact).await.map(Some),
        _ => return Ok(None),
    };
    let value = transport.get(path).await?;
    let text = format!("{value:#}");
    small(text.len())?;
    Ok(Some(ResourceContents::text(text, uri).with_mime_type(JSON)))
}

async fn artifact_of(
    transport: &dyn Transport,
    uri: &str,
    artifact: &str,
) -> Result<ResourceContents, Trouble> {
    let reply = transport.ask("GET", Path::new("/v1/artifacts").at(artifact), None).await?;
    small(reply.body.len())?;
    let contents = match std::str::from_utf8(&reply.body) {
        Ok(text) => ResourceContents::text(text, uri),
        Err(_) => ResourceContents::blob(BASE64_STANDARD.encode(&reply.body), uri),
    };
    Ok(contents.with_mime_type(reply.kind))
}

fn small(bytes: usize) -> Result<(), Trouble> {
    match bytes {
        0..=LONGEST => Ok(()),
        _ => Err(Trouble::Arguments(format!(
            "it has {bytes} bytes, and a resource at most {LONGEST}; get_run, get_step and \
             get_artifact return parts"
        ))),
    }
}

/// Returns the link to a run, for results of tools.
pub(super) fn of_run(run: &Value) -> Option<Resource> {
    let id = run["id"].as_str()?;
    let link = Resource::new(format!("moonswarm://runs/{id}"), id);
    Some(link.with_title("The run").with_mime_type(JSON))
}

/// Returns the link to a step of a run.
pub(super) fn of_step(run: &str, seq: u32) -> Resource {
    let link = Resource::new(format!("moonswarm://runs/{run}/steps/{seq}"), format!("step {seq}"));
    link.with_title("The step").with_mime_type(JSON)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_fixed_resource_has_a_uri_of_its_own_a_title_and_a_text() {
        let uris: BTreeSet<_> = fixed().iter().map(|it| it.uri.as_str()).collect();
        assert_eq!(uris.len(), fixed().len());
        for it in fixed() {
            assert!(!it.title.is_empty() && it.text.len() > 100, "{}", it.uri);
        }
        assert!(uris.contains("moonswarm://docs/flows.md"));
    }
}
