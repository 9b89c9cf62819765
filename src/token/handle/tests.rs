use proptest::prelude::*;

use super::*;

const NOW: u64 = 1_800_000_000;

fn key() -> HandleKey {
    HandleKey::new([7; 32], 42)
}

fn attempt() -> AttemptId {
    AttemptId { run: 123_456, step: 17, attempt: 2, epoch: 3, nonce: 0x0123_4567_89ab_cdef }
}

fn verify(text: &str, key: &HandleKey) -> Result<AttemptId, HandleError> {
    Handle::parse(text)?.verify(key, NOW, |_| None)
}

#[test]
fn the_text_of_a_handle_never_changes() {
    let text = Handle::mint(&key(), &attempt()).expose();
    assert_eq!(text, "wh_ydcaoeicapx43k4jm5csgand2sdeiyps2vo32yqo3qszsrjw");
    assert_eq!(verify(&text, &key()), Ok(attempt()));
}

#[test]
fn a_handle_of_the_first_form_is_good_for_a_run_without_a_nonce_in_the_epoch_it_was_made_in() {
    let text = "wh_ydcaoeicpv4nt2bjbjap6nf4epxoq63744";
    let handle = Handle::parse(text).unwrap();
    assert_eq!(handle.expose(), text);
    let in_epoch = |epoch| handle.verify(&key(), NOW, |run| (run == 123_456).then_some(epoch));
    assert_eq!(in_epoch(3), Ok(AttemptId { nonce: 0, ..attempt() }));
    assert_eq!(in_epoch(4), Err(HandleError::Forged));
    assert_eq!(verify(text, &key()), Err(HandleError::Forged));
}

#[test]
fn it_is_about_fifty_characters() {
    let length = |of: &AttemptId| Handle::mint(&key(), of).expose().len();
    assert_eq!(length(&AttemptId { run: 1, step: 1, attempt: 1, epoch: 1, nonce: 1 }), 48);
    let many = AttemptId { run: (1 << 28) - 1, step: (1 << 14) - 1, ..attempt() };
    assert_eq!(length(&many), 55);
    let most = AttemptId { run: (1 << 36) - 1, step: (1 << 20) - 1, ..attempt() };
    assert_eq!(length(&most), 59);
}

#[test]
fn a_changed_character_is_refused_wherever_it_stands() {
    let text = Handle::mint(&key(), &attempt()).expose();
    for place in 0..text.len() {
        for with in "abcdefghijklmnopqrstuvwxyz234567_AZ019-".chars() {
            let mut changed = text.clone();
            changed.replace_range(place..=place, with.encode_utf8(&mut [0; 4]));
            assert_eq!(verify(&changed, &key()).is_ok(), changed == text, "{changed}");
        }
    }
}

#[test]
fn a_cut_or_lengthened_handle_is_refused() {
    let text = Handle::mint(&key(), &attempt()).expose();
    for end in 0..text.len() {
        assert!(verify(&text[..end], &key()).is_err());
    }
    for more in ["a", " ", "\n", "aaaaaaaa"] {
        assert_eq!(Handle::parse(&format!("{text}{more}")), Err(HandleError::Malformed));
    }
    assert_eq!(
        Handle::parse(&format!("wh_{}", "a".repeat(1 << 20))).unwrap_err().code(),
        "handle_malformed"
    );
}

#[test]
fn it_is_good_in_one_incarnation_under_one_key() {
    let text = Handle::mint(&key(), &attempt()).expose();
    assert_eq!(verify(&text, &HandleKey::new([7; 32], 43)), Err(HandleError::Forged));
    assert_eq!(verify(&text, &HandleKey::new([8; 32], 42)), Err(HandleError::Forged));
}

#[test]
fn a_retired_secret_verifies_until_its_grace_is_over_and_not_at_all_without_one() {
    let handle = Handle::mint(&key(), &attempt());
    let later = key().rotated([8; 32], NOW, 100);
    let at = |key: &HandleKey, now_s| handle.verify(key, now_s, |_| None).is_ok();
    assert!(at(&later, NOW + 99));
    assert!(!at(&later, NOW + 100));
    assert!(!at(&later.rotated([9; 32], NOW, 0), NOW));
    let third = later.rotated([9; 32], NOW + 50, 100);
    assert!(at(&third, NOW + 99) && !at(&third, NOW + 100));
    let shared = key();
    let other = shared.clone();
    shared.become_like(&later);
    assert_eq!((other.current(), other.retired()), (later.current(), later.retired()));
}

#[test]
fn debug_never_prints_what_opens_the_task() {
    let debug = format!("{:?} {:?}", Handle::mint(&key(), &attempt()), key());
    assert_eq!(
        debug,
        "Handle { run: 123456, step: 17, attempt: 2, .. } HandleKey { incarnation: 42, .. }"
    );
}

proptest! {
    #[test]
    fn every_handle_is_read_back(run: u64, step: u32, attempt: u32, epoch: u32, nonce: u64) {
        let of = AttemptId { run, step, attempt, epoch, nonce };
        let handle = Handle::mint(&key(), &of);
        prop_assert_eq!(Handle::parse(&handle.expose()), Ok(handle));
        prop_assert_eq!(handle.verify(&key(), NOW, |_| None), Ok(of));
    }

    #[test]
    fn no_text_makes_parsing_panic(text in "(wh_)?[a-z2-7]{0,110}|.{0,40}") {
        if let Ok(handle) = Handle::parse(&text) {
            prop_assert_eq!(handle.expose(), text);
        }
    }
}
