//! The fold of the last entries of a long history.

use super::{Chain, ChainError};
use crate::journal::{Entry, Fact};

impl Chain {
    /// Folds the last entries of a history, to show the steps with numbers over `after`. Returns
    /// `None` if the entries do not reach back that far.
    ///
    /// # Errors
    /// Fails like [`Chain::apply`].
    pub fn ending(entries: &[Entry], after: u32) -> Result<Option<Self>, ChainError> {
        let mut chain = Self::full();
        let mut rest = entries.iter();
        if !matches!(entries.first().map(|entry| &entry.fact), Some(Fact::RunStarted(_))) {
            let Some((place, first)) =
                entries.iter().enumerate().find_map(|(place, entry)| match &entry.fact {
                    Fact::StepScheduled(it) | Fact::StepRecorded(it, _) => Some((place, it.step)),
                    _ => None,
                })
            else {
                return Ok(None);
            };
            if first > after + 1 {
                return Ok(None);
            }
            (chain.first_step, chain.is_ending) = (first, true);
            rest = entries[place..].iter();
        }
        for entry in rest {
            chain.apply(entry)?;
        }
        Ok(Some(chain))
    }
}
