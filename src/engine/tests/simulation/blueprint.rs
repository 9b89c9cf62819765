//! Small random blueprints, and what their flows must come to.
//!
//! Every leaf of a flow is total: a task that fails counts as a number too. So a run can end by its
//! flow or by a cancel and by nothing else, and its output follows from the recorded ends of its
//! leaves.

use std::fmt::Write as _;

use super::random::Random;

/// The value that a failed task counts as.
pub const FAILED: i64 = 1_000;

/// The beginning of the keys that runs share.
pub const SHARED: &str = "share.";

/// The agent whose work any node can do, with as many attempts at once as there are.
const PORT: &str = r#"
    port = { operator = "port", retry = retry, timeout = "5m", output = v },"#;

/// A random part of a flow without parts of its own, given the number of those before it.
type Leaf = fn(&mut Random, &mut u32) -> Node;

/// A part of a flow that comes to a number.
#[derive(Debug, Clone)]
pub enum Node {
    /// A task of an agent, by the number of the leaf.
    Task(&'static str, u32),
    /// A called run, by the number of the leaf.
    Call(u32),
    /// A pause of so many seconds.
    Sleep(u32),
    /// A signal `go`, awaited for so many seconds or for ever.
    Wait(Option<u32>),
    /// A signal to the run that the input names.
    Signal(u32),
    /// One more in the run's state.
    Count,
    /// A file.
    File,
    /// A key of its own in the state that all runs share, which is added to once.
    Share(u32),
    /// One after the other.
    Seq(Vec<Node>),
    /// Beside each other.
    All(Vec<Node>),
    /// The same, so many times, at most two at a time.
    Map(Box<Node>, u32),
    /// The first that comes.
    Race(Vec<Node>),
    /// Caught; it may raise at its end.
    Try(Box<Node>, bool),
}

/// A random flow.
#[derive(Debug, Clone)]
pub struct Flow {
    pub node: Node,
    /// Fresh histories after the first.
    pub rounds: u32,
    /// True if a compensation is registered before anything else.
    pub defers: bool,
}

impl Flow {
    pub fn random(random: &mut Random) -> Self {
        let mut leaves = 0;
        let node = Node::random(random, 3, &mut leaves, Node::leaf);
        let rounds = if random.once_in(5) { 1 } else { 0 };
        Self { node, rounds, defers: rounds == 0 && random.once_in(2) }
    }

    /// A random flow that a node can drive for another, up to its end or, mostly late, to where it needs
    /// that one.
    pub fn lent(random: &mut Random) -> Self {
        let mut leaves = 0;
        let mut nodes = Vec::new();
        if !random.once_in(4) {
            nodes.push(Node::random(random, 2, &mut leaves, Node::portable));
        }
        let leaf: Leaf = if random.once_in(2) { Node::portable } else { Node::mixed };
        nodes.push(Node::random(random, 2, &mut leaves, leaf));
        let rounds = if random.once_in(3) { 1 } else { 0 };
        Self { node: Node::Seq(nodes), rounds, defers: rounds == 0 && random.once_in(2) }
    }

