//! The layers that answer from stored results: `cache` by input, `idempotency` by the key of the
//! call.
//!
//! Both are guards, so that everything outside of them (the gate, an allow-list) has agreed before
//! a stored result is returned.

use std::{collections::HashMap, sync::Arc};

use async_trait::async_trait;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::watch;

use super::{Means, Span, allow::any_fits};
use crate::{
    middleware::{
        About, Change, Dispatch, DispatchLayer, Dispatched, Next, Promise, Settled, TaskDone,
        stack::settle_now,
    },
    protocol::{Failure, Json, RunId, TaskId, failure::kind},
};

/// The settings of `kind = "cache"`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheSettings {
    /// The agents whose results are cached; all by default.
    #[serde(default)]
    pub agents: Vec<String>,
    /// The operators whose results are cached; all by default.
    #[serde(default)]
    pub operators: Vec<String>,
    /// The lifetime of a result.
    #[serde(default = "an_hour")]
    pub ttl: Span,
}

fn an_hour() -> Span {
    Span(3_600_000)
}

/// The settings of `kind = "idempotency"`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdempotencySettings {
    /// The time for which a key is remembered.
    #[serde(default = "a_day")]
    pub ttl: Span,
}

fn a_day() -> Span {
    Span(86_400_000)
}

/// Returns the earlier result of the same input.
pub struct Cache {
    name: String,
    settings: CacheSettings,
    means: Means,
}

impl Cache {
    /// Creates a cache from `settings`.
    pub fn new(name: &str, settings: CacheSettings, means: Means) -> Self {
        Self { name: name.to_owned(), settings, means }
    }

    fn is_for(&self, about: &About) -> bool {
        let named = |names: &[String], name: &str| names.is_empty() || any_fits(names, name);
        // One answer of a person is no answer to every later question.
        !about.asks_people
            && named(&self.settings.agents, &about.agent)
            && named(&self.settings.operators, &about.operator)
    }
}

/// Returns the hash of a request to a version of a blueprint.
fn question(about: &About, input: &Json) -> String {
    hash(&[&about.version, &about.agent, &about.operator, input.as_str()])
}

/// Returns the hash of the request that a key belongs to, whatever version of its blueprint makes
/// it.
fn asked(about: &About, input: &Json) -> String {
    let (operator, input) = match &about.key_owner {
        Some(whole) => (&whole.operator, &whole.input),
        None => (&about.operator, input),
    };
    hash(&[&about.agent, operator, input.as_str()])
}

fn hash(parts: &[&str]) -> String {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    hasher.finalize().to_hex().to_string()
}

#[async_trait]
impl DispatchLayer for Cache {
    fn name(&self) -> &str {
        &self.name
    }

    async fn dispatch(&self, dispatch: Dispatch, next: Next<'_>) -> Result<Dispatched, Failure> {
        let (about, input) = (Arc::clone(&dispatch.about), dispatch.input.clone());
        if !self.is_for(&about) {
            return next.run(dispatch).await;
        }
        if !about.again
            && let Some(output) =
                self.means.keep.read(&self.name, &question(&about, &input)).await?
        {
            return Ok(Dispatched::Done(TaskDone::new(output)));
        }
        let outcome = next.run(dispatch).await;
        settle_now(self, &about, &input, outcome)
    }

    fn settle(&self, about: &About, input: &Json, outcome: Settled) -> Settled {
        if let Ok(done) = &outcome
            && self.is_for(about)
            // The effects of a cached result would not be applied again.
            && done.effects.is_empty()
            && let Some(value) = about.storable(&done.output)
        {
            let expires_ms = Some(self.means.clock.now_ms() + self.settings.ttl.0);
            let (layer, key) = (self.name.clone(), question(about, input));
            self.means.keep.post(Change::Put { layer, key, value, expires_ms });
        }
        outcome
    }
}

/// The result of a key, with the request that it belongs to.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Answered {
    question: String,
    output: Json,
}

