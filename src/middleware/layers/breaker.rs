//! The layer that pauses dispatches to an operator after repeated failures.
//!
//! | state | a dispatch | a success | a failure |
//! |---|---|---|---|
//! | closed | passes | resets the count | counts; the last one opens |
//! | open | is refused until the cooldown is over; then it is the probe | | |
//! | probing | is refused | that of the probe closes | that of the probe opens again |
//!
//! What another layer answers or refuses says nothing of the operator, and does not count.

use std::sync::Arc;

use async_trait::async_trait;
use futures::FutureExt;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{
    Means, Span,
    keyed::{Count, Keyed},
    rate::Key,
};
use crate::{
    middleware::{About, Dispatch, DispatchLayer, Dispatched, Next, Settled, stack::settle_now},
    protocol::{
        DurationMs, EventSource, Failure, Json, LifecycleEvent, ObservableEvent, failure::kind,
    },
};

/// The time for which the count of a key is stored after its last failure, in milliseconds: 30
/// days. Those who start runs make the keys, and most are never used again.
const KEPT_MS: u64 = 30 * 86_400_000;

/// The settings of `kind = "circuit_breaker"`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BreakerSettings {
    /// The number of consecutive failures that open it.
    #[serde(default = "five")]
    pub failures: u32,
    /// The time until one dispatch is let through as a probe.
    #[serde(default = "half_a_minute")]
    pub cooldown: Span,
    /// The key by which failures are counted separately.
    #[serde(default)]
    pub per: Key,
}

fn five() -> u32 {
    5
}

fn half_a_minute() -> Span {
    Span(30_000)
}

impl BreakerSettings {
    /// Returns the reason why the settings cannot be used, if there is one.
    pub(in crate::middleware) fn fault(&self) -> Option<String> {
        (self.failures == 0).then(|| "`failures` is at least 1".to_owned())
    }
}

/// The state of one key; stored, except for the probe.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Circuit {
    failures: u32,
    open_until_ms: Option<u64>,
    /// The attempt that is the probe: task, attempt.
    #[serde(skip)]
    probe: Option<(String, u32)>,
}

impl Count for Circuit {
    fn rank(&self, _: u64) -> u8 {
        match (self.open_until_ms, self.failures) {
            (Some(_), _) => 2,
            (None, failures) => u8::from(failures > 0),
        }
    }
}

/// Pauses dispatches to an operator after repeated failures.
#[derive(Clone)]
pub struct CircuitBreaker {
    settings: BreakerSettings,
    circuits: Keyed<Circuit>,
}

/// What the end of an attempt says of its operator.
#[derive(Debug, Clone, Copy)]
enum Verdict {
    Good,
    Bad,
    Neither,
}

impl CircuitBreaker {
    /// Creates a breaker from `settings`.
    pub fn new(name: &str, settings: BreakerSettings, means: Means) -> Self {
        Self { settings, circuits: Keyed::new(name, means) }
    }

    /// Admits an attempt, or returns the remaining time in milliseconds.
    fn admit(&self, circuit: &mut Circuit, about: &About) -> Result<(), u64> {
        let now = self.circuits.means.clock.now_ms();
        match circuit.open_until_ms {
            None => Ok(()),
            // A clock that was set back does not keep the circuit open for longer than the
            // cooldown.
            Some(until) if until > now && until - now <= self.settings.cooldown.0 => {
                Err(until - now)
            }
            Some(_) if circuit.probe.is_some() => Err(self.settings.cooldown.0.min(1_000)),
            Some(_) => {
                circuit.probe = Some((about.task.to_string(), about.attempt));
                Ok(())
            }
        }
    }

    /// Counts the end of an attempt.
    fn count(&self, key: &str, circuit: &mut Circuit, about: &About, verdict: Verdict) {
        let (was_open, probed) = (circuit.open_until_ms.is_some(), circuit.is_probe(about));
        if probed {
            circuit.probe = None;
        }
        if was_open && !probed {
            // It began before the circuit opened, or was the probe of an earlier time.
            return;
        }
        match verdict {
            Verdict::Neither => {}
            Verdict::Good if circuit.failures == 0 && !was_open => {}
            Verdict::Good => {
                *circuit = Circuit::default();
                self.circuits.remove(key);
                if was_open {
                    self.say(about, "circuit.closed", key);
                }
            }
            Verdict::Bad => {
                let now = self.circuits.means.clock.now_ms();
                circuit.failures = circuit.failures.saturating_add(1);
                if probed || circuit.failures >= self.settings.failures {
                    circuit.open_until_ms = Some(now + self.settings.cooldown.0);
                    self.say(about, "circuit.opened", key);
                }
                let expires_ms = circuit.open_until_ms.unwrap_or(now) + KEPT_MS;
                self.circuits.put(key, circuit, Some(expires_ms));
            }
        }
    }

