//! Responses: what a model said, in the shapes of Open Responses.

pub mod multi_step;
