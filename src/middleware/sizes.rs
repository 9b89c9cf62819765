//! The guard that limits the size of a dispatch.

use async_trait::async_trait;

use super::{Dispatch, DispatchLayer, Dispatched, Next};
use crate::protocol::{Failure, Json, failure::kind};

/// Refuses dispatches whose input exceeds a limit.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    max_input: usize,
}

impl Sizes {
    /// Creates a limit of `max_input` bytes of JSON.
    pub fn new(max_input: usize) -> Self {
        Self { max_input }
    }
}

#[async_trait]
impl DispatchLayer for Sizes {
    fn name(&self) -> &'static str {
        "sizes"
    }

    async fn dispatch(&self, dispatch: Dispatch, next: Next<'_>) -> Result<Dispatched, Failure> {
        let (size, cap) = (dispatch.input.len(), self.max_input);
        if size <= cap {
            return next.run(dispatch).await;
        }
        let message = format!("the input has {size} bytes, {cap} are allowed");
        let data = serde_json::json!({ "code": "input_too_large", "size": size, "cap": cap });
        Err(Failure::new(kind::LIMIT, message).with_data(Json::from(data)))
    }
}
