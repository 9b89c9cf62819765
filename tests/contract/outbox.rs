//! Effects of operators and writes of workers, in a store that is written against the protocol
//! alone: after the commit, in order, at least once, by the same key.

use std::{collections::BTreeMap, sync::atomic::Ordering::SeqCst};

use async_trait::async_trait;
use moonswarm::{
    engine::{Program, StartRun},
    protocol::{ChangeKey, SearchResult, StateError, StateStore, StoreOptions},
    token::{Claims, KeyRing, SigningKey, TokenKind},
};

use super::*;

/// A store that notes each change, and can be closed.
#[derive(Default)]
struct Desk {
    values: Mutex<BTreeMap<String, Value>>,
    /// Every change that it was asked for: its key, and what it was.
    asked: Mutex<Vec<(String, String)>>,
    closed: std::sync::atomic::AtomicBool,
    /// It makes a change, says so, and never answers.
    stalls: bool,
    /// It makes a change only with a permit.
    busy: Option<tokio::sync::Semaphore>,
}

impl Desk {
    async fn take(&self, named: &ChangeKey, what: String) -> Result<(), StateError> {
        self.asked.lock().unwrap().push((named.to_string(), what.clone()));
        if self.closed.load(SeqCst) {
            return Err(StateError::WriteFailed("the desk is closed".to_owned()));
        }
        if let Some(busy) = &self.busy {
            busy.acquire().await.expect("it is open").forget();
        }
        if self.stalls {
            println!("made {named} {what}");
            std::future::pending::<()>().await;
        }
        Ok(())
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().iter().map(|(_, what)| what.clone()).collect()
    }
}

#[async_trait]
impl StateStore for Desk {
    async fn read(&self, _: &Scope, key: &str) -> Result<Option<Value>, StateError> {
        Ok(self.values.lock().unwrap().get(key).cloned())
    }

    async fn write(&self, _: &Scope, key: &str, value: Value) -> Result<(), StateError> {
        self.values.lock().unwrap().insert(key.to_owned(), value);
        Ok(())
    }

    async fn write_keyed(
        &self,
        scope: &Scope,
        key: &str,
        value: Value,
        _: &StoreOptions,
        named: &ChangeKey,
    ) -> Result<(), StateError> {
        self.take(named, format!("{key}={value}")).await?;
        if value == "refused" {
            return Err(StateError::Serialization("not that".to_owned()));
        }
        self.write(scope, key, value).await
    }

    async fn delete(&self, _: &Scope, key: &str) -> Result<(), StateError> {
        self.values.lock().unwrap().remove(key);
        Ok(())
    }

    async fn delete_keyed(
        &self,
        scope: &Scope,
        key: &str,
        named: &ChangeKey,
    ) -> Result<(), StateError> {
        self.take(named, format!("-{key}")).await?;
        self.delete(scope, key).await
    }

    async fn list(&self, _: &Scope, prefix: &str) -> Result<Vec<String>, StateError> {
        let values = self.values.lock().unwrap();
        Ok(values.keys().filter(|key| key.starts_with(prefix)).cloned().collect())
    }

    async fn search(&self, _: &Scope, _: &str, _: usize) -> Result<Vec<SearchResult>, StateError> {
        Ok(Vec::new())
    }
}

fn desk() -> Scope {
    Scope::Custom("desk".into())
}

/// Writes its input to the desk: a list of `[key, value]`; no value deletes the key.
struct Clerk;

#[async_trait]
impl Operator for Clerk {
    async fn execute(&self, input: OperatorInput) -> Result<OperatorOutput, OperatorError> {
        let mut output = OperatorOutput::new(Content::text("done"), ExitReason::Complete);
        for pair in input.metadata["moonswarm"]["input"].as_array().unwrap() {
            let key = pair[0].as_str().unwrap().to_owned();
            let mut effect = written("");
            if let Effect::WriteMemory { scope, key: of, value, .. } = &mut effect {
                (*scope, *of, *value) = (desk(), key.clone(), pair[1].clone());
            }
            output.effects.push(match pair[1].is_null() {
                true => Effect::DeleteMemory { scope: desk(), key },
                false => effect,
            });
        }
        Ok(output)
    }
}

