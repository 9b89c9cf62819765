//! The static graph of a flow: what it can do, without running it.
//!
//! Owns the drawing as a text tree, as Mermaid, as DOT and as SVG. A flow that is a table is drawn exactly;
//! of one that is a function, its `ctx` calls are, with the loops, conditions and functions around
//! them as they are written. `moonswarm graph` prints it.

mod draw;
mod script;
mod svg;
mod table;

use super::{Blueprint, locate::Outline};

/// A part of a flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// How its parts follow each other.
    pub shape: Shape,
    /// What a person reads.
    pub label: String,
    /// What is in it, each with the word on the way to it.
    pub parts: Vec<(String, Part)>,
}

/// How the parts of a part follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// It has none: something that is done.
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
    /// It ends the flow.
    End,
}

/// What one node of a table says, without what is in it.
pub(super) fn title(node: &serde_json::Value) -> String {
    table::part(node).label
}

impl Part {
    fn new(shape: Shape, label: impl Into<String>, parts: Vec<(String, Self)>) -> Self {
        Self { shape, label: label.into(), parts }
    }

    fn leaf(label: impl Into<String>) -> Self {
        Self::new(Shape::Leaf, label, Vec::new())
    }
}

/// The graph of a blueprint's flow.
pub fn of(blueprint: &Blueprint) -> Part {
    let definition = blueprint.definition();
    let parts = match &definition.flow {
        Some(flow) => vec![(String::new(), table::part(&flow.to_value()))],
        None => {
            let source = blueprint.bundle().source();
            let start = Outline::of(source).spot("/flow").map(|spot| spot.value);
            script::parts(source, start)
        }
    };
    Part::new(Shape::Seq, definition.name.clone(), parts)
}

impl Part {
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
