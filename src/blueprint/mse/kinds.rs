//! The five kinds of foreign agents.

use serde_json::Value;

use super::{
    agent::{Agent, Agents, Around, is_template},
    draft::{Draft, Options},
    fields::Fields,
    lua::{braces, quote, shown, strings},
    names::plain,
    process::{self, Program, Vars},
    report::ImportError,
};

/// Lines of a foreign script that are kept as a comment.
const SCRIPT_LINES: usize = 200;

/// An agent whose tasks a connected session executes.
pub(crate) fn session(
    draft: &mut Draft,
    agent: &mut Agent,
    runner: Option<&Value>,
    tools: &[String],
    at: &str,
) -> Result<(), ImportError> {
    agent.seated = true;
    let (mut subagent, mut granted) = (agent.name.clone(), tools.to_vec());
    match runner {
        Some(value) => {
            let runner = Fields::new(value, format!("{at}.runner"))?;
            match runner.need_text("backend")? {
                "ws_operator" | "ws_claude_code" => {
                    subagent = runner.need_text("variant")?.to_owned();
                    granted = runner.texts("tools")?;
                    runner.done()?;
                }
                "agent_block_in_process" | "subprocess" => {
                    let what =
                        "its runner is none of a session; its sub-agent has the agent's name";
                    draft.report.decide(at, what);
                }
                other => {
                    let what = format!("unknown backend {}", shown(other));
                    return Err(ImportError::new(runner.at("backend"), what));
                }
            }
        }
        None => {
            let what = "it has no runner: its sub-agent has the agent's name; change `subagent_type` if it is another";
            draft.report.decide(at, what);
        }
    }
    let mut worker = vec![format!("subagent_type = {}", quote(&subagent))];
    if !granted.is_empty() {
        worker.push(format!("tools = {}", strings(&granted, 4)));
    }
    agent.lines.push(format!("worker = {}", braces(&worker, 3)));
    let what = format!("a task of `{}`, for the sub-agent {}", agent.operator, shown(&subagent));
    draft.report.same(at, what);
    Ok(())
}

/// An agent that called a model in the process of the foreign host.
pub(crate) fn block(
    draft: &mut Draft,
    agent: &mut Agent,
    runner: Option<&Value>,
    spec: &Fields<'_>,
    tools: &[String],
    options: &Options,
) -> Result<(), ImportError> {
    let at = spec.place().trim_end_matches(".spec").to_owned();
    let granted = match runner {
        Some(value) => Fields::new(value, format!("{at}.runner"))?.texts("tools")?,
        None => tools.to_vec(),
    };
    for key in ["script_path", "mcp_servers"] {
        if let Some(value) = spec.get(key) {
            let what = match key {
                "script_path" => "the script is left out: write the flow of its calls in Lua",
                _ => {
                    "its servers are left out: declare them in moonswarm.toml, with `kind = \"mcp\"`"
                }
            };
            draft.report.decide(spec.at(key), format!("{} {what}", shown(&value.to_string())));
        }
    }
    for key in ["project_root", "mcp_rpc_timeout_ms"] {
        if spec.get(key).is_some() {
            draft
                .report
                .differs(spec.at(key), "left out: an operator is configured in moonswarm.toml");
        }
    }
    match &options.model {
        Some(operator) => {
            agent.operator.clone_from(operator);
            draft.report.same(&at, format!("a loop of the model `{operator}`"));
            if !granted.is_empty() {
                let what = format!(
                    "declare its tools: {}; here a tool is an agent, an operator, a function or a server",
                    shown(&granted.join(", "))
                );
                draft.report.decide(&at, what);
            }
            Ok(())
        }
        None => {
            agent.operator = "main-ai".to_owned();
            let what = "it called a model in the host's process: declare an operator of kind `llm` and import \
                        with --model NAME; until then a session of `main-ai` does its work";
            draft.report.decide(&at, what);
            agent.seated = true;
            let mut worker = vec![format!("subagent_type = {}", quote(&agent.name))];
            if !granted.is_empty() {
                worker.push(format!("tools = {}", strings(&granted, 4)));
            }
            agent.lines.push(format!("worker = {}", braces(&worker, 3)));
            Ok(())
        }
    }
}

/// A stand-in for a function that somebody has to write.
fn stand_in(agent: &mut Agent, why: &str) {
    agent.operator = "lua".to_owned();
    agent.system = None;
    agent.lines.push(format!("fn = function() error({}) end", quote(why)));
}

