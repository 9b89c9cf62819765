//! The lists of tools, prompts and resources, as a token sees them.

use std::collections::BTreeSet;

use rmcp::{
    ErrorData,
    model::{Prompt, Resource, ResourceTemplate, Tool as Shown},
};
use serde_json::Value;

use super::{
    answer::Trouble,
    offered::{self, Offered},
    prompts, published, resources,
    tool::Tool,
    tools,
    transport::{Path, Transport},
};
use crate::token::Verb;

/// Lists the tools that a token may use: those of the table, then the blueprints that are tools.
pub(super) async fn tools(transport: &dyn Transport) -> Result<Vec<Shown>, Trouble> {
    let verbs = verbs(transport).await?;
    let listed = blueprints(transport, &verbs).await?;
    Ok(tools_of(&verbs, &listed))
}

/// Lists the prompts: those of this server, then the blueprints that are prompts.
pub(super) async fn prompts(transport: &dyn Transport) -> Result<Vec<Prompt>, Trouble> {
    Ok(prompts_of(&offered(transport).await?))
}

/// Lists the resources that have an address: those of this server, then the blueprints.
pub(super) async fn resources(transport: &dyn Transport) -> Result<Vec<Resource>, Trouble> {
    Ok(resources_of(&offered(transport).await?))
}

/// Lists the templates of resources.
pub(super) async fn templates(transport: &dyn Transport) -> Result<Vec<ResourceTemplate>, Trouble> {
    Ok(templates_of(&offered(transport).await?))
}

/// Returns the blueprints that are prompts and resources for a token.
pub(super) async fn offered(transport: &dyn Transport) -> Result<Vec<Offered>, Trouble> {
    let verbs = verbs(transport).await?;
    Ok(offered::of(&blueprints(transport, &verbs).await?))
}

/// The lists of which a client is told when they change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum List {
    /// The tools.
    Tools,
    /// The prompts.
    Prompts,
    /// The resources and their templates.
    Resources,
}

/// Returns some lists as JSON, from one look at the blueprints.
pub(super) async fn texts(
    transport: &dyn Transport,
    wanted: &BTreeSet<List>,
) -> Result<Vec<(List, Vec<u8>)>, Trouble> {
    let verbs = verbs(transport).await?;
    let listed = blueprints(transport, &verbs).await?;
    let offered = offered::of(&listed);
    let text = |list: &List| {
        let text = match list {
            List::Tools => serde_json::to_vec(&tools_of(&verbs, &listed)),
            List::Prompts => serde_json::to_vec(&prompts_of(&offered)),
            List::Resources => {
                serde_json::to_vec(&(resources_of(&offered), templates_of(&offered)))
            }
        };
        (*list, text.unwrap_or_default())
    };
    Ok(wanted.iter().map(text).collect())
}

/// Returns the error of a list that cannot be made.
pub(super) fn unlisted(trouble: &Trouble) -> ErrorData {
    ErrorData::internal_error(format!("the list cannot be made: {}", trouble.text()), None)
}

fn tools_of(verbs: &BTreeSet<String>, listed: &Value) -> Vec<Shown> {
    let seen = tools::all().iter().filter(|(tool, _)| sees(tool, verbs));
    let own = seen.map(|(_, shown)| shown.clone());
    own.chain(published::of(listed).into_iter().map(|it| it.tool)).collect()
}

fn prompts_of(offered: &[Offered]) -> Vec<Prompt> {
    prompts::list().into_iter().chain(offered.iter().filter_map(Offered::prompt)).collect()
}

fn resources_of(offered: &[Offered]) -> Vec<Resource> {
    resources::list().into_iter().chain(offered.iter().filter_map(Offered::resource)).collect()
}

fn templates_of(offered: &[Offered]) -> Vec<ResourceTemplate> {
    let own = resources::templates().into_iter();
    own.chain(offered.iter().filter_map(Offered::template)).collect()
}

/// Returns the blueprints that a token may start as tools, prompts and resources.
async fn blueprints(transport: &dyn Transport, verbs: &BTreeSet<String>) -> Result<Value, Trouble> {
    if [Verb::RunStart, Verb::BlueprintRead].iter().any(|verb| !verbs.contains(verb.as_str())) {
        return Ok(Value::Null);
    }
    match transport.get(Path::new("/v1/blueprints").with("tools", Some(true))).await {
        // A token that may not list every blueprint has none of them.
        Err(Trouble::Refused { status: 403, .. }) => Ok(Value::Null),
        listed => listed,
    }
}

async fn verbs(transport: &dyn Transport) -> Result<BTreeSet<String>, Trouble> {
    let who = transport.get(Path::new("/v1/whoami")).await?;
    let verbs = who["verbs"].as_array().into_iter().flatten();
    Ok(verbs.filter_map(Value::as_str).map(str::to_owned).collect())
}

/// Returns true if a token with these verbs sees the tool.
fn sees(tool: &Tool, verbs: &BTreeSet<String>) -> bool {
    let has = |verb: &Verb| verbs.contains(verb.as_str());
    tool.verbs.is_empty() || tool.verbs.iter().any(has)
}
