//! The list of tools, as a token sees it.

use std::collections::BTreeSet;

use rmcp::{ErrorData, model};
use serde_json::Value;

use super::{
    answer::Trouble,
    published,
    tool::Tool,
    tools,
    transport::{Path, Transport},
};
use crate::token::Verb;

/// Lists the tools that a token may use: those of the table, then the blueprints that are tools.
pub(super) async fn tools(transport: &dyn Transport) -> Result<Vec<model::Tool>, Trouble> {
    let verbs = verbs(transport).await?;
    let seen = tools::all().iter().filter(|(tool, _)| sees(tool, &verbs));
    let mut all: Vec<_> = seen.map(|(_, shown)| shown.clone()).collect();
    if [Verb::RunStart, Verb::BlueprintRead].iter().all(|verb| verbs.contains(verb.as_str())) {
        match published::all(transport).await {
            Ok(published) => all.extend(published.into_iter().map(|it| it.tool)),
            // A token that may not list every blueprint has none as a tool.
            Err(Trouble::Refused { status: 400..500, .. }) => {}
            Err(trouble) => return Err(trouble),
        }
    }
    Ok(all)
}

/// Returns the error of a list that cannot be made.
pub(super) fn unlisted(trouble: &Trouble) -> ErrorData {
    ErrorData::internal_error(format!("the tools cannot be listed: {}", trouble.text()), None)
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