/// An agent that was a Lua chunk in the foreign host.
pub(crate) fn script(
    draft: &mut Draft,
    agent: &mut Agent,
    spec: &Fields<'_>,
) -> Result<(), ImportError> {
    let (source, id) = (spec.text("source")?, spec.text("fn_id")?);
    spec.get("label");
    if let Some(source) = source {
        agent.comments.push("Its source in mlua-swarm:".to_owned());
        agent.comments.extend(source.lines().take(SCRIPT_LINES).map(|line| format!("  {line}")));
    }
    let what = match id.filter(|_| source.is_none()) {
        Some(id) => format!("write its function; in mlua-swarm it was {}", shown(id)),
        None => "write its function; its source is kept as a comment".to_owned(),
    };
    draft.report.decide(spec.place().trim_end_matches(".spec"), what);
    stand_in(agent, "write this function: it was a script of mlua-swarm");
    Ok(())
}

/// An agent that was a function of the foreign host.
pub(crate) fn function(
    draft: &mut Draft,
    agent: &mut Agent,
    spec: &Fields<'_>,
) -> Result<(), ImportError> {
    let id = spec.need_text("fn_id")?;
    let at = spec.place().trim_end_matches(".spec");
    if id == "identity" {
        agent.operator = "echo".to_owned();
        agent.system = None;
        draft.report.same(at, "`identity` is the operator `echo`");
        return Ok(());
    }
    draft.report.decide(at, format!("write its function; in mlua-swarm it was {}", shown(id)));
    stand_in(agent, "write this function: it was one of the host of mlua-swarm");
    Ok(())
}

/// The program of an agent.
pub(crate) fn program(
    draft: &mut Draft,
    agent: &mut Agent,
    runner: Option<&Value>,
    spec: &Fields<'_>,
    (model, tools): (Option<&str>, &[String]),
    around: &Around<'_>,
    all: &mut Agents,
) -> Result<Program, ImportError> {
    let system = agent.system.take().unwrap_or_default();
    let at = spec.place().trim_end_matches(".spec").to_owned();
    let template = runner.filter(|it| it.get("template").is_some());
    let Some(runner) = template else {
        if !system.is_empty() {
            draft.report.differs(at, "its system prompt is left out: the command does not use it");
        }
        return process::of_spec(spec, &mut draft.report);
    };
    let runner = Fields::new(runner, format!("{at}.runner"))?;
    runner.get("backend");
    let name = runner.need_text("template")?;
    let found = around.subprocesses.get(name).ok_or_else(|| {
        ImportError::new(runner.at("template"), format!("there is no subprocess {}", shown(name)))
    })?;
    let overrides = runner.object("overrides")?;
    runner.done()?;
    let (mut own_model, mut own_tools, mut cwd) = (None, Vec::new(), None);
    if let Some(overrides) = &overrides {
        own_model = overrides.text("model")?;
        own_tools = overrides.texts("tools")?;
        cwd = overrides.text("cwd")?;
        overrides.done()?;
    }
    let path = format!("{}/{}.system.md", all.dir, agent.name);
    let file = format!("{{{{ bundle }}}}/{path}");
    let vars = Vars {
        system: &system,
        system_file: &file,
        model: own_model.or(model),
        tools: if own_tools.is_empty() { tools } else { &own_tools },
    };
    let template = Fields::new(found, format!("subprocesses.{}", plain(name)))?;
    let program = process::of_template(&template, cwd, &vars, &mut draft.report)?;
    if program.system_file {
        if system.is_empty() {
            let what = "`{system_file}` is used, and the agent has no system prompt";
            return Err(ImportError::new(at, what));
        }
        if is_template(&system) {
            draft.report.differs(
                &at,
                "the file of its system prompt is not rendered: its slots stay as text",
            );
        }
        all.files.push((path.clone(), system));
        all.read.push(format!("./{path}"));
    }
    Ok(program)
}

/// Writes a program into its agent: as a comment, unless the document is trusted.
pub(crate) fn command(
    draft: &mut Draft,
    agent: &mut Agent,
    program: Program,
    given: &str,
    options: &Options,
    at: &str,
) {
    draft.printed.insert(given.to_owned(), program.printed);
    if options.trust {
        agent.operator = "process".to_owned();
        agent.lines.extend(program.lines);
        draft.report.same(at, "a program, with the same command");
        return;
    }
    agent.comments.push("Not trusted: `import-mse --trust` writes these lines as code.".to_owned());
    agent.comments.push("  operator = \"process\",".to_owned());
    for line in program.lines.iter().map(|it| format!("{it},")) {
        let less = |it: &str| format!("  {}", it.strip_prefix("      ").unwrap_or(it));
        agent.comments.extend(line.lines().map(less));
    }
    draft
        .report
        .decide(at, "it runs a program: read the command in the comment, then import with --trust");
    stand_in(
        agent,
        "this program is not trusted yet: read the comment above, or import with --trust",
    );
}
