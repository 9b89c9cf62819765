//! The operator that posts tasks to a webhook.
//!
//! Owns the request, its limits, and what an answer means: a result at once, or `202` for one that
//! comes later through the worker API under the handle. Refuses addresses that [`Egress`] does not
//! admit, redirects, and answers over its limits. It never retries: whether another attempt may
//! help is in the failure, and the engine decides.
//!
//! Its work lives elsewhere. Until the webhook has answered, the task is not delivered: a host that
//! dies before posts again when it is back, the same attempt under the same `Idempotency-Key`. Once
//! `202` is recorded nothing is posted again, and the attempt's timeout runs.
//!
//! [`Egress`]: crate::environment::Egress

mod answer;
mod settings;
mod webhook;

#[cfg(test)]
mod tests;

pub(super) use settings::HttpSettings;
