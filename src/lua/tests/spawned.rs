//! Functions that run beside the flow, and what is left of them.

use super::*;

#[test]
fn spawned_functions_run_beside_the_flow() {
    let mut bench = Bench::new();
    let value = bench.value(
        r#"local f = ctx:spawn(function() return ctx:run("side", 5) end)
           local own = ctx:run("main", 1)
           return { own, f:await(), f:await() }"#,
    );
    assert_eq!(value, json!([1, 5, 5]));
    let value = bench.value(
        r#"local f = ctx:spawn(function() ctx:run("side") end)
           f:cancel()
           local ok, err = pcall(f.await, f)
           return { ok, err.kind }"#,
    );
    assert_eq!(value, json!([false, "canceled"]));
}

#[test]
fn what_a_flow_leaves_running_is_canceled_and_an_unheard_error_is_logged() {
    let (next, commands) = Bench::new().run(
        r#"ctx:spawn(function() ctx:run("forever") end)
           ctx:spawn(function() swarm.fail("oops", "quiet") end)
           ctx:run("main")
           return 1"#,
        |_| Ok(Value::Null),
    );
    // The oldest open step is "main": it was scheduled before the spawned function had its turn.
    assert_eq!(next, NextAction::Complete(Json::from(&json!(1))));
    let keys = keys(&commands);
    assert_eq!(keys[0], "2 main");
    assert!(keys.contains(&"cancel 0.0".to_owned()), "{keys:?}");
    assert!(keys.last().unwrap().contains("oops: quiet"), "{keys:?}");
}

#[test]
fn of_many_spawned_functions_that_failed_the_first_are_logged_and_the_rest_counted() {
    let (next, commands) = Bench::new().run(
        r#"for i = 1, 300 do
               ctx:spawn(function() error(string.rep("x", 100000)) end)
               ctx:run("turn")
           end
           return 1"#,
        |_| Ok(Value::Null),
    );
    assert_eq!(next, NextAction::Complete(Json::from(&json!(1))));
    let notes: Vec<String> = commands
        .iter()
        .filter(|command| matches!(command, Command::Note { .. }))
        .map(|command| format!("{command:?}"))
        .collect();
    assert_eq!(notes.len(), 101);
    assert!(notes.iter().all(|note| note.len() < 9_000), "each is clipped");
    assert!(notes[100].contains("200 more spawned functions failed"), "{}", notes[100]);
}

#[test]
fn a_spawned_function_that_has_returned_is_forgotten_and_may_still_be_awaited() {
    let mut bench = Bench::new();
    let value = bench.value(
        r#"local first
           for i = 1, 20000 do
               local task = ctx:spawn(function() return i end)
               first = first or task
               if i % 500 == 0 then ctx:run("turn") end
           end
           return first:await()"#,
    );
    assert_eq!(value, json!(1));
}
