//! The layer that pauses dispatches to an operator after repeated failures.
//!
//! | state | a dispatch | a success | a failure |
//! |---|---|---|---|
//! | closed | passes | resets the count | counts; the last one opens |
//! | open | is refused until the cooldown is over; then it is the probe | | |
//! | probing | is refused | closes | opens again |

use std::{collections::HashMap, sync::Arc};

use async_trait::async_trait;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Means, Span, rate::Key};
use crate::{
    middleware::{
        About, Change, Dispatch, DispatchLayer, Dispatched, Next, Settled, stack::settle_now,
    },
    protocol::{
        DurationMs, EventSource, Failure, Json, LifecycleEvent, ObservableEvent, failure::kind,
    },
};

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

/// Pauses dispatches to an operator after repeated failures.
#[derive(Clone)]
pub struct CircuitBreaker {
    name: String,
    settings: BreakerSettings,
    means: Means,
    /// The keys that were read from storage. None is removed: what is stored may be older.
    circuits: Arc<Mutex<HashMap<String, Circuit>>>,
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
        let circuits = means.memory(name);
        Self { name: name.to_owned(), settings, means, circuits }
    }

    /// Reads the stored state of a key, once.
    async fn load(&self, key: &str) -> Result<(), Failure> {
        if self.circuits.lock().contains_key(key) {
            return Ok(());
        }
        let kept = self.means.keep.read(&self.name, key).await?;
        let kept = kept.and_then(|it| it.decode::<Circuit>().ok()).unwrap_or_default();
        self.circuits.lock().entry(key.to_owned()).or_insert(kept);
        Ok(())
    }

    fn count(&self, key: &str, about: &About, verdict: Verdict) {
        match verdict {
            Verdict::Good => self.succeeded(key, about),
            Verdict::Bad => self.failed(key, about),
            Verdict::Neither => {
                if let Some(circuit) = self.circuits.lock().get_mut(key)
                    && circuit.is_probe(about)
                {
                    circuit.probe = None;
                }
            }
        }
    }

    /// Admits an attempt, or returns the remaining time in milliseconds.
    fn admit(&self, key: &str, about: &About) -> Result<(), u64> {
        let now = self.means.clock.now_ms();
        let mut circuits = self.circuits.lock();
        let circuit = circuits.entry(key.to_owned()).or_default();
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

    fn succeeded(&self, key: &str, about: &About) {
        let mut circuits = self.circuits.lock();
        let Some(circuit) = circuits.get_mut(key) else { return };
        if circuit.failures == 0 && circuit.open_until_ms.is_none() {
            return;
        }
        let was_open = circuit.open_until_ms.is_some();
        *circuit = Circuit::default();
        self.means.keep.post(Change::Remove { layer: self.name.clone(), key: key.to_owned() });
        if was_open {
            self.say(about, "circuit.closed", key);
        }
    }

    fn failed(&self, key: &str, about: &About) {
        let mut circuits = self.circuits.lock();
        let circuit = circuits.entry(key.to_owned()).or_default();
        let probed = circuit.is_probe(about);
        circuit.failures = circuit.failures.saturating_add(1);
        let opens = if circuit.open_until_ms.is_some() {
            probed
        } else {
            circuit.failures >= self.settings.failures
        };
        if probed {
            circuit.probe = None;
        }
        if opens {
            circuit.open_until_ms = Some(self.means.clock.now_ms() + self.settings.cooldown.0);
            self.say(about, "circuit.opened", key);
        }
        if let Ok(value) = Json::encode(circuit) {
            let (layer, key) = (self.name.clone(), key.to_owned());
            self.means.keep.post(Change::Put { layer, key, value, expires_ms: None });
        }
    }

    fn say(&self, about: &About, what: &str, key: &str) {
        let age = self.means.clock.now_ms().saturating_sub(about.started_ms);
        let data = json!({ "layer": self.name, "key": key });
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

/// Releases the probe when its dispatch is dropped.
struct Probing<'a> {
    breaker: &'a CircuitBreaker,
    key: &'a str,
    about: &'a About,
    over: bool,
}

impl Drop for Probing<'_> {
    fn drop(&mut self) {
        if !self.over
            && let Some(circuit) = self.breaker.circuits.lock().get_mut(self.key)
            && circuit.is_probe(self.about)
        {
            circuit.probe = None;
        }
    }
}

#[async_trait]
impl DispatchLayer for CircuitBreaker {
    fn name(&self) -> &str {
        &self.name
    }

    async fn dispatch(&self, dispatch: Dispatch, next: Next<'_>) -> Result<Dispatched, Failure> {
        let (about, input) = (Arc::clone(&dispatch.about), dispatch.input.clone());
        let key = self.settings.per.of(&about);
        self.load(&key).await?;
        if about.again {
            // An earlier dispatch of this attempt was already admitted.
            return settle_now(self, &about, &input, next.run(dispatch).await);
        }
        if let Err(wait) = self.admit(&key, &about) {
            let message = format!("{key} failed again and again; it is tried again in {wait} ms");
            let data =
                json!({ "code": "circuit_open", "layer": self.name, "retry_after_ms": wait });
            let failure = Failure::new(kind::OPERATOR_UNAVAILABLE, message).retryable();
            return Err(failure.with_data(Json::from(data)));
        }
        let mut probing = Probing { breaker: self, key: &key, about: &about, over: false };
        let outcome = next.run(dispatch).await;
        probing.over = true;
        settle_now(self, &about, &input, outcome)
    }

    fn settle(&self, about: &About, _input: &Json, outcome: Settled) -> Settled {
        let key = self.settings.per.of(about);
        let verdict = match &outcome {
            Ok(_) => Verdict::Good,
            Err(short) if blames_the_operator(&short.failure) => Verdict::Bad,
            Err(_) => Verdict::Neither,
        };
        let is_loaded = self.circuits.lock().contains_key(&key);
        let Some(tasks) = self.means.tasks.as_ref().filter(|_| !is_loaded) else {
            self.count(&key, about, verdict);
            return outcome;
        };
        // It was dispatched before the host started. What was counted then is read first, which
        // must not happen on this thread.
        let (layer, about) = (self.clone(), about.heard_by(Arc::clone(&about.voice)));
        tasks.spawn(async move {
            if let Err(error) = layer.load(&key).await {
                tracing::warn!(layer = layer.name, %error, "what a layer keeps was not read");
            }
            layer.count(&key, &about, verdict);
        });
        outcome
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::FutureExt;

    use super::*;
    use crate::{
        clock::Clock,
        middleware::{
            DispatchStack, Keep, MemoryKeep, TaskDone, Voice,
            fixture::{self, Does, Heard},
        },
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
            let settings = json!({"failures": 2, "cooldown": "10s"});
            let settings = serde_json::from_value(settings).unwrap();
            DispatchStack::builder().guard(CircuitBreaker::new("breaker", settings, means)).build()
        }

        fn dispatch(&self) -> Dispatch {
            let voice = Arc::clone(&self.heard) as Arc<dyn Voice>;
            fixture::with("1", |about| about.voice = voice)
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
        let probe = world.dispatch();
        let about = Arc::clone(&probe.about);
        stack.run(probe, &fixture::Parks).now_or_never().unwrap().unwrap();
        assert!(!world.reaches(&stack, Ok(())));
        stack.settle(&about, &Json::null(), Ok(TaskDone::new(Json::null()))).unwrap();
        assert!(world.reaches(&stack, Ok(())));
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