fn clerks(desk_of: &Arc<Desk>) -> Coded {
    let kept: Arc<dyn StateStore> = Arc::clone(desk_of) as _;
    Coded::default().and_store(&desk(), kept).and_operator("clerk", Clerk)
}

const ORDER: &str = r#"return require("swarm").blueprint { name = "order",
  agents = { clerk = { operator = "clerk" } },
  flow = function(ctx)
    local desk = ctx:scope { custom = "desk" }
    ctx:run("clerk", { { "a", 1 }, { "b", "refused" }, { "gone", 1 }, { "gone" } })
    ctx:run("clerk", { { "a", 2 } })
    local seen = desk:get("a")
    desk:set("a", 3)
    ctx:run("clerk", { { "a", 4 } })
    return { seen, desk:get("a"), desk:list("") }
  end }"#;

async fn begin(host: &Host, source: &str) -> RunId {
    let bundle = moonswarm::blueprint::Bundle::from_source("desk.lua", source).unwrap();
    let start = StartRun {
        trigger: Json::from(json!({ "kind": "embedded" })),
        ..StartRun::new(Program::Bundle(bundle))
    };
    host.engine().start(&host.owner().unwrap(), start, None).await.unwrap().run
}

/// A host, as a caller over HTTP sees it.
struct Seen<'a>(&'a Host);

impl Seen<'_> {
    async fn send(&self, method: reqwest::Method, path: &str) -> (u16, Value) {
        let http = moonswarm::environment::http_client().no_proxy().build().unwrap();
        let request = http.request(method, format!("{}{path}", self.0.url()));
        let answer = request.bearer_auth(self.0.admin_token()).send().await.unwrap();
        (answer.status().as_u16(), answer.json().await.unwrap_or_default())
    }

    async fn get(&self, path: &str) -> Value {
        self.send(reqwest::Method::GET, path).await.1
    }

    /// Looks again until it is so.
    async fn until(&self, path: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let look = async {
            loop {
                let seen = self.get(path).await;
                if is_so(&seen) {
                    return seen;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), look).await.expect("it comes to be so")
    }
}

#[tokio::test]
async fn effects_reach_a_store_of_ones_own_in_order_and_a_refused_one_is_an_event() {
    let data = tempfile::tempdir().unwrap();
    let store = Arc::new(Desk::default());
    let host = Host::open(config(data.path(), clerks(&store))).await.unwrap();
    let run = host.run(ORDER, &Value::Null).await.unwrap();
    assert_eq!(run.output.unwrap().to_value(), json!([2, 4, ["a"]]));
    let order = ["a=1", "b=\"refused\"", "gone=1", "-gone", "a=2", "a=3", "a=4"].map(str::to_owned);
    assert_eq!(store.asked(), order);
    let named: std::collections::BTreeSet<String> =
        store.asked.lock().unwrap().iter().map(|(named, _)| named.clone()).collect();
    assert_eq!(named.len(), order.len(), "each change has a key of its own: {named:?}");
    let seen = Seen(&host);
    let events = seen.get(&format!("/v1/runs/{}/events?format=json", run.id)).await;
    let refused = events["items"].as_array().unwrap().iter().find_map(|event| {
        let event = &event["data"]["event"];
        (event["event_type"] == "change_refused").then(|| event["data"].clone())
    });
    let refused = refused.expect("it is told");
    assert!(refused["error"].as_str().unwrap().contains("not that"), "{refused}");
    host.stop(Duration::from_secs(5)).await;
}

const CLOSED: &str = r#"return require("swarm").blueprint { name = "closed",
  agents = { clerk = { operator = "clerk" } },
  flow = function(ctx, input)
    ctx:run("clerk", { { "a", 1 }, { "b", 2 } })
    ctx:run("clerk", { { "a", 3 } })
    if input == "reads" then return ctx:scope { custom = "desk" }:get("a") end
    return "over"
  end }"#;

