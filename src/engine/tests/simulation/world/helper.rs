//! The nodes that help a world's host, and their links.
//!
//! A helper is a process of its own: an engine that reads what the host stores, and whose batches the
//! host commits. Its link carries one message at a time, in order in each direction, as bytes. The
//! link may break between any two. The helper does not know that at first, and goes on alone for a
//! while; nobody hears it, unless one of its batches comes over the link of another helper, as if its
//! node had come back.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
};

use tokio::sync::mpsc;

use super::{
    Host, Pick, World,
    boot::Process,
    links::{Lent, LinkBook},
};
use crate::{
    clock::Clock,
    engine::{
        FromHelper, LendingLink, ToHelper,
        shard::owner::Shard,
        shared::mailbox::Mailbox,
        tests::simulation::{operator::Worked, random::Random},
    },
    store::{Carrier, Memory, Parcel, Relay, Store},
};

/// The messages that the host takes off a link before it handles the first.
const UNREAD: usize = 64;
/// The helpers with a link that is whole.
const LINKED: usize = 2;
/// The helpers in all.
const HELPERS: usize = 4;
/// The runs that a shard of most helpers keeps in memory.
const LIVE_RUNS: usize = 12;

/// The nodes that help a world's host.
pub struct Helpers {
    nodes: Vec<Helper>,
    book: LinkBook,
}

/// A node that helps, or believes that it does.
pub(super) struct Helper {
    process: Host,
    relay: Arc<Relay>,
    voice: mpsc::UnboundedSender<FromHelper>,
    /// What it said, and no link has carried yet.
    said: mpsc::UnboundedReceiver<FromHelper>,
    /// Its operator `port`.
    port: Worked,
    /// Its operator `host`, which nothing comes to: it has a limit.
    pub(super) limited: Worked,
    /// Its link, until that breaks.
    pub(super) link: Option<Link>,
}

/// A link between the host and a helper.
pub(super) struct Link {
    pub(super) number: u64,
    /// Where the host receives what the helper said.
    heard: mpsc::Sender<FromHelper>,
    /// What the host said.
    pub(super) to: mpsc::UnboundedReceiver<ToHelper>,
    /// The same, once it was overheard; the link has not carried it yet.
    pub(super) orders: VecDeque<ToHelper>,
}

/// The choices of the scheduler at a helper.
#[derive(Debug, Clone, Copy)]
pub(super) enum HelperPick {
    Deliver(usize),
    Turn(usize),
    Piece,
    /// The link carries what the helper said next.
    Say,
    /// The link carries what the host said next.
    Order,
    /// It says how much it has to do.
    Load,
    /// Its link breaks.
    Cut,
    /// It notices that its link is broken.
    Notice,
    /// The link of another helper carries what it said next.
    Stray,
    /// It ends.
    End,
}

/// The batches of a helper go the way of all that it says, in one order.
struct Voice(mpsc::UnboundedSender<FromHelper>);

impl Carrier for Voice {
    fn send(&self, number: u64, parcel: Parcel) {
        // After the end of the link nobody hears it.
        drop(self.0.send(FromHelper::Parcel { number, parcel: Box::new(parcel) }));
    }
}

impl Helper {
    pub(super) fn is_linked(&self) -> bool {
        self.link.is_some()
    }

    /// Returns true if its link can carry one more message to the host.
    fn has_room(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.heard.capacity() > 0)
    }

    /// The runs that it has in memory.
    pub(super) fn runs(&self) -> Vec<u64> {
        self.process.shards.iter().flat_map(|(shard, _)| shard.runs.keys().copied()).collect()
    }

    /// What it can go on with, and what its link can carry.
    fn picks(&self) -> Vec<(usize, HelperPick)> {
        let mut picks = Vec::new();
        for (n, (shard, messages)) in self.process.shards.iter().enumerate() {
            if !messages.is_empty() {
                picks.push((80, HelperPick::Deliver(n)));
            }
            if shard.is_ready() || shard.is_due() {
                picks.push((50, HelperPick::Turn(n)));
            }
        }
        if !self.process.driver.ready().is_empty() {
            picks.push((90, HelperPick::Piece));
        }
        if !self.said.is_empty() && self.has_room() {
            picks.push((60, HelperPick::Say));
        }
        if self.link.as_ref().is_some_and(|link| !link.orders.is_empty()) {
            picks.push((60, HelperPick::Order));
        }
        picks
    }
}

impl Helpers {
    pub(super) fn new(clock: Clock, store: Arc<Memory>) -> Self {
        Self { nodes: Vec::new(), book: LinkBook::new(clock, store) }
    }

