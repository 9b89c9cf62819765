//! The graph of a flow as a picture. A large one is folded, and what is folded has a page of its own.

use std::collections::{HashSet, VecDeque};

use maud::{Markup, html};

use super::{command, pager, text};
use crate::{
    blueprint::{
        GraphNode,
        graph::{Block, Drawn, LINE, PAD, Picture, Shape},
    },
    dashboard::{fields::Fields, headers::escaped, visitor::Visitor},
    door::{Code, Problem},
    engine::{GraphView, shell},
};

/// The maximum number of nodes of a picture.
const MOST: usize = 250;
/// The longest label, in characters.
const LABEL: usize = 60;
/// The number by which the picture knows the rest of a long part.
const REST: usize = usize::MAX;

/// The look of a node in the picture.
#[derive(Debug, Default)]
pub(in crate::dashboard) struct Look {
    /// The class of its colors; empty for the plain ones.
    pub class: &'static str,
    /// The sign before the label.
    pub sign: String,
    /// The page that it links to.
    pub href: Option<String>,
    /// The words for a pointer that rests on it, and for a screen reader.
    pub title: String,
}

/// Returns the command that shows the same graph.
pub(in crate::dashboard) fn same(visitor: &Visitor, graph: &GraphView, version: &str) -> Markup {
    let line = format!("moonswarm graph {}", shell::operand(&graph.file));
    let path = format!("/v1/blueprints/{}/graph", escaped(version));
    command::same(&visitor.url, &line, &command::Request { method: "GET", path, body: None })
}

/// The part of a graph that a page shows.
pub(in crate::dashboard) struct Part<'a> {
    view: &'a GraphView,
    /// The numbers of the nodes within each.
    below: Vec<Vec<usize>>,
    /// The outermost node that is shown.
    top: usize,
    /// The number of nodes within it that are left out at the beginning.
    skip: usize,
}

impl<'a> Part<'a> {
    /// Returns the part that a URL asks for: the node `node`, from its child number `skip` on.
    ///
    /// # Errors
    /// Returns `bad_query`.
    pub(in crate::dashboard) fn of(view: &'a GraphView, fields: &Fields) -> Result<Self, Problem> {
        let number = |name| fields.given(name).map_or(Ok(0), str::parse::<usize>);
        let wrong = || Problem::new(Code::BadQuery, "the flow has no such part");
        let (top, skip) =
            (number("node").map_err(|_| wrong())?, number("skip").map_err(|_| wrong())?);
        let mut below = vec![Vec::new(); view.nodes.len()];
        for node in &view.nodes {
            if let Some(around) = node.parent {
                below[around].push(node.id);
            }
        }
        let part = Self { view, below, top, skip };
        match part.below.get(top).is_some_and(|own| skip <= own.len()) {
            true => Ok(part),
            false => Err(wrong()),
        }
    }

