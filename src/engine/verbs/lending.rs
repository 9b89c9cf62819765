//! Runs that other nodes drive for this one, and runs that this one drives for another.

use std::sync::Arc;

use tokio::sync::mpsc;

use crate::{
    engine::{
        StartRun,
        inbox::signals,
        run::{
            loan::{GoHome, Lent, Place},
            values::grant_of,
        },
        shared::{
            lending::{Effect, HelperLink, Rest},
            lent::{FromHelper, Patience, ToHelper},
            message::{Internal, Msg},
            shards::Shared,
        },
        verbs::{begin::Watch, engine::LendingVerbs},
    },
    fault,
    lua::Program,
    memory::Level,
    protocol::Json,
    store::{Errand, Header, OutboxRow, Parcel, StateAct, StateChange, StoreError, Write},
};

/// Both ends of a link to a node that helps.
pub struct LendingLink {
    /// The messages to the helper.
    pub to: mpsc::UnboundedSender<ToHelper>,
    /// Its messages; closed when the link is broken.
    pub from: mpsc::Receiver<FromHelper>,
}

impl LendingVerbs<'_> {
    /// Lends runs to the node with this number for as long as its link is there. When it breaks, they go on here, each after
    /// the batches of it that had come.
    ///
    /// # Cancel safety
    /// Must not be dropped: the runs would stay away.
    pub async fn lend_to(self, node: i64, link: LendingLink) {
        let LendingLink { to, mut from } = link;
        let shared = &self.engine.inner.shared;
        let link = shared.lending.join(node, to);
        let stopping = shared.tasks.stopping().clone();
        loop {
            let next = async {
                // Each message may be one more batch to write.
                shared.store.room().await;
                from.recv().await
            };
            let message = tokio::select! {
                message = next => message,
                () = stopping.cancelled() => None,
            };
            match message {
                None => break,
                Some(FromHelper::Parcel { number, parcel }) => {
                    fault::point("engine.parcel");
                    commit(shared, &link, number, *parcel);
                }
                Some(FromHelper::Home { run, why }) => {
                    let (effect, version) = link.gives_back(run, why);
                    if let Some(version) = version {
                        shared.lending.stays(&version, shared.clock.steady_ms());
                    }
                    act(shared, run, effect);
                }
                Some(FromHelper::Load { waiting, tight }) => link.loaded(waiting, tight),
            }
        }
        for (run, effect) in shared.lending.part(&link) {
            act(shared, run, effect);
        }
    }

    /// Drives a run for the node that drives; for an engine that helps.
    pub fn take(self, run: u64, publisher: Option<&Json>) {
        let Some(home) = self.engine.shared().helps.clone() else { return };
        let publisher = publisher.map(grant_of).map(Arc::new);
        self.engine.shared().tell(run, Internal::Take(Lent::new(run, home), publisher));
    }

    /// Gives a run back, when its attempts have ended or the patience has.
    pub fn recall(self, run: u64, patience: Patience) {
        self.engine.shared().tell(run, Internal::GiveBack(patience));
    }

    /// Returns how much this engine has to do, as a message to the node that it helps.
    pub fn load(self) -> FromHelper {
        let waiting = u32::try_from(self.engine.shared().waiting()).unwrap_or(u32::MAX);
        FromHelper::Load { waiting, tight: self.engine.shared().memory.level() != Level::Roomy }
    }

    /// Decides which node drives a run that is about to start; `None` for one that is not lent. What a
    /// helper does not have (sessions, quotas, layers that count, stores of somebody else's, people and
    /// workers) keeps a run here.
    pub(crate) fn place_of(
        self,
        start: &StartRun,
        program: &Program,
        watch: &Watch,
        charged: bool,
    ) -> Option<Place> {
        let shared = self.engine.shared();
        if !shared.lending.is_open()
            || charged
            || watch.lets_go
            || watch.subscriber.is_some()
            || start.delegate.is_some()
            || start.workdir.is_some()
            || !start.seats.is_empty()
            || !shared.registry.stores().is_empty()
            || shared.stacks.meters(program)
            || !is_portable(shared, program)
        {
            return None;
        }
        let tight = shared.memory.level() != Level::Roomy;
        let (hash, now_ms) = (program.blueprint().hash(), shared.clock.steady_ms());
        Some(shared.lending.choose(hash, shared.waiting(), tight, now_ms))
    }
}

