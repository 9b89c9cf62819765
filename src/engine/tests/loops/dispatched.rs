//! Dispatches to a model: the settings of the call hold for its loop, and its answer is an output
//! also where it stopped early.

use rust_decimal::Decimal;

use super::*;
use crate::protocol::{
    ContentBlock, DurationMs, ExitReason, ImageSource, OperatorConfig, OperatorOutput,
};

/// An input for a model that says `script`.
fn input(script: &Value, config: OperatorConfig) -> OperatorInput {
    OperatorInput::new(Content::text("go"), TriggerType::Task)
        .with_config(config.with_system_addendum(script.to_string()))
}

async fn dispatched(loops: &Loops, input: OperatorInput) -> OperatorOutput {
    loops.engine.orchestrator(loops.admin()).dispatch(&"model".into(), input).await.unwrap()
}

fn plain() -> OperatorConfig {
    OperatorConfig::default()
}

#[tokio::test]
async fn a_dispatched_loop_has_the_settings_of_its_call() {
    let loops = Loops::new();
    let script = json!([[["nobody"]], "done"]);
    let answer = dispatched(&loops, input(&script, plain().with_model("m-9"))).await;
    assert_eq!(
        (answer.message.as_text(), &answer.exit_reason),
        (Some("done"), &ExitReason::Complete)
    );
    let metadata = &answer.metadata;
    assert_eq!((metadata.turns_used, metadata.tokens_in, metadata.tokens_out), (2, 200, 20));
    assert_eq!(metadata.cost, Decimal::new(2, 2));
    let asked = loops.asked().remove(0);
    assert_eq!(asked.model.as_deref(), Some("m-9"));
    assert_eq!(asked.instructions.as_deref(), Some(&*script.to_string()));
    assert_eq!(asked.items, [crate::flow::response::user_message("go")]);
}

#[tokio::test]
async fn a_dispatched_loop_that_stops_early_has_an_answer_of_its_own() {
    let loops = Loops::new();
    let script = json!([[["nobody"]], [["nobody", { "a": 1 }]], "done"]);
    let answer = dispatched(&loops, input(&script, plain().with_max_turns(1))).await;
    assert_eq!((&answer.exit_reason, answer.metadata.turns_used), (&ExitReason::MaxTurns, 1));
    let cheap = plain().with_max_cost(Decimal::new(2, 2));
    let answer = dispatched(&loops, input(&script, cheap)).await;
    assert_eq!((answer.exit_reason, answer.metadata.turns_used), (ExitReason::BudgetExhausted, 2));
    let error = loops
        .engine
        .orchestrator(loops.admin())
        .dispatch(&"model".into(), input(&json!([{ "fail": "worker" }]), plain()))
        .await
        .unwrap_err();
    assert!(error.to_string().contains("the script says so"), "{error}");
}

#[tokio::test]
async fn a_dispatched_loop_ends_when_its_time_is_over() {
    let loops = Loops::new();
    let short = plain().with_max_duration(DurationMs::from_secs(60));
    let dispatch = dispatched(&loops, input(&json!([{ "wait": "late" }]), short));
    let ends = async {
        while loops.asked().is_empty() {
            tokio::task::yield_now().await;
        }
        loops.clock.advance(Duration::from_secs(61));
    };
    let (answer, ()) = futures::join!(dispatch, ends);
    assert_eq!(answer.exit_reason, ExitReason::Timeout);
}

#[tokio::test]
async fn blocks_of_a_dispatched_message_reach_the_model_as_they_are() {
    let loops = Loops::new();
    let blocks = vec![
        ContentBlock::Text { text: "look".into() },
        ContentBlock::Image {
            source: ImageSource::Base64 { data: "AAAA".into() },
            media_type: "image/png".into(),
        },
        ContentBlock::Custom { content_type: "x/y".into(), data: json!({ "n": 1 }) },
    ];
    dispatched(&loops, OperatorInput::new(Content::Blocks(blocks), TriggerType::User)).await;
    let content = loops.asked().remove(0).items.remove(0)["content"].clone();
    assert_eq!(content[0], json!({ "type": "input_text", "text": "look" }));
    let image = json!({ "type": "input_image", "image_url": "data:image/png;base64,AAAA" });
    assert_eq!(content[1], image);
    assert_eq!(content[2]["type"], "input_text");
}
