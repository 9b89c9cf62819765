//! What the terminal says to somebody who made a mistake: enough to mend it.

use crate::support::Shell;

const HEAD: &str = "local swarm = require(\"swarm\")\nlocal s = swarm.schema\nreturn swarm.blueprint {\n  name = \"mine\", edition = 2,\n";

/// What `run` says to a mistake, and `check` where it says more.
fn said(keys: &str, input: &[&str]) -> String {
    let shell = Shell::new();
    shell.write("mine.lua", format!("{HEAD}{keys}}}\n"));
    let ran = shell.run(&[&["run", "mine.lua"], input].concat());
    let checked = shell.run(&["check", "mine.lua"]);
    plain(&format!(
        "$ run ({})\n{}\n$ check ({})\n{}{}",
        ran.code, ran.stderr, checked.code, checked.stdout, checked.stderr
    ))
}

/// Without what is another thing each time.
fn plain(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let line = match (line.find("run_"), line.strip_prefix("[+")) {
            (Some(at), _) => format!("{}run_…", &line[..at]),
            (_, Some(rest)) => format!("[+…{}", rest.split_once('s').unwrap_or(("", rest)).1),
            _ => line.to_owned(),
        };
        if line == "[+…] run running" {
            // Whether it is seen to run is a matter of time.
            continue;
        }
        out.push_str(without_durations(&line).trim_end());
        out.push('\n');
    }
    out
}

/// Without ` (0.2s)`.
fn without_durations(line: &str) -> String {
    let mut parts = line.split(" (");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (inside, rest) = part.split_once(')').unwrap_or((part, ""));
        let number = inside.strip_suffix('s').is_some_and(|it| it.parse::<f64>().is_ok());
        match number {
            true => out.push_str(rest),
            false => out.push_str(&format!(" ({part}")),
        }
    }
    out
}

const ECHO: &str = "  agents = { e = { operator = \"echo\" } },\n";

fn flow(code: &str) -> String {
    format!("{ECHO}  flow = function(ctx, input)\n{code}\n  end,\n")
}

#[test]
fn a_misspelt_key_and_a_wrong_type_are_shown_in_their_place_with_what_is_right() {
    let agent = |keys: &str| {
        format!(
            "  agents = {{ e = {{ operator = \"echo\", {keys} }} }},\n  flow = function(ctx) return ctx:run(\"e\") end,\n"
        )
    };
    insta::assert_snapshot!("misspelt_key", said(&agent("timout = \"5s\""), &[]));
    insta::assert_snapshot!("wrong_type", said(&agent("timeout = { 5 }"), &[]));
    insta::assert_snapshot!("no_duration", said(&agent("timeout = \"5 minutes\""), &[]));
    insta::assert_snapshot!(
        "two_mistakes",
        said(&agent("timout = \"5s\", max_concurrency = \"many\""), &[])
    );
}

#[test]
fn an_agent_that_is_missing_is_named_with_those_that_there_are() {
    insta::assert_snapshot!("missing_agent", said(&flow("    return ctx:run(\"ee\")"), &[]));
    let computed = "    local name = \"rev\" .. \"iewer\"\n    return ctx:run(name)";
    insta::assert_snapshot!("missing_agent_at_run_time", said(&flow(computed), &[]));
    insta::assert_snapshot!(
        "missing_operator",
        said(
            "  agents = { e = { operator = \"main_ai\" } },\n  flow = function(ctx) return ctx:run(\"e\") end,\n",
            &[]
        )
    );
}

#[test]
fn a_loop_without_an_end_is_named_with_its_line() {
    let code = "    local n = 0\n    while n >= 0 do\n      n = n + 1\n    end\n    return n";
    insta::assert_snapshot!("endless_flow", said(&flow(code), &[]));
    let shell = Shell::new();
    let text = "local n = 0\nwhile n >= 0 do\n  n = n + 1\nend\nreturn n\n";
    shell.write("mine.lua", format!("local swarm = require(\"swarm\")\n{text}"));
    let done = shell.run(&["run", "mine.lua"]).exits(3);
    insta::assert_snapshot!("endless_file", plain(&done.stderr));
}

#[test]
fn a_mistake_of_the_script_is_said_with_its_line() {
    insta::assert_snapshot!(
        "index_nil",
        said(&flow("    local got = ctx:run(\"e\", { a = 1 })\n    return got.b.c"), &[])
    );
    insta::assert_snapshot!("dot_call", said(&flow("    return ctx.run(\"e\", 1)"), &[]));
    insta::assert_snapshot!("unknown_method", said(&flow("    return ctx:runn(\"e\", 1)"), &[]));
    insta::assert_snapshot!(
        "unknown_option",
        said(&flow("    return ctx:run(\"e\", 1, { timeot = 3 })"), &[])
    );
    insta::assert_snapshot!("syntax", said("  agents = { e = { operator = \"echo\" }\n", &[]));
}

#[test]
fn an_input_that_does_not_fit_says_which_part() {
    let keys = format!(
        "  input = s.object {{ issue = s.string, rounds = s.integer {{ default = 3 }} }},\n{}",
        flow("    return ctx:run(\"e\", input)")
    );
    let only_run = |input: &[&str]| {
        let all = said(&keys, input);
        all.split("\n$ check").next().unwrap().to_owned()
    };
    insta::assert_snapshot!("input_missing", only_run(&[]));
    insta::assert_snapshot!("input_type", only_run(&["issue=x", "rounds=many"]));
    insta::assert_snapshot!("input_unknown", only_run(&["issue=x", "round=3"]));
}

#[test]
fn where_nothing_is_there_the_next_step_is_said() {
    let shell = Shell::new();
    let mut all = String::new();
    for args in [
        &["run", "none.lua"][..],
        &["run", "nobody"],
        &["check", "none.lua"],
        &["test"],
        &["test", "none_test.lua"],
        &["show", "last"],
        &["doc", "ctx:rum"],
        &["graph", "none.lua"],
    ] {
        let done = shell.run(args);
        all.push_str(&format!("$ {} ({})\n{}\n", args.join(" "), done.code, done.stderr));
    }
    insta::assert_snapshot!("nothing_there", plain(&all));
}
