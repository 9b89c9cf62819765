//! Batches with their results, runs with a history, and a relay that commits at once.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, OnceLock, Weak,
        mpsc::{self, Receiver},
    },
};

use parking_lot::Mutex;

use crate::{
    journal::{Decision, Entry, Fact, RunStarted},
    protocol::{Json, Tags},
    store::{
        Batch, Carrier, Check, Header, JournalRow, Parcel, Relay, Renumbering, RunStatus, RunWrite,
        Store, StoreError, Write, Writer,
    },
};

/// Receives the result of a batch.
pub type Acked = Receiver<Result<(), StoreError>>;

/// Returns a batch and the receiver of its result.
pub fn batch(checks: Vec<Check>, run: Option<RunWrite>, writes: Vec<Write>) -> (Batch, Acked) {
    let (tell, verdict) = mpsc::channel();
    let ack = Box::new(move |result| tell.send(result).unwrap());
    (Batch { checks, run, writes, ack }, verdict)
}

/// Submits a batch and waits for its result.
pub fn commit(
    store: &dyn Store,
    checks: Vec<Check>,
    run: Option<RunWrite>,
    writes: Vec<Write>,
) -> Result<(), StoreError> {
    let (batch, verdict) = batch(checks, run, writes);
    store.submit(batch);
    verdict.recv().unwrap()
}

/// Commits writes without a run. They must succeed.
pub fn put(store: &dyn Store, writes: Vec<Write>) {
    commit(store, vec![], None, writes).unwrap();
}

/// Returns the header of a run that is not stored.
pub fn header(num: u64) -> Header {
    Header {
        num,
        created_ms: 1000 + num,
        nonce: u64::MAX - num,
        blueprint: "ship".to_owned(),
        hash: "ab".repeat(32),
        status: RunStatus::Running,
        status_text: Some("building".to_owned()),
        progress: Some(0.5),
        cursor: 0,
        seq: 0,
        steps: 3,
        steps_done: 1,
        wake_at_ms: None,
        epoch: 1,
        parent: Some((90, 4)),
        principal: "ann".to_owned(),
        updated_ms: 2000 + num,
        ended_ms: None,
        error: None,
        waiting_on: Some(r#"["timer"]"#.to_owned()),
        bytes: 0,
        tags: Tags::default(),
        used: None,
    }
}

/// Returns the fact that starts a history.
pub fn started(continues: Option<u64>) -> Fact {
    Fact::RunStarted(Box::new(RunStarted {
        first_step: 1,
        grant: Json::null(),
        blueprint: "ship".to_owned(),
        hash: "ab".repeat(32),
        input: Json::null(),
        trigger: Json::null(),
        seed: 7,
        parent: None,
        depth: 0,
        workdir: None,
        principal: "ann".to_owned(),
        delegate: None,
        generation: 0,
        queued: vec![],
        continues,
    }))
}

/// Returns a fact without special meaning.
pub fn resumed() -> Fact {
    Fact::Decided(Decision::Resume { by: "ann".to_owned() })
}

/// Returns the write that appends `facts` to the run of `header`, and updates `header`. A fact that
/// starts a history starts a new chain of rows.
pub fn append(writer: &dyn Writer, header: &mut Header, facts: Vec<Fact>) -> RunWrite {
    let expected = (header.seq > 0).then_some(header.cursor);
    let mut entries = Vec::new();
    for fact in facts {
        let lsn = writer.next_lsn();
        let before = (header.seq > 0).then_some(header.cursor);
        header.seq += 1;
        header.cursor = lsn;
        let row = JournalRow::new(header.num, lsn, before, &Entry::new(header.seq, 5000, fact));
        header.bytes += row.bytes.len() as u64;
        entries.push(row);
    }
    RunWrite { header: header.clone(), expected, entries, whole: false }
}

/// Stores a run with one entry and returns its header.
pub fn begin(store: &dyn Store, header: Header) -> Header {
    let mut header = header;
    let run = append(store, &mut header, vec![started(None)]);
    commit(store, vec![], Some(run), vec![]).unwrap();
    header
}

/// Returns the numbers of entries.
pub fn seqs(entries: &[Entry]) -> Vec<u32> {
    entries.iter().map(|entry| entry.seq).collect()
}

/// Commits the parcels of a relay, as the node that drives does.
struct Loopback {
    store: Arc<dyn Store>,
    relay: OnceLock<Weak<Relay>>,
    numbers: Arc<Mutex<BTreeMap<u64, Renumbering>>>,
}

/// Returns a relay whose parcels are committed at `store`. Each is encoded and decoded on its way.
pub fn relay_to(store: Arc<dyn Store>) -> Arc<Relay> {
    let (relay, numbers) = (OnceLock::new(), Arc::default());
    let loopback = Arc::new(Loopback { store, relay, numbers });
    let carrier: Arc<dyn Carrier> = loopback.clone();
    let relay = Relay::new(carrier);
    loopback.relay.set(Arc::downgrade(&relay)).unwrap();
    relay
}

impl Carrier for Loopback {
    fn send(&self, number: u64, parcel: Parcel) {
        let relay = self.relay.get().and_then(Weak::upgrade).unwrap();
        let mut sent = Parcel::decode(&parcel.encode().unwrap()).unwrap();
        assert_eq!(sent, parcel);
        let run = sent.about().unwrap_or_default();
        let mut numbers = self.numbers.lock();
        let numbered = numbers.entry(run).or_default().apply(&mut sent, &*self.store);
        drop(numbers);
        if let Err(error) = numbered {
            return relay.settled(number, Err(error));
        }
        let numbers = Arc::clone(&self.numbers);
        self.store.submit(sent.into_batch(move |fate| {
            if fate.is_err() {
                numbers.lock().entry(run).or_default().forget();
            }
            relay.settled(number, fate);
        }));
    }
}
