use std::time::Duration;

use futures::FutureExt;

use super::*;
use crate::{
    clock::Clock,
    middleware::{
        DispatchStack, Keep, MemoryKeep, TaskDone,
        fixture::{self, Does, Heard},
    },
};

struct World {
    clock: Clock,
    keep: Arc<dyn Keep>,
    heard: Arc<Heard>,
}

impl World {
    fn new() -> Self {
        let clock = Clock::manual(1_700_000_000_000);
        let keep = Arc::new(MemoryKeep::new(clock.clone()));
        Self { clock, keep, heard: Arc::default() }
    }

    fn means(&self) -> Means {
        Means::of(Arc::clone(&self.keep), self.clock.clone())
    }

    fn stack(&self, settings: serde_json::Value) -> DispatchStack {
        let settings: BudgetSettings = serde_json::from_value(settings).unwrap();
        assert_eq!(settings.fault(), None);
        let means = self.means();
        DispatchStack::builder().guard(Budget::new("budget", settings, means)).build()
    }

    fn dispatch(&self, change: impl FnOnce(&mut About)) -> Dispatch {
        fixture::with("1", |about| {
            about.voice = Arc::clone(&self.heard) as Arc<dyn crate::middleware::Voice>;
            change(about);
        })
    }

    fn run(&self, stack: &DispatchStack, cost: &str) -> Result<Dispatched, Failure> {
        self.run_as(stack, cost, |_| {})
    }

    fn run_as(
        &self,
        stack: &DispatchStack,
        cost: &str,
        change: impl FnOnce(&mut About),
    ) -> Result<Dispatched, Failure> {
        let usage = costs(cost);
        let does = Does::new(move |_| {
            let done = TaskDone { usage: Some(usage.clone()), ..TaskDone::new(Json::null()) };
            Ok(Dispatched::Done(done))
        });
        stack.run(self.dispatch(change), &does).now_or_never().expect("nothing here waits")
    }
}

fn costs(cost: &str) -> Usage {
    Usage { cost: Some(cost.into()), input_tokens: Some(10), ..Usage::default() }
}

fn code(outcome: Result<Dispatched, Failure>) -> String {
    let failure = outcome.unwrap_err();
    failure.data.map_or(failure.kind, |data| data.to_value()["unit"].as_str().unwrap().to_owned())
}

