use super::*;
use crate::{
    protocol::failure::kind,
    token::{Grant, Role, Scopes, TokenKind},
};

fn claims(jti: &str, parent: Option<&str>, quotas: Quotas) -> Claims {
    let grant = Grant::new(Role::Operator, Scopes::all());
    let mut claims = Claims::new(TokenKind::Api, "ann", jti, grant, 0, 100);
    claims.parent = parent.map(str::to_owned);
    claims.quotas = Some(quotas).filter(|quotas| !quotas.is_open());
    claims
}

fn runs(most: u64) -> Quotas {
    Quotas { open_runs: Some(most), ..Quotas::default() }
}

/// Returns the accounts of a line of tokens: `top` with quotas, `mid` below it without, `low` below
/// that with quotas.
fn family(top: Quotas, low: Quotas) -> Accounts {
    let accounts = Accounts::default();
    accounts.add(&claims("root", None, Quotas::default()), 0);
    accounts.add(&claims("top", Some("root"), top), 0);
    accounts.add(&claims("mid", Some("top"), Quotas::default()), 0);
    accounts.add(&claims("low", Some("mid"), low), 0);
    accounts
}

fn spent(tokens: u64, cost: &str) -> Spent {
    let mut spent = Spent::default();
    let cost = Some(cost.to_owned());
    let usage = crate::journal::Usage { input_tokens: Some(tokens), cost, ..Default::default() };
    spent.add(Some("a"), Some(&usage), true);
    // The usage of a child run is its own.
    spent.add(None, Some(&usage), true);
    spent
}

fn refused(accounts: &Accounts, jti: &str, run: u64) -> (String, &'static str, Option<u64>) {
    let exceeded = accounts.admit(jti, run, 0).unwrap_err();
    (exceeded.token, exceeded.quota.as_str(), exceeded.retry_after_s)
}

#[test]
fn a_run_counts_against_its_token_and_all_before_it() {
    let accounts = family(runs(3), runs(2));
    assert_eq!(accounts.admit("root", 1, 0), Ok(false), "nothing counts it");
    assert_eq!(accounts.admit("low", 2, 0), Ok(true));
    assert_eq!(accounts.admit("low", 2, 0), Ok(true), "it was counted");
    assert_eq!(accounts.admit("low", 3, 0), Ok(true));
    assert_eq!(refused(&accounts, "low", 4), ("low".to_owned(), "open_runs", Some(5)));
    assert_eq!(accounts.admit("mid", 5, 0), Ok(true));
    for (token, run) in [("mid", 6), ("top", 7)] {
        assert_eq!(refused(&accounts, token, run), ("top".to_owned(), "open_runs", Some(5)));
    }
    assert_eq!(accounts.used("top").unwrap().open_runs, 3);
    assert_eq!(accounts.used("mid"), None, "it has no quota of its own");
    accounts.ended(2);
    accounts.never(3);
    accounts.never(3);
    assert_eq!(accounts.used("low").unwrap().open_runs, 0);
    assert_eq!(accounts.used("top").unwrap().open_runs, 1);
    assert_eq!(accounts.of(5).as_deref(), Some("mid"));
    assert_eq!(accounts.of(2), None);
}

#[test]
fn starts_come_back_with_time_and_say_when() {
    let rate = |rate| Quotas { starts_per_minute: Some(rate), ..Quotas::default() };
    let accounts = family(rate(6), Quotas::default());
    for run in 0..6 {
        assert_eq!(accounts.admit("low", run, 1_000), Ok(true));
        accounts.ended(run);
    }
    let exceeded = accounts.admit("top", 6, 1_000).unwrap_err();
    assert_eq!((exceeded.quota, exceeded.retry_after_s), (Quota::StartsPerMinute, Some(10)));
    let exceeded = accounts.admit("top", 6, 5_500).unwrap_err();
    assert_eq!(exceeded.retry_after_s, Some(6));
    // A clock that was set back adds and removes nothing.
    assert!(accounts.admit("top", 6, 0).is_err());
    assert_eq!(accounts.admit("top", 6, 5_500), Ok(true));
    assert!(accounts.admit("top", 7, 5_500).is_err());
    let never = family(rate(0), Quotas::default());
    let exceeded = never.admit("top", 1, u64::MAX).unwrap_err();
    assert_eq!((exceeded.quota, exceeded.retry_after_s), (Quota::StartsPerMinute, None));
}

