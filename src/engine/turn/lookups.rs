//! Reads for the commands of a flow, off the thread that advances it.
//!
//! | command | lookup |
//! |---|---|
//! | call a blueprint | its program and that program's publisher, unless both are in memory |
//! | signal another run | whether it exists and is open |
//! | read a file of the run | its content, unless it is still being written |
//!
//! A run that is driven for another node goes home for a call: nothing is read for that.
//!
//! A flow whose next command lacks its lookup waits for it; the lookups of the commands behind it are
//! read with it. Its inputs wait too, and everything else of the run goes on. A cancel drops the
//! commands: nothing of them is in the journal, and a replay asks for them again.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use crate::{
    engine::{
        EngineError,
        run::lookups::{Found, Lookup, LookupResult, Publisher, Purpose, Rest, StoredRun},
        shared::{message::Internal, shards::Shared},
        turn::{facts::Turn, helping},
    },
    flow::{ArtifactOp, Command, NextAction, StepOp},
    journal::Entry,
    lua::Program,
    protocol::RunId,
};

/// The commands whose lookups are read together.
const AHEAD: usize = 256;

/// A run's own blueprint: name and hash.
type OwnBlueprint = Option<(String, String)>;

/// Returns true if a command needs a lookup whose result is not in memory.
pub(crate) fn lacks(turn: &mut Turn<'_>, command: &Command) -> bool {
    helping::needs_driver(turn, command)
        || lookup_of(turn, command).is_some_and(|lookup| !is_known(turn, &lookup))
}

/// Has the lookups of a flow's commands read; the flow waits for them.
pub(crate) fn wait(turn: &mut Turn<'_>, commands: Vec<Command>, next: NextAction) {
    if commands.first().is_some_and(|command| helping::needs_driver(turn, command)) {
        turn.run.lookups.rest = Some(Rest { commands, next });
        turn.run.lookups.is_waiting = true;
        return helping::leave(turn);
    }
    let mut lookups = Vec::new();
    for command in commands.iter().take(AHEAD) {
        let Some(lookup) = lookup_of(turn, command) else { continue };
        if lookups.contains(&lookup) || is_known(turn, &lookup) {
            continue;
        }
        // A file may be large: one at a time.
        let is_file = matches!(lookup, Lookup::File(_));
        lookups.push(lookup);
        if is_file {
            break;
        }
    }
    turn.run.lookups.rest = Some(Rest { commands, next });
    turn.run.lookups.is_waiting = true;
    ask(turn, Purpose::Command, lookups);
}

/// Takes the commands whose lookups were read.
pub(crate) fn take_rest(turn: &mut Turn<'_>) -> Option<Rest> {
    turn.run.lookups.rest.take_if(|_| !turn.run.lookups.is_waiting)
}

/// Reads on a blocking thread; the results come as a message.
pub(crate) fn ask(turn: &mut Turn<'_>, purpose: Purpose, lookups: Vec<Lookup>) {
    turn.run.lookups.reading += 1;
    let (num, life, own) = (turn.run.num, turn.run.life, own_of(turn));
    let shared = Arc::clone(turn.shared);
    turn.shared.tasks.spawn_blocking(move || {
        let look = |lookup: Lookup| {
            let found = catch_unwind(AssertUnwindSafe(|| read(&shared, num, &own, &lookup)));
            let found = match found {
                Ok(read) => read.map_err(|error| error.to_string()),
                Err(_) => Err("a panic".to_owned()),
            };
            (lookup, found)
        };
        let found = lookups.into_iter().map(look).collect();
        shared.tell(num, Internal::Found { life, purpose, found });
    });
}

/// Keeps the results of a read; returns whether the run is still the one that asked for them.
pub(crate) fn keep(
    turn: &mut Turn<'_>,
    life: u64,
    purpose: &Purpose,
    found: Vec<(Lookup, LookupResult)>,
) -> bool {
    if life != turn.run.life {
        return false;
    }
    let lookups = &mut turn.run.lookups;
    lookups.reading -= 1;
    lookups.found.extend(found);
    lookups.is_waiting &= !matches!(purpose, Purpose::Command);
    !turn.run.is_ended()
}

