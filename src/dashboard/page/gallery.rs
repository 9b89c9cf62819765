//! The gallery on a new host: an example is stored, and its form opened.

use axum::{extract::State, response::Redirect};
use maud::{Markup, html};

use crate::{
    blueprint::{
        Bundle,
        gallery::{GALLERY, example},
    },
    dashboard::{
        again, component::command, desk::Desk, fields::Fields, headers::escaped, layout,
        visitor::Visitor,
    },
    door::{Code, Problem},
    engine::Caller,
    token::{Grant, Verb},
};

/// Returns the gallery, for whoever may start runs.
pub(in crate::dashboard) fn form(visitor: &Visitor) -> Markup {
    let first = GALLERY[0].name;
    let line = format!("moonswarm init --from {first} && moonswarm run {first}.lua");
    html! {
        @if visitor.may(Verb::RunStart) {
            section.card {
                h2 { "The gallery" }
                form method="post" action="/ui/gallery" {
                    (layout::token(visitor))
                    fieldset {
                        legend { "Examples" }
                        @for (at, it) in GALLERY.iter().enumerate() {
                            div { label.choice {
                                input type="radio" name="example" value=(it.name) checked[at == 0];
                                span { strong { (it.name) } " " span.dim { (it.about) } }
                            } }
                        }
                    }
                    p.hint { "The example is stored as a blueprint, and its form opens." }
                    @if !visitor.signed_in.examples { (again::field("gallery-token")) }
                    button.main { "Run it …" }
                }
                (command::same(&visitor.url, &line, &command::Request {
                    method: "PUT",
                    path: format!("/v1/blueprints/{first}"),
                    body: Some("{\"source\":\"…\"}".to_owned()),
                }))
            }
        }
    }
}

/// Stores an example with the token that the form carries, and opens the form to start it.
pub(in crate::dashboard) async fn store(
    State(desk): State<Desk>,
    visitor: Visitor,
    fields: Fields,
) -> Result<Redirect, Problem> {
    let Some(it) = example(fields.text("example")) else {
        return Err(Problem::new(Code::NotFound, "the gallery has no such example"));
    };
    let at = |name: &str| Redirect::to(&format!("/ui/blueprints/{}", escaped(name)));
    let caller = match visitor.signed_in.examples {
        true => storing(&visitor.caller),
        false => again::caller(&desk, &fields)?,
    };
    // What stands under the name is somebody's, and stays.
    if desk.engine.blueprints().get(&caller, it.name).await.is_ok() {
        return Ok(at(it.name));
    }
    let bundle = Bundle::from_source(&format!("{}.lua", it.name), it.source)
        .expect("a file of the gallery is a bundle");
    let name = it.name.to_owned();
    let stored = desk.engine.blueprints().put_blueprint(&caller, name, bundle, None).await?;
    Ok(at(&stored.0.name))
}

/// Returns a caller who may store an example as well: a sign-in cannot bring source, but the examples
/// are the program's own.
fn storing(caller: &Caller) -> Caller {
    let mut grant = Grant::clone(&caller.grant);
    if let Some(verbs) = &mut grant.verbs {
        verbs.insert(Verb::BlueprintWrite);
    }
    Caller { grant: grant.into(), ..caller.clone() }
}
