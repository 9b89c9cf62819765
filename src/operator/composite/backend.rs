//! A composite as a backend that is never executed itself.

use std::sync::Arc;

use async_trait::async_trait;

use super::Composite;
use crate::{
    operator::{Backend, Reply, Residence, Task},
    protocol::{Failure, Json, failure::kind},
};

#[async_trait]
impl Backend for Composite {
    fn kind(&self) -> &'static str {
        "composite"
    }

    fn residence(&self) -> Residence {
        Residence::Inline
    }

    fn composite(&self) -> Option<&Composite> {
        Some(self)
    }

    async fn execute(&self, task: Arc<Task>, _input: Json) -> Result<Reply, Failure> {
        let message = format!("{} is a composite: only its members execute tasks", task.operator);
        Err(Failure::new(kind::REFUSED, message))
    }
}
