//! The cost of writing for this host: `cargo bench --bench authoring`.
//!
//! Three figures, each with what it is to stay under: checking a blueprint of 1,000 lines (50 ms), what
//! its length adds to the start of a run (1 ms), and a step of a flow that is a table beside a step of
//! one that is a function (twice). It ends with 1 if one of them is over.

use std::{
    fmt::Write as _,
    future::pending,
    process::ExitCode,
    time::{Duration, Instant},
};

use moonswarm::{
    blueprint::Bundle,
    engine::{Program, StartRun, WaitFor},
    host::{self, Host, HostConfig},
    lua,
    protocol::Json,
};
use serde_json::json;

const LINES: usize = 1_000;
const CHECKS: usize = 41;
const STARTS: usize = 401;
const STEPS: usize = 400;
const FLOWS: usize = 31;

/// A blueprint of about 1,000 lines, with agents, schemas, templates, helpers and a flow that ends at
/// once if its input says so.
fn long(name: &str) -> String {
    let mut text = format!(
        "local swarm = require(\"swarm\")\nlocal s = swarm.schema\nreturn swarm.blueprint {{\n  name = \"{name}\",\n  agents = {{\n"
    );
    let agents = 60;
    for n in 0..agents {
        let _ = write!(
            text,
            "    agent{n} = {{\n      operator = \"process\",\n      command = {{ \"work\", \"{{{{ step }}}}\", \"--round\", \"{{{{ attempt }}}}\" }},\n      \
             input = s.object {{ step = s.string, round = s.integer {{ default = {n} }} }},\n      \
             output = s.object {{ verdict = s.enum {{ \"pass\", \"blocked\" }}, notes = s.array(s.string) }},\n      \
             timeout = \"20m\", retry = {{ max_attempts = 3, backoff = \"2s\" }},\n    }},\n"
        );
    }
    text.push_str("  },\n  flow = function(ctx, input)\n    if not input.work then return 1 end\n    local got = {}\n");
    let mut n = 0;
    while text.lines().count() < LINES - 3 {
        let _ = writeln!(
            text,
            "    got[{n}] = ctx:run(\"agent{}\", {{ step = \"part {n}\" }}).verdict",
            n % agents
        );
        n += 1;
    }
    text.push_str("    return got\n  end,\n}\n");
    text
}

fn short(name: &str) -> String {
    format!(
        "local swarm = require(\"swarm\")\nreturn swarm.blueprint {{ name = \"{name}\", agents = {{ e = {{ operator = \"echo\" }} }},\n\
         flow = function(ctx, input) if not input.work then return 1 end return ctx:run(\"e\") end }}\n"
    )
}

fn script() -> String {
    format!(
        "local swarm = require(\"swarm\")\nreturn swarm.blueprint {{ name = \"script\", agents = {{ e = {{ operator = \"echo\" }} }},\n\
         flow = function(ctx)\n  local got\n  for round = 1, {STEPS} do\n    got = ctx:run(\"e\", {{ round = round }})\n  end\n  return got\nend }}\n"
    )
}

fn table() -> String {
    format!(
        "local swarm = require(\"swarm\")\nlocal n = swarm.nodes\nreturn swarm.blueprint {{ name = \"table\", agents = {{ e = {{ operator = \"echo\" }} }},\n\
         flow = n.loop {{ max = {STEPS}, body = n.step {{ id = \"got\", agent = \"e\", input = {{ round = \"{{{{ round }}}}\" }} }} }} }}\n"
    )
}

/// The middle of several measurements.
fn median(mut all: Vec<Duration>) -> Duration {
    all.sort();
    all[all.len() / 2]
}

fn checking() -> Duration {
    let operators = host::builtin_operators();
    let text = long("long");
    let lines = text.lines().count();
    assert!((LINES - 5..=LINES + 5).contains(&lines), "{lines} lines");
    let once = || {
        let bundle = Bundle::from_source("long.lua", text.as_str()).expect("it is a bundle");
        let since = Instant::now();
        let compiled = lua::Program::compile(bundle, &operators, &lua::Limits::default());
        let took = since.elapsed();
        let (_, findings) = compiled.expect("it compiles");
        assert!(findings.is_empty(), "{findings:?}");
        took
    };
    median((0..CHECKS).map(|_| once()).collect())
}

/// Measures the time of each run of a stored blueprint, from its start to its end.
async fn runs(host: &Host, name: &str, source: &str, times: usize) -> Duration {
    let owner = host.owner().expect("the host is ours");
    let bundle = Bundle::from_source("bench.lua", source).expect("it is a bundle");
    let put = host.engine().blueprints().put_blueprint(&owner, name.to_owned(), bundle, None).await;
    put.expect("it is stored");
    let mut all = Vec::with_capacity(times);
    for _ in 0..times {
        let start = StartRun {
            input: Json::from(&json!({})),
            ..StartRun::new(Program::Named(name.to_owned()))
        };
        let since = Instant::now();
        let run = host.engine().start_and_wait(&owner, start, None, WaitFor::Ended, pending());
        let run = run.await.expect("it is started").view().expect("the owner reads every run");
        all.push(since.elapsed());
        assert!(run.error.is_none(), "{:?}", run.error);
    }
    median(all)
}

#[tokio::main]
async fn main() -> ExitCode {
    // Cargo says so to what it benches; to build and list tests measures nothing.
    if !std::env::args().any(|arg| arg == "--bench") {
        return ExitCode::SUCCESS;
    }
    let data = tempfile::tempdir().expect("a directory");
    let config = HostConfig { shards: 1, ..HostConfig::new(data.path()) };
    let host = Host::open(config).await.expect("a host");
    let checked = checking();
    // One after the other, and the quieter of two rounds: a disk is not the same all the time.
    let (mut plain, mut added) = (Duration::MAX, Duration::MAX);
    for _ in 0..2 {
        plain = plain.min(runs(&host, "short", &short("short"), STARTS).await);
        added = added.min(runs(&host, "long", &long("long"), STARTS).await);
    }
    let added = added.saturating_sub(plain);
    let (mut by_script, mut by_table) = (Duration::MAX, Duration::MAX);
    for _ in 0..2 {
        by_script = by_script.min(runs(&host, "script", &script(), FLOWS).await);
        by_table = by_table.min(runs(&host, "table", &table(), FLOWS).await);
    }
    host.stop(Duration::from_secs(5)).await;
    let steps = u32::try_from(STEPS).expect("few");
    let times = by_table.as_secs_f64() / by_script.as_secs_f64();
    let rows = [
        (format!("check {LINES} lines: {checked:.1?}"), checked <= Duration::from_millis(50)),
        (
            format!("start a run of them: {added:.1?} more than the {plain:.1?} of a short one"),
            added <= Duration::from_millis(1),
        ),
        (
            format!(
                "a step of a table: {times:.2} times a step of a script ({:.1?} to {:.1?})",
                by_table / steps,
                by_script / steps
            ),
            times <= 2.0,
        ),
    ];
    let mut good = true;
    for (row, holds) in rows {
        println!("{} {row}", if holds { "ok  " } else { "OVER" });
        good &= holds;
    }
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
