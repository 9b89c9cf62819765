//! A store middleware of the protocol, as a layer of a host.
//!
//! State is read and changed within a transition, where nothing waits. A middleware that awaits anything but
//! the rest of the stack is refused.

use std::{
    future::poll_fn,
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, Waker},
};

use async_trait::async_trait;
use serde_json::{Value, json};

use super::{StoreCall, StoreLayer, StoreNext, StoreOp, Stored};
use crate::protocol::{
    Failure, Json, Scope, StateError, StoreOptions,
    failure::kind,
    middleware::{
        StoreAnswer, StoreMiddleware, StoreOtherNext, StoreQuestion, StoreReadNext, StoreWriteNext,
    },
    state::{MemoryLink, SearchOptions, SearchResult},
};

/// A store middleware that is written against the protocol alone. It may change the key and the value, refuse,
/// and change what a read gives. The value of an addition to a number, a list or an object is the part that is
/// added; clearing transient values has no word in the protocol, and passes.
pub struct ProtocolStore {
    name: String,
    middleware: Arc<dyn StoreMiddleware>,
}

impl ProtocolStore {
    /// A layer under a name, which logs use.
    pub fn new(name: impl Into<String>, middleware: Arc<dyn StoreMiddleware>) -> Self {
        Self { name: name.into(), middleware }
    }
}

impl StoreLayer for ProtocolStore {
    fn name(&self) -> &str {
        &self.name
    }

    fn store(&self, call: StoreCall, next: StoreNext<'_>) -> Stored {
        if call.op == StoreOp::Clear {
            return next.run(call);
        }
        let scope = call.scope.parse::<Scope>().map_err(|error| {
            Failure::new(kind::REFUSED, format!("{}: read a scope: {error}", self.name))
        })?;
        let rest = Rest { call: call.clone(), hand: Mutex::new(Hand::Idle) };
        let key = call.key.clone();
        let given = call.value.as_ref().map(Json::to_value).unwrap_or_default();
        let answered = match call.op {
            StoreOp::Read => {
                let read = self.middleware.read(&scope, &key, &rest);
                self.drive(read, &rest, next).map(|value| value.unwrap_or_default().into())
            }
            StoreOp::Write | StoreOp::Reduce => {
                let write = self.middleware.write(&scope, &key, given, None, &rest);
                // What the write gives, such as a sum, is not the middleware's to change.
                self.drive(write, &rest, next).map(|()| rest.came().unwrap_or_else(Json::null))
            }
            _ => {
                let asked = question(&call, given);
                let other = self.middleware.other(&scope, asked, &rest);
                self.drive(other, &rest, next).map(|answer| match rest.came() {
                    Some(came) if answer_of(call.op, &came) == answer => came,
                    _ => json_of(answer),
                })
            }
        };
        // What it leaves as it was keeps its kind.
        answered.map_err(|failure| match rest.failed() {
            Some(failed) if failed.message == failure.message => failed,
            _ => failure,
        })
    }
}

impl ProtocolStore {
    /// Runs a middleware to its end; the rest of the stack is run where it asks for it.
    fn drive<T>(
        &self,
        asked: impl Future<Output = Result<T, StateError>>,
        rest: &Rest,
        next: StoreNext<'_>,
    ) -> Result<T, Failure> {
        let (mut asked, mut next) = (pin!(asked), Some(next));
        let mut context = Context::from_waker(Waker::noop());
        loop {
            if let Poll::Ready(answer) = asked.as_mut().poll(&mut context) {
                return answer.map_err(|error| Failure::new(kind::REFUSED, error.to_string()));
            }
            let Some(call) = rest.take() else {
                let message = format!("{}: a layer of state may not wait for anything", self.name);
                return Err(Failure::new(kind::REFUSED, message));
            };
            let Some(next) = next.take() else {
                let message = format!("{}: an operation is passed on once", self.name);
                return Err(Failure::new(kind::REFUSED, message));
            };
            rest.put(next.run(call));
        }
    }
}

