//! The static graph of a flow: what it can do, without running it.
//!
//! Owns the drawing as a text tree, as Mermaid, as DOT and as SVG. A flow that is a table is drawn exactly;
//! of one that is a function, its `ctx` calls are, with the loops, conditions and functions around
//! them as they are written. `moonswarm graph` prints it.

mod draw;
mod layout;
mod script;
mod svg;
mod table;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use layout::{Block, Drawn, LINE, PAD, Picture};

use super::{Blueprint, locate::Outline};

/// A part of a flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GraphPart {
    /// The order of its parts.
    pub shape: Shape,
    /// The label for people.
    pub label: String,
    /// The parts inside, each with the label of the edge to it.
    pub parts: Vec<(String, GraphPart)>,
    /// Its place in the entry file.
    pub place: PartPlace,
}

/// The place of a part in the blueprint's entry file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum PartPlace {
    /// The part has no place of its own.
    #[default]
    Around,
    /// A line, from 1.
    Line(u32),
    /// A node of a flow that is a table, by its JSON pointer.
    Node(String),
}

/// The order of the parts of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// A leaf: one operation.
    Leaf,
    /// One after the other.
    Seq,
    /// All begin at once.
    Fork,
    /// One of them is taken.
    Choice,
    /// They are done again and again.
    Loop,
    /// They are registered, and done only if the flow fails.
    Aside,
    /// The part ends the flow.
    End,
}

/// Returns the label of one node of a table, without its children.
pub(super) fn title(node: &serde_json::Value) -> String {
    table::part(node, "").label
}

impl GraphPart {
    fn new(shape: Shape, label: impl Into<String>, parts: Vec<(String, Self)>) -> Self {
        Self { shape, label: label.into(), parts, place: PartPlace::default() }
    }

    fn at(mut self, place: PartPlace) -> Self {
        self.place = place;
        self
    }

    fn leaf(label: impl Into<String>) -> Self {
        Self::new(Shape::Leaf, label, Vec::new())
    }
}

/// The graph of a blueprint's flow.
pub fn of(blueprint: &Blueprint) -> GraphPart {
    let definition = blueprint.definition();
    let parts = match &definition.flow {
        Some(flow) => vec![(String::new(), table::part(&flow.to_value(), "/flow"))],
        None => {
            let source = blueprint.bundle().source();
            let start = Outline::of(source).spot("/flow").map(|spot| spot.value);
            script::parts(source, start)
        }
    };
    GraphPart::new(Shape::Seq, definition.name.clone(), parts)
}

impl GraphPart {
    /// Draws it as lines of text.
    pub fn tree(&self) -> String {
        draw::tree(self)
    }

    /// Draws it in Mermaid.
    pub fn mermaid(&self) -> String {
        draw::Chart::of(self).mermaid()
    }

    /// Draws it as a picture.
    pub fn svg(&self) -> String {
        svg::svg(self)
    }

    /// Draws it in DOT, for Graphviz.
    pub fn dot(&self) -> String {
        draw::Chart::of(self).dot()
    }
}

#[cfg(test)]
mod tests;
