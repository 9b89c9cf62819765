//! Coding agents: how soon they get the list of tools, and how fast a task goes round through tools.

use std::{
    cell::Cell,
    path::Path,
    rc::Rc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use serde_json::{Value, json as object};

use crate::{
    client::{Client, json},
    daemon::Daemon,
    drive,
};

/// The number of blueprints that are stored while tools are listed.
const BLUEPRINTS: usize = 1_000;
/// Every blueprint whose number is a multiple of this is a tool.
const TOOLS_EACH: usize = 20;
/// The number of clients that work at the same time.
const AT_ONCE: usize = 64;
/// The number of steps of a run.
const ROUNDS: usize = 500;

/// The figures of this load. A round is `report_task` and the `next_task` after it.
#[derive(Serialize)]
pub struct Mcp {
    /// The number of stored blueprints.
    pub blueprints: usize,
    /// The number of listed tools.
    pub tools: usize,
    /// The time of the first list after the blueprints were stored.
    pub first_list_ms: f64,
    /// The time of the first list after the daemon was started again.
    pub started_list_ms: f64,
    /// The median time of a list.
    pub list_p50_ms: f64,
    /// The 99th percentile of the times of lists.
    pub list_p99_ms: f64,
    /// The median time of a round of one client alone.
    pub round_p50_ms: f64,
    /// The 99th percentile of the times of these rounds.
    pub round_p99_ms: f64,
    /// The number of clients that work at the same time.
    pub at_once: usize,
    /// The rounds a second of these clients together.
    pub rounds_per_second: f64,
    /// The processor time of the daemon for each of these rounds.
    pub daemon_us: Option<f64>,
    /// The same of this client, which shares the cores of the daemon.
    pub client_us: f64,
}

fn rounds() -> String {
    let source = r#"local swarm = require("swarm")
return swarm.blueprint {
  name = "rounds",
  agents = { coder = { operator = "main-ai", worker = { subagent_type = "coder" } } },
  flow = function(ctx, input)
    for i = 1, input.rounds do ctx:run("coder", i) end
    return input.rounds
  end,
}"#;
    object!({ "source": source }).to_string()
}

fn stored(number: usize) -> String {
    let tool = if number.is_multiple_of(TOOLS_EACH) { "mcp = true," } else { "" };
    let source = format!(
        "local swarm = require(\"swarm\")\nlocal s = swarm.schema\nreturn swarm.blueprint {{\n\
         name = \"b{number}\", {tool} description = \"Does the work number {number}.\",\n\
         input = s.object {{ issue = s.string, files = s.array(s.string), depth = s.integer }},\n\
         agents = {{ e = {{ operator = \"echo\" }} }},\n\
         flow = function(ctx, input) return ctx:run(\"e\", input) end,\n}}"
    );
    object!({ "source": source }).to_string()
}

/// Stores blueprints, lists tools, and lets tasks go round.
pub async fn measure(binary: &Path, dir: &Path, time: Duration) -> Result<Mcp> {
    let daemon = Daemon::start(binary, dir)?;
    let mut client = Client::connect(daemon.address(), daemon.token()).await?;
    let tokens = drive::tokens(&mut client, AT_ONCE).await?;
    let put = |name: &str| format!("/v1/blueprints/{name}");
    json(client.send("PUT", &put("rounds"), &rounds()).await?).context("publish")?;
    for number in 1..BLUEPRINTS {
        let path = put(&format!("b{number}"));
        json(client.send("PUT", &path, &stored(number)).await?).context("publish")?;
    }

    let mut lists = Vec::new();
    let (mut began, mut tools) = (Instant::now(), 0);
    let mut first_list_ms = 0.0;
    while lists.len() < 50 || began.elapsed() < time {
        let sent = Instant::now();
        let listed = client.send("POST", "/mcp", &message("tools/list", &object!({}))).await?;
        let took = sent.elapsed();
        if tools == 0 {
            let listed = json(listed)?;
            tools = listed["result"]["tools"].as_array().context("tools")?.len();
            first_list_ms = took.as_secs_f64() * 1e3;
            began = Instant::now();
        } else {
            ensure!(listed.0 == 200, "{}", listed.0);
            lists.push(took);
        }
    }

    let mut agent = Agent::join(&daemon, &tokens[0]).await?;
    let mut rounds = Vec::new();
    let began = Instant::now();
    while began.elapsed() < time {
        let mut task = agent.start().await?;
        for _ in 1..ROUNDS {
            let sent = Instant::now();
            agent.report(&task).await?;
            task = agent.next().await?;
            rounds.push(sent.elapsed());
        }
        agent.report(&task).await?;
    }
    let together = at_once(&daemon, &tokens, time).await?;
    drop((daemon, client, agent));
    let started_list_ms = first_list(binary, dir).await?;
    let (lists, rounds) = (drive::sorted(lists), drive::sorted(rounds));
    Ok(Mcp {
        blueprints: BLUEPRINTS,
        tools,
        first_list_ms,
        started_list_ms,
        list_p50_ms: lists[lists.len() / 2],
        list_p99_ms: lists[lists.len() * 99 / 100],
        round_p50_ms: rounds[rounds.len() / 2],
        round_p99_ms: rounds[rounds.len() * 99 / 100],
        at_once: AT_ONCE,
        rounds_per_second: together.per_second,
        daemon_us: together.daemon_us,
        client_us: together.client_us,
    })
}

/// Starts the daemon again, and times the first list of tools: as soon as it listens.
async fn first_list(binary: &Path, dir: &Path) -> Result<f64> {
    let daemon = Daemon::start(binary, dir)?;
    let mut client = Client::connect(daemon.address(), daemon.token()).await?;
    let sent = Instant::now();
    json(client.send("POST", "/mcp", &message("tools/list", &object!({}))).await?)?;
    Ok(sent.elapsed().as_secs_f64() * 1e3)
}

/// A coding agent that uses tools alone.
struct Agent {
    client: Client,
    session: String,
    after: Value,
}

impl Agent {
    async fn join(daemon: &Daemon, token: &str) -> Result<Self> {
        let mut client = Client::connect(daemon.address(), token).await?;
        let opened = call(&mut client, "open_session", &object!({})).await?;
        let session = opened["session"].as_str().context("a session")?.to_owned();
        Ok(Self { client, session, after: Value::Null })
    }

    /// Starts a run whose every task is this agent's, and takes the first.
    async fn start(&mut self) -> Result<Value> {
        let body = object!({ "blueprint": "rounds", "delegate": self.session,
            "input": { "rounds": ROUNDS } });
        json(self.client.send("POST", "/v1/runs", &body.to_string()).await?)
            .context("start a run")?;
        self.next().await
    }

    async fn next(&mut self) -> Result<Value> {
        loop {
            let mut arguments = object!({ "session": self.session });
            if !self.after.is_null() {
                arguments["after"] = self.after.clone();
            }
            let mut next = call(&mut self.client, "next_task", &arguments).await?;
            self.after = next["after"].take();
            if next["kind"] == "task" {
                return Ok(next["task"]["task"].take());
            }
        }
    }

    async fn report(&mut self, task: &Value) -> Result<()> {
        let arguments = object!({ "session": self.session, "task": task, "output": 1 });
        call(&mut self.client, "report_task", &arguments).await.map(drop)
    }
}

/// The rounds of many agents.
struct Together {
    per_second: f64,
    daemon_us: Option<f64>,
    client_us: f64,
}

/// Returns the processor time of this process.
fn own_cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

/// Lets agents go round, each with a token and a connection, and counts the rounds.
async fn at_once(daemon: &Daemon, tokens: &[String], time: Duration) -> Result<Together> {
    let count = Rc::new(Cell::new(0_u64));
    let mut agents = Vec::new();
    for token in tokens.iter().take(AT_ONCE) {
        agents.push(Agent::join(daemon, token).await?);
    }
    let until = Instant::now() + time;
    let mut workers = Vec::new();
    for mut agent in agents {
        let count = Rc::clone(&count);
        workers.push(async move {
            while Instant::now() < until {
                let mut task = agent.start().await?;
                for _ in 1..ROUNDS {
                    if Instant::now() >= until {
                        break;
                    }
                    agent.report(&task).await?;
                    task = agent.next().await?;
                    count.set(count.get() + 1);
                }
                agent.report(&task).await?;
            }
            Ok(())
        });
    }
    let (began, daemon_before, client_before) = (Instant::now(), daemon.cpu(), own_cpu());
    drive::together(workers).await?;
    let (took, client) = (began.elapsed(), own_cpu() - client_before);
    let daemon = daemon.cpu().zip(daemon_before).map(|(after, before)| after - before);
    let each = |time: Duration| time.as_secs_f64() * 1e6 / count.get().max(1) as f64;
    Ok(Together {
        per_second: count.get() as f64 / took.as_secs_f64(),
        daemon_us: daemon.map(each),
        client_us: each(client),
    })
}

fn message(method: &str, params: &Value) -> String {
    object!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string()
}

/// Calls a tool that succeeds.
async fn call(client: &mut Client, tool: &str, arguments: &Value) -> Result<Value> {
    let params = object!({ "name": tool, "arguments": arguments });
    let sent = client.send("POST", "/mcp", &message("tools/call", &params)).await?;
    let mut answer = json(sent).with_context(|| tool.to_owned())?;
    let result = &mut answer["result"];
    ensure!(result["isError"] != true && result.is_object(), "{tool}: {answer}");
    Ok(result["structuredContent"].take())
}
