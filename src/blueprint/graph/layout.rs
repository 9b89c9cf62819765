//! The layout of a graph as a picture: what is in a part stands in its frame, rows below each other,
//! branches side by side. Who draws it chooses the colors.

use super::{GraphPart, Shape};

/// The height of a line of text with its frame.
pub const LINE: usize = 28;
const GAP: usize = 22;
/// The space around what is in a frame.
pub const PAD: usize = 14;
const WORD: usize = 18;
/// About the width of a letter at a text size of 12.
const LETTER: usize = 7;
/// Longer labels are cut.
const LONGEST: usize = 60;

/// A part to be placed.
#[derive(Debug, Clone)]
pub struct Block {
    /// The number by which the caller knows it.
    pub node: Option<usize>,
    /// The order of what is in it.
    pub shape: Shape,
    /// The label, on one line.
    pub label: String,
    /// The blocks inside, each with the label of the edge to it.
    pub below: Vec<(String, Self)>,
}

/// A placed part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Drawn {
    /// A frame with its label.
    Frame {
        /// The number of its block.
        node: Option<usize>,
        /// The shape of its block; the head of a row is a leaf.
        shape: Shape,
        /// The left edge.
        x: usize,
        /// The upper edge.
        y: usize,
        /// The width.
        w: usize,
        /// The height.
        h: usize,
        /// The label, cut to its longest length.
        label: String,
    },
    /// An arrow downwards.
    Arrow {
        /// Its place from the left.
        x: usize,
        /// Its upper end.
        from: usize,
        /// Its tip.
        to: usize,
    },
    /// The label of an edge.
    Word {
        /// Its place from the left.
        x: usize,
        /// The baseline.
        y: usize,
        /// True if it stands around `x`, false if it begins there.
        centered: bool,
        /// The words.
        text: String,
    },
}

/// A graph with its places.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    /// The width of all.
    pub width: usize,
    /// The height of all.
    pub height: usize,
    /// The parts, those around others first.
    pub drawn: Vec<Drawn>,
}

impl Block {
    /// Returns a block without any in it.
    pub fn leaf(node: Option<usize>, shape: Shape, label: impl Into<String>) -> Self {
        Self { node, shape, label: label.into(), below: Vec::new() }
    }

    /// Returns a graph as blocks, without numbers.
    pub(super) fn of(part: &GraphPart) -> Self {
        let below = part.parts.iter().map(|(word, below)| (word.clone(), Self::of(below)));
        Self { node: None, shape: part.shape, label: part.label.clone(), below: below.collect() }
    }
}

impl Picture {
    /// Places a graph between its title and its end.
    pub fn of(graph: Block) -> Self {
        let title = Block::leaf(graph.node, Shape::End, graph.label);
        let end = Block::leaf(None, Shape::End, "end");
        let mut rows = vec![(String::new(), title)];
        rows.extend(graph.below);
        rows.push((String::new(), end));
        let all =
            Placed::of(Block { node: None, shape: Shape::Seq, label: String::new(), below: rows });
        let mut drawn = Vec::new();
        all.draw(PAD, PAD, all.width, &mut drawn);
        Self { width: all.width + 2 * PAD, height: all.height + 2 * PAD, drawn }
    }
}

/// Returns a label on one line, without controls, and not too long.
fn cut(label: &str) -> String {
    let on_line = |c: char| if matches!(c, '\n' | '\r' | '\t') { ' ' } else { c };
    let label: String = label.chars().map(on_line).filter(|c| !c.is_control()).collect();
    if label.chars().count() <= LONGEST {
        return label;
    }
    let kept: String = label.chars().take(LONGEST - 1).collect();
    format!("{kept}…")
}

/// Returns about the width of a text. What is wide in a terminal is wide here too.
fn width_of(text: &str) -> usize {
    let wide = |c: char| matches!(u32::from(c), 0x1100..=0x115f | 0x2e80..=0xd7ff | 0xf900..=0xfaff | 0xfe30..=0xfe6f | 0xff00..=0xff60 | 0x1f000..);
    text.chars().map(|c| if wide(c) { 2 * LETTER } else { LETTER }).sum()
}

/// A block with its size.
struct Placed {
    node: Option<usize>,
    shape: Shape,
    label: String,
    below: Vec<(String, Self)>,
    width: usize,
    height: usize,
}

