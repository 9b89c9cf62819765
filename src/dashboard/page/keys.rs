//! The rotation of the keys of tokens and handles, with the token that the form carries.

use axum::{extract::State, response::Response};
use maud::{Markup, html};

use crate::{
    blueprint::parse_duration,
    dashboard::{
        again,
        component::{command, text, time},
        desk::Desk,
        fields::Fields,
        layout::{self, Nav, Page},
        visitor::Visitor,
    },
    door::{Code, Problem},
    engine::{RotateKeys, rfc3339},
    token::{Verb, permits},
};

/// The choices of keys: the word, and the label.
const KEYS: [(&str, &str); 3] = [
    ("both", "both"),
    ("signing", "the key that signs tokens"),
    ("handles", "the secret of handles"),
];

/// Returns the form; nothing for a role that may not do it with any token.
pub(in crate::dashboard) fn form(visitor: &Visitor) -> Markup {
    html! {
        @if permits(visitor.caller.grant.role, Verb::KeyRotate) {
            h2 { "Keys" }
            div.acts {
                details data-key="keys" {
                    summary.danger { "Rotate keys …" }
                    form method="post" action="/ui/system/keys" {
                        (layout::token(visitor))
                        p { "Makes new keys. Tokens and handles of the previous ones are good for the time below, so that there is time to replace them." }
                        div.field {
                            label for="keys" { "Keys" }
                            select id="keys" name="keys" {
                                @for (word, label) in KEYS { option value=(word) { (label) } }
                            }
                        }
                        div.field {
                            label for="grace" { "The previous ones verify for" }
                            input type="text" id="grace" name="grace" value="7d" spellcheck="false";
                        }
                        div.field {
                            label.choice {
                                input type="checkbox" name="now" value="on";
                                " A key leaked: refuse everything made with the previous keys at once"
                            }
                            p.hint { "Every token, session and sign-in ends, yours too. " code { "admin.token" } " in the data directory has a new token." }
                        }
                        (again::field("keys-token"))
                        button.danger { "Rotate the keys" }
                        (command::same(&visitor.url, "moonswarm key rotate", &command::Request {
                            method: "POST",
                            path: "/v1/keys/rotate".to_owned(),
                            body: Some("{}".to_owned()),
                        }))
                    }
                }
            }
        }
    }
}

/// Rotates the keys, and shows the token of the form as the new key signed it.
pub(in crate::dashboard) async fn rotate(
    State(desk): State<Desk>,
    visitor: Visitor,
    fields: Fields,
) -> Result<Response, Problem> {
    let ask = asked(&fields)?;
    let caller = again::caller(&desk, &fields)?;
    let rotated = desk.engine.tokens().rotate_keys(&caller, ask).await?;
    let body = html! {
        h1 { "The keys are rotated" }
        div.banner.ok role="status" {
            "The signing key is " code { (rotated.kid) } ". "
            @if ask.grace_ms == 0 { "Everything made with the previous keys is refused. Sign in again with a new token." }
            @else { "The previous keys verify until " (time::of(&rfc3339(rotated.until_ms), visitor.now_ms)) "." }
        }
        @if let Some(token) = rotated.token.as_ref().filter(|_| ask.signing) {
            p { "This is the token that you entered, signed by the new key. It is shown this once." }
            div.card { pre.clip tabindex="0" { (token) } (text::copy(token)) }
        }
        p { a href="/ui/system" { "System" } }
    };
    Ok(Page { nav: Nav::System, title: "Keys", live: None, body }.shown(&visitor))
}

/// Returns what a form asks for.
fn asked(fields: &Fields) -> Result<RotateKeys, Problem> {
    let wrong = |detail: String| Problem::new(Code::BadRequest, detail);
    let (signing, handles) = match fields.text("keys") {
        "both" => (true, true),
        "signing" => (true, false),
        "handles" => (false, true),
        _ => return Err(wrong("keys is one of both, signing and handles".to_owned())),
    };
    let grace_ms = match fields.given("now") {
        Some(_) => 0,
        None => parse_duration(fields.text("grace").trim())
            .map_err(|error| wrong(format!("failed to {error}")))?,
    };
    if grace_ms == 0 && fields.given("now").is_none() {
        return Err(wrong(
            "the previous keys verify for longer than nothing: tick the box if one leaked"
                .to_owned(),
        ));
    }
    Ok(RotateKeys { signing, handles, grace_ms })
}
