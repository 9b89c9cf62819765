//! One thread, one seed: the engine, its store, its clock, and everybody around it.
//!
//! Nothing happens by itself. The scheduler picks what goes on next: a message, a turn, a commit,
//! an answer, a piece of spawned work, somebody's next act, time, a crash. In a world that lends, the
//! host has helpers: the scheduler picks what they do, and what their links carry.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use super::{
    blueprint::Flow,
    history::{Ask, Event, Of, What},
    operator::Worked,
    random::Random,
};
use callers::Open;
use helper::{HelperPick, Helpers};
pub use links::Lent;
use tokio::sync::oneshot;

use crate::{
    clock::Clock,
    engine::{Caller, Engine, shard::owner::Shard, shared::mailbox::Mailbox},
    protocol::RunId,
    store::{Memory, Reader as _, StoreError},
    tasks::Driver,
    token::HandleKey,
};

mod boot;
mod callers;
mod calm;
mod helper;
mod links;
mod running;

/// When every world begins.
pub const BEGIN_MS: u64 = 1_700_000_000_000;

/// The length of a lease without a heartbeat in a world.
pub const LEASE_MS: u64 = 30_000;

/// Asks that may be open at the same time.
const ASKS: usize = 8;

/// The messages of a round in a world whose shards gather their batches.
const ROUND: usize = 6;

/// The token that is never revoked.
pub const SAFE: usize = 0;

/// A live process: everything that a crash takes.
pub struct Host {
    engine: Engine,
    shards: Vec<(Shard, Mailbox)>,
    driver: Driver,
    /// True if its shards gather their batches, as the threads of a process do.
    gathers: bool,
}

impl Host {
    fn deliver(&mut self, n: usize) {
        let (shard, messages) = &mut self.shards[n];
        if self.gathers {
            shard.round(None, messages, ROUND);
        } else if let Some(message) = messages.take() {
            shard.handle(message);
        }
    }

    fn turn(&mut self, n: usize) {
        let (shard, messages) = &mut self.shards[n];
        if self.gathers {
            shard.round(None, messages, 0);
        } else {
            shard.turn();
        }
    }

    /// Returns true if it has a run in memory.
    pub fn drives(&self, run: u64) -> bool {
        self.shards.iter().any(|(shard, _)| shard.runs.contains_key(&run))
    }

    /// The runs that it lent, as its shards know them.
    pub fn lent(&self) -> Vec<u64> {
        let shards = self.shards.iter();
        let mut lent: Vec<u64> = shards.flat_map(|(shard, _)| shard.away.keys().copied()).collect();
        lent.sort_unstable();
        lent
    }

    /// Dies at once.
    fn die(self) {
        self.driver.give_up_all();
        drop(self.shards);
    }
}

/// The world of one seed.
pub struct World {
    pub random: Random,
    pub flow: Flow,
    pub clock: Clock,
    pub store: Arc<Memory>,
    pub worked: Worked,
    /// The host's operator `port`, which only a world that lends has.
    pub port: Worked,
    pub events: Vec<Event>,
    /// The violations that the world itself saw.
    pub findings: Vec<String>,
    /// The runs that somebody knows of.
    pub runs: BTreeMap<u64, RunId>,
    /// The attempts that somebody holds, or held.
    pub held: Vec<Of>,
    /// The reports that were made, to be made again.
    pub reports: Vec<Ask>,
    /// The requests with a key, to be repeated.
    pub keyed: Vec<Ask>,
    pub tokens: Vec<Caller>,
    pub revoked: usize,
    pub handles: HandleKey,
    pub body: u32,
    /// The tasks that somebody wanted to lease just now.
    pub wanted: Vec<(u64, u32, u32, String)>,
    /// The queues whose last lease came back with fewer tasks than asked for.
    pub emptied: BTreeSet<&'static str>,
    /// The programs that runs have in turn.
    pub programs: Vec<String>,
    /// True if the host lends runs.
    pub lends: bool,
    /// True if the shards of its processes gather their batches.
    gathers: bool,
    pub helpers: Helpers,
    unanswered: BTreeMap<(u64, u32, u32), u32>,
    open: Vec<Open>,
    asks: u32,
    host: Option<Host>,
    shards: usize,
    ailing: bool,
    broken_disk: bool,
}

/// The choices of the scheduler.
#[derive(Debug, Clone, Copy)]
enum Pick {
    Deliver(usize),
    Turn(usize),
    Commit,
    Acknowledge,
    Piece,
    Act,
    Time,
    Leave,
    Disk,
    Crash,
    /// A node comes that helps.
    Join,
    Helper(usize, HelperPick),
}

/// Returns true for the seeds of worlds whose shards gather their batches: every third.
fn gathers(seed: u64) -> bool {
    seed.is_multiple_of(3)
}

