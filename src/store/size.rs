//! The size of a batch, used for fair scheduling of the writer.

use super::{Batch, Errand, StateAct, Write, fair::Weight};

impl Batch {
    /// Returns the number of rows and the approximate number of bytes.
    pub(super) fn weight(&self) -> Weight {
        let entries = self.run.as_ref().map_or(&[][..], |run| &run.entries);
        let bytes = entries.iter().map(|row| row.bytes.len()).sum::<usize>()
            + self.writes.iter().map(Write::bytes).sum::<usize>();
        let rows = entries.len() + self.writes.iter().map(Write::rows).sum::<usize>();
        Weight { rows, bytes }
    }
}

impl Write {
    /// Returns the number of rows.
    pub(crate) fn rows(&self) -> usize {
        match self {
            Self::ChangeState(batch) => batch.changes.len(),
            _ => 1,
        }
    }

    /// Returns the approximate number of bytes. Counts only fields that can be large.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::PutTask(task) => task.prompt.len(),
            Self::PutState { value, .. } | Self::PutMeta { value, .. } => value.len(),
            Self::PutBlob { data, .. } => data.len(),
            Self::PutBlueprint(version) => version.bundle.len(),
            Self::PutToken(token) => token.claims.len(),
            Self::PutIdempotency(row) => row.answer.len(),
            Self::PutOutbox(row) => match &row.errand {
                Errand::Signal { payload, .. } => payload.len(),
                Errand::Cancel { reason, .. } => reason.len(),
                Errand::Change { payload, .. } => payload.len(),
            },
            Self::PutEvidence(row) => row.body.len(),
            Self::PutFrame(frame) => frame.params.len(),
            Self::ChangeState(batch) => batch
                .changes
                .iter()
                .map(|change| match &change.act {
                    StateAct::Put { value, .. } => value.len(),
                    StateAct::Delete | StateAct::Link { .. } | StateAct::Unlink { .. } => 0,
                })
                .sum(),
            Self::PutKept { value, .. } => value.len(),
            Self::AddAudit(row) => row.line.len(),
            Self::CountRun(counted) => {
                counted.tally.iter().map(|(key, _)| 100 + key.name.len()).sum()
            }
            Self::HoldTask(_)
            | Self::CloseTask { .. }
            | Self::CloseTasks { .. }
            | Self::ForgetReceipt { .. }
            | Self::ExpireState { .. }
            | Self::DeleteState { .. }
            | Self::PutArtifact(_)
            | Self::PublishArtifacts { .. }
            | Self::PutCharge(_)
            | Self::NameBlueprint { .. }
            | Self::UnnameBlueprint { .. }
            | Self::DeleteBlueprint { .. }
            | Self::RevokeToken { .. }
            | Self::DeleteOutbox { .. }
            | Self::ExpireIdempotency { .. }
            | Self::ForgetAnswer { .. }
            | Self::PutSession(_)
            | Self::ExtendSession { .. }
            | Self::CloseSession { .. }
            | Self::ForgetSessions { .. }
            | Self::AckFrames { .. }
            | Self::ReserveRun { .. }
            | Self::DeleteRun { .. }
            | Self::Tidy { .. }
            | Self::RemoveKept { .. }
            | Self::ExpireKept { .. }
            | Self::Erase(_)
            | Self::Rewrite => 0,
        }
    }
}