/// The rest of the stack, as a middleware of the protocol passes on to it.
struct Rest {
    /// The operation as it came.
    call: StoreCall,
    hand: Mutex<Hand>,
}

/// The state of an operation that is passed on.
enum Hand {
    Idle,
    Asked(StoreCall),
    Came(Stored),
}

impl Rest {
    fn take(&self) -> Option<StoreCall> {
        let mut hand = self.hand.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *hand, Hand::Idle) {
            Hand::Asked(call) => Some(call),
            other => {
                *hand = other;
                None
            }
        }
    }

    fn put(&self, outcome: Stored) {
        *self.hand.lock().unwrap_or_else(PoisonError::into_inner) = Hand::Came(outcome);
    }

    fn outcome(&self) -> Option<Stored> {
        match &*self.hand.lock().unwrap_or_else(PoisonError::into_inner) {
            Hand::Came(outcome) => Some(outcome.clone()),
            Hand::Idle | Hand::Asked(_) => None,
        }
    }

    fn came(&self) -> Option<Json> {
        self.outcome()?.ok()
    }

    fn failed(&self) -> Option<Failure> {
        self.outcome()?.err()
    }

    /// Passes the operation on, with what the middleware has changed of it.
    async fn pass(
        &self,
        scope: &Scope,
        key: &str,
        value: Option<Json>,
    ) -> Result<Json, StateError> {
        let scope = scope.to_string();
        if scope != self.call.scope {
            return Err(StateError::WriteFailed("a layer may not change the scope".to_owned()));
        }
        let call = StoreCall { key: key.to_owned(), value, ..self.call.clone() };
        let mut call = Some(call);
        poll_fn(|_| match (call.take(), self.outcome()) {
            (Some(call), _) => {
                *self.hand.lock().unwrap_or_else(PoisonError::into_inner) = Hand::Asked(call);
                Poll::Pending
            }
            (None, Some(outcome)) => Poll::Ready(outcome),
            (None, None) => Poll::Pending,
        })
        .await
        .map_err(|failure| StateError::Other(failure.message.into()))
    }
}

#[async_trait]
impl StoreReadNext for Rest {
    async fn read(&self, scope: &Scope, key: &str) -> Result<Option<Value>, StateError> {
        let found = self.pass(scope, key, self.call.value.clone()).await?;
        Ok((!found.is_null()).then(|| found.to_value()))
    }
}

#[async_trait]
impl StoreWriteNext for Rest {
    async fn write(
        &self,
        scope: &Scope,
        key: &str,
        value: Value,
        _: Option<&StoreOptions>,
    ) -> Result<(), StateError> {
        self.pass(scope, key, Some(value.into())).await.map(drop)
    }
}

#[async_trait]
impl StoreOtherNext for Rest {
    async fn other(&self, scope: &Scope, asked: StoreQuestion) -> Result<StoreAnswer, StateError> {
        let (key, value) = match asked {
            StoreQuestion::Delete { key } => (key, None),
            StoreQuestion::List { prefix } => (prefix, None),
            StoreQuestion::Search { query, .. } => (query, None),
            StoreQuestion::Link { link } => {
                (link.from_key, Some(json!({ "to": link.to_key, "relation": link.relation })))
            }
            StoreQuestion::Unlink { from_key, to_key, relation } => {
                (from_key, Some(json!({ "to": to_key, "relation": relation })))
            }
            StoreQuestion::Traverse { from_key, .. } => (from_key, None),
        };
        let value = value.map(Json::from).or_else(|| self.call.value.clone());
        let came = self.pass(scope, &key, value).await?;
        Ok(answer_of(self.call.op, &came))
    }
}

