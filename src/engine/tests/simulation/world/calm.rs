//! A world in which everything goes well from some point on, up to its end.

use std::{collections::BTreeMap, time::Duration};

use super::World;
use crate::{
    engine::tests::simulation::history::{Ask, What},
    store::{Header, Reader as _, RunFilter, RunStatus, TaskPhase},
};

impl World {
    /// Everything goes well from now on; each run must end, and until then say what it waits for.
    pub fn calm(&mut self) {
        self.come_to_an_end();
        if self.lends {
            let unfinished = self.unfinished().iter().map(|header| header.num).collect();
            let host = self.host.as_ref().expect("a host is up between two crashes");
            self.helpers.look_at_the_end(host, &unfinished);
        }
    }

    fn come_to_an_end(&mut self) {
        if self.broken_disk || self.random.once_in(if self.lends { 4 } else { 2 }) {
            self.crash();
        }
        self.helpers.calm(&mut self.random);
        self.ailing = false;
        self.store.fail_with(None);
        self.settle();
        // A run whose write failed rests for a second before it is read again.
        self.clock.advance(Duration::from_secs(2));
        self.settle();
        self.note(What::Quiet);
        self.look_at_waiting();
        for _ in 0..600 {
            if self.is_over() {
                return;
            }
            let helps = self.help();
            if helps {
                self.settle();
                self.look_at_offers();
                // The attempts of a lent run have some time to end before it comes home for a signal.
                let mut open = self.open.iter();
                if !self.lends || !open.any(|open| matches!(open.ask, Ask::Signal { .. })) {
                    continue;
                }
            }
            if let Some(due) = self.next_due() {
                self.clock.advance(Duration::from_millis(due - self.now_ms()));
                self.settle();
            } else if !helps {
                break;
            }
        }
        if self.is_over() {
            return;
        }
        for header in self.unfinished() {
            self.findings.push(format!(
                "every run ends or visibly waits: run {} is {} and nothing moves it; it says {:?}",
                header.num,
                header.status.as_str(),
                header.waiting_on
            ));
        }
        for signal in self.store.outbox().unwrap() {
            self.findings.push(format!("signals arrive once: {signal:?} never did"));
        }
    }

    pub fn unfinished(&self) -> Vec<Header> {
        let filter = RunFilter { limit: 1_000, ..Default::default() };
        let headers = self.store.headers(&filter).unwrap();
        headers.into_iter().filter(|header| !header.status.is_ended()).collect()
    }

    fn is_over(&self) -> bool {
        self.unfinished().is_empty() && self.store.outbox().unwrap().is_empty()
    }

    fn look_at_waiting(&mut self) {
        for header in self.unfinished() {
            let said = header.waiting_on.as_deref().unwrap_or("[]");
            if said == "[]" {
                let (num, status) = (header.num, header.status.as_str());
                self.findings.push(format!(
                    "every run ends or visibly waits: run {num} is {status} and says nothing"
                ));
            }
        }
    }

    /// A task that waits although somebody asked for it, again and again, is offered to nobody.
    fn look_at_offers(&mut self) {
        let asked = std::mem::take(&mut self.wanted);
        let emptied = std::mem::take(&mut self.emptied);
        let mut ahead = BTreeMap::<String, u32>::new();
        for (.., queue) in &asked {
            *ahead.entry(queue.clone()).or_default() += 1;
        }
        // Where as many came back as were asked for, the next may come in the next round. Fewer may
        // come back although more wait: some of those that were taken had ended by then. Each round
        // takes at least one, so that a task is taken once all that are ahead of it were.
        for (run, step, attempt, queue) in
            asked.into_iter().filter(|(.., queue)| emptied.contains(queue.as_str()))
        {
            let row = self.store.task(run, step).unwrap();
            let paused = |header: Header| header.status == RunStatus::Paused;
            let waits = row
                .is_some_and(|row| row.attempt == attempt && row.phase == TaskPhase::Pending)
                && !self.store.header(run).unwrap().is_some_and(paused);
            let times = self.unanswered.entry((run, step, attempt)).or_default();
            *times = if waits { *times + 1 } else { 0 };
            if *times >= 12 + ahead[&queue] {
                *times = 0;
                self.findings.push(format!(
                    "a task that waits can be leased: run {run} step {step} attempt {attempt} is offered to nobody"
                ));
            }
        }
    }
}
