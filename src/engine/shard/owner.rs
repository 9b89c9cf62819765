//! The fields of a shard.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque},
    sync::Arc,
};

use hashlink::LinkedHashSet;

use crate::{
    engine::{
        run::{due::Times, loaded::Loading, resident::Run, task::AgentKey},
        shared::{
            away::Away,
            message::{Internal, Poll, RunMsg},
            shards::Shared,
        },
        turn::facts::Turn,
    },
    lua::{Program, Vms},
};

/// The runs of one thread.
pub(crate) struct Shard {
    pub(crate) index: u64,
    pub(crate) shared: Arc<Shared>,
    pub(crate) vms: Vms,
    pub(crate) runs: HashMap<u64, Box<Run>>,
    /// The runs that other nodes drive.
    pub(crate) away: BTreeMap<u64, Away>,
    /// The alarms of runs, on each of the clocks.
    pub(crate) alarms: Times<BTreeSet<(u64, u64)>>,
    /// The runs that wait for a turn and were done after their last.
    pub(crate) prompt: VecDeque<u64>,
    /// The greedy ones.
    pub(crate) patient: VecDeque<u64>,
    pub(crate) recent: LinkedHashSet<u64>,
    pub(crate) horizon_ms: u64,
    /// The time on the wall clock, and on the steady one, in milliseconds.
    pub(crate) now_ms: u64,
    pub(crate) steady_ms: u64,
    pub(crate) offset_ms: i64,
    pub(crate) lives: u64,
    pub(crate) recovers: bool,
    /// The runs that are being read, or wait for that.
    pub(crate) loading: HashMap<u64, Loading>,
    /// Those that wait for it.
    pub(crate) unread: VecDeque<u64>,
    /// The number of runs that are being read.
    pub(crate) reading: usize,
    /// The question which runs are due, until it is answered.
    pub(crate) poll: Option<Poll>,
    /// The places of runs that were let go, until it is known which attempts outlive them.
    pub(crate) unplaced: HashMap<u64, (Arc<Program>, Vec<AgentKey>)>,
    /// Messages that wait until their run is read, or nothing of it is on its way to the disk.
    pub(crate) held: HashMap<u64, Vec<RunMsg>>,
    /// The runs that this process began or read, and that have not ended.
    pub(crate) unfinished: HashSet<u64>,
    /// The runs that may have lost what others carried to them.
    pub(crate) unheard: HashSet<u64>,
    /// The runs that could not be written, and until when they rest: nothing that is asked of one
    /// makes it begin its work again before that. In steady milliseconds.
    pub(crate) resting: HashMap<u64, u64>,
    /// The callers that wait for or watch a quarantined run.
    pub(crate) outside: Vec<(u64, Internal)>,
    /// When its VMs were last weighed for the metrics, on the steady clock.
    pub(crate) weighed_ms: u64,
}

impl Shard {
    /// A transition of a run, at the time of this round.
    pub(crate) fn on<'a>(&'a mut self, run: &'a mut Run) -> Turn<'a> {
        Turn {
            run,
            shared: &self.shared,
            now_ms: self.now_ms,
            steady_ms: self.steady_ms,
            vms: &mut self.vms,
            others: &self.runs,
        }
    }
}