    /// The blueprint `main`.
    pub fn source(&self) -> String {
        let mut body = String::new();
        self.node.write(&mut body);
        let port = if body.contains(r#"task("port""#) { PORT } else { "" };
        let defers = if self.defers {
            r#"ctx:defer(function() ctx:try("q", { id = "undo" }) end)"#
        } else {
            ""
        };
        format!(
            r#"local swarm = require("swarm")
local s = swarm.schema
local v = s.object {{ v = s.integer }}
local retry = {{ max_attempts = 3, backoff = "2s", jitter = false }}
local function sum(list) local n = 0 for _, x in pairs(list) do n = n + x end return n end
return swarm.blueprint {{
  name = "main",
  agents = {{
    q = {{ operator = "queue", queue = "q", retry = retry, timeout = "10m", output = v }},
    one = {{ operator = "queue", queue = "one", max_concurrency = 1, timeout = "10m", output = v }},
    host = {{ operator = "host", max_concurrency = 2, retry = retry, timeout = "5m", output = v }},
    human = {{ operator = "human", output = v }},
    echo = {{ operator = "echo", output = v }},
    safe = {{ operator = "safe", queue = "q", retry = retry, timeout = "10m", output = v }},
    fast = {{ operator = "fast", queue = "q", timeout = "10m", output = v }},
    agreed = {{ operator = "agreed", queue = "q", timeout = "10m", output = v }},
    smart = {{ operator = "model", retry = retry, output = v, tools = {{
      "q", {{ agent = "host", parallel_safe = false }}, "human" }} }},{port}
  }},
  flow = function(ctx, input)
    local o = 0
    local function task(agent, id)
      local got = ctx:try(agent, {{ id = id, v = 5 }})
      return got and got.v or {FAILED}
    end
    {defers}
    local total = (input.total or 0) + {body}
    if (input.round or 0) < {rounds} then
      ctx:continue_as {{ s = input.s, peer = input.peer, round = (input.round or 0) + 1, total = total }}
    end
    return {{ total = total }}
  end,
}}"#,
            rounds = self.rounds,
        )
    }

    /// The output of the flow, where `leaf` gives the recorded value of a leaf in a round; nothing
    /// where a leaf has none.
    pub fn value(&self, leaf: &dyn Fn(u32, &str) -> Option<i64>) -> Option<i64> {
        (0..=self.rounds).map(|round| self.node.value(0, &|id| leaf(round, id))).sum()
    }
}

/// The blueprint `waits`, of runs that stay where they are for a while.
pub const WAITS: &str = r#"local swarm = require("swarm")
return swarm.blueprint {
  name = "waits",
  flow = function(ctx)
    for _ = 1, 3 do ctx:wait("go") end
    return { v = 9 }
  end,
}"#;

/// The blueprint `child`, which `main` calls.
pub const CHILD: &str = r#"local swarm = require("swarm")
local s = swarm.schema
return swarm.blueprint {
  name = "child",
  agents = { q = { operator = "queue", queue = "q", timeout = "10m", output = s.object { v = s.integer } } },
  flow = function(ctx, input)
    ctx:sleep("20s")
    if #input.id % 2 == 0 then ctx:try("q", { id = "child" }) end
    return { v = 9 }
  end,
}"#;

impl Node {
    fn random(random: &mut Random, depth: u32, leaves: &mut u32, leaf: Leaf) -> Self {
        if depth == 0 || random.once_in(4) {
            return leaf(random, leaves);
        }
        let some = |random: &mut Random, leaves: &mut u32| -> Vec<Self> {
            let count = 2 + random.below(2);
            (0..count).map(|_| Self::random(random, depth - 1, leaves, leaf)).collect()
        };
        match random.below(10) {
            0..4 => Self::Seq(some(random, leaves)),
            4..6 => Self::All(some(random, leaves)),
            6 => Self::Race(some(random, leaves)),
            7 => {
                let times = 2 + u32::from(random.once_in(2));
                Self::Map(Box::new(Self::random(random, depth - 1, leaves, leaf)), times)
            }
            8 => Self::Try(Box::new(Self::random(random, depth - 1, leaves, leaf)), true),
            _ => Self::Try(Box::new(Self::random(random, depth - 1, leaves, leaf)), false),
        }
    }

    fn leaf(random: &mut Random, leaves: &mut u32) -> Self {
        *leaves += 1;
        let leaf = *leaves;
        match random.below(25) {
            0..5 => Self::Task("q", leaf),
            5..7 => Self::Task("one", leaf),
            7..11 => Self::Task("host", leaf),
            11 => Self::Task("human", leaf),
            12 => Self::Task("echo", leaf),
            13..15 => Self::Sleep(1 + u32::try_from(random.below(90)).expect("it is small")),
            15 => Self::Wait(None),
            16 => Self::Wait(Some(40)),
            17 => Self::Signal(leaf),
            18 => Self::Count,
            19 => Self::File,
            20 => Self::Task("safe", leaf),
            21 => Self::Task("fast", leaf),
            22 => Self::Task("agreed", leaf),
            23 => Self::Task("smart", leaf),
            _ => Self::Call(leaf),
        }
    }

    /// A leaf that any node can carry out.
    fn portable(random: &mut Random, leaves: &mut u32) -> Self {
        *leaves += 1;
        let leaf = *leaves;
        match random.below(18) {
            0..4 => Self::Task("port", leaf),
            4..6 => Self::Task("echo", leaf),
            // Mostly as long as a node that helps waits.
            6..10 if random.once_in(12) => Self::Sleep(20),
            6..10 => Self::Sleep(1 + u32::try_from(random.below(4)).expect("it is small")),
            10 => Self::Signal(leaf),
            11..14 => Self::Count,
            14 => Self::File,
            _ => Self::Share(leaf),
        }
    }

