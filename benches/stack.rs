//! The cost of the layers around a dispatch: `cargo bench --bench stack`.
//!
//! With tracing alone a dispatch is to stay under 2 µs.

use std::sync::Arc;

use async_trait::async_trait;
use divan::Bencher;
use futures::FutureExt as _;
use moonswarm::{
    clock::Clock,
    middleware::{
        About, Dispatch, DispatchStack, Dispatched, Layer, Means, MemoryKeep, Stacks, TaskDone,
        Terminal, Tracing,
    },
    protocol::{Failure, Json, OperatorConfig, RunId, TaskId},
};
use serde_json::json;

fn main() {
    divan::main();
}

/// Answers at once with what it is given.
struct Echo;

#[async_trait]
impl Terminal for Echo {
    async fn dispatch(&self, dispatch: Dispatch) -> Result<Dispatched, Failure> {
        Ok(Dispatched::Done(TaskDone::new(dispatch.input)))
    }
}

fn dispatch() -> Dispatch {
    let about = About::new(RunId::new(7, 0), TaskId::new(7, 3, 0), "agent", "echo");
    Dispatch {
        about: Arc::new(about),
        input: Json::null(),
        config: OperatorConfig::default(),
        route: None,
        payload: Arc::new(()),
    }
}

fn pass(bencher: Bencher<'_, '_>, stack: &DispatchStack) {
    bencher.with_inputs(dispatch).bench_values(|dispatch| {
        stack.run(dispatch, &Echo).now_or_never().expect("nothing here waits")
    });
}

#[divan::bench]
fn no_layer(bencher: Bencher<'_, '_>) {
    pass(bencher, &DispatchStack::builder().build());
}

#[divan::bench]
fn tracing_alone(bencher: Bencher<'_, '_>) {
    pass(bencher, &DispatchStack::builder().observe(Tracing).build());
}

#[divan::bench]
fn budget_guard_and_breaker(bencher: Bencher<'_, '_>) {
    let layer = |data| Layer::of(&data).expect("the bench wrote a layer");
    let layers = [
        layer(json!({"kind": "tracing"})),
        layer(json!({"kind": "guard", "operators": ["echo"]})),
        layer(json!({"kind": "budget", "usd": "1"})),
        layer(json!({"kind": "circuit_breaker"})),
    ];
    let means = Means::of(Arc::new(MemoryKeep::new(Clock::system())), Clock::system());
    pass(bencher, &Stacks::of(&layers, "host", "", &means).dispatch);
}
