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
                let wait = at_least_asked(pause, &error);
                cx.terminal.say(&format!("{what}: {error:#}; trying again in {wait:?}"));
                sleep(wait).await;
                pause = (pause * 2).min(PAUSE.1);
            }
            settled => return settled,
        }
    }
}

/// Returns the pause that the daemon asked for with an error, if it did.
pub fn asked(error: &anyhow::Error) -> Option<Duration> {
    error.downcast_ref::<Stop>().and_then(|stop| stop.retry_after)
}

/// Returns a pause after an error: as long as the daemon asked for, if that is longer.
pub fn at_least_asked(pause: Duration, error: &anyhow::Error) -> Duration {
    pause.max(asked(error).unwrap_or_default()).min(PAUSE.1)
}

/// Returns true if an error may go away by itself: nobody answers, too much to do, an answer broke
/// off.
pub fn may_pass(error: &anyhow::Error) -> bool {
    match error.downcast_ref::<Stop>() {
        // Of the daemon, or of a proxy before it.
        Some(stop) if matches!(stop.code.as_deref(), Some("too_large" | "http_413")) => false,
        Some(stop) => matches!(stop.exit, Exit::Unavailable | Exit::Limit | Exit::TimedOut),
        None => true,
    }
}
