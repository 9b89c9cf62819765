//! The layer that limits the rate of dispatches.

use std::fmt;

use async_trait::async_trait;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use serde_json::json;

use super::{
    Means, Span,
    keyed::{Count, Keyed},
};
use crate::{
    middleware::{About, Dispatch, DispatchLayer, Dispatched, Next},
    protocol::{Failure, Json, failure::kind},
};

/// The settings of `kind = "rate_limit"`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateSettings {
    /// The rate: `"10/s"`, `"600/m"`, `"5/h"`, `"100/d"`.
    pub rate: Rate,
    /// The number of dispatches at once after a pause; the count of `rate` by default.
    #[serde(default)]
    pub burst: Option<u32>,
    /// The key by which dispatches are counted separately.
    #[serde(default)]
    pub per: Key,
    /// The maximum time for which a dispatch waits; a longer wait is a failure.
    #[serde(default = "a_minute")]
    pub wait: Span,
}

fn a_minute() -> Span {
    Span(60_000)
}

/// The key by which dispatches are counted separately.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Key {
    /// Each operator.
    #[default]
    Operator,
    /// Each agent of each blueprint.
    Agent,
    /// Each blueprint.
    Blueprint,
    /// Each subject that starts runs.
    Principal,
    /// One count for the whole host.
    Host,
}

impl Key {
    /// Returns the key of a dispatch.
    pub(super) fn of(self, about: &About) -> String {
        match self {
            Self::Operator => about.operator.to_string(),
            Self::Agent => format!("{}/{}", about.blueprint, about.agent),
            Self::Blueprint => about.blueprint.to_string(),
            Self::Principal => about.principal.to_string(),
            Self::Host => "host".to_owned(),
        }
    }
}

/// A number of dispatches per span of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    count: u32,
    span_ms: u64,
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = match self.span_ms {
            1_000 => "s",
            60_000 => "m",
            3_600_000 => "h",
            _ => "d",
        };
        write!(f, "{}/{unit}", self.count)
    }
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let read = || {
            let (count, unit) = text.split_once('/')?;
            let span_ms = match unit.trim() {
                "s" => 1_000,
                "m" => 60_000,
                "h" => 3_600_000,
                "d" => 86_400_000,
                _ => return None,
            };
            let count = count.trim().parse().ok().filter(|count| *count > 0)?;
            Some(Self { count, span_ms })
        };
        read().ok_or_else(|| {
            D::Error::custom(format!("{text:?} is not a rate such as \"10/s\" or \"600/m\""))
        })
    }
}

impl Serialize for Rate {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl RateSettings {
    /// Returns the reason why the settings cannot be used, if there is one.
    pub(in crate::middleware) fn fault(&self) -> Option<String> {
        (self.burst == Some(0)).then(|| "`burst` is at least 1".to_owned())
    }
}

/// The tokens that are left for a key. A negative number is owed to dispatches that wait.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Bucket {
    left: f64,
    at_ms: u64,
    /// The time at which it is full again.
    #[serde(skip)]
    full_ms: u64,
}

/// A full one, however much it holds.
impl Default for Bucket {
    fn default() -> Self {
        Self { left: f64::INFINITY, at_ms: 0, full_ms: 0 }
    }
}

impl Count for Bucket {
    fn rank(&self, now_ms: u64) -> u8 {
        u8::from(self.full_ms > now_ms)
    }
}

/// Limits the rate of dispatches.
pub struct RateLimit {
    settings: RateSettings,
    buckets: Keyed<Bucket>,
}

impl RateLimit {
    /// Creates a limit from `settings`.
    pub fn new(name: &str, settings: RateSettings, means: Means) -> Self {
        Self { settings, buckets: Keyed::new(name, means) }
    }

    fn burst(&self) -> f64 {
        f64::from(self.settings.burst.unwrap_or(self.settings.rate.count))
    }

