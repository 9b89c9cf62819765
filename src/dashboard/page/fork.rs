//! `/ui/runs/{run}/fork`: chooses a step and its edits, and shows what a fork would keep before it is
//! made.

use std::collections::BTreeMap;

use axum::{
    extract::{Path, State},
    http::StatusCode,
    response::{IntoResponse, Redirect, Response},
};
use maud::{Markup, html};
use serde_json::{Value, json};

use super::problem;
use crate::{
    dashboard::{
        component::{command, form::Wrong, text},
        desk::Desk,
        fields::Fields,
        fragment::allowed,
        layout::{self, Nav, Page},
        visitor::{Visitor, id},
    },
    door::{Code, Problem},
    engine::{Fork, ForkFate, ForkPlan, Program, RunView, StepView, shell},
    protocol::{Json, RunId},
};

/// The longest value that is put into a field, in bytes.
const LONGEST: usize = 100_000;
/// The maximum number of versions to choose from.
const VERSIONS: usize = 30;
/// The maximum height of a field, in lines.
const ROWS: usize = 20;
/// The number of steps of the plan on each side of the cut.
const AROUND: usize = 40;

/// The fields with JSON: the name in the form, and the path of its violations.
const INPUT: (&str, &str) = ("step-input", "$.step_input");
const OUTPUT: (&str, &str) = ("output", "$.outputs.");
const PATCH: &str = "patch";

/// Shows the page.
pub(in crate::dashboard) async fn show(
    State(desk): State<Desk>,
    visitor: Visitor,
    Path(run): Path<String>,
    fields: Fields,
) -> Result<Response, Problem> {
    let run: RunId = id(&run)?;
    let at = Place::of(&desk, &visitor, run, fields.given("step")).await?;
    let outcome = at.plan(&desk, &visitor, Fork::new(at.seq)).await?;
    Ok(at.shown(&visitor, None, &outcome, StatusCode::OK))
}

/// Checks or makes a fork. If it is refused, the page comes again with what was written.
pub(in crate::dashboard) async fn act(
    State(desk): State<Desk>,
    visitor: Visitor,
    Path(run): Path<String>,
    fields: Fields,
) -> Result<Response, Problem> {
    let run: RunId = id(&run)?;
    let at = Place::of(&desk, &visitor, run, fields.given("step")).await?;
    let (fork, wrong) = at.read(&fields);
    let mut outcome = at.plan(&desk, &visitor, fork.clone()).await?;
    if !wrong.is_empty() {
        outcome.partial = true;
        outcome.wrong.extend(wrong);
    }
    if fields.text("act") != "fork" || outcome.partial || outcome.plan.is_none() {
        let status = match outcome.partial || outcome.plan.is_none() {
            true => StatusCode::UNPROCESSABLE_ENTITY,
            false => StatusCode::OK,
        };
        return Ok(at.shown(&visitor, Some(&fields), &outcome, status));
    }
    let key = fields.once("dashboard fork", &format!("{run} {fork:?}"));
    match desk.engine.histories().fork(&visitor.caller, run, fork, key).await {
        Ok(made) => Ok(Redirect::to(&format!("/ui/runs/{}?done=fork", made.id())).into_response()),
        Err(error) => {
            let refused = Problem::from(error);
            let status = refused.status();
            outcome.refuse(refused)?;
            Ok(at.shown(&visitor, Some(&fields), &outcome, status))
        }
    }
}

/// The plan, and what is wrong with what was written.
#[derive(Default)]
struct Outcome {
    plan: Option<ForkPlan>,
    /// True if the plan is that of a fork without the fields that are wrong.
    partial: bool,
    wrong: Vec<Wrong>,
    why: Option<Problem>,
}