/// Drops the results, unless commands wait for them.
pub(crate) fn forget(turn: &mut Turn<'_>) {
    if turn.run.lookups.rest.is_none() {
        turn.run.lookups.found.clear();
    }
}

/// Returns the program that a reference stands for, with its publisher.
pub(crate) fn program(
    turn: &Turn<'_>,
    reference: &str,
) -> Result<(Arc<Program>, Publisher), String> {
    match turn.run.lookups.found.get(&Lookup::Program(reference.to_owned())) {
        Some(Ok(Found::Program(found))) => Ok(found.clone()),
        other => Err(missing(other, "program")),
    }
}

/// Returns what was read of another run.
pub(crate) fn stored_run(turn: &Turn<'_>, num: u64) -> Result<Option<StoredRun>, String> {
    match turn.run.lookups.found.get(&Lookup::Run(num)) {
        Some(Ok(Found::Run(found))) => Ok(*found),
        other => Err(missing(other, "run")),
    }
}

/// Takes the journal that was read for a copy.
pub(crate) fn entries(turn: &mut Turn<'_>) -> Result<Arc<[Entry]>, String> {
    match turn.run.lookups.found.remove(&Lookup::Entries) {
        Some(Ok(Found::Entries(found))) => Ok(found),
        other => Err(missing(other.as_ref(), "journal")),
    }
}

/// Takes what was read of a file.
pub(crate) fn file(turn: &mut Turn<'_>, hash: &str) -> Result<Option<Arc<[u8]>>, String> {
    match turn.run.lookups.found.remove(&Lookup::File(hash.to_owned())) {
        Some(Ok(Found::File(found))) => Ok(found),
        other => Err(missing(other.as_ref(), "file")),
    }
}

/// Returns the error of a lookup without the data.
fn missing(found: Option<&LookupResult>, what: &str) -> String {
    match found {
        Some(Err(error)) => error.clone(),
        _ => format!("the {what} was not read"),
    }
}

/// Returns true if the result of a lookup is in memory; it stays there until [`forget`].
pub(crate) fn is_known(turn: &mut Turn<'_>, lookup: &Lookup) -> bool {
    if turn.run.lookups.found.contains_key(lookup) {
        return true;
    }
    let Lookup::Program(reference) = lookup else { return false };
    let Some(known) = turn.shared.programs.known_called(reference, own_of(turn)) else {
        return false;
    };
    let found = known.map(Found::Program).map_err(|error| error.to_string());
    turn.run.lookups.found.insert(lookup.clone(), found);
    true
}

fn lookup_of(turn: &Turn<'_>, command: &Command) -> Option<Lookup> {
    let Command::Schedule(request) = command else { return None };
    match &request.op {
        StepOp::Child { blueprint, .. } => Some(Lookup::Program(blueprint.clone())),
        StepOp::SendSignal { run, .. } => {
            let receiver = run.parse::<RunId>().ok().filter(|receiver| *receiver != turn.run.id)?;
            Some(Lookup::Run(receiver.num()))
        }
        StepOp::Artifact(ArtifactOp::Read { id }) => {
            let hash = turn.run.file_hash(id.parse().ok()?)?;
            turn.run.file_on_its_way(hash).is_none().then(|| Lookup::File(hash.to_owned()))
        }
        _ => None,
    }
}

fn own_of(turn: &Turn<'_>) -> OwnBlueprint {
    // A blueprint without a name calls itself: what was asked for may be all that is known.
    turn.run.program.as_ref().map(|program| {
        (program.blueprint().name().to_owned(), program.blueprint().hash().to_owned())
    })
}

fn read(
    shared: &Shared,
    run: u64,
    own: &OwnBlueprint,
    lookup: &Lookup,
) -> Result<Found, EngineError> {
    Ok(match lookup {
        Lookup::Program(reference) => {
            Found::Program(shared.programs.called(reference, own.clone())?)
        }
        Lookup::Run(num) => Found::Run(shared.store.header(*num)?.map(|header| StoredRun {
            created_ms: header.created_ms,
            is_ended: header.status.is_ended(),
        })),
        Lookup::File(hash) => Found::File(shared.store.blob(hash)?.map(Into::into)),
        Lookup::Entries => Found::Entries(shared.store.entries(run, 0)?.into()),
    })
}
