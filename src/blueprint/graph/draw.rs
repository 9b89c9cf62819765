//! Drawing a graph: as a tree of lines, and as nodes with arrows.

use std::fmt::Write as _;

use super::{Part, Shape};

/// The lines of a tree.
pub(super) fn tree(part: &Part) -> String {
    let mut out = format!("{}\n", part.label);
    branch(part, "", &mut out);
    out
}

fn branch(part: &Part, indent: &str, out: &mut String) {
    for (n, (word, below)) in part.parts.iter().enumerate() {
        let last = n + 1 == part.parts.len();
        let (mark, rest) = if last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        let word = if word.is_empty() { String::new() } else { format!("{word} → ") };
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{indent}{mark}{word}{}", below.label);
        branch(below, &format!("{indent}{rest}"), out);
    }
}

/// Nodes and arrows.
#[derive(Default)]
pub(super) struct Chart {
    nodes: Vec<(String, Look)>,
    arrows: Vec<(usize, usize, String)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    Box,
    Round,
    Diamond,
}

/// Where arrows to what comes next begin, with the words on them.
type Exits = Vec<(usize, String)>;

impl Chart {
    pub(super) fn of(part: &Part) -> Self {
        let mut chart = Self::default();
        let start = chart.node(&part.label, Look::Round);
        let mut exits = vec![(start, String::new())];
        for (_, below) in &part.parts {
            exits = chart.part(below, exits);
        }
        let end = chart.node("end", Look::Round);
        chart.join(exits, end);
        chart
    }

    fn node(&mut self, label: &str, look: Look) -> usize {
        self.nodes.push((label.to_owned(), look));
        self.nodes.len() - 1
    }

    fn join(&mut self, exits: Exits, to: usize) {
        self.arrows.extend(exits.into_iter().map(|(from, word)| (from, to, word)));
    }

    fn part(&mut self, part: &Part, exits: Exits) -> Exits {
        match part.shape {
            Shape::Leaf => {
                let node = self.node(&part.label, Look::Box);
                self.join(exits, node);
                vec![(node, String::new())]
            }
            Shape::End => {
                let node = self.node(&part.label, Look::Round);
                self.join(exits, node);
                Vec::new()
            }
            Shape::Seq => {
                // A row needs no node of its own; one that says something has it.
                let mut exits = exits;
                if !matches!(part.label.as_str(), "" | "seq") {
                    let node = self.node(&part.label, Look::Box);
                    self.join(exits, node);
                    exits = vec![(node, String::new())];
                }
                for (word, below) in &part.parts {
                    if !word.is_empty() {
                        for exit in &mut exits {
                            exit.1.clone_from(word);
                        }
                    }
                    exits = self.part(below, exits);
                }
                exits
            }
            Shape::Aside => {
                let node = self.node(&part.label, Look::Box);
                self.join(exits, node);
                let mut inside = vec![(node, "on failure".to_owned())];
                for (_, below) in &part.parts {
                    inside = self.part(below, inside);
                }
                vec![(node, String::new())]
            }
            Shape::Fork | Shape::Choice => {
                let look = if part.shape == Shape::Choice { Look::Diamond } else { Look::Box };
                let node = self.node(&part.label, look);
                self.join(exits, node);
                let mut out = Vec::new();
                for (word, below) in &part.parts {
                    out.extend(self.part(below, vec![(node, word.clone())]));
                }
                let complete = part.shape == Shape::Fork
                    || part.parts.iter().any(|(word, _)| word == "else" || word == "default");
                if !complete {
                    out.push((node, "otherwise".to_owned()));
                }
                out
            }
            Shape::Loop => {
                let node = self.node(&part.label, Look::Box);
                self.join(exits, node);
                let mut inside = vec![(node, "each".to_owned())];
                let mut out = vec![(node, "done".to_owned())];
                for (word, below) in &part.parts {
                    if word == "else" {
                        out = self.part(below, out);
                    } else {
                        inside = self.part(below, inside);
                    }
                }
                for exit in &mut inside {
                    exit.1 = "again".to_owned();
                }
                self.join(inside, node);
                out
            }
        }
    }

    pub(super) fn mermaid(&self) -> String {
        let mut out = String::from("flowchart TD\n");
        for (n, (label, look)) in self.nodes.iter().enumerate() {
            // Mermaid has no escapes but entities.
            let label = label
                .replace('#', "#35;")
                .replace('"', "#quot;")
                .replace('<', "#lt;")
                .replace('\n', " ");
            let _ = match look {
                Look::Box => writeln!(out, "  n{n}[\"{label}\"]"),
                Look::Round => writeln!(out, "  n{n}([\"{label}\"])"),
                Look::Diamond => writeln!(out, "  n{n}{{\"{label}\"}}"),
            };
        }
        for (from, to, word) in &self.arrows {
            let word = word.replace(['"', '|'], "'");
            let _ = match word.as_str() {
                "" => writeln!(out, "  n{from} --> n{to}"),
                word => writeln!(out, "  n{from} -->|\"{word}\"| n{to}"),
            };
        }
        out
    }

    pub(super) fn dot(&self) -> String {
        let quoted = |text: &str| {
            format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', " "))
        };
        let mut out = String::from("digraph flow {\n  node [fontname=\"sans-serif\"];\n");
        for (n, (label, look)) in self.nodes.iter().enumerate() {
            let shape = match look {
                Look::Box => "box",
                Look::Round => "oval",
                Look::Diamond => "diamond",
            };
            let _ = writeln!(out, "  n{n} [shape={shape}, label={}];", quoted(label));
        }
        for (from, to, word) in &self.arrows {
            let _ = match word.as_str() {
                "" => writeln!(out, "  n{from} -> n{to};"),
                word => writeln!(out, "  n{from} -> n{to} [label={}];", quoted(word)),
            };
        }
        out.push_str("}\n");
        out
    }
}
