//! The table of pages, each with what it needs, and the router that is made from it.

use std::sync::Arc;

use axum::{
    Router,
    extract::State,
    middleware::from_fn_with_state,
    routing::{MethodRouter, any, get, post},
};

use super::{
    acts, assets,
    desk::Desk,
    gate, live, page, provider,
    rooms::{FRESH, Rooms},
    sign_in::{CODES, SignIns, random},
    site::Site,
};
use crate::{
    door::{self, CALLBACK, Code, Door, Problem, Rule, Shape, Who},
    engine::Engine,
    tasks::Tasks,
    token::Verb,
};

/// The maximum size of a small form.
const SMALL: usize = 64 << 10;
/// The maximum size of a form with an input or an answer, in which a character may take three bytes.
const LARGE: usize = 24 << 20;

/// A row of the table.
struct Row {
    path: &'static str,
    who: Who,
    /// The maximum size of the form; 0 for a page.
    body: usize,
    /// True if the form needs the token of its sign-in.
    form: bool,
    handler: MethodRouter<Desk>,
}

fn page(verb: Verb, path: &'static str, handler: MethodRouter<Desk>) -> Row {
    Row { path, who: Who::Caller(verb), body: 0, form: false, handler }
}

fn anybody(path: &'static str, handler: MethodRouter<Desk>) -> Row {
    Row { path, who: Who::Anybody, body: SMALL, form: false, handler }
}

fn form(who: Who, path: &'static str, handler: MethodRouter<Desk>) -> Row {
    Row { path, who, body: SMALL, form: true, handler }
}

impl Row {
    fn large(mut self) -> Self {
        self.body = LARGE;
        self
    }
}

/// Returns every page and form.
#[rustfmt::skip]
fn table() -> Vec<Row> {
    use Verb::{
        ArtifactRead, BlueprintRead, HostRead, OperatorRead, RunCancel, RunFork, RunPause, RunRead, RunResume, RunSignal,
        RunStart, SeatAcquire, StateRead, StateWrite, TaskAdvise, TaskAnswer, TaskList, TaskRead, TokenMint, TriggerPause,
    };
    let signed_in = |path, handler| Row { path, who: Who::AnyBearer, body: 0, form: false, handler };
    vec![
        anybody("/ui/assets/{file}", get(assets::get)),
        anybody("/ui/login", get(page::login::show).post(acts::login)),
        anybody(provider::BEGIN, get(provider::begin)),
        anybody(CALLBACK, get(provider::finish)),
        Row {
            path: "/ui/answer/{link}",
            who: Who::Linked,
            body: LARGE,
            form: false,
            handler: get(page::answer_link::show).post(page::answer_link::answer),
        },
        anybody("/ui/{*rest}", any(no_page)),
        Row { path: CODES, who: Who::Caller(TokenMint), body: SMALL, form: false, handler: post(acts::code) },
        form(Who::AnyBearer, "/ui/logout", post(acts::logout)),
        form(Who::AnyBearer, "/ui/theme", post(acts::theme)),

        signed_in("/ui", get(page::overview::show)),
        page(RunRead, "/ui/runs", get(page::runs::show)),
        page(RunRead, "/ui/runs/{run}", get(page::run::show)),
        page(RunRead, "/ui/runs/{run}/steps/{seq}", get(page::step::show)),
        page(RunRead, "/ui/runs/{run}/compare", get(page::compare::show)),
        page(RunFork, "/ui/runs/{run}/fork", get(page::fork::show)),
        page(ArtifactRead, "/ui/artifacts/{artifact}", get(acts::download)),
        page(ArtifactRead, "/ui/artifacts/{artifact}/picture", get(page::run::artifacts::show_picture)),
        page(TaskList, "/ui/inbox", get(page::inbox::show)),
        page(TaskRead, "/ui/inbox/{task}", get(page::task::show)),
        page(BlueprintRead, "/ui/blueprints", get(page::blueprints::show)),
        page(BlueprintRead, "/ui/blueprints/{name}", get(page::blueprint::show)),
        page(StateRead, "/ui/state", get(page::state::show)),
        page(StateRead, "/ui/state/value", get(page::state_value::show)),
        page(BlueprintRead, "/ui/triggers", get(page::triggers::show)),
        page(OperatorRead, "/ui/operators", get(page::operators::show)),
        page(RunRead, "/ui/usage", get(page::usage::show)),
        signed_in("/ui/tokens", get(page::tokens::show)),
        page(HostRead, "/ui/system", get(page::system::show)),

        form(Who::Caller(RunStart), "/ui/gallery", post(page::gallery::store)),
        form(Who::AnyBearer, "/ui/tokens/mint", post(page::tokens::mint)),
        form(Who::AnyBearer, "/ui/tokens/revoke", post(page::tokens::revoke)),
        form(Who::AnyBearer, "/ui/blueprints/{name}/archive", post(page::archive::archive)),
        form(Who::AnyBearer, "/ui/blueprints/{name}/restore", post(page::archive::restore)),
        form(Who::AnyBearer, "/ui/system/backup", post(page::system::backup)),
        form(Who::AnyBearer, "/ui/system/keys", post(page::keys::rotate)),
        form(Who::Caller(SeatAcquire), "/ui/operators/seat", post(page::operators::seat)),
        form(Who::Caller(StateWrite), "/ui/state/put", post(page::state_value::put)).large(),
        form(Who::Caller(StateWrite), "/ui/state/delete", post(page::state_value::delete)),
        form(Who::Caller(TriggerPause), "/ui/triggers/{trigger}/pause", post(page::triggers::pause)),
        form(Who::Caller(TriggerPause), "/ui/triggers/{trigger}/resume", post(page::triggers::resume)),
        form(Who::Caller(RunStart), "/ui/triggers/{trigger}/fire", post(page::triggers::fire)).large(),
        form(Who::Caller(RunRead), "/ui/runs/bulk", post(page::bulk::act)),
        form(Who::Caller(RunCancel), "/ui/runs/{run}/cancel", post(acts::cancel)),
        form(Who::Caller(RunPause), "/ui/runs/{run}/pause", post(acts::pause)),
        form(Who::Caller(RunResume), "/ui/runs/{run}/resume", post(acts::resume)),
        form(Who::Caller(RunSignal), "/ui/runs/{run}/signal", post(acts::signal)).large(),
        form(Who::Caller(RunStart), "/ui/runs/{run}/rerun", post(acts::rerun)),
        form(Who::Caller(RunFork), "/ui/runs/{run}/fork", post(page::fork::act)).large(),
        form(Who::Caller(TaskAnswer), "/ui/inbox/{task}/answer", post(page::task::answer)).large(),
        form(Who::Caller(TaskAdvise), "/ui/inbox/{task}/advice", post(page::task::advise)).large(),
        form(Who::Caller(RunStart), "/ui/blueprints/{name}/start", post(page::blueprint::start)).large(),

        signed_in("/ui/live/overview", get(live::overview)),
        page(RunRead, "/ui/live/runs", get(live::runs)),
        page(RunRead, "/ui/live/runs/{run}", get(live::run)),
        page(RunRead, "/ui/live/runs/{run}/steps/{seq}", get(live::step)),
        page(TaskList, "/ui/live/inbox", get(live::inbox)),
    ]
}

