use super::*;
use crate::token::Scope;

const NOW: u64 = 1_800_000_000;

fn task() -> TaskClaim {
    TaskClaim { id: TaskId::new(7, 3, 1_700_000_000_000), attempt: 2, epoch: 5, nonce: 0 }
}

fn scopes(texts: &[&str]) -> Scopes {
    texts.iter().map(|text| text.parse::<Scope>().unwrap()).collect()
}

fn operator() -> Claims {
    let grant = Grant::new(Role::Operator, scopes(&["operator:main-ai", "run:*"]));
    Claims::new(TokenKind::Api, "ci", "jti-1", grant, NOW, 600)
}

#[test]
fn the_wire_form_of_claims_never_changes() {
    let claims = Claims::for_attempt(task(), "worker", "jti-2", NOW, 600);
    insta::assert_snapshot!(serde_json::to_string(&claims).unwrap(), @r#"{"iss":"moonswarm","aud":"moonswarm:task","sub":"worker","jti":"jti-2","iat":1800000000,"nbf":1800000000,"exp":1800000600,"role":"worker","scopes":["task:task_agf47zliabyafaaaaaabyaaaam"],"task":{"id":"task_agf47zliabyafaaaaaabyaaaam","attempt":2,"epoch":5}}"#);
    let stamped = TaskClaim { nonce: u64::MAX, ..task() };
    let text = serde_json::to_string(&stamped).unwrap();
    insta::assert_snapshot!(text, @r#"{"id":"task_agf47zliabyafaaaaaabyaaaam","attempt":2,"epoch":5,"nonce":18446744073709551615}"#);
    assert_eq!(serde_json::from_str::<TaskClaim>(&text).unwrap(), stamped);
    let mut child = operator();
    child.verbs = Some([Verb::RunStart, Verb::RunRead].into());
    let child = child.child_of(&operator());
    insta::assert_snapshot!(serde_json::to_string(&child).unwrap(), @r#"{"iss":"moonswarm","aud":"moonswarm:api","sub":"ci","jti":"jti-1","iat":1800000000,"nbf":1800000000,"exp":1800000600,"role":"operator","verbs":["run.start","run.read"],"scopes":["operator:main-ai","run:*"],"parent":"jti-1"}"#);
    let read: Claims = serde_json::from_str(&serde_json::to_string(&child).unwrap()).unwrap();
    assert_eq!(read, child);
}

#[test]
fn unnamed_tokens_of_one_maker_and_role_are_one_person() {
    assert_eq!(person("admin/operator#0a1b2c/approver#3d4e5f"), "admin/operator/approver");
    assert_eq!(person("ada"), "ada");
}

#[test]
fn the_case_of_a_subject_makes_no_other_one() {
    assert!(is_same_subject("Ada", "ada") && is_same_subject("ada", "ada"));
    assert!(!is_same_subject("ada", "adam") && !is_same_subject("ada", "admin/ada"));
    assert!(!is_same_subject("\u{212a}im", "kim"), "the sign of Kelvin is no letter of a name");
}

#[test]
fn an_account_is_the_first_below_the_owner() {
    for (subject, expected) in [
        ("admin", "admin"),
        ("ada", "ada"),
        ("ada/operator#1", "ada"),
        ("admin/operator#1/worker#2", "admin/operator#1"),
        ("session/ses_a/operator#1", "session/ses_a"),
        ("admin/session/ses_a", "admin/session/ses_a"),
        ("", ""),
    ] {
        assert_eq!(account(subject), expected);
    }
}

#[test]
fn a_claim_that_nobody_knows_is_refused() {
    let mut wire = serde_json::to_value(operator()).unwrap();
    wire["root"] = true.into();
    assert!(serde_json::from_value::<Claims>(wire).is_err());
}

#[test]
fn an_end_is_checked_with_leeway_and_a_beginning_not_at_all() {
    let claims = operator();
    for good in [0, NOW - 3_600, NOW, claims.exp, claims.exp + LEEWAY_S - 1] {
        assert_eq!(claims.check_time(good), Ok(()), "{good}");
    }
    let late = claims.check_time(claims.exp + LEEWAY_S).unwrap_err();
    assert_eq!((late.code(), late), ("token_expired", TokenError::Expired(LEEWAY_S)));
    let mut endless = operator();
    endless.exp = u64::MAX;
    assert_eq!(endless.check_time(u64::MAX - 1), Ok(()));
}

#[test]
fn a_child_with_less_of_everything_is_narrower() {
    let parent = operator();
    assert_eq!(operator().child_of(&parent).check_narrower(&parent), Ok(()));
    let mut child = operator().child_of(&parent);
    child.verbs = Some([Verb::RunRead].into());
    child.scopes = scopes(&["operator:main-ai"]);
    (child.nbf, child.exp) = (NOW + 1, NOW + 2);
    assert_eq!(child.check_narrower(&parent), Ok(()));
}

/// Widens one axis of a child beyond its parent.
type Widen = fn(&mut Claims);

#[test]
fn a_child_is_refused_on_every_axis_in_which_it_is_wider() {
    let axes: [(Axis, Widen); 6] = [
        (Axis::Role, |child| child.role = Role::Admin),
        (Axis::Role, |child| child.role = Role::Observer),
        (Axis::Scopes, |child| child.scopes = scopes(&["operator:*"])),
        (Axis::Expiry, |child| child.exp += 1),
        (Axis::Start, |child| child.nbf -= 1),
        (Axis::Parent, |child| child.parent = Some("another".into())),
    ];
    let parent = operator();
    for (axis, widen) in axes {
        let mut child = operator().child_of(&parent);
        widen(&mut child);
        let widening = child.check_narrower(&parent).unwrap_err();
        assert_eq!((widening.axis, widening.code().as_str()), (axis, "token_widens"));
    }
}

#[test]
fn an_answer_with_a_token_is_repeated_only_to_a_token_at_least_as_wide() {
    let made = operator().child_of(&operator());
    let mut renewed = operator();
    (renewed.jti, renewed.exp) = ("jti-7".into(), NOW + 900);
    assert_eq!(made.check_repeatable(&renewed), Ok(()));
    let narrower: [(Axis, Widen); 4] = [
        (Axis::Role, |asker| asker.role = Role::Observer),
        (Axis::Verbs, |asker| asker.verbs = Some([Verb::TokenMint].into())),
        (Axis::Scopes, |asker| asker.scopes = scopes(&["run:*"])),
        (Axis::Expiry, |asker| asker.exp = NOW + 300),
    ];
    for (axis, narrow) in narrower {
        let mut asker = renewed.clone();
        narrow(&mut asker);
        assert_eq!(made.check_repeatable(&asker), Err(Widening { axis }));
    }
}

#[test]
fn a_narrowed_parent_has_no_verb_to_give_that_it_lost() {
    let mut parent = operator();
    parent.verbs = Some([Verb::RunRead, Verb::TokenMint].into());
    let mut child = operator().child_of(&parent);
    assert_eq!(child.check_narrower(&parent), Err(Widening { axis: Axis::Verbs }));
    child.verbs = Some([Verb::RunRead].into());
    assert_eq!(child.check_narrower(&parent), Ok(()));
}

#[test]
fn a_task_tokens_child_is_for_the_same_attempt() {
    let parent = Claims::for_attempt(task(), "worker", "jti-2", NOW, 600);
    let mut child = Claims::for_attempt(task(), "worker", "jti-3", NOW, 600).child_of(&parent);
    assert_eq!(child.check_narrower(&parent), Ok(()));
    child.task = Some(TaskClaim { attempt: 3, ..task() });
    assert_eq!(child.check_narrower(&parent), Err(Widening { axis: Axis::Attempt }));
    child.aud = TokenKind::Api.audience().into();
    assert_eq!(child.check_narrower(&parent), Err(Widening { axis: Axis::Kind }));
}

#[test]
fn an_admin_gives_any_role() {
    let root = Grant::new(Role::Admin, Scopes::all());
    let root = Claims::new(TokenKind::Api, "root", "jti-0", root, NOW, 600);
    for role in Role::ALL {
        let grant = Grant::new(role, scopes(&["run:*"]));
        let child = Claims::new(TokenKind::Api, "x", "jti-9", grant, NOW, 60).child_of(&root);
        assert_eq!(child.check_narrower(&root), Ok(()), "{role}");
    }
}

#[test]
fn a_child_with_a_wider_quota_is_wider() {
    let quotas = |open_runs| Some(Quotas { open_runs: Some(open_runs), ..Quotas::default() });
    let mut parent = operator();
    parent.quotas = quotas(5);
    let mut child = operator().child_of(&parent);
    assert_eq!(child.check_narrower(&parent), Ok(()), "it counts against its parent's");
    child.quotas = quotas(5);
    assert_eq!(child.check_narrower(&parent), Ok(()));
    child.quotas = quotas(6);
    assert_eq!(child.check_narrower(&parent), Err(Widening { axis: Axis::Quotas }));
    let read: Claims = serde_json::from_str(&serde_json::to_string(&child).unwrap()).unwrap();
    assert_eq!(read, child);
}
