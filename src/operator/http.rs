//! The operator that posts tasks to a webhook.
//!
//! Owns the request, its limits, and the meaning of a response: a result at once, or `202` for one
//! that comes later through the worker API under the handle. Refuses addresses that [`Egress`] does
//! not admit, redirects, and responses over its limits. It never retries: the failure says whether
//! another attempt may succeed, and the engine decides.
//!
//! Its work lives outside the host. Until the webhook has responded, the task is not delivered: a
//! host that dies before that posts the same attempt again after its restart, under the same
//! `Idempotency-Key`. Once `202` is recorded nothing is posted again, and the attempt's timeout
//! runs.
//!
//! [`Egress`]: crate::environment::Egress

mod answer;
mod settings;
mod webhook;

#[cfg(test)]
mod tests;

pub(super) use settings::HttpSettings;