    /// Takes a token: returns the time to wait in milliseconds, or as an error if it is too long.
    fn take(&self, key: &str, bucket: &mut Bucket) -> Result<u64, u64> {
        let now = self.buckets.means.clock.now_ms();
        let per_ms = f64::from(self.settings.rate.count) / self.settings.rate.span_ms as f64;
        // A clock that was set back adds and removes nothing, and counts from there.
        let passed = now.saturating_sub(bucket.at_ms) as f64;
        let left = (bucket.left + passed * per_ms).min(self.burst());
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is not negative, and a cast saturates"
        )]
        let time_of = |tokens: f64| (tokens / per_ms).ceil() as u64;
        let wait = if left >= 1.0 { 0 } else { time_of(1.0 - left) };
        *bucket = Bucket { left, at_ms: now, full_ms: now + time_of(self.burst() - left) };
        if wait > self.settings.wait.0 {
            return Err(wait);
        }
        bucket.left -= 1.0;
        bucket.full_ms = now + time_of(self.burst() - bucket.left);
        // From then on it is full, as one that is not stored.
        self.buckets.put(key, bucket, Some(bucket.full_ms));
        Ok(wait)
    }
}

#[async_trait]
impl DispatchLayer for RateLimit {
    fn name(&self) -> &str {
        &self.buckets.layer
    }