#[tokio::test]
async fn what_a_closed_store_does_not_take_is_shown_kept_and_made_in_order_once_it_opens() {
    let data = tempfile::tempdir().unwrap();
    let store = Arc::new(Desk::default());
    store.closed.store(true, SeqCst);
    let host = Host::open(config(data.path(), clerks(&store))).await.unwrap();
    let seen = Seen(&host);
    let over = host.run(CLOSED, &Value::Null).await.unwrap();
    assert_eq!(over.output.unwrap().to_value(), "over", "it does not wait for the store");
    let reads = begin(&host, &CLOSED.replace("input == \"reads\"", "true")).await;

    // The run that reads waits, and says why; so do the other and the host.
    let path = format!("/v1/runs/{reads}");
    let view = seen.until(&path, |run| run["waiting_on"][0]["subject"]["reason"].is_string()).await;
    let reason = view["waiting_on"][0]["subject"]["reason"].as_str().unwrap();
    assert!(reason.contains("the desk is closed"), "{view}");
    let ended = seen.get(&format!("/v1/runs/{}", over.id)).await;
    let waits = &ended["undelivered"][0];
    assert_eq!((&waits["scope"], &waits["changes"]), (&json!("custom:desk"), &json!(3)), "{ended}");
    assert!(waits["error"].as_str().unwrap().contains("the desk is closed"), "{ended}");
    let found = seen.get("/v1/host").await["doctor"].clone();
    let line = found.as_array().unwrap().iter().find(|it| it["what"] == "store of custom:desk");
    let line = line.expect("doctor has a line for it");
    assert_eq!(line["verdict"], "fail", "{line}");
    assert!(line["says"].as_str().unwrap().contains("the desk is closed"), "{line}");

    // A run whose changes are on their way is not deleted.
    let gone = seen.send(reqwest::Method::DELETE, &format!("/v1/runs/{}", over.id)).await;
    assert_eq!((gone.0, &gone.1["code"]), (409, &json!("in_use")), "{gone:?}");
    assert!(store.values.lock().unwrap().is_empty());
    assert!(store.asked().iter().all(|it| it == "a=1"), "the others wait: {:?}", store.asked());

    store.closed.store(false, SeqCst);
    store.asked.lock().unwrap().clear();
    let (owner, most) = (host.owner().unwrap(), Duration::from_secs(60));
    let view = host.engine().wait(&owner, reads, WaitFor::Ended, most).await.unwrap();
    assert_eq!(view.output.unwrap().to_value(), 3);
    assert_eq!(store.asked(), ["a=1", "b=2", "a=3", "a=1", "b=2", "a=3"], "in their order");
    let gone = seen.send(reqwest::Method::DELETE, &format!("/v1/runs/{}", over.id)).await;
    assert_eq!(gone.0, 204, "{gone:?}");
    host.stop(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn a_change_of_a_step_that_was_canceled_while_others_wrote_is_not_made() {
    let data = tempfile::tempdir().unwrap();
    let store = Arc::new(Desk { busy: Some(tokio::sync::Semaphore::new(0)), ..Desk::default() });
    let host = Host::open(config(data.path(), clerks(&store))).await.unwrap();
    let seen = Seen(&host);
    let set = |key: &str| {
        format!(
            r#"return require("swarm").blueprint {{ name = "sets",
              flow = function(ctx) ctx:scope {{ custom = "desk" }}:set("{key}", 1) end }}"#
        )
    };
    let first = begin(&host, &set("first")).await;
    let path = format!("/v1/runs/{first}");
    seen.until(&path, |_| store.asked() == ["first=1"]).await;
    let second = begin(&host, &set("second")).await;
    let (owner, most) = (host.owner().unwrap(), Duration::from_secs(60));
    let cancel = host.engine().cancel(&owner, second, "not any more".to_owned(), None);
    cancel.await.unwrap();
    let view = host.engine().wait(&owner, second, WaitFor::Ended, most).await.unwrap();
    assert_eq!(serde_json::to_value(&view).unwrap()["status"], "canceled");
    store.busy.as_ref().unwrap().add_permits(9);
    host.engine().wait(&owner, first, WaitFor::Ended, most).await.unwrap();
    host.run(&set("third"), &Value::Null).await.unwrap();
    assert_eq!(store.asked(), ["first=1", "third=1"]);
    host.stop(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn changes_wait_for_a_store_that_a_host_does_not_have_and_are_shown() {
    let data = tempfile::tempdir().unwrap();
    let store = Arc::new(Desk::default());
    store.closed.store(true, SeqCst);
    let host = Host::open(config(data.path(), clerks(&store))).await.unwrap();
    let run = host.run(CLOSED, &Value::Null).await.unwrap().id;
    host.stop(Duration::from_secs(5)).await;

    let code = Coded::default().and_operator("clerk", Clerk);
    let host = Host::open(config(data.path(), code)).await.unwrap();
    let view = Seen(&host).get(&format!("/v1/runs/{run}")).await;
    let waits = &view["undelivered"][0];
    assert_eq!(waits["error"], "this host has no store for it", "{view}");
    let found = Seen(&host).get("/v1/host").await["doctor"].clone();
    let line = found.as_array().unwrap().iter().find(|it| it["what"] == "store of custom:desk");
    assert_eq!(line.expect("doctor has a line for it")["verdict"], "fail", "{found}");
    host.stop(Duration::from_secs(5)).await;

    let store = Arc::new(Desk::default());
    let host = Host::open(config(data.path(), clerks(&store))).await.unwrap();
    Seen(&host).until(&format!("/v1/runs/{run}"), |run| run["undelivered"].is_null()).await;
    assert_eq!(store.asked(), ["a=1", "b=2", "a=3"]);
    host.stop(Duration::from_secs(5)).await;
}

const WORKERS: &str = r#"return require("swarm").blueprint { name = "workers",
  agents = { q = { operator = "queue", queue = "q" } },
  flow = function(ctx)
    ctx:run("q", {})
    return ctx:scope { custom = "desk" }:get("w")
  end }"#;

#[tokio::test]
async fn a_worker_writes_to_a_store_of_ones_own_and_reads_what_it_wrote() {
    let data = tempfile::tempdir().unwrap();
    let store = Arc::new(Desk::default());
    let host = Host::open(config(data.path(), clerks(&store))).await.unwrap();
    let run = begin(&host, WORKERS).await;
    let http = moonswarm::environment::http_client().no_proxy().build().unwrap();
    let at = |path: &str| format!("{}/v1/worker/{path}", host.url());
    let lease = json!({ "queue": "q", "wait": "30s", "max": 1 });
    let leased = http.post(at("lease")).bearer_auth(host.admin_token()).json(&lease);
    let leased: Value = leased.send().await.unwrap().json().await.unwrap();
    let handle = leased[0]["handle"].as_str().unwrap();
    let minted = http.post(at("token")).bearer_auth(handle).json(&json!({})).send().await.unwrap();
    let minted: Value = minted.json().await.unwrap();
    // A token of the same attempt that reaches the scope, signed by the host's own key.
    let keys = std::fs::read(data.path().join("signing.key")).unwrap();
    let keys = KeyRing::new(SigningKey::from_pem(&keys).unwrap());
    let now_s = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let claims = minted["token"].as_str().unwrap();
    let claims = keys.verify(claims, &[TokenKind::Task], now_s.as_secs()).unwrap();
    let mut scopes = claims.scopes.clone();
    scopes.0.push("state:custom:desk/".parse().unwrap());
    let token = keys.sign(&Claims { scopes, ..claims }).unwrap();
    for value in 1..=3 {
        let put = http.put(at("state/w?scope=custom:desk")).bearer_auth(&token);
        let put = put.body(value.to_string()).send().await.unwrap();
        assert!(put.status().is_success(), "{} {:?}", put.status(), put.text().await);
        let got = http.get(at("state/w?scope=custom:desk")).bearer_auth(&token);
        let got: Value = got.send().await.unwrap().json().await.unwrap();
        assert_eq!(got, value, "its own write is there");
    }
    let result = http.post(at("result")).bearer_auth(handle).json(&json!({ "output": 1 }));
    assert!(result.send().await.unwrap().status().is_success());
    let (owner, most) = (host.owner().unwrap(), Duration::from_secs(60));
    let view = host.engine().wait(&owner, run, WaitFor::Ended, most).await.unwrap();
    assert_eq!(view.output.unwrap().to_value(), 3);
    assert_eq!(store.asked(), ["w=1", "w=2", "w=3"]);
    host.stop(Duration::from_secs(5)).await;
}

const DESK: &str = "CONTRACT_DESK";

/// The process that is killed while its change is made; without its variable it has nothing to do.
#[tokio::test]
async fn the_process_that_is_killed_while_its_change_is_made() {
    let Some(data) = std::env::var_os(DESK) else { return };
    let store = Arc::new(Desk { stalls: true, ..Desk::default() });
    let host = Host::open(config(Path::new(&data), clerks(&store))).await.unwrap();
    println!("run {}", begin(&host, CLOSED).await);
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn a_change_of_an_effect_is_made_again_by_the_same_key_after_a_kill() {
    let data = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "outbox::the_process_that_is_killed_while_its_change_is_made"])
        .arg("--nocapture")
        .env(DESK, data.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let (mut run, mut made) = (None, None);
    for line in lines {
        run = run.or_else(|| line.split_once("run run_").map(|(_, id)| format!("run_{id}")));
        made = made.or_else(|| line.split_once("made ").map(|(_, it)| it.to_owned()));
        if run.is_some() && made.is_some() {
            break;
        }
    }
    child.kill().unwrap();
    child.wait().unwrap();

    let store = Arc::new(Desk::default());
    let host = Host::open(config(data.path(), clerks(&store))).await.unwrap();
    let run = run.expect("it started").trim().parse::<RunId>().unwrap();
    let (owner, most) = (host.owner().unwrap(), Duration::from_secs(60));
    let view = host.engine().wait(&owner, run, WaitFor::Ended, most).await.unwrap();
    assert_eq!(view.output.unwrap().to_value(), "over");
    Seen(&host).until(&format!("/v1/runs/{run}"), |run| run["undelivered"].is_null()).await;
    host.stop(Duration::from_secs(5)).await;
    assert_eq!(store.asked(), ["a=1", "b=2", "a=3"]);
    let (named, what) = store.asked.lock().unwrap()[0].clone();
    assert_eq!(made.expect("it was made").trim(), format!("{named} {what}"), "the same key");
}

/// A store in a file, with a line for each change that it made: its name, its key, its value.
#[cfg(feature = "faults")]
struct Ledger(std::path::PathBuf);

#[cfg(feature = "faults")]
impl Ledger {
    fn lines(&self) -> Vec<(String, String)> {
        let text = std::fs::read_to_string(&self.0).unwrap_or_default();
        let line = |line: &str| line.split_once(' ').map(|(a, b)| (a.to_owned(), b.to_owned()));
        text.lines().filter_map(line).collect()
    }
}

#[cfg(feature = "faults")]
#[async_trait]
impl StateStore for Ledger {
    async fn read(&self, _: &Scope, key: &str) -> Result<Option<Value>, StateError> {
        let found = self.lines().into_iter().rev().find_map(|(_, what)| {
            let (of, value) = what.split_once('=')?;
            (of == key).then(|| serde_json::from_str(value).unwrap())
        });
        Ok(found)
    }

    async fn write(&self, _: &Scope, key: &str, _: Value) -> Result<(), StateError> {
        Err(StateError::Serialization(format!("{key} came without a name")))
    }

    async fn write_keyed(
        &self,
        _: &Scope,
        key: &str,
        value: Value,
        _: &StoreOptions,
        named: &ChangeKey,
    ) -> Result<(), StateError> {
        use std::io::Write as _;
        let open = std::fs::OpenOptions::new().create(true).append(true).open(&self.0);
        let written = open.and_then(|mut file| {
            file.write_all(format!("{named} {key}={value}\n").as_bytes())?;
            file.sync_all()
        });
        written.map_err(|error| StateError::WriteFailed(error.to_string()))
    }

    async fn delete(&self, _: &Scope, _: &str) -> Result<(), StateError> {
        Ok(())
    }

    async fn list(&self, _: &Scope, _: &str) -> Result<Vec<String>, StateError> {
        Ok(Vec::new())
    }

    async fn search(&self, _: &Scope, _: &str, _: usize) -> Result<Vec<SearchResult>, StateError> {
        Ok(Vec::new())
    }
}

#[cfg(feature = "faults")]
const LEDGER: &str = "CONTRACT_LEDGER";

#[cfg(feature = "faults")]
const LEDGERS: &str = r#"return require("swarm").blueprint { name = "ledgers",
  agents = { clerk = { operator = "clerk" } },
  flow = function(ctx)
    local desk = ctx:scope { custom = "desk" }
    ctx:run("clerk", { { "a", 1 }, { "b", 2 } })
    desk:set("a", desk:get("a") + 2)
    ctx:run("clerk", { { "a", 4 } })
    return desk:get("a") + desk:get("b")
  end }"#;

