//! Environments and layers of execution that are written against the protocol alone.

use async_trait::async_trait;
use moonswarm::{
    middleware::{ExecStack, ProtocolExec},
    protocol::{
        EnvError, Environment, EnvironmentSpec,
        middleware::{ExecMiddleware, ExecNext},
    },
};

use super::*;

/// What an environment answers with.
type Answers = fn() -> Result<OperatorOutput, EnvError>;

/// Keeps what it is asked to execute, and answers with what is sent to it.
struct Answering {
    seen: Arc<Mutex<Vec<(OperatorInput, EnvironmentSpec)>>>,
    answers: Answers,
}

#[async_trait]
impl Environment for Answering {
    async fn run(
        &self,
        input: OperatorInput,
        spec: &EnvironmentSpec,
    ) -> Result<OperatorOutput, EnvError> {
        self.seen.lock().unwrap().push((input, spec.clone()));
        (self.answers)()
    }
}

const BOXED: &str = r#"return require("swarm").blueprint { name = "boxed",
  agents = { w = { operator = "process", environment = "box", command = { "sh", "-c", "{{ script }}" },
    env = { MODE = "fast" } } },
  flow = function(ctx, input)
    local ok, value = pcall(ctx.run, ctx, "w", { script = "exit 7" })
    return if ok then { value = value } else { kind = value.kind, message = value.message }
  end }"#;

