//! The commands that do the same as a button.

use maud::{Markup, html};

use super::text;
use crate::engine::shell::quoted;

/// A request of the API, for `curl`.
pub(in crate::dashboard) struct Request<'a> {
    /// The method.
    pub method: &'a str,
    /// The path.
    pub path: String,
    /// The body, if there is one.
    pub body: Option<String>,
}

/// Returns the same act as a line for `moonswarm` and one for `curl`.
pub(in crate::dashboard) fn same(url: &str, line: &str, request: &Request<'_>) -> Markup {
    let Request { method, path, body } = request;
    let mut curl = format!("curl -X {method} -H \"Authorization: Bearer $MOONSWARM_TOKEN\" ");
    if let Some(body) = body {
        curl.push_str(&format!("-H 'Content-Type: application/json' -d {} ", quoted(body)));
    }
    curl.push_str(&quoted(&format!("{url}{path}")));
    html! {
        details.command {
            summary { "as a command" }
            @for words in [line, &curl] { div.same { pre tabindex="0" { (words) } (text::copy(words)) } }
        }
    }
}