impl Placed {
    fn of(block: Block) -> Self {
        let below: Vec<_> =
            block.below.into_iter().map(|(word, below)| (cut(&word), Self::of(below))).collect();
        let label = match block.shape {
            Shape::Loop => format!("↻ {}", cut(&block.label)),
            Shape::Aside => format!("↩ {}", cut(&block.label)),
            _ => cut(&block.label),
        };
        let mut placed =
            Self { node: block.node, shape: block.shape, label, below, width: 0, height: 0 };
        (placed.width, placed.height) = placed.size();
        placed
    }

    /// Returns true if a row says something by itself.
    fn has_head(&self) -> bool {
        !matches!(self.label.as_str(), "" | "seq")
    }

    fn label_width(&self) -> usize {
        width_of(&self.label) + 2 * PAD
    }

    fn word_height(&self) -> usize {
        if self.below.iter().any(|(word, _)| !word.is_empty()) { WORD } else { 0 }
    }

    fn size(&self) -> (usize, usize) {
        let below = self.below.iter().map(|(word, it)| (it.width.max(width_of(word)), it.height));
        let own = self.label_width();
        match self.shape {
            Shape::Leaf | Shape::End => (own, LINE),
            Shape::Seq => {
                let rows: Vec<_> =
                    self.has_head().then_some((own, LINE)).into_iter().chain(below).collect();
                let width = rows.iter().map(|(w, _)| *w).max().unwrap_or(0);
                let height: usize = rows.iter().map(|(_, h)| h).sum();
                (width, height + GAP * rows.len().saturating_sub(1))
            }
            Shape::Fork | Shape::Choice => {
                let columns: Vec<_> = below.collect();
                let width: usize = columns.iter().map(|(w, _)| w + PAD).sum();
                let height = columns.iter().map(|(_, h)| *h).max().unwrap_or(0);
                ((width + PAD).max(own), LINE + self.word_height() + height + PAD)
            }
            Shape::Loop | Shape::Aside => {
                let rows: Vec<_> = below.collect();
                let width = rows.iter().map(|(w, _)| w + 2 * PAD).max().unwrap_or(0);
                let height: usize = rows.iter().map(|(_, h)| h + GAP).sum();
                (width.max(own), LINE + height + PAD - GAP.min(height))
            }
        }
    }

    /// Draws its frame as wide as it is, in the middle of `width`, and returns the left edge.
    fn frame(&self, x: usize, y: usize, width: usize, drawn: &mut Vec<Drawn>) -> usize {
        let (shape, w, h) = match self.shape {
            Shape::Seq => (Shape::Leaf, self.label_width(), LINE),
            shape => (shape, self.width, self.height),
        };
        let left = x + (width - w.min(width)) / 2;
        drawn.push(Drawn::Frame {
            node: self.node,
            shape,
            x: left,
            y,
            w,
            h,
            label: self.label.clone(),
        });
        left
    }

    fn draw(&self, x: usize, y: usize, width: usize, drawn: &mut Vec<Drawn>) {
        let word = |x, y, centered, text: &str, drawn: &mut Vec<Drawn>| {
            if !text.is_empty() {
                drawn.push(Drawn::Word { x, y, centered, text: text.to_owned() });
            }
        };
        match self.shape {
            Shape::Leaf | Shape::End => {
                self.frame(x, y, width, drawn);
            }
            Shape::Seq => {
                let middle = x + width / 2;
                let mut at = y;
                if self.has_head() {
                    self.frame(x, y, width, drawn);
                    at += LINE;
                }
                for (n, (text, below)) in self.below.iter().enumerate() {
                    if n > 0 || self.has_head() {
                        drawn.push(Drawn::Arrow { x: middle, from: at, to: at + GAP });
                        word(middle + 6, at + GAP - 7, false, text, drawn);
                        at += GAP;
                    }
                    below.draw(x, at, width, drawn);
                    at += below.height;
                }
            }
            Shape::Fork | Shape::Choice => {
                let mut left = self.frame(x, y, width, drawn) + PAD;
                for (text, below) in &self.below {
                    let column = below.width.max(width_of(text));
                    word(left + column / 2, y + LINE + 8, true, text, drawn);
                    below.draw(left, y + LINE + self.word_height(), column, drawn);
                    left += column + PAD;
                }
            }
            Shape::Loop | Shape::Aside => {
                let left = self.frame(x, y, width, drawn);
                let mut at = y + LINE;
                for (text, below) in &self.below {
                    word(left + PAD, at - 2, false, text, drawn);
                    below.draw(left + PAD, at, self.width - 2 * PAD, drawn);
                    at += below.height + GAP;
                }
            }
        }
    }
}