impl Outcome {
    /// Takes a refusal; each violation goes to the field that it is about.
    fn refuse(&mut self, refused: Problem) -> Result<(), Problem> {
        if !refused.status().is_client_error() || refused.code() == Code::NotFound.as_str() {
            return Err(refused);
        }
        for it in refused.body().violations() {
            let (field, below) =
                match (it.path.strip_prefix(INPUT.1), it.path.strip_prefix(OUTPUT.1)) {
                    (Some(below), _) => (INPUT.0, below),
                    (None, Some(below)) => {
                        (OUTPUT.0, below.trim_start_matches(|c: char| c.is_ascii_digit()))
                    }
                    (None, None) => (PATCH, it.path.trim_start_matches('$')),
                };
            let reason = format!("${below}: {}", it.message);
            self.wrong.push(Wrong { field: field.to_owned(), reason });
        }
        self.why = Some(refused);
        Ok(())
    }
}

/// The step of the page.
struct Place {
    view: RunView,
    seq: u32,
    /// The step; `None` after the last one.
    step: Option<StepView>,
    versions: Vec<(String, u64)>,
}

impl Place {
    async fn of(
        desk: &Desk,
        visitor: &Visitor,
        run: RunId,
        step: Option<&str>,
    ) -> Result<Self, Problem> {
        let view = desk.engine.run(&visitor.caller, run).await?;
        let seq = match step {
            None => view.steps.max(1),
            Some(text) => text.trim().parse().map_err(|_| {
                Problem::new(
                    Code::BadQuery,
                    "the step is a number: that of the first step to do again",
                )
            })?,
        };
        let step = if seq > view.steps {
            None
        } else {
            Some(desk.engine.step(&visitor.caller, run, seq).await?)
        };
        let versions = desk.engine.blueprints().versions(&visitor.caller, &view.blueprint).await;
        Ok(Self { seq, step, versions: allowed(versions)?.unwrap_or_default(), view })
    }

    /// Plans a fork. If it is refused, the plan is that of a fork without its edits.
    async fn plan(&self, desk: &Desk, visitor: &Visitor, fork: Fork) -> Result<Outcome, Problem> {
        let mut outcome = Outcome::default();
        let bare = Fork { program: fork.program.clone(), ..Fork::new(self.seq) };
        let (histories, run) = (desk.engine.histories(), self.view.id);
        match histories.plan_fork(&visitor.caller, run, fork).await {
            Ok(plan) => outcome.plan = Some(plan),
            Err(error) => {
                outcome.refuse(Problem::from(error))?;
                outcome.partial = true;
                outcome.plan = histories.plan_fork(&visitor.caller, run, bare).await.ok();
            }
        }
        Ok(outcome)
    }

    /// Returns true if the flow requested the step as work of an agent or of another run.
    fn editable(&self) -> bool {
        let is_work =
            |step: &&StepView| ["task", "child"].contains(&&*step.kind) && step.parent.is_none();
        self.step.as_ref().filter(is_work).is_some()
    }

    /// Returns the fork that the fields describe, without those that cannot be read.
    fn read(&self, fields: &Fields) -> (Fork, Vec<Wrong>) {
        let (mut fork, mut wrong) = (Fork::new(self.seq), Vec::new());
        let mut json = |name| parsed(fields, name).map_err(|it| wrong.push(it)).ok();
        match fields.text("edit") {
            "input" => fork.step_input = json(INPUT.0),
            "output" => {
                if let Some(output) = json(OUTPUT.0) {
                    fork.outputs = BTreeMap::from([(self.seq, output)]);
                    fork.from_step = self.seq.saturating_add(1);
                }
            }
            _ => {}
        }
        if fields.given(PATCH).is_some() {
            fork.input_patch = json(PATCH);
        }
        fork.program = fields.given("version").map(|name| Program::Named(name.to_owned()));
        (fork, wrong)
    }

