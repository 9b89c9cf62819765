//! The OpenAPI document: the descriptions of the routes, and the checks that the door adds to each.

use std::sync::OnceLock;

use axum::body::Bytes;
use utoipa::{
    OpenApi as _,
    openapi::{
        ContentBuilder, Object, OpenApi, Ref, RefOr, ResponseBuilder, Schema, Type,
        extensions::ExtensionsBuilder,
        path::Operation,
        schema,
        security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme},
    },
};
use utoipa_axum::router::OpenApiRouter;

use super::{app::Api, described, routes};
use crate::{
    door::{Code, MessageErrorBody, ModelErrorBody, ProblemBody, Rule, Shape, Who},
    engine::ArtifactRef,
    protocol::{BudgetEvent, CompactionEvent, ObservableEvent, SecretAccessEvent},
};

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "moonswarm",
        description = "Runs Lua blueprints as durable flows; workers report over HTTP.\n\nEvery route but `/` and `/healthz` takes `Authorization: Bearer <token>`. Times are RFC 3339 in UTC; durations are strings such as `\"90s\"` in requests and milliseconds in answers. Refusals are `application/problem+json` with a stable `code`. Unknown fields of a request are refused, except in worker results and for clients of model APIs.",
    ),
    components(schemas(ProblemBody, MessageErrorBody, ModelErrorBody, BudgetEvent, CompactionEvent, ObservableEvent, SecretAccessEvent, ArtifactRef)),
    tags(
        (name = "runs", description = "Runs, their steps, events and files."),
        (name = "responses", description = "Blueprints and agents as models, for clients of the Responses API (Open Responses) and of chat completions. Refusals are `{\"error\": {message, type, param, code}}` here, and unknown fields are ignored."),
        (name = "blueprints", description = "Blueprints and their versions."),
        (name = "triggers", description = "What starts runs by itself: schedules, watches of files, signals to a blueprint."),
        (name = "tasks", description = "Tasks for people, and advice for attempts that asked."),
        (name = "operators", description = "Operators, and the sessions that are some of them."),
        (name = "worker", description = "For whoever holds an attempt; the bearer names the task."),
        (name = "tokens", description = "Tokens and keys."),
        (name = "host", description = "The host itself."),
    ),
)]
struct Document;

/// Returns the OpenAPI document of every route.
pub fn openapi() -> OpenApi {
    let mut router = OpenApiRouter::<Api>::with_openapi(Document::openapi());
    let mut rules = Vec::new();
    for row in routes::table() {
        let (method, path) = row.route();
        let at = (method, path.to_owned());
        let (rule, handler) = row.into_document();
        rules.push((at, rule));
        router = router.routes(handler);
    }
    let mut document = router.into_openapi();
    // The author and license of the package are not part of the contract.
    document.info.license = None;
    document.info.contact = None;
    let components = document.components.get_or_insert_default();
    // An empty page of tasks is an empty page of answers, too.
    if let Some(RefOr::T(Schema::OneOf(pages))) = components.schemas.get_mut("InboxPage") {
        let any = std::mem::take(&mut pages.items).into_iter();
        let any = any.fold(schema::AnyOfBuilder::new(), schema::AnyOfBuilder::item);
        components.schemas.insert("InboxPage".to_owned(), Schema::AnyOf(any.build()).into());
    }
    let bearer = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some("A token (a JWT) or, for the worker API, a task's handle."))
        .build();
    components.security_schemes.insert("bearer".to_owned(), SecurityScheme::Http(bearer).into());
    for ((method, path), rule) in rules {
        let item = document.paths.paths.get_mut(&path).expect("the row's path was just added");
        let operation = match method {
            "get" => item.get.as_mut(),
            "put" => item.put.as_mut(),
            "post" => item.post.as_mut(),
            _ => item.delete.as_mut(),
        };
        complete(operation.expect("the row's method was just added"), rule);
    }
    document
}

/// Adds the requirements of the door and its refusals.
fn complete(operation: &mut Operation, rule: Rule) {
    let mut refusals = vec![Code::HostNotAllowed, Code::OriginNotAllowed];
    match rule.who {
        Who::Anybody | Who::Linked => {}
        Who::Welcome(_) | Who::AnyBearer | Who::Caller(_) | Who::Holder(_) => {
            let mut security = vec![SecurityRequirement::new("bearer", Vec::<String>::new())];
            if matches!(rule.who, Who::Welcome(_)) {
                security.push(SecurityRequirement::default());
            }
            operation.security = Some(security);
            refusals.extend([
                Code::TlsRequired,
                Code::Unauthenticated,
                Code::TokenRevoked,
                Code::ForbiddenVerb,
                Code::ForbiddenScope,
                Code::RateLimited,
                Code::Overloaded,
                Code::Stopping,
                Code::Internal,
                Code::Storage,
            ]);
        }
    }
    // One object: extensions have no order of their own, but the document must be deterministic.
    let mut door = serde_json::Map::new();
    if let Some(verb) = rule.who.verb() {
        door.insert("verb".to_owned(), verb.as_str().into());
    }
    if matches!(rule.who, Who::Welcome(_)) {
        door.insert("bearer".to_owned(), "optional".into());
    }
    if operation.parameters.as_ref().is_some_and(|parameters| !parameters.is_empty()) {
        refusals.extend([Code::BadId, Code::BadQuery, Code::BadHeader]);
    }
    if operation.request_body.is_some() {
        refusals.extend([
            Code::MalformedJson,
            Code::BodyTimeout,
            Code::TooLarge,
            Code::UnsupportedMediaType,
            Code::UnknownField,
            Code::InvalidBody,
            Code::StorageFull,
        ]);
        door.insert("max_body_bytes".to_owned(), rule.body.into());
    }
    let door = ExtensionsBuilder::new().add("x-door", serde_json::Value::Object(door));
    operation.extensions.get_or_insert_default().merge(door.build());
    for code in refusals {
        add_refusal(operation, code, rule.shape);
    }
    if rule.page.is_some()
        && let Some(RefOr::T(refusal)) = operation.responses.responses.get_mut("401")
    {
        // A person is asked for a token.
        let page = ContentBuilder::new().schema(Some(Object::with_type(Type::String))).build();
        refusal.content.insert("text/html".to_owned(), page.into());
    }
    described::complete(operation);
}

