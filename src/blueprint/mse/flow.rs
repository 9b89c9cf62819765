//! Nodes of flow.ir as Lua: all 7 kinds, and `assign`, the older name of `let`.
//!
//! The document that the nodes share is the local `doc`. A write makes a copy, so a lane of a fanout
//! has a document of its own, and a `try` goes back to the one it began with.

use serde_json::Value;

use super::{
    draft::Draft,
    expr::{condition, decision, expression, target},
    fields::Fields,
    lua::{Lines, quote, shown},
    path,
    report::ImportError,
};

/// Up to here a flow's text may grow.
const LARGEST: usize = 900 << 10;

/// Writes a node.
pub(crate) fn node(
    draft: &mut Draft,
    out: &mut Lines,
    value: &Value,
    at: &str,
    depth: usize,
) -> Result<(), ImportError> {
    draft.enter(at, depth)?;
    if out.len() > LARGEST {
        return Err(ImportError::new(at, "the flow is too large for one file"));
    }
    let fields = Fields::new(value, at)?;
    match fields.need_text("kind")? {
        "step" => step(draft, out, &fields, depth)?,
        "seq" => {
            fields.need("children")?;
            for (index, child) in fields.list("children")?.iter().enumerate() {
                node(draft, out, child, &format!("{}[{index}]", fields.at("children")), depth + 1)?;
            }
        }
        "branch" => {
            let cond = decision(draft, fields.need("cond")?, &fields.at("cond"), depth + 1)?;
            out.open(format!("if {cond} then"));
            body(draft, out, &fields, "then", depth)?;
            out.close("else");
            out.depth += 1;
            body(draft, out, &fields, "else", depth)?;
            out.close("end");
        }
        "fanout" => fanout(draft, out, &fields, depth)?,
        "loop" => {
            let counter = target(fields.need("counter")?, &fields.at("counter"))?;
            let max = fields.need("max").and_then(|_| fields.whole("max"))?;
            let max = max.ok_or_else(|| ImportError::new(at, "`max` is a whole number"))?;
            let cond = condition(draft, fields.need("cond")?, &fields.at("cond"), depth + 1)?;
            draft.helpers.uses("put");
            out.open("do");
            out.line("local round = 0");
            out.line(format!("doc = put(doc, round{})", path::arguments(&counter)));
            out.open(format!("while round < {max} and {cond} do"));
            body(draft, out, &fields, "body", depth)?;
            out.line("round += 1");
            out.line(format!("doc = put(doc, round{})", path::arguments(&counter)));
            out.close("end");
            out.close("end");
        }
        "try" => {
            let err_at =
                fields.get("err_at").map(|it| target(it, &fields.at("err_at"))).transpose()?;
            out.open("do");
            out.line("local before = doc");
            let names = if err_at.is_some() { "ok, problem" } else { "ok" };
            out.open(format!("local {names} = pcall(function()"));
            body(draft, out, &fields, "body", depth)?;
            out.close("end)");
            out.open("if not ok then");
            out.line("doc = before");
            if let Some(keys) = err_at {
                draft.helpers.uses("put");
                out.line(format!("doc = put(doc, tostring(problem){})", path::arguments(&keys)));
                draft.report.differs(at, "the message of an error has other words");
            }
            body(draft, out, &fields, "catch", depth)?;
            out.close("end");
            out.close("end");
        }
        kind @ ("let" | "assign") => {
            let keys = match fields.need("at")? {
                Value::String(text) => path::keys(text, at)?,
                value if kind == "assign" => target(value, &fields.at("at"))?,
                _ => return Err(ImportError::new(fields.at("at"), "a path is expected")),
            };
            let value = expression(draft, fields.need("value")?, &fields.at("value"), depth + 1)?;
            draft.helpers.uses("put");
            out.line(format!("doc = put(doc, {}{})", value.text, path::arguments(&keys)));
        }
        other => return Err(ImportError::new(at, format!("unknown node {}", shown(other)))),
    }
    fields.done()
}

