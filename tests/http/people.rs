//! People by the tokens of an OpenID Connect provider, which this test plays.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use axum::{Json, Router, extract::State, routing::get};
use data_encoding::BASE64URL_NOPAD;
use reqwest::Method;
use ring::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _},
};
use serde_json::{Value, json};

use crate::support::{DEMO, Daemon, Shell, refusal, send};

/// The keys of a provider, with their ids.
type Keys = Arc<Mutex<Vec<(String, Arc<EcdsaKeyPair>)>>>;

/// A provider: its address, its keys by their ids, and how often they were read.
#[derive(Clone)]
struct Provider {
    url: String,
    keys: Keys,
    reads: Arc<AtomicUsize>,
}

fn text(bytes: &[u8]) -> String {
    BASE64URL_NOPAD.encode(bytes)
}

impl Provider {
    async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let it = Self { url, keys: Arc::default(), reads: Arc::default() };
        it.add("one");
        let router = Router::new()
            .route("/.well-known/openid-configuration", get(Self::configuration))
            .route("/keys", get(Self::published))
            .with_state(it.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        it
    }

    async fn configuration(State(it): State<Self>) -> Json<Value> {
        Json(json!({ "issuer": it.url, "jwks_uri": format!("{}/keys", it.url) }))
    }

    async fn published(State(it): State<Self>) -> Json<Value> {
        it.reads.fetch_add(1, Ordering::SeqCst);
        let keys = it.keys.lock().unwrap();
        let keys = keys.iter().map(|(kid, key)| {
            let point = key.public_key().as_ref();
            let (x, y) = (text(&point[1..33]), text(&point[33..]));
            json!({ "kty": "EC", "crv": "P-256", "alg": "ES256", "kid": kid, "x": x, "y": y })
        });
        Json(json!({ "keys": keys.collect::<Vec<_>>() }))
    }

    /// Begins to sign with a new key.
    fn add(&self, kid: &str) {
        let (method, random) = (&ECDSA_P256_SHA256_FIXED_SIGNING, SystemRandom::new());
        let made = EcdsaKeyPair::generate_pkcs8(method, &random).unwrap();
        let key = EcdsaKeyPair::from_pkcs8(method, made.as_ref(), &random).unwrap();
        self.keys.lock().unwrap().push((kid.to_owned(), Arc::new(key)));
    }

    /// A token with these claims over the usual ones, signed with the newest key.
    fn token(&self, more: &Value) -> String {
        let (kid, key) = self.keys.lock().unwrap().last().unwrap().clone();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let mut claims = json!({
            "iss": self.url, "aud": "swarm", "sub": "42", "exp": now.as_secs() + 300,
            "email": "ada@example.com", "email_verified": true, "groups": ["ops"],
        });
        for (name, value) in more.as_object().unwrap() {
            claims[name] = value.clone();
        }
        let head = json!({ "alg": "ES256", "kid": kid }).to_string();
        let signed = format!("{}.{}", text(head.as_bytes()), text(claims.to_string().as_bytes()));
        let signature = key.sign(&SystemRandom::new(), signed.as_bytes()).unwrap();
        format!("{signed}.{}", text(signature.as_ref()))
    }
}

fn daemon(shell: &Shell, provider: &Provider, hosts: &str) -> Daemon {
    let text = format!(
        "[people.oidc]\nissuer = {:?}\naudience = \"swarm\"\nname = \"email\"\ngroups = \"groups\"\n\
         allow_hosts = [{hosts}]\n[[people.roles]]\ngroup = \"ops\"\nrole = \"operator\"\n",
        provider.url
    );
    let config = shell.write("daemon.toml", text);
    Daemon::start_with(&shell.path("data"), &["--config".as_ref(), config.as_os_str()])
}

#[tokio::test]
async fn a_token_of_the_provider_names_the_person() {
    let (shell, provider) = (Shell::new(), Provider::start().await);
    let daemon = daemon(&shell, &provider, "\"127.0.0.1\"");
    let ask = |token: &str, path: &str| daemon.with(token, Method::GET, path);
    let ada = provider.token(&json!({}));
    let (status, who) = send(ask(&ada, "/v1/whoami")).await;
    assert_eq!((status, &who["subject"]), (200, &json!("ada@example.com")), "{who}");
    assert_eq!(who["role"], "operator");
    assert_eq!(send(daemon.get("/v1/whoami")).await.1["subject"], "admin");
    // Commands take it as any other token.
    let done = shell.run(&["whoami", "--server", &daemon.url, "--token", &ada, "--json"]).ok();
    assert_eq!(done.json()["subject"], "ada@example.com");

    for (claims, status) in [
        (json!({ "aud": "other" }), 401),
        (json!({ "exp": 1_700_000_000 }), 401),
        (json!({ "email_verified": false }), 401),
        (json!({ "email": null }), 401),
        (json!({ "groups": ["guests"] }), 403),
        (json!({ "email": "admin" }), 400),
    ] {
        let refused = refusal(ask(&provider.token(&claims), "/v1/whoami")).await;
        assert_eq!(refused.0, status, "{claims}: {refused:?}");
    }
    let (head, rest) = ada.split_at(ada.len() - 8);
    let forged = format!("{head}{}", if rest == "AAAAAAAA" { "BBBBBBBB" } else { "AAAAAAAA" });
    assert_eq!(refusal(ask(&forged, "/v1/whoami")).await.0, 401);
    assert_eq!(provider.reads.load(Ordering::SeqCst), 1, "the keys are kept");
    // Tokens that name a key which nobody has do not make the host ask again and again.
    provider.add("two");
    let keys = provider.keys.lock().unwrap().split_off(1);
    for _ in 0..3 {
        provider.keys.lock().unwrap().extend(keys.clone());
        let unknown = provider.token(&json!({}));
        provider.keys.lock().unwrap().truncate(1);
        assert!([401, 503].contains(&refusal(ask(&unknown, "/v1/whoami")).await.0));
    }
    assert!(provider.reads.load(Ordering::SeqCst) <= 2);

    let run = daemon.run_source(DEMO, json!({})).await;
    let (status, _) = send(ask(&ada, &format!("/v1/runs/{run}"))).await;
    assert_eq!(status, 200);
}

#[tokio::test]
async fn a_provider_that_may_not_be_asked_is_not() {
    let (shell, provider) = (Shell::new(), Provider::start().await);
    let daemon = daemon(&shell, &provider, "");
    let token = provider.token(&json!({}));
    let refused = refusal(daemon.with(&token, Method::GET, "/v1/whoami")).await;
    assert_eq!(refused, (503, "not_ready".to_owned()));
    assert_eq!(provider.reads.load(Ordering::SeqCst), 0);
    assert!(daemon.log().contains("allow_hosts"), "{}", daemon.log());
    // The others are let in as before.
    assert_eq!(send(daemon.get("/v1/whoami")).await.0, 200);
}