    /// What they can go on with.
    pub(super) fn picks(&self) -> Vec<(usize, Pick)> {
        let nodes = self.nodes.iter().enumerate();
        let of = |(place, node): (usize, &Helper)| {
            let picks = node.picks().into_iter();
            picks.map(move |(weight, pick)| (weight, Pick::Helper(place, pick)))
        };
        nodes.flat_map(of).collect()
    }

    /// Who may come, and what may happen to those that are there.
    pub(super) fn comings_and_goings(&self) -> Vec<(usize, Pick)> {
        let mut picks = Vec::new();
        let linked = self.nodes.iter().filter(|node| node.is_linked()).count();
        if linked < LINKED && self.nodes.len() < HELPERS {
            picks.push((if linked == 0 { 40 } else { 6 }, Pick::Join));
        }
        let is_open = self.nodes.iter().any(Helper::has_room);
        for (place, node) in self.nodes.iter().enumerate() {
            let strays = if is_open && !node.said.is_empty() { 10 } else { 0 };
            let may = match node.is_linked() {
                true => vec![(1, HelperPick::Cut), (1, HelperPick::Load)],
                false => {
                    vec![(2, HelperPick::Notice), (4, HelperPick::End), (strays, HelperPick::Stray)]
                }
            };
            let of = |(weight, pick)| (weight, Pick::Helper(place, pick));
            picks.extend(may.into_iter().map(of));
        }
        picks
    }

    pub(super) fn go(&mut self, place: usize, pick: HelperPick, random: &mut Random) {
        let node = &mut self.nodes[place];
        match pick {
            HelperPick::Deliver(n) => node.process.deliver(n),
            HelperPick::Turn(n) => node.process.turn(n),
            HelperPick::Piece => {
                let ready = node.process.driver.ready();
                let piece = *random.pick(&ready).expect("it is not empty");
                node.process.driver.poll(piece);
            }
            HelperPick::Say => self.say(place),
            HelperPick::Order => self.order(place),
            // After the end of the link nobody hears it.
            HelperPick::Load => drop(node.voice.send(node.process.engine.lending().load())),
            HelperPick::Cut => self.cut(place),
            HelperPick::Notice => node.relay.close(),
            HelperPick::Stray => self.stray(place, random),
            HelperPick::End => self.end(place),
        }
    }

    /// Takes what a helper said next, before a link carries it.
    pub fn next_said(&mut self, place: usize) -> Option<FromHelper> {
        self.nodes[place].said.try_recv().ok()
    }

    /// The link of a helper carries what it said next.
    fn say(&mut self, place: usize) {
        let Some(message) = self.next_said(place) else { return };
        if let Some(link) = &self.nodes[place].link {
            self.book.received(link.number, &message, false);
        }
        self.carry(place, message);
    }

    /// The link of another helper carries the next batch of one whose own link is broken.
    fn stray(&mut self, place: usize, random: &mut Random) {
        // Nothing else that it said is about what it wrote.
        let Some(FromHelper::Parcel { parcel, .. }) = self.next_said(place) else { return };
        let nodes = self.nodes.iter().enumerate();
        let open: Vec<usize> =
            nodes.filter(|(_, node)| node.has_room()).map(|(place, _)| place).collect();
        let Some(&over) = random.pick(&open) else { return };
        let message = FromHelper::Parcel { number: self.book.next_stray(), parcel };
        if let Some(link) = &self.nodes[over].link {
            self.book.received(link.number, &message, true);
        }
        self.carry(over, message);
    }

    /// The link of a helper carries something to the host, whoever said it.
    pub fn carry(&mut self, place: usize, message: FromHelper) {
        let Some(link) = &self.nodes[place].link else { return };
        let bytes = message.encode().expect("a run makes no writes but those that are carried");
        let message = FromHelper::decode(&bytes).expect("it was just encoded");
        link.heard.try_send(message).expect("the scheduler looked whether there is room");
    }

    /// The link of a helper carries what the host said next.
    fn order(&mut self, place: usize) {
        let node = &mut self.nodes[place];
        let next = node.link.as_mut().and_then(|link| link.orders.pop_front());
        let Some(message) = next else { return };
        let lending = node.process.engine.lending();
        match ToHelper::decode(&message.encode()).expect("it was just encoded") {
            ToHelper::Take { run, publisher } => lending.take(run, publisher.as_ref()),
            ToHelper::Recall { run, patience } => lending.recall(run, patience),
            ToHelper::Settled { number, result } => node.relay.settled(number, result),
        }
    }

