//! JSON as a foldable tree.

use maud::{Markup, html};
use serde_json::Value;

use super::text;
use crate::protocol::Json;

/// The maximum number of values of a tree.
const MOST: usize = 2_000;
/// The maximum number of values of a tree that was asked for as a whole.
const MOST_WHOLE: usize = 50_000;
/// Up to this depth a tree is open.
const OPEN: usize = 2;

/// Returns a value as a tree; a large one is cut unless `whole`.
pub(in crate::dashboard) fn tree(json: &Json, whole: bool) -> Markup {
    let mut left = if whole { MOST_WHOLE } else { MOST };
    let value = json.to_value();
    let shown = match &value {
        Value::String(it) if it.contains('\n') || it.len() > 200 => text::block(it, whole),
        _ => node(None, &value, 0, whole, &mut left),
    };
    html! {
        div.json { (shown) }
        @if left == 0 { p.dim.small { "… the rest is not shown" } }
    }
}

fn node(key: Option<&str>, value: &Value, depth: usize, whole: bool, left: &mut usize) -> Markup {
    if *left == 0 {
        return html! {};
    }
    *left -= 1;
    let label = html! { @if let Some(key) = key { span.key { (text::short(key, 200)) } ": " } };
    match value {
        Value::Object(members) if !members.is_empty() => html! {
            details open[depth < OPEN] {
                summary { (label) span.dim { "{" (members.len()) "}" } }
                @for (name, member) in members { (node(Some(name), member, depth + 1, whole, left)) }
            }
        },
        Value::Array(items) if !items.is_empty() => html! {
            details open[depth < OPEN] {
                summary { (label) span.dim { "[" (items.len()) "]" } }
                @for (at, item) in items.iter().enumerate() {
                    (node(Some(&at.to_string()), item, depth + 1, whole, left))
                }
            }
        },
        Value::String(string) => {
            let (shown, rest) = text::cut(string, if whole { usize::MAX } else { text::SHOWN });
            html! {
                div.leaf { (label) bdi { "\"" (text::marked(shown)) "\"" }
                    @if rest > 0 { span.dim { " … " (rest) " more bytes" } }
                }
            }
        }
        other => html! { div.leaf { (label) (other.to_string()) } },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_escaped_and_bounded() {
        let json = Json::from_trusted(r#"{"<b>":["<i>",null,{}],"n":1}"#);
        let shown = tree(&json, false).into_string();
        assert!(shown.contains("&lt;b&gt;") && shown.contains("&lt;i&gt;"), "{shown}");
        assert!(!shown.contains("<i>"), "{shown}");
        let many = serde_json::to_string(&vec![1; 10_000]).unwrap();
        let shown = tree(&Json::from_trusted(many.clone()), false).into_string();
        assert!(shown.contains("the rest is not shown") && shown.len() < 200_000);
        assert!(!tree(&Json::from_trusted(many), true).into_string().contains("not shown"));
    }
}
