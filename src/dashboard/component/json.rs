//! JSON as a foldable tree.

use maud::{Markup, html};
use serde_json::Value;

use super::text;
use crate::protocol::{
    Json,
    plain::{self, steers},
};

/// The maximum number of values of a tree.
const MOST: usize = 2_000;
/// The maximum number of values of a tree that was asked for as a whole.
const MOST_WHOLE: usize = 50_000;
/// The longest text that is repeated in its exact form, in bytes.
const EXACT: usize = 2_000;
/// The size of all trees in a list of them, in bytes.
pub(in crate::dashboard) const ROOM: usize = 40_000;
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

/// Returns a value in a list of them as a tree, as long as `room` is left for it: the bytes that the
/// trees of a page may still have.
pub(in crate::dashboard) fn part(json: &Json, room: &mut usize) -> Option<Markup> {
    *room = room.checked_sub(json.as_str().len())?;
    Some(tree(json, false))
}

fn node(key: Option<&str>, value: &Value, depth: usize, whole: bool, left: &mut usize) -> Markup {
    if *left == 0 {
        return html! {};
    }
    *left -= 1;
    let label = html! { @if let Some(key) = key { (name(key)) ": " } };
    match value {
        Value::Object(members) if !members.is_empty() => html! {
            details open[depth < OPEN] {
                summary { (label) span.dim { "{" (members.len()) "}" } }
                @for (name, member) in members { (node(Some(name), member, depth + 1, whole, left)) }
            }
        },
        Value::Array(items) if !items.is_empty() => html! {
            details.list open[depth < OPEN] {
                summary { (label) span.dim { "[" (items.len()) "]" } }
                @for (at, item) in items.iter().enumerate() {
                    (node(Some(&at.to_string()), item, depth + 1, whole, left))
                }
            }
        },
        Value::String(string) => {
            let (shown, rest) = text::cut(string, if whole { usize::MAX } else { text::SHOWN });
            let marked = string.chars().any(|c| steers(c) && !matches!(c, '\n' | '\t'));
            let exact = if marked && rest == 0 { exact(string) } else { None };
            html! {
                div.leaf data-cut[rest > 0] { (label) bdi.string data-v=[exact] { "\"" (text::marked(shown)) "\"" }
                    @if rest > 0 { span.dim { " … " (rest) " more bytes" } }
                }
            }
        }
        other => html! { div.leaf { (label) span { (other.to_string()) } } },
    }
}

/// Returns a key, with its exact form where what is shown differs.
fn name(key: &str) -> Markup {
    let shown = text::short(key, 200);
    let exact = if shown == key { None } else { exact(key) };
    html! { span.key data-v=[exact] { (shown) } }
}

/// Returns a text as JSON in which controls are escaped: what is shown of it is not the text itself.
fn exact(text: &str) -> Option<String> {
    let json = || plain::json(&Value::from(text).to_string());
    (text.len() <= EXACT).then(json)
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
        let odd = tree(&Json::from_trusted("{\"a\\u202e\":\"x\\u001b\\n\"}"), false).into_string();
        assert!(odd.contains("data-v=\"&quot;a\\u202e&quot;\""), "{odd}");
        assert!(odd.contains("data-v=\"&quot;x\\u001b\\n&quot;\""), "{odd}");
        assert!(!shown.contains("data-v"), "{shown}");
        let many = serde_json::to_string(&vec![1; 10_000]).unwrap();
        let shown = tree(&Json::from_trusted(many.clone()), false).into_string();
        assert!(shown.contains("the rest is not shown") && shown.len() < 200_000);
        assert!(!tree(&Json::from_trusted(many), true).into_string().contains("not shown"));
    }
}
