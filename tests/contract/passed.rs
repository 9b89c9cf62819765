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
