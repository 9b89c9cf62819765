//! Completes the OpenAPI document where the handlers' own descriptions are not exact:
//! the exact form of each parameter, the media type of a refusal, and where an answer leads.
//!
//! A request that fits the document is refused only for what it means: another form is a mistake
//! of the document.

use utoipa::openapi::{
    ContentBuilder, KnownFormat, ObjectBuilder, Ref, RefOr, Schema, SchemaFormat,
    link::Link,
    path::{Operation, Parameter, ParameterIn},
    response::Response,
    schema::{SchemaType, Type},
};

/// The simple durations: one amount. Several, as in `1h30m`, are read as well.
const DURATION: &str = r"^[0-9]{1,4}(\.[0-9]{1,3})?(ms|[smhd])?$";
/// The media types of refusals.
const PROBLEM: &str = "application/problem+json";
const JSON: &str = "application/json";

/// An operation whose answer names something, the operations that take it, and under which name:
/// (operation, status, where the answer has it, parameter, operations).
const LINKS: [(&str, &str, &str, &str, &[&str]); 6] = [
    ("run_start", "201", "/id", "run", OF_A_RUN),
    ("run_fork", "201", "/id", "run", OF_A_RUN),
    ("run_list", "200", "/items/0/id", "run", OF_A_RUN),
    ("task_list", "200", "/items/0/id", "task", &["task_get", "task_answer", "task_expire"]),
    ("token_mint", "201", "/jti", "jti", &["token_revoke"]),
    ("session_open", "201", "/session", "session", &["session_get", "session_close"]),
];
const OF_A_RUN: &[&str] = &[
    "run_get",
    "step_list",
    "artifact_list",
    "run_export",
    "run_pause",
    "run_resume",
    "run_cancel",
    "run_fork",
    "run_replay",
    "run_delete",
];

/// Completes the description of an operation.
pub(super) fn complete(operation: &mut Operation) {
    let id = operation.operation_id.clone().unwrap_or_default();
    for parameter in operation.parameters.iter_mut().flatten() {
        if let RefOr::T(parameter) = parameter {
            describe(&id, parameter);
        }
    }
    for (status, answer) in &mut operation.responses.responses {
        let RefOr::T(answer) = answer else { continue };
        if status.as_str() >= "400" {
            name_problems(answer);
        }
        for (_, _, place, name, targets) in
            LINKS.iter().filter(|(from, at, ..)| *from == id && at == status)
        {
            for target in targets.iter().filter(|target| **target != id) {
                let link = Link::builder()
                    .operation_id(*target)
                    .parameter(*name, format!("$response.body#{place}"))
                    .build();
                answer.links.insert((*target).to_owned(), link.into());
            }
        }
    }
}

/// Gives a refusal the media type that it is sent with.
fn name_problems(answer: &mut Response) {
    let is_problem = answer.content.get(JSON).is_some_and(|content| {
        let RefOr::T(content) = content else { return false };
        matches!(&content.schema, Some(RefOr::Ref(Ref { ref_location, .. })) if ref_location.ends_with("/Problem"))
    });
    if is_problem && let Some(content) = answer.content.swap_remove(JSON) {
        answer.content.insert(PROBLEM.to_owned(), content);
    }
}

/// Gives a parameter its exact form.
fn describe(operation: &str, parameter: &mut Parameter) {
    let in_path = parameter.parameter_in == ParameterIn::Path;
    let schema = match (parameter.name.as_str(), operation) {
        ("run", _) => pattern(&id("run")),
        ("task", _) => pattern(&id("task")),
        ("artifact", _) => pattern(&id("art")),
        ("scope", _) => pattern(&scopes()),
        // A time, or how long ago.
        ("since", "stats") => text().build().into(),
        ("until", "run_get") => return,
        ("since" | "until" | "ended_since" | "ended_until", _) => {
            let format = SchemaFormat::KnownFormat(KnownFormat::DateTime);
            text().format(Some(format)).build().into()
        }
        ("wait", _) => pattern(DURATION),
        ("status", "task_list") => return,
        ("parent", "run_list") | ("other", _) => pattern(&id("run")),
        ("status", _) => {
            let one = "(queued|running|waiting|paused|compensating|completed|failed|canceled)";
            pattern(&format!("^{one}(,{one}){{0,7}}$"))
        }
        ("limit", _) => number(1, 500),
        ("depth", _) => number(1, 64),
        ("max", "session_next") => number(1, 100),
        ("seq" | "starting_after", _) => number(0, u32::MAX),
        ("Idempotency-Key", _) => pattern("^[!-~]{1,255}$"),
        ("cursor", "run_list") => pattern("^(run_[a-z2-7]{26}|[0-9]{1,9})$"),
        ("cursor", "task_list" | "session_tasks") => pattern("^[0-9]{1,9}-[0-9]{1,9}$"),
        ("cursor", "step_list" | "audit_list") => pattern("^[0-9]{1,9}$"),
        ("argument", _) => {
            // Any JSON, as a media type that the parameter has.
            let any = ContentBuilder::new().schema(Some(Schema::default())).build();
            parameter.schema = None;
            parameter.content.insert(JSON.to_owned(), any.into());
            return;
        }
        _ if in_path => pattern("^[^/]+$"),
        _ => return,
    };
    parameter.schema = Some(schema);
}

fn text() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(SchemaType::Type(Type::String))
}

fn pattern(form: &str) -> RefOr<Schema> {
    text().pattern(Some(form)).build().into()
}

fn number(least: u32, most: u32) -> RefOr<Schema> {
    let of = SchemaType::Type(Type::Integer);
    ObjectBuilder::new().schema_type(of).minimum(Some(least)).maximum(Some(most)).build().into()
}

fn id(prefix: &str) -> String {
    format!("^{prefix}_[a-z2-7]{{26}}$")
}

/// The written forms of a scope of state.
fn scopes() -> String {
    let word = "[A-Za-z0-9_-]{1,64}";
    format!("^(global|(run|session|custom):{word}|operator:{word}:{word})$")
}
