//! Runs that are written into a store which no host has open, for tests and benches of very many.

use moonswarm::{
    journal::{Dimension, Ending, Entry, Fact, RunStarted, Tally},
    protocol::Json,
    store::{CountedRun, Header, JournalRow, RunStatus, RunWrite, Store, Write},
};

/// Returns the writes of a run whose history has only its start. `counted` is what the statistics
/// count of it if it has ended, with the time that each took, in milliseconds.
pub fn stored_run(
    store: &dyn Store,
    mut header: Header,
    counted: &[(Dimension, &str, u64)],
) -> (RunWrite, Vec<Write>) {
    let started = Fact::RunStarted(Box::new(RunStarted {
        first_step: 1,
        grant: Json::null(),
        blueprint: header.blueprint.clone(),
        hash: header.hash.clone(),
        input: Json::null(),
        trigger: Json::null(),
        seed: 7,
        parent: None,
        depth: 0,
        workdir: None,
        principal: header.principal.clone(),
        delegate: None,
        generation: 0,
        queued: vec![],
        continues: None,
    }));
    (header.cursor, header.seq) = (store.next_lsn(), 1);
    let entry = Entry::new(1, header.created_ms, started);
    let row = JournalRow::new(header.num, header.cursor, None, &entry);
    header.bytes = row.bytes.len() as u64;
    let mut writes = Vec::new();
    if let Some(ended_ms) = header.ended_ms {
        let ending = match header.status {
            RunStatus::Failed => Ending::Failed,
            _ => Ending::Completed,
        };
        let mut tally = Tally::default();
        for (dimension, name, took_ms) in counted {
            tally.at(ended_ms, *dimension, name, ending).end(*took_ms);
        }
        writes.push(Write::CountRun(Box::new(CountedRun {
            run: header.num,
            created_ms: header.created_ms,
            ended_ms,
            blueprint: header.blueprint.clone(),
            ending,
            tally,
        })));
    }
    (RunWrite { header, expected: None, entries: vec![row], whole: true }, writes)
}