struct UnderWay {
    question: String,
    /// The step that has the key.
    step: (RunId, u32),
    /// The attempts of its tasks; a composite has several.
    by: HashMap<TaskId, u32>,
    over: watch::Sender<()>,
}

/// A task, and the number of its attempt.
type By = (TaskId, u32);

/// The steps that have a key at present.
type Keys = Mutex<HashMap<String, UnderWay>>;

/// Releases the key of an attempt that is over; steps that wait for it check again.
fn let_go(keys: &Keys, key: &str, by: &By) {
    let mut under_way = keys.lock();
    let Some(it) = under_way.get_mut(key) else { return };
    if it.by.get(&by.0) == Some(&by.1) {
        it.by.remove(&by.0);
    }
    if it.by.is_empty() {
        under_way.remove(key);
    }
}

fn by(about: &About) -> By {
    (about.task, about.attempt)
}

/// Executes dispatches with the same `idempotency_key` once.
pub struct Idempotency {
    name: String,
    settings: IdempotencySettings,
    means: Means,
    under_way: Arc<Keys>,
}

/// The next action for a key.
enum KeyTurn {
    Mine,
    Wait(watch::Receiver<()>),
}

impl Idempotency {
    /// Creates a layer from `settings`.
    pub fn new(name: &str, settings: IdempotencySettings, means: Means) -> Self {
        let under_way = means.memory(name);
        Self { name: name.to_owned(), settings, means, under_way }
    }

    fn turn(&self, key: &str, about: &About, question: &str) -> Result<KeyTurn, Failure> {
        let mut under_way = self.under_way.lock();
        let number = about.key_owner.as_ref().map_or(about.task.step(), |whole| whole.step);
        let step = (about.run, number);
        if let Some(other) = under_way.get_mut(key) {
            if other.question != question {
                return Err(mismatch(key));
            }
            if other.step != step {
                return Ok(KeyTurn::Wait(other.over.subscribe()));
            }
            other.by.insert(about.task, about.attempt);
            return Ok(KeyTurn::Mine);
        }
        let (over, _) = watch::channel(());
        let (question, by) = (question.to_owned(), HashMap::from([by(about)]));
        under_way.insert(key.to_owned(), UnderWay { question, step, by, over });
        Ok(KeyTurn::Mine)
    }

    /// Promises to store the answer of a key.
    fn promise(&self, about: &About, input: &Json, key: String) -> Promise {
        let (question, storable) = (asked(about, input), about.storable.clone());
        let (clock, ttl_ms) = (self.means.clock.clone(), self.settings.ttl.0);
        let value_of = move |output: &Json| {
            let output = storable.as_ref().map_or_else(|| Some(output.clone()), |it| it(output))?;
            let value = Json::encode(&Answered { question: question.clone(), output }).ok()?;
            Some((value, clock.now_ms() + ttl_ms))
        };
        let (under_way, by) = (Arc::clone(&self.under_way), by(about));
        let (keep, of) = (Arc::clone(&self.means.keep), key.clone());
        Promise::new(keep, (&self.name, &key), value_of, move || let_go(&under_way, &of, &by))
    }
}

fn key_of(about: &About) -> Option<String> {
    let key = about.idempotency_key.as_ref()?;
    Some(format!("{}/{}/{key}", about.blueprint, about.agent))
}

fn mismatch(key: &str) -> Failure {
    let message = format!("the idempotency key {key:?} was used for another input");
    let data = json!({ "code": "idempotency_mismatch", "key": key });
    Failure::new(kind::REFUSED, message).with_data(Json::from(data))
}

/// Releases a key when its dispatch is dropped.
struct Holding<'a> {
    layer: &'a Idempotency,
    key: &'a str,
    about: &'a About,
    over: bool,
}

impl Drop for Holding<'_> {
    fn drop(&mut self) {
        if !self.over {
            let_go(&self.layer.under_way, self.key, &by(self.about));
        }
    }
}

#[async_trait]
impl DispatchLayer for Idempotency {
    fn name(&self) -> &str {
        &self.name
    }

