//! What an operator passes on to another one: a delegate, a handoff, and whom it may name.

use super::*;

/// Passes what it is asked on to another operator.
struct Passes(Effect);

#[async_trait]
impl Operator for Passes {
    async fn execute(&self, _: OperatorInput) -> Result<OperatorOutput, OperatorError> {
        let mut output = OperatorOutput::new(Content::text("passed on"), ExitReason::Complete);
        output.effects.push(self.0.clone());
        Ok(output)
    }
}

fn handoff(operator: &str) -> Effect {
    Effect::Handoff { operator: operator.into(), state: json!({ "left": 2 }) }
}

fn delegate(operator: &str) -> Effect {
    let config = OperatorConfig::default().with_system_addendum("be brief");
    let input = OperatorInput::new(Content::text("pick a word"), TriggerType::Task);
    Effect::Delegate { operator: operator.into(), input: Box::new(input.with_config(config)) }
}

/// A host with an operator that passes on, a witness, and a model with its turns.
async fn host(data: &Path, effect: Effect, witness: &Witness, turns: &Value) -> Host {
    let code = Coded::default()
        .and_operator("passes", Passes(effect))
        .and_operator("witness", witness.clone());
    let file = data.join("turns.json");
    std::fs::write(&file, turns.to_string()).unwrap();
    let operators =
        format!("[operators.model]\nkind = \"llm\"\napi = \"script\"\nturns = {file:?}");
    let operators = operators.parse().unwrap();
    Host::open(HostConfig { operators, ..config(data, code) }).await.unwrap()
}

#[tokio::test]
async fn a_handoff_to_an_operator_that_is_not_allowed_is_refused() {
    for (allowed, is_refused) in [(None, false), (Some("witness"), false), (Some("echo"), true)] {
        let data = tempfile::tempdir().unwrap();
        let witness = Witness::new(ExitReason::Complete);
        let host = host(data.path(), handoff("witness"), &witness, &json!([])).await;
        let mut config = OperatorConfig::default();
        if let Some(allowed) = allowed {
            config = config.with_allowed_operators(vec![allowed.to_owned()]);
        }
        let asked = OperatorInput::new(Content::text("x"), TriggerType::User).with_config(config);
        let output = Orchestrator::dispatch(host.engine(), &"passes".into(), asked).await;
        assert_eq!(witness.seen.lock().unwrap().is_empty(), is_refused, "{output:?}");
        match output {
            Ok(output) => {
                assert!(!is_refused);
                assert_eq!(output.metadata.sub_dispatches[0].name, "witness");
            }
            Err(error) => assert!(is_refused && error.to_string().contains("may call (echo)")),
        }
        host.stop(Duration::from_secs(5)).await;
    }
}

#[tokio::test]
async fn a_model_takes_what_is_passed_on_to_it_and_answers_with_its_text() {
    for (effect, when) in [(delegate("model"), "pick a word"), (handoff("model"), "left")] {
        let data = tempfile::tempdir().unwrap();
        let witness = Witness::new(ExitReason::Complete);
        let turns =
            json!([{ "when": when, "text": "sesame", "usage": { "input": 3, "output": 4 } }]);
        let host = host(data.path(), effect, &witness, &turns).await;
        let asked = OperatorInput::new(Content::text("x"), TriggerType::User);
        let output = Orchestrator::dispatch(host.engine(), &"passes".into(), asked).await.unwrap();
        assert_eq!(output.message.as_text(), Some("sesame"));
        assert_eq!((output.metadata.tokens_in, output.metadata.tokens_out), (3, 4));
        assert_eq!(output.metadata.sub_dispatches[0].name, "model");
        host.stop(Duration::from_secs(5)).await;
    }
}

#[tokio::test]
async fn an_operator_skips_a_task_by_an_effect() {
    let data = tempfile::tempdir().unwrap();
    let effect = Effect::Custom {
        effect_type: "skip".to_owned(),
        data: json!({ "reason": "nothing to do" }),
    };
    let witness = Witness::new(ExitReason::Complete);
    let host = host(data.path(), effect.clone(), &witness, &json!([])).await;
    let source = r#"local s = require("swarm").schema
return require("swarm").blueprint { name = "skips",
  agents = { w = { operator = "passes", output = s.object { n = s.integer } } },
  flow = function(ctx) return { got = tostring(ctx:run("w", "x")) } end }"#;
    let run = host.run(source, &Value::Null).await.unwrap();
    assert_eq!(run.output.unwrap().to_value(), json!({ "got": "nil" }));
    let asked = OperatorInput::new(Content::text("x"), TriggerType::User);
    let output = Orchestrator::dispatch(host.engine(), &"passes".into(), asked).await.unwrap();
    assert_eq!(output.effects, [effect], "it is for whoever asked");
    host.stop(Duration::from_secs(5)).await;
}

const AUDITED: &str = r#"return require("swarm").blueprint { name = "audited", edition = 2,
  agents = {
    works = { operator = "lua", audit = { "looks", "fails" }, fn = function(input)
      if input.bad then error("bad") end
      return { n = input.n * 2 }
    end },
    looks = { operator = "lua", audit = "looks", fn = function(seen) return { saw = seen } end },
    fails = { operator = "lua", fn = function() error("an auditor that fails") end },
  },
  flow = function(ctx)
    local ran = ctx:run("works", { n = 1 })
    local tried = ctx:try("works", { n = 2 })
    local none, problem = ctx:try("works", { bad = true })
    return { ran = ran.n, tried = tried.n, none = none == nil and problem ~= nil }
  end }"#;

#[tokio::test]
async fn auditors_look_at_each_result_and_change_nothing() {
    let data = tempfile::tempdir().unwrap();
    let host = Host::open(config(data.path(), Coded::default())).await.unwrap();
    let run = host.run(AUDITED, &Value::Null).await.unwrap();
    assert_eq!(run.output.unwrap().to_value(), json!({ "ran": 2, "tried": 4, "none": true }));
    let owner = host.owner().unwrap();
    let steps = host.engine().steps(&owner, run.id, 0, 99).await.unwrap().items;
    let of = |name: &str| steps.iter().filter(|it| it.kind == "task" && it.name == name).count();
    assert_eq!((of("works"), of("looks"), of("fails")), (3, 2, 2), "what failed is not audited");
    let files = host.engine().tasks().artifacts(&owner, run.id).await.unwrap();
    assert_eq!(files.len(), 2);
    assert_eq!(files[0].name, "audit-works.json");
    let (_, bytes) = host.engine().tasks().artifact(&owner, files[0].id).await.unwrap();
    let found: Value = serde_json::from_slice(&bytes).unwrap();
    let seen = json!({ "agent": "works", "input": { "n": 1 }, "output": { "n": 2 } });
    assert_eq!(found["saw"], seen);
    host.stop(Duration::from_secs(5)).await;
}
