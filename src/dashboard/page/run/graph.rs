//! The tab Graph of a run: the flow as it is written, with what the run did at each of its calls.

use std::collections::{BTreeMap, BTreeSet};

use maud::{Markup, html};

use crate::{
    blueprint::{GraphNode, graph::Shape},
    dashboard::{
        component::graph::{self, Look, Part, part_url},
        desk::Desk,
        fields::Fields,
        page::source_links,
        visitor::Visitor,
    },
    door::Problem,
    engine::{EngineError, GraphView, LineActs, LineSteps, RunView},
};

/// Returns the tab.
pub(super) async fn tab(
    desk: &Desk,
    visitor: &Visitor,
    view: &RunView,
    fields: &Fields,
) -> Result<Markup, Problem> {
    let (engine, caller) = (&desk.engine, &visitor.caller);
    let version = format!("{}@{}", view.blueprint, view.hash);
    let graph = match engine.blueprints().graph(caller, &version).await {
        Ok(graph) => graph,
        Err(EngineError::NotFound { .. } | EngineError::Refused(_)) => {
            return Ok(html! { div.empty { "This token does not reach the source of this run." } });
        }
        Err(error) => return Err(error.into()),
    };
    let part = Part::of(&graph, fields)?;
    let acts = engine.line_acts(caller, view.id).await?;
    let states = States::of(&graph, &acts);
    let path = format!("/ui/runs/{}", view.id);
    let url = |node, skip| part_url(&path, node, skip);
    let look = |node: &GraphNode| look(view, &graph, node, &states);
    Ok(html! {
        p.small.legend {
            span.status.ok { "✓ ended" } " " span.status.busy { "▶ in progress" } " " span.status.bad { "✕ failed" } " "
            span.status { "⊘ canceled" } " "
            span.dim { "dashed: no step yet. A click opens the latest step, or the line." }
        }
        (part.html(&url, &look))
        @if states.elsewhere > 0 {
            p.dim.small {
                (states.elsewhere) @if states.elsewhere == 1 { " step comes" } @else { " steps come" }
                " from calls that are not drawn: those of other files, or of other functions. "
                a href={ (path) "?tab=source" } { "See them in the source" }
            }
        }
        @if !graph.exact {
            p.dim.small { "Drawn from the text of the flow. A function that is called from several places has its steps at each." }
        }
        (graph::same(visitor, &graph, &version))
    })
}

/// The steps of each node.
struct States {
    /// The steps by the number of the node. A node with others in it has the sum of theirs.
    nodes: BTreeMap<usize, LineSteps>,
    /// The nodes that have steps once the run comes to them, or have such nodes in them.
    speaking: BTreeSet<usize>,
    /// The number of steps that belong to no node.
    elsewhere: u32,
}

impl States {
    fn of(graph: &GraphView, acts: &LineActs) -> Self {
        let mut at_line: BTreeMap<u32, Vec<&GraphNode>> = BTreeMap::new();
        for node in &graph.nodes {
            if let Some(line) = node.line {
                at_line.entry(line).or_default().push(node);
            }
        }
        let mut nodes: BTreeMap<usize, LineSteps> = BTreeMap::new();
        let mut elsewhere = 0;
        for (act, steps) in acts {
            let near = at_line.get(&act.line).filter(|_| act.file == graph.file);
            let near = near.map(Vec::as_slice).unwrap_or_default();
            let fits = |wanted| {
                near.iter().filter(move |it| fit(&it.label, act.kind, &act.name) == wanted)
            };
            let wanted = if fits(Fit::Named).next().is_some() { Fit::Named } else { Fit::Computed };
            let mut found = false;
            for node in fits(wanted) {
                found = true;
                nodes.entry(node.id).or_default().add(steps);
            }
            // The drawing leaves out what reads and writes.
            if !found && !matches!(act.kind, "state" | "local") {
                elsewhere += steps.steps;
            }
        }
        let mut speaking = BTreeSet::new();
        // Those within come after the node around them.
        for node in graph.nodes.iter().rev() {
            if schedules(&node.label) || speaking.contains(&node.id) {
                speaking.insert(node.id);
                speaking.extend(node.parent);
            }
            if let (Some(around), Some(own)) = (node.parent, nodes.get(&node.id).cloned()) {
                nodes.entry(around).or_default().add(&own);
            }
        }
        Self { nodes, speaking, elsewhere }
    }
}

/// The quality of the match between steps and a node of their line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fit {
    /// The node names them.
    Named,
    /// The node has a name that is computed.
    Computed,
    No,
}

/// The beginnings of the labels of each kind of steps.
const VERBS: [(&str, &[&str]); 5] = [
    ("task", &["run ", "approve"]),
    ("timer", &["sleep", "timeout"]),
    ("signal", &["wait for ", "wait "]),
    ("child", &["call "]),
    ("local", &["artifact", "read artifact", "signal"]),
];

/// Returns what follows the verb of a label: `echo` of `run echo` and of `plan: run echo`.
fn after_verb<'a>(label: &'a str, verbs: &[&str]) -> Option<&'a str> {
    let own = |label: &'a str| verbs.iter().find_map(|verb| label.strip_prefix(verb));
    own(label).or_else(|| own(label.split_once(": ")?.1))
}

/// Returns true if a run that comes to a node of this label has a step there.
fn schedules(label: &str) -> bool {
    VERBS.iter().any(|(_, verbs)| after_verb(label, verbs).is_some())
}

