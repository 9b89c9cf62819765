//! The spawner that routes to operators by name.

use std::sync::Arc;

use async_trait::async_trait;
use futures::{FutureExt as _, future::BoxFuture};
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::Instrument as _;

use super::{SpawnerAdapter, Worker};
use crate::{
    middleware::{Dispatched, ExecCall, ExecTerminal, PROGRAMS, TaskDone},
    operator::{Backend, Registry, Reply, Residence, Task},
    protocol::{Failure, Json, WorkerId, failure::kind},
    tasks::{Spawned, Tasks},
};

/// Routes each task to its operator.
#[derive(Clone)]
pub struct OperatorSpawner {
    registry: Registry,
    tasks: Tasks,
}

impl OperatorSpawner {
    /// Returns a spawner over the operators of `registry`, whose workers are among `tasks`.
    pub fn new(registry: Registry, tasks: Tasks) -> Self {
        Self { registry, tasks }
    }
}

#[async_trait]
impl SpawnerAdapter for OperatorSpawner {
    async fn spawn(&self, task: Arc<Task>, input: Json) -> Result<Box<dyn Worker>, Failure> {
        let Some(backend) = self.registry.get(task.executor()) else {
            return Err(Failure::new(
                kind::OPERATOR_UNAVAILABLE,
                format!("there is no operator {:?}", task.executor()),
            ));
        };
        let id = task.worker();
        let residence = backend.residence();
        let mut work = execute(Arc::clone(backend), task, input).boxed();
        if residence != Residence::Host {
            // It may be done at once, ahead of the commit, or is only put where a worker finds it: it
            // is not handed to another thread.
            let work = match futures::poll!(&mut work) {
                std::task::Poll::Ready(reply) => AttemptState::Done(reply),
                std::task::Poll::Pending => AttemptState::Here(work),
            };
            return Ok(Box::new(OperatorWorker { id, work }));
        }
        // Whoever drops the worker gives up the work.
        let given_up = CancellationToken::new();
        let guard = given_up.clone().drop_guard();
        let work = async move {
            tokio::select! {
                biased;
                () = given_up.cancelled_owned() => {
                    Err(Failure::new(kind::CANCELED, "the worker was given up"))
                }
                reply = work => reply,
            }
        };
        let spawned = self.tasks.spawn(work.in_current_span());
        Ok(Box::new(OperatorWorker { id, work: AttemptState::Spawned(spawned, guard) }))
    }

    fn only_executes(&self) -> bool {
        true
    }
}

/// Executes one attempt, through the layers that stand around its operator's kind.
async fn execute(
    backend: Arc<dyn Backend>,
    task: Arc<Task>,
    input: Json,
) -> Result<Reply, Failure> {
    if task.lists_tools {
        let tools = backend.list_tools(task).await?;
        let tools = Json::encode(&tools).expect("tools are plain data");
        return Ok(Reply::Done(TaskDone::new(tools)));
    }
    let (kind, stacks) = (backend.kind(), Arc::clone(&task.stacks));
    // Programs pass their layers where they are started, with their arguments.
    if kind == PROGRAMS || !stacks.exec.stands_around(kind) {
        return backend.execute(task, input).await;
    }
    let call = ExecCall {
        run: task.run,
        task: task.id,
        attempt: task.attempt,
        agent: Arc::clone(&task.agent_name),
        operator: Arc::clone(&task.operator),
        kind,
        program: task.executor().to_string(),
        args: Vec::new(),
        env: Vec::new(),
        input,
    };
    let done = stacks.exec.run(call, &Executes { backend, task }).await?;
    Ok(match done {
        Dispatched::Done(done) => Reply::Done(done),
        Dispatched::Short(short) => Reply::Short(short),
        Dispatched::Parked => Reply::Parked,
    })
}

/// The operator at the end of the stack.
struct Executes {
    backend: Arc<dyn Backend>,
    task: Arc<Task>,
}

