//! The token that is asked for again: what a sign-in cannot do is done with the token itself.

use maud::{Markup, html};

use super::{desk::Desk, fields::Fields};
use crate::{
    door::{Code, Problem},
    engine::{Bearer, Caller},
};

/// The maximum length of a token, in bytes.
const MOST: usize = 8 * 1_024;

/// Returns the field for the token; `id` is unique on the page.
pub(super) fn field(id: &str) -> Markup {
    html! {
        div.field {
            label for=(id) { "Token" }
            p.hint id={ (id) "-hint" } { "This needs a token itself, not only a sign-in. It is used once and not kept. "
                "The first one: " code { "cat .moonswarm/admin.token" } ", in the directory of the daemon." }
            input type="password" id=(id) name="token" required autocomplete="off" spellcheck="false"
                aria-describedby={ (id) "-hint" };
        }
    }
}

/// Returns the caller of the token that a form carries.
///
/// # Errors
/// Returns `forbidden` if it is not a token for the API.
pub(super) fn caller(desk: &Desk, fields: &Fields) -> Result<Caller, Problem> {
    let token = fields.text("token").trim();
    let wrong = |detail: &str| Problem::new(Code::Forbidden, detail);
    if token.is_empty() || token.len() > MOST {
        return Err(wrong("enter a token for the API"));
    }
    match desk.engine.authenticate(token) {
        Ok(Bearer::Caller(caller)) if caller.session.is_none() => {
            desk.door.take_turn(&caller)?;
            Ok(caller)
        }
        Ok(_) => Err(wrong("enter a token for the API, not one of a session or a task")),
        Err(_) => Err(wrong("the token that was entered is not valid on this host")),
    }
}
