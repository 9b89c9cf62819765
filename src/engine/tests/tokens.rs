//! The records of tokens, and what a revocation reaches.

use std::collections::BTreeSet;

use super::*;
use crate::token::Quotas;

fn caller(bench: &Bench, token: &Minted) -> Caller {
    match bench.engine.authenticate(&token.token).unwrap() {
        Bearer::Caller(caller) => caller,
        Bearer::Holder(_) => panic!("a token of the API is for no attempt"),
    }
}

/// Mints a token that lasts an hour.
async fn mint(bench: &Bench, by: &Caller, quotas: Quotas) -> Minted {
    let mint = MintToken {
        role: Role::Operator,
        verbs: None,
        extra_verbs: Vec::new(),
        scopes: None,
        ttl_ms: 3_600_000,
        name: None,
        quotas,
    };
    bench.engine.tokens().mint(by, mint, None).await.unwrap()
}

fn refusal(bench: &Bench, token: &Minted) -> String {
    bench.engine.authenticate(&token.token).unwrap_err().code().to_string()
}

#[tokio::test]
async fn a_revocation_reaches_what_was_made_while_it_was_under_way() {
    let bench = Bench::new();
    let top = mint(&bench, &bench.admin(), Quotas::default()).await;
    let mid = mint(&bench, &caller(&bench, &top), Quotas::default()).await;
    let low = mint(&bench, &caller(&bench, &mid), Quotas::default()).await;
    // As if both were stored after the revocation had read which tokens there are.
    let mut doomed = BTreeSet::from([top.jti.clone()]);
    bench.engine.tokens().revoke_late(top.jti, &mut doomed, 5).await.unwrap();
    assert_eq!([refusal(&bench, &mid), refusal(&bench, &low)], ["token_revoked"; 2]);
    let stored = bench.store.revoked().unwrap();
    assert!(stored.contains(&mid.jti) && stored.contains(&low.jti), "also after a restart");
}

#[tokio::test]
async fn the_record_of_an_expired_token_goes_after_a_day_and_its_revocation_stays() {
    let bench = Bench::new();
    let start_ms = bench.clock.now_ms();
    let quotas = Quotas { open_runs: Some(1), ..Quotas::default() };
    let top = mint(&bench, &bench.admin(), quotas).await;
    let low = mint(&bench, &caller(&bench, &top), Quotas::default()).await;
    bench.engine.tokens().revoke(&bench.admin(), &low.jti).await.unwrap();
    bench.clock.advance(Duration::from_secs(86_400));
    bench.engine.tokens().forget_tokens().await.unwrap();
    assert_eq!(bench.store.tokens().unwrap().len(), 2, "a clock may be set back");
    bench.clock.advance(Duration::from_secs(3_601));
    bench.engine.tokens().forget_tokens().await.unwrap();
    assert!(bench.store.tokens().unwrap().is_empty());
    assert!(!bench.engine.shared().accounts.are_kept(), "nothing counts against it any more");
    let bench = bench.restart().await;
    bench.clock.set(start_ms);
    assert_eq!(refusal(&bench, &low), "token_revoked");
}

#[tokio::test]
async fn a_token_whose_record_is_gone_is_revoked_by_an_admin_all_the_same() {
    let bench = Bench::new();
    let start_ms = bench.clock.now_ms();
    let (one, other) = (
        mint(&bench, &bench.admin(), Quotas::default()).await,
        mint(&bench, &bench.admin(), Quotas::default()).await,
    );
    bench.clock.advance(Duration::from_secs(90_001));
    bench.engine.tokens().forget_tokens().await.unwrap();
    assert!(bench.store.tokens().unwrap().is_empty());
    // The clock was ahead: the tokens are good again.
    bench.clock.set(start_ms);
    let grant = Grant::new(Role::Admin, Scopes(Vec::new())).into();
    let narrow = Caller { grant, ..caller(&bench, &other) };
    let refused = bench.engine.tokens().revoke(&narrow, &one.jti).await.unwrap_err();
    assert_eq!(refused.code().to_string(), "not_found");
    assert!(!bench.store.revoked().unwrap().contains(&one.jti));
    bench.engine.tokens().revoke(&bench.admin(), &one.jti).await.unwrap();
    assert_eq!(refusal(&bench, &one), "token_revoked");
    assert!(bench.store.revoked().unwrap().contains(&one.jti), "also after a restart");
    let nobody = bench.engine.tokens().revoke(&bench.admin(), "nobody").await.unwrap_err();
    assert_eq!(nobody.code().to_string(), "not_found");
}
