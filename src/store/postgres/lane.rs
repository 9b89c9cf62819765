//! A lane: one writing connection of a host.
//!
//! Each lane has a row that its transactions lock first, a mark with the number of its last group, and
//! one group in flight. Lane 0 commits what belongs to no run. The runs are dealt out to the others by
//! their partitions, so that the batches of a run keep their order.

use super::session::Call;
use crate::store::{Batch, Partition, fair::run_of};

/// The maximum number of lanes of a host, without lane 0.
pub const MOST_LANES: usize = 16;

/// A writing connection of a host.
#[derive(Debug, Clone, Copy)]
pub struct Lane {
    /// The host.
    pub node: i64,
    /// Its number there.
    pub number: i16,
}

impl Lane {
    /// Returns the lanes of a host with so many for its runs: 0, and one for each. A host with one
    /// connection commits everything in lane 0.
    pub fn all(node: i64, for_runs: usize) -> impl Iterator<Item = Self> {
        let last = match for_runs.min(MOST_LANES) {
            0 | 1 => 0,
            more => i16::try_from(more).unwrap_or_default(),
        };
        (0..=last).map(move |number| Self { node, number })
    }

    /// Returns the place of the lane, among `lanes` of a host, that commits a batch.
    pub fn of(batch: &Batch, lanes: usize) -> usize {
        match (run_of(batch), lanes.saturating_sub(1)) {
            (None, _) | (_, 0) => 0,
            (Some(run), for_runs) => 1 + usize::from(Partition::of(run).number()) % for_runs,
        }
    }

    /// Returns the name that the connection has at the server.
    pub fn name(self) -> String {
        format!("moonswarm/{}/{}", self.node, self.number)
    }

    /// Returns the statement that locks the lane. It returns no row if the host was ended.
    pub fn lock(self) -> Call {
        Call::new("SELECT true FROM lanes WHERE node = $1 AND lane = $2 FOR UPDATE")
            .with(self.node)
            .with(self.number)
    }

    /// Returns the statements that lock every lane of every host, this one too: all open transactions
    /// end before, and none begins until the commit. The first keeps new lanes out. The second returns no
    /// row that is true if the host was ended.
    pub fn lock_all(self) -> [Call; 2] {
        [
            Call::new("LOCK TABLE lanes IN SHARE MODE"),
            Call::new("SELECT node = $1 AND lane = $2 FROM lanes ORDER BY node, lane FOR UPDATE")
                .with(self.node)
                .with(self.number),
        ]
    }

    /// Returns the statement that notes the number of a group.
    pub fn mark(self, seq: i64) -> Call {
        Call::new("UPDATE marks SET seq = $3 WHERE node = $1 AND lane = $2")
            .with(self.node)
            .with(self.number)
            .with(seq)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::store::Check;

    fn batch(run: Option<u64>) -> Batch {
        let checks = run.map(|run| Check::RunAt { run, cursor: 1 });
        Batch {
            checks: checks.into_iter().collect(),
            run: None,
            writes: vec![],
            ack: Box::new(drop),
        }
    }

    #[test]
    fn the_batches_of_a_run_have_one_lane_and_lane_0_none_of_them_unless_it_is_alone() {
        let lanes: Vec<_> = Lane::all(7, 4).map(|lane| lane.name()).collect();
        assert_eq!(
            lanes,
            ["moonswarm/7/0", "moonswarm/7/1", "moonswarm/7/2", "moonswarm/7/3", "moonswarm/7/4"]
        );
        assert_eq!((Lane::all(7, 0).count(), Lane::all(7, 1).count()), (1, 1));
        assert_eq!(Lane::all(7, 999).count(), MOST_LANES + 1);
        let of = |run, lanes| Lane::of(&batch(run), lanes);
        assert_eq!((of(None, 5), of(None, 1), of(Some(9), 1)), (0, 0, 0));
        let dealt: BTreeSet<_> = (0..512).map(|run| of(Some(run), 5)).collect();
        assert_eq!(dealt, BTreeSet::from([1, 2, 3, 4]));
        assert!((0..512).all(|run| of(Some(run), 5) == of(Some(run + 256), 5)));
    }
}