#[test]
fn money_is_counted_warned_of_and_halts() {
    let world = World::new();
    let stack = world.stack(json!({"usd": "1.00"}));
    assert!(world.run(&stack, "0.50").is_ok());
    assert!(world.run(&stack, "0.40").is_ok());
    assert!(world.run(&stack, "0.10").is_ok());
    assert_eq!(code(world.run(&stack, "0.10")), "usd");
    let heard = world.heard.all();
    let has = |text: &str| heard.iter().filter(|it| it.contains(text)).count();
    assert_eq!(has("cost_incurred"), 3);
    assert_eq!(has(r#""cumulative":"1.00""#), 1);
    assert_eq!(has("budget_warning"), 1);
    assert_eq!(has("halt_workflow"), 1);
}

#[test]
fn what_the_journal_says_counts_after_a_restart() {
    let world = World::new();
    let stack = world.stack(json!({"tokens": 100}));
    let used = Usage { input_tokens: Some(60), output_tokens: Some(40), ..Usage::default() };
    assert_eq!(code(world.run_as(&stack, "0", |about| about.used = used)), "tokens");
}

#[test]
fn a_parked_result_counts_when_it_is_settled() {
    let world = World::new();
    let stack = world.stack(json!({"usd": "1"}));
    let about = world.dispatch(|_| {}).about;
    let done = TaskDone { usage: Some(costs("1")), ..TaskDone::new(Json::null()) };
    stack.settle(&about, &Json::null(), Ok(done)).unwrap();
    assert_eq!(code(world.run(&stack, "0")), "usd");
}

#[test]
fn time_is_a_budget_too() {
    let world = World::new();
    let stack = world.stack(json!({"wall": "1m"}));
    assert!(world.run(&stack, "0").is_ok());
    world.clock.advance(Duration::from_secs(50));
    assert!(world.run(&stack, "0").is_ok());
    world.clock.advance(Duration::from_secs(10));
    assert_eq!(code(world.run(&stack, "0")), "wall");
    let heard = world.heard.all().join("\n");
    assert!(heard.contains("timeout_approaching") && heard.contains("timeout_reached"), "{heard}");
}

#[test]
fn a_window_is_for_all_runs_survives_a_restart_and_ends() {
    let world = World::new();
    let settings = || json!({"usd": "1", "per": "day"});
    let stack = world.stack(settings());
    assert!(world.run(&stack, "1").is_ok());
    let other = |about: &mut About| about.run = crate::protocol::RunId::new(8, 0);
    assert_eq!(code(world.run_as(&stack, "0", other)), "usd");
    let restarted = world.stack(settings());
    assert_eq!(code(world.run(&restarted, "0")), "usd");
    world.clock.advance(Duration::from_secs(86_400));
    assert!(world.run(&restarted, "0").is_ok());
}

#[test]
fn each_window_has_its_warning_even_if_a_late_result_begins_it() {
    let world = World::new();
    let stack = world.stack(json!({"usd": "1", "per": "day"}));
    for _ in 0..2 {
        let about = world.dispatch(|_| {}).about;
        let done = TaskDone { usage: Some(costs("0.90")), ..TaskDone::new(Json::null()) };
        stack.settle(&about, &Json::null(), Ok(done)).unwrap();
        assert!(world.run(&stack, "0").is_ok() && world.run(&stack, "0").is_ok());
        world.clock.advance(Duration::from_secs(86_400));
    }
    let heard = world.heard.all().join("\n");
    assert_eq!(heard.matches("budget_warning").count(), 2, "{heard}");
}

#[test]
fn a_clock_that_is_set_back_does_not_forget_a_window() {
    let world = World::new();
    let stack = world.stack(json!({"usd": "1", "per": "day"}));
    assert!(world.run(&stack, "1").is_ok());
    let now = world.clock.now_ms();
    for now in [now - 86_400_000, now] {
        world.clock.set(now);
        assert_eq!(code(world.run(&stack, "0")), "usd");
    }
    world.clock.advance(Duration::from_secs(86_400));
    assert!(world.run(&stack, "0").is_ok());
}

#[test]
fn what_is_settled_after_a_restart_with_a_clock_that_was_set_back_counts_too() {
    let world = World::new();
    let settings = || json!({"usd": "1", "per": "day"});
    assert!(world.run(&world.stack(settings()), "0.60").is_ok());
    world.clock.set(world.clock.now_ms() - 86_400_000);
    let restarted = world.stack(settings());
    let about = world.dispatch(|_| {}).about;
    let done = TaskDone { usage: Some(costs("0.40")), ..TaskDone::new(Json::null()) };
    restarted.settle(&about, &Json::null(), Ok(done)).unwrap();
    assert_eq!(code(world.run(&restarted, "0")), "usd");
}

#[test]
fn what_is_settled_after_a_restart_is_added_to_the_window() {
    let world = World::new();
    let settings = || json!({"usd": "1", "per": "day"});
    assert!(world.run(&world.stack(settings()), "0.60").is_ok());
    // Handed out again after the restart, or still with its worker.
    for is_dispatched in [true, false] {
        let restarted = world.stack(settings());
        let again = world.dispatch(|about| about.again = true);
        let about = Arc::clone(&again.about);
        if is_dispatched {
            restarted.run(again, &fixture::Parks).now_or_never().unwrap().unwrap();
        }
        let done = TaskDone { usage: Some(costs("0.20")), ..TaskDone::new(Json::null()) };
        restarted.settle(&about, &Json::null(), Ok(done)).unwrap();
        assert_eq!(world.run(&restarted, "0").is_err(), !is_dispatched);
    }
    assert_eq!(code(world.run(&world.stack(settings()), "0")), "usd", "all of it is stored");
}

#[test]
fn windows_of_different_lengths_are_stored_apart() {
    let world = World::new();
    let day = || json!({"usd": "1", "per": "day"});
    let hour = || json!({"usd": "1", "per": "hour"});
    assert!(world.run(&world.stack(day()), "0.90").is_ok());
    assert!(world.run(&world.stack(hour()), "0.10").is_ok());
    assert!(world.run(&world.stack(day()), "0.10").is_ok());
    assert_eq!(code(world.run(&world.stack(day()), "0")), "usd");
    assert!(world.run(&world.stack(hour()), "0").is_ok());
}

#[test]
fn the_window_of_an_earlier_release_counts() {
    let world = World::new();
    let length = Per::Day.window_ms().unwrap();
    let start_ms = world.clock.now_ms() - world.clock.now_ms() % length;
    let spent = Spent { tokens: 0, usd: Decimal::ONE };
    world.means().keep.post(Change::Put {
        layer: "budget".into(),
        key: "window".into(),
        value: Json::encode(&Window { start_ms, spent }).unwrap(),
        expires_ms: None,
    });
    assert_eq!(code(world.run(&world.stack(json!({"usd": "1", "per": "day"})), "0")), "usd");
}

#[test]
fn layers_of_one_name_count_together() {
    let world = World::new();
    let means = world.means();
    let [one, other] = [(); 2].map(|()| {
        let settings = serde_json::from_value(json!({"usd": "1", "per": "day"})).unwrap();
        DispatchStack::builder().guard(Budget::new("budget", settings, means.clone())).build()
    });
    assert!(world.run(&one, "0.50").is_ok() && world.run(&other, "0.50").is_ok());
    assert_eq!(code(world.run(&one, "0")), "usd");
    assert_eq!(code(world.run(&other, "0")), "usd");
}

#[test]
fn a_downgrade_goes_on_with_another_model() {
    let world = World::new();
    let stack = world.stack(json!({"usd": "1", "on_exceeded": "downgrade", "model": "small"}));
    assert!(world.run(&stack, "1").is_ok());
    let does = Does::new(|dispatch: Dispatch| {
        assert_eq!(dispatch.config.model.as_deref(), Some("small"));
        Ok(Dispatched::Parked)
    });
    let mut dispatch = world.dispatch(|_| {});
    dispatch.config.model = Some("large".into());
    stack.run(dispatch, &does).now_or_never().unwrap().unwrap();
    let heard = world.heard.all().join("\n");
    assert!(heard.contains(r#""downgrade_model":{"from":"large","to":"small"}"#), "{heard}");
}

#[test]
fn a_request_rests_the_run_and_a_resume_grants_it_once() {
    let world = World::new();
    let settings = || json!({"usd": "1", "on_exceeded": "request_increase", "increase": "0.50"});
    let stack = world.stack(settings());
    assert!(world.run(&stack, "1").is_ok());
    let failure = world.run(&stack, "1").unwrap_err();
    assert!(failure.is(kind::INTERRUPTED) && failure.retryable);
    let rests = world.heard.all();
    assert!(rests.last().unwrap().contains("resume the run to grant 0.50 more"), "{rests:?}");
    // Meanwhile another task reaches the limit; it requests an increase as well, and grants
    // nothing.
    let other = |about: &mut About| about.task = crate::protocol::TaskId::new(7, 4, 0);
    assert!(world.run_as(&stack, "1", other).is_err());
    // After a restart and a resume both are dispatched again with their next attempts.
    let stack = world.stack(settings());
    let used = costs("1");
    let again = |about: &mut About| {
        about.attempt = 2;
        about.used = used.clone();
    };
    assert!(world.run_as(&stack, "0.10", again).is_ok());
    let again = |about: &mut About| {
        other(about);
        about.attempt = 2;
        about.used = used.clone();
    };
    assert!(world.run_as(&stack, "0.10", again).is_ok());
    assert!(world.run(&stack, "0.30").is_ok());
    assert!(world.run(&stack, "0").is_err(), "0.50 were granted once");
}

#[test]
fn no_grant_is_too_much() {
    for limit in [json!({"usd": "1"}), json!({"tokens": 10}), json!({"wall": "1s"})] {
        let world = World::new();
        let mut settings = limit.clone();
        settings["on_exceeded"] = json!("request_increase");
        settings["increase"] = json!(Decimal::MAX);
        let stack = world.stack(settings);
        assert!(world.run(&stack, "1").is_ok());
        world.clock.advance(Duration::from_secs(1));
        assert!(world.run(&stack, "0").unwrap_err().is(kind::INTERRUPTED), "{limit}");
        assert!(world.run_as(&stack, "0", |about| about.attempt = 2).is_ok(), "{limit}");
        assert!(world.run(&stack, "0").is_ok(), "{limit}");
    }
}

#[test]
fn what_cannot_be_meant_is_refused() {
    for (settings, expected) in [
        (json!({}), "it needs `usd`, `tokens` or `wall`"),
        (json!({"usd": "-1"}), "`usd` is less than nothing"),
        (json!({"usd": "1", "warn_at": 2.0}), "`warn_at` is from 0 to 1"),
        (json!({"usd": "1", "on_exceeded": "downgrade"}), "`downgrade` needs a `model`"),
        (json!({"usd": "1", "on_exceeded": "request_increase"}), "needs an `increase`"),
        (json!({"wall": "1m", "per": "day"}), "`wall` is for `per = \"run\"`"),
    ] {
        let fault = serde_json::from_value::<BudgetSettings>(settings).unwrap().fault().unwrap();
        assert!(fault.contains(expected), "{fault}");
    }
}
