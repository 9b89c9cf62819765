//! Loops in a session: the conversation that they share, and their turns in it.

use super::*;

fn in_session(script: &Value, session: &str) -> String {
    format!(
        r#"agents = {{ it = {{ operator = "model", system = [==[{script}]==], {ADD} }} }},
        flow = function(ctx, input) return ctx:run("it", input, {{ session = "{session}" }}) end"#
    )
}

#[tokio::test]
async fn a_session_goes_on_with_its_conversation_also_after_a_restart() {
    let loops = Loops::new();
    let script = json!(["one", [["add", { "a": 1, "b": 1 }]], "$seen"]);
    let first = loops.start(&in_session(&script, "conv"), "\"first\"").await;
    assert_eq!(loops.value_of(first).await, "one");
    loops.replays(first).await;
    let loops = loops.restart().await;
    let second = loops.start(&in_session(&script, "conv"), "\"second\"").await;
    assert_eq!(loops.value_of(second).await, r#"["2"]"#);
    are(
        &loops.steps(second).await,
        &[
            ("task", "it", "completed"),
            ("local", "recall", "completed"),
            ("model_call", "model", "completed"),
            ("tool_call", "add", "completed"),
            ("model_call", "model", "completed"),
            ("local", "keep", "completed"),
        ],
    );
    let asked = loops.asked();
    let seen = json!(asked[0].items).to_string();
    let places: Vec<_> = ["first", "one", "second"].map(|word| seen.find(word)).to_vec();
    assert!(places[0].is_some() && places.is_sorted(), "{seen}");
    loops.replays(second).await;
    for session in ["other", "conv"] {
        let run = loops.start(&in_session(&json!(["mine", "?", "?", "last"]), session), "1").await;
        let expected = if session == "other" { "mine" } else { "last" };
        assert_eq!(loops.value_of(run).await, expected);
    }
}

/// Runs of one session whose first answers are waited for; they say `one`, and `two` where they are
/// asked again.
fn both_wait() -> String {
    // An answer that was waited for counts as the 99th.
    let mut script = vec![json!({ "wait": "one" })];
    script.resize(100, Value::Null);
    script.push(json!("two"));
    in_session(&json!(script), "conv")
}

/// Starts the first run of a session. Its model is asked, and its answer is waited for.
async fn first_waits() -> (Loops, String, RunId) {
    let (loops, body) = (Loops::new(), both_wait());
    let first = loops.start(&body, "\"a\"").await;
    loops.until(first, "it is asked", |_| loops.asked().len() == 1).await;
    (loops, body, first)
}

#[tokio::test]
async fn of_two_loops_in_one_session_the_second_waits_for_the_first() {
    let (loops, body, first) = first_waits().await;
    let second = loops.start(&body, "\"b\"").await;
    loops.waiting(second, "conversation").await;
    assert_eq!(loops.asked().len(), 1);
    loops.gate.add_permits(1);
    assert_eq!(loops.value_of(first).await, "one");
    assert_eq!(loops.value_of(second).await, "two");
    let asked = loops.asked();
    assert_eq!((asked.len(), asked[1].items.len()), (2, 3), "with the answer of the other");
}

#[tokio::test]
async fn a_loop_that_waits_for_a_conversation_does_so_after_a_restart_too_and_a_cancel_ends_it() {
    let (loops, body, first) = first_waits().await;
    let runs = [loops.start(&body, "\"b\"").await, loops.start(&body, "\"c\"").await];
    for run in runs {
        loops.waiting(run, "conversation").await;
    }
    let loops = loops.restart().await;
    for run in runs {
        loops.waiting(run, "conversation").await;
    }
    loops.engine.cancel(&loops.admin(), runs[0], "no".into(), None).await.unwrap();
    loops.ended(runs[0]).await;
    loops.gate.add_permits(1);
    assert_eq!(loops.value_of(first).await, "one");
    assert_eq!(loops.value_of(runs[1]).await, "two");
}

#[tokio::test]
async fn of_two_loops_in_one_session_the_slower_one_answers_the_faster_ones_words_too() {
    let (loops, body, first) = first_waits().await;
    let second = loops.start(&body, "\"b\"").await;
    loops.waiting(second, "conversation").await;
    // The first takes too long: the second goes ahead.
    loops.clock.advance(Duration::from_secs(600));
    loops.until(second, "both are asked", |_| loops.asked().len() == 2).await;
    loops.gate.add_permits(2);
    let mut values = [loops.value_of(first).await, loops.value_of(second).await];
    values.sort_by_key(Value::to_string);
    assert_eq!(values, ["one", "two"]);
    assert_eq!(loops.asked().last().unwrap().items.len(), 3, "with the answer of the other");
    for run in [first, second] {
        loops.replays(run).await;
    }
}
