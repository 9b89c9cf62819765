//! Reads the view of a run from its current history. A long history is read in pieces, so that the
//! memory that a read needs does not grow with it.

use crate::{
    engine::{CopiedView, RunView, SeatView, view::spent},
    journal::{Chain, Decision, Entry, Fact, Outcome},
    session::EVERY,
    store::{Header, Store, StoreError},
};

/// The number of entries of a piece.
const PIECE: u32 = 1_024;

/// Adds the facts of a run's current history to its view, and returns the view with the number of
/// steps of this history.
pub(super) fn with_history(
    store: &dyn Store,
    header: &Header,
    view: RunView,
) -> Result<(RunView, u32), StoreError> {
    let mut fold = Fold { view, chain: Chain::lean(), is_whole: true };
    let run = header.num;
    let start = if header.seq > PIECE { store.history_start(run)? } else { 1 };
    // A run whose history has just begun anew is read as a short one is: all of it at once.
    if header.seq <= PIECE || start > header.seq {
        fold.take(store.entries(run, 0)?);
        return Ok(fold.end());
    }
    let mut at = start - 1;
    while at < header.seq {
        // To the next multiple, where the store finds entries without a walk.
        let upto = (at / PIECE + 1).saturating_mul(PIECE).min(header.seq);
        fold.take(store.window(run, at, upto)?);
        at = upto;
    }
    Ok(fold.end())
}

/// A view, and the chain whose totals it gets.
struct Fold {
    view: RunView,
    chain: Chain,
    /// True until an entry does not follow the one before.
    is_whole: bool,
}

impl Fold {
    fn take(&mut self, entries: Vec<Entry>) {
        let follows = |entry: &Entry| self.chain.apply(entry).is_ok();
        self.is_whole = self.is_whole && entries.iter().all(follows);
        self.chain.drop_ended();
        for entry in entries {
            self.show(entry.fact);
        }
    }

    fn show(&mut self, fact: Fact) {
        let view = &mut self.view;
        match fact {
            Fact::RunStarted(started) => {
                view.input = Some(started.input);
                view.trigger = Some(started.trigger).filter(|trigger| !trigger.is_null());
                view.delegate = started.delegate;
            }
            Fact::Decided(Decision::Seat { operator, session, .. }) if operator == EVERY => {
                view.delegate = Some(session);
            }
            Fact::Decided(Decision::Seat { operator, session, epoch, .. }) => {
                view.seats.insert(operator, SeatView { session, epoch });
            }
            Fact::RunEnded(Outcome::Completed(output)) => view.output = Some(output),
            Fact::Decided(Decision::Copied { from, step, .. }) => {
                view.copied_from = Some(CopiedView { run: from, step });
            }
            _ => {}
        }
    }

    fn end(mut self) -> (RunView, u32) {
        if self.is_whole {
            self.view.usage = spent::view(self.chain.spent());
        }
        (self.view, self.chain.counts().0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        engine::{
            verbs::step_page::tests::{done, start, step, store},
            view,
        },
        journal::{Scheduled, Usage},
        protocol::StepKind,
        store::Reader as _,
    };

    /// Checks that a view is the same as one of which the history was folded at once.
    fn check(facts: Vec<Fact>) -> (RunView, u32) {
        let (store, id) = store(facts);
        let header = store.header(id.num()).unwrap().unwrap();
        let bare = view::run(&header);
        let found = with_history(&store, &header, bare.clone()).unwrap();
        let mut fold = Fold { view: bare, chain: Chain::lean(), is_whole: true };
        for entry in store.entries(id.num(), 0).unwrap() {
            fold.is_whole &= fold.chain.apply(&entry).is_ok();
            fold.show(entry.fact);
        }
        let whole = fold.end();
        assert_eq!(format!("{found:?}"), format!("{whole:?}"));
        found
    }

    fn ended(step: u32, cost: Option<&str>) -> Fact {
        let usage = cost.map(|cost| Usage {
            input_tokens: Some(2),
            cost: Some(cost.to_owned()),
            ..Usage::default()
        });
        Fact::StepEnded { step, attempt: 1, epoch: 1, outcome: done(), effects: None, usage }
    }

    #[test]
    fn a_view_is_the_same_whether_its_history_is_read_at_once_or_in_pieces() {
        let recorded = |n| Fact::StepRecorded(step(n), done());
        let over = || Fact::RunEnded(done());
        let of = |facts: Vec<Fact>| check([vec![start(1)], facts, vec![over()]].concat());
        for steps in [0, 3, 1_022, 1_023, 3_000] {
            let (view, found) = of((1..=steps).map(recorded).collect());
            assert!(view.input.is_some() && view.output.is_some(), "{steps}");
            assert_eq!(found, steps);
        }
        // Calls of a model, charged to the task that encloses them, which stays open meanwhile.
        let call = |n| Scheduled { kind: StepKind::ModelCall, parent: Some(2), ..*step(n) };
        let calls = (3..=1_500)
            .flat_map(|n| [Fact::StepScheduled(Box::new(call(n))), ended(n, Some("0.01"))]);
        let open = [recorded(1), Fact::StepScheduled(step(2))].into_iter();
        let (view, found) = of(open.chain(calls).chain([ended(2, None)]).collect());
        assert_eq!(found, 1_500);
        let usage = view.usage.unwrap();
        assert_eq!(usage.total.cost.as_deref(), Some("14.98"));
        assert_eq!(usage.agents["e"].input_tokens, Some(2 * 1_498));
        // All are open before the first of them ends, and a few never end.
        let wide = (1..=2_000).map(|n| Fact::StepScheduled(step(n)));
        of(wide.chain((1..1_990).rev().map(|n| ended(n, None))).collect());
        // The history began anew.
        let before = std::iter::once(start(1)).chain((1..=1_400).map(recorded));
        let anew = std::iter::once(start(1_401)).chain((1_401..=4_000).map(recorded));
        assert_eq!(check(before.chain(anew).collect()).1, 2_600);
    }

    #[test]
    fn steps_that_have_ended_are_not_held_while_a_long_history_is_read() {
        let mut fold =
            Fold { view: view::run(&Header::fresh(1, 5)), chain: Chain::lean(), is_whole: true };
        fold.take(vec![Entry::new(1, 9, start(1))]);
        for seq in 2..=5_000 {
            fold.take(vec![Entry::new(seq, 9, Fact::StepRecorded(step(seq - 1), done()))]);
            assert!(fold.chain.steps().is_empty(), "after entry {seq}");
        }
        assert!(fold.is_whole);
        assert_eq!(fold.end().1, 4_999);
    }
}
