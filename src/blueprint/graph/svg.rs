//! Drawing a graph as SVG: what is in a part stands in its frame, rows below each other, branches side
//! by side. No program is needed to look at it but a browser.

use std::fmt::Write as _;

use super::{Part, Shape};

const LINE: usize = 28;
const GAP: usize = 22;
const PAD: usize = 14;
const WORD: usize = 18;
/// About the width of a letter at the size of the text.
const LETTER: usize = 7;
/// Longer labels are cut.
const LONGEST: usize = 60;

/// The whole drawing.
pub(super) fn svg(part: &Part) -> String {
    let title = Part::new(Shape::End, part.label.clone(), Vec::new());
    let end = Part::new(Shape::End, "end", Vec::new());
    let mut rows = vec![(String::new(), title)];
    rows.extend(part.parts.iter().cloned());
    rows.push((String::new(), end));
    let all = Part::new(Shape::Seq, "", rows);
    let (width, height) = size(&all);
    let (w, h) = (width + 2 * PAD, height + 2 * PAD);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {w} {h}\" width=\"{w}\" height=\"{h}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <defs><marker id=\"tip\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" markerHeight=\"7\" orient=\"auto\">\
         <path d=\"M0 0 L8 4 L0 8 z\" fill=\"#555\"/></marker></defs>\n\
         <rect width=\"{w}\" height=\"{h}\" fill=\"#fff\"/>\n"
    );
    draw(&all, PAD, PAD, width, &mut out);
    out.push_str("</svg>\n");
    out
}

/// Whether a row says something by itself.
fn has_head(part: &Part) -> bool {
    !matches!(part.label.as_str(), "" | "seq")
}

fn cut(label: &str) -> String {
    let label = label.replace(['\n', '\r', '\t'], " ");
    if label.chars().count() <= LONGEST {
        return label;
    }
    let kept: String = label.chars().take(LONGEST - 1).collect();
    format!("{kept}…")
}

fn label_width(label: &str) -> usize {
    cut(label).chars().count() * LETTER + 2 * PAD
}

fn word_height(part: &Part) -> usize {
    if part.parts.iter().any(|(word, _)| !word.is_empty()) { WORD } else { 0 }
}

/// How much room a part takes.
fn size(part: &Part) -> (usize, usize) {
    let sizes = part.parts.iter().map(|(word, below)| {
        let (w, h) = size(below);
        (w.max(word.chars().count() * LETTER), h)
    });
    match part.shape {
        Shape::Leaf | Shape::End => (label_width(&part.label), LINE),
        Shape::Seq => {
            let head = has_head(part).then(|| (label_width(&part.label), LINE));
            let rows: Vec<_> = head.into_iter().chain(sizes).collect();
            let width = rows.iter().map(|(w, _)| *w).max().unwrap_or(0);
            let height: usize = rows.iter().map(|(_, h)| h).sum();
            (width, height + GAP * rows.len().saturating_sub(1))
        }
        Shape::Fork | Shape::Choice => {
            let columns: Vec<_> = sizes.collect();
            let width: usize = columns.iter().map(|(w, _)| w + PAD).sum();
            let height = columns.iter().map(|(_, h)| *h).max().unwrap_or(0);
            let width = (width + PAD).max(label_width(&part.label));
            (width, LINE + word_height(part) + height + PAD)
        }
        Shape::Loop | Shape::Aside => {
            let rows: Vec<_> = sizes.collect();
            let width = rows.iter().map(|(w, _)| w + 2 * PAD).max().unwrap_or(0);
            let height: usize = rows.iter().map(|(_, h)| h + GAP).sum();
            (width.max(label_width(&part.label)), LINE + height + PAD - GAP.min(height))
        }
    }
}

fn draw(part: &Part, x: usize, y: usize, width: usize, out: &mut String) {
    match part.shape {
        Shape::Leaf | Shape::End => {
            let own = label_width(&part.label);
            let round = if part.shape == Shape::End { LINE / 2 } else { 4 };
            let left = x + (width - own.min(width)) / 2;
            frame((left, y, own, LINE), round, "#eef3fb", out);
            text(&part.label, left + own / 2, y + LINE - 10, "middle", out);
        }
        Shape::Seq => {
            let middle = x + width / 2;
            let mut at = y;
            let head = has_head(part)
                .then(|| (String::new(), Part::new(Shape::Leaf, part.label.clone(), Vec::new())));
            for (n, (word, below)) in head.iter().chain(&part.parts).enumerate() {
                if n > 0 {
                    let _ = writeln!(
                        out,
                        "<line x1=\"{middle}\" y1=\"{at}\" x2=\"{middle}\" y2=\"{}\" stroke=\"#555\" marker-end=\"url(#tip)\"/>",
                        at + GAP
                    );
                    if !word.is_empty() {
                        text(word, middle + 6, at + GAP - 7, "start", out);
                    }
                    at += GAP;
                }
                draw(below, x, at, width, out);
                at += size(below).1;
            }
        }
        Shape::Fork | Shape::Choice => {
            let (own, height) = size(part);
            let mut left = x + (width - own.min(width)) / 2;
            let fill = if part.shape == Shape::Choice { "#fdf6e3" } else { "#f4f4f4" };
            frame((left, y, own, height), 4, fill, out);
            text(&part.label, left + PAD, y + LINE - 10, "start", out);
            left += PAD;
            for (word, below) in &part.parts {
                let column = size(below).0.max(word.chars().count() * LETTER);
                text(word, left + column / 2, y + LINE + 8, "middle", out);
                draw(below, left, y + LINE + word_height(part), column, out);
                left += column + PAD;
            }
        }
        Shape::Loop | Shape::Aside => {
            let (own, height) = size(part);
            let left = x + (width - own.min(width)) / 2;
            let (fill, mark) = match part.shape {
                Shape::Loop => ("#eef8ee", "↻"),
                _ => ("#fbeeee", "↩"),
            };
            frame((left, y, own, height), 4, fill, out);
            let label = format!("{mark} {}", cut(&part.label));
            text(&label, left + PAD, y + LINE - 10, "start", out);
            let mut at = y + LINE;
            for (word, below) in &part.parts {
                if !word.is_empty() {
                    text(word, left + PAD, at - 2, "start", out);
                }
                draw(below, left + PAD, at, own - 2 * PAD, out);
                at += size(below).1 + GAP;
            }
        }
    }
}

fn frame((x, y, w, h): (usize, usize, usize, usize), round: usize, fill: &str, out: &mut String) {
    let _ = writeln!(
        out,
        "<rect x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\" rx=\"{round}\" fill=\"{fill}\" stroke=\"#555\"/>"
    );
}

fn text(label: &str, x: usize, y: usize, anchor: &str, out: &mut String) {
    if label.is_empty() {
        return;
    }
    let plain = |c: char| !c.is_control();
    let label: String = cut(label).chars().filter(|c| plain(*c)).collect();
    let label = label.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ = writeln!(out, "<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\">{label}</text>");
}
