use data_encoding::{BASE64, BASE64URL_NOPAD};
use ring::{
    rand::SystemRandom,
    rsa::{KeyPair as RsaPair, PublicKeyComponents},
    signature::{
        ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _,
        RSA_PKCS1_SHA256,
    },
};
use serde_json::json;

use super::*;

const NOW_S: u64 = 1_800_000_000;
const ISSUER: &str = "https://id.example";

/// The keys of an issuer, with what signs.
struct Issuer {
    rsa: RsaPair,
    curve: EcdsaKeyPair,
    edwards: Ed25519KeyPair,
    random: SystemRandom,
}

fn text(bytes: &[u8]) -> String {
    BASE64URL_NOPAD.encode(bytes)
}

impl Issuer {
    fn new() -> Self {
        let random = SystemRandom::new();
        let method = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let curve = EcdsaKeyPair::generate_pkcs8(method, &random).unwrap();
        let pem = include_str!("../../../tests/support/tls/rsa.key");
        let lines = pem.lines().filter(|line| !line.starts_with('-'));
        let rsa = BASE64.decode(lines.collect::<String>().as_bytes()).unwrap();
        Self {
            rsa: RsaPair::from_pkcs8(&rsa).unwrap(),
            curve: EcdsaKeyPair::from_pkcs8(method, curve.as_ref(), &random).unwrap(),
            edwards: Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap(),
            random,
        }
    }

    fn set(&self) -> Value {
        let PublicKeyComponents { n, e } = PublicKeyComponents::<Vec<u8>>::from(self.rsa.public());
        let point = self.curve.public_key().as_ref();
        json!({ "keys": [
            { "kty": "RSA", "kid": "r", "use": "sig", "alg": "RS256", "n": text(&n), "e": text(&e) },
            { "kty": "EC", "kid": "e", "crv": "P-256", "x": text(&point[1..33]), "y": text(&point[33..]) },
            { "kty": "OKP", "kid": "o", "crv": "Ed25519", "x": text(self.edwards.public_key().as_ref()) },
            { "kty": "oct", "kid": "h", "k": text(b"secret") },
            { "kty": "RSA", "kid": "enc", "use": "enc", "n": text(&n), "e": text(&e) },
            { "kty": "strange" },
        ] })
    }

    fn keys(&self) -> ForeignKeys {
        ForeignKeys::parse(self.set().to_string().as_bytes()).unwrap()
    }

    fn sign(&self, algorithm: &str, kid: &str, claims: &Value) -> String {
        let head = json!({ "alg": algorithm, "kid": kid, "typ": "JWT" });
        let signed = format!(
            "{}.{}",
            text(head.to_string().as_bytes()),
            text(claims.to_string().as_bytes())
        );
        let message = signed.as_bytes();
        let signature = match algorithm {
            "RS256" => {
                let mut out = vec![0; self.rsa.public().modulus_len()];
                self.rsa.sign(&RSA_PKCS1_SHA256, &self.random, message, &mut out).unwrap();
                out
            }
            "ES256" => self.curve.sign(&self.random, message).unwrap().as_ref().to_vec(),
            "EdDSA" => self.edwards.sign(message).as_ref().to_vec(),
            "HS256" => {
                let public = self.set()["keys"][0]["n"].as_str().unwrap().to_owned();
                let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, public.as_bytes());
                ring::hmac::sign(&key, message).as_ref().to_vec()
            }
            _ => Vec::new(),
        };
        format!("{signed}.{}", text(&signature))
    }
}

fn claims() -> Value {
    json!({ "iss": ISSUER, "aud": ["swarm", "x"], "sub": "1", "exp": NOW_S + 300, "name": "ada" })
}

fn verify(keys: &ForeignKeys, token: &str) -> Result<Map<String, Value>, String> {
    let expected = Expected { issuer: ISSUER, audience: "swarm", now_s: NOW_S };
    keys.verify(token, expected).map_err(|error| error.to_string())
}

#[test]
fn tokens_of_each_algorithm_are_verified() {
    let issuer = Issuer::new();
    let keys = issuer.keys();
    for (algorithm, kid) in [("RS256", "r"), ("ES256", "e"), ("EdDSA", "o")] {
        let token = issuer.sign(algorithm, kid, &claims());
        assert_eq!(verify(&keys, &token).unwrap()["name"], "ada", "{algorithm}");
        assert_eq!(claimed_issuer(&token).as_deref(), Some(ISSUER));
        let mut parts: Vec<_> = token.split('.').map(str::to_owned).collect();
        let mut other = claims();
        other["name"] = json!("eve");
        parts[1] = text(other.to_string().as_bytes());
        let forged = verify(&keys, &parts.join(".")).unwrap_err();
        assert_eq!(forged, "its signature is wrong", "{algorithm}");
    }
}

#[test]
fn a_key_verifies_its_own_algorithm_only() {
    let issuer = Issuer::new();
    let keys = issuer.keys();
    for (algorithm, kid) in [
        ("none", "r"),
        ("HS256", "r"),
        ("HS256", "h"),
        ("HS256", "e"),
        ("ES256", "r"),
        ("RS256", "e"),
        ("RS256", "enc"),
        ("RS256", "unknown"),
        ("RS512", "r"),
    ] {
        let token = issuer.sign(algorithm, kid, &claims());
        assert!(verify(&keys, &token).is_err(), "{algorithm} {kid}");
    }
    let unknown = issuer.sign("RS256", "unknown", &claims());
    let expected = Expected { issuer: ISSUER, audience: "swarm", now_s: NOW_S };
    assert_eq!(keys.verify(&unknown, expected), Err(ForeignError::UnknownKey));
}

#[test]
fn a_token_is_for_this_audience_from_this_issuer_and_for_now() {
    let issuer = Issuer::new();
    let keys = issuer.keys();
    let with = |name: &str, value: Value| {
        let mut claims = claims();
        claims[name] = value;
        verify(&keys, &issuer.sign("ES256", "e", &claims)).map(drop)
    };
    for (name, value, part) in [
        ("iss", json!("https://evil.example"), "another issuer"),
        ("aud", json!("other"), "another audience"),
        ("exp", json!(NOW_S - 61), "has expired"),
        ("exp", Value::Null, "expire"),
        ("nbf", json!(NOW_S + 61), "not valid yet"),
    ] {
        let error = with(name, value.clone()).unwrap_err();
        assert!(error.contains(part) || error.contains("lacks one"), "{name} {value}: {error}");
    }
    assert_eq!(with("nbf", json!(NOW_S + 30)), Ok(()), "clocks may differ a little");
    assert_eq!(with("exp", json!(NOW_S - 30)), Ok(()));
    assert_eq!(with("aud", json!("swarm")), Ok(()));
}

#[test]
fn a_key_set_without_a_key_is_refused() {
    for text in
        ["", "[]", "{}", "{\"keys\": []}", "{\"keys\": [{\"kty\": \"oct\", \"k\": \"AA\"}]}"]
    {
        assert!(ForeignKeys::parse(text.as_bytes()).is_err(), "{text}");
    }
    assert_eq!(claimed_issuer("a.b.c"), None);
    assert_eq!(claimed_issuer("wh_x"), None);
}
