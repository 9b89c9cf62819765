use data_encoding::BASE64URL_NOPAD;
use serde_json::{Value, json};

use super::*;
use crate::{
    protocol::TaskId,
    token::{Grant, Role, Scopes, TaskClaim},
};

const NOW: u64 = 1_800_000_000;

fn key(seed: u8) -> SigningKey {
    SigningKey::from_seed(&[seed; 32])
}

fn claims() -> Claims {
    Claims::new(TokenKind::Api, "ci", "jti-1", Grant::new(Role::Observer, Scopes::all()), NOW, 600)
}

/// Signs any header and body, like an attacker who has the key.
fn forge(key: &SigningKey, header: &Value, body: &Value) -> String {
    let part = |value: &Value| BASE64URL_NOPAD.encode(value.to_string().as_bytes());
    let message = format!("{}.{}", part(header), part(body));
    let signature =
        jsonwebtoken::crypto::sign(message.as_bytes(), &key.private, Algorithm::EdDSA).unwrap();
    format!("{message}.{signature}")
}

fn header(key: &SigningKey) -> Value {
    json!({"typ": TokenKind::Api.typ(), "alg": "EdDSA", "kid": key.kid()})
}

fn code(ring: &KeyRing, token: &str) -> &'static str {
    ring.verify(token, &[TokenKind::Api], NOW).unwrap_err().code()
}

#[test]
fn a_key_survives_its_file_and_its_id_is_a_hash_of_its_public_half() {
    let pem = key(1).to_pem();
    let read = SigningKey::from_pem(pem.as_bytes()).unwrap();
    assert_eq!(read.kid(), key(1).kid());
    assert_ne!(read.kid(), key(2).kid());
    assert_eq!(read.kid().len(), 43);
    assert_eq!(SigningKey::from_pem(b"nonsense").unwrap_err().code(), "key_malformed");
    assert!(!format!("{read:?}").contains("private"));
}

#[test]
fn the_file_form_is_what_openssl_reads() {
    let expected = "-----BEGIN PRIVATE KEY-----\n\
        MC4CAQAwBQYDK2VwBCIEIAEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEB\n\
        -----END PRIVATE KEY-----\n";
    assert_eq!(*key(1).to_pem(), expected);
}

#[test]
fn a_signed_token_is_read_back() {
    let ring = KeyRing::new(key(1));
    let token = ring.sign(&claims()).unwrap();
    assert_eq!(ring.verify(&token, &TokenKind::ALL, NOW), Ok(claims()));
    let task = TaskClaim { id: TaskId::new(1, 1, 0), attempt: 1, epoch: 1, nonce: 1 };
    let attempt = Claims::for_attempt(task, "w", "jti-2", NOW, 600);
    let token = ring.sign(&attempt).unwrap();
    assert_eq!(ring.verify(&token, &[TokenKind::Task], NOW), Ok(attempt));
}

#[test]
fn a_token_of_another_kind_is_refused() {
    let ring = KeyRing::new(key(1));
    let token = ring.sign(&claims()).unwrap();
    let error = ring.verify(&token, &[TokenKind::Task, TokenKind::Session], NOW).unwrap_err();
    assert_eq!(error.code(), "token_wrong_kind");
    let mut body = serde_json::to_value(claims()).unwrap();
    body["aud"] = TokenKind::Session.audience().into();
    assert_eq!(code(&ring, &forge(&key(1), &header(&key(1)), &body)), "token_wrong_kind");
}

#[test]
fn a_changed_or_foreign_token_is_refused() {
    let ring = KeyRing::new(key(1));
    let good = ring.sign(&claims()).unwrap();
    let (message, signature) = good.rsplit_once('.').unwrap();
    let (head, _) = message.split_once('.').unwrap();
    let mut wider = claims();
    wider.role = Role::Admin;
    let wider = BASE64URL_NOPAD.encode(serde_json::to_string(&wider).unwrap().as_bytes());
    assert_eq!(code(&ring, &format!("{head}.{wider}.{signature}")), "token_signature");
    assert_eq!(code(&ring, &KeyRing::new(key(2)).sign(&claims()).unwrap()), "token_unknown_key");
    let body = serde_json::to_value(claims()).unwrap();
    assert_eq!(code(&ring, &forge(&key(2), &header(&key(1)), &body)), "token_signature");
    for nonsense in ["", "a.b.c", "wh_abc", head] {
        assert_eq!(code(&ring, nonsense), "token_malformed", "{nonsense}");
    }
}

