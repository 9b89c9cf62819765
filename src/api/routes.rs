//! The table of routes, each with its verb and its maximum body size. The router and the OpenAPI
//! document are generated from it, so every route has a row.

use std::sync::Arc;

use axum::{Router, handler::Handler, middleware::from_fn_with_state};
use utoipa::openapi::{
    RefOr,
    path::{Operation, ParameterIn},
};
use utoipa_axum::{router::UtoipaMethodRouter, routes};

use super::{
    app::Api, artifacts, blueprints, bulk, check, dispatch, docs, erase, events, feed, fork,
    health, host, layers, metrics, nodes, operators, query, queues, rerun, responses, run_diff,
    run_list, runs, session, sessions, signals, state, stats, steps, tasks, testing, tokens,
    triggers, upkeep, worker,
};
use crate::{
    door::{self, Code, Problem, Rule, Shape, Who},
    engine::DOCUMENT_BYTES,
    token::Verb,
};

/// The default maximum size of a body.
const MIB: usize = 1 << 20;
/// The maximum size of a result, artifact or bundle.
const LARGE: usize = 8 * MIB;
/// The maximum size of an imported run.
const HUGE: usize = DOCUMENT_BYTES;

/// A row: a handler, and the requirements of the door.
pub(super) struct Row {
    /// The requirements of the door.
    pub rule: Rule,
    handler: UtoipaMethodRouter<Api>,
}

impl Row {
    /// Returns the method, as in the OpenAPI document, and the path.
    pub(super) fn route(&self) -> (&'static str, &str) {
        let (method, path, _) = self.described();
        (method, path)
    }

    /// Returns true if requests may have an `Idempotency-Key`.
    pub(super) fn is_keyed(&self) -> bool {
        let (_, _, operation) = self.described();
        operation.parameters.iter().flatten().any(|it| match it {
            RefOr::T(it) => {
                it.name.eq_ignore_ascii_case("idempotency-key")
                    && matches!(it.parameter_in, ParameterIn::Header)
            }
            RefOr::Ref(_) => false,
        })
    }

    /// Returns the method, the path and their description.
    fn described(&self) -> (&'static str, &str, &Operation) {
        let (path, item) = self.handler.1.paths.first_key_value().expect("a row has one path");
        let methods = [
            (&item.get, "get"),
            (&item.put, "put"),
            (&item.post, "post"),
            (&item.delete, "delete"),
        ];
        let found = methods.into_iter().find_map(|(it, method)| Some((method, it.as_ref()?)));
        let (method, operation) = found.expect("a row has one method");
        (method, path, operation)
    }

    /// Returns the parts of the row for the OpenAPI document.
    pub(super) fn into_document(self) -> (Rule, UtoipaMethodRouter<Api>) {
        (self.rule, self.handler)
    }

    fn large(mut self) -> Self {
        self.rule.body = LARGE;
        self
    }

    fn huge(mut self) -> Self {
        self.rule.body = HUGE;
        self
    }

    /// Marks a route for clients of model APIs.
    fn models(mut self) -> Self {
        self.rule.shape = Shape::Models;
        self
    }

    /// Marks a route for clients of the Messages API.
    fn messages(mut self) -> Self {
        self.rule.shape = Shape::Messages;
        self
    }

    fn page(mut self) -> Self {
        self.rule.page = Some(docs::page);
        self
    }
}

fn row(who: Who, handler: UtoipaMethodRouter<Api>) -> Row {
    Row { rule: Rule { who, body: MIB, page: None, shape: Shape::Problem }, handler }
}

fn caller(verb: Verb, handler: UtoipaMethodRouter<Api>) -> Row {
    row(Who::Caller(verb), handler)
}

fn holder(verb: Verb, handler: UtoipaMethodRouter<Api>) -> Row {
    row(Who::Holder(verb), handler)
}

/// Returns every route. Rows are built one at a time: each carries its description, and all of them
/// together would take most of the memory of a start.
pub(super) fn table() -> impl ExactSizeIterator<Item = Row> {
    ROWS.iter().map(|row| row())
}