    fn shown(
        &self,
        visitor: &Visitor,
        sent: Option<&Fields>,
        outcome: &Outcome,
        status: StatusCode,
    ) -> Response {
        let (run, seq) = (self.view.id, self.seq);
        let name = self.step.as_ref().map_or("after the last step", |step| &step.name);
        let body = html! {
            p { a href={ "/ui/runs/" (run) } { "← " (text::line(&self.view.blueprint, 60)) } }
            h1.line { "Fork" span.dim.small { "from step " (seq) ", " (text::short(name, 60)) } }
            p { "A new run keeps the results of the steps before this one, and does this step and all that follow anew. "
                "This run stays as it is." }
            @if let Some(why) = &outcome.why { (problem::banner(why.body())) }
            form.filters method="get" action={ "/ui/runs/" (run) "/fork" } {
                div {
                    label for="step" { "Step" }
                    input type="text" inputmode="numeric" id="step" name="step" value=(seq);
                }
                button { "Choose" }
                p.dim.small { "1 to " (self.view.steps) "; the number after the last one keeps all of them" }
            }
            div.cards {
                (self.form(visitor, sent, &outcome.wrong))
                @if let Some(plan) = &outcome.plan { (planned(plan, outcome.partial)) }
            }
        };
        let title = format!("Fork from step {seq}");
        Page { nav: Nav::Runs, title: &title, live: None, body }.with_status(visitor, status)
    }

    fn form(&self, visitor: &Visitor, sent: Option<&Fields>, wrong: &[Wrong]) -> Markup {
        let run = self.view.id;
        let edit = sent.map_or("", |sent| sent.text("edit"));
        let step = self.step.as_ref();
        let (input, output) =
            (step.and_then(|it| it.request.as_ref()), step.and_then(|it| it.response.as_ref()));
        html! {
            section.card {
                form method="post" action={ "/ui/runs/" (run) "/fork" } {
                    (layout::token(visitor))
                    (layout::once())
                    input type="hidden" name="step" value=(self.seq);
                    @if self.editable() {
                        fieldset {
                            legend { "This step" }
                            @for (word, label) in [
                                ("", "does its work again"),
                                ("input", "does its work again with the input below"),
                                ("output", "keeps its place, with the output below"),
                            ] {
                                div { label.choice {
                                    input type="radio" name="edit" value=(word) checked[edit == word];
                                    " " (label)
                                } }
                            }
                        }
                        (json_field(INPUT.0, "Input of the step", input, sent, wrong))
                        (json_field(OUTPUT.0, "Output of the step", output, sent, wrong))
                    }
                    (json_field(PATCH, "Change of the run's input: JSON that is laid over it", None, sent, wrong))
                    div.field {
                        label for="version" { "Version" }
                        select id="version" name="version" {
                            @let chosen = sent.map_or("", |sent| sent.text("version"));
                            option value="" { "the same" }
                            @for (hash, _) in self.versions.iter().take(VERSIONS).filter(|(hash, _)| *hash != self.view.hash) {
                                @let version = format!("{}@{}", self.view.blueprint, hash.get(..16).unwrap_or(hash));
                                option value=(version) selected[version == chosen] { (text::short(&version, 100)) }
                            }
                        }
                    }
                    div.line.send {
                        button name="act" value="check" { "Show what is kept" }
                        button.main name="act" value="fork" { "Fork" }
                    }
                }
                (self.command(visitor, sent))
            }
        }
    }

    /// Returns the commands that do the same as the form, as it was sent.
    fn command(&self, visitor: &Visitor, sent: Option<&Fields>) -> Markup {
        let fork = sent.map_or_else(|| Fork::new(self.seq), |sent| self.read(sent).0);
        let run = self.view.id;
        let mut line = format!("moonswarm fork {run} --from {}", fork.from_step);
        let mut body = json!({ "from_step": fork.from_step });
        if let Some(input) = &fork.step_input {
            line.push_str(&shell::option("--step-input", input.as_str()));
            body["step_input"] = input.to_value();
        }
        for (step, output) in &fork.outputs {
            line.push_str(&shell::option("--output", &format!("{step}={output}")));
            body["outputs"] = json!({ step.to_string(): output.to_value() });
        }
        if let Some(patch) = fork.input_patch.as_ref().map(Json::to_value) {
            if !patch.is_object() {
                line.push_str(&shell::option("--input", &patch.to_string()));
            }
            for (key, value) in patch.as_object().into_iter().flatten() {
                line.push_str(&shell::option("--set", &format!("{key}={value}")));
            }
            body["input_patch"] = patch;
        }
        if let Some(Program::Named(name)) = &fork.program {
            line.push_str(&shell::option("--with", name));
            body["blueprint"] = Value::from(name.as_str());
        }
        command::same(
            &visitor.url,
            &line,
            &command::Request {
                method: "POST",
                path: format!("/v1/runs/{run}/fork"),
                body: Some(body.to_string()),
            },
        )
    }
}