    /// The link of a helper breaks: what it has not carried never arrives.
    pub fn cut(&mut self, place: usize) {
        if let Some(Link { number, to, .. }) = self.nodes[place].link.take() {
            self.book.broke(number, to);
        }
    }

    /// The host is gone, with its end of every link; the next has this store.
    pub(super) fn lose_links(&mut self, store: Arc<Memory>) {
        for node in &mut self.nodes {
            node.link = None;
        }
        self.book.lost(store);
    }

    /// A helper ends at once, whatever it does.
    fn end(&mut self, place: usize) {
        self.cut(place);
        self.nodes.remove(place).process.die();
    }

    /// The link of each helper stays whole from now on, or it is gone.
    pub(super) fn calm(&mut self, random: &mut Random) {
        for place in (0..self.nodes.len()).rev() {
            if !self.nodes[place].is_linked() || random.once_in(3) {
                self.end(place);
            }
        }
    }

    /// Lets every helper do all that it can do now, once; says whether there was anything.
    pub(super) fn settle(&mut self, random: &mut Random) -> bool {
        let picks = self.picks();
        for (_, pick) in &picks {
            if let Pick::Helper(place, pick) = pick {
                self.go(*place, *pick, random);
            }
        }
        !picks.is_empty()
    }

    /// Looks at who drives what.
    pub(super) fn watch(&mut self, host: &Host) {
        self.book.watch(host, &mut self.nodes);
    }

    /// Looks at what is still lent once everything went well.
    pub(super) fn look_at_the_end(&mut self, host: &Host, unfinished: &BTreeSet<u64>) {
        self.book.look_at_the_end(host, unfinished);
    }

    pub(super) fn shards(&self) -> impl Iterator<Item = &(Shard, Mailbox)> {
        self.nodes.iter().flat_map(|node| &node.process.shards)
    }

    /// The operators `port` of all of them.
    pub(super) fn ports(&self) -> impl Iterator<Item = Worked> {
        self.nodes.iter().map(|node| node.port.clone())
    }

    /// The operator `port` of a helper.
    pub fn port(&self, place: usize) -> Worked {
        self.nodes[place].port.clone()
    }

    /// What the host said to a helper, and the link has not carried yet.
    pub fn orders(&self, place: usize) -> impl Iterator<Item = &ToHelper> {
        self.nodes[place].link.iter().flat_map(|link| &link.orders)
    }

    /// What happened on the links.
    pub fn story(&self) -> &[String] {
        self.book.story()
    }

    /// What was wrong with it.
    pub fn findings(&self) -> impl Iterator<Item = &String> {
        self.book.findings()
    }

    /// How much was lent so far.
    pub fn lent(&self) -> Lent {
        self.book.lent()
    }
}

impl World {
    /// A node comes that helps.
    pub fn join(&mut self) {
        let number = self.helpers.book.next_link();
        let (voice, said) = mpsc::unbounded_channel();
        let relay = Relay::new(Arc::new(Voice(voice.clone())));
        let (port, limited) = (Worked::default(), Worked::default());
        let process = Host::assemble(Process {
            store: Arc::new(self.store.reading(Arc::clone(&relay))) as Arc<dyn Store>,
            clock: self.clock.clone(),
            handles: self.handles.clone(),
            lends: self.lends,
            gathers: self.gathers,
            shards: 1 + usize::from(!number.is_multiple_of(2)),
            live_runs: if number.is_multiple_of(4) { 2 } else { LIVE_RUNS },
            worked: limited.clone(),
            port: port.clone(),
            helps: Some(voice.clone()),
        });
        let (heard, from) = mpsc::channel(UNREAD);
        let (tells, to) = mpsc::unbounded_channel();
        let engine = self.engine().clone();
        // It ends with the link, or with the host.
        let lends = async move {
            engine.lending().lend_to(number.cast_signed(), LendingLink { to: tells, from }).await;
        };
        drop(self.add(lends));
        let link = Some(Link { number, heard, to, orders: VecDeque::new() });
        self.helpers.nodes.push(Helper { process, relay, voice, said, port, limited, link });
        self.helpers.book.tell(&format!("helper {number} comes"));
    }

    /// The workers in the processes: those of the host, then those of each helper.
    pub fn desks(&self) -> Vec<Worked> {
        let mut desks = vec![self.worked.clone()];
        desks.extend(self.lends.then(|| self.port.clone()));
        desks.extend(self.helpers.ports());
        desks
    }
}
