//! Input that nobody wrote on purpose: sources, entries, bodies and frames, at random.
//!
//! Every run of these tests draws other input; a failure prints what it was. `PROPTEST_CASES` says how
//! many cases each test tries, and `scripts/soak.sh` says a large number. Each test runs under a limit
//! of address space, so that an allocation beyond all measure ends it.

use std::{fs, path::Path, sync::LazyLock};

use futures::{SinkExt as _, StreamExt as _};
use moonswarm::{
    blueprint::Bundle,
    host,
    journal::Entry,
    lua::{Limits, Program},
};
use proptest::{prelude::*, sample::Index, test_runner::TestRunner};
use reqwest::Method;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Map, Value, json};
use tokio_tungstenite::tungstenite::{Message, client::IntoClientRequest as _};

#[path = "support/mod.rs"]
mod support;

use support::{Daemon, Shell};

/// How much address space a test may take beyond what it has at its start.
const ROOM: u64 = 2 << 30;

/// So many cases unless `PROPTEST_CASES` says otherwise.
fn cases(usual: u32) -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok());
    ProptestConfig {
        cases: cases.unwrap_or(usual),
        failure_persistence: None,
        ..Default::default()
    }
}

fn limit_memory() {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    let kib: u64 = size.trim().trim_end_matches(" kB").parse().unwrap();
    let maximum = getrlimit(Resource::As).maximum;
    setrlimit(Resource::As, Rlimit { current: Some(kib * 1_024 + ROOM), maximum }).unwrap();
}

/// The blueprints of this repository, to be mangled.
static BLUEPRINTS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("blueprints");
    let files = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let sources = files.filter(|path| path.extension().is_some_and(|it| it == "lua"));
    sources.map(|path| fs::read_to_string(path).unwrap()).collect()
});

/// Pieces that a source is made of.
const PIECES: &[&str] = &[
    "local ",
    "function",
    "(",
    ")",
    "{",
    "}",
    "[",
    "]",
    "[[",
    "]]",
    "--[==[",
    "\"",
    "'",
    "`",
    "end ",
    "return ",
    "if ",
    "then ",
    "else ",
    "elseif ",
    "for ",
    "in ",
    "do ",
    "while ",
    "repeat ",
    "until ",
    "not ",
    "and ",
    "or ",
    "nil",
    "true",
    "...",
    "..",
    "=",
    "==",
    "~=",
    "<",
    "::",
    "->",
    "?",
    ":",
    ";",
    ",",
    ".",
    "#",
    "-",
    "+=",
    "//",
    "1e309",
    "0x",
    "1_0",
    "\\u{",
    "\\x",
    "\\z",
    "\u{0}",
    "ä",
    "\u{202e}",
    "\n",
    "type ",
    "export ",
    "continue ",
    "require(\"swarm\")",
    "swarm.blueprint",
    "swarm.schema.object",
    "swarm.nodes.seq",
    "swarm.agent_md(\"a.md\")",
    "name = ",
    "agents = ",
    "flow = ",
    "operator = \"echo\"",
    "prompt = \"{{ ",
    " }}\"",
    "{% for i in ",
    "ctx:run(",
    "limits = { steps = ",
    "on = { { schedule = \"",
    "* * * * *",
    "input = ",
    "a",
    "b",
    "x",
];

fn soup() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(PIECES), 0..120).prop_map(|pieces| pieces.concat())
}

/// A blueprint with parts cut out, doubled, moved and replaced.
fn mangled() -> impl Strategy<Value = String> {
    let edit = (any::<Index>(), any::<Index>(), any::<Index>(), 0..4_u8, soup());
    (any::<Index>(), prop::collection::vec(edit, 1..6)).prop_map(|(which, edits)| {
        let mut source: Vec<char> = which.get(&BLUEPRINTS).chars().collect();
        for (from, length, to, kind, piece) in edits {
            if source.is_empty() {
                break;
            }
            let from = from.index(source.len());
            let until = (from + length.index(40)).min(source.len());
            let cut: Vec<char> = match kind {
                0 => source.drain(from..until).collect(),
                1 => source[from..until].to_vec(),
                2 => piece.chars().collect(),
                _ => source.drain(from..until).chain(piece.chars()).collect(),
            };
            if kind != 0 {
                let to = to.index(source.len() + 1);
                source.splice(to..to, cut);
            }
        }
        source.into_iter().collect()
    })
}

