//! A scope of state in a store that is written against the protocol alone.

use std::{collections::BTreeMap, sync::atomic::Ordering::SeqCst};

use async_trait::async_trait;
use moonswarm::protocol::{SearchResult, StateError, StateReader, StateStore};

use super::*;

/// A store in memory, or in a file; its first writes fail if it is told so, and its writes may stall.
#[derive(Default)]
struct Shelf {
    values: Mutex<BTreeMap<String, Value>>,
    writes: std::sync::atomic::AtomicU32,
    fails: u32,
    stalls: bool,
}

#[async_trait]
impl StateStore for Shelf {
    async fn read(&self, _: &Scope, key: &str) -> Result<Option<Value>, StateError> {
        // As one that waits for a network.
        tokio::time::sleep(Duration::from_millis(1)).await;
        Ok(self.values.lock().unwrap().get(key).cloned())
    }

    async fn write(&self, scope: &Scope, key: &str, value: Value) -> Result<(), StateError> {
        assert_eq!(*scope, shelf());
        if self.stalls {
            println!("writing {key}");
            std::future::pending::<()>().await;
        }
        if self.writes.fetch_add(1, SeqCst) < self.fails {
            return Err(StateError::WriteFailed("not now".to_owned()));
        }
        if value == "refused" {
            return Err(StateError::Serialization("not that".to_owned()));
        }
        self.values.lock().unwrap().insert(key.to_owned(), value);
        Ok(())
    }

    async fn delete(&self, _: &Scope, key: &str) -> Result<(), StateError> {
        self.values.lock().unwrap().remove(key);
        Ok(())
    }

    async fn list(&self, _: &Scope, prefix: &str) -> Result<Vec<String>, StateError> {
        let values = self.values.lock().unwrap();
        Ok(values.keys().filter(|key| key.starts_with(prefix)).cloned().collect())
    }

    async fn search(
        &self,
        _: &Scope,
        query: &str,
        _: usize,
    ) -> Result<Vec<SearchResult>, StateError> {
        let values = self.values.lock().unwrap();
        let found = values.iter().filter(|(_, value)| value.to_string().contains(query));
        Ok(found.map(|(key, _)| SearchResult::new(key.clone(), 1.0)).collect())
    }
}

fn shelf() -> Scope {
    Scope::Custom("shelf".into())
}

const SHELVES: &str = r#"return require("swarm").blueprint { name = "shelves",
  agents = { reads = { operator = "reads" }, writes = { operator = "writes" } },
  flow = function(ctx)
    local shelf = ctx:scope { custom = "shelf" }
    shelf:set("a", { n = 1 })
    shelf:set("b", "moon")
    shelf:set("c", 3)
    shelf:delete("c")
    local function fails(f, ...)
      local ok, err = pcall(f, ...)
      return if ok then "done" else err.message
    end
    return {
      a = shelf:get("a").n, missing = shelf:get("c") == nil, keys = shelf:list(""),
      found = #shelf:search("moon"), read = ctx:run("reads", "b"),
      add = fails(shelf.add, shelf, "a", 1), refused = fails(shelf.set, shelf, "r", "refused"),
      effect = fails(ctx.run, ctx, "writes", "x"), wrote = shelf:get("k"),
    }
  end }"#;

/// Writes to the shelf by an effect.
struct Writes;

#[async_trait]
impl Operator for Writes {
    async fn execute(&self, _: OperatorInput) -> Result<OperatorOutput, OperatorError> {
        let mut output = OperatorOutput::new(Content::text("done"), ExitReason::Complete);
        let mut effect = written("x");
        if let Effect::WriteMemory { scope, .. } = &mut effect {
            *scope = shelf();
        }
        output.effects.push(effect);
        Ok(output)
    }
}

/// Reads from the shelf.
struct Reads(Arc<dyn StateReader>);

#[async_trait]
impl Operator for Reads {
    async fn execute(&self, input: OperatorInput) -> Result<OperatorOutput, OperatorError> {
        let key = input.metadata["moonswarm"]["input"].as_str().unwrap_or_default().to_owned();
        let value = self.0.read(&shelf(), &key).await;
        let value = value.map_err(|error| OperatorError::NonRetryable(error.to_string()))?;
        Ok(OperatorOutput::new(
            Content::text(value.unwrap_or_default().to_string()),
            ExitReason::Complete,
        ))
    }
}

