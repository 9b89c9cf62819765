//! The runs that are stored before anything is measured.

use std::{path::Path, sync::mpsc};

use moonswarm::{
    journal::Dimension,
    protocol::{Failure, Tags},
    store::{Batch, Header, Options, RunStatus, Store, Synchronous, open},
};

use crate::stored_run::stored_run;

/// The batches that are on their way at once.
const WINDOW: usize = 4_000;
/// The days over which the runs are spread.
const DAYS: u64 = 60;
pub const DAY_MS: u64 = 86_400_000;

/// The event that the stored runs wait for, as their headers have it.
const WAITS: &str =
    r#"[{"kind":"signal","subject":{"name":"go"},"since":"2026-01-31T08:00:00.000Z"}]"#;

/// Returns the header of a run: one in a hundred waits, one in twenty failed.
fn header(num: u64, runs: u64, now_ms: u64) -> Header {
    let created_ms = now_ms - DAYS * DAY_MS + num * (DAYS * DAY_MS / runs.max(1));
    let status = match num % 100 {
        0 => RunStatus::Waiting,
        1..=5 => RunStatus::Failed,
        _ => RunStatus::Completed,
    };
    let failure = || Failure::new("timeout", format!("the disk of machine{} is full", num % 997));
    let tags = [("customer".to_owned(), format!("c{}", num % 500))].into();
    Header {
        num,
        created_ms,
        nonce: num + 1,
        blueprint: format!("b{}", num % 40),
        hash: "ab".repeat(32),
        status,
        status_text: None,
        progress: None,
        cursor: 0,
        seq: 0,
        steps: 3,
        steps_done: 3,
        wake_at_ms: None,
        epoch: 1,
        parent: None,
        principal: format!("team{}", num % 20),
        updated_ms: created_ms + 2_000,
        ended_ms: (status != RunStatus::Waiting).then_some(created_ms + 2_000),
        error: (status == RunStatus::Failed)
            .then(|| serde_json::to_string(&failure()).expect("a failure is plain data")),
        waiting_on: (status == RunStatus::Waiting).then(|| WAITS.to_owned()),
        bytes: 0,
        tags: Tags::new(tags).expect("a tag"),
        used: None,
    }
}

fn batch(store: &dyn Store, header: Header, tell: mpsc::Sender<bool>) -> Batch {
    let counted =
        [(Dimension::Blueprint, "", 2_000 + header.num % 5_000), (Dimension::Agent, "coder", 900)];
    let (run, writes) = stored_run(store, header, &counted);
    let ack = Box::new(move |result: Result<(), _>| {
        // Nobody waits any more if the loader has failed.
        let _ = tell.send(result.is_ok());
    });
    Batch { checks: Vec::new(), run: Some(run), writes, ack }
}

/// Writes the runs. Not every commit waits for the disk: what is measured comes later.
pub async fn load(data: &Path, runs: u64, now_ms: u64) {
    let options = Options { synchronous: Synchronous::Normal, ..Options::default() };
    let opened = open(data, &options, None).expect("a store");
    let (tell, told) = mpsc::channel();
    let mut waiting = 0;
    for _ in 0..runs {
        let num = opened.store.next_run();
        opened.store.room().await;
        opened.store.submit(batch(&*opened.store, header(num, runs, now_ms), tell.clone()));
        waiting += 1;
        if waiting > WINDOW {
            assert!(told.recv().expect("the store acknowledges"), "a run was refused");
            waiting -= 1;
        }
    }
    for _ in 0..waiting {
        assert!(told.recv().expect("the store acknowledges"), "a run was refused");
    }
    opened.upkeep.close().expect("the store closes");
}