#[test]
fn any_source_is_checked_and_said_to_be_right_or_wrong() {
    limit_memory();
    let operators = host::builtin_operators();
    let sources = prop_oneof![soup(), mangled(), ".{0,200}"];
    let check = |source: String| {
        let Ok(bundle) = Bundle::from_source("any.lua", source) else { return Ok(()) };
        if let Err(findings) = Program::compile(bundle, &operators, &Limits::default()) {
            prop_assert!(!findings.is_empty(), "refused, and nothing says why");
        }
        Ok(())
    };
    TestRunner::new(cases(150)).run(&sources, check).unwrap();
}

/// The run that the entries are of.
const RUN: u64 = 7;

/// Entries as a run wrote them, from an exported document.
fn entries(document: &str) -> Vec<Vec<u8>> {
    let lines = document.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let entries = lines.filter_map(|mut line| line.get_mut("entry").map(Value::take));
    entries.map(|entry| serde_json::from_value::<Entry>(entry).unwrap().encode(RUN)).collect()
}

#[test]
fn any_bytes_of_the_journal_are_an_entry_or_an_error() {
    limit_memory();
    let golden = include_str!("../src/engine/verbs/document/run_v2.jsonl");
    let entries = entries(golden);
    assert!(entries.len() > 3);
    let flips = prop::collection::vec((any::<Index>(), any::<u8>()), 0..4);
    let cut = prop::option::of(any::<Index>());
    let mangled = (any::<Index>(), flips, cut).prop_map(move |(which, flips, cut)| {
        let mut bytes = which.get(&entries).clone();
        for (at, with) in flips {
            let at = at.index(bytes.len());
            bytes[at] = with;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len() + 1));
        }
        bytes
    });
    let any = prop_oneof![mangled, prop::collection::vec(any::<u8>(), 0..300)];
    let decode = |bytes: Vec<u8>| {
        if let Ok(entry) = Entry::decode(RUN, &bytes) {
            let again = Entry::decode(RUN, &entry.encode(RUN));
            prop_assert_eq!(
                again.ok(),
                Some(entry),
                "what was read is written so that it is read again"
            );
        }
        Ok(())
    };
    TestRunner::new(cases(20_000)).run(&any, decode).unwrap();
}

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(|it| json!(it)),
        ".{0,20}".prop_map(Value::from),
        prop::sample::select(
            &["*", "run:*", "1h", "-1s", "echo", "../x", "global", "\u{1b}[2J"][..]
        )
        .prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        let names = prop_oneof![prop::sample::select(NAMES).prop_map(str::to_owned), ".{0,8}"];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::vec((names, inner), 0..6)
                .prop_map(|pairs| Value::Object(pairs.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

/// Names that bodies and frames have.
const NAMES: &[&str] = &[
    "source",
    "files",
    "flow",
    "agents",
    "blueprint",
    "input",
    "wait",
    "seats",
    "role",
    "scopes",
    "ttl",
    "verbs",
    "name",
    "queue",
    "max",
    "output",
    "ok",
    "error",
    "usage",
    "effects",
    "text",
    "percent",
    "value",
    "ops",
    "key",
    "scope",
    "model",
    "messages",
    "tools",
    "stream",
    "from_step",
    "input_patch",
    "session",
    "jsonrpc",
    "id",
    "method",
    "params",
    "seq",
    "task",
    "kind",
    "message",
    "labels",
    "worker",
    "reason",
];

/// Every route with a body or a query, from the description that the program gives of itself.
async fn routes(daemon: &Daemon) -> Vec<(Method, String)> {
    let document: Value = daemon.get("/openapi.json").send().await.unwrap().json().await.unwrap();
    let mut routes = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            if let Ok(method) = method.to_uppercase().parse::<Method>() {
                routes.push((method, path.clone()));
            }
        }
    }
    routes
}

