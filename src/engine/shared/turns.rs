//! The turns of calls whose requests have to reach the shards in an order.
//!
//! A call begins with reads, which take different times, and then sends its request to the shard of a
//! run. Whoever keeps an order gives each call a turn, and begins the next one when that is over: as
//! soon as the request is in the mailbox of the shard, long before the call is answered.

use std::cell::Cell;

use tokio::sync::oneshot;

tokio::task_local! {
    /// The turn of the call that this task is polling.
    static TURN: Turn;
}

/// The turn of a call. It is over when the request of the call was sent, or the call has ended.
pub(crate) struct Turn {
    /// Dropped when the turn is over.
    over: Cell<Option<oneshot::Sender<()>>>,
    /// True if an earlier call of the order has no answer yet.
    is_behind: bool,
}

impl Turn {
    /// Returns a turn, and the receiver that resolves, with an error, when it is over. With
    /// `is_behind`, the request of the call overtakes nothing that waits for the shard.
    pub(crate) fn new(is_behind: bool) -> (Self, oneshot::Receiver<()>) {
        let (over, ends) = oneshot::channel();
        (Self { over: Cell::new(Some(over)), is_behind }, ends)
    }

    /// Runs a call in this turn.
    ///
    /// # Cancel safety
    /// The turn ends with the future.
    pub(crate) async fn run<T>(self, call: impl Future<Output = T>) -> T {
        TURN.scope(self, call).await
    }
}

/// Returns true if the current call is not to overtake what waits for the shard.
pub(super) fn is_behind() -> bool {
    TURN.try_with(|turn| turn.is_behind).unwrap_or_default()
}

/// Ends the turn of the current call, if it has one.
pub(super) fn end() {
    // A call without a turn has nothing to end.
    let _ = TURN.try_with(|turn| drop(turn.over.take()));
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn a_turn_is_over_once_the_request_was_sent_or_the_call_has_ended() {
        let (turn, mut ends) = Turn::new(true);
        let (answer, answered) = oneshot::channel::<u32>();
        let mut call = Box::pin(turn.run(async {
            assert!(is_behind());
            tokio::task::yield_now().await;
            end();
            answered.await.unwrap()
        }));
        assert!((&mut call).now_or_never().is_none());
        assert!((&mut ends).now_or_never().is_none(), "its request was not sent");
        assert!((&mut call).now_or_never().is_none());
        assert!((&mut ends).now_or_never().is_some(), "it waits for the answer only");
        answer.send(7).unwrap();
        assert_eq!(call.await, 7);

        let (turn, ends) = Turn::new(false);
        turn.run(async { assert!(!is_behind()) }).await;
        assert!(ends.await.is_err(), "a call that sends nothing holds back nobody");
        assert!(!is_behind(), "a call without a turn");
        end();
    }
}