    /// Returns the picture, with what is around the part; `look` is asked for each node.
    pub(in crate::dashboard) fn html(
        &self,
        url: &impl Fn(usize, usize) -> String,
        look: &impl Fn(&GraphNode) -> Look,
    ) -> Markup {
        let open = self.open();
        let top = &self.view.nodes[self.top];
        let mut graph = self.block(self.top, &open, look);
        if self.top > 0 {
            // Only the flow itself is a plain row; another part keeps its frame.
            let whole = text::short(&self.view.name, LABEL);
            graph = Block {
                below: vec![(String::new(), graph)],
                ..Block::leaf(None, Shape::Seq, whole)
            };
        }
        let picture = Picture::of(graph);
        let (w, h) = (picture.width, picture.height);
        let label = format!("The flow of {}", text::short(&self.view.name, LABEL));
        html! {
            @if self.top > 0 || self.skip > 0 {
                p.small { @for around in self.around() {
                    a href=(url(around, 0)) { @if around == 0 { "the whole flow" } @else { (text::line(&self.view.nodes[around].label, LABEL)) } }
                    " › "
                } (text::line(&top.label, LABEL)) }
            }
            div.card.flush tabindex="0" {
                svg.graph data-graph viewBox={ "0 0 " (w) " " (h) } width=(w) height=(h) font-size="12" role="group" aria-label=(label) {
                    defs { marker #tip viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto" {
                        path d="M0 0 L8 4 L0 8 z" {}
                    } }
                    @for it in &picture.drawn { (self.drawn(it, &open, url, look)) }
                }
            }
            @if self.view.partial { p.dim.small { "The flow has more parts than are drawn." } }
        }
    }

    /// Returns the nodes around the part, the outermost first.
    fn around(&self) -> Vec<usize> {
        let parent = |node: &usize| self.view.nodes[*node].parent;
        let mut around: Vec<_> = std::iter::successors(parent(&self.top), parent).collect();
        if self.top == 0 || self.skip > 0 {
            around.insert(0, self.top);
        }
        around.reverse();
        around
    }

    /// Returns the nodes within one that are shown if it is open.
    fn shown(&self, node: usize) -> &[usize] {
        let own = self.below[node].as_slice();
        if node == self.top { own.get(self.skip..).unwrap_or_default() } else { own }
    }

    /// Returns the nodes whose parts are drawn: those that are nearer to the top come first.
    fn open(&self) -> HashSet<usize> {
        let (mut open, mut room) = (HashSet::from([self.top]), MOST);
        let mut queue = VecDeque::from([self.top]);
        while let Some(node) = queue.pop_front() {
            let own = self.shown(node);
            if own.len() > room && node != self.top {
                continue;
            }
            room -= own.len().min(room);
            open.insert(node);
            queue.extend(own.iter().take(MOST));
        }
        open
    }

    /// Returns the number of nodes within one, at any depth.
    fn inside(&self, node: usize) -> usize {
        self.below[node].iter().map(|it| 1 + self.inside(*it)).sum()
    }

    fn block(
        &self,
        node: usize,
        open: &HashSet<usize>,
        look: &impl Fn(&GraphNode) -> Look,
    ) -> Block {
        let it = &self.view.nodes[node];
        let sign = look(it).sign;
        let mark = if sign.is_empty() { "" } else { " " };
        let label = match (it.shape, it.label.as_str()) {
            // A row that says nothing has no head.
            (Shape::Seq, "" | "seq") if node != self.top => it.label.clone(),
            _ => format!("{sign}{mark}{}", text::short(&it.label, LABEL)),
        };
        if !open.contains(&node) {
            let inside = self.inside(node);
            return Block::leaf(Some(node), Shape::Leaf, format!("{label} ▸ {inside}"));
        }
        let own = self.shown(node);
        let word = |node: usize| text::short(&self.view.nodes[node].edge, 30);
        let below = own.iter().take(MOST).map(|it| (word(*it), self.block(*it, open, look)));
        let mut block = Block { node: Some(node), shape: it.shape, label, below: below.collect() };
        if let Some(rest) = own.len().checked_sub(MOST + 1) {
            let rest = Block::leaf(Some(REST), Shape::Leaf, format!("▸ {} more", rest + 1));
            block.below.push((String::new(), rest));
        }
        block
    }

    fn drawn(
        &self,
        it: &Drawn,
        open: &HashSet<usize>,
        url: &impl Fn(usize, usize) -> String,
        look: &impl Fn(&GraphNode) -> Look,
    ) -> Markup {
        match it {
            Drawn::Arrow { x, from, to } => {
                html! { line x1=(x) y1=(from) x2=(x) y2=(to) marker-end="url(#tip)" {} }
            }
            Drawn::Word { x, y, centered, text } => html! {
                text.word x=(x) y=(y) text-anchor=(if *centered { "middle" } else { "start" }) { (text) }
            },
            Drawn::Frame { node, shape, x, y, w, h, label } => {
                let mut seen = match node {
                    Some(REST) => {
                        Look { href: Some(url(self.top, self.skip + MOST)), ..Look::default() }
                    }
                    Some(node) => look(&self.view.nodes[*node]),
                    None => Look::default(),
                };
                if let Some(node) = node.filter(|it| *it != REST && !open.contains(it)) {
                    seen.href = Some(url(node, 0));
                    seen.title = format!("Show the {} parts within", self.inside(node));
                }
                let is_leaf = matches!(shape, Shape::Leaf | Shape::End);
                let round = if *shape == Shape::End { LINE / 2 } else { 4 };
                let (at, anchor) = if is_leaf { (x + w / 2, "middle") } else { (x + PAD, "start") };
                let class = format!("{} {}", if is_leaf { "leaf" } else { "around" }, seen.class);
                let inner = html! {
                    @if !seen.title.is_empty() { title { (seen.title) } }
                    rect x=(x) y=(y) width=(w) height=(h) rx=(round) {}
                    text x=(at) y=(y + LINE - 10) text-anchor=(anchor) { (label) }
                };
                match &seen.href {
                    Some(href) => html! { a class=(class.trim_end()) href=(href) { (inner) } },
                    None => html! { g class=(class.trim_end()) { (inner) } },
                }
            }
        }
    }
}