/// Returns the router of the dashboard, behind `door`.
pub fn router(engine: Engine, door: Arc<Door>, tasks: &Tasks, site: Site) -> Router {
    let desk = Desk {
        sign_ins: Arc::new(SignIns::new(engine.clone(), door.clock.clone())),
        stopping: tasks.stopping().clone(),
        rooms: Arc::new(Rooms::new(random(), FRESH)),
        tasks: tasks.clone(),
        site: Arc::new(site),
        engine,
        door,
    };
    let mut router = Router::new();
    for row in table() {
        let rule = Rule { who: row.who, body: row.body, page: None, shape: Shape::Problem };
        let behind =
            from_fn_with_state((desk.engine.clone(), Arc::clone(&desk.door), rule), door::pass);
        let handler = match row.form {
            true => row.handler.layer(from_fn_with_state(desk.clone(), gate::form)),
            false => row.handler,
        };
        router = router.route(row.path, handler.layer(behind));
    }
    router.layer(from_fn_with_state(desk.clone(), gate::surround)).with_state(desk)
}

async fn no_page(State(_): State<Desk>) -> Problem {
    Problem::new(Code::NoRoute, "there is no such page")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_but_the_login_needs_the_token_of_its_sign_in() {
        for row in table() {
            let own_token = ["/ui/login", provider::BEGIN, CALLBACK, CODES, "/ui/answer/{link}"];
            let open = ["/ui/assets/{file}", "/ui/{*rest}"].contains(&row.path)
                || own_token.contains(&row.path);
            assert_eq!(row.form || row.body == 0, !open, "{}", row.path);
        }
    }

    #[test]
    fn only_the_login_and_the_assets_are_open() {
        let open = table().into_iter().filter(|row| row.who == Who::Anybody);
        let open: Vec<_> = open.map(|row| row.path).collect();
        let login = ["/ui/login", provider::BEGIN, CALLBACK];
        let expected = [&["/ui/assets/{file}"][..], &login, &["/ui/{*rest}"]].concat();
        assert_eq!(open, expected);
    }
}
