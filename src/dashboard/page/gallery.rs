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
    token::Verb,
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
                    (again::field("gallery-token"))
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
    _: Visitor,
    fields: Fields,
) -> Result<Redirect, Problem> {
    let Some(it) = example(fields.text("example")) else {
        return Err(Problem::new(Code::NotFound, "the gallery has no such example"));
    };
    let caller = again::caller(&desk, &fields)?;
    let bundle = Bundle::from_source(&format!("{}.lua", it.name), it.source)
        .expect("a file of the gallery is a bundle");
    let name = it.name.to_owned();
    let stored = desk.engine.blueprints().put_blueprint(&caller, name, bundle, None).await?;
    Ok(Redirect::to(&format!("/ui/blueprints/{}", escaped(&stored.0.name))))
}