    /// A leaf of either kind.
    fn mixed(random: &mut Random, leaves: &mut u32) -> Self {
        if random.once_in(4) { Self::leaf(random, leaves) } else { Self::portable(random, leaves) }
    }

    fn write(&self, to: &mut String) {
        let functions = |nodes: &[Self], ends: &str| {
            let mut text = String::new();
            for node in nodes {
                text.push_str("function() local n = ");
                node.write(&mut text);
                text.push_str(ends);
            }
            text
        };
        let done = match self {
            Self::Task(agent, leaf) => write!(to, r#"task("{agent}", "{leaf}." .. o)"#),
            Self::Call(leaf) => write!(
                to,
                r#"(function() local ok, got = pcall(function() return ctx:call("child", {{ id = "{leaf}." .. o }}) end) return ok and got.v or {FAILED} end)()"#
            ),
            Self::Sleep(seconds) => write!(
                to,
                r#"(function() local t = ctx:now() ctx:sleep("{seconds}s") if ctx:now() < t + {seconds} then error("too early") end return 4 end)()"#
            ),
            Self::Wait(timeout) => {
                let opts =
                    timeout.map_or(String::new(), |s| format!(r#", {{ timeout = "{s}s" }}"#));
                write!(to, r#"(function() ctx:wait("go"{opts}) return 3 end)()"#)
            }
            Self::Signal(leaf) => write!(
                to,
                r#"(function() if input.peer then pcall(function() ctx:signal(input.peer, "go", {{ leaf = {leaf} }}) end) end return 6 end)()"#
            ),
            Self::Count => {
                write!(to, r#"(function() ctx.state:add("count", 1) return 2 end)()"#)
            }
            Self::File => {
                write!(to, r#"(function() ctx:artifact("note.txt", "x") return 8 end)()"#)
            }
            Self::Share(leaf) => write!(
                to,
                r#"(function() ctx:scope("global"):add("{SHARED}" .. ctx.run_id .. "." .. (input.round or 0) .. ".{leaf}." .. o, 1) return 5 end)()"#
            ),
            Self::Seq(nodes) => {
                let parts: Vec<String> = nodes.iter().map(Self::text).collect();
                write!(to, "({})", parts.join(" + "))
            }
            Self::All(nodes) => {
                write!(to, "sum(ctx:all {{ {} }})", functions(nodes, " return n end, "))
            }
            Self::Map(node, times) => {
                let list: Vec<String> = (1..=*times).map(|n| n.to_string()).collect();
                write!(
                    to,
                    "sum(ctx:map({{ {} }}, function(i) local o = o * 8 + i return {} end, {{ concurrency = 2 }}))",
                    list.join(", "),
                    node.text()
                )
            }
            Self::Race(nodes) => write!(
                to,
                "(function() ctx:race {{ {} }} return 1 end)()",
                functions(nodes, " return n end, ")
            ),
            Self::Try(node, raises) => {
                let end = if *raises { r#"error("on purpose")"# } else { "return n" };
                write!(
                    to,
                    "(function() local ok, got = pcall(function() local n = {} {end} end) return ok and got or 7 end)()",
                    node.text()
                )
            }
        };
        done.expect("a string takes everything");
    }

    fn text(&self) -> String {
        let mut text = String::new();
        self.write(&mut text);
        text
    }

    fn value(&self, offset: u64, leaf: &dyn Fn(&str) -> Option<i64>) -> Option<i64> {
        match self {
            Self::Task(_, number) | Self::Call(number) => leaf(&format!("{number}.{offset}")),
            Self::Sleep(_) => Some(4),
            Self::Wait(_) => Some(3),
            Self::Signal(_) => Some(6),
            Self::Count => Some(2),
            Self::File => Some(8),
            Self::Share(_) => Some(5),
            Self::Seq(nodes) | Self::All(nodes) => {
                nodes.iter().map(|node| node.value(offset, leaf)).sum()
            }
            Self::Map(node, times) => {
                (1..=u64::from(*times)).map(|n| node.value(offset * 8 + n, leaf)).sum()
            }
            Self::Race(_) => Some(1),
            Self::Try(node, raises) => {
                let value = node.value(offset, leaf)?;
                Some(if *raises { 7 } else { value })
            }
        }
    }
}
