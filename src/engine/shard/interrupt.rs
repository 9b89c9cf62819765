//! The attempts in this process that are interrupted because the database has been away for too long.

use crate::{
    engine::{shard::owner::Shard, shared::message::Internal},
    operator::Residence,
};

impl Shard {
    /// Interrupts every attempt in this process, and recalls the runs of other nodes. Each is closed without being counted, and its work is
    /// canceled at once: the commit of that waits for the database.
    pub(crate) fn interrupt(&mut self) {
        self.recall_all();
        let mut in_work = Vec::new();
        for run in self.runs.values() {
            for step in run.open.numbers() {
                if let Some(task) = run.task(step)
                    && task.residence == Residence::Host
                    && let Some(live) = &task.live
                {
                    in_work.push((run.num, step, task.attempt, live.cancel.clone()));
                }
            }
        }
        for (run, step, attempt, cancel) in in_work {
            let reason = "the database was away for too long".to_owned();
            self.tell(run, Internal::Unseat { step, attempt, reason }.into());
            cancel.cancel();
        }
    }
}