/// An operation as the protocol asks it. What layers do not see of it stays with the host: a limit, a depth.
fn question(call: &StoreCall, value: Value) -> StoreQuestion {
    let key = call.key.clone();
    let text = |name: &str| value[name].as_str().unwrap_or_default().to_owned();
    match call.op {
        StoreOp::List => StoreQuestion::List { prefix: key },
        StoreOp::Search => StoreQuestion::Search {
            query: key,
            limit: usize::MAX,
            options: SearchOptions::default(),
        },
        StoreOp::Link => {
            StoreQuestion::Link { link: MemoryLink::new(key, text("to"), text("relation")) }
        }
        StoreOp::Unlink => {
            StoreQuestion::Unlink { from_key: key, to_key: text("to"), relation: text("relation") }
        }
        StoreOp::Traverse => {
            StoreQuestion::Traverse { from_key: key, relation: None, max_depth: u32::MAX }
        }
        StoreOp::Delete | StoreOp::Read | StoreOp::Write | StoreOp::Reduce | StoreOp::Clear => {
            StoreQuestion::Delete { key }
        }
    }
}

fn answer_of(op: StoreOp, came: &Json) -> StoreAnswer {
    match op {
        StoreOp::List | StoreOp::Traverse => {
            came.decode().map_or(StoreAnswer::Done, StoreAnswer::Keys)
        }
        StoreOp::Search => {
            let found = came.decode::<Vec<SearchResult>>();
            found.map_or(StoreAnswer::Done, StoreAnswer::Found)
        }
        _ => StoreAnswer::Done,
    }
}

