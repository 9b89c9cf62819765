//! `/ui/blueprints/{name}`: a version, its source and findings, and the form to start a run;
//! its graph, its versions and how they differ, and stubs for editors.

mod graph;
mod stubs;
mod versions;

use axum::{
    extract::{Path, State},
    http::StatusCode,
    response::{IntoResponse, Redirect, Response},
};
use maud::{Markup, html};

use crate::{
    blueprint::{Bundle, Finding, Form},
    dashboard::{
        component::{
            command, form,
            form::Wrong,
            json, pager,
            sparkline::{self, Shown},
            text, time, usage,
        },
        desk::Desk,
        fields::Fields,
        fragment::allowed,
        headers::escaped,
        layout::{self, Nav, Page},
        page::{archive, problem},
        visitor::{Visitor, id},
    },
    door::{Code, Problem},
    engine::{BlueprintView, EngineError, Program, StartRun, StatsAsk, StatsBy, StatsView, shell},
    protocol::{Json, Tags},
    store::DAY_MS,
    token::{Need, Verb},
};

/// The maximum number of lines of a file that are shown.
const LINES: usize = 3_000;

/// The name of the field for the tags of a run.
const TAGS: &str = "tags";

/// The tabs: the word in the URL, and the label.
const TABS: [(&str, &str); 4] =
    [("", "Start and source"), ("graph", "Graph"), ("versions", "Versions"), ("stubs", "Stubs")];

/// Shows the page.
pub(in crate::dashboard) async fn show(
    State(desk): State<Desk>,
    visitor: Visitor,
    Path(name): Path<String>,
    fields: Fields,
) -> Result<Response, Problem> {
    let view = desk.engine.blueprints().get(&visitor.caller, &name).await?;
    let tab = match fields.text("tab") {
        "" => None,
        "graph" => Some(graph::tab(&desk, &visitor, &view, &fields).await?),
        "versions" => Some(versions::tab(&desk, &visitor, &view, &fields).await?),
        "stubs" => Some(stubs::tab()),
        _ => return Err(Problem::new(Code::BadQuery, "there is no such tab")),
    };
    if let Some(tab) = tab {
        let word = TABS.map(|(word, _)| word).into_iter().find(|it| *it == fields.text("tab"));
        let body = html! { (head(&view, word.unwrap_or_default())) (tab) };
        let title = view.name.clone();
        return Ok(Page { nav: Nav::Blueprints, title: &title, live: None, body }.shown(&visitor));
    }
    // The input and the tags of an earlier run, to start another like it.
    let sent = match fields.given("from") {
        Some(run) => {
            let run = desk.engine.run(&visitor.caller, id(run)?).await?;
            let input = run.input.map(|input| input.as_str().to_owned());
            let tags: Vec<_> =
                run.tags.iter().map(|(name, value)| format!("{name}={value}")).collect();
            Some(Fields::of([(form::RAW, input.unwrap_or_default()), (TAGS, tags.join("\n"))]))
        }
        None => None,
    };
    let note = archive::note(&view, &fields, visitor.now_ms);
    shown(&desk, &visitor, &view, sent.as_ref(), &[], &note, StatusCode::OK).await
}

/// Returns the path of a version, which stays the same when another is stored.
fn path(view: &BlueprintView) -> String {
    let version = format!("{}@{}", view.name, view.hash.get(..16).unwrap_or(&view.hash));
    format!("/ui/blueprints/{}", escaped(&version))
}

/// Returns what stands above each tab.
fn head(view: &BlueprintView, tab: &str) -> Markup {
    let path = path(view);
    html! {
        p { a href="/ui/blueprints" { "← Blueprints" } }
        h1.line { (text::line(&view.name, 100)) code.dim { (view.hash.get(..12).unwrap_or(&view.hash)) } }
        @if let Some(about) = &view.description { p { (text::line(about, 1_000)) } }
        nav.tabs aria-label="Parts of the blueprint" {
            @for (word, label) in TABS {
                a href=(pager::url(&path, &[("tab", word)])) aria-current=[(word == tab).then_some("page")] { (label) }
            }
        }
    }
}

