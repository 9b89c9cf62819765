use super::*;
use crate::{
    blueprint::Bundle,
    engine::{Engine, Stage},
    operator::{Backend, Echo, Registry},
    store::RunFilter,
};

const HOUR: u64 = 3_600_000;

fn source(missed: &str) -> String {
    format!(
        r#"local swarm = require("swarm")
return swarm.blueprint {{
  name = "nightly",
  agents = {{ e = {{ operator = "echo" }} }},
  on = {{ {{ schedule = "0 * * * *", missed = "{missed}", input = {{ kind = "hourly" }} }}, {{ signal = "opened" }} }},
  flow = function(ctx, input) return {{ input = input, trigger = ctx.trigger }} end,
}}"#
    )
}

fn stage(missed: &str) -> Stage {
    let echo: Arc<dyn Backend> = Arc::new(Echo);
    let mut stage =
        Stage::set(&Registry::new(BTreeMap::from([("echo".to_owned(), echo)]))).unwrap();
    let bundle = Bundle::from_source("nightly.lua", source(missed)).unwrap();
    stage
        .ask(move |engine, _| {
            let bundle = bundle.clone();
            async move { engine.blueprints().adopt_blueprint(bundle).await.map(drop) }
        })
        .unwrap();
    stage
}

fn look(stage: &mut Stage) -> u64 {
    stage
        .ask(|engine, _| async move { engine.triggers().run_schedules(&mut Schedules::default()).await })
        .unwrap()
}

/// Returns the trigger times of all runs, oldest first.
fn runs(stage: &mut Stage) -> Vec<String> {
    let filter = || RunFilter { limit: 100, ..RunFilter::default() };
    let page =
        stage.ask(move |engine, by| async move { engine.runs(&by, filter()).await }).unwrap();
    let mut times = Vec::new();
    for run in page.items.into_iter().rev() {
        let id = run.id;
        let view = stage.ask(move |engine, by| async move { engine.run(&by, id).await }).unwrap();
        let output = view.output.unwrap().to_value();
        assert_eq!(output["input"]["kind"], "hourly");
        times.push(output["trigger"]["at"].as_str().unwrap().to_owned());
    }
    times
}

#[test]
fn a_schedule_starts_a_run_at_its_time_and_none_twice() {
    let mut stage = stage("once");
    let begin = stage.now_ms();
    assert_eq!(look(&mut stage), begin + REST_MS, "what is new begins now");
    stage.pass_to(begin + HOUR);
    look(&mut stage);
    look(&mut stage);
    stage.settle().unwrap();
    assert_eq!(runs(&mut stage).len(), 1);
    stage.pass_to(begin + 2 * HOUR - 5_000);
    assert_eq!(look(&mut stage), begin + 2 * HOUR, "it looks again when it is due");
}

#[test]
fn what_was_missed_is_passed_over_or_done_once_or_done_for_each() {
    for (missed, expected) in [("skip", 0), ("once", 1), ("all", 5)] {
        let mut stage = stage(missed);
        look(&mut stage);
        let begin = stage.now_ms();
        stage.pass_to(begin + 5 * HOUR + HOUR / 2);
        look(&mut stage);
        stage.settle().unwrap();
        let runs = runs(&mut stage);
        assert_eq!(runs.len(), expected, "{missed}: {runs:?}");
        look(&mut stage);
        stage.settle().unwrap();
        assert_eq!(self::runs(&mut stage).len(), expected, "{missed}");
    }
}

#[test]
fn a_schedule_that_was_checked_while_the_clock_was_far_ahead_goes_on() {
    let mut stage = stage("once");
    look(&mut stage);
    let begin = stage.now_ms();
    let checked = json!({ "0 * * * * UTC": begin + 365 * 24 * HOUR }).to_string();
    stage
        .ask(move |engine, _| {
            let (key, value) = ("schedules:nightly".to_owned(), checked.clone());
            async move { engine.write(Vec::new(), vec![Write::PutMeta { key, value }]).await }
        })
        .unwrap();
    look(&mut stage);
    stage.pass_to(begin + HOUR);
    look(&mut stage);
    stage.settle().unwrap();
    assert_eq!(runs(&mut stage).len(), 1);
}