fn json_of(answer: StoreAnswer) -> Json {
    match answer {
        StoreAnswer::Done => Json::null(),
        StoreAnswer::Keys(keys) => json!(keys).into(),
        StoreAnswer::Found(found) => json!(found).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::middleware::StoreStack;

    /// A middleware that is known by what it does.
    enum Own {
        Seals,
        Hides,
        Refuses,
        Waits,
        Twice,
    }

    #[async_trait]
    impl StoreMiddleware for Own {
        async fn write(
            &self,
            scope: &Scope,
            key: &str,
            value: Value,
            options: Option<&StoreOptions>,
            next: &dyn StoreWriteNext,
        ) -> Result<(), StateError> {
            match self {
                Self::Seals => next.write(scope, key, json!({ "sealed": value }), options).await,
                Self::Refuses => Err(StateError::WriteFailed("not today".into())),
                Self::Waits => std::future::pending().await,
                Self::Hides => next.write(scope, &format!("own/{key}"), value, options).await,
                Self::Twice => {
                    next.write(scope, key, value.clone(), options).await?;
                    next.write(scope, key, value, options).await
                }
            }
        }

        async fn read(
            &self,
            scope: &Scope,
            key: &str,
            next: &dyn StoreReadNext,
        ) -> Result<Option<Value>, StateError> {
            let found = next.read(scope, key).await?;
            Ok(match self {
                Self::Seals => found.map(|found| found["sealed"].clone()),
                _ => found,
            })
        }

        async fn other(
            &self,
            scope: &Scope,
            asked: StoreQuestion,
            next: &dyn StoreOtherNext,
        ) -> Result<StoreAnswer, StateError> {
            let answer = next.other(scope, asked).await?;
            Ok(match (self, answer) {
                (Self::Hides, StoreAnswer::Keys(keys)) => {
                    StoreAnswer::Keys(keys.into_iter().filter(|key| key != "hidden").collect())
                }
                (_, answer) => answer,
            })
        }
    }

    fn call(op: StoreOp, value: Option<Value>) -> StoreCall {
        StoreCall {
            op,
            run: None,
            principal: "root".into(),
            scope: "global".into(),
            key: "k".into(),
            value: value.map(Json::from),
        }
    }

    /// Runs a call through a middleware; the state answers with `state`.
    fn through(own: Own, call: StoreCall, state: &Stored) -> (Vec<StoreCall>, Stored) {
        let stack =
            StoreStack::builder().transform(ProtocolStore::new("own", Arc::new(own))).build();
        let mut reached = Vec::new();
        let outcome = stack.run(call, &mut |call| {
            reached.push(call);
            state.clone()
        });
        (reached, outcome)
    }

    #[test]
    fn a_store_middleware_of_the_protocol_changes_what_is_written_read_and_listed() {
        let null = Ok(Json::null());
        let (reached, outcome) = through(Own::Seals, call(StoreOp::Write, Some(json!(1))), &null);
        assert_eq!(reached[0].value.as_ref().unwrap().to_value(), json!({ "sealed": 1 }));
        assert!(outcome.unwrap().is_null());
        let stored = Ok(json!({ "sealed": 1 }).into());
        let (_, outcome) = through(Own::Seals, call(StoreOp::Read, None), &stored);
        assert_eq!(outcome.unwrap().to_value(), 1);
        let (_, outcome) = through(Own::Seals, call(StoreOp::Read, None), &null);
        assert!(outcome.unwrap().is_null(), "what is missing stays missing");
        let sum = Ok(json!(7).into());
        let (reached, outcome) = through(Own::Hides, call(StoreOp::Reduce, Some(json!(2))), &sum);
        assert_eq!((reached[0].key.as_str(), outcome.unwrap().to_value()), ("own/k", json!(7)));
        let keys = Ok(json!(["a", "hidden"]).into());
        let (_, outcome) = through(Own::Hides, call(StoreOp::List, None), &keys);
        assert_eq!(outcome.unwrap().to_value(), json!(["a"]));
    }

    #[test]
    fn a_refusal_is_the_middlewares_own_and_a_failure_of_state_keeps_its_kind() {
        let null = Ok(Json::null());
        let (reached, outcome) = through(Own::Refuses, call(StoreOp::Write, Some(json!(1))), &null);
        let failure = outcome.unwrap_err();
        assert!(reached.is_empty() && failure.message.contains("not today"), "{failure:?}");
        let failed = Err(Failure::new(kind::LIMIT, "too large"));
        let (_, outcome) = through(Own::Seals, call(StoreOp::Write, Some(json!(1))), &failed);
        assert_eq!(outcome.unwrap_err().kind, kind::LIMIT);
    }

    #[test]
    fn a_middleware_that_waits_or_passes_on_twice_is_refused() {
        let null = Ok(Json::null());
        for (own, what) in [(Own::Waits, "may not wait"), (Own::Twice, "passed on once")] {
            let (reached, outcome) = through(own, call(StoreOp::Write, Some(json!(1))), &null);
            let failure = outcome.unwrap_err();
            assert!(failure.message.contains(what) && reached.len() < 2, "{failure:?}");
        }
    }

    #[test]
    fn every_operation_passes_a_middleware_that_changes_nothing() {
        let link = json!({ "to": "b", "relation": "r" });
        for op in StoreOp::ALL {
            let (value, state) = match op {
                StoreOp::Link | StoreOp::Unlink => (Some(link.clone()), json!(null)),
                StoreOp::Search => (None, json!([{ "key": "a", "score": 1.0, "snippet": "x" }])),
                StoreOp::List | StoreOp::Traverse => (None, json!(["a"])),
                _ => (None, json!(null)),
            };
            let own = if op == StoreOp::Write { Own::Hides } else { Own::Refuses };
            let own = if op == StoreOp::Reduce { Own::Hides } else { own };
            let stored: Stored = Ok(state.clone().into());
            let (reached, outcome) = through(own, call(op, value.clone()), &stored);
            assert_eq!((reached.len(), reached[0].op), (1, op));
            assert_eq!(outcome.unwrap().to_value(), state, "{op:?}");
            if value.is_some() {
                assert_eq!(reached[0].value.as_ref().map(Json::to_value), value, "{op:?}");
            }
        }
    }
}
