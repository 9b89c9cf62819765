//! A run as a tree: its steps in the order of the flow, branches indented.

use std::collections::HashSet;

use console::{Style, measure_text_width};

use super::{
    said::LiveText,
    text::{cut, printable},
    time::{elapsed, since_ms, unix_ms},
    waits::command,
};
use crate::{
    engine::{RunView, StepView, WaitingOn},
    journal::Usage,
    protocol::plain::one_line,
};

/// A join with more branches than this is shown as counts, with those that failed or are open.
const WIDE: usize = 20;
/// The maximum number of failed branches of a wide join that are shown, and of open ones.
const MOST_FAILED: usize = 20;
const MOST_OPEN: usize = 3;
/// Columns of an error that a narrow terminal leaves room for.
const ERROR: usize = 40;
/// Waiting that is shorter than this is not shown.
const SHORT_MS: u64 = 100;

/// Draws steps; `now_ms` is what running ones are measured against.
#[derive(Debug, Clone, Copy)]
pub struct Tree<'s> {
    /// The time now, in Unix milliseconds.
    pub now_ms: u64,
    /// True if colors are used.
    pub colors: bool,
    /// True if every branch of a wide join is shown.
    pub all: bool,
    /// The text of models in progress, shown below their steps.
    pub said: Option<&'s LiveText>,
    /// The maximum number of columns of a line.
    pub width: Option<usize>,
}

/// A line of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The line.
    pub text: String,
    /// True if the step failed.
    pub is_failed: bool,
}

