//! The graph of a flow that is a table, which the checker has looked at.

use serde_json::{Map, Value};

use super::{GraphPart, PartPlace, Shape};
use crate::blueprint::locate::pointer;

/// Returns the part of one node, which stands at a JSON pointer.
pub(super) fn part(node: &Value, at: &str) -> GraphPart {
    shaped(node, at).at(PartPlace::Node(at.to_owned()))
}

fn shaped(node: &Value, at: &str) -> GraphPart {
    let Some(map) = node.as_object() else { return GraphPart::leaf("?") };
    let kind = word(map, "kind").unwrap_or("?");
    let id = word(map, "id").map(|id| format!("{id}: ")).unwrap_or_default();
    let label = |text: String| match word(map, "description") {
        Some(about) => format!("{id}{text} ({about})"),
        None => format!("{id}{text}"),
    };
    let one = |key: &str| map.get(key).map(|node| (key.to_owned(), part(node, &pointer(at, key))));
    let unnamed = |key: &str| one(key).map(|(_, part)| (String::new(), part));
    match kind {
        "seq" => GraphPart::new(Shape::Seq, label(kind.to_owned()), children(map, at)),
        "parallel" | "race" => {
            GraphPart::new(Shape::Fork, label(kind.to_owned()), children(map, at))
        }
        "map" => {
            let over = shown(map.get("over"));
            let item = word(map, "as").unwrap_or("item");
            let text = label(format!("map {item} over {over}"));
            GraphPart::new(Shape::Loop, text, unnamed("body").into_iter().collect())
        }
        "loop" => {
            let mut text = format!("loop up to {}", shown(map.get("max")));
            for key in ["while", "until"] {
                if let Some(condition) = map.get(key) {
                    text.push_str(&format!(" {key} {}", shown(Some(condition))));
                }
            }
            let body = unnamed("body").into_iter().chain(one("else"));
            GraphPart::new(Shape::Loop, label(text), body.collect())
        }
        "branch" => {
            let text = label(format!("if {}", shown(map.get("if"))));
            GraphPart::new(
                Shape::Choice,
                text,
                one("then").into_iter().chain(one("else")).collect(),
            )
        }
        "switch" => {
            let cases = map.get("cases").and_then(Value::as_object);
            let within = pointer(at, "cases");
            let cases = cases.into_iter().flatten();
            let cases =
                cases.map(|(case, node)| (case.clone(), part(node, &pointer(&within, case))));
            let text = label(format!("switch on {}", shown(map.get("on"))));
            GraphPart::new(Shape::Choice, text, cases.chain(one("default")).collect())
        }
        "try" => {
            let parts = unnamed("body").into_iter().chain(one("catch")).chain(one("finally"));
            GraphPart::new(Shape::Seq, label("try".to_owned()), parts.collect())
        }
        "fail" => {
            let text = label(format!("fail {}", shown(map.get("error"))));
            GraphPart::new(Shape::End, text, Vec::new())
        }
        "step" => GraphPart::leaf(label(format!("run {}", shown(map.get("agent"))))),
        "approve" => GraphPart::leaf(label(format!("approve {}", shown(map.get("title"))))),
        "call" => GraphPart::leaf(label(format!("call {}", shown(map.get("blueprint"))))),
        "wait" => GraphPart::leaf(label(format!("wait for {}", shown(map.get("signal"))))),
        "sleep" => {
            let until = map.get("until").map(|until| format!("sleep until {}", shown(Some(until))));
            let text = until.unwrap_or_else(|| format!("sleep {}", shown(map.get("for"))));
            GraphPart::leaf(label(text))
        }
        "assign" => {
            let names = map.get("set").and_then(Value::as_object);
            let names: Vec<&str> =
                names.into_iter().flatten().map(|(name, _)| name.as_str()).collect();
            let text = if names.is_empty() {
                "assign".to_owned()
            } else {
                format!("assign {}", names.join(", "))
            };
            GraphPart::leaf(label(text))
        }
        other => GraphPart::leaf(other),
    }
}

fn word<'m>(map: &'m Map<String, Value>, key: &str) -> Option<&'m str> {
    map.get(key).and_then(Value::as_str)
}

fn children(map: &Map<String, Value>, at: &str) -> Vec<(String, GraphPart)> {
    if let Some(branches) = map.get("branches").and_then(Value::as_object) {
        let within = pointer(at, "branches");
        let named = branches.iter();
        return named
            .map(|(name, node)| (name.clone(), part(node, &pointer(&within, name))))
            .collect();
    }
    let (list, within) = (map.get("children").and_then(Value::as_array), pointer(at, "children"));
    let list = list.into_iter().flatten().enumerate();
    list.map(|(n, node)| (String::new(), part(node, &pointer(&within, &n.to_string())))).collect()
}

fn shown(value: Option<&Value>) -> String {
    match value {
        None => "?".to_owned(),
        Some(Value::String(text)) => text.chars().take(80).collect(),
        Some(Value::Array(items)) => format!("{} items", items.len()),
        Some(other) => other.to_string().chars().take(80).collect(),
    }
}
