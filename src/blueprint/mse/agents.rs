//! Agents of the foreign kind as agents here: their runners, their operators and their verdicts.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::{
    agent::{Agent, Agents, Around, is_template, write},
    draft::{Draft, Options},
    fields::Fields,
    kinds::{block, command, function, program, script, session},
    lua::{Lines, shown, strings},
    names::{name_of, operator_of},
    report::ImportError,
};

/// Writes the agents of a document.
pub(crate) fn agents(
    draft: &mut Draft,
    document: &Fields<'_>,
    blueprint: &str,
    options: &Options,
) -> Result<Agents, ImportError> {
    let around = around(draft, document, options)?;
    let mut out = Agents { dir: blueprint.to_owned(), ..Agents::default() };
    let mut list = Vec::new();
    for (index, value) in document.list("agents")?.iter().enumerate() {
        let at = format!("{}[{index}]", document.at("agents"));
        let fields = Fields::new(value, at)?;
        let given = fields.need_text("name")?;
        let name = name_of(given, draft.agents.values());
        if name != given {
            let what = format!("{} is called `{name}`", shown(given));
            draft.report.differs(fields.at("name"), what);
        }
        if draft.agents.insert(given.to_owned(), name).is_some() {
            let what = format!("there are two agents {}", shown(given));
            return Err(ImportError::new(fields.place(), what));
        }
        list.push(Fields::new(value, document.at(&format!("agents.{}", draft.agents[given])))?);
    }
    let mut all = Vec::new();
    for fields in &list {
        all.push(agent(draft, fields, &around, options, &mut out)?);
    }
    let seats: BTreeSet<_> = all.iter().filter(|it| it.seated).map(|it| &it.operator).collect();
    if let [only] = seats.into_iter().collect::<Vec<_>>()[..] {
        out.operator = Some(only.clone());
    }
    let mut lines = Lines::at(2);
    for agent in all {
        write(agent, &mut lines, &mut out, options);
    }
    out.text = lines.into_text();
    Ok(out)
}

fn around<'v>(
    draft: &mut Draft,
    document: &Fields<'v>,
    options: &Options,
) -> Result<Around<'v>, ImportError> {
    let named = |key| -> Result<BTreeMap<&'v str, &'v Value>, ImportError> {
        let mut map = BTreeMap::new();
        for (index, value) in document.list(key)?.iter().enumerate() {
            let at = format!("{}[{index}]", document.at(key));
            map.insert(Fields::new(value, at)?.need_text("name")?, value);
        }
        Ok(map)
    };
    let mut operators = BTreeMap::new();
    for fields in document.objects("operators")? {
        let given = fields.need_text("name")?;
        let name = operator_of(given);
        for key in ["spec", "profile", "meta"] {
            let value = fields.get(key).filter(|it| !it.as_object().is_some_and(Map::is_empty));
            if value.is_some() {
                draft.report.differs(
                    fields.at(key),
                    "left out: an operator is configured in moonswarm.toml",
                );
            }
        }
        fields.get("display_name");
        match fields.text("kind")? {
            None | Some("main_ai") => {}
            Some(kind @ ("automate" | "composite")) => {
                let what = format!(
                    "`{kind}` is left out: the kind of `{name}` is what moonswarm.toml says, here `main_ai`"
                );
                draft.report.differs(fields.at("kind"), what);
            }
            Some(other) => {
                let what = format!("unknown kind {}", shown(other));
                return Err(ImportError::new(fields.at("kind"), what));
            }
        }
        fields.done()?;
        if options.operators.contains(&name) {
            let what =
                format!("{} is the operator `{name}`: a session connects as it", shown(given));
            draft.report.same(fields.place(), what);
        } else {
            let what = format!(
                "declare the operator in moonswarm.toml: [operators.{name}] and kind = \"main_ai\""
            );
            draft.report.decide(fields.place(), what);
        }
        operators.insert(given, name);
    }
    Ok(Around {
        operators,
        runners: named("runners")?,
        default_runner: document.text("default_runner")?,
        subprocesses: named("subprocesses")?,
        default_kind: document.text("default_agent_kind")?.unwrap_or("operator"),
    })
}