#[test]
fn any_body_is_answered_by_a_live_host_that_blames_the_caller() {
    let shell = Shell::new();
    let daemon = Daemon::start_within(3 << 30, &shell.path("data"), &[]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let routes = runtime.block_on(routes(&daemon));
    let parts = prop::collection::vec("[a-zA-Z0-9_:%./*-]{0,12}", 4);
    let body = prop_oneof![json_value().prop_map(|json| json.to_string()), ".{0,60}"];
    let any = (any::<Index>(), parts, body, ".{0,20}");
    let ask = |(which, parts, body, query): (Index, Vec<String>, String, String)| {
        let (method, path) = which.get(&routes);
        let mut parts = parts.iter().cycle();
        let path: Vec<String> =
            path.split('/')
                .map(|part| {
                    if part.starts_with('{') { parts.next().unwrap().clone() } else { part.into() }
                })
                .collect();
        let path = format!("{}?{query}", path.join("/"));
        let Ok(url) = reqwest::Url::parse(&format!("{}{path}", daemon.url)) else { return Ok(()) };
        let status = runtime.block_on(async {
            let request = daemon.with(&daemon.token, method.clone(), &path_of(&url));
            let sent = request.header("content-type", "application/json").body(body.clone()).send();
            sent.await.unwrap().status().as_u16()
        });
        prop_assert!(status < 500 || status == 503, "{method} {path} {body}: {status}");
        Ok(())
    };
    TestRunner::new(cases(400)).run(&any, ask).unwrap();
    let alive = runtime.block_on(async { daemon.get("/readyz").send().await.unwrap().status() });
    assert_eq!(alive.as_u16(), 200, "{}", daemon.log());
}

#[test]
fn any_frame_of_a_session_is_answered_by_a_live_host() {
    let shell = Shell::new();
    let daemon = Daemon::start_within(3 << 30, &shell.path("data"), &[]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let opened: Value = runtime.block_on(async {
        let request = daemon.post("/v1/operators/main-ai/sessions", &json!({}));
        request.send().await.unwrap().json().await.unwrap()
    });
    let connect = || {
        let url =
            format!("{}{}", daemon.url.replacen("http", "ws", 1), opened["ws"].as_str().unwrap());
        let mut request = url.into_client_request().unwrap();
        let bearer = format!("Bearer {}", opened["token"].as_str().unwrap());
        request.headers_mut().insert("authorization", bearer.parse().unwrap());
        request
    };
    let methods = &[
        "ack",
        "task/accept",
        "task/escalate",
        "task/result",
        "task/decline",
        "task/progress",
        "tasks/list",
        "run/start",
        "run/get",
        "run/cancel",
        "run/signal",
        "run/subscribe",
        "seat/acquire",
        "nothing",
    ][..];
    let call =
        (prop::sample::select(methods), json_value(), 0..9_u8).prop_map(|(method, params, id)| {
            json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()
        });
    let frame = prop_oneof![
        call.prop_map(Message::text),
        json_value().prop_map(|json| Message::text(json.to_string())),
        ".{0,60}".prop_map(Message::text),
        prop::collection::vec(any::<u8>(), 0..60).prop_map(Message::binary),
    ];
    let talk = |frames: Vec<Message>| {
        runtime.block_on(async {
            let (mut socket, _) = tokio_tungstenite::connect_async(connect()).await.unwrap();
            for frame in frames {
                if socket.send(frame).await.is_err() {
                    break;
                }
            }
            // It answers the close, after everything that came before.
            let _ = socket.close(None).await;
            while let Some(Ok(_)) = socket.next().await {}
        });
        Ok(())
    };
    let frames = prop::collection::vec(frame, 1..8);
    TestRunner::new(cases(40)).run(&frames, talk).unwrap();
    let alive = runtime.block_on(async { daemon.get("/readyz").send().await.unwrap().status() });
    assert_eq!(alive.as_u16(), 200, "{}", daemon.log());
}

fn path_of(url: &reqwest::Url) -> String {
    format!("{}?{}", url.path(), url.query().unwrap_or_default())
}