fn body(
    draft: &mut Draft,
    out: &mut Lines,
    fields: &Fields<'_>,
    key: &'static str,
    depth: usize,
) -> Result<(), ImportError> {
    node(draft, out, fields.need(key)?, &fields.at(key), depth + 1)
}

fn step(
    draft: &mut Draft,
    out: &mut Lines,
    fields: &Fields<'_>,
    depth: usize,
) -> Result<(), ImportError> {
    let agent = fields.need_text("ref")?;
    let Some(name) = draft.agents.get(agent).cloned() else {
        let what = format!("there is no agent {}", shown(agent));
        return Err(ImportError::new(fields.at("ref"), what));
    };
    let stripped = without_envelope(draft, fields.need("in")?, &fields.at("in"));
    let given = stripped.as_ref().map_or_else(|| fields.need("in"), Ok)?;
    let input = expression(draft, given, &fields.at("in"), depth + 1)?;
    let keys = target(fields.need("out")?, &fields.at("out"))?;
    let mut call = format!("ctx:run({}, {})", quote(&name), input.text);
    if let Some(arguments) = draft.printed.get(agent) {
        call = format!("printed({call}{arguments})");
        draft.helpers.uses("printed");
    }
    if let Some(auditors) = draft.audits.get(agent) {
        let auditors: Vec<_> = auditors.iter().map(|it| quote(it)).collect();
        call = format!("audited(ctx, {}, {{ {} }}, {call})", quote(&name), auditors.join(", "));
        draft.helpers.uses("audited");
    }
    draft.helpers.uses("put");
    out.line(format!("doc = put(doc, {call}{})", path::arguments(&keys)));
    Ok(())
}

/// The input of a step without its `$step_meta` envelope, if it has one that is written out.
fn without_envelope(draft: &mut Draft, value: &Value, at: &str) -> Option<Value> {
    let literal = value.get("op").and_then(Value::as_str) == Some("lit");
    let mut map = value.get("value").filter(|_| literal)?.as_object()?.clone();
    let meta = map.remove("$step_meta")?;
    let what = format!(
        "`$step_meta` {} is left out: put what the worker needs into the input",
        shown(&meta.to_string())
    );
    draft.report.decide(at, what);
    let inner = match map.remove("$in") {
        Some(inner) => inner,
        None if map.is_empty() => Value::String(String::new()),
        None => Value::Object(map),
    };
    Some(serde_json::json!({ "op": "lit", "value": inner }))
}

fn fanout(
    draft: &mut Draft,
    out: &mut Lines,
    fields: &Fields<'_>,
    depth: usize,
) -> Result<(), ImportError> {
    let items = expression(draft, fields.need("items")?, &fields.at("items"), depth + 1)?.text;
    let bind = target(fields.need("bind")?, &fields.at("bind"))?;
    let keys = target(fields.need("out")?, &fields.at("out"))?;
    let join = fields.need_text("join")?;
    let (helper, call) = match join {
        "all" => ("list", format!("ctx:map(list({items}), function(item)")),
        "any" => ("race_lanes", format!("race_lanes(ctx, {items}, function(item)")),
        "race" => ("first_lane", format!("first_lane(ctx, {items}, function(item)")),
        "all_settled" => ("settle_lanes", format!("settle_lanes(ctx, {items}, function(item)")),
        other => {
            let what = format!("unknown join {}", shown(other));
            return Err(ImportError::new(fields.at("join"), what));
        }
    };
    draft.helpers.uses(helper);
    draft.helpers.uses("put");
    if join == "all_settled" {
        draft.report.differs(fields.place(), "the reason of a rejected lane has other words");
    }
    out.open("do");
    out.open(format!("local joined = {call}"));
    out.line(format!("local doc = put(doc, item{})", path::arguments(&bind)));
    body(draft, out, fields, "body", depth)?;
    out.line("return doc");
    out.close("end)");
    out.line(format!("doc = put(doc, joined{})", path::arguments(&keys)));
    out.close("end");
    Ok(())
}