    async fn dispatch(&self, dispatch: Dispatch, next: Next<'_>) -> Result<Dispatched, Failure> {
        if dispatch.again {
            return next.run(dispatch).await;
        }
        let key = self.settings.per.of(&dispatch);
        let take = |bucket: &mut Bucket| self.take(&key, bucket);
        match self.buckets.with(&key, &dispatch.about.principal, take).await? {
            Ok(0) => {}
            Ok(wait) => self.buckets.means.clock.sleep(wait).await,
            Err(wait) => {
                let rate = self.settings.rate;
                let message = format!("{key} gets {rate}; the next turn is in {wait} ms");
                let data = json!({
                    "code": "rate_limited", "layer": self.buckets.layer, "retry_after_ms": wait,
                });
                let failure = Failure::new(kind::LIMIT, message).retryable();
                return Err(failure.with_data(Json::from(data)));
            }
        }
        next.run(dispatch).await
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use futures::{FutureExt, future::BoxFuture};

    use super::*;
    use crate::{
        clock::Clock,
        middleware::{DispatchStack, Keep, MemoryKeep, fixture, layers::keyed::KEYS},
    };

    struct World {
        clock: Clock,
        keep: Arc<dyn Keep>,
    }

    impl World {
        fn new() -> Self {
            let clock = Clock::manual(1_000_000);
            Self { keep: Arc::new(MemoryKeep::new(clock.clone())), clock }
        }

        fn stack(&self, settings: serde_json::Value) -> DispatchStack {
            let means = Means::of(Arc::clone(&self.keep), self.clock.clone());
            let layer = RateLimit::new("rate", serde_json::from_value(settings).unwrap(), means);
            DispatchStack::builder().guard(layer).build()
        }
    }

    type Outcome<'a> = BoxFuture<'a, Result<Dispatched, Failure>>;

    fn run<'a>(stack: &'a DispatchStack, operator: &str) -> Outcome<'a> {
        let dispatch = fixture::with("1", |about| about.operator = operator.into());
        stack.run(dispatch, &fixture::Echo)
    }

    fn passes(stack: &DispatchStack, operator: &str) -> bool {
        run(stack, operator).now_or_never().is_some_and(|outcome| outcome.is_ok())
    }

    #[test]
    fn a_dispatch_over_the_rate_waits_for_its_turn() {
        let world = World::new();
        let stack = world.stack(json!({"rate": "2/s"}));
        assert!(passes(&stack, "a") && passes(&stack, "a"));
        assert!(passes(&stack, "b"), "another operator is counted apart");
        let mut third = run(&stack, "a");
        let mut fourth = run(&stack, "a");
        assert!((&mut third).now_or_never().is_none() && (&mut fourth).now_or_never().is_none());
        world.clock.advance(Duration::from_millis(500));
        assert!((&mut third).now_or_never().is_some());
        assert!((&mut fourth).now_or_never().is_none(), "each has a turn of its own");
        world.clock.advance(Duration::from_millis(500));
        assert!(fourth.now_or_never().is_some());
    }

    #[test]
    fn a_wait_over_the_bound_is_a_failure_that_says_when() {
        let world = World::new();
        let stack = world.stack(json!({"rate": "1/m", "wait": "10s"}));
        assert!(passes(&stack, "a"));
        let failure = run(&stack, "a").now_or_never().unwrap().unwrap_err();
        assert!(failure.is(kind::LIMIT) && failure.retryable);
        assert_eq!(failure.data.unwrap().to_value()["retry_after_ms"], 60_000);
        world.clock.advance(Duration::from_secs(60));
        assert!(passes(&stack, "a"));
    }

    /// Takes the turn of as many keys as there is room for; returns the stack and its buckets.
    fn crowd(world: &World) -> (DispatchStack, Keyed<Bucket>) {
        let means = Means::of(Arc::clone(&world.keep), world.clock.clone());
        let settings = serde_json::from_value(json!({"rate": "1/s", "wait": 0})).unwrap();
        let layer = RateLimit::new("rate", settings, means.clone());
        let stack = DispatchStack::builder().guard(layer).build();
        assert!((0..KEYS).all(|key| passes(&stack, &key.to_string())));
        (stack, Keyed::new("rate", means))
    }

    #[test]
    fn keys_that_are_full_again_are_dropped() {
        let world = World::new();
        let (stack, buckets) = crowd(&world);
        assert_eq!(buckets.len(), KEYS);
        world.clock.advance(Duration::from_secs(1));
        assert!(passes(&stack, "the next"));
        assert_eq!(buckets.len(), 1);
    }

    #[test]
    fn keys_over_the_bound_are_owed_the_rest_of_their_time_all_the_same() {
        let world = World::new();
        let (stack, buckets) = crowd(&world);
        world.clock.advance(Duration::from_millis(100));
        assert!(passes(&stack, "one more"));
        assert!(buckets.len() < KEYS, "room was made");
        let owed = (0..KEYS).filter(|key| !passes(&stack, &key.to_string())).count();
        assert_eq!(owed, KEYS);
        assert!(buckets.len() <= KEYS);
    }

    #[test]
    fn a_restart_does_not_fill_the_bucket() {
        let world = World::new();
        let settings = || json!({"rate": "1/m", "wait": 0});
        assert!(passes(&world.stack(settings()), "a"));
        let restarted = world.stack(settings());
        assert!(!passes(&restarted, "a"));
        world.clock.advance(Duration::from_secs(60));
        assert!(passes(&restarted, "a"));
    }

    #[test]
    fn a_clock_that_is_set_back_fills_no_bucket_and_holds_nobody_up() {
        let world = World::new();
        let settings = || json!({"rate": "1/m", "wait": 0});
        let stack = world.stack(settings());
        let now = world.clock.now_ms();
        world.clock.set(now + 86_400_000);
        assert!(passes(&stack, "a"));
        world.clock.set(now);
        assert!(!passes(&stack, "a"));
        let restarted = world.stack(settings());
        assert!(!passes(&restarted, "a"));
        world.clock.advance(Duration::from_secs(60));
        assert!(passes(&stack, "a") && passes(&restarted, "a"));
    }

    #[test]
    fn a_restart_does_not_fill_a_bucket_that_is_larger_than_its_rate() {
        let world = World::new();
        let settings = || json!({"rate": "1/s", "burst": 100, "wait": 0});
        let stack = world.stack(settings());
        assert_eq!((0..200).filter(|_| passes(&stack, "a")).count(), 100);
        world.clock.advance(Duration::from_secs(3));
        let restarted = world.stack(settings());
        assert_eq!((0..200).filter(|_| passes(&restarted, "a")).count(), 3);
    }

    #[test]
    fn layers_of_one_name_count_together() {
        let world = World::new();
        let means = Means::of(Arc::clone(&world.keep), world.clock.clone());
        let [one, other] = [(); 2].map(|()| {
            let settings = serde_json::from_value(json!({"rate": "2/m", "wait": 0})).unwrap();
            DispatchStack::builder().guard(RateLimit::new("rate", settings, means.clone())).build()
        });
        assert!(passes(&one, "a") && passes(&other, "a"));
        assert!(!passes(&one, "a") && !passes(&other, "a"));
    }

    #[test]
    fn what_was_counted_before_is_not_counted_again() {
        let world = World::new();
        let stack = world.stack(json!({"rate": "1/m", "wait": 0}));
        assert!(passes(&stack, "echo"));
        let again = fixture::with("1", |about| about.again = true);
        assert!(stack.run(again, &fixture::Echo).now_or_never().unwrap().is_ok());
    }

    #[test]
    fn a_rate_is_a_count_and_a_unit() {
        for wrong in ["10", "0/s", "-1/s", "5/fortnight", "x/s"] {
            assert!(serde_json::from_value::<Rate>(json!(wrong)).is_err(), "{wrong}");
        }
        let rate: Rate = serde_json::from_value(json!("600/m")).unwrap();
        assert_eq!(rate.to_string(), "600/m");
    }
}
