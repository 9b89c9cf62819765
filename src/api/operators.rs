//! The operators of the host.

use axum::{Json as JsonBody, extract::State};
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    app::Api,
    params::{All, Asker},
};
use crate::{door::Problem, token::Need};

/// An operator.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct OperatorView {
    /// The name that blueprints use.
    name: String,
    /// The kind: process, lua, human, queue, echo, …
    kind: String,
    /// The number of its open sessions; absent for kinds that have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    sessions: Option<usize>,
    /// The number of connected ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    connected: Option<usize>,
    /// The strategy of a composite: fallback, race, quorum, round_robin.
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<&'static str>,
    /// The operators that a composite stands for, as far as the token reaches them.
    #[serde(skip_serializing_if = "Option::is_none")]
    members: Option<Vec<String>>,
}

/// Lists the operators that the token reaches.
#[utoipa::path(
    get, path = "/v1/operators", operation_id = "operator_list", tag = "operators",
    responses((status = 200, description = "All of them.", body = All<OperatorView>)),
)]
pub(super) async fn list(
    State(api): State<Api>,
    Asker(caller): Asker,
) -> Result<JsonBody<All<OperatorView>>, Problem> {
    let sessions = api.engine.sessions().list(&caller)?;
    let reaches = |name: &str| caller.grant.scopes.cover(&Need::Operator(name));
    let view = |(name, kind): (String, String)| {
        let own = || sessions.iter().filter(|session| session.operator == name);
        let (open, connected) = (own().count(), own().filter(|it| it.connected).count());
        let is_one = kind == "main_ai";
        let (sessions, connected) = (is_one.then_some(open), is_one.then_some(connected));
        let (rule, mut members) = api.engine.composite(&name).unzip();
        if let Some(members) = &mut members {
            members.retain(|member| reaches(member));
        }
        OperatorView { name, kind, sessions, connected, rule, members }
    };
    let operators = api.engine.operators().into_iter();
    let operators = operators.filter(|(name, _)| reaches(name)).map(view);
    Ok(JsonBody(All::of(operators.collect())))
}
