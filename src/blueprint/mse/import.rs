//! The whole of a foreign blueprint, as a blueprint in Lua.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::{
    agent::Agents,
    agents::agents,
    draft::{Draft, Options},
    fields::Fields,
    flow::node,
    lua::{Lines, quote, shown},
    names::name_of,
    process::duration,
    report::{ImportError, Report},
};

/// A blueprint that was imported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Imported {
    /// The name of the blueprint.
    pub name: String,
    /// Its source.
    pub lua: String,
    /// The files that belong to it, by their path beside it.
    pub files: Vec<(String, String)>,
    /// The outcome of its parts.
    pub report: Report,
}

/// Parts that have no counterpart, and why each is left out.
const LEFT: &[(&str, &str)] = &[
    ("blueprint_ref_includes", "read: the files were looked for there"),
    ("check_policy", "left out: what cannot be stored fails"),
    ("default_context_policy", "left out: a worker sees its input, and nothing of other steps"),
    ("default_operator_kind", "left out: the kind of an operator is what moonswarm.toml says"),
    ("degradation_policy", "left out: a worker fails, or it does not"),
    (
        "projection_placement",
        "left out: results are no files; `ctx:artifact` keeps what a run makes",
    ),
];

/// Imports a document, whose references are resolved.
///
/// # Errors
/// The first part that has no meaning here.
pub fn import(document: &Value, options: &Options) -> Result<Imported, ImportError> {
    let fields = Fields::new(document, "")?;
    let mut draft = Draft::default();
    let given = fields.need_text("id")?;
    let name = name_of(given, [].iter());
    if name != given {
        draft.report.differs("id", format!("{} is called `{name}`", shown(given)));
    }
    fields.get("schema_version");
    let agents = agents(&mut draft, &fields, &name, options)?;
    audits(&mut draft, &fields)?;
    let mut flow = Lines::at(2);
    let defaults = fields.get("default_init_ctx");
    match defaults {
        Some(defaults) => {
            let text = draft.literal(defaults, 2, "default_init_ctx");
            draft.helpers.uses("begin");
            flow.line(format!("local doc = begin({text}, input)"));
            draft.report.same("default_init_ctx", "the input is laid over it");
        }
        None => flow.line("local doc = if input == nil then {} else input"),
    }
    node(&mut draft, &mut flow, fields.need("flow")?, "flow", 0)?;
    flow.line("return doc");
    draft.report.same("flow", "each node and each expression, over one document");
    let (description, wall) = about(&mut draft, &fields)?;
    around(&mut draft, &fields)?;
    let lua = written(&draft, &agents, flow, given, &name, description, wall, options);
    Ok(Imported { name, lua, files: agents.files, report: draft.report })
}

/// The auditors of each agent.
fn audits(draft: &mut Draft, fields: &Fields<'_>) -> Result<(), ImportError> {
    let list = fields.objects("audits")?;
    let mut auditors = BTreeSet::new();
    for audit in &list {
        auditors.insert(audit.need_text("agent")?);
    }
    for audit in list {
        let agent = audit.need_text("agent")?;
        let Some(name) = draft.agents.get(agent).cloned() else {
            let what = format!("there is no agent {}", shown(agent));
            return Err(ImportError::new(audit.at("agent"), what));
        };
        let steps = audit.get("steps").map(|_| audit.texts("steps")).transpose()?;
        if audit.text("mode")? != Some("sync") {
            draft.report.differs(audit.at("mode"), "the flow waits for the audit");
        }
        audit.done()?;
        let every = steps.as_ref().is_none_or(|it| it.iter().any(|step| step == "*"));
        let listed = |step: &str| steps.as_ref().is_some_and(|it| it.iter().any(|s| s == step));
        let audited: Vec<_> =
            draft.agents.keys().filter(|it| every || listed(it)).cloned().collect();
        for step in audited.into_iter().filter(|it| !auditors.contains(it.as_str())) {
            draft.audits.entry(step).or_default().push(name.clone());
        }
        let what = "audits are steps after the step; their findings are artifacts, and failed steps have none";
        draft.report.differs(audit.place(), what);
    }
    Ok(())
}

/// Reads the description of a blueprint, and the time limit of its runs.
fn about<'v>(
    draft: &mut Draft,
    fields: &Fields<'v>,
) -> Result<(Option<&'v str>, Option<String>), ImportError> {
    let Some(metadata) = fields.object("metadata")? else { return Ok((None, None)) };
    let description = metadata.text("description")?;
    let wall = metadata.whole("default_run_ttl_secs")?.map(|it| duration(it.saturating_mul(1_000)));
    if wall.is_some() {
        draft.report.same(metadata.at("default_run_ttl_secs"), "`limits.wall`");
    }
    if metadata.truth("strict_verdict_handling")?.is_some() {
        let what = "left out: the schema of an output holds its values";
        draft.report.differs(metadata.at("strict_verdict_handling"), what);
    }
    if let Some(alias) = metadata.text("project_name_alias")? {
        let what =
            format!("{} is left out: put it into the input, if workers need it", shown(alias));
        draft.report.decide(metadata.at("project_name_alias"), what);
    }
    metadata.get("origin");
    for key in ["tags", "version_label", "lints"] {
        let value = metadata.get(key).filter(|it| !it.as_array().is_some_and(Vec::is_empty));
        if value.is_some() {
            draft.report.differs(metadata.at(key), "left out");
        }
    }
    for key in metadata.rest() {
        draft.report.differs(metadata.at(key), "left out: an unknown key");
    }
    Ok((description, wall))
}