    fn say(&self, about: &About, what: &str, key: &str) {
        let age = self.circuits.means.clock.now_ms().saturating_sub(about.started_ms);
        let data = json!({ "layer": self.circuits.layer, "key": key });
        let age = DurationMs::from_millis(age);
        let mut event = ObservableEvent::new(EventSource::Hook, what, age, data);
        event.workflow_id = Some(about.run.to_string().into());
        event.operator_id = Some((*about.operator).into());
        about.voice.say(LifecycleEvent::Observable(event));
    }
}

impl Circuit {
    fn is_probe(&self, about: &About) -> bool {
        self.probe.as_ref().is_some_and(|(task, attempt)| {
            *attempt == about.attempt && *task == about.task.to_string()
        })
    }
}

/// Returns true if the operator is the cause of a failure, and not the run or a limit.
fn blames_the_operator(failure: &Failure) -> bool {
    ![
        kind::CANCELED,
        kind::BUDGET,
        kind::LIMIT,
        kind::REFUSED,
        kind::INVALID_INPUT,
        kind::HUMAN_REJECTED,
        kind::INTERRUPTED,
    ]
    .contains(&failure.kind.as_str())
}

/// Releases the probe when its dispatch is dropped, or did not reach the operator.
struct Probing<'a> {
    breaker: &'a CircuitBreaker,
    key: &'a str,
    about: &'a About,
    over: bool,
}

impl Drop for Probing<'_> {
    fn drop(&mut self) {
        if !self.over {
            let (breaker, key, about) = (self.breaker, self.key, self.about);
            let release = |it: &mut Circuit| breaker.count(key, it, about, Verdict::Neither);
            breaker.circuits.known(key, release);
        }
    }
}

#[async_trait]
impl DispatchLayer for CircuitBreaker {
    fn name(&self) -> &str {
        &self.circuits.layer
    }

    async fn dispatch(&self, dispatch: Dispatch, next: Next<'_>) -> Result<Dispatched, Failure> {
        let (about, input) = (Arc::clone(&dispatch.about), dispatch.input.clone());
        let key = self.settings.per.of(&about);
        let admit = |circuit: &mut Circuit| match about.again {
            // An earlier dispatch of this attempt was already admitted.
            true => Ok(()),
            false => self.admit(circuit, &about),
        };
        if let Err(wait) = self.circuits.with(&key, &about.principal, admit).await? {
            let message = format!("{key} failed again and again; it is tried again in {wait} ms");
            let data = json!({
                "code": "circuit_open", "layer": self.circuits.layer, "retry_after_ms": wait,
            });
            let failure = Failure::new(kind::OPERATOR_UNAVAILABLE, message).retryable();
            return Err(failure.with_data(Json::from(data)));
        }
        let mut probing = Probing { breaker: self, key: &key, about: &about, over: false };
        let outcome = next.run(dispatch).await;
        probing.over = about.has_passed();
        if !probing.over {
            return outcome;
        }
        settle_now(self, &about, &input, outcome)
    }