    async fn dispatch(&self, dispatch: Dispatch, next: Next<'_>) -> Result<Dispatched, Failure> {
        let (about, input) = (Arc::clone(&dispatch.about), dispatch.input.clone());
        let Some(key) = key_of(&about) else { return next.run(dispatch).await };
        let asked = asked(&about, &input);
        let mut holding = None;
        loop {
            let kept = self.means.keep.read(&self.name, &key).await?;
            if let Some(answered) = kept.and_then(|it| it.decode::<Answered>().ok()) {
                // Those of earlier releases have the version in it.
                if answered.question != asked && answered.question != question(&about, &input) {
                    return Err(mismatch(&key));
                }
                return Ok(Dispatched::Done(TaskDone::new(answered.output)));
            }
            if about.is_over() {
                // It was settled before it had the key: nobody would release that.
                return Err(Failure::new(kind::CANCELED, "the attempt is over"));
            }
            if holding.is_some() {
                break;
            }
            match self.turn(&key, &about, &asked)? {
                // Another attempt may have had its answer since it was read: it is read once more,
                // now that nobody else can.
                KeyTurn::Mine => {
                    holding = Some(Holding { layer: self, key: &key, about: &about, over: false });
                }
                // The sender is dropped when the other attempt is over; `changed` returns an error
                // then.
                KeyTurn::Wait(mut over) => drop(over.changed().await),
            }
        }
        let outcome = next.run(dispatch).await;
        if let Some(holding) = &mut holding {
            holding.over = true;
        }
        settle_now(self, &about, &input, outcome)
    }

    fn settle(&self, about: &About, input: &Json, outcome: Settled) -> Settled {
        let Some(key) = key_of(about) else { return outcome };
        match &outcome {
            // The engine may still refuse its effects, and its step may go on. Until it is known,
            // nobody else has the key.
            Ok(done) => {
                let mut promise = self.promise(about, input, key);
                promise.answer(&done.output);
                about.promise(promise);
            }
            Err(_) => let_go(&self.under_way, &key, &by(about)),
        }
        outcome
    }

