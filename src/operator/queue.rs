//! The operator that leaves tasks for pull workers.

use std::sync::Arc;

use async_trait::async_trait;

use super::{Backend, QueueHub, Reply, Residence, Task, Ticket};
use crate::{
    blueprint::Agent,
    protocol::{Failure, Json},
};

/// Offers each attempt on its agent's queue; a worker leases it and reports over HTTP.
#[derive(Debug, Clone)]
pub struct Queue {
    hub: Arc<QueueHub>,
}

/// The queue that tasks of an agent go to: the one that it names, else one of the agent's name.
pub fn queue_of<'a>(agent: &'a Agent, name: &'a str) -> &'a str {
    agent.queue.as_deref().unwrap_or(name)
}

impl Queue {
    /// An operator over the queues of `hub`.
    pub fn new(hub: Arc<QueueHub>) -> Self {
        Self { hub }
    }
}

#[async_trait]
impl Backend for Queue {
    fn kind(&self) -> &'static str {
        "queue"
    }

    fn residence(&self) -> Residence {
        Residence::Elsewhere
    }

    async fn execute(&self, task: Arc<Task>, _input: Json) -> Result<Reply, Failure> {
        let ticket = Ticket { run: task.id.run(), step: task.id.step(), attempt: task.attempt };
        self.hub.offer(queue_of(&task.agent, &task.agent_name), ticket);
        Ok(Reply::Parked)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::operator::fixture::Attempt;

    #[tokio::test]
    async fn an_attempt_is_offered_on_the_queue_that_its_agent_names() {
        let hub = Arc::new(QueueHub::default());
        let queue = Queue::new(Arc::clone(&hub));
        let attempt = Attempt::new().agent(|agent| agent.queue = Some("gpu".to_owned()));
        let reply = queue.execute(attempt.task(), Json::null()).await.unwrap();
        assert!(matches!(reply, Reply::Parked));
        let taken = hub.take("gpu", 5, Duration::ZERO).await.unwrap();
        assert_eq!(taken, [Ticket { run: 1, step: 2, attempt: 1 }]);
    }

    #[test]
    fn without_a_queue_of_its_own_an_agent_has_one_of_its_name() {
        assert_eq!(queue_of(&Agent::default(), "coder"), "coder");
    }
}
