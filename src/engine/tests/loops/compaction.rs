//! Long conversations: summaries, and turns that leave a conversation.

use super::*;

#[tokio::test]
async fn a_long_conversation_is_summed_up_in_a_step_of_its_own() {
    let loops = Loops::new();
    let keys = format!(r#"compaction = {{ at = 50, keep = 1, strategy = "summarize" }}, {ADD}"#);
    let script = json!([[["add", { "a": 1, "b": 0 }]], [["add", { "a": 2, "b": 0 }]], "$seen"]);
    let run = loops.begin(&script, &keys, "").await;
    assert_eq!(loops.value_of(run).await, r#"["2"]"#);
    let last = loops.asked().pop().unwrap();
    assert!(last.items[1].to_string().contains("in short"), "{:?}", last.items);
    let complete = |fact: &Fact| matches!(fact, Fact::Decided(Decision::Told { kind, data, .. }) if kind == "compaction" && data.as_str().contains("compaction_complete"));
    assert_eq!(loops.count(run, complete), 1);
    let compact = ("local".to_owned(), "compact".to_owned(), "completed".to_owned());
    assert!(loops.steps(run).await.contains(&compact));
    loops.replays(run).await;
}

#[tokio::test]
async fn turns_that_leave_a_conversation_are_in_state_first() {
    let script = json!([
        [["add", { "a": 1, "b": 0 }]], [["add", { "a": 2, "b": 0 }]], [["add", { "a": 3, "b": 0 }]], "$seen",
    ]);
    for (scope, read) in
        [("", "ctx.state"), ("scope = \"custom:log\",", "ctx:scope { custom = \"log\" }")]
    {
        let loops = Loops::new();
        let body = format!(
            r#"agents = {{ it = {{ operator = "model", system = [==[{script}]==], {ADD},
                compaction = {{ at = 100, keep = 1, flush = {{ {scope} prefix = "log/" }} }} }} }},
            flow = function(ctx)
                local said = ctx:run("it")
                local kept = {read}
                local all = {{}}
                for _, key in kept:list("log/") do table.insert(all, {{ key = key, value = kept:get(key) }}) end
                return {{ said = said, all = all }}
            end"#
        );
        let run = loops.start(&body, "null").await;
        let value = loops.value_of(run).await;
        assert_eq!(value["said"], r#"["3"]"#);
        let all = value["all"].as_array().unwrap();
        let keys: Vec<&Value> = all.iter().map(|it| &it["key"]).collect();
        assert_eq!(keys, ["log/it/1/1", "log/it/1/2"]);
        assert_eq!(all[1]["value"]["turn"], 2);
        assert_eq!(all[1]["value"]["items"][1]["output"], "2");
        let told = lifecycle(&loops, run, "compaction");
        let flushed = words(&told).iter().position(|it| *it == "pre_compaction_flush").unwrap();
        let gone = words(&told).iter().position(|it| *it == "compaction_complete").unwrap();
        assert!(flushed < gone, "{told:?}");
        let flush = ("local".to_owned(), "flush".to_owned(), "completed".to_owned());
        assert_eq!(loops.steps(run).await.iter().filter(|step| **step == flush).count(), 2);
        loops.replays(run).await;
    }
}

#[tokio::test]
async fn what_cannot_be_written_to_state_stays_in_the_conversation() {
    let loops = Loops::new();
    let keys =
        format!(r#"compaction = {{ at = 100, keep = 1, flush = {{ scope = "session" }} }}, {ADD}"#);
    let script = json!([[["add", { "a": 1, "b": 0 }]], [["add", { "a": 2, "b": 0 }]], "$seen"]);
    let run = loops.begin(&script, &keys, "").await;
    assert_eq!(loops.value_of(run).await, r#"["1","2"]"#);
    let told = lifecycle(&loops, run, "compaction");
    let failed = told.iter().find(|it| it["type"] == "flush_failed").expect("it is told");
    assert_eq!(failed["key"], "turns/it/1/1");
    assert!(failed["error"].as_str().unwrap().contains("belongs to no session"), "{failed}");
    assert_eq!(words(&told).last(), Some(&"compaction_skipped"));
    loops.replays(run).await;
}