#[async_trait]
impl ExecTerminal for Executes {
    async fn exec(&self, call: ExecCall) -> Result<Dispatched, Failure> {
        let reply = self.backend.execute(Arc::clone(&self.task), call.input).await?;
        Ok(match reply {
            Reply::Done(done) => Dispatched::Done(done),
            Reply::Short(short) => Dispatched::Short(short),
            Reply::Parked => Dispatched::Parked,
        })
    }
}

/// A backend that executes one attempt.
struct OperatorWorker {
    id: WorkerId,
    work: AttemptState,
}

/// The place where the work of an attempt goes on.
enum AttemptState {
    /// The attempt is over.
    Done(Result<Reply, Failure>),
    /// With whoever waits for it.
    Here(BoxFuture<'static, Result<Reply, Failure>>),
    /// By itself.
    Spawned(Spawned<Result<Reply, Failure>>, DropGuard),
}

#[async_trait]
impl Worker for OperatorWorker {
    fn id(&self) -> WorkerId {
        self.id
    }

    async fn join(self: Box<Self>) -> Result<Reply, Failure> {
        match self.work {
            AttemptState::Done(reply) => reply,
            AttemptState::Here(work) => work.await,
            AttemptState::Spawned(work, _guard) => work.await.unwrap_or_else(|_| {
                Err(Failure::new(kind::WORKER, "the operator panicked").retryable())
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::Semaphore;

    use super::*;
    use crate::operator::{Backend, fixture::Attempt};

    /// Says when it began and when it was given up, and ends when it may.
    #[derive(Clone)]
    struct Slow {
        began: Arc<Semaphore>,
        ends: Arc<Semaphore>,
        dropped: Arc<Semaphore>,
    }

    struct Dropped(Arc<Semaphore>);

    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.add_permits(1);
        }
    }

    #[async_trait]
    impl Backend for Slow {
        fn kind(&self) -> &'static str {
            "slow"
        }

        fn residence(&self) -> Residence {
            Residence::Host
        }

        async fn execute(&self, _: Arc<Task>, input: Json) -> Result<Reply, Failure> {
            let _dropped = Dropped(Arc::clone(&self.dropped));
            self.began.add_permits(1);
            let _end = self.ends.acquire().await.unwrap();
            assert!(input.as_str() != "\"panics\"", "as the test asks");
            Ok(Reply::Done(TaskDone::new(input)))
        }
    }

    fn slow() -> (Slow, OperatorSpawner, Arc<Task>) {
        let none = || Arc::new(Semaphore::new(0));
        let slow = Slow { began: none(), ends: none(), dropped: none() };
        let task = Attempt::new().task();
        let backend: Arc<dyn Backend> = Arc::new(slow.clone());
        let operators = [(task.operator.to_string(), backend)].into();
        let tasks = Tasks::new(tokio::runtime::Handle::current());
        (slow, OperatorSpawner::new(Registry::new(operators), tasks), task)
    }

    #[tokio::test]
    async fn spawn_starts_the_work_and_join_waits_for_it() {
        let (slow, spawner, task) = slow();
        let worker = spawner.spawn(Arc::clone(&task), Json::null()).await.unwrap();
        drop(slow.began.acquire().await.unwrap());
        assert_eq!(worker.id(), WorkerId::new(task.id.run(), task.id.step(), 1));
        slow.ends.add_permits(1);
        drop(slow.dropped.acquire().await.unwrap());
        let reply = worker.join().await.unwrap();
        assert!(matches!(reply, Reply::Done(done) if done.output.is_null()));

        // It is done before anybody waits, and a panic is the failure of its own attempt.
        let panics = Json::parse("\"panics\"").unwrap();
        let failure = spawner.spawn(task, panics).await.unwrap().join().await.unwrap_err();
        assert!(failure.retryable && failure.message.contains("panicked"), "{failure:?}");
    }

    #[tokio::test]
    async fn who_drops_a_worker_gives_its_work_up() {
        let (slow, spawner, task) = slow();
        let worker = spawner.spawn(task, Json::null()).await.unwrap();
        drop(slow.began.acquire().await.unwrap());
        assert_eq!(slow.dropped.available_permits(), 0);
        drop(worker);
        drop(slow.dropped.acquire().await.unwrap());
    }
}
