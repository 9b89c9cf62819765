//! Reads for the commands of a flow, off the thread that advances it.
//!
//! | command | lookup |
//! |---|---|
//! | call a blueprint | its program and that program's publisher, unless both are in memory |
//! | signal another run | whether it exists and is open |
//! | read a file of the run | its content, unless it is still being written |
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
        run::lookups::{Found, Lookup, Publisher, Purpose, Rest, StoredRun},
        shared::{message::Internal, shards::Shared},
        turn::facts::Turn,
    },
    flow::{ArtifactOp, Command, NextAction, StepOp},
    journal::Entry,
    lua::Program,
    protocol::RunId,
};

/// The commands whose lookups are read together.
const AHEAD: usize = 256;

/// A run's own blueprint: name and hash.
type Own = Option<(String, String)>;

/// Returns true if a command needs a lookup whose result is not in memory.
pub(crate) fn lacks(turn: &mut Turn<'_>, command: &Command) -> bool {
    lookup_of(turn, command).is_some_and(|lookup| !is_known(turn, &lookup))
}

/// Has the lookups of a flow's commands read; the flow waits for them.
pub(crate) fn wait(turn: &mut Turn<'_>, commands: Vec<Command>, next: NextAction) {
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
            let found = found.unwrap_or_else(|_| failed(&lookup, "a panic".to_owned()));
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
    purpose: Purpose,
    found: Vec<(Lookup, Found)>,
) -> bool {
    if life != turn.run.life {
        return false;
    }
    let lookups = &mut turn.run.lookups;
    lookups.reading -= 1;
    lookups.found.extend(found);
    lookups.is_waiting &= purpose != Purpose::Command;
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
        Some(Found::Program(found)) => found.clone(),
        _ => Err("the program was not read".to_owned()),
    }
}

/// Returns what was read of another run.
pub(crate) fn stored_run(turn: &Turn<'_>, num: u64) -> Result<Option<StoredRun>, String> {
    match turn.run.lookups.found.get(&Lookup::Run(num)) {
        Some(Found::Run(found)) => found.clone(),
        _ => Err("the run was not read".to_owned()),
    }
}

/// Takes the journal that was read for a copy.
pub(crate) fn entries(turn: &mut Turn<'_>) -> Result<Arc<[Entry]>, String> {
    match turn.run.lookups.found.remove(&Lookup::Entries) {
        Some(Found::Entries(found)) => found,
        _ => Err("the journal was not read".to_owned()),
    }
}

/// Takes what was read of a file.
pub(crate) fn file(turn: &mut Turn<'_>, hash: &str) -> Result<Option<Arc<[u8]>>, String> {
    match turn.run.lookups.found.remove(&Lookup::File(hash.to_owned())) {
        Some(Found::File(found)) => found,
        _ => Err("the file was not read".to_owned()),
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
    let found = Found::Program(known.map_err(|error| error.to_string()));
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

fn own_of(turn: &Turn<'_>) -> Own {
    // A blueprint without a name calls itself: what was asked for may be all that is known.
    turn.run.program.as_ref().map(|program| {
        (program.blueprint().name().to_owned(), program.blueprint().hash().to_owned())
    })
}

fn read(shared: &Shared, run: u64, own: &Own, lookup: &Lookup) -> Found {
    match lookup {
        Lookup::Program(reference) => Found::Program(
            shared.programs.called(reference, own.clone()).map_err(|error| error.to_string()),
        ),
        Lookup::Run(num) => Found::Run(
            shared
                .store
                .header(*num)
                .map(|header| {
                    header.map(|it| StoredRun {
                        created_ms: it.created_ms,
                        is_ended: it.status.is_ended(),
                    })
                })
                .map_err(|error| error.to_string()),
        ),
        Lookup::File(hash) => Found::File(
            shared
                .store
                .blob(hash)
                .map(|data| data.map(Into::into))
                .map_err(|error| error.to_string()),
        ),
        Lookup::Entries => Found::Entries(
            shared.store.entries(run, 0).map(Into::into).map_err(|error| error.to_string()),
        ),
    }
}

fn failed(lookup: &Lookup, why: String) -> Found {
    match lookup {
        Lookup::Program(_) => Found::Program(Err(why)),
        Lookup::Run(_) => Found::Run(Err(why)),
        Lookup::File(_) => Found::File(Err(why)),
        Lookup::Entries => Found::Entries(Err(why)),
    }
}
