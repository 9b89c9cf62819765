//! Drawing a graph as a file of SVG. No program is needed to look at it but a browser.

use std::fmt::Write as _;

use super::{
    GraphPart, Shape,
    layout::{Block, Drawn, LINE, PAD, Picture},
};

/// The whole drawing.
pub(super) fn svg(part: &GraphPart) -> String {
    let Picture { width: w, height: h, drawn } = Picture::of(Block::of(part));
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {w} {h}\" width=\"{w}\" height=\"{h}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <defs><marker id=\"tip\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" markerHeight=\"7\" orient=\"auto\">\
         <path d=\"M0 0 L8 4 L0 8 z\" fill=\"#555\"/></marker></defs>\n\
         <rect width=\"{w}\" height=\"{h}\" fill=\"#fff\"/>\n"
    );
    for it in &drawn {
        // Writing to a string cannot fail.
        let _ = match it {
            Drawn::Frame { shape, x, y, w, h, label, .. } => {
                let round = if *shape == Shape::End { LINE / 2 } else { 4 };
                let fill = fill(*shape);
                let _ = writeln!(
                    out,
                    "<rect x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\" rx=\"{round}\" fill=\"{fill}\" stroke=\"#555\"/>"
                );
                match shape {
                    Shape::Leaf | Shape::End => {
                        text(label, x + w / 2, y + LINE - 10, "middle", &mut out)
                    }
                    _ => text(label, x + PAD, y + LINE - 10, "start", &mut out),
                }
            }
            Drawn::Arrow { x, from, to } => writeln!(
                out,
                "<line x1=\"{x}\" y1=\"{from}\" x2=\"{x}\" y2=\"{to}\" stroke=\"#555\" marker-end=\"url(#tip)\"/>"
            ),
            Drawn::Word { x, y, centered, text: word } => {
                text(word, *x, *y, if *centered { "middle" } else { "start" }, &mut out)
            }
        };
    }
    out.push_str("</svg>\n");
    out
}

fn fill(shape: Shape) -> &'static str {
    match shape {
        Shape::Leaf | Shape::End | Shape::Seq => "#eef3fb",
        Shape::Choice => "#fdf6e3",
        Shape::Fork => "#f4f4f4",
        Shape::Loop => "#eef8ee",
        Shape::Aside => "#fbeeee",
    }
}

fn text(label: &str, x: usize, y: usize, anchor: &str, out: &mut String) -> std::fmt::Result {
    let label = label.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    writeln!(out, "<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\">{label}</text>")
}
