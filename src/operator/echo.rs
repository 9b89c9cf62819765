//! The operator that returns its input.

use std::sync::Arc;

use async_trait::async_trait;
use serde::Deserialize;

use super::{Backend, Builtin, Reply, Residence, Settings, Task};
use crate::{
    middleware::TaskDone,
    protocol::{Failure, Json},
};

/// Returns the input as the result.
#[derive(Debug, Clone, Copy, Default)]
pub struct Echo;

#[async_trait]
impl Backend for Echo {
    fn kind(&self) -> &'static str {
        "echo"
    }

    fn residence(&self) -> Residence {
        Residence::Inline
    }

    fn is_portable(&self) -> bool {
        true
    }

    async fn execute(&self, _task: Arc<Task>, input: Json) -> Result<Reply, Failure> {
        Ok(Reply::Done(TaskDone { output: input, usage: None, effects: Vec::new() }))
    }
}

/// The settings of `kind = "echo"`, which has none.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EchoSettings {}

#[async_trait]
impl Settings for EchoSettings {
    fn kind(&self) -> &'static str {
        "echo"
    }

    fn build(&self, _builtin: &Builtin) -> Arc<dyn Backend> {
        Arc::new(Echo)
    }

    async fn inspect(&self, _builtin: &Builtin) -> Result<String, String> {
        Ok("returns its input".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operator::fixture::Attempt;

    #[tokio::test]
    async fn the_input_comes_back_as_it_was_written() {
        let input = Json::parse(r#"{"b": 1, "a": [1.50]}"#).unwrap();
        let reply = Echo.execute(Attempt::new().task(), input.clone()).await.unwrap();
        let Reply::Done(done) = reply else { panic!("{reply:?}") };
        assert_eq!(done.output, input);
    }
}
