use super::*;
use crate::{
    blueprint::Bundle,
    engine::Stage,
    operator::{Backend, Echo, Registry},
    store::RunFilter,
};

fn source(keys: &str, flow: &str) -> String {
    format!(
        r#"local swarm = require("swarm")
return swarm.blueprint {{
  name = "sorter",
  agents = {{ e = {{ operator = "echo" }} }},
  on = {{ {{ watch = "inbox/*.json", input = {{ why = "files" }}{keys} }} }},
  flow = function(ctx, input) {flow} return {{ input = input, trigger = ctx.trigger }} end,
}}"#
    )
}

fn stage(keys: &str, flow: &str) -> Stage {
    let echo: Arc<dyn Backend> = Arc::new(Echo);
    let mut stage =
        Stage::set(&Registry::new(BTreeMap::from([("echo".to_owned(), echo)]))).unwrap();
    let bundle = Bundle::from_source("sorter.lua", source(keys, flow)).unwrap();
    stage
        .ask(move |engine, _| {
            let bundle = bundle.clone();
            async move { engine.blueprints().adopt_blueprint(bundle).await.map(drop) }
        })
        .unwrap();
    stage
}

/// Returns files by name, each with its size.
fn files(sizes: &[(&str, u64)]) -> Files {
    let mark = |size| FileMark { size, written_ns: 1 };
    sizes.iter().map(|(path, size)| (format!("inbox/{path}"), mark(*size))).collect()
}

/// Reports scanned files to the host, which knows the directory of the blueprint.
fn see(stage: &mut Stage, seen: &Files, began: bool) -> Option<u64> {
    let seen = seen.clone();
    let again = stage
        .ask(move |engine, by| {
            let seen = seen.clone();
            async move {
                engine.triggers().watch_files(BTreeMap::new());
                let view = engine.blueprints().get(&by, "sorter").await?;
                engine.triggers().set_home("sorter", &view.hash, PathBuf::from("/blueprints"));
                let watches = engine.triggers().file_watches(&mut Schedules::default()).await?;
                assert_eq!(watches.len(), 1);
                engine.triggers().saw_files(&watches[0], &seen, began).await
            }
        })
        .unwrap();
    stage.settle().unwrap();
    again
}

/// Returns the triggers of the runs, oldest first: the paths with their kind of change, and whether
/// it was missed.
fn runs(stage: &mut Stage) -> Vec<(Vec<String>, bool)> {
    let filter = || RunFilter { limit: 100, ..RunFilter::default() };
    let page =
        stage.ask(move |engine, by| async move { engine.runs(&by, filter()).await }).unwrap();
    let mut told = Vec::new();
    for run in page.items.into_iter().rev() {
        let id = run.id;
        let view = stage.ask(move |engine, by| async move { engine.run(&by, id).await }).unwrap();
        let Some(output) = view.output else { continue };
        let output = output.to_value();
        assert_eq!(output["input"]["why"], "files");
        let trigger = &output["trigger"];
        assert_eq!((&trigger["kind"], &trigger["more"]), (&json!("watch"), &json!(0)));
        let changes = trigger["changes"].as_array().unwrap().iter();
        let text = |it: &serde_json::Value| it.as_str().unwrap().to_owned();
        let changes = changes.map(|it| format!("{} {}", text(&it["change"]), text(&it["path"])));
        told.push((changes.collect(), trigger["missed"].as_bool().unwrap()));
    }
    told
}

#[test]
fn a_change_starts_a_run_that_is_told_what_changed() {
    let mut stage = stage("", "");
    see(&mut stage, &files(&[("a.json", 1), ("b.json", 1)]), true);
    assert!(runs(&mut stage).is_empty(), "a watch begins with what is there");
    let after = files(&[("b.json", 2), ("c.json", 1)]);
    see(&mut stage, &after, false);
    see(&mut stage, &after, false);
    let changes = ["removed inbox/a.json", "changed inbox/b.json", "created inbox/c.json"];
    assert_eq!(runs(&mut stage), [(changes.map(str::to_owned).to_vec(), false)]);
}

#[test]
fn what_changed_while_no_host_ran_is_one_run_or_none() {
    for (keys, expected) in [("", 1), (", missed = \"skip\"", 0)] {
        let mut stage = stage(keys, "");
        see(&mut stage, &files(&[]), true);
        see(&mut stage, &files(&[("a.json", 1), ("b.json", 1)]), true);
        let told = runs(&mut stage);
        assert_eq!(told.len(), expected, "{keys}");
        assert!(told.iter().all(|(changes, missed)| changes.len() == 2 && *missed));
        see(&mut stage, &files(&[("a.json", 1), ("b.json", 1)]), false);
        assert_eq!(runs(&mut stage).len(), expected, "{keys}");
    }
}

#[test]
fn while_a_run_is_open_changes_are_gathered_for_the_next() {
    let mut stage = stage("", "ctx:sleep(\"1h\")");
    see(&mut stage, &files(&[]), true);
    see(&mut stage, &files(&[("a.json", 1)]), false);
    assert!(see(&mut stage, &files(&[("a.json", 1), ("b.json", 1)]), false).is_some());
    let all = files(&[("a.json", 1), ("b.json", 1), ("c.json", 1)]);
    assert!(see(&mut stage, &all, false).is_some());
    let due = stage.next_due().unwrap();
    stage.pass_to(due);
    stage.settle().unwrap();
    assert_eq!(see(&mut stage, &all, false), None);
    let due = stage.next_due().unwrap();
    stage.pass_to(due);
    stage.settle().unwrap();
    let told: Vec<_> = runs(&mut stage).into_iter().map(|(changes, _)| changes).collect();
    assert_eq!(
        told,
        [vec!["created inbox/a.json"], vec!["created inbox/b.json", "created inbox/c.json"]]
    );
}

