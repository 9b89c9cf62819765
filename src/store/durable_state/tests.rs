use super::*;
use crate::{protocol::DurationMs, store::Memory};

fn state(transients: usize, transient_bytes: usize) -> (DurableState, Clock) {
    let clock = Clock::manual(1_000_000);
    let tasks = Tasks::new(tokio::runtime::Handle::current());
    let limits = StateLimits { transients, transient_bytes, ..StateLimits::default() };
    (DurableState::new(Arc::new(Memory::new()), clock.clone(), tasks, limits), clock)
}

fn set(
    state: &DurableState,
    (scope, key): (&str, &str),
    value: &str,
    ttl_ms: Option<u64>,
) -> Result<(), StoreError> {
    let lifetime = Some(Lifetime::Transient);
    let ttl = ttl_ms.map(DurationMs::from_millis);
    let hints = StoreOptions { lifetime, ttl, ..StoreOptions::default() };
    state.put_transient(scope, key, value.to_owned(), &hints)
}

/// Returns the keys, their bytes, and how many of them expire.
fn held(state: &DurableState) -> (usize, usize, usize) {
    let transient = state.transient.lock();
    (transient.len(), transient.bytes(), transient.expiring())
}

#[tokio::test]
async fn what_has_expired_frees_its_room() {
    let (state, clock) = state(3, 1_000);
    for (key, ttl_ms) in [("a", Some(1_000)), ("b", Some(2_000)), ("c", None)] {
        set(&state, ("global", key), "1", ttl_ms).unwrap();
    }
    let refused = set(&state, ("global", "d"), "1", None).unwrap_err().to_string();
    assert!(refused.contains("room for 3 transient values"), "{refused}");
    set(&state, ("global", "c"), "2", None).unwrap();
    assert_eq!(state.transient_value("global", "c").unwrap().revision, 2, "it has its room");

    clock.advance(Duration::from_millis(999));
    assert!(set(&state, ("global", "d"), "1", None).is_err(), "it has not expired yet");
    clock.advance(Duration::from_millis(1));
    set(&state, ("global", "d"), "1", None).unwrap();
    assert!(set(&state, ("global", "e"), "1", None).is_err(), "one has expired");
    clock.advance(Duration::from_secs(9));
    set(&state, ("global", "b"), "1", Some(5)).unwrap();
    assert_eq!(state.transient_value("global", "b").unwrap().revision, 1, "it begins anew");
    assert_eq!(held(&state), (3, 3 * 8, 1));
    assert_eq!(state.transient_keys("global", ""), ["b", "c", "d"]);
}

#[tokio::test]
async fn a_new_time_takes_the_place_of_the_last_one() {
    let (state, clock) = state(2, 1_000);
    set(&state, ("global", "a"), "1", Some(10)).unwrap();
    set(&state, ("global", "a"), "2", None).unwrap();
    set(&state, ("global", "b"), "1", Some(10)).unwrap();
    set(&state, ("global", "b"), "2", Some(30)).unwrap();
    state.drop_transient("global", "missing");
    clock.advance(Duration::from_millis(20));
    assert!(set(&state, ("global", "c"), "1", None).is_err(), "neither has expired");
    assert_eq!(held(&state), (2, 2 * 8, 1));
    state.drop_transient("global", "b");
    assert_eq!(held(&state), (1, 8, 0));
    StateStore::clear_transient(&state);
    assert_eq!(held(&state), (0, 0, 0));
}

#[tokio::test]
async fn the_bytes_of_keys_count_and_are_given_back() {
    let (state, clock) = state(1_000, 100);
    let long = "k".repeat(90);
    for _ in 0..5 {
        set(&state, ("global", &long), "1", Some(10)).unwrap();
        let refused = set(&state, ("global", "other"), "1", None).unwrap_err().to_string();
        assert!(refused.contains("of 100 bytes in all"), "{refused}");
        clock.advance(Duration::from_millis(10));
    }
    set(&state, ("global", "other"), "1", None).unwrap();
    assert_eq!(held(&state), (1, 12, 0));
}

#[tokio::test]
async fn a_run_takes_its_transient_values_with_it() {
    let (state, _) = state(1_000, 10_000);
    let [gone, kept] = [5, 6].map(|num| RunId::new(num, 1_000_000));
    let of_run = |run: RunId| {
        [format!("run:{run}"), format!("operator:{run}:coder"), format!("operator:{run}:")]
    };
    let others = ["global".to_owned(), format!("custom:{gone}"), format!("session:{gone}")];
    let others: Vec<String> = others.into_iter().chain(of_run(kept)).collect();
    for scope in of_run(gone).iter().chain(&others) {
        for key in ["", "a", "b"] {
            set(&state, (scope, key), "1", Some(1_000)).unwrap();
        }
    }
    state.drop_run(gone);
    for scope in of_run(gone) {
        assert!(state.transient_keys(&scope, "").is_empty(), "{scope}");
    }
    for scope in &others {
        assert_eq!(state.transient_keys(scope, ""), ["", "a", "b"], "{scope}");
    }
    let bytes: usize = others.iter().map(|scope| 3 * (scope.len() + 1) + 2).sum();
    assert_eq!(held(&state), (18, bytes, 18));
    state.drop_run(gone);
    assert_eq!(held(&state), (18, bytes, 18));
}