/// Returns the way home for runs of an engine that helps.
pub(crate) fn way_home(to: mpsc::UnboundedSender<FromHelper>) -> GoHome {
    // After the end of the link the other end has them already.
    Arc::new(move |run, why| drop(to.send(FromHelper::Home { run, why })))
}

/// Returns true if any node can do the work of a blueprint's agents.
fn is_portable(shared: &Shared, program: &Program) -> bool {
    let blueprint = program.blueprint();
    let mut agents = blueprint.agent_names().filter_map(|name| blueprint.agent(name));
    agents.all(|agent| {
        !agent.agent().retry.fail_on_interrupt && shared.registry.is_portable(agent.operator())
    })
}

/// Commits a batch of a helper: gives its rows their numbers, and tells the helper what became of it.
fn commit(shared: &Arc<Shared>, link: &Arc<HelperLink>, number: u64, mut parcel: Parcel) {
    let refuse = |error| link.say(ToHelper::Settled { number, result: Err(error) });
    let Some(run) = parcel.about().filter(|run| parcel.is_all_of(*run)) else {
        let reason = "it is not about one run".to_owned();
        return refuse(StoreError::Damaged { what: "a batch of a helper".to_owned(), reason });
    };
    // Before the rows get their numbers; until the batch is durable or refused.
    let flight = parcel.run.is_some().then(|| shared.in_flight.begin(&*shared.store));
    if let Err(error) = link.begin(run, &mut parcel, &*shared.store) {
        return refuse(error);
    }
    let rest = parcel.run.as_ref().map(|write| rest_of(&write.header));
    let ended = parcel.run.as_ref().filter(|write| write.header.status.is_ended());
    let ended = ended.map(|write| write.header.id());
    let (mut signals, mut places) = (Vec::new(), Vec::new());
    for write in &parcel.writes {
        match write {
            Write::PutOutbox(row @ OutboxRow { errand: Errand::Signal { .. }, .. }) => {
                signals.push(row.clone());
            }
            Write::ChangeState(batch) => {
                let hides =
                    |it: &&StateChange| matches!(it.act, StateAct::Put { .. } | StateAct::Delete);
                let hiding = batch.changes.iter().filter(hides);
                places.extend(hiding.map(|it| (it.scope.clone(), it.key.clone())));
            }
            _ => {}
        }
    }
    let (shared_of, link) = (Arc::clone(shared), Arc::clone(link));
    shared.store.submit(parcel.into_batch(move |result| {
        drop(flight);
        let is_stored = result.is_ok();
        if is_stored {
            signals::carry(&shared_of, signals);
            // A durable value takes the place of a transient one.
            for (scope, key) in &places {
                shared_of.state.drop_transient(scope, key);
            }
            if let Some(ended) = ended {
                shared_of.state.drop_run(ended);
            }
        }
        link.say(ToHelper::Settled { number, result });
        let effect = link.settled(run, rest.filter(|_| is_stored), !is_stored && rest.is_some());
        act(&shared_of, run, effect);
    }));
}

/// Returns what a stored header says of a run that rests.
fn rest_of(header: &Header) -> Rest {
    match header.wake_at_ms {
        _ if header.status.is_ended() => Rest::Ended,
        Some(at) => Rest::Until(at),
        None => Rest::Idle,
    }
}

/// Tells the shard of a run what follows. A host that stops takes nothing up any more.
fn act(shared: &Shared, run: u64, effect: Effect) {
    if shared.tasks.stopping().is_cancelled() {
        return;
    }
    match effect {
        Effect::Nothing => {}
        Effect::Stirred => shared.send(run, Msg::Stirred(run)),
        Effect::Home(rest, why) => {
            shared.lending.count_home(why);
            shared.send(run, Msg::Home(run, rest));
        }
    }
}