/// Starts a run from the form. If that is refused, the page comes again with what was written.
pub(in crate::dashboard) async fn start(
    State(desk): State<Desk>,
    visitor: Visitor,
    Path(name): Path<String>,
    fields: Fields,
) -> Result<Response, Problem> {
    let view = desk.engine.blueprints().get(&visitor.caller, &name).await?;
    let input = match form::read(&form_of(&view), &fields) {
        Ok(input) => input,
        Err(wrong) => {
            let words = html! { div.banner.bad role="alert" { "Some fields cannot be read." } };
            let status = StatusCode::UNPROCESSABLE_ENTITY;
            return shown(&desk, &visitor, &view, Some(&fields), &wrong, &words, status).await;
        }
    };
    let lines = fields.text(TAGS).lines().map(str::trim).filter(|line| !line.is_empty());
    let tags = match Tags::parse(lines) {
        Ok(tags) => tags,
        Err(error) => {
            let wrong = [Wrong { field: TAGS.to_owned(), reason: format!("failed to {error}") }];
            let status = StatusCode::UNPROCESSABLE_ENTITY;
            return shown(&desk, &visitor, &view, Some(&fields), &wrong, &html! {}, status).await;
        }
    };
    let start = StartRun { input, tags, ..StartRun::new(Program::Named(name)) };
    // A form that is sent twice starts one run.
    let key = fields.once("dashboard start", &format!("{} {:?}", start.input, start.tags));
    match desk.engine.start(&visitor.caller, start, key).await {
        Ok(started) => {
            Ok(Redirect::to(&format!("/ui/runs/{}?done=start", started.run)).into_response())
        }
        Err(error) => {
            let refused = Problem::from(error);
            if !refused.status().is_client_error() {
                return Err(refused);
            }
            let why = problem::banner(refused.body());
            shown(&desk, &visitor, &view, Some(&fields), &[], &why, refused.status()).await
        }
    }
}

/// Returns the form of the input. A blueprint without a schema takes any JSON, or nothing.
fn form_of(view: &BlueprintView) -> Form {
    Form::of(view.input.as_ref().map(Json::to_value).as_ref())
}

async fn shown(
    desk: &Desk,
    visitor: &Visitor,
    view: &BlueprintView,
    sent: Option<&Fields>,
    wrong: &[Wrong],
    why: &Markup,
    status: StatusCode,
) -> Result<Response, Problem> {
    let (engine, caller, now_ms) = (&desk.engine, &visitor.caller, visitor.now_ms);
    let versions =
        allowed(engine.blueprints().versions(caller, &view.name).await)?.unwrap_or_default();
    let bundle = match engine.blueprints().blueprint_source(caller, &view.name, &view.hash).await {
        // A version that only came with a run has no source for a token of one blueprint.
        Err(EngineError::NotFound { .. }) => None,
        found => allowed(found)?,
    };
    let findings = match &bundle {
        Some(bundle) if visitor.may(Verb::BlueprintCheck) => {
            allowed(engine.blueprints().check(caller, bundle.clone()).await)?.unwrap_or_default()
        }
        Some(_) | None => Vec::new(),
    };
    let blueprint = Some(view.name.clone());
    let ask = StatsAsk { by: StatsBy::Day, since_ms: None, blueprint, limit: None };
    let stats = allowed(engine.stats(caller, ask).await)?.filter(|it| it.total.count > 0);
    let may_start = caller.grant.check(Verb::RunStart, &[Need::Blueprint(&view.name)]).is_ok();
    let body = html! {
        (head(view, ""))
        (why)
        div.cards {
            @if may_start { (start_form(visitor, view, sent, wrong)) }
            (about(view, &versions, now_ms))
            @if let Some(stats) = &stats { (statistics(stats, now_ms)) }
        }
        (archive::form(visitor, view))
        (checked(&findings))
        @if let Some(bundle) = &bundle { (source(bundle, &findings)) }
    };
    let title = view.name.clone();
    Ok(Page { nav: Nav::Blueprints, title: &title, live: None, body }.with_status(visitor, status))
}

fn start_form(
    visitor: &Visitor,
    view: &BlueprintView,
    sent: Option<&Fields>,
    wrong: &[Wrong],
) -> Markup {
    let body =
        serde_json::json!({ "blueprint": view.name, "input": {}, "tags": { "name": "value" } })
            .to_string();
    html! {
        section.card {
            h2 { "Start a run" }
            form method="post" action={ (path(view)) "/start" } {
                (layout::token(visitor))
                (layout::once())
                (form::fields(&form_of(view), sent, wrong))
                @let tags = sent.map_or("", |sent| sent.text(TAGS));
                details.command open[!tags.is_empty()] {
                    summary { "Tags and metadata" }
                    label for=(TAGS) { "Tags and metadata: name=value, one a line" }
                    textarea id=(TAGS) name=(TAGS) rows="3" spellcheck="false" dir="auto" { "\n" (tags) }
                    @for it in wrong.iter().filter(|it| it.field == TAGS) { p.wrong role="alert" { (it.reason) } }
                }
                button.main { "Start" }
            }
            (command::same(&visitor.url, &format!("moonswarm run {} --input '<json>' --tag name=value", shell::quoted(&view.name)), &command::Request {
                method: "POST",
                path: "/v1/runs".to_owned(),
                body: Some(body),
            }))
        }
    }
}

