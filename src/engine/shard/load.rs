//! Taking a run up again: its chain from the journal, its flow by replay.
//!
//! A replay that differs, or a limit that is hit while replaying, lets the run rest with the reason,
//! and loses nothing.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use crate::{
    engine::{
        run::{reply::Asked, resident::Run, values::grant_of},
        shard::owner::Shard,
        shared::{
            message::{ControlAsk, Internal, RunMsg},
            shards::Shared,
        },
        turn::{drive, facts::Turn, replay, retell::Stop, signals, take_up, weight},
    },
    fault,
    journal::{Chain, Entry},
    lua::Program,
    store::{Header, RunStatus, StoreError},
};

impl Shard {
    /// Reads a run into memory, if there is one; an ended one only for a query.
    pub(crate) fn load(
        &mut self,
        num: u64,
        message: &RunMsg,
        broken: bool,
    ) -> Result<Option<Box<Run>>, StoreError> {
        let Some(header) = self.shared.store.header(num)? else { return Ok(None) };
        let for_query = message.is_query();
        if header.status.is_ended()
            && matches!(
                message,
                RunMsg::Control(Asked { ask: ControlAsk::TakeUp, .. })
                    | RunMsg::Internal(
                        Internal::Wake
                            | Internal::Subscribe(..)
                            | Internal::Wait(_)
                            | Internal::Progress { .. }
                            | Internal::Tell { .. }
                            | Internal::Rest { .. }
                    )
            )
        {
            return Ok(None);
        }
        fault::point("engine.load");
        check_history(&self.shared, &header)?;
        let entries = self.shared.store.entries(num, 0)?;
        let mut chain = Chain::lean();
        for entry in &entries {
            chain.apply(entry).map_err(|error| StoreError::Damaged {
                what: format!("run {num}"),
                reason: error.to_string(),
            })?;
        }
        let Some((started, _)) = chain.started() else {
            return Err(StoreError::Damaged {
                what: format!("run {num}"),
                reason: "it has no start".into(),
            });
        };
        let grant = Arc::new(grant_of(&started.grant));
        let program = self.shared.programs.by_hash(&started.hash);
        self.lives += 1;
        let cursor = header.cursor;
        let mut run = Box::new(Run::new(self.lives, header, grant, self.account()));
        run.cursor = Some(cursor);
        run.chain = chain;
        run.program = program.as_ref().ok().map(Arc::clone);
        run.broken = broken;
        run.charged = self.shared.accounts.take_up(num, &*self.shared.store, run.chain.spent());
        if run.is_ended() && !for_query {
            return Ok(Some(run));
        }
        if !run.is_ended() {
            self.count_in(num);
        }
        // It was quarantined, by its header alone.
        run.restate = run.header.status == RunStatus::Paused && run.chain.paused().is_none();
        run.account.read(run.chain.history_bytes());
        weight::keep_weight(&mut run);
        match program {
            Err(error) => {
                take_up::pause_with(
                    &mut self.on(&mut run),
                    &entries,
                    format!("its blueprint cannot be loaded: {error}"),
                );
            }
            Ok(_) if run.chain.paused().is_some() && !message.is_cancel() => {
                take_up::take_up_open(&mut self.on(&mut run), &entries, HashMap::new());
            }
            Ok(program) => replay_into(&mut self.on(&mut run), &program, &entries),
        }
        Ok(Some(run))
    }
}

/// Refuses a history that is too large to be read, and would end the host.
fn check_history(shared: &Arc<Shared>, header: &Header) -> Result<(), StoreError> {
    let most = shared.memory.limit() as u64 / 2;
    if header.bytes <= most {
        return Ok(());
    }
    match shared.store.history_bytes(header.num)? {
        bytes if bytes > most => Err(StoreError::TooLarge { run: header.num, bytes, most }),
        _ => Ok(()),
    }
}

fn replay_into(turn: &mut Turn<'_>, program: &Arc<Program>, entries: &[Entry]) {
    let mut outcome = replay::replay(turn, program, entries);
    if let Err(Stop::Broken(_)) = outcome {
        // A VM without room gives the run one of its own: once more.
        outcome = replay::replay(turn, program, entries);
    }
    match outcome {
        Err(Stop::Diverged(why)) => take_up::pause_with(turn, entries, why.message),
        Err(Stop::Broken(why)) => {
            take_up::pause_with(turn, entries, format!("its VM has no room: {why}"));
        }
        Ok(replay) if turn.run.is_ended() => turn.run.flow = Some(replay.flow),
        Ok(replay) => {
            fault::point("engine.replayed");
            turn.run.flow = Some(replay.flow);
            take_up::take_up_open(turn, entries, replay.ops);
            weight::keep_weight(turn.run);
            if !drive::commands(turn, replay.fresh) {
                return;
            }
            drive::next(turn, replay.next);
            let names: BTreeSet<String> =
                turn.run.chain.signals().into_iter().map(|(name, _)| name).collect();
            for name in names {
                signals::match_signal(turn, &name);
            }
        }
    }
}
