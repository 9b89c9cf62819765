//! Begins a run on its shard.

use crate::{
    engine::{
        inbox::answers,
        run::{due::Due, perform::Perform, resident::Run},
        shard::owner::Shard,
        shared::message::NewRun,
        turn::{ending, facts, lineage},
    },
    fault,
    journal::{Additions, Decision, Fact},
    store::{Check, Header, UNSTORED, Write},
};

impl Shard {
    /// Begins a run.
    pub(crate) fn begin(&mut self, new: NewRun) {
        if self.runs.contains_key(&new.id.num()) {
            return;
        }
        if self.loading.remove(&new.id.num()).is_some() {
            // Somebody has asked for it before it began: what was read is from before, too.
            self.tell_held(new.id.num());
        }
        fault::point("engine.accept_run");
        self.lives += 1;
        let NewRun { id, program, started, jti, key, reply, waiter, .. } = new;
        let (unstored, subscriber, charged) = (new.unstored, new.subscriber, new.charged);
        let parent = started.parent;
        let header = Header { tags: new.tags.clone(), ..new_header(id, &started) };
        let mut run = Box::new(Run::new(self.lives, header, new.grant, self.account()));
        run.pending.after.performs.extend(new.stored.map(Perform::Begun));
        run.is_slow = program.begins_slowly();
        run.program = Some(program);
        run.publisher = new.publisher;
        run.waiters = waiter.into_iter().collect();
        run.subscribers = subscriber.into_iter().collect();
        run.charged = charged;
        run.audience.set(!run.subscribers.is_empty());
        run.header.parent = parent;
        self.count_in(run.num);
        let turn = &mut self.on(&mut run);
        let (by, delegate) = (started.principal.clone(), started.delegate.clone());
        let mut additions = Additions::of_tags(&new.tags);
        if let Some(trace) = new.trace {
            additions.put_trace(trace);
        }
        facts::append_with(turn, Fact::RunStarted(Box::new(started)), additions);
        for (session, party) in new.joined {
            lineage::join(turn, session, party);
        }
        for session in delegate.iter().map(String::as_str) {
            lineage::note_joined(turn, session);
        }
        for (operator, session) in new.seats {
            lineage::note_joined(turn, session.as_str());
            let (by, session) = (by.clone(), session.0);
            let seat = Decision::Seat { by, operator, session, epoch: 1 };
            facts::append(turn, Fact::Decided(seat));
        }
        if unstored {
            let key = format!("{UNSTORED}{}", turn.run.num);
            turn.run.pending.writes.push(Write::PutMeta { key, value: "1".into() });
        }
        turn.run.pending.checks.extend(jti.map(Check::TokenLive));
        if let Some((principal, key)) = key {
            answers::keep_answer(turn, &principal, &key, id.to_string());
        }
        if let Some(reply) = reply {
            turn.run.pending.after.replies.push(Box::new(move |result| {
                // A caller who went away cancels nothing.
                let _ = reply.send(result.map(|_| ()));
            }));
        }
        run.place = new.place;
        if run.is_to_be_lent() {
            // Its flow begins where it is driven, once its start is stored.
            self.flush(&mut run);
            self.runs.insert(run.num, run);
        } else {
            self.start(&mut run);
            self.settle(run);
        }
    }

    /// Starts the flow of a run, and the time of its limit.
    pub(crate) fn start(&mut self, run: &mut Run) {
        let turn = &mut self.on(run);
        let program = turn.run.program.as_ref();
        if let Some(wall) = program.and_then(|it| it.blueprint().definition().wall_ms) {
            let due = turn.steady_ms + wall;
            turn.run.timers.insert((due, 0, Due::Wall));
        }
        ending::start_flow(turn);
    }
}

fn new_header(id: crate::protocol::RunId, started: &crate::journal::RunStarted) -> Header {
    Header {
        blueprint: started.blueprint.clone(),
        hash: started.hash.clone(),
        parent: started.parent,
        principal: started.principal.clone(),
        ..Header::fresh(id.num(), id.created_ms())
    }
}