impl Tree<'_> {
    /// One line a step, or a wide join.
    pub fn lines<'a>(&self, steps: impl IntoIterator<Item = &'a StepView>) -> Vec<String> {
        self.rows(steps).into_iter().map(|row| row.text).collect()
    }

    /// The same, with what each line is.
    pub fn rows<'a>(&self, steps: impl IntoIterator<Item = &'a StepView>) -> Vec<Row> {
        let mut placed: Vec<Placed<'_>> = steps.into_iter().map(Placed::new).collect();
        let composites: HashSet<u32> = placed.iter().filter_map(|at| at.step.parent).collect();
        let open = |at: &&Placed<'_>| matches!(at.state, "pending" | "processing");
        let busy: HashSet<u32> =
            placed.iter().filter(open).filter_map(|at| at.step.parent).collect();
        for at in &mut placed {
            // What it does, its members do.
            if at.state == "pending" && busy.contains(&at.step.seq) {
                at.state = "processing";
            }
        }
        placed.sort_by_cached_key(|at| at.order(composites.contains(&at.step.seq)));
        let mut rows = Vec::new();
        self.draw(&placed, 0, &mut Margin::new(2), &mut rows);
        rows
    }

    /// The line of one step, without its place in the flow.
    pub fn step_line(&self, step: &StepView) -> String {
        self.step(&Placed::new(step), "").text
    }

    /// The header: what it is, where it stands, how far it is.
    pub fn header(&self, run: &RunView) -> String {
        let status = self.paint(run.status.as_str(), run.status.as_str());
        let until = run.ended_at.as_deref().map_or(self.now_ms, unix_ms);
        let took = elapsed(since_ms(&run.created_at, until));
        let text = match &run.status_text {
            Some(text) => format!(" · {}", printable(text)),
            None => String::new(),
        };
        let progress = match run.progress {
            Some(share) => format!(" · {:.0}%", (share * 100.0).clamp(0.0, 100.0)),
            None => String::new(),
        };
        format!(
            "{} {status}{text}{progress} · {}/{} steps · {took}",
            printable(&run.blueprint),
            run.steps_done,
            run.steps
        )
    }

    fn draw(&self, steps: &[Placed<'_>], depth: usize, margin: &mut Margin, rows: &mut Vec<Row>) {
        let mut rest = steps;
        while let Some(first) = rest.first() {
            let Some(&(join, _)) = first.path.get(depth) else {
                rows.push(self.step(first, &margin.next()));
                rows.extend(self.said(first.step, &margin.next()));
                rest = &rest[1..];
                continue;
            };
            let in_join = |step: &&Placed<'_>| step.path.get(depth).is_some_and(|at| at.0 == join);
            let size = rest.iter().take_while(|step| in_join(step)).count();
            let (branches, after) = rest.split_at(size);
            self.join(branches, depth, margin, rows);
            rest = after;
        }
    }

    fn join(&self, steps: &[Placed<'_>], depth: usize, margin: &mut Margin, rows: &mut Vec<Row>) {
        let same = |a: &Placed<'_>, b: &Placed<'_>| a.path[depth].1 == b.path[depth].1;
        let branches: Vec<_> = steps.chunk_by(same).collect();
        let is_wide = branches.len() > WIDE && !self.all;
        let heading = match (is_wide, branches.len()) {
            (true, _) => self.counts(&branches),
            (false, 1) => self.paint("heading", "1 branch"),
            (false, n) => self.paint("heading", &format!("{n} branches")),
        };
        rows.push(Row::plain(format!("{}{heading}", margin.next())));
        let (mut failed, mut open, mut shown) = (0, 0, 0);
        for branch in &branches {
            if is_wide {
                let has_failed = branch.iter().any(|at| at.state == "failed");
                let is_open = !has_failed
                    && branch.iter().any(|at| matches!(at.state, "processing" | "pending"));
                failed += usize::from(has_failed);
                open += usize::from(is_open);
                if !(has_failed && failed <= MOST_FAILED || is_open && open <= MOST_OPEN) {
                    continue;
                }
            }
            shown += 1;
            // Branches count from 1, as lists in Lua do.
            let label = format!("[{}]", u64::from(branch[0].path[depth].1) + 1);
            let mut inner = margin.deeper(&self.paint("heading", &label), label.len());
            self.draw(branch, depth + 1, &mut inner, rows);
        }
        if is_wide && shown < branches.len() {
            let more = format!("{} more: --all", branches.len() - shown);
            rows.push(Row::plain(format!("{}  {}", margin.next(), self.paint("heading", &more))));
        }
    }

    fn counts(&self, branches: &[&[Placed<'_>]]) -> String {
        let of = |state: &str| {
            let is = |branch: &&&[Placed<'_>]| branch_state(branch) == state;
            branches.iter().filter(is).count()
        };
        let mut shown = vec![format!("{} branches", branches.len())];
        for state in ["completed", "processing", "pending", "failed", "canceled"] {
            match of(state) {
                0 => {}
                n => shown.push(format!("{n} {}", self.paint(state, state))),
            }
        }
        shown.join(" · ")
    }

    fn step(&self, at: &Placed<'_>, margin: &str) -> Row {
        let Placed { step, state, .. } = *at;
        let number = self.paint("heading", &format!("#{}", step.seq));
        let name = match step.kind.as_str() {
            // What a flow does beside its work.
            "state" | "local" => self.paint("heading", &title(step)),
            _ => title(step),
        };
        let head = format!("{margin}{number} {} {name}", self.paint(state, mark(state)));
        let mut tail = String::new();
        let took = match step.ran_ms.or(step.duration_ms) {
            Some(ms) => Some(ms),
            None if state == "processing" || step.kind == "timer" => {
                let from = step.started_at.as_ref().unwrap_or(&step.scheduled_at);
                Some(since_ms(from, self.now_ms))
            }
            None => None,
        };
        if let Some(ms) = took {
            tail.push_str(&format!("  {}", elapsed(ms)));
        }
        if let Some(queued) = step.queued_ms.filter(|queued| *queued >= SHORT_MS) {
            tail.push_str(&format!(" (+{} waiting)", elapsed(queued)));
        }
        if let Some(usage) = &step.usage {
            tail.push_str(&format!("  {}", used(usage)));
        }
        if step.attempts > 1 {
            tail.push_str(&format!("  attempt {}", step.attempts));
        }
        let mut error = String::new();
        if let Some(failure) = &step.error {
            let text = format!("{}: {}", printable(&failure.kind), printable(&failure.message));
            error = format!("  {}", self.paint("failed", &text));
        }
        let text = match self.width {
            None => format!("{head}{tail}{error}"),
            // How long it took, and the beginning of what went wrong, stay where the name is long.
            Some(width) => {
                let kept = measure_text_width(&tail) + measure_text_width(&error).min(ERROR);
                let room = width.saturating_sub(kept).max(width / 3);
                cut(&format!("{}{tail}{error}", cut(&head, room)), width)
            }
        };
        Row { text, is_failed: state == "failed" }
    }

    /// Returns the text in progress of the step's model.
    fn said(&self, step: &StepView, margin: &str) -> Option<Row> {
        let tail = self.said?.tail(step.seq)?;
        Some(Row::plain(format!("{margin}  {}", self.paint("said", &tail))))
    }

    fn paint(&self, state: &str, text: &str) -> String {
        let style = match state {
            "completed" => Style::new().green(),
            "failed" => Style::new().red(),
            "processing" | "running" => Style::new().cyan(),
            "waiting" | "paused" | "compensating" => Style::new().yellow(),
            _ => Style::new().dim(),
        };
        style.force_styling(self.colors).apply_to(text).to_string()
    }
}

/// Returns the reported usage: `1200 + 340 tokens, $0.42`.
pub fn used(usage: &Usage) -> String {
    let mut parts = Vec::new();
    match (usage.input_tokens, usage.output_tokens) {
        (Some(input), Some(output)) => parts.push(format!("{input} + {output} tokens")),
        (Some(input), None) => parts.push(format!("{input} tokens in")),
        (None, Some(output)) => parts.push(format!("{output} tokens out")),
        (None, None) => {}
    }
    parts.extend(usage.cost.as_deref().map(|cost| format!("${}", printable(cost))));
    parts.join(", ")
}

/// Returns the waits of a run, one line each, with the command that moves it.
pub fn waiting(run: &RunView, on: &WaitingOn, now_ms: u64) -> String {
    let what = printable(&on.to_string());
    let what = match on.kind.as_str() {
        // Their text says what they are.
        "signal" | "child" | "timer" => what,
        "resume" => format!("somebody to resume it: {what}"),
        "task" if what.starts_with("a senior's answer") => what,
        kind => format!("{kind} {what}"),
    };
    let left = on.until.as_deref().map_or_else(String::new, |until| {
        format!(", {} left", elapsed(unix_ms(until).saturating_sub(now_ms)))
    });
    let since = elapsed(since_ms(&on.since, now_ms));
    let mut line = format!("waiting for {what} since {since}{left}");
    if let Some(command) = command(run, on) {
        line.push_str(&format!("\n  → {}", one_line(&command)));
    }
    line
}

/// One step as it is named in every list.
pub(super) fn title(step: &StepView) -> String {
    let kind = match step.kind.as_str() {
        "task" | "state" | "local" => String::new(),
        "model_call" => "model ".to_owned(),
        "tool_call" => "tool ".to_owned(),
        other => format!("{other} "),
    };
    if let Some(operator) = &step.operator {
        return format!("{} by {}", printable(&step.name), printable(operator));
    }
    // A flow is free in the names of what it waits for; a timer has none but its kind.
    let named = match step.name == step.kind {
        true => step.kind.clone(),
        false => format!("{kind}{}", printable(&step.name)),
    };
    match step.summary.as_deref().map(printable) {
        Some(summary) if !summary.is_empty() => format!("{named} · {summary}"),
        Some(_) | None => named,
    }
}

struct Placed<'a> {
    step: &'a StepView,
    /// Its state as it is shown.
    state: &'a str,
    path: Vec<(u32, u32)>,
}

impl<'a> Placed<'a> {
    fn new(step: &'a StepView) -> Self {
        let part = |part: &str| {
            let (join, branch) = part.split_once('.')?;
            Some((join.parse().ok()?, branch.parse().ok()?))
        };
        Self { step, state: &step.state, path: step.scope.split('/').filter_map(part).collect() }
    }

    /// Branches of a join come before the step that follows it in the same scope; the members of a
    /// composite come after its own line.
    fn order(&self, is_composite: bool) -> (Vec<(u32, u32)>, u32) {
        let mut order = self.path.clone();
        order.push((self.step.index, if is_composite { 0 } else { u32::MAX }));
        (order, self.step.seq)
    }
}

/// A branch is as far as the step that holds it up.
fn branch_state<'a>(branch: &[Placed<'a>]) -> &'a str {
    let has = |state: &str| branch.iter().map(|at| at.state).find(|it| *it == state);
    ["processing", "pending", "failed", "canceled"].into_iter().find_map(has).unwrap_or("completed")
}