impl World {
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let flow = Flow::random(&mut random);
        Self::made(flow, random, false, gathers(seed))
    }

    /// A world whose runs have this flow.
    pub fn with(flow: Flow, random: Random) -> Self {
        Self::made(flow, random, false, false)
    }

    /// A world whose host lends runs to other nodes; in most, one is there from the beginning.
    pub fn lending(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let flow = Flow::lent(&mut random);
        let mut world = Self::made(flow, random, true, gathers(seed));
        if !world.random.once_in(8) {
            world.welcome();
        }
        world
    }

    /// A world whose host lends runs, which have this flow.
    pub fn lending_with(flow: Flow, random: Random) -> Self {
        Self::made(flow, random, true, false)
    }

    fn made(flow: Flow, mut random: Random, lends: bool, gathers: bool) -> Self {
        let shards = 1 + random.below(2);
        let (clock, store) = (Clock::manual(BEGIN_MS), Arc::new(Memory::held()));
        let helpers = Helpers::new(clock.clone(), Arc::clone(&store));
        let mut world = Self {
            random,
            flow,
            clock,
            store,
            worked: Worked::default(),
            port: Worked::default(),
            events: Vec::new(),
            findings: Vec::new(),
            runs: BTreeMap::new(),
            held: Vec::new(),
            reports: Vec::new(),
            keyed: Vec::new(),
            tokens: Vec::new(),
            revoked: 0,
            handles: HandleKey::new([9; 32], 1),
            body: 0,
            wanted: Vec::new(),
            emptied: BTreeSet::new(),
            programs: Vec::new(),
            lends,
            gathers,
            helpers,
            unanswered: BTreeMap::new(),
            open: Vec::new(),
            asks: 0,
            host: None,
            shards,
            ailing: false,
            broken_disk: false,
        };
        world.boot();
        world.furnish();
        world
    }

    pub fn engine(&self) -> &Engine {
        &self.host().engine
    }

    pub fn host(&self) -> &Host {
        self.host.as_ref().expect("a host is up between two crashes")
    }

    fn host_mut(&mut self) -> &mut Host {
        self.host.as_mut().expect("a host is up between two crashes")
    }

    /// Adds something that a client does beside the asks.
    pub fn add<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> oneshot::Receiver<T> {
        self.host().driver.add(future).1
    }

    /// Lets one future come to its end, with everything that it needs.
    fn finish<T: Send + 'static>(&mut self, future: impl Future<Output = T> + Send + 'static) -> T {
        let mut result = self.add(future);
        for _ in 0..1_000 {
            self.settle();
            if let Ok(value) = result.try_recv() {
                return value;
            }
        }
        panic!("it does not come to its end");
    }

    pub fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    pub fn note(&mut self, what: What) {
        let event = Event { at_ms: self.now_ms(), position: self.store.position(), what };
        self.events.push(event);
    }

    pub fn next_body(&mut self) -> u32 {
        self.body += 1;
        self.body
    }

    /// Notices the runs that became durable.
    fn meet(&mut self) {
        let filter = crate::store::RunFilter { limit: 1_000, ..Default::default() };
        for header in self.store.headers(&filter).unwrap() {
            self.runs
                .entry(header.num)
                .or_insert_with(|| RunId::new(header.num, header.created_ms));
        }
    }

    /// The work that the host itself can continue.
    fn inner(&self) -> Vec<(usize, Pick)> {
        let host = self.host();
        let mut picks = Vec::new();
        for (n, (shard, messages)) in host.shards.iter().enumerate() {
            if !messages.is_empty() {
                picks.push((80, Pick::Deliver(n)));
            }
            if shard.is_ready() || shard.is_due() {
                picks.push((50, Pick::Turn(n)));
            }
        }
        if self.store.waiting() > 0 {
            picks.push((60, Pick::Commit));
        }
        if self.store.unacknowledged() > 0 {
            picks.push((60, Pick::Acknowledge));
        }
        if !host.driver.ready().is_empty() {
            picks.push((90, Pick::Piece));
        }
        picks.extend(self.helpers.picks());
        picks
    }

    /// Lets the scheduler do one thing.
    pub fn step(&mut self) {
        let mut picks = self.inner();
        if !self.open.is_empty() {
            picks.push((2, Pick::Leave));
        }
        if self.open.len() < ASKS {
            picks.push((60, Pick::Act));
        }
        // A run takes longer where it is lent, and is to come far.
        let (time, misfortune) = if self.lends { (28, 1) } else { (14, 2) };
        let disk = if self.ailing { 40 } else { misfortune };
        picks.extend([(time, Pick::Time), (disk, Pick::Disk), (misfortune, Pick::Crash)]);
        if self.lends {
            picks.extend(self.helpers.comings_and_goings());
        }
        let pick = self.random.weigh(&picks).expect("there is always something");
        self.go(pick);
    }

    fn go(&mut self, pick: Pick) {
        match pick {
            Pick::Deliver(n) => self.host_mut().deliver(n),
            Pick::Turn(n) => self.host_mut().turn(n),
            Pick::Commit => {
                let group = 1 + self.random.below(self.store.waiting());
                self.store.commit(group);
                self.meet();
            }
            Pick::Acknowledge => {
                self.store.acknowledge();
            }
            Pick::Piece => {
                let ready = self.host().driver.ready();
                let piece = *self.random.pick(&ready).expect("it is not empty");
                self.host().driver.poll(piece);
            }
            Pick::Act => self.act(),
            Pick::Time => self.pass_time(),
            Pick::Leave => {
                let place = self.random.below(self.open.len());
                let gone = self.open.remove(place);
                self.host().driver.give_up(gone.piece);
                self.again(gone.ask);
                self.note(What::Lost(gone.number));
            }
            Pick::Disk => self.disk(),
            Pick::Crash => self.crash(),
            Pick::Join => self.join(),
            Pick::Helper(place, pick) => self.helpers.go(place, pick, &mut self.random),
        }
        self.hear();
        self.watch();
    }

    fn pass_time(&mut self) {
        if self.lends && !self.random.once_in(3) {
            // A run that waits for longer than some seconds does so at home.
            let some = 1 + self.random.below(3_000) as u64;
            return self.clock.advance(Duration::from_millis(some));
        }
        let hour = 3_600_000;
        let now = self.now_ms();
        match self.random.below(26) {
            // Nobody is heard, and nothing is seen, until it is over.
            24 => self.clock.pause(Duration::from_millis(LEASE_MS * 2)),
            25 => self.clock.pause(Duration::from_millis(hour)),
            0..10 => self.clock.advance(Duration::from_millis(1 + self.random.below(3_000) as u64)),
            10..20 => {
                let due = self.next_due();
                let due = due.unwrap_or(now + 1_000).clamp(now, now + hour);
                self.clock.advance(Duration::from_millis(due - now));
            }
            20 => self.clock.set(now + hour),
            21 => self.clock.set(now - hour),
            22 if self.random.once_in(4) => self.clock.set(now + 365 * 24 * hour),
            23 if self.random.once_in(4) => self.clock.set(now - 365 * 24 * hour),
            _ => self.clock.advance(Duration::from_millis(LEASE_MS)),
        }
    }

    /// The next time at which something is due that is not yet.
    fn next_due(&self) -> Option<u64> {
        let now = self.now_ms();
        let stored = self
            .store
            .due(&crate::store::Partition::all().collect::<Vec<_>>(), u64::MAX >> 1, 10_000)
            .unwrap();
        let stored = stored.into_iter().map(|(_, at)| at);
        let shards = self.host().shards.iter().chain(self.helpers.shards());
        let alarms = shards.flat_map(|(shard, _)| shard.alarms_ms());
        stored.chain(alarms).filter(|at| *at > now).min()
    }

    /// The disk fails, or is well again, which a broken one never is in the same process.
    fn disk(&mut self) {
        if self.ailing {
            if self.broken_disk {
                return self.crash();
            }
            self.ailing = false;
            self.note(What::Storage("well"));
            self.store.fail_with(None);
            return;
        }
        self.ailing = true;
        self.broken_disk = self.random.once_in(3);
        let (word, error) = if self.broken_disk {
            let context = "write to the database".to_owned();
            ("broken", StoreError::Database { context, reason: "the disk failed".into() })
        } else {
            ("full", StoreError::Full)
        };
        self.note(What::Storage(word));
        self.store.fail_with(Some(error));
    }

    /// The host dies and another starts on what is durable.
    pub fn crash(&mut self) {
        self.note(What::Crashed);
        for open in std::mem::take(&mut self.open) {
            self.again(open.ask);
            self.note(What::Lost(open.number));
        }
        if let Some(host) = self.host.take() {
            host.die();
        }
        self.store = Arc::new(self.store.crash());
        self.helpers.lose_links(Arc::clone(&self.store));
        self.ailing = false;
        self.broken_disk = false;
        self.boot();
    }

    /// Handles everything that can be handled without time going on.
    pub fn settle(&mut self) {
        for _ in 0..100_000 {
            let mut idle = true;
            for n in 0..self.shards {
                let (shard, messages) = &self.host().shards[n];
                if !messages.is_empty() {
                    self.host_mut().deliver(n);
                    idle = false;
                } else if shard.is_ready() || shard.is_due() {
                    self.host_mut().turn(n);
                    idle = false;
                }
            }
            if self.store.waiting() > 0 {
                self.store.commit(usize::MAX);
                idle = false;
            }
            while self.store.acknowledge() {
                idle = false;
            }
            for piece in self.host().driver.ready() {
                self.host().driver.poll(piece);
                idle = false;
            }
            idle &= !self.helpers.settle(&mut self.random);
            self.hear();
            self.watch();
            if idle {
                self.meet();
                return;
            }
        }
        self.findings.push("the host never comes to rest".into());
    }

    /// No more attempts of an agent are worked on than it allows.
    fn watch(&mut self) {
        let live = self.worked.live();
        if live > 2 {
            self.findings.push(format!("no more at once than allowed: {live} attempts of `host`"));
        }
        if self.lends {
            let host = self.host.as_ref().expect("a host is up between two crashes");
            self.helpers.watch(host);
        }
    }
}
