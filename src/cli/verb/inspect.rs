//! `inspect`: the variables of a run's flow at a step.

use anyhow::Result;
use clap::Args;

use crate::{
    cli::{
        connect::Start,
        context::Context,
        exit::Exit,
        render::{cut, printable},
        resolve,
    },
    engine::{FlowForm, LocalsBranch, LocalsFrame, LocalsView},
    protocol::plain::one_line,
};

/// The longest value that is shown without a terminal, in bytes.
const VALUE: usize = 400;

/// Show the locals, arguments and upvalues of a run's flow when it requested a step
#[derive(Debug, Args)]
pub struct Inspect {
    /// The run: an id, a unique prefix of one, or `last`
    run: String,
    /// The step
    #[arg(long, value_name = "STEP")]
    at: u32,
}

impl Inspect {
    /// Runs the command.
    ///
    /// # Errors
    /// No such run or step, or a source that no longer leads to it.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        cx.with(Start::Existing, async |at| {
            let id = resolve::run(&at.client, &self.run).await?;
            let view = at.client.locals(id, self.at).await?;
            if cx.terminal.json {
                cx.terminal.print_json(&view)?;
                return Ok(Exit::Ok);
            }
            let width = cx.terminal.width();
            let lines: Vec<String> = lines(&view)
                .into_iter()
                .map(|line| width.map_or_else(|| line.clone(), |width| cut(&line, width)))
                .collect();
            cx.terminal.print(&lines.join("\n"))?;
            Ok(Exit::Ok)
        })
        .await
    }
}

fn lines(view: &LocalsView) -> Vec<String> {
    let LocalsView { run, step, requested, .. } = view;
    let what = printable(&format!("{} {}", view.kind, view.name));
    let part = match requested == step {
        true => String::new(),
        false => format!(", a part of step {requested}"),
    };
    let mut lines = vec![format!("step {step}{part}: {what}  ({})", printable(&view.blueprint))];
    match view.flow {
        _ if !view.branches.is_empty() => {}
        FlowForm::Table => lines.push(format!(
            "this flow is a table and has no locals; `moonswarm show {run} --step {step}` shows the step"
        )),
        FlowForm::Agent => lines.push(format!(
            "this run asks one agent and has no flow; `moonswarm show {run} --step {step}` shows the step"
        )),
        FlowForm::Script => lines.push("no call of the flow was in progress".to_owned()),
    }
    for (n, it) in view.branches.iter().enumerate() {
        if view.branches.len() > 1 {
            lines.push(String::new());
            lines.push(head(it, n == 0));
        }
        for frame in &it.frames {
            lines.extend(of_frame(frame));
        }
        if it.more_frames > 0 {
            lines.push(format!("… {} more calls", it.more_frames));
        }
    }
    if view.more_branches > 0 {
        lines.push(format!("\n… {} more branches", view.more_branches));
    }
    lines
}

fn head(branch: &LocalsBranch, is_first: bool) -> String {
    let name = branch.branch.as_deref().unwrap_or("the flow's own function");
    let waits = match branch.step {
        Some(step) if is_first => format!(", requests step {step}"),
        Some(step) => format!(", waits for step {step}"),
        None => String::new(),
    };
    format!("{}{waits}", printable(name))
}

/// A call: its place with the line of source, then its variables.
fn of_frame(frame: &LocalsFrame) -> Vec<String> {
    let function = frame.function.as_deref().unwrap_or("(function)");
    let place = format!("{}:{}", frame.file, frame.line);
    let text = frame.text.as_deref().map(|text| format!("  {}", one_line(text)));
    let mut lines = vec![format!(
        "{} at {}{}",
        printable(function),
        printable(&place),
        text.unwrap_or_default()
    )];
    let wide = frame.variables.iter().map(|it| it.name.chars().count()).max().unwrap_or(0).min(24);
    for it in &frame.variables {
        let value = one_line(&it.line(VALUE));
        lines.push(format!("  {:<8}  {:<wide$}  {value}", it.role.as_str(), printable(&it.name)));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cli::fixture,
        engine::{LocalsRole, LocalsVariable},
        protocol::Json,
    };

    fn view() -> LocalsView {
        let variable = |name: &str, role, value: &str| LocalsVariable {
            name: name.into(),
            role,
            of_type: "table".into(),
            value: Json::from_trusted(value),
        };
        let frame = LocalsFrame {
            function: Some("ask".into()),
            file: "main.lua".into(),
            line: 7,
            text: Some("ctx:run(\"e\", x)".into()),
            variables: vec![
                variable("x", LocalsRole::Argument, "{\"a\":[1,2]}"),
                variable("total", LocalsRole::Upvalue, "{\"$object\":\"ctx\"}"),
            ],
        };
        let branch = |name: Option<&str>, step| LocalsBranch {
            branch: name.map(str::to_owned),
            scope: String::new(),
            step,
            frames: vec![frame.clone()],
            more_frames: 0,
        };
        LocalsView {
            run: fixture::run_id(),
            step: 3,
            requested: 3,
            kind: "task".into(),
            name: "e".into(),
            blueprint: "it@ab".into(),
            flow: FlowForm::Script,
            branches: vec![branch(Some("map, item 2"), Some(3)), branch(None, None)],
            more_branches: 5,
            previous: Some(2),
            next: None,
        }
    }

    #[test]
    fn the_calls_are_shown_with_their_lines_and_variables() {
        let mut view = view();
        insta::assert_snapshot!(lines(&view).join("\n"), @r#"
        step 3: task e  (it@ab)

        map, item 2, requests step 3
        ask at main.lua:7  ctx:run("e", x)
          argument  x      {a: [1, 2]}
          upvalue   total  <ctx>

        the flow's own function
        ask at main.lua:7  ctx:run("e", x)
          argument  x      {a: [1, 2]}
          upvalue   total  <ctx>

        … 5 more branches
        "#);
        view.branches.clear();
        view.flow = FlowForm::Table;
        view.step = 4;
        let shown = lines(&view).join("\n");
        assert!(shown.starts_with("step 4, a part of step 3: task e  (it@ab)\n"), "{shown}");
        assert!(shown.contains("is a table and has no locals"), "{shown}");
    }
}