/// Returns the URL of a part of a graph on the page at `path`.
pub(in crate::dashboard) fn part_url(path: &str, node: usize, skip: usize) -> String {
    let number = |it: usize| if it == 0 { String::new() } else { it.to_string() };
    pager::url(path, &[("tab", "graph"), ("node", &number(node)), ("skip", &number(skip))])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A flow of `rows` calls, and a fork with `branches` of two calls each.
    fn flow(rows: usize, branches: usize) -> GraphView {
        let mut nodes = Vec::new();
        let mut add = |parent: Option<usize>, shape, label: &str| {
            let id = nodes.len();
            nodes.push(GraphNode {
                id,
                parent,
                edge: String::new(),
                shape,
                label: label.into(),
                line: Some(1),
            });
            id
        };
        let flow = add(None, Shape::Seq, "f");
        for _ in 0..rows {
            add(Some(flow), Shape::Leaf, "run <b>");
        }
        let fork = add(Some(flow), Shape::Fork, "all");
        for _ in 0..branches {
            let branch = add(Some(fork), Shape::Seq, "seq");
            add(Some(branch), Shape::Leaf, "run c");
            add(Some(branch), Shape::Leaf, "run d\u{202e}");
        }
        GraphView {
            name: "f".into(),
            hash: "1f".into(),
            file: "f.lua".into(),
            exact: true,
            nodes,
            partial: false,
        }
    }

    fn shown(view: &GraphView, query: &str) -> String {
        let part = Part::of(view, &Fields::of_text(query)).expect("a part");
        let url = |node, skip| part_url("/x", node, skip);
        part.html(&url, &|_| Look::default()).into_string()
    }

    #[test]
    fn every_label_is_a_text_and_no_style_is_inline() {
        let page = shown(&flow(1, 2), "");
        assert!(page.contains(">run &lt;b&gt;</text>") && page.contains("run d⟨U+202E⟩"), "{page}");
        assert!(!page.contains("<b>") && !page.contains("style="), "{page}");
        assert_eq!(page.matches(">run c</text>").count(), 2);
        assert!(page.contains(">end</text>"));
    }

    #[test]
    fn a_large_graph_is_folded_and_each_of_its_parts_can_be_reached() {
        let view = flow(2, 200);
        let page = shown(&view, "");
        // There is room for the parts of 23 branches; the next one is node 73.
        assert!(page.contains("href=\"/x?tab=graph&amp;node=73\""), "{page}");
        assert!(page.contains(">seq ▸ 2</text>") && !page.contains("node=70\""), "{page}");
        let branch = shown(&view, "node=73");
        assert!(branch.contains(">run c</text>") && branch.contains("the whole flow"), "{branch}");
        let long = flow(600, 0);
        let page = shown(&long, "");
        assert!(
            page.contains("▸ 351 more") && page.contains("href=\"/x?tab=graph&amp;skip=250\""),
            "{page}"
        );
        assert!(page.len() < 100_000, "{}", page.len());
        let last = shown(&long, "skip=500");
        assert_eq!(last.matches(">run &lt;b&gt;</text>").count(), 100);
        assert!(last.contains(">all</text>") && !last.contains("more</text>"), "{last}");
    }

    #[test]
    fn a_part_that_is_not_there_is_refused() {
        let view = flow(1, 1);
        for query in ["node=99", "node=x", "skip=9", "node=18446744073709551615"] {
            assert!(Part::of(&view, &Fields::of_text(query)).is_err(), "{query}");
        }
    }
}