    fn settle(&self, about: &About, _input: &Json, outcome: Settled) -> Settled {
        let key = self.settings.per.of(about);
        let verdict = match &outcome {
            Ok(_) => Verdict::Good,
            Err(short) if blames_the_operator(&short.failure) => Verdict::Bad,
            Err(_) => Verdict::Neither,
        };
        let count = |circuit: &mut Circuit| self.count(&key, circuit, about, verdict);
        if self.circuits.known(&key, count).is_some() {
            return outcome;
        }
        // It was dispatched before the host started, or its key was dropped since. What was counted
        // is read first, which must not happen on this thread.
        let (layer, about) = (self.clone(), about.heard_by(Arc::clone(&about.voice)));
        let counting = async move {
            let count = |circuit: &mut Circuit| layer.count(&key, circuit, &about, verdict);
            if let Err(error) = layer.circuits.with(&key, &about.principal, count).await {
                let layer = &layer.circuits.layer;
                tracing::warn!(layer, %error, "what a layer keeps was not read");
            }
        };
        match &self.circuits.means.tasks {
            Some(tasks) => {
                tasks.spawn(counting);
            }
            None => _ = counting.now_or_never(),
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        clock::Clock,
        middleware::{
            DispatchStack, Keep, MemoryKeep, TaskDone, Voice,
            fixture::{self, Does, Heard},
            layers::keyed::KEYS,
        },
        protocol::TaskId,
        tasks::Tasks,
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

        fn stack(&self) -> DispatchStack {
            self.stack_over(Means::of(Arc::clone(&self.keep), self.clock.clone()))
        }

        /// Returns the stack of a host, which reads on threads of its own.
        fn stack_with_tasks(&self) -> (DispatchStack, Tasks) {
            let tasks = Tasks::new(tokio::runtime::Handle::current());
            let means = Means::of(Arc::clone(&self.keep), self.clock.clone());
            (self.stack_over(Means { tasks: Some(tasks.clone()), ..means }), tasks)
        }

        fn stack_over(&self, means: Means) -> DispatchStack {
            DispatchStack::builder().guard(breaker("breaker", 2, means)).build()
        }

        fn dispatch(&self) -> Dispatch {
            let voice = Arc::clone(&self.heard) as Arc<dyn Voice>;
            fixture::with("1", |about| about.voice = voice)
        }

        /// Parks the attempt of another task, and returns it.
        fn parks(&self, stack: &DispatchStack, step: u32) -> Arc<About> {
            let dispatch = fixture::with("1", |about| about.task = TaskId::new(7, step, 0));
            let about = Arc::clone(&dispatch.about);
            stack.run(dispatch, &fixture::Parks).now_or_never().unwrap().unwrap();
            about
        }

        /// Returns true if the operator was reached.
        fn reaches(&self, stack: &DispatchStack, outcome: Result<(), &'static str>) -> bool {
            let does = Does::new(move |_| match outcome {
                Ok(()) => Ok(Dispatched::Done(TaskDone::new(Json::null()))),
                Err(kind) => Err(Failure::new(kind, "on purpose")),
            });
            let _ = stack.run(self.dispatch(), &does).now_or_never().expect("nothing waits");
            does.calls() == 1
        }
    }

    const BAD: Result<(), &str> = Err("worker");

    fn breaker(name: &str, failures: u32, means: Means) -> CircuitBreaker {
        let settings = json!({"failures": failures, "cooldown": "10s"});
        CircuitBreaker::new(name, serde_json::from_value(settings).unwrap(), means)
    }

    fn succeeds(stack: &DispatchStack, about: &About) {
        stack.settle(about, &Json::null(), Ok(TaskDone::new(Json::null()))).unwrap();
    }

    #[test]
    fn failures_in_a_row_open_it_and_a_probe_closes_it() {
        let world = World::new();
        let stack = world.stack();
        assert!(world.reaches(&stack, BAD) && world.reaches(&stack, Ok(())));
        assert!(world.reaches(&stack, BAD) && world.reaches(&stack, BAD));
        assert!(!world.reaches(&stack, Ok(())), "it is open");
        world.clock.advance(Duration::from_secs(10));
        assert!(world.reaches(&stack, BAD), "the probe");
        assert!(!world.reaches(&stack, Ok(())), "it is open again");
        world.clock.advance(Duration::from_secs(10));
        assert!(world.reaches(&stack, Ok(())) && world.reaches(&stack, BAD));
        assert!(world.reaches(&stack, Ok(())), "one failure is none in a row");
        let heard = world.heard.all().join("\n");
        assert_eq!(heard.matches("circuit.opened").count(), 2);
        assert_eq!(heard.matches("circuit.closed").count(), 1);
    }

    #[test]
    fn what_is_not_the_operators_fault_does_not_count() {
        let world = World::new();
        let stack = world.stack();
        for kind in [kind::CANCELED, kind::BUDGET, kind::REFUSED, kind::LIMIT] {
            assert!(world.reaches(&stack, Err(kind)));
        }
        assert!(world.reaches(&stack, Ok(())));
    }

    #[test]
    fn only_one_probe_is_under_way_and_a_parked_one_decides_when_it_is_settled() {
        let world = World::new();
        let stack = world.stack();
        assert!(world.reaches(&stack, BAD) && world.reaches(&stack, BAD));
        world.clock.advance(Duration::from_secs(10));
        let probe = world.parks(&stack, 4);
        assert!(!world.reaches(&stack, Ok(())));
        succeeds(&stack, &probe);
        assert!(world.reaches(&stack, Ok(())));
    }

    #[test]
    fn only_the_probe_decides_about_a_circuit_that_is_open() {
        let world = World::new();
        let stack = world.stack();
        let late = world.parks(&stack, 4);
        assert!(world.reaches(&stack, BAD) && world.reaches(&stack, BAD));
        succeeds(&stack, &late);
        assert!(!world.reaches(&stack, Ok(())), "it began before the circuit opened");
        world.clock.advance(Duration::from_secs(10));
        let probe = world.parks(&stack, 5);
        let failure = Failure::new(kind::CANCELED, "on purpose");
        assert!(stack.settle(&probe, &Json::null(), Err(Box::new(failure.into()))).is_err());
        world.parks(&stack, 6);
        succeeds(&stack, &late);
        succeeds(&stack, &probe);
        assert!(!world.reaches(&stack, Ok(())), "another one is the probe now");
    }

    #[test]
    fn what_another_layer_answers_or_refuses_does_not_count() {
        let world = World::new();
        let means = Means::of(Arc::clone(&world.keep), world.clock.clone());
        let host = world.stack_over(means.clone());
        let own = DispatchStack::builder().guard(breaker("own", 1, means)).build();
        let both = DispatchStack::builder().with(&host).with(&own).build();
        assert!(world.reaches(&both, BAD));
        for _ in 0..3 {
            assert!(!world.reaches(&both, BAD), "its own circuit is open");
        }
        assert!(world.reaches(&host, Ok(())), "the host's is not");
    }

    #[test]
    fn an_open_circuit_stays_open_among_any_number_of_keys() {
        let world = World::new();
        let means = Means::of(Arc::clone(&world.keep), world.clock.clone());
        let circuits = Keyed::<Circuit>::new("breaker", means.clone());
        let stack = world.stack_over(means);
        assert!(world.reaches(&stack, BAD) && world.reaches(&stack, BAD));
        let fails = Does::new(|_| Err(Failure::new("worker", "on purpose")));
        for key in 0..KEYS * 2 {
            let other = fixture::with("1", |about| about.operator = key.to_string().into());
            assert!(stack.run(other, &fails).now_or_never().unwrap().is_err());
        }
        assert!(circuits.len() <= KEYS && circuits.known("echo", |_| ()).is_some());
        assert!(!world.reaches(&stack, Ok(())));
    }

    #[test]
    fn a_probe_that_is_handed_out_again_decides_when_it_ends() {
        let world = World::new();
        let stack = world.stack();
        assert!(world.reaches(&stack, BAD) && world.reaches(&stack, BAD));
        world.clock.advance(Duration::from_secs(10));
        stack.run(world.dispatch(), &fixture::Parks).now_or_never().unwrap().unwrap();
        let again = fixture::with("1", |about| about.again = true);
        let fails = Does::new(|_| Err(Failure::new("worker", "on purpose")));
        assert!(stack.run(again, &fails).now_or_never().unwrap().is_err());
        world.clock.advance(Duration::from_secs(10));
        assert!(world.reaches(&stack, Ok(())), "the next probe");
        assert!(world.reaches(&stack, Ok(())), "it is closed");
    }

    #[tokio::test]
    async fn a_failure_of_a_dispatch_before_a_restart_is_added_to_those_before() {
        let world = World::new();
        assert!(world.reaches(&world.stack(), BAD));
        let (stack, tasks) = world.stack_with_tasks();
        let failure = Failure::new("worker", "on purpose");
        let about = world.dispatch().about;
        assert!(stack.settle(&about, &Json::null(), Err(Box::new(failure.into()))).is_err());
        assert!(tasks.stop(Duration::from_secs(10)).await);
        assert!(!world.reaches(&stack, Ok(())), "it is open");
    }

    #[test]
    fn it_is_still_open_after_a_restart() {
        let world = World::new();
        let stack = world.stack();
        assert!(world.reaches(&stack, BAD) && world.reaches(&stack, BAD));
        let restarted = world.stack();
        assert!(!world.reaches(&restarted, Ok(())));
        world.clock.advance(Duration::from_secs(10));
        assert!(world.reaches(&restarted, Ok(())));
    }

    #[test]
    fn what_was_counted_long_ago_is_not_stored_any_more() {
        let world = World::new();
        assert!(world.reaches(&world.stack(), BAD));
        world.clock.advance(Duration::from_secs(29 * 86_400));
        assert!(world.reaches(&world.stack(), BAD));
        assert!(!world.reaches(&world.stack(), BAD), "it is open");
        world.clock.advance(Duration::from_secs(31 * 86_400));
        let stack = world.stack();
        assert!(world.reaches(&stack, BAD) && world.reaches(&stack, BAD), "it counts anew");
        assert!(!world.reaches(&stack, BAD));
    }

    #[test]
    fn a_dropped_probe_is_given_back() {
        struct Never;
        #[async_trait]
        impl crate::middleware::Terminal for Never {
            async fn dispatch(&self, _: Dispatch) -> Result<Dispatched, Failure> {
                futures::future::pending().await
            }
        }
        let world = World::new();
        let stack = world.stack();
        assert!(world.reaches(&stack, BAD) && world.reaches(&stack, BAD));
        world.clock.advance(Duration::from_secs(10));
        assert!(stack.run(world.dispatch(), &Never).now_or_never().is_none());
        assert!(world.reaches(&stack, Ok(())));
    }
}