#[rustfmt::skip]
const ROWS: &[fn() -> Row] = &[
    || row(Who::Anybody,               routes!(docs::root)),
    || row(Who::Anybody,               routes!(health::healthz)),
    || row(Who::Welcome(Verb::HostRead), routes!(health::readyz)),
    || caller(Verb::HostRead,          routes!(metrics::metrics)),
    || caller(Verb::HostRead,          routes!(docs::openapi)),
    || caller(Verb::HostRead,          routes!(docs::docs)).page(),
    || caller(Verb::HostRead,          routes!(docs::errors)),
    || caller(Verb::HostRead,          routes!(tokens::jwks)),

    || caller(Verb::RunStart,          routes!(runs::start)).large(),
    || caller(Verb::RunRead,           routes!(run_list::list)),
    || caller(Verb::RunRead,           routes!(runs::get)),
    || caller(Verb::RunDelete,         routes!(runs::delete)),
    || caller(Verb::RunCancel,         routes!(runs::cancel)),
    || caller(Verb::RunPause,          routes!(runs::pause)),
    || caller(Verb::RunResume,         routes!(runs::resume)),
    || caller(Verb::RunFork,           routes!(fork::fork)).large(),
    || caller(Verb::RunStart,          routes!(rerun::rerun)),
    || caller(Verb::RunRead,           routes!(run_diff::diff)),
    || caller(Verb::RunRead,           routes!(bulk::bulk)),
    || caller(Verb::RunReplay,         routes!(fork::replay)).large(),
    || caller(Verb::RunExport,         routes!(fork::export)),
    || caller(Verb::RunImport,         routes!(fork::import)).huge(),
    || caller(Verb::RunRead,           routes!(steps::list)),
    || caller(Verb::RunRead,           routes!(steps::get)),
    || caller(Verb::RunRead,           routes!(steps::attempts)),
    || caller(Verb::RunInspect,        routes!(steps::locals)),
    || caller(Verb::RunRead,           routes!(events::stream)),
    || caller(Verb::RunSignal,         routes!(signals::send)),
    || caller(Verb::RunQuery,          routes!(query::ask)),
    || caller(Verb::ArtifactRead,      routes!(artifacts::list)),
    || caller(Verb::ArtifactWrite,     routes!(artifacts::put)).large(),
    || caller(Verb::ArtifactRead,      routes!(artifacts::get)),

    || caller(Verb::BlueprintWrite,    routes!(blueprints::put)).large(),
    || caller(Verb::BlueprintRead,     routes!(blueprints::list)),
    || caller(Verb::BlueprintRead,     routes!(blueprints::get)),
    || caller(Verb::BlueprintRead,     routes!(blueprints::versions)),
    || caller(Verb::BlueprintRead,     routes!(blueprints::graph)),
    || caller(Verb::BlueprintRead,     routes!(blueprints::diff)),
    || caller(Verb::BlueprintRead,     routes!(blueprints::source)),
    || caller(Verb::BlueprintWrite,    routes!(blueprints::archive)),
    || caller(Verb::BlueprintWrite,    routes!(blueprints::restore)),
    || caller(Verb::BlueprintWrite,    routes!(blueprints::delete)),
    || caller(Verb::RunStart,          routes!(signals::start)),
    || caller(Verb::BlueprintCheck,    routes!(check::check)).large(),
    || caller(Verb::BlueprintTest,     routes!(testing::test)).large(),

    || caller(Verb::RunRead,           routes!(stats::stats)),
    || caller(Verb::RunRead,           routes!(feed::stream)),

    || caller(Verb::BlueprintRead,     routes!(triggers::list)),
    || caller(Verb::TriggerPause,      routes!(triggers::pause)),
    || caller(Verb::TriggerPause,      routes!(triggers::resume)),
    || caller(Verb::RunStart,          routes!(triggers::fire)),

    || caller(Verb::RunStart,          routes!(responses::create)).large().models(),
    || caller(Verb::RunStart,          routes!(responses::connect)).models(),
    || caller(Verb::RunStart,          routes!(responses::compact)).large().models(),
    || caller(Verb::RunStart,          routes!(responses::complete)).large().models(),
    || caller(Verb::RunStart,          routes!(responses::message)).large().messages(),
    || caller(Verb::RunRead,           routes!(responses::get)).models(),
    || caller(Verb::RunRead,           routes!(responses::input_items)).models(),
    || caller(Verb::RunCancel,         routes!(responses::cancel)).models(),
    || caller(Verb::RunDelete,         routes!(responses::delete)).models(),
    || caller(Verb::RunStart,          routes!(responses::create_conversation)).large().models(),
    || caller(Verb::RunRead,           routes!(responses::get_conversation)).models(),
    || caller(Verb::RunStart,          routes!(responses::update_conversation)).models(),
    || caller(Verb::RunDelete,         routes!(responses::delete_conversation)).models(),
    || caller(Verb::RunStart,          routes!(responses::add_items)).large().models(),
    || caller(Verb::RunRead,           routes!(responses::list_items)).models(),
    || caller(Verb::RunRead,           routes!(responses::get_item)).models(),
    || caller(Verb::RunStart,          routes!(responses::delete_item)).models(),
    || caller(Verb::BlueprintRead,     routes!(responses::models)).models(),
    || caller(Verb::BlueprintRead,     routes!(responses::model)).models(),
    || caller(Verb::BlueprintRead,     routes!(responses::agent)).models(),

    || caller(Verb::TaskList,          routes!(tasks::list)),
    || caller(Verb::TaskRead,          routes!(tasks::get)),
    || caller(Verb::TaskAnswer,        routes!(tasks::answer)).large(),
    || caller(Verb::TokenMint,         routes!(tasks::link)),
    || caller(Verb::RunStart,          routes!(tasks::reply)).large(),
    || caller(Verb::TaskExpire,        routes!(tasks::expire)),
    || caller(Verb::TaskAdvise,        routes!(sessions::advise)),

    || caller(Verb::Dispatch,          routes!(dispatch::dispatch)).large(),

    || caller(Verb::StateRead,         routes!(state::scopes)),
    || caller(Verb::StateRead,         routes!(state::list)),
    || caller(Verb::StateRead,         routes!(state::get)),
    || caller(Verb::StateWrite,        routes!(state::put)).large(),
    || caller(Verb::StateWrite,        routes!(state::delete)),
    || caller(Verb::StateWrite,        routes!(state::batch)).large(),

    || caller(Verb::HostRead,          routes!(nodes::list)),
    || caller(Verb::OperatorRead,      routes!(operators::list)),
    || caller(Verb::OperatorRead,      routes!(queues::list)),
    || caller(Verb::OperatorRead,      routes!(queues::workers)),
    || caller(Verb::SessionOpen,       routes!(sessions::open)),
    || caller(Verb::OperatorRead,      routes!(sessions::list)),
    || caller(Verb::SessionRead,       routes!(sessions::get)),
    || caller(Verb::SessionClose,      routes!(sessions::close)),
    || caller(Verb::SessionRead,       routes!(session::connect)),
    || caller(Verb::SessionRead,       routes!(session::calls::next)),
    || caller(Verb::SessionRead,       routes!(session::calls::renew)),
    || caller(Verb::TaskList,          routes!(session::calls::tasks)),
    || caller(Verb::WorkerPrompt,      routes!(session::calls::accept)),
    || caller(Verb::WorkerResult,      routes!(session::calls::report)).large(),
    || caller(Verb::WorkerProgress,    routes!(session::calls::progress)),
    || caller(Verb::TaskEscalate,      routes!(session::calls::escalate)),
    || caller(Verb::WorkerResult,      routes!(session::calls::decline)),
    || caller(Verb::SeatAcquire,       routes!(sessions::seat)),

    || caller(Verb::HostRead,          routes!(host::get)),
    || caller(Verb::HostBackup,        routes!(upkeep::backup)),
    || caller(Verb::HostBackup,        routes!(upkeep::check)),
    || caller(Verb::HostRead,          routes!(layers::list)),
    || caller(Verb::HostRead,          routes!(layers::states)),
    || caller(Verb::AuditRead,         routes!(layers::audit)),
    || caller(Verb::HostGc,            routes!(upkeep::gc)),
    || caller(Verb::HostErase,         routes!(erase::erase)),

    || row(Who::AnyBearer,             routes!(tokens::whoami)),
    || row(Who::AnyBearer,             routes!(tokens::own)),
    || caller(Verb::TokenMint,         routes!(tokens::mint)),
    || caller(Verb::TokenList,         routes!(tokens::list)),
    || caller(Verb::TokenRevoke,       routes!(tokens::revoke)),
    || caller(Verb::KeyRotate,         routes!(tokens::rotate)),

    || caller(Verb::WorkerLease,       routes!(worker::lease)),
    || caller(Verb::WorkerLease,       routes!(worker::batch::results)).large(),
    || caller(Verb::WorkerLease,       routes!(worker::batch::heartbeats)),
    || holder(Verb::WorkerPrompt,      routes!(worker::prompt)),
    || holder(Verb::WorkerPrompt,      routes!(worker::context::context)),
    || holder(Verb::WorkerPrompt,      routes!(worker::context::step)),
    || holder(Verb::ArtifactRead,      routes!(worker::context::artifact)),
    || holder(Verb::WorkerResult,      routes!(worker::result)).large(),
    || holder(Verb::WorkerSubmit,      routes!(worker::submit)).large(),
    || holder(Verb::WorkerArtifact,    routes!(worker::artifact)).large(),
    || holder(Verb::WorkerProgress,    routes!(worker::progress)),
    || holder(Verb::TaskEscalate,      routes!(worker::escalate)),
    || holder(Verb::WorkerHeartbeat,   routes!(worker::heartbeat)),
    || holder(Verb::WorkerToken,       routes!(worker::token)),
    || holder(Verb::WorkerState,       routes!(worker::state)),
    || holder(Verb::WorkerState,       routes!(worker::put_state)),
];