    fn take_up(&self, about: &About, input: &Json) {
        let Some(key) = key_of(about) else { return };
        // Another step may have got it meanwhile: both are in progress then.
        drop(self.turn(&key, about, &asked(about, input)));
        about.promise(self.promise(about, input, key));
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
            DispatchStack, Keep, MemoryKeep,
            fixture::{self, Does},
        },
    };

    fn means() -> (Clock, Means) {
        let clock = Clock::manual(1_000);
        (clock.clone(), Means::of(Arc::new(MemoryKeep::new(clock.clone())), clock))
    }

    fn counts() -> Does<impl Fn(Dispatch) -> Result<Dispatched, Failure>> {
        Does::new(|dispatch: Dispatch| Ok(Dispatched::Done(TaskDone::new(dispatch.input))))
    }

    fn cache(settings: serde_json::Value, means: &Means) -> DispatchStack {
        let settings = serde_json::from_value(settings).unwrap();
        DispatchStack::builder().guard(Cache::new("cache", settings, means.clone())).build()
    }

    fn idempotency(means: &Means) -> DispatchStack {
        let settings = serde_json::from_value(json!({})).unwrap();
        let layer = Idempotency::new("once", settings, means.clone());
        DispatchStack::builder().guard(layer).build()
    }

    fn keyed(input: &str, step: u32, key: &str) -> Dispatch {
        fixture::with(input, |about| {
            about.task = TaskId::new(7, step, 0);
            about.idempotency_key = Some(key.into());
        })
    }

    #[test]
    fn the_same_question_is_asked_once_until_its_answer_is_too_old() {
        let (clock, means) = means();
        let stack = cache(json!({"ttl": "1m"}), &means);
        let counts = counts();
        let ask = |input: &str| stack.run(fixture::dispatch(input), &counts).now_or_never();
        assert_eq!(ask("1"), ask("1"));
        assert_eq!(counts.calls(), 1);
        ask("2");
        assert_eq!(counts.calls(), 2);
        clock.advance(Duration::from_secs(60));
        ask("1");
        assert_eq!(counts.calls(), 3);
        // Another version of the blueprint has results of its own.
        let newer = fixture::with("1", |about| about.version = "other".into());
        stack.run(newer, &counts).now_or_never();
        assert_eq!(counts.calls(), 4);
    }

    #[test]
    fn only_the_named_agents_are_remembered_and_failures_never() {
        let (_, means) = means();
        let stack = cache(json!({"agents": ["other"]}), &means);
        let counts = counts();
        for _ in 0..2 {
            stack.run(fixture::dispatch("1"), &counts).now_or_never();
        }
        assert_eq!(counts.calls(), 2);
        let stack = cache(json!({}), &means);
        let fails = Does::new(|_| Err(Failure::new("worker", "no")));
        for _ in 0..2 {
            stack.run(fixture::dispatch("9"), &fails).now_or_never();
        }
        assert_eq!(fails.calls(), 2);
    }

    #[test]
    fn a_name_may_have_stars_and_the_answers_of_people_are_never_cached() {
        let (_, means) = means();
        let (stack, counts) = (cache(json!({"agents": ["count*"]}), &means), counts());
        for _ in 0..2 {
            stack.run(fixture::dispatch("1"), &counts).now_or_never();
        }
        assert_eq!(counts.calls(), 1);
        for _ in 0..2 {
            let asks = fixture::with("1", |about| about.asks_people = true);
            stack.run(asks, &counts).now_or_never();
        }
        assert_eq!(counts.calls(), 3);
    }

    #[test]
    fn what_its_agent_refuses_is_not_remembered_and_the_rest_as_it_may_be_stored() {
        let (_, means) = means();
        for stack in [cache(json!({}), &means), idempotency(&means)] {
            let counts = counts();
            let run = |input: &str, step: u32| {
                let dispatch = fixture::with(input, |about| {
                    about.task = TaskId::new(7, step, 0);
                    about.idempotency_key = Some(input.into());
                    about.storable =
                        Some(Arc::new(|it: &Json| (it.as_str() != "1").then(Json::null)));
                });
                stack.run(dispatch, &counts).now_or_never().unwrap().unwrap()
            };
            let refused = Dispatched::Done(TaskDone::new(Json::parse("1").unwrap()));
            assert_eq!((run("1", 1), run("1", 2)), (refused.clone(), refused));
            run("2", 3);
            assert_eq!(run("2", 4), Dispatched::Done(TaskDone::new(Json::null())));
            assert_eq!(counts.calls(), 3);
        }
    }

    #[test]
    fn what_a_parked_worker_reported_is_remembered() {
        let (_, means) = means();
        let stack = cache(json!({}), &means);
        let about = fixture::dispatch("1").about;
        let answer = Json::parse("\"later\"").unwrap();
        let input = Json::parse("1").unwrap();
        stack.settle(&about, &input, Ok(TaskDone::new(answer.clone()))).unwrap();
        let outcome = stack.run(fixture::dispatch("1"), &fixture::Parks).now_or_never();
        assert_eq!(outcome, Some(Ok(Dispatched::Done(TaskDone::new(answer)))));
    }

    #[test]
    fn a_key_runs_once_and_means_one_input() {
        let (_, means) = means();
        let stack = idempotency(&means);
        let counts = counts();
        let run = |dispatch| stack.run(dispatch, &counts).now_or_never().unwrap();
        assert_eq!(run(keyed("1", 1, "k")), run(keyed("1", 2, "k")));
        assert_eq!(counts.calls(), 1);
        let failure = run(keyed("2", 3, "k")).unwrap_err();
        assert_eq!(failure.data.unwrap().to_value()["code"], "idempotency_mismatch");
        run(fixture::dispatch("1")).unwrap();
        run(fixture::dispatch("1")).unwrap();
        assert_eq!(counts.calls(), 3, "without a key nothing is remembered");
    }

    #[test]
    fn a_key_means_the_same_in_the_next_version_of_its_blueprint() {
        let (_, means) = means();
        let stack = idempotency(&means);
        let counts = counts();
        let run = |dispatch| stack.run(dispatch, &counts).now_or_never().unwrap();
        let newer = |step| {
            fixture::with("1", |about| {
                about.task = TaskId::new(7, step, 0);
                about.idempotency_key = Some("k".into());
                about.version = "newer".into();
            })
        };
        assert_eq!(run(keyed("1", 1, "k")), run(newer(2)));
        assert_eq!(counts.calls(), 1);
        // What an earlier release stored has the version in its hash.
        let (about, input) = (newer(3).about, Json::parse("1").unwrap());
        let old = Answered { question: question(&about, &input), output: Json::null() };
        let put = Change::Put {
            layer: "once".into(),
            key: key_of(&about).unwrap(),
            value: Json::encode(&old).unwrap(),
            expires_ms: None,
        };
        means.keep.post(put);
        assert_eq!(run(newer(3)), Ok(Dispatched::Done(TaskDone::new(Json::null()))));
    }

    #[test]
    fn a_second_one_waits_for_the_first_and_takes_over_when_it_fails() {
        let (_, means) = means();
        let stack = idempotency(&means);
        let first = keyed("1", 1, "k");
        let (about, input) = (Arc::clone(&first.about), first.input.clone());
        stack.run(first, &fixture::Parks).now_or_never().unwrap().unwrap();
        let counts = counts();
        let mut second = stack.run(keyed("1", 2, "k"), &counts);
        assert!((&mut second).now_or_never().is_none());
        let failure = Failure::new("worker", "no");
        assert!(stack.settle(&about, &input, Err(Box::new(failure.into()))).is_err());
        assert!(second.now_or_never().unwrap().is_ok());
        assert_eq!(counts.calls(), 1);
    }

    /// A dispatch of an engine, which says when its result is accepted.
    fn hosted(step: u32) -> Dispatch {
        fixture::with("1", |about| {
            about.task = TaskId::new(7, step, 0);
            about.idempotency_key = Some("k".into());
            about.promises = Some(Mutex::default());
        })
    }

    #[test]
    fn a_result_is_remembered_once_it_is_accepted_and_its_key_is_held_until_then() {
        let (_, means) = means();
        let (stack, counts) = (idempotency(&means), counts());
        let refused = hosted(1);
        let about = Arc::clone(&refused.about);
        stack.run(refused, &counts).now_or_never().unwrap().unwrap();
        let mut second = stack.run(hosted(2), &counts);
        assert!((&mut second).now_or_never().is_none(), "the first may be accepted");
        drop(about.take_promises());
        assert!(second.now_or_never().unwrap().is_ok());
        assert_eq!(counts.calls(), 2);
        let accepted = hosted(3);
        let about = Arc::clone(&accepted.about);
        stack.run(accepted, &counts).now_or_never().unwrap().unwrap();
        about.take_promises().into_iter().for_each(Promise::keep);
        assert!(stack.run(hosted(4), &counts).now_or_never().unwrap().is_ok());
        assert_eq!(counts.calls(), 3);
    }

    #[test]
    fn the_key_of_a_result_is_held_for_the_report_that_comes_before_it() {
        let (_, means) = means();
        let (stack, counts) = (idempotency(&means), counts());
        let returned = hosted(1);
        let (about, input) = (Arc::clone(&returned.about), returned.input.clone());
        stack.run(returned, &counts).now_or_never().unwrap().unwrap();
        about.give_up();
        let reported = about.heard_by(Arc::clone(&about.voice));
        let answer = TaskDone::new(Json::parse("2").unwrap());
        stack.settle(&reported, &input, Ok(answer.clone())).unwrap();
        // The attempt is over before its report is stored.
        drop(about);
        let mut second = stack.run(hosted(2), &counts);
        assert!((&mut second).now_or_never().is_none(), "the report may be stored");
        reported.take_promises().into_iter().for_each(Promise::keep);
        assert_eq!(second.now_or_never().unwrap(), Ok(Dispatched::Done(answer)));
        assert_eq!(counts.calls(), 1);
    }

    #[test]
    fn the_key_of_a_result_is_held_for_the_report_that_comes_while_it_is_settled() {
        let (_, means) = means();
        let (stack, counts) = (idempotency(&means), counts());
        let reports = Arc::new(Mutex::new(None::<Arc<About>>));
        let reported = Arc::clone(&reports);
        let returned = fixture::with("1", |about| {
            about.task = TaskId::new(7, 1, 0);
            about.idempotency_key = Some("k".into());
            about.promises = Some(Mutex::default());
            about.storable = Some(Arc::new(move |output: &Json| {
                let about = reported.lock().take();
                if let Some(about) = about {
                    about.give_up();
                }
                Some(output.clone())
            }));
        });
        *reports.lock() = Some(Arc::clone(&returned.about));
        stack.run(returned, &counts).now_or_never().unwrap().unwrap();
        let second = stack.run(hosted(2), &counts).now_or_never();
        assert!(second.is_none(), "the report may be stored");
    }

    /// A store whose first read takes long.
    struct Late(MemoryKeep, Mutex<Option<tokio::sync::oneshot::Receiver<()>>>);

    #[async_trait]
    impl Keep for Late {
        async fn read(&self, layer: &str, key: &str) -> Result<Option<Json>, Failure> {
            let (found, waits) = (self.0.read(layer, key).await, self.1.lock().take());
            if let Some(waits) = waits {
                waits.await.unwrap();
            }
            found
        }

        async fn write(&self, change: Change) -> Result<(), Failure> {
            self.0.write(change).await
        }

        fn post(&self, change: Change) {
            self.0.post(change);
        }
    }

    #[test]
    fn an_answer_that_comes_while_another_looks_for_it_counts() {
        let clock = Clock::manual(1_000);
        let (goes_on, waits) = tokio::sync::oneshot::channel();
        let keep = Late(MemoryKeep::new(clock.clone()), Mutex::new(Some(waits)));
        let stack = idempotency(&Means::of(Arc::new(keep), clock));
        let counts = counts();
        let mut first = stack.run(keyed("1", 1, "k"), &counts);
        assert!((&mut first).now_or_never().is_none());
        assert!(stack.run(keyed("1", 2, "k"), &counts).now_or_never().unwrap().is_ok());
        goes_on.send(()).unwrap();
        assert!(first.now_or_never().unwrap().is_ok());
        assert_eq!(counts.calls(), 1);
    }

    #[test]
    fn what_is_handed_out_again_is_remembered() {
        let (_, means) = means();
        let (stack, counts) = (cache(json!({}), &means), counts());
        let again = fixture::with("1", |about| about.again = true);
        for dispatch in [again, fixture::dispatch("1")] {
            stack.run(dispatch, &counts).now_or_never().unwrap().unwrap();
        }
        assert_eq!(counts.calls(), 1);
    }

    #[test]
    fn an_attempt_that_is_over_takes_no_key() {
        let (_, means) = means();
        let stack = idempotency(&means);
        let over = keyed("1", 1, "k");
        over.about.give_up();
        assert!(stack.run(over, &fixture::Parks).now_or_never().unwrap().is_err());
        assert!(stack.run(keyed("1", 2, "k"), &counts()).now_or_never().is_some());
    }

    #[test]
    fn a_dropped_dispatch_holds_nobody_up() {
        struct Never;
        #[async_trait]
        impl crate::middleware::Terminal for Never {
            async fn dispatch(&self, _: Dispatch) -> Result<Dispatched, Failure> {
                futures::future::pending().await
            }
        }
        let (_, means) = means();
        let stack = idempotency(&means);
        assert!(stack.run(keyed("1", 1, "k"), &Never).now_or_never().is_none());
        assert!(stack.run(keyed("1", 2, "k"), &counts()).now_or_never().is_some());
    }
}