/// Returns how well steps of a kind and name fit a label: `run echo`, `plan: run echo (about it)`.
fn fit(label: &str, kind: &str, name: &str) -> Fit {
    let verbs = VERBS.iter().find(|(of, _)| *of == kind).map_or(&[][..], |(_, verbs)| verbs);
    let Some(rest) = after_verb(label, verbs) else { return Fit::No };
    // An approval and a timer have names of their own.
    let is_plain = matches!(kind, "timer" | "local") || name == "approve";
    let computed = rest.starts_with(['<', '…']) || rest.contains("{{");
    match rest.strip_prefix(name) {
        _ if is_plain => Fit::Named,
        Some(after) if after.is_empty() || after.starts_with(" (") => Fit::Named,
        _ if computed => Fit::Computed,
        _ => Fit::No,
    }
}

fn look(view: &RunView, graph: &GraphView, node: &GraphNode, states: &States) -> Look {
    let source = node.line.map(|line| source_links::url(view.id, &graph.file, line));
    let place = node.line.map(|line| format!("line {line}, ")).unwrap_or_default();
    if node.parent.is_none() {
        let (class, sign) = match view.status.as_str() {
            "completed" => ("ok", "✓"),
            "failed" => ("bad", "✕"),
            "canceled" => ("stopped", "⊘"),
            _ => ("busy", "▶"),
        };
        let title = format!("the run: {}", view.status.as_str());
        return Look { class, sign: sign.to_owned(), href: source, title };
    }
    let Some(it) = states.nodes.get(&node.id).filter(|it| it.steps > 0) else {
        let class = if states.speaking.contains(&node.id) { "never" } else { "" };
        return Look {
            class,
            sign: String::new(),
            href: source,
            title: format!("{place}no step here"),
        };
    };
    let done = it.steps - it.open - it.failed - it.canceled;
    let (class, sign) = match it {
        LineSteps { open: 1.., .. } => ("busy", "▶"),
        LineSteps { failed: 1.., .. } => ("bad", "✕"),
        _ if done > 0 => ("ok", "✓"),
        _ => ("stopped", "⊘"),
    };
    let words = [
        (done, "ended"),
        (it.open, "in progress"),
        (it.failed, "failed"),
        (it.canceled, "canceled"),
    ];
    let words = words.iter().filter(|(n, _)| *n > 0).map(|(n, word)| format!("{n} {word}"));
    let words = words.collect::<Vec<_>>().join(", ");
    let sign = if it.steps > 1 { format!("{sign} {}×", it.steps) } else { sign.to_owned() };
    let href = match node.shape {
        Shape::Leaf | Shape::End => Some(format!("/ui/runs/{}/steps/{}", view.id, it.latest)),
        _ => source,
    };
    Look { class, sign, href, title: format!("{place}{words}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::LineAct;

    #[test]
    fn steps_fit_the_node_that_names_them() {
        for (label, kind, name, expected) in [
            ("run echo", "task", "echo", Fit::Named),
            ("plan: run echo (first of all)", "task", "echo", Fit::Named),
            ("run echoes", "task", "echo", Fit::No),
            ("run <step.agent>", "task", "echo", Fit::Computed),
            ("x: run {{ who }}", "task", "echo", Fit::Computed),
            ("approve Ship it?", "task", "approve", Fit::Named),
            ("wait for go", "signal", "go", Fit::Named),
            ("wait go", "signal", "go", Fit::Named),
            ("sleep 5m", "timer", "timer", Fit::Named),
            ("run echo", "timer", "timer", Fit::No),
            ("run echo", "state", "get", Fit::No),
            ("call other", "child", "other", Fit::Named),
        ] {
            assert_eq!(fit(label, kind, name), expected, "{label} {kind} {name}");
        }
    }

    #[test]
    fn two_calls_of_a_line_are_told_apart_and_a_part_has_the_sum_of_its_own() {
        let node = |id, parent, shape, label: &str, line| GraphNode {
            id,
            parent,
            edge: String::new(),
            shape,
            label: label.into(),
            line: Some(line),
        };
        let graph = GraphView {
            name: "f".into(),
            hash: "1f".into(),
            file: "f.lua".into(),
            exact: false,
            nodes: vec![
                node(0, None, Shape::Seq, "f", 1),
                node(1, Some(0), Shape::Fork, "all", 3),
                node(2, Some(1), Shape::Leaf, "run a", 3),
                node(3, Some(1), Shape::Leaf, "run b", 3),
                node(4, Some(0), Shape::Leaf, "run <x>", 4),
            ],
            partial: false,
        };
        let act = |file: &str, line, name: &str| LineAct {
            file: file.into(),
            line,
            kind: "task",
            name: name.into(),
        };
        let of = |steps, open, latest| LineSteps { steps, open, latest, ..LineSteps::default() };
        let states = States::of(
            &graph,
            &LineActs::from([
                (act("f.lua", 3, "a"), of(2, 1, 1)),
                (act("f.lua", 3, "b"), of(1, 0, 5)),
                (act("f.lua", 4, "any"), of(3, 0, 9)),
                (act("lib.lua", 3, "a"), of(7, 0, 20)),
            ]),
        );
        let shown: Vec<_> =
            states.nodes.iter().map(|(id, it)| (*id, it.steps, it.latest)).collect();
        assert_eq!(shown, [(0, 6, 1), (1, 3, 1), (2, 2, 1), (3, 1, 5), (4, 3, 9)]);
        assert_eq!(states.elsewhere, 7);
    }
}