/// Returns the router: every row behind the door with its own rule, and everything else behind it
/// as well.
pub(super) fn router(api: Api) -> Router {
    let behind = |rule| {
        let (engine, door) = (api.engine.clone(), Arc::clone(&api.door));
        from_fn_with_state((engine, door, rule), door::pass)
    };
    let nowhere = behind(Rule { who: Who::AnyBearer, body: 0, page: None, shape: Shape::Problem });
    let mut router = Router::new();
    for row in table() {
        let (rule, (_, mut paths, handler)) = (row.rule, row.handler);
        let (path, _) = paths.paths.pop_first().expect("a row has one path");
        router = router.route(&path, handler.layer(behind(rule)));
    }
    router
        .fallback(no_route.layer(nowhere.clone()))
        .method_not_allowed_fallback(no_method.layer(nowhere))
        .with_state(api)
}

async fn no_route() -> Problem {
    Problem::new(Code::NoRoute, "/openapi.json lists every route")
}

async fn no_method() -> Problem {
    Problem::new(Code::MethodNotAllowed, "/openapi.json lists the methods of every route")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_row_is_one_route_and_no_route_has_two_rows() {
        let mut routes = BTreeSet::new();
        for row in table() {
            assert_eq!(row.handler.1.paths.len(), 1);
            let (method, path) = row.route();
            assert!(routes.insert((method, path.to_owned())), "{method} {path}");
        }
        assert_eq!(routes.len(), table().len());
    }

    #[test]
    fn only_the_first_page_and_the_question_whether_the_server_runs_are_open() {
        let who = |is: fn(Who) -> bool| -> Vec<String> {
            table().filter(|row| is(row.rule.who)).map(|row| row.route().1.to_owned()).collect()
        };
        assert_eq!(who(|who| who == Who::Anybody), ["/", "/healthz"]);
        assert_eq!(who(|who| matches!(who, Who::Welcome(_))), ["/readyz"]);
        // Whoever has a bearer may ask whose it is, and what it can do.
        assert_eq!(who(|who| who == Who::AnyBearer), ["/v1/whoami", "/v1/tokens/self"]);
    }

    #[test]
    fn a_task_bearer_reaches_the_worker_routes_and_nothing_else() {
        for row in table() {
            let worker = row.route().1.starts_with("/v1/worker/");
            let takes_holder = matches!(row.rule.who, Who::Holder(_));
            let lease = row.rule.who == Who::Caller(Verb::WorkerLease);
            assert_eq!(worker && !lease, takes_holder, "{}", row.route().1);
        }
    }
}