#[tokio::test]
async fn a_process_goes_through_an_environment_in_code_that_it_names() {
    let data = tempfile::tempdir().unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let cases: [(Answers, Value); 3] = [
        (
            || Ok(OperatorOutput::new(Content::text("{\"n\": 1}"), ExitReason::Complete)),
            json!({ "value": { "n": 1 } }),
        ),
        (
            || Err(EnvError::ResourceExceeded("memory: too much".to_owned())),
            json!({ "kind": "limit", "message": "resource limit exceeded: memory: too much" }),
        ),
        (
            || Err(EnvError::OperatorError(OperatorError::NonRetryable("it broke".to_owned()))),
            json!({ "kind": "worker", "message": "non-retryable: it broke" }),
        ),
    ];
    for (answers, expected) in cases {
        let environment = Answering { seen: Arc::clone(&seen), answers };
        let code = Coded::default().and_environment("box", Arc::new(environment));
        let mut config = config(data.path(), code);
        let declared = json!({ "isolation": "local", "resources": { "memory": "1Gi" } });
        let declared = serde_json::from_value(declared).unwrap();
        config.environments.environments.insert("box".to_owned(), declared);
        let host = Host::open(config).await.unwrap();
        let run = host.run(BOXED, &Value::Null).await.unwrap();
        assert_eq!(run.output.unwrap().to_value(), expected);
        host.stop(Duration::from_secs(5)).await;
    }
    let seen = seen.lock().unwrap();
    let (input, spec) = &seen[0];
    assert_eq!(input.message.as_text(), Some(r#"{"script":"exit 7"}"#), "as on stdin");
    let command = &input.metadata["moonswarm"]["command"];
    assert_eq!(command["program"], "sh");
    assert_eq!(command["args"], json!(["-c", "exit 7"]), "the host ran nothing");
    assert_eq!(command["env"]["MODE"], "fast");
    assert!(command["env"]["MOONSWARM_HANDLE"].is_string() && command["env"]["PATH"].is_null());
    let memory = spec.resources.as_ref().and_then(|it| it.memory.as_deref());
    assert_eq!(memory, Some("1Gi"), "what the configuration says of the name");
}

#[tokio::test]
async fn an_environment_in_code_needs_no_declaration_and_gives_what_this_machine_cannot() {
    let data = tempfile::tempdir().unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let answers = || Ok(OperatorOutput::new(Content::text("fine"), ExitReason::Complete));
    let environment = Arc::new(Answering { seen: Arc::clone(&seen), answers });
    for declared in [None, Some(json!({ "resources": { "gpu": "1" } }))] {
        let environment: Arc<dyn Environment> = Arc::clone(&environment) as _;
        let code = Coded::default().and_environment("box", environment);
        let mut config = config(data.path(), code);
        let declared = declared.map(|it| serde_json::from_value(it).unwrap());
        config.environments.environments.extend(declared.map(|it| ("box".to_owned(), it)));
        let host = Host::open(config).await.unwrap();
        let run = host.run(BOXED, &Value::Null).await.unwrap();
        assert_eq!(run.output.unwrap().to_value(), json!({ "value": "fine" }));
        host.stop(Duration::from_secs(5)).await;
    }
    assert_eq!(seen.lock().unwrap()[0].1, EnvironmentSpec::new());
}

/// Stands around what it is told to: says what it saw, and refuses or changes it.
struct Watches {
    seen: Arc<Mutex<Vec<String>>>,
    refuses: bool,
}

#[async_trait]
impl ExecMiddleware for Watches {
    async fn run(
        &self,
        mut input: OperatorInput,
        spec: &EnvironmentSpec,
        next: &dyn ExecNext,
    ) -> Result<OperatorOutput, EnvError> {
        let kind = input.metadata["moonswarm"]["kind"].as_str().unwrap_or_default().to_owned();
        self.seen.lock().unwrap().push(kind.clone());
        if self.refuses {
            return Err(EnvError::IsolationViolation("not here".to_owned()));
        }
        if kind == "custom" {
            input.message = Content::text("changed");
        }
        let mut output = next.run(input, spec).await?;
        if kind == "lua" {
            output.message = Content::text("by the layer");
        }
        Ok(output)
    }
}

const KINDS: &str = r#"return require("swarm").blueprint { name = "kinds",
  agents = { l = { operator = "lua", fn = function() return "own" end },
    c = { operator = "witness" }, m = { operator = "model", fn = function() return "said" end },
    p = { operator = "process", command = { "echo", "\"printed\"" } } },
  flow = function(ctx)
    local done = {}
    for _, name in ipairs { "l", "c", "m", "p" } do
      local ok, value = pcall(ctx.run, ctx, name, "x")
      done[name] = if ok then value else value.kind
    end
    return done
  end }"#;

async fn around(kinds: Option<&[&str]>, refuses: bool) -> (Vec<String>, Value, Witness) {
    let (data, seen) = (tempfile::tempdir().unwrap(), Arc::default());
    let witness = Witness::new(ExitReason::Complete);
    let layer = Watches { seen: Arc::clone(&seen), refuses };
    let layer = ProtocolExec::new("watches", Arc::new(layer));
    let layer = match kinds {
        Some(kinds) => layer.around(kinds.iter().copied()),
        None => layer,
    };
    let mut stacks = Stacks::default();
    stacks.exec = ExecStack::builder().guard(layer).build();
    let code = Coded::default().and_operator("witness", witness.clone());
    let middleware = Middleware { code: stacks, layers: Vec::new() };
    let operators = "[operators.model]\nkind = \"llm\"\napi = \"script\"".parse().unwrap();
    let config = HostConfig { middleware, operators, ..config(data.path(), code) };
    let host = Host::open(config).await.unwrap();
    let run = host.run(KINDS, &Value::Null).await.unwrap();
    host.stop(Duration::from_secs(5)).await;
    let seen = seen.lock().unwrap().clone();
    (seen, run.output.unwrap().to_value(), witness)
}

#[tokio::test]
async fn a_layer_of_execution_stands_around_the_kinds_that_it_names() {
    let (seen, output, _) = around(None, true).await;
    assert_eq!((seen.as_slice(), &output["p"]), (&["process".to_owned()][..], &json!("refused")));
    assert_eq!((&output["l"], &output["m"]), (&json!("own"), &json!("said")));

    let (seen, output, witness) = around(Some(&["lua", "llm", "custom"]), false).await;
    assert_eq!(seen, ["lua", "custom", "llm"]);
    assert_eq!((&output["l"], &output["m"]), (&json!("by the layer"), &json!("said")));
    assert_eq!(output["p"], "printed", "programs are not named");
    assert_eq!(witness.seen().metadata["moonswarm"]["input"], "changed");

    let (_, output, witness) = around(Some(&["lua", "llm", "custom"]), true).await;
    for name in ["l", "c", "m"] {
        assert_eq!(output[name], "refused", "{output}");
    }
    assert!(witness.seen.lock().unwrap().is_empty(), "nobody was asked");
}
