//! The lines of a blueprint's source that scheduled the steps of a run.

use std::sync::Arc;

use crate::{
    engine::{
        Caller, Engine, EngineError,
        shared::line_counts::{LineActs, LineCounts, Lines},
    },
    protocol::RunId,
    token::Verb,
};

impl Engine {
    /// Returns the lines that scheduled the steps of a run's current history.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, or there is no such run.
    pub async fn lines(&self, caller: &Caller, run: RunId) -> Result<Lines, EngineError> {
        counted(self, caller, run, LineCounts::by_line).await
    }

    /// Returns the lines that scheduled the steps of a run's current history, apart for each kind and
    /// name of steps.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, or there is no such run.
    pub async fn line_acts(&self, caller: &Caller, run: RunId) -> Result<LineActs, EngineError> {
        counted(self, caller, run, LineCounts::by_act).await
    }
}

/// Returns counts of the lines. Only the entries that were added since the last time are read.
async fn counted<T: Send + 'static>(
    engine: &Engine,
    caller: &Caller,
    run: RunId,
    counts: fn(&LineCounts) -> T,
) -> Result<T, EngineError> {
    caller.may(Verb::RunRead, run)?;
    engine.header(run).await?;
    let book = Arc::clone(&engine.inner.places);
    engine.read(move |store| book.look(store, run.num(), |places| counts(places.lines()))).await
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use crate::{
        engine::{
            shared::places::PlaceBook,
            verbs::step_page::tests::{append, done, start, step, store},
        },
        journal::Fact,
        store::{Memory, Reader as _},
    };

    /// Returns the steps of a line, as a refresh of the tab Source reads them, and how many entries were
    /// read for it.
    fn refresh(store: &Memory, book: &PlaceBook) -> (u32, usize) {
        let before = store.entries_read.load(Ordering::Relaxed);
        let lines = book.look(store, 1, |places| places.lines().by_line()).unwrap();
        let steps = lines.get(&("main.lua".to_owned(), 3)).map_or(0, |it| it.steps);
        (steps, store.entries_read.load(Ordering::Relaxed) - before)
    }

    #[test]
    fn a_refresh_of_the_lines_of_a_long_run_reads_the_entries_that_were_added() {
        let recorded = |n| Fact::StepRecorded(step(n), done());
        let (store, _) =
            store(std::iter::once(start(1)).chain((1..=10_000).map(recorded)).collect());
        let book = PlaceBook::default();
        assert_eq!(refresh(&store, &book), (10_000, 10_001), "the first one reads all");
        assert_eq!(refresh(&store, &book), (10_000, 0));
        let mut header = store.header(1).unwrap().unwrap();
        let before = Some(header.cursor);
        append(&store, &mut header, before, vec![recorded(10_001), recorded(10_002)]);
        assert_eq!(refresh(&store, &book), (10_002, 2));
        let before = Some(header.cursor);
        append(&store, &mut header, before, vec![start(10_003), recorded(10_003)]);
        assert_eq!(refresh(&store, &book), (1, 2), "a history that begins anew counts anew");
    }
}
