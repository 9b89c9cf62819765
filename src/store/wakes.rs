//! Wake-ups of other threads that are put off.
//!
//! Waking a thread costs more than leaving it a message. Where one thread leaves many messages for a
//! few others, it wakes each of them once, after the last message: the writer after the acks of a
//! group, a request about many tasks after it has asked all of their runs. A thread that is awake
//! finds a message at once.

use std::{
    cell::{Cell, RefCell},
    sync::Arc,
};

use tokio::sync::Notify;

thread_local! {
    static PUTS_OFF: Cell<bool> = const { Cell::new(false) };
    static PUT_OFF: RefCell<Vec<Arc<Notify>>> = const { RefCell::new(Vec::new()) };
}

/// Wakes the thread that waits for `came`; within [`wake_once`] when that ends.
pub(crate) fn wake(came: &Arc<Notify>) {
    if !PUTS_OFF.get() {
        return came.notify_one();
    }
    PUT_OFF.with_borrow_mut(|put_off| {
        if !put_off.iter().any(|it| Arc::ptr_eq(it, came)) {
            put_off.push(Arc::clone(came));
        }
    });
}

/// Calls `send`, and then wakes each thread that it left messages for, also if it panics. It must
/// not wait for any of them.
pub(crate) fn wake_once<T>(send: impl FnOnce() -> T) -> T {
    if PUTS_OFF.replace(true) {
        return send();
    }
    let _last = WakeAll;
    send()
}

struct WakeAll;

impl Drop for WakeAll {
    fn drop(&mut self) {
        PUTS_OFF.set(false);
        PUT_OFF.take().iter().for_each(|came| came.notify_one());
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use futures::FutureExt as _;

    use super::*;

    fn is_woken(came: &Notify) -> bool {
        came.notified().now_or_never().is_some()
    }

    #[test]
    fn a_wake_up_is_put_off_until_everything_is_sent_and_not_lost_by_a_panic() {
        let (one, other) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        wake(&one);
        assert!(is_woken(&one));
        let sent = wake_once(|| {
            wake(&one);
            wake_once(|| wake(&other));
            wake(&one);
            is_woken(&one) || is_woken(&other)
        });
        assert!(!sent && is_woken(&one) && is_woken(&other));
        let panics = AssertUnwindSafe(|| {
            wake_once(|| {
                wake(&one);
                panic!("a message cannot be sent")
            });
        });
        assert!(catch_unwind(panics).is_err() && is_woken(&one));
        wake(&one);
        assert!(is_woken(&one));
    }
}
