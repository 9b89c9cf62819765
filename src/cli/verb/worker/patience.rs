//! Asking again while the daemon is away or busy.

use std::time::Duration;

use anyhow::Result;
use tokio::time::sleep;

use crate::cli::{
    context::Context,
    exit::{Exit, Stop},
};

/// The bounds of the pause after something went wrong; it doubles in between.
pub const PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// Asks again, with growing pauses, as long as the daemon cannot be reached or is too busy.
pub async fn patiently<T>(cx: &Context, what: &str, ask: impl AsyncFn() -> Result<T>) -> Result<T> {
    let mut pause = PAUSE.0;
    loop {
        match ask().await {
            Err(error) if may_pass(&error) => {
                pause = pause_after(cx, &format!("{what}: {error:#}"), pause, &error).await;
            }
            settled => return settled,
        }
    }
}

/// Returns the pause that the daemon asked for with an error, if it did.
pub fn asked(error: &anyhow::Error) -> Option<Duration> {
    error.downcast_ref::<Stop>().and_then(|stop| stop.retry_after)
}

/// Says what went wrong, waits for a pause, or longer if the daemon asked for that, and returns the
/// next pause.
pub async fn pause_after(
    cx: &Context,
    why: &str,
    pause: Duration,
    error: &anyhow::Error,
) -> Duration {
    let wait = pause.max(asked(error).unwrap_or_default()).min(PAUSE.1);
    cx.terminal.say(&format!("{why}; trying again in {wait:?}"));
    sleep(wait).await;
    (pause * 2).min(PAUSE.1)
}

/// Returns true if an error may go away by itself: nobody answers, too much to do, an answer broke
/// off.
pub fn may_pass(error: &anyhow::Error) -> bool {
    match error.downcast_ref::<Stop>() {
        // The second code is that of a 413 from a proxy.
        Some(stop) if matches!(stop.code.as_deref(), Some("too_large" | "http_413")) => false,
        Some(stop) => matches!(stop.exit, Exit::Unavailable | Exit::Limit | Exit::TimedOut),
        None => true,
    }
}
