//! The tab Graph of a blueprint: its flow as it is written.

use maud::{Markup, html};

use crate::{
    blueprint::GraphNode,
    dashboard::{
        component::graph::{self, Look, Part, part_url},
        desk::Desk,
        fields::Fields,
        visitor::Visitor,
    },
    door::Problem,
    engine::BlueprintView,
};

/// Returns the tab.
pub(super) async fn tab(
    desk: &Desk,
    visitor: &Visitor,
    view: &BlueprintView,
    fields: &Fields,
) -> Result<Markup, Problem> {
    let version = format!("{}@{}", view.name, view.hash);
    let graph = desk.engine.blueprints().graph(&visitor.caller, &version).await?;
    let part = Part::of(&graph, fields)?;
    let path = super::path(view);
    let url = |node, skip| part_url(&path, node, skip);
    let look = |node: &GraphNode| Look {
        href: node.line.map(|line| format!("{path}#L{line}")),
        title: node.line.map(|line| format!("line {line}")).unwrap_or_default(),
        ..Look::default()
    };
    Ok(html! {
        p.dim.small {
            @if graph.exact { "This flow is a table: the drawing is exact. " }
            @else { "Drawn from the text of the flow: its calls of " code { "ctx" } ", and the loops and conditions around them. " }
            "A click opens the line."
        }
        (part.html(&url, &look))
        (graph::same(visitor, &graph, &version))
    })
}