#[test]
fn what_a_run_uses_is_charged_once_and_stays_used() {
    let top = Quotas {
        stored_bytes: Some(1_000),
        tokens: Some(500),
        usd: Some(Decimal::new(5, 2)),
        ..Quotas::default()
    };
    let accounts = family(top, Quotas::default());
    accounts.admit("low", 1, 0).unwrap();
    let row = accounts.charge(1, &spent(100, "0.01"), 400).unwrap();
    let first =
        ChargeRow { run: 1, jti: "low".into(), bytes: 400, tokens: 100, nano_usd: 10_000_000 };
    assert_eq!(row, first);
    assert_eq!(accounts.charge(1, &spent(100, "0.01"), 0), None, "nothing is new");
    let row = accounts.charge(1, &spent(150, "0.02"), 100).unwrap();
    assert_eq!((row.bytes, row.tokens, row.nano_usd), (500, 150, 20_000_000));
    assert_eq!(
        (accounts.over_budget(1, &spent(150, "0.02")), accounts.over_bytes(1)),
        (None, None)
    );
    accounts.charge(1, &spent(150, "0.05"), 500).unwrap();
    let (budget, bytes) =
        (accounts.over_budget(1, &spent(150, "0.05")).unwrap(), accounts.over_bytes(1).unwrap());
    assert_eq!(
        (budget.quota, budget.used.as_str(), budget.allowed.as_str()),
        (Quota::Usd, "0.05", "0.05")
    );
    assert_eq!((bytes.quota, bytes.used.as_str()), (Quota::StoredBytes, "1000"));
    assert_eq!(budget.failure().kind, kind::BUDGET);
    assert_eq!(bytes.failure().kind, kind::LIMIT);
    accounts.ended(1);
    assert_eq!(refused(&accounts, "mid", 2), ("top".to_owned(), "stored_bytes", None));
    accounts.freed(&[ChargeRow { bytes: 1_000, ..first }]);
    assert_eq!(refused(&accounts, "mid", 2), ("top".to_owned(), "usd", None));
    let used = accounts.used("top").unwrap();
    assert_eq!((used.stored_bytes, used.tokens, used.usd), (0, 150, Decimal::new(5, 2)));
}

#[test]
fn what_is_used_counts_before_it_is_stored_and_is_stored_with_the_next_commit() {
    let top = Quotas { tokens: Some(100), ..Quotas::default() };
    let accounts = family(top, Quotas::default());
    accounts.admit("low", 1, 0).unwrap();
    accounts.charge(1, &Spent::default(), 10).unwrap();
    assert_eq!(accounts.over_budget(1, &spent(99, "0")), None);
    assert_eq!(accounts.over_budget(1, &spent(100, "0")).unwrap().quota, Quota::Tokens);
    let row = accounts.charge(1, &spent(100, "0"), 0).unwrap();
    assert_eq!((row.bytes, row.tokens), (10, 100));
    assert_eq!(accounts.charge(1, &spent(100, "0"), 0), None);
}

#[test]
fn a_commit_that_was_refused_is_given_back_when_its_run_is_read_again() {
    let accounts = family(runs(3), runs(2));
    accounts.admit("low", 1, 0).unwrap();
    accounts.charge(1, &spent(100, "0.01"), 400).unwrap();
    // None of it was stored.
    assert!(accounts.take_up(1, None, &Spent::default()));
    let used = accounts.used("top").unwrap();
    assert_eq!((used.open_runs, used.stored_bytes, used.tokens), (1, 0, 0));
    let row = accounts.charge(1, &spent(100, "0.01"), 400).unwrap();
    assert_eq!((row.bytes, row.tokens), (400, 100));
    assert!(!accounts.take_up(2, None, &Spent::default()));
}

#[test]
fn what_was_copied_with_a_run_is_not_charged_again() {
    let accounts = family(runs(3), runs(2));
    accounts.admit("low", 1, 0).unwrap();
    accounts.charge(1, &Spent::default(), 400).unwrap();
    accounts.take_up(1, None, &spent(1_000, "3"));
    let row = accounts.charge(1, &spent(1_010, "3.5"), 1).unwrap();
    assert_eq!((row.tokens, row.nano_usd), (10, 500_000_000));
}

#[test]
fn quotas_of_a_line_are_bounded_in_number_and_by_the_tightest() {
    let accounts = family(runs(3), runs(2));
    assert_eq!(accounts.bounds("mid"), Some(runs(3)));
    assert_eq!(accounts.bounds("low"), Some(runs(2)));
    assert_eq!(accounts.bounds("root"), None);
    assert!(accounts.covers("top", "low") && accounts.covers("root", "low"));
    assert!(accounts.covers("mid", "top") && !accounts.covers("top", "root"));
    assert!(!accounts.covers("low", "top"), "its own quota would be gone");
    let mut parent = "low".to_owned();
    for n in 0..LINE - 2 {
        accounts.check_line(&parent).unwrap();
        let child = format!("child{n}");
        accounts.add(&claims(&child, Some(&parent), runs(1)), 0);
        parent = child;
    }
    assert!(accounts.check_line(&parent).is_err());
}

#[test]
fn a_token_that_is_gone_has_no_account_and_an_open_run_keeps_its_own() {
    let accounts = family(runs(3), runs(2));
    accounts.admit("mid", 1, 0).unwrap();
    accounts.forget(0, |_| false);
    assert!(accounts.used("low").is_some(), "it may not be stored yet");
    accounts.forget(1, |_| false);
    assert_eq!(accounts.used("low"), None);
    assert_eq!(accounts.used("top").unwrap().open_runs, 1);
    accounts.ended(1);
    accounts.forget(1, |jti| jti == "mid");
    assert_eq!(accounts.used("top").unwrap().open_runs, 0, "a token from it counts against it");
    assert!(accounts.are_kept());
    accounts.forget(1, |_| false);
    assert!(!accounts.are_kept());
}

#[test]
fn money_is_rounded_up_and_bounded() {
    assert_eq!(billionths(Some(Decimal::new(1, 12))), 1);
    assert_eq!(billionths(Some(Decimal::new(-1, 0))), 0);
    assert_eq!(billionths(Some(Decimal::MAX)), MOST);
    assert_eq!(dollars(1_250_000_000).to_string(), "1.25");
}