fn parsed(fields: &Fields, name: &str) -> Result<Json, Wrong> {
    Json::parse(fields.text(name).trim()).map_err(|error| Wrong {
        field: name.to_owned(),
        reason: format!("this is not JSON: {error}"),
    })
}

/// Returns a field for JSON, with what was sent or with the recorded value.
fn json_field(
    name: &str,
    label: &str,
    recorded: Option<&Json>,
    sent: Option<&Fields>,
    wrong: &[Wrong],
) -> Markup {
    let recorded = recorded.map(|json| {
        serde_json::to_string_pretty(&json.to_value()).expect("JSON is written as it was read")
    });
    let fits = recorded.as_ref().is_none_or(|text| text.len() <= LONGEST);
    let recorded = recorded.filter(|_| fits).unwrap_or_default();
    let value = sent.map_or(&*recorded, |sent| sent.text(name));
    html! {
        div.field {
            label for=(name) { (label) }
            @if !fits { p.hint { "The recorded value is too long for this field; it is written anew here." } }
            textarea.mono id=(name) name=(name) spellcheck="false" rows=(value.lines().count().clamp(2, ROWS)) { "\n" (value) }
            @for it in wrong.iter().filter(|it| it.field == name).take(20) { p.wrong role="alert" { (text::short(&it.reason, 300)) } }
        }
    }
}

/// Returns what the fork keeps and does first; `partial` without what is wrong.
fn planned(plan: &ForkPlan, partial: bool) -> Markup {
    let cut = plan.steps.partition_point(|step| step.step < plan.from_step);
    let from = cut.saturating_sub(AROUND);
    let upto = plan.steps.len().min(cut + AROUND);
    html! {
        section.card #plan {
            h2 { "What would happen" }
            @if partial { div.banner.warn { "This is without the edits that were refused: they count once their fields are right." } }
            p { strong { (plan.kept) } @if plan.kept == 1 { " step is kept, " } @else { " steps are kept, " }
                strong { (plan.redone) } @if plan.redone == 1 { " is not." } @else { " are not." } }
            @if let Some(it) = &plan.divergence {
                div.banner.bad role="alert" {
                    p { "The fork would be paused: the flow requests other steps than those that are kept. "
                        "Fork from an earlier step." }
                    p.small { (text::line(&it.message, 1_000)) }
                }
            } @else {
                @if !plan.asks.is_empty() {
                    p { "The flow then requests:" }
                    ul { @for ask in &plan.asks { li { (ask.kind) " " code { (text::short(&ask.name, 80)) } " " span.dim.small { "at " (text::short(&ask.at, 80)) } } } }
                }
                @if let Some(end) = &plan.ends { p { "The flow then is " (end) ", without a further step." } }
            }
            @if from > 0 { p.dim.small { "… earlier steps are kept" } }
            table {
                thead { tr { th.num { "Step" } th { "What" } th { "In the fork" } } }
                tbody { @for step in &plan.steps[from..upto] {
                    tr class=[(step.fate == ForkFate::Redone).then_some("gone")] {
                        td.num { (step.step) }
                        td.clip { (text::line(&step.name, 80)) " " span.dim.small { (step.kind) } }
                        td { (fate(step.fate)) }
                    }
                } }
            }
            @if upto < plan.steps.len() || plan.partial { p.dim.small { "Only the steps around the cut are listed." } }
        }
    }
}

fn fate(fate: ForkFate) -> Markup {
    let (class, words) = match fate {
        ForkFate::Kept => ("status ok", "✓ kept"),
        ForkFate::EditedOutput => ("status warn", "✎ another output"),
        ForkFate::EditedInput => ("status warn", "✎ done with another input"),
        ForkFate::Open => ("status busy", "▶ kept, and still to be done"),
        ForkFate::Redone => ("status", "○ not kept"),
    };
    html! { span class=(class) { (words) } }
}
