//! Reads a run for its shard on a blocking thread: its rows, its program, its child runs.

use std::collections::HashMap;

use crate::{
    engine::{
        run::{
            loaded::{Called, Loaded, Rows},
            reply::Asked,
            values::{canceled_call, child_id},
        },
        shared::{
            message::{ControlAsk, Internal, RunMsg},
            shards::Shared,
        },
        turn::waiting,
        view::spent::total,
    },
    fault,
    journal::{Chain, ChainError, Entry, RunState, Usage},
    protocol::{RunId, StepKind},
    store::{Header, LoadedRows, StoreError, Used, Want, read_in_pages},
};

/// Returns the part of a run to read, given the message that it is loaded for.
#[derive(Clone, Copy)]
pub(crate) struct Reason {
    /// True if the message is relevant for an ended run.
    past_end: bool,
    /// True if it ends the quarantine of a run that killed the host.
    past_quarantine: bool,
}

impl Reason {
    pub(crate) fn of(message: &RunMsg) -> Self {
        let past_end = !matches!(
            message,
            RunMsg::Control(Asked { ask: ControlAsk::TakeUp, .. })
                | RunMsg::Internal(
                    Internal::Wake
                        | Internal::Take(..)
                        | Internal::GiveBack(_)
                        | Internal::Subscribe(..)
                        | Internal::Wait(_)
                        | Internal::Progress { .. }
                        | Internal::Tell { .. }
                        | Internal::Rest { .. }
                )
        );
        let past_quarantine = matches!(
            message,
            RunMsg::Control(Asked {
                ask: ControlAsk::Resume { .. } | ControlAsk::Cancel { .. },
                ..
            })
        );
        Self { past_end, past_quarantine }
    }

    fn wants_rows(self, header: &Header) -> bool {
        (self.past_end || !header.status.is_ended())
            && (self.past_quarantine || !waiting::is_deadly(header))
    }
}

/// Reads a run; `None` if it does not exist.
///
/// # Errors
/// [`StoreError::TooLarge`] for a history that would end the host, [`StoreError::Damaged`] for one
/// that cannot be read, and what else the store says.
pub(crate) fn read(
    shared: &Shared,
    num: u64,
    reason: Reason,
) -> Result<Option<Loaded>, StoreError> {
    let rows = |header: &Header| reason.wants_rows(header);
    let want = Want { rows: &rows, most: shared.memory.limit() as u64 / 2 };
    let Some(stored) = shared.store.load(num, &want)? else { return Ok(None) };
    let header = stored.header;
    let Some(rows) = stored.rows else { return Ok(Some(Loaded { header, rows: None })) };
    fault::point("engine.load");
    let LoadedRows { entries, tasks, files, charge, state } = rows;
    let chain = chain_of(num, &entries)?;
    let Some((started, _)) = chain.started() else {
        let (what, reason) = (format!("run {num}"), "it has no start".to_owned());
        return Err(StoreError::Damaged { what, reason });
    };
    let rows = Rows {
        program: shared.programs.by_hash(&started.hash),
        publisher: shared.programs.publisher(&started.hash)?,
        called: called(shared, &chain),
        late: late(shared, num, &chain),
        entries,
        chain,
        tasks: tasks.into_iter().map(|row| (row.step, row)).collect(),
        files,
        charge,
        state: state.map(|rows| rows.into_iter().collect()),
    };
    Ok(Some(Loaded { header, rows: Some(Box::new(rows)) }))
}

fn chain_of(num: u64, entries: &[Entry]) -> Result<Chain, StoreError> {
    let mut chain = Chain::lean();
    for entry in entries {
        chain.apply(entry).map_err(|error| damaged(num, &error))?;
    }
    Ok(chain)
}

fn damaged(num: u64, error: &ChainError) -> StoreError {
    StoreError::Damaged { what: format!("run {num}"), reason: error.to_string() }
}

/// The number of canceled calls, the last ones, whose usage is looked for.
const LATE: usize = 100;

/// Reads the state of the child runs of open steps.
fn called(shared: &Shared, chain: &Chain) -> HashMap<u32, Called> {
    let calls = chain.open().filter_map(|number| {
        let step = &chain.step(number)?.scheduled;
        let is_call = step.kind == StepKind::Child;
        Some((number, child_id(step.call_id.as_deref().filter(|_| is_call))?))
    });
    calls.map(|(number, child)| (number, became(shared, child))).collect()
}

/// Reads the usage of the child runs of canceled steps that was not counted: the host may have
/// stopped between the end of the child run and that.
fn late(shared: &Shared, num: u64, chain: &Chain) -> Vec<(u32, RunId, Usage)> {
    if matches!(chain.state(), RunState::Ended(_)) {
        // An ended run counts nothing any more.
        return Vec::new();
    }
    let canceled = chain.steps().iter().rev().filter_map(|step| Some((step, canceled_call(step)?)));
    let late = canceled.take(LATE).filter_map(|(step, child)| {
        let number = step.scheduled.step;
        Some((number, child, used_by(shared, child, (num, number))?))
    });
    late.collect()
}

/// Returns the usage of a run that has ended, if that step called it. A canceled step of a copy
/// names the run that its original called, which may be any other one on this host.
fn used_by(shared: &Shared, run: RunId, caller: (u64, u32)) -> Option<Usage> {
    let header = shared.store.header(run.num()).ok()??;
    let counts = header.parent == Some(caller) && header.status.is_ended();
    let used = Used::parse(header.used.as_deref());
    total(&used.spent).filter(|_| counts)
}

fn became(shared: &Shared, child: RunId) -> Called {
    let num = child.num();
    let read = || {
        let Some(header) = shared.store.header(num)? else { return Ok(Called::Nowhere) };
        if !header.status.is_ended() {
            return Ok(Called::Open);
        }
        let (mut chain, mut folded) = (Chain::lean(), Ok(()));
        read_in_pages(&*shared.store, num, 0, |entry| {
            if folded.is_ok() {
                folded = chain.apply(entry);
            }
        })?;
        folded.map_err(|error| damaged(num, &error))?;
        Ok(match chain.state() {
            RunState::Ended(outcome) => Called::Ended(outcome.clone(), total(chain.spent())),
            RunState::Active | RunState::Compensating(_) => Called::Open,
        })
    };
    read().unwrap_or_else(Called::Unknown)
}