fn agent(
    draft: &mut Draft,
    fields: &Fields<'_>,
    around: &Around<'_>,
    options: &Options,
    all: &mut Agents,
) -> Result<Agent, ImportError> {
    let given = fields.need_text("name")?;
    let name = draft.agents[given].clone();
    let empty = json!({});
    let profile = Fields::new(fields.get("profile").unwrap_or(&empty), fields.at("profile"))?;
    let spec = Fields::new(fields.get("spec").unwrap_or(&empty), fields.at("spec"))?;
    let system = profile.text("system_prompt")?.filter(|it| !it.trim().is_empty());
    let (model, effort) = (profile.text("model")?, profile.text("effort")?);
    let tools = profile.texts("tools")?;
    let binding = profile.text("worker_binding")?;
    let runner = runner(fields, around, binding, &tools)?;
    let mut agent = Agent { name, system: system.map(str::to_owned), ..Agent::default() };
    if let Some(text) = profile.text("description")? {
        agent.about.insert("description".to_owned(), text.into());
    }
    meta(draft, fields, &mut agent)?;
    for (key, value) in [("model", model), ("effort", effort)] {
        if let Some(value) = value {
            agent.about.insert(key.to_owned(), value.into());
        }
    }
    profile.get("version_hash");
    if profile.get("extras").is_some() {
        draft
            .report
            .differs(profile.at("extras"), "left out: keys that mlua-swarm does not read either");
    }
    let at = fields.place().to_owned();
    match fields.text("kind")?.unwrap_or(around.default_kind) {
        "operator" => {
            let wanted = spec.text("operator_ref")?;
            agent.operator = match wanted {
                Some(wanted) => around.operators.get(wanted).cloned().ok_or_else(|| {
                    let what = format!("there is no operator {}", shown(wanted));
                    ImportError::new(spec.at("operator_ref"), what)
                })?,
                None => {
                    let what = "it names no operator: it is for a session of `main-ai` here";
                    draft.report.decide(&at, what);
                    "main-ai".to_owned()
                }
            };
            session(draft, &mut agent, runner.as_ref(), &tools, &at)?;
        }
        "agent_block" => block(draft, &mut agent, runner.as_ref(), &spec, &tools, options)?,
        "lua" => script(draft, &mut agent, &spec)?,
        "rust_fn" => function(draft, &mut agent, &spec)?,
        "subprocess" => {
            let models = (model, tools.as_slice());
            let program = program(draft, &mut agent, runner.as_ref(), &spec, models, around, all)?;
            command(draft, &mut agent, program, given, options, &at);
        }
        other => {
            let what = format!("unknown kind {}", shown(other));
            return Err(ImportError::new(fields.at("kind"), what));
        }
    }
    if let Some(most) = fields.whole("max_concurrency")? {
        agent.lines.push(format!("max_concurrency = {most}"));
    }
    verdict(draft, fields, &mut agent, given, all)?;
    if fields.get("lints").is_some() {
        draft.report.differs(fields.at("lints"), "left out: `check` has other findings");
    }
    for fields in [fields, &profile, &spec] {
        for key in fields.rest() {
            draft.report.differs(fields.at(key), "left out: an unknown key");
        }
    }
    if agent.system.as_deref().is_some_and(is_template) {
        draft.report.same(profile.at("system_prompt"), "a template, with the same slots");
    }
    Ok(agent)
}

/// The runner of an agent: its own, a named one, its binding, or the default.
fn runner<'v>(
    fields: &Fields<'v>,
    around: &Around<'v>,
    binding: Option<&str>,
    tools: &[String],
) -> Result<Option<Value>, ImportError> {
    let named = |name: &str, at: String| {
        let unknown = || ImportError::new(at, format!("there is no runner {}", shown(name)));
        let found = around.runners.get(name).and_then(|it| it.get("runner"));
        found.cloned().map(Some).ok_or_else(unknown)
    };
    if let Some(own) = fields.get("runner") {
        fields.get("runner_ref");
        return Ok(Some(own.clone()));
    }
    if let Some(name) = fields.text("runner_ref")? {
        return named(name, fields.at("runner_ref"));
    }
    if let Some(variant) = binding {
        return Ok(Some(json!({"backend": "ws_claude_code", "variant": variant, "tools": tools})));
    }
    match around.default_runner {
        Some(name) => named(name, "default_runner".to_owned()),
        None => Ok(None),
    }
}

/// Reads the description of an agent, and reports the contexts that are left out.
fn meta(draft: &mut Draft, fields: &Fields<'_>, agent: &mut Agent) -> Result<(), ImportError> {
    let Some(meta) = fields.object("meta")? else { return Ok(()) };
    if let Some(text) = meta.text("description")? {
        agent.about.entry("description").or_insert_with(|| text.into());
    }
    for key in ["ctx", "meta_ref"] {
        if let Some(value) = meta.get(key) {
            let what = format!(
                "{} is left out: put what the worker needs into the input",
                shown(&value.to_string())
            );
            draft.report.decide(meta.at(key), what);
        }
    }
    for (key, what) in [
        ("context_policy", "left out: a worker sees its input, and nothing of other steps"),
        ("projection_name", "left out: results are no files"),
        ("version", "left out: a blueprint is identified by its hash"),
    ] {
        if meta.get(key).is_some() {
            draft.report.differs(meta.at(key), what);
        }
    }
    if !meta.texts("tags")?.is_empty() {
        draft.report.differs(meta.at("tags"), "left out");
    }
    for key in meta.rest() {
        draft.report.differs(meta.at(key), "left out: an unknown key");
    }
    Ok(())
}

/// The verdicts that an agent may give, as the schema of its output.
fn verdict(
    draft: &mut Draft,
    fields: &Fields<'_>,
    agent: &mut Agent,
    given: &str,
    all: &mut Agents,
) -> Result<(), ImportError> {
    let Some(verdict) = fields.object("verdict")? else { return Ok(()) };
    let values = verdict.texts("values")?;
    let channel = verdict.need_text("channel")?;
    verdict.done()?;
    if values.is_empty() {
        return Err(ImportError::new(verdict.at("values"), "a verdict needs values"));
    }
    if draft.printed.get(given).is_some_and(|it| !it.is_empty()) {
        let what = "the values are not enforced: the output of a program is read after its schema was checked";
        draft.report.differs(verdict.place(), what);
        return Ok(());
    }
    let one_of = format!("s.enum {}", strings(&values, 3));
    match channel {
        "body" => {
            agent.lines.push(format!("output = {one_of}"));
            draft.report.same(verdict.place(), "the schema of its output");
        }
        "part" => {
            let schema = format!(
                "s.object {{ out = s.any {{ optional = true }}, parts = s.object {{ verdict = {one_of} }} }}"
            );
            agent.lines.push(format!("output = {schema}"));
            let what = "a worker returns `{ out, parts = { verdict } }` as one result, in place of named parts";
            draft.report.differs(verdict.place(), what);
        }
        other => {
            let what = format!("unknown channel {}", shown(other));
            return Err(ImportError::new(verdict.at("channel"), what));
        }
    }
    all.schema = true;
    Ok(())
}