#[test]
fn a_crash_after_any_write_starts_no_run_twice_and_forgets_none() {
    let play = |crash: Option<u64>| {
        let mut stage = stage(", max_open = 10", "");
        if let Some(commit) = crash {
            stage.crash_after(commit);
        }
        see(&mut stage, &files(&[]), true);
        see(&mut stage, &files(&[("a.json", 1)]), false);
        see(&mut stage, &files(&[("a.json", 2)]), false);
        see(&mut stage, &files(&[("a.json", 2)]), true);
        (runs(&mut stage).len(), stage.journal_writes(), stage.crashes())
    };
    let (expected, writes, _) = play(None);
    assert_eq!(expected, 2);
    let mut crashed = 0;
    for write in 1..=writes.last().unwrap() + 2 {
        let (started, _, crashes) = play(Some(write));
        assert_eq!(started, 2, "after commit {write}");
        crashed += crashes;
    }
    assert!(crashed > 5);
}

#[test]
fn a_blueprint_without_a_directory_of_its_own_is_not_watched_and_says_why() {
    let mut stage = stage("", "");
    let shown = |stage: &mut Stage| {
        let all =
            stage.ask(|engine, by| async move { engine.blueprints().list(&by).await }).unwrap();
        all[0].on[0].clone()
    };
    assert!(shown(&mut stage).problem.unwrap().contains("serve"));
    let watched = stage
        .ask(|engine, _| async move {
            engine
                .triggers()
                .watch_files(BTreeMap::from([("inbox".to_owned(), PathBuf::from("/in"))]));
            engine.triggers().file_watches(&mut Schedules::default()).await
        })
        .unwrap();
    assert!(watched.is_empty());
    assert!(shown(&mut stage).problem.unwrap().contains("`root`"));
    see(&mut stage, &files(&[]), true);
    assert_eq!(shown(&mut stage).directory.as_deref(), Some("/blueprints"));
}

#[test]
fn of_too_many_changes_the_rest_is_counted() {
    let many: Files =
        (0..1_200).map(|n| (format!("{n:04}"), FileMark { size: 1, written_ns: 1 })).collect();
    let (told, more) = changes(&Files::new(), &many);
    assert_eq!((told.len(), more), (1_000, 200));
}

#[test]
fn two_who_look_at_the_watches_of_a_blueprint_lose_nothing_of_each_other() {
    let mut stage = stage("", "");
    stage
        .ask(move |engine, by| async move {
            engine.triggers().watch_files(BTreeMap::new());
            let view = engine.blueprints().get(&by, "sorter").await?;
            engine.triggers().set_home("sorter", &view.hash, PathBuf::from("/blueprints"));
            let mine = engine.triggers().file_watches(&mut Schedules::default()).await?.remove(0);
            let watch = FileWatch::parse("other/*.json", None).unwrap();
            let ids: Arc<[String]> = [mine.watch.id(), watch.id()].into();
            let other = Watched { watch: Box::new(watch), ids: Arc::clone(&ids), ..mine.clone() };
            let mine = Watched { ids, ..mine };

            let kept = |batch| WatchState { batch, ..WatchState::default() };
            engine.triggers().keep(&mine, None, &kept(1)).await?;
            engine.triggers().keep(&other, None, &kept(5)).await?;
            engine.triggers().keep(&mine, Some(&kept(1)), &kept(2)).await?;
            // A stale writer is refused, and changes nothing.
            let stale = engine.triggers().keep(&mine, Some(&kept(1)), &kept(9)).await;
            assert!(matches!(stale, Err(EngineError::Store(StoreError::Changed { .. }))));
            let (_, all) = engine.triggers().kept_of("sorter").await?;
            assert_eq!(all[&mine.watch.id()], kept(2));
            assert_eq!(all[&other.watch.id()], kept(5));
            Ok(())
        })
        .unwrap();
}

#[test]
fn a_paused_watch_passes_over_what_changes() {
    let mut stage = stage("", "");
    see(&mut stage, &files(&[]), true);
    let turn = |stage: &mut Stage, pause: bool| {
        stage
            .ask(move |engine, by| async move {
                let triggers = engine.triggers();
                let id = triggers.list(&by, None, None, 50).await?.items.remove(0).id;
                match pause {
                    true => triggers.pause(&by, &id).await,
                    false => triggers.resume(&by, &id).await,
                }
            })
            .unwrap()
    };
    turn(&mut stage, true);
    see(&mut stage, &files(&[("a.json", 1)]), false);
    assert_eq!(turn(&mut stage, false).skipped, 1);
    see(&mut stage, &files(&[("a.json", 1)]), false);
    assert!(runs(&mut stage).is_empty(), "what changed meanwhile starts nothing");
    see(&mut stage, &files(&[("a.json", 2)]), false);
    assert_eq!(runs(&mut stage), [(vec!["changed inbox/a.json".to_owned()], false)]);
}
