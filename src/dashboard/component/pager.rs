//! Links between the pages of a list.

use maud::{Markup, html};

use crate::dashboard::headers::escaped;

/// Returns the links to the first and the next page; `query` are the filters.
pub(in crate::dashboard) fn links(
    path: &str,
    query: &[(&str, &str)],
    is_first: bool,
    next: Option<&str>,
) -> Markup {
    html! {
        @if !is_first || next.is_some() {
            nav.pager aria-label="Pages of the list" {
                @if !is_first { a href=(url(path, query)) { "← first page" } }
                @if let Some(next) = next {
                    @let all: Vec<_> = query.iter().copied().chain([("cursor", next)]).collect();
                    a rel="next" href=(url(path, &all)) { "next page →" }
                }
            }
        }
    }
}

/// Returns a path with a query; empty values are left out.
pub(in crate::dashboard) fn url(path: &str, query: &[(&str, &str)]) -> String {
    let given = query.iter().filter(|(_, value)| !value.is_empty());
    let pairs: Vec<_> = given.map(|(name, value)| format!("{name}={}", escaped(value))).collect();
    match pairs.is_empty() {
        true => path.to_owned(),
        false => format!("{path}?{}", pairs.join("&")),
    }
}