/// Returns how often its runs succeed, how long they take and what they cost.
fn statistics(view: &StatsView, now_ms: u64) -> Markup {
    let total = &view.total;
    html! {
        section.card {
            h2 { "Runs of 30 days" }
            dl {
                dt { "Ended" } dd { (usage::grouped(total.count)) }
                dt { "Completed" } dd { (total.completed * 100 / total.count.max(1)) " %" }
                @if let Some(ms) = total.p50_ms { dt { "Took, p50" } dd { (time::took(ms)) } }
                @if let Some(ms) = total.p95_ms { dt { "Took, p95" } dd { (time::took(ms)) } }
                dt { "Tokens" } dd { (usage::grouped(total.tokens)) }
                dt { "Cost" } dd { "$" (total.usd) }
            }
            (sparkline::of(view, (30, DAY_MS), Shown::Runs, now_ms))
        }
    }
}

fn about(view: &BlueprintView, versions: &[(String, u64)], now_ms: u64) -> Markup {
    html! {
        section.card {
            h2 { "Agents" }
            @if view.agents.is_empty() { p.dim { "none" } }
            ul { @for (agent, operator) in view.agents.iter().take(100) {
                li { (text::line(agent, 80)) " " span.dim { "by " (text::line(operator, 80)) } }
            } }
            @if !view.on.is_empty() {
                h2 { "Starts by itself" }
                ul { @for on in view.on.iter().take(50) {
                    li { (on.kind) " " code { (text::short(&on.what, 100)) }
                        @if let Some(next) = &on.next_at { ", next " (time::of(next, now_ms)) }
                        @if let Some(problem) = &on.problem { div.small { (text::line(problem, 300)) } }
                    }
                } }
            }
            h2 { "Versions" }
            ul { @for (hash, at_ms) in versions.iter().take(50) {
                @let short = hash.get(..12).unwrap_or(hash);
                li { a href={ "/ui/blueprints/" (escaped(&format!("{}@{short}", view.name))) }
                        aria-current=[(*hash == view.hash).then_some("true")] { code { (short) } }
                    " " (time::of_ms(*at_ms, now_ms)) @if *hash == view.hash { " (this one)" }
                }
            } }
            @if versions.len() > 50 { p.dim { "… and " (versions.len() - 50) " older ones" } }
            @if versions.len() > 1 { p { a href=(pager::url(&path(view), &[("tab", "versions"), ("to", &view.hash)])) { "What changed in this one" } } }
            p { a href={ "/ui/runs?blueprint=" (escaped(&view.name)) } { "Its runs" } }
            @if let Some(input) = &view.input {
                details { summary { "Schema of the input" } (json::tree(input, false)) }
            }
        }
    }
}

fn checked(findings: &[Finding]) -> Markup {
    html! {
        @if !findings.is_empty() {
            h2 { "Findings of check" }
            @for it in findings.iter().take(100) {
                div.banner.warn {
                    code { (text::short(&it.file, 120)) ":" (it.line) ":" (it.column) } " "
                    (text::line(&it.message, 500)) " " code { (it.code) }
                    @if let Some(hint) = &it.hint { div.small { (text::line(hint, 500)) } }
                }
            }
        }
    }
}

fn source(bundle: &Bundle, findings: &[Finding]) -> Markup {
    html! {
        h2 { "Source" }
        @for (path, source) in bundle.files() {
            details.card open[path == bundle.entry()] {
                summary { code { (text::short(path, 200)) } span.dim { " " (source.lines().count()) " lines" } }
                pre.source tabindex="0" {
                    @for (at, line) in source.lines().enumerate().take(LINES) {
                        @let found = findings.iter().any(|it| it.file == *path && it.line as usize == at + 1);
                        @let anchor = (path == bundle.entry()).then(|| format!("L{}", at + 1));
                        span.ctl[found] id=[anchor] { (text::marked(line)) "\n" }
                    }
                }
            }
        }
    }
}