/// The other parts.
fn around(draft: &mut Draft, fields: &Fields<'_>) -> Result<(), ImportError> {
    for (key, why) in LEFT {
        if fields.get(key).is_some() {
            draft.report.differs(*key, *why);
        }
    }
    for key in ["default_agent_ctx", "metas"] {
        if fields.get(key).is_some() {
            let what = "left out: put what the workers need into the inputs of their steps";
            draft.report.decide(key, what);
        }
    }
    if let Some(hints) = fields.object("hints")? {
        let empty = |it: &&Value| !it.as_object().is_some_and(Map::is_empty);
        if hints.get("per_agent").filter(empty).is_some()
            || hints.get("global").filter(empty).is_some()
        {
            draft.report.differs("hints", "left out: they are for the compiler of mlua-swarm");
        }
    }
    if let Some(strategy) = fields.object("strategy")? {
        for key in ["strict_refs", "strict_kind"] {
            if strategy.truth(key)? == Some(false) {
                draft.report.differs(
                    strategy.at(key),
                    "left out: an unknown agent or operator is an error",
                );
            }
        }
        if strategy.truth("strict_binding")? == Some(true) {
            draft.report.differs(
                strategy.at("strict_binding"),
                "left out: `check` requires `worker` of every agent",
            );
        }
    }
    if let Some(hints) = fields.object("spawner_hints")? {
        for layer in hints.texts("layers")? {
            let what = match layer.as_str() {
                "main_ai" => "a session is told of each of its tasks anyway",
                "senior_escalation" => "left out: a worker asks for advice with `escalate`",
                "operator_delegate" => "left out: start the run with `--delegate SESSION`",
                _ => "left out: an unknown layer",
            };
            draft
                .report
                .differs(format!("spawner_hints.layers.{}", name_of(&layer, [].iter())), what);
        }
    }
    for key in fields.rest() {
        draft.report.differs(fields.at(key), "left out: an unknown key");
    }
    Ok(())
}

#[expect(clippy::too_many_arguments, reason = "the parts of one text, in their order")]
fn written(
    draft: &Draft,
    agents: &Agents,
    flow: Lines,
    given: &str,
    name: &str,
    description: Option<&str>,
    wall: Option<String>,
    options: &Options,
) -> String {
    let mut out = Lines::default();
    out.comment(&format!("Imported from the blueprint {} of mlua-swarm.", shown(given)));
    if !draft.report.decide.is_empty() {
        out.comment("To decide:");
        for note in &draft.report.decide {
            out.comment(&format!("- {}: {}", note.at, note.what));
        }
    }
    out.line("local swarm = require(\"swarm\")");
    if agents.schema {
        out.line("local s = swarm.schema");
    }
    if !agents.read.is_empty() {
        out.line("");
        out.comment("Files that programs read: naming them makes them a part of the blueprint.");
        let files: Vec<_> = agents.read.iter().map(|it| quote(it)).collect();
        out.line(format!("local _files = {{ {} }}", files.join(", ")));
    }
    let mut text = out.into_text();
    text.push_str(&draft.helpers.text());
    let mut out = Lines::default();
    if !draft.externs.is_empty() {
        out.line("");
        out.comment(
            "Functions of the host that ran this blueprint before (`call_extern`): write them.",
        );
        out.open("local externs = {");
        for name in &draft.externs {
            out.open(format!("[{}] = function(...)", quote(name)));
            out.line("swarm.fail(\"extern_error\", \"this function is not written yet\")");
            out.close("end,");
        }
        out.close("}");
    }
    out.line("");
    out.open("return swarm.blueprint {");
    out.line(format!("name = {},", quote(name)));
    if options.edition > 1 {
        out.line(format!("edition = {},", options.edition));
    }
    if let Some(description) = description {
        out.line(format!("description = {},", quote(description)));
    }
    if let Some(operator) = &agents.operator {
        out.line(format!("operator = {},", quote(operator)));
    }
    if let Some(wall) = wall {
        out.line(format!("limits = {{ wall = {} }},", quote(&wall)));
    }
    out.line("");
    text.push_str(&out.into_text());
    if agents.text.is_empty() {
        text.push_str("  agents = {},\n");
    } else {
        text.push_str(&format!("  agents = {{\n{}  }},\n", agents.text));
    }
    text.push_str(&format!("\n  flow = function(ctx, input)\n{}  end,\n}}\n", flow.into_text()));
    text
}
