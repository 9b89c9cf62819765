//! The gauges of a shard, as the metrics of the host read them.

use crate::engine::shard::owner::Shard;

/// The interval at which the VMs of a busy shard are weighed for the metrics, in milliseconds.
const WEIGHED_MS: u64 = 1_000;

impl Shard {
    /// Publishes the state of the shard for a reading of the metrics.
    pub(crate) fn publish_gauges(&mut self) {
        let gauges = &self.shared.gauges[usize::try_from(self.index).expect("shards are few")];
        let whole = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        gauges.runs.set(whole(self.runs.len()));
        gauges.ready.set(whole(self.prompt.len() + self.patient.len()));
        gauges.flows.set(whole(self.vms.live()));
        // VMs are asked one by one, so not at every turn; but before the shard rests.
        let is_due = self.steady_ms >= self.weighed_ms + WEIGHED_MS;
        if is_due || !self.is_ready() && self.vms.live() == 0 {
            self.weighed_ms = self.steady_ms;
            gauges.vms.set(whole(self.vms.vms()));
            gauges.vm_bytes.set(whole(self.vms.bytes()));
        }
    }
}