/// The margin of the lines of a branch: its label before the first.
struct Margin {
    first: Option<String>,
    columns: usize,
}

impl Margin {
    fn new(columns: usize) -> Self {
        Self { first: None, columns }
    }

    fn next(&mut self) -> String {
        self.first.take().unwrap_or_else(|| " ".repeat(self.columns))
    }

    /// The margin of a branch; its label is so many columns wide.
    fn deeper(&self, label: &str, wide: usize) -> Self {
        let columns = self.columns + 2;
        let first = format!("{}{label} ", " ".repeat(columns));
        Self { first: Some(first), columns: columns + wide + 1 }
    }
}

impl Row {
    fn plain(text: String) -> Self {
        Self { text, is_failed: false }
    }
}

fn mark(state: &str) -> &'static str {
    match state {
        "completed" => "✓",
        "failed" => "✗",
        "canceled" => "⊘",
        "processing" => "●",
        _ => "○",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cli::{
            fixture::{self, run, step},
            render::text::LONGEST,
        },
        engine::{FailureView, Subject},
        protocol::TaskId,
        store::RunStatus,
    };

    const TREE: Tree<'_> =
        Tree { now_ms: 1_767_225_605_000, colors: false, all: false, said: None, width: None };

    fn failure(kind: &str, message: &str) -> FailureView {
        FailureView {
            kind: kind.into(),
            message: message.into(),
            step: None,
            agent: None,
            attempt: None,
            retryable: false,
            data: None,
        }
    }

    #[test]
    fn branches_stand_indented_where_the_join_is() {
        let mut coder = step(3, "1.1", 0, "processing");
        coder.attempts = 2;
        let mut tests = step(5, "1.1/1.0", 0, "failed");
        tests.error = Some(failure("process", "exit code 1\n\u{1b}[31mboom"));
        let mut timer = step(6, "", 2, "pending");
        timer.kind = "timer".into();
        let steps =
            [step(1, "", 0, "completed"), step(2, "1.0", 0, "completed"), coder, tests, timer];
        insta::assert_snapshot!(TREE.lines(&steps).join("\n"), @r"
          #1 ✓ agent1  0.8s
          2 branches
            [1] #2 ✓ agent2  0.8s
            [2] #3 ● agent3  5.0s  attempt 2
                1 branch
                  [1] #5 ✗ agent5  process: exit code 1  [31mboom
          #6 ○ timer agent6  5.0s
        ");
    }

    #[test]
    fn in_a_narrow_terminal_the_name_gives_way_and_the_time_stays() {
        let mut long = step(1, "", 0, "completed");
        long.summary = Some("o".repeat(90));
        let mut failed = step(2, "", 1, "failed");
        failed.summary = Some("p".repeat(90));
        failed.error = Some(failure("process", &"exit code 1 ".repeat(20)));
        let tree = Tree { width: Some(79), ..TREE };
        let lines = tree.lines(&[long, failed]);
        assert!(lines[0].ends_with("ooo…  0.8s"), "{lines:?}");
        assert!(lines[1].contains("ppp…  process: exit code 1"), "{lines:?}");
        assert!(lines.iter().all(|line| measure_text_width(line) <= 79), "{lines:?}");
    }

    #[test]
    fn work_and_waiting_are_told_apart() {
        let mut waited = step(1, "", 0, "completed");
        (waited.ran_ms, waited.queued_ms, waited.duration_ms) =
            (Some(20), Some(1_400), Some(1_420));
        let mut at_once = step(2, "", 1, "completed");
        (at_once.ran_ms, at_once.queued_ms) = (Some(800), Some(3));
        insta::assert_snapshot!(TREE.lines(&[waited, at_once]).join("\n"), @r"
        #1 ✓ agent1  0.0s (+1.4s waiting)
        #2 ✓ agent2  0.8s
        ");
    }

    #[test]
    fn a_wide_join_is_shown_as_counts() {
        let mut steps: Vec<_> =
            (0..30).map(|n| step(n + 2, &format!("1.{n}"), 0, "completed")).collect();
        steps[3].state = "failed".into();
        steps[4].state = "processing".into();
        steps.push(step(1, "", 0, "completed"));
        steps.push(step(99, "", 2, "pending"));
        insta::assert_snapshot!(TREE.lines(&steps).join("\n"), @r"
          #1 ✓ agent1  0.8s
          30 branches · 28 completed · 1 processing · 1 failed
            [4] #5 ✗ agent5  0.8s
            [5] #6 ● agent6  0.8s
            28 more: --all
          #99 ○ agent99
        ");
        assert_eq!(Tree { all: true, ..TREE }.lines(&steps).len(), 33);
    }

    #[test]
    fn what_a_model_says_stands_below_its_step() {
        let mut said = LiveText::default();
        let delta = r#"{"step":2,"attempt":1,"agent":"a","delta":
            {"type":"text","item":0,"part":0,"delta":"Once upon a"}}"#;
        said.hear(&crate::engine::EventView {
            seq: None,
            kind: "model.delta".into(),
            at: String::new(),
            data: crate::protocol::Json::parse(delta).unwrap(),
        });
        let steps = [step(1, "", 0, "completed"), step(2, "", 1, "processing")];
        let tree = Tree { said: Some(&said), ..TREE };
        insta::assert_snapshot!(tree.lines(&steps).join("\n"), @r"
          #1 ✓ agent1  0.8s
          #2 ● agent2  5.0s
            Once upon a
        ");
    }

    #[test]
    fn the_header_says_how_far_it_is() {
        let shown = RunView {
            status_text: Some("reviewing".into()),
            progress: Some(0.5),
            steps: 4,
            steps_done: 2,
            ..run(RunStatus::Running)
        };
        assert_eq!(TREE.header(&shown), "review running · reviewing · 50% · 2/4 steps · 5.0s");
    }

    #[test]
    fn what_waits_for_its_members_is_at_work_while_they_are() {
        let mut member = step(2, "", 1, "processing");
        member.parent = Some(1);
        let steps = [step(1, "", 0, "pending"), member];
        insta::assert_snapshot!(TREE.lines(&steps).join("\n"), @r"
          #1 ● agent1  5.0s
          #2 ● agent2  5.0s
        ");
    }

    #[test]
    fn names_that_a_flow_made_up_steer_nothing() {
        let mut signal = step(1, "", 0, "pending");
        (signal.kind, signal.name) = ("signal".into(), "go\u{1b}[2J\nnow\u{202e}".into());
        let mut timer = step(2, "", 1, "completed");
        (timer.kind, timer.name) = ("timer".into(), "timer".into());
        assert_eq!(
            TREE.lines(&[signal, timer]),
            ["  #1 ○ signal go [2J now ", "  #2 ✓ timer  0.8s"]
        );
        let long = printable(&"é".repeat(900));
        assert_eq!(long.chars().count(), LONGEST + 1);
    }

    #[test]
    fn a_signal_a_timer_and_a_pause_say_what_they_want() {
        let on = |kind: &str, subject: Subject, until: Option<&str>| WaitingOn {
            kind: kind.into(),
            subject,
            since: "2026-01-01T00:00:00.000Z".into(),
            until: until.map(str::to_owned),
        };
        let signal = Subject { name: Some("go".into()), ..Subject::default() };
        let differs = "it differs\n\u{1b}[2J";
        let rests = Subject { reason: Some(differs.into()), ..Subject::default() };
        let all = [
            on("signal", signal, None),
            on("timer", Subject::default(), Some("2026-01-01T00:01:00.000Z")),
            on("resume", rests, None),
        ];
        let run = fixture::run(RunStatus::Waiting);
        let shown = all.map(|on| waiting(&run, &on, TREE.now_ms)).join("\n");
        let shown = shown.replace(&run.id.to_string(), "RUN");
        insta::assert_snapshot!(shown, @r#"
        waiting for signal "go" since 5.0s
          → moonswarm signal RUN go '<json>'
        waiting for a time since 5.0s, 55s left
        waiting for somebody to resume it: it differs  [2J since 5.0s
          → moonswarm resume RUN
        "#);
    }

    #[test]
    fn what_is_waited_for_comes_with_its_command() {
        let task = TaskId::new(7, 1, 1_767_225_600_000);
        let on = WaitingOn {
            kind: "task".into(),
            subject: Subject {
                task: Some(task),
                name: Some("ship".into()),
                operator: Some("human".into()),
                operator_kind: Some("human".into()),
                ..Subject::default()
            },
            since: "2026-01-01T00:00:00.000Z".into(),
            until: None,
        };
        let shown = waiting(&fixture::run(RunStatus::Waiting), &on, TREE.now_ms);
        insta::assert_snapshot!(shown.replace(&task.to_string(), "TASK"), @r"
        waiting for task ship (human) since 5.0s
          → moonswarm approve TASK
        ");
    }
}
