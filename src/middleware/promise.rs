//! The value that a layer stores of a step's answer once that is accepted.

use std::sync::Arc;

use super::keep::{Change, Keep};
use crate::protocol::Json;

/// The value to store of an answer, and the time at which it expires, in Unix milliseconds; `None`
/// if the answer cannot be stored.
type Value = Option<(Json, u64)>;

/// A value to store with an accepted answer. Dropped before, it is not stored; either way the layer
/// is notified that the attempt is over.
pub(crate) struct Promise {
    /// The name of the layer.
    pub(crate) layer: String,
    /// The key.
    pub(crate) key: String,
    /// The value, of the last answer.
    pub(crate) value: Value,
    value_of: Box<dyn Fn(&Json) -> Value + Send>,
    keep: Arc<dyn Keep>,
    over: Option<Box<dyn FnOnce() + Send>>,
}

impl Promise {
    /// Promises a value of a layer to `keep`, made of the answer by `value_of`; `over` is called
    /// when it is stored, or dropped.
    pub(crate) fn new(
        keep: Arc<dyn Keep>,
        (layer, key): (&str, &str),
        value_of: impl Fn(&Json) -> Value + Send + 'static,
        over: impl FnOnce() + Send + 'static,
    ) -> Self {
        let (layer, key) = (layer.to_owned(), key.to_owned());
        let value_of = Box::new(value_of);
        Self { layer, key, value: None, value_of, keep, over: Some(Box::new(over)) }
    }

    /// Sets the answer.
    pub(crate) fn answer(&mut self, output: &Json) {
        self.value = (self.value_of)(output);
    }

    /// Returns true if the commit of the result has to store it.
    pub(crate) fn joins_commit(&self) -> bool {
        self.keep.joins_commits()
    }

    /// Stores it, unless the commit of the result has done so.
    pub(crate) fn keep(self) {
        if !self.joins_commit() {
            self.post();
        }
    }

    /// Stores it.
    pub(crate) fn post(self) {
        if let Some((value, expires_ms)) = &self.value {
            self.keep.post(Change::Put {
                layer: self.layer.clone(),
                key: self.key.clone(),
                value: value.clone(),
                expires_ms: Some(*expires_ms),
            });
        }
    }

    /// Takes it back, although the attempt goes on.
    pub(crate) fn take_back(mut self) {
        self.over = None;
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if let Some(over) = self.over.take() {
            over();
        }
    }
}
