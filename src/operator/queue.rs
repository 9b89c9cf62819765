//! The operator that offers tasks to pull workers.

use std::sync::Arc;

use async_trait::async_trait;
use serde::Deserialize;

use super::{Backend, Builtin, QueueHub, Reply, Residence, Settings, ShownSettings, Task, Ticket};
use crate::{
    blueprint::Agent,
    protocol::{Failure, Json},
};

/// Offers each attempt on its agent's queue; a worker leases it and reports over HTTP.
#[derive(Debug, Clone)]
pub struct Queue {
    hub: Arc<QueueHub>,
    /// The queue of agents without one; by default each agent has a queue of its own name.
    queue: Option<String>,
}

impl Queue {
    /// Creates an operator over the queues of `hub`.
    pub fn new(hub: Arc<QueueHub>) -> Self {
        Self { hub, queue: None }
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

    fn queue<'a>(&'a self, agent: &'a Agent, name: &'a str) -> Option<&'a str> {
        Some(agent.queue.as_deref().or(self.queue.as_deref()).unwrap_or(name))
    }

    fn only_offers(&self) -> bool {
        true
    }

    async fn execute(&self, task: Arc<Task>, _input: Json) -> Result<Reply, Failure> {
        let ticket = Ticket { run: task.id.run(), step: task.id.step(), attempt: task.attempt };
        if let Some(queue) = self.queue(&task.agent, &task.agent_name) {
            self.hub.offer(queue, ticket, &task.agent.labels);
        }
        Ok(Reply::Parked)
    }
}

/// The settings of a queue operator.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct QueueSettings {
    /// The queue of agents without one.
    queue: Option<String>,
}

#[async_trait]
impl Settings for QueueSettings {
    fn kind(&self) -> &'static str {
        "queue"
    }

    fn build(&self, builtin: &Builtin) -> Arc<dyn Backend> {
        let queue = Queue::new(Arc::clone(&builtin.queues));
        Arc::new(Queue { queue: self.queue.clone(), ..queue })
    }

    fn shown(&self) -> ShownSettings {
        ShownSettings::default().maybe("queue", self.queue.as_ref())
    }

    async fn inspect(&self, _builtin: &Builtin) -> Result<String, String> {
        Ok(match &self.queue {
            Some(queue) => format!("`moonswarm worker --queue {queue}` takes its tasks"),
            None => "`moonswarm worker` takes its tasks".to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        blueprint::Labels,
        operator::{Wanted, fixture::Attempt},
    };

    #[tokio::test]
    async fn an_attempt_is_offered_on_the_queue_that_its_agent_names() {
        let hub = Arc::new(QueueHub::default());
        let queue = Queue::new(Arc::clone(&hub));
        let attempt = Attempt::new().agent(|agent| agent.queue = Some("gpu".to_owned()));
        let reply = queue.execute(attempt.task(), Json::null()).await.unwrap();
        assert!(matches!(reply, Reply::Parked));
        let labels = Labels::default();
        let wanted = Wanted { queue: "gpu", worker: "w", labels: &labels, max: 5 };
        let taken = hub.take_now(wanted);
        assert_eq!(taken, [(Ticket { run: 1, step: 2, attempt: 1 }, Default::default())]);
    }

    #[test]
    fn an_agents_queue_is_the_one_that_it_names_else_the_operators_else_its_own() {
        let mut queue = Queue::new(Arc::default());
        assert_eq!(queue.queue(&Agent::default(), "coder"), Some("coder"));
        queue.queue = Some("shared".to_owned());
        assert_eq!(queue.queue(&Agent::default(), "coder"), Some("shared"));
        let own = Agent { queue: Some("own".to_owned()), ..Agent::default() };
        assert_eq!(queue.queue(&own, "coder"), Some("own"));
    }
}
