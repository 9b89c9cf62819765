//! The nodes of a flow that is a table, each with its place in the source.

use serde_json::{Map, Value};

use super::{
    graph,
    locate::{Outline, pointer},
};

/// A node of a flow that is a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowNode {
    /// The JSON pointer, which begins with `/flow`.
    pub at: String,
    /// The label, as in the graph of the flow.
    pub title: String,
    /// The line in the blueprint's file, from 1: of the node, or of the nearest thing around it that is
    /// written out there.
    pub line: u32,
}

/// The nodes of `flow`, which has its one form, in the order in which they are written in `source`,
/// the text of the file at `path`.
pub fn flow_nodes(flow: &Value, path: &str, source: &str) -> Vec<FlowNode> {
    let is_json = std::path::Path::new(path).extension().is_some_and(|it| it == "json");
    let outline = if is_json { Outline::of_json(source) } else { Outline::of(source) };
    let mut walk = Walk { outline, found: Vec::new() };
    walk.node(flow, "/flow".to_owned(), "/flow".to_owned());
    walk.found.sort_by_key(|(column, node)| (node.line, *column));
    walk.found.into_iter().map(|(_, node)| node).collect()
}

struct Walk {
    outline: Outline,
    found: Vec<(u32, FlowNode)>,
}

impl Walk {
    /// Takes a node and those in it; `written` is where it stands in the source.
    fn node(&mut self, node: &Value, at: String, written: String) {
        let Some(map) = node.as_object() else { return };
        let place = self.outline.value(&written);
        let found = FlowNode { at: at.clone(), title: graph::title(node), line: place.line };
        self.found.push((place.column, found));
        for (key, value) in map {
            let (at, written) =
                (|name: &str| pointer(&at, name), |name: &str| pointer(&written, name));
            match (key.as_str(), value) {
                ("children", Value::Array(children)) => {
                    self.children(children, &at(key), &written);
                }
                ("branches" | "cases", Value::Object(named)) => {
                    self.named(named, &at(key), &written(key));
                }
                ("then" | "else" | "catch" | "finally" | "default", _) => {
                    self.node(value, at(key), self.spelled(&written, key));
                }
                ("body", _) if map.get("kind").is_some_and(|kind| kind != "approve") => {
                    self.node(value, at(key), written(key));
                }
                _ => {}
            }
        }
    }

    fn children(&mut self, children: &[Value], at: &str, written: &impl Fn(&str) -> String) {
        let list = written("children");
        for (n, child) in children.iter().enumerate() {
            let n = n.to_string();
            // In Lua, children may stand in the node itself.
            let direct = written(&n);
            let spelled = match self.outline.spot(&direct) {
                Some(_) => direct,
                None => pointer(&list, &n),
            };
            self.node(child, pointer(at, &n), spelled);
        }
    }

    fn named(&mut self, named: &Map<String, Value>, at: &str, written: &str) {
        for (name, node) in named {
            self.node(node, pointer(at, name), pointer(written, name));
        }
    }

    /// A key as it is written: what Lua keeps for itself has a `_` behind it.
    fn spelled(&self, written: &impl Fn(&str) -> String, key: &str) -> String {
        let lua = written(&format!("{key}_"));
        match self.outline.spot(&lua) {
            Some(_) => lua,
            None => written(key),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(nodes: &[FlowNode]) -> Vec<String> {
        nodes.iter().map(|it| format!("{} {} {}", it.line, it.at, it.title)).collect()
    }

    #[test]
    fn every_node_has_its_place_in_lua() {
        let flow = json!({ "kind": "seq", "children": [
            { "kind": "step", "id": "plan", "agent": "planner" },
            { "kind": "branch", "if": "plan.ok",
              "then": { "kind": "approve", "title": "Ship?", "body": "{{ plan }}" },
              "else": { "kind": "fail", "error": "blocked" } },
            { "kind": "parallel", "branches": { "a/b": { "kind": "sleep", "for": "1s" } } },
        ] });
        let source = "local swarm = require(\"swarm\")\nlocal n = swarm.nodes\n\
             return swarm.blueprint { name = \"x\", flow = n.seq {\n\
             n.step { id = \"plan\", agent = \"planner\" },\n\
             n.branch { if_ = \"plan.ok\",\n\
             then_ = n.approve { title = \"Ship?\", body = \"{{ plan }}\" },\n\
             else_ = n.fail { kind = \"blocked\" } },\n\
             n.parallel { branches = {\n\
             [\"a/b\"] = n.sleep { [\"for\"] = \"1s\" } } },\n} }\n";
        let expected = [
            "3 /flow seq",
            "4 /flow/children/0 plan: run planner",
            "5 /flow/children/1 if plan.ok",
            "6 /flow/children/1/then approve Ship?",
            "7 /flow/children/1/else fail blocked",
            "8 /flow/children/2 parallel",
            "9 /flow/children/2/branches/a~1b sleep 1s",
        ];
        assert_eq!(shown(&flow_nodes(&flow, "x.lua", source)), expected);
    }

    #[test]
    fn every_node_has_its_place_in_json_also_where_that_is_only_a_flow() {
        let source = "{ \"kind\": \"loop\", \"max\": 3,\n  \"body\":\n    { \"kind\": \"step\", \"agent\": \"a\" } }\n";
        let flow = serde_json::from_str(source).unwrap();
        let expected = ["1 /flow loop up to 3", "3 /flow/body run a"];
        assert_eq!(shown(&flow_nodes(&flow, "x.flow.json", source)), expected);
    }
}