#[tokio::test]
async fn a_scope_is_kept_in_a_store_of_ones_own() {
    let data = tempfile::tempdir().unwrap();
    let store = Arc::new(Shelf { fails: 1, ..Shelf::default() });
    let kept: Arc<dyn StateStore> = Arc::clone(&store) as _;
    let code = Coded::default()
        .and_store(&shelf(), kept)
        .and_reader("reads", Reads)
        .and_operator("writes", Writes);
    let host = Host::open(config(data.path(), code)).await.unwrap();
    let run = host.run(SHELVES, &Value::Null).await.unwrap();
    let output = run.output.unwrap().to_value();
    assert_eq!((&output["a"], &output["missing"]), (&json!(1), &json!(true)), "{output}");
    assert_eq!((&output["keys"], &output["found"]), (&json!(["a", "b"]), &json!(1)), "{output}");
    assert_eq!(output["read"], "moon", "{output}");
    assert_eq!((&output["effect"], &output["wrote"]), (&json!("done"), &json!(1)), "{output}");
    for (key, part) in [("add", "written whole"), ("refused", "not that")] {
        assert!(output[key].as_str().unwrap().contains(part), "{key}: {output}");
    }
    // The first write failed, and was made again.
    assert_eq!(store.writes.load(SeqCst), 6);
    assert_eq!(store.values.lock().unwrap().len(), 3);

    // Callers reach it too.
    let http = moonswarm::environment::http_client().no_proxy().build().unwrap();
    let url = format!("{}/v1/state/custom:shelf/d", host.url());
    let put =
        http.put(&url).bearer_auth(host.admin_token()).json(&json!({ "value": "new" })).send();
    assert!(put.await.unwrap().status().is_success());
    assert_eq!(store.values.lock().unwrap()["d"], "new");
    let got = http.get(&url).bearer_auth(host.admin_token()).send().await.unwrap();
    assert_eq!(got.json::<Value>().await.unwrap()["value"], "new");
    host.stop(Duration::from_secs(5)).await;
}

const SHELF: &str = "CONTRACT_SHELF";

/// The process that is killed while it writes; without its variable it has nothing to do.
#[tokio::test]
async fn the_process_that_is_killed_while_it_writes() {
    let Some(data) = std::env::var_os(SHELF) else { return };
    let store = Arc::new(Shelf { stalls: true, ..Shelf::default() });
    let code = Coded::default().and_store(&shelf(), store);
    let host = Host::open(config(Path::new(&data), code)).await.unwrap();
    let bundle = moonswarm::blueprint::Bundle::from_source("killed.lua", KILLED_FLOW).unwrap();
    let start = moonswarm::engine::StartRun {
        trigger: Json::from(json!({ "kind": "embedded" })),
        ..moonswarm::engine::StartRun::new(moonswarm::engine::Program::Bundle(bundle))
    };
    let run = host.engine().start(&host.owner().unwrap(), start, None).await.unwrap().run;
    println!("run {run}");
    std::future::pending::<()>().await;
}

const KILLED_FLOW: &str = r#"return require("swarm").blueprint { name = "killed",
  flow = function(ctx)
    ctx:scope { custom = "shelf" }:set("k", "written")
    return "done"
  end }"#;

#[tokio::test]
async fn what_was_asked_of_a_store_is_written_after_a_kill_too() {
    let data = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "stores::the_process_that_is_killed_while_it_writes", "--nocapture"])
        .env(SHELF, data.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let (mut run, mut writing) = (None, false);
    for line in lines {
        run = run.or_else(|| line.split_once("run run_").map(|(_, id)| format!("run_{id}")));
        writing |= line.contains("writing k");
        if run.is_some() && writing {
            break;
        }
    }
    child.kill().unwrap();
    child.wait().unwrap();

    let store = Arc::new(Shelf::default());
    let kept: Arc<dyn StateStore> = Arc::clone(&store) as _;
    let code = Coded::default().and_store(&shelf(), kept);
    let host = Host::open(config(data.path(), code)).await.unwrap();
    let run = run.expect("it started").trim().parse::<RunId>().unwrap();
    let (owner, most) = (host.owner().unwrap(), Duration::from_secs(60));
    let view = host.engine().wait(&owner, run, WaitFor::Ended, most).await.unwrap();
    assert_eq!(view.output.unwrap().to_value(), "done");
    host.stop(Duration::from_secs(5)).await;
    assert_eq!(store.values.lock().unwrap().get("k"), Some(&json!("written")));
}