#[test]
fn no_algorithm_but_eddsa_is_heard() {
    let ring = KeyRing::new(key(1));
    let body = serde_json::to_value(claims()).unwrap();
    for algorithm in ["none", "HS256", "RS256", "ES256"] {
        let mut header = header(&key(1));
        header["alg"] = algorithm.into();
        assert_eq!(code(&ring, &forge(&key(1), &header, &body)), "token_malformed", "{algorithm}");
    }
    let mut critical = header(&key(1));
    critical["crit"] = json!(["exp"]);
    assert_eq!(code(&ring, &forge(&key(1), &critical, &body)), "token_malformed");
    let mut anonymous = header(&key(1));
    anonymous.as_object_mut().unwrap().remove("kid");
    assert_eq!(code(&ring, &forge(&key(1), &anonymous, &body)), "token_unknown_key");
}

#[test]
fn every_registered_claim_is_required() {
    let ring = KeyRing::new(key(1));
    for claim in ["iss", "aud", "sub", "jti", "iat", "nbf", "exp", "role", "scopes"] {
        let mut body = serde_json::to_value(claims()).unwrap();
        body.as_object_mut().unwrap().remove(claim);
        assert_eq!(
            code(&ring, &forge(&key(1), &header(&key(1)), &body)),
            "token_malformed",
            "{claim}"
        );
    }
    let mut body = serde_json::to_value(claims()).unwrap();
    body["iss"] = "sunswarm".into();
    assert_eq!(code(&ring, &forge(&key(1), &header(&key(1)), &body)), "token_malformed");
}

#[test]
fn only_a_task_token_names_an_attempt() {
    let ring = KeyRing::new(key(1));
    let task = TaskClaim { id: TaskId::new(1, 1, 0), attempt: 1, epoch: 1, nonce: 1 };
    let claims = Claims { task: Some(task), ..claims() };
    assert_eq!(code(&ring, &ring.sign(&claims).unwrap()), "token_malformed");
}

#[test]
fn the_callers_clock_decides_and_not_the_machines() {
    let ring = KeyRing::new(key(1));
    let mut long_ago = claims();
    (long_ago.iat, long_ago.nbf, long_ago.exp) = (1000, 1000, 2000);
    let token = ring.sign(&long_ago).unwrap();
    assert_eq!(ring.verify(&token, &[TokenKind::Api], 1500), Ok(long_ago));
    let code = |now_s| ring.verify(&token, &[TokenKind::Api], now_s).unwrap_err().code();
    assert_eq!(code(2030), "token_expired");
}

#[test]
fn a_retired_key_verifies_until_its_grace_is_over() {
    let mut ring = KeyRing::new(key(1));
    let mut claims = claims();
    claims.exp = NOW + 10_000;
    let old = ring.sign(&claims).unwrap();
    ring.rotate(key(2), NOW, 100);
    let new = ring.sign(&claims).unwrap();
    let verify = |token: &str, now_s| ring.verify(token, &[TokenKind::Api], now_s).is_ok();
    assert!(verify(&old, NOW + 99) && verify(&new, NOW + 99));
    assert!(!verify(&old, NOW + 100) && verify(&new, NOW + 100));
    assert_eq!(
        ring.retired().map(|(key, until_s)| (key.kid().to_owned(), until_s)).collect::<Vec<_>>(),
        [(key(1).kid().to_owned(), NOW + 100)]
    );
    assert_eq!(ring.jwks(NOW + 99).keys.len(), 2);
    assert_eq!(ring.jwks(NOW + 100).keys.len(), 1);
    ring.rotate(key(3), NOW + 100, 100);
    assert_eq!(ring.retired().count(), 1);
    assert!(ring.is_current(&ring.sign(&claims).unwrap()) && !ring.is_current(&new));
    ring.rotate(key(4), NOW + 101, 0);
    assert_eq!(ring.retired().count(), 0);
}

#[test]
fn the_key_set_has_only_public_halves() {
    let set = serde_json::to_value(KeyRing::new(key(1)).jwks(NOW)).unwrap();
    let x = "iojj3XQJ8ZX9UtstPLpdcspnCb8dlBIb83SIAbQPb1w";
    let kid = "UDDReOZl1ipXAfp9wYsm13sDBMK5og--QWdBjzuf6o4";
    let expected = json!({"keys": [
        {"use": "sig", "alg": "EdDSA", "kid": kid, "kty": "OKP", "crv": "Ed25519", "x": x},
    ]});
    assert_eq!(set, expected);
}