#[test]
fn an_archived_blueprint_is_not_started_and_misses_nothing_until_it_is_restored() {
    let mut stage = stage("all");
    look(&mut stage);
    let begin = stage.now_ms();
    stage.pass_to(begin + HOUR);
    look(&mut stage);
    stage.settle().unwrap();
    stage
        .ask(|engine, by| async move { engine.blueprints().archive(&by, "nightly").await })
        .unwrap();
    stage.pass_to(begin + 4 * HOUR);
    look(&mut stage);
    stage.settle().unwrap();
    assert_eq!(runs(&mut stage).len(), 1);
    stage
        .ask(|engine, by| async move { engine.blueprints().restore(&by, "nightly").await })
        .unwrap();
    look(&mut stage);
    stage.pass_to(begin + 5 * HOUR);
    look(&mut stage);
    stage.settle().unwrap();
    assert_eq!(runs(&mut stage).len(), 2, "from then on");
}

#[test]
fn a_crash_after_any_write_starts_no_run_twice_and_forgets_none() {
    let play = |crash: Option<u64>| {
        let mut stage = stage("all");
        if let Some(commit) = crash {
            stage.crash_after(commit);
        }
        look(&mut stage);
        let begin = stage.now_ms();
        stage.pass_to(begin + 3 * HOUR);
        look(&mut stage);
        stage.settle().unwrap();
        (runs(&mut stage).len(), stage.journal_writes())
    };
    let (expected, writes) = play(None);
    assert_eq!(expected, 3);
    for write in 1..=writes.last().unwrap() + 2 {
        assert_eq!(play(Some(write)).0, 3, "after commit {write}");
    }
}

#[test]
fn a_signal_to_a_blueprint_starts_a_run_with_its_payload() {
    let mut stage = stage("once");
    let signal = |stage: &mut Stage, name: &'static str| {
        stage.ask(move |engine, by| async move {
            let payload = Json::from(&json!({ "kind": "hourly" }));
            engine.triggers().signal_blueprint(&by, "nightly", name, payload, None).await
        })
    };
    signal(&mut stage, "opened").unwrap();
    assert_eq!(signal(&mut stage, "closed").unwrap_err().code(), "not_found");
}

#[test]
fn a_paused_schedule_skips_what_is_due_and_goes_on_when_it_is_resumed() {
    let mut stage = stage("all");
    look(&mut stage);
    let begin = stage.now_ms();
    let list = |stage: &mut Stage| {
        let ask = |engine: Engine, by: Caller| async move {
            engine.triggers().list(&by, None, None, 50).await
        };
        stage.ask(ask).unwrap().items.remove(0)
    };
    let id = list(&mut stage).id;
    let pausing = id.clone();
    let paused = stage.ask(move |engine, by| {
        let id = pausing.clone();
        async move { engine.triggers().pause(&by, &id).await }
    });
    assert!(paused.unwrap().trigger.next_at.is_none());
    stage.pass_to(begin + 3 * HOUR);
    look(&mut stage);
    stage.settle().unwrap();
    assert_eq!((runs(&mut stage).len(), list(&mut stage).skipped), (0, 3));
    let resumed = stage.ask(move |engine, by| {
        let id = id.clone();
        async move { engine.triggers().resume(&by, &id).await }
    });
    assert!(resumed.unwrap().trigger.next_at.is_some());
    look(&mut stage);
    stage.settle().unwrap();
    assert_eq!(runs(&mut stage).len(), 0, "what was skipped is not caught up");
    stage.pass_to(begin + 4 * HOUR);
    look(&mut stage);
    stage.settle().unwrap();
    let entry = list(&mut stage);
    assert_eq!((runs(&mut stage).len(), entry.skipped), (1, 3));
    assert!(entry.last_run.is_some() && entry.last_error.is_none());
}
