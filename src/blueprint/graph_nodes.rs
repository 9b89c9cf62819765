//! The graph of a flow as a list of nodes, each with its line.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    Blueprint, flow_nodes,
    graph::{self, GraphPart, PartPlace, Shape},
};

/// The maximum number of nodes.
const MOST: usize = 5_000;

/// A node of the static graph of a flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GraphNode {
    /// The number, from 0. The first is the flow itself; a node comes before those within it.
    pub id: usize,
    /// The node around it.
    pub parent: Option<usize>,
    /// The label of the edge to it: `then`, the name of a branch; empty for most.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub edge: String,
    /// The order of the nodes within it: one after the other (`seq`), all at once (`fork`), one of them
    /// (`choice`), again and again (`loop`), only if the flow fails (`aside`). One without any is an
    /// operation (`leaf`), or ends the flow (`end`).
    pub shape: Shape,
    /// The label for people.
    pub label: String,
    /// The line in the entry file, from 1.
    pub line: Option<u32>,
}

/// Returns the nodes of a blueprint's flow; and true if there are more than are shown.
pub fn graph_nodes(blueprint: &Blueprint) -> (Vec<GraphNode>, bool) {
    let flow = blueprint.definition().flow.as_ref().map(|flow| flow.to_value());
    let bundle = blueprint.bundle();
    let lines = flow.map(|flow| flow_nodes(&flow, bundle.entry(), bundle.source()));
    let lines = lines.into_iter().flatten().map(|node| (node.at, node.line)).collect();
    let mut list = List { lines, nodes: Vec::new(), more: false };
    list.add(&graph::of(blueprint), None, "");
    (list.nodes, list.more)
}

struct List {
    lines: HashMap<String, u32>,
    nodes: Vec<GraphNode>,
    more: bool,
}

impl List {
    fn add(&mut self, part: &GraphPart, parent: Option<usize>, edge: &str) {
        let id = self.nodes.len();
        if id >= MOST {
            self.more = true;
            return;
        }
        let line = match &part.place {
            PartPlace::Around => None,
            PartPlace::Line(line) => Some(*line),
            PartPlace::Node(at) => self.lines.get(at).copied(),
        };
        let (edge, label) = (edge.to_owned(), part.label.clone());
        self.nodes.push(GraphNode { id, parent, edge, shape: part.shape, label, line });
        for (edge, part) in &part.parts {
            self.add(part, Some(id), edge);
        }
    }
}