fn add_refusal(operation: &mut Operation, code: Code, shape: Shape) {
    let word = format!("`{code}`");
    let answers = &mut operation.responses.responses;
    let status = match (shape, code.status()) {
        (Shape::Models | Shape::Messages, 422) => 400,
        (_, status) => status,
    };
    let status = status.to_string();
    if let Some(RefOr::T(known)) = answers.get_mut(&status) {
        if !known.description.contains(&word) {
            known.description = format!("{word}, {}", known.description);
        }
        return;
    }
    let (schema, kind) = match shape {
        Shape::Models => ("ModelError", "application/json"),
        Shape::Messages => ("MessageError", "application/json"),
        Shape::Problem => ("Problem", "application/problem+json"),
    };
    let content = ContentBuilder::new().schema(Some(Ref::from_schema_name(schema))).build();
    let refusal = ResponseBuilder::new().description(word).content(kind, content);
    answers.insert(status, refusal.build().into());
}

/// Returns the text of the document, which is generated once.
pub(super) fn text() -> Bytes {
    static TEXT: OnceLock<Bytes> = OnceLock::new();
    TEXT.get_or_init(|| serde_json::to_vec(&openapi()).expect("the document is plain data").into())
        .clone()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_document_is_the_one_in_docs() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/openapi.json");
        let now = serde_json::to_string_pretty(&openapi()).unwrap() + "\n";
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(&file, &now).unwrap();
        }
        let kept = std::fs::read_to_string(&file).unwrap();
        assert!(
            kept == now,
            "the API changed: run this test with UPDATE_GOLDEN=1 and look at the difference"
        );
    }

    /// Returns true if an event fits a schema.
    fn fits(schema: &str, event: &serde_json::Value) -> bool {
        let mut document = serde_json::to_value(openapi()).unwrap();
        let reference = format!("#/components/schemas/{schema}");
        let schema = serde_json::json!({
            "$ref": reference, "components": document["components"].take(),
        });
        jsonschema::is_valid(&schema, event)
    }

    #[test]
    fn events_of_a_runs_life_fit_the_document() {
        use serde_json::json;

        use crate::protocol::{
            BudgetDecision, DurationMs, EventSource, SecretAccessOutcome, SecretSource,
        };
        let action = BudgetDecision::RequestIncrease { amount: 5.into() };
        let workflow = || "run_1".into();
        let budget = [
            BudgetEvent::BudgetAction { workflow: workflow(), action },
            BudgetEvent::BudgetAction {
                workflow: workflow(),
                action: BudgetDecision::HaltWorkflow,
            },
            BudgetEvent::CostIncurred {
                operator: "o".into(),
                cost: 1.into(),
                cumulative: 2.into(),
            },
        ];
        for event in budget {
            let event = serde_json::to_value(event).unwrap();
            assert!(fits("BudgetEvent", &event), "{event}");
        }
        assert!(!fits("BudgetEvent", &json!({"type": "cost_incurred", "operator": "o"})));
        let event = ObservableEvent::new(EventSource::Hook, "a.b", DurationMs::ZERO, json!(1));
        assert!(fits("ObservableEvent", &serde_json::to_value(event).unwrap()));
        let event = CompactionEvent::CompactionSkipped { operator: "o".into(), reason: "r".into() };
        assert!(fits("CompactionEvent", &serde_json::to_value(event).unwrap()));
        let source = SecretSource::OsKeystore { service: "s".into() };
        let event = SecretAccessEvent::new("key", source, SecretAccessOutcome::Denied, 1);
        assert!(fits("SecretAccessEvent", &serde_json::to_value(event).unwrap()));
    }

    #[test]
    fn every_row_is_described_with_its_verb_and_refusals() {
        let document = serde_json::to_value(openapi()).unwrap();
        for row in routes::table() {
            let (method, path) = row.route();
            let operation = &document["paths"][path][method];
            let verb = row.rule.who.verb().map(crate::token::Verb::as_str);
            assert_eq!(operation["x-door"]["verb"].as_str(), verb, "{method} {path}");
            assert!(operation["responses"]["403"].is_object(), "{method} {path}");
            assert!(operation["description"].is_string() || operation["summary"].is_string());
            for name in path.split('{').skip(1).filter_map(|rest| rest.split('}').next()) {
                let parameters = operation["parameters"].as_array().unwrap();
                assert!(parameters.iter().any(|p| p["name"] == name), "{path} lacks {name}");
            }
        }
    }

    #[test]
    fn every_reference_within_the_document_leads_somewhere() {
        let document = serde_json::to_value(openapi()).unwrap();
        let text = document.to_string();
        for rest in text.split("\"#/components/schemas/").skip(1) {
            let name = rest.split('"').next().unwrap();
            assert!(document["components"]["schemas"][name].is_object(), "{name}");
        }
    }
}
