//! The view of a run's usage.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::journal::{Spent, Usage};

/// The usage of a run, as its workers reported it; a part that nobody reported is null or absent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SpentView {
    /// Everything: `{input_tokens, output_tokens, cached_tokens, reasoning_tokens, cost}`, in US
    /// dollars as a decimal text; called runs included.
    #[schema(value_type = Object)]
    pub total: Usage,
    /// Attempts that somebody had, and that ended without a word about what they used.
    pub unreported: u32,
    /// The same by agent, for the run's own attempts.
    #[schema(value_type = Object)]
    pub agents: BTreeMap<String, Usage>,
}

/// Returns the usage of an ended run for its parent; `None` if none was reported.
pub(crate) fn total(spent: &Spent) -> Option<Usage> {
    (spent.total != Default::default()).then(|| spent.total.clone())
}

/// Returns the usage of a run; `None` if no attempt was made.
pub(crate) fn view(spent: &Spent) -> Option<SpentView> {
    let Spent { total, unreported, agents } = spent;
    let view =
        || SpentView { total: total.clone(), unreported: *unreported, agents: agents.clone() };
    (!spent.is_empty()).then(view)
}