#[cfg(feature = "faults")]
async fn ledger(data: &Path) -> (Arc<Ledger>, Host) {
    let store = Arc::new(Ledger(data.join("ledger")));
    let kept: Arc<dyn StateStore> = Arc::clone(&store) as _;
    let code = Coded::default().and_store(&desk(), kept).and_operator("clerk", Clerk);
    (store, Host::open(config(data, code)).await.unwrap())
}

/// The process that dies where its environment says; without its variable it has nothing to do.
#[cfg(feature = "faults")]
#[tokio::test]
async fn the_process_that_dies_at_a_point_of_the_outbox() {
    let Some(data) = std::env::var_os(LEDGER) else { return };
    let (_, host) = ledger(Path::new(&data)).await;
    host.run(LEDGERS, &Value::Null).await.unwrap();
    host.stop(Duration::from_secs(5)).await;
}

#[cfg(feature = "faults")]
#[tokio::test]
async fn at_whatever_point_the_host_dies_the_changes_are_made_in_order_and_only_the_last_again() {
    use std::os::unix::process::ExitStatusExt as _;
    for at in [
        "engine.effect#1",
        "engine.outbox_sent#1",
        "engine.foreign_change#1",
        "engine.foreign_changed#1",
        "engine.foreign_change#2",
        "engine.foreign_changed#2",
        "engine.state_shared#1",
        "engine.state_shared#2",
        "engine.effect#3",
        "engine.foreign_changed#3",
    ] {
        let data = tempfile::tempdir().unwrap();
        let died = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "outbox::the_process_that_dies_at_a_point_of_the_outbox"])
            .env(LEDGER, data.path())
            .env("MOONSWARM_KILL_AT", at)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .unwrap();
        assert_eq!(died.signal(), Some(9), "{at} was not reached: {died}");

        let (store, host) = ledger(data.path()).await;
        let seen = Seen(&host);
        let runs = seen.get("/v1/runs").await;
        let run = runs["items"][0]["id"].as_str().expect("it had begun").parse::<RunId>().unwrap();
        let (owner, most) = (host.owner().unwrap(), Duration::from_secs(60));
        let view = host.engine().wait(&owner, run, WaitFor::Ended, most).await.unwrap();
        assert_eq!(view.output.unwrap().to_value(), 6, "{at}");
        host.stop(Duration::from_secs(5)).await;
        let mut lines = store.lines();
        let all = lines.len();
        lines.dedup();
        assert!(all - lines.len() <= 1, "{at}: more than one was made again");
        let made: Vec<&str> = lines.iter().map(|(_, what)| what.as_str()).collect();
        assert_eq!(made, ["a=1", "b=2", "a=3", "a=4"], "{at}");
    }
}
