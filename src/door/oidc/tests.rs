use std::{
    future::pending,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};

use axum::{Json, Router, routing::get};
use futures::poll;
use serde_json::json;
use tokio::net::TcpListener;

use super::*;
use crate::tasks::Tasks;

/// The time within which something happens that waits for nobody.
const SOON: Duration = Duration::from_secs(20);

#[tokio::test]
async fn nobody_waits_for_a_provider_that_hangs_while_its_keys_are_known() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (hangs, reads) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let published = {
        let (url, hangs, reads) = (url.clone(), Arc::clone(&hangs), Arc::clone(&reads));
        move || {
            let found = json!({ "issuer": url, "jwks_uri": format!("{url}/keys") });
            let hangs = hangs.load(Ordering::SeqCst);
            reads.fetch_add(1, Ordering::SeqCst);
            async move { if hangs { pending().await } else { Json(found) } }
        }
    };
    let point = data_encoding::BASE64URL_NOPAD.encode(&[7; 32]);
    let key = json!({ "kty": "EC", "crv": "P-256", "kid": "one", "x": point, "y": point });
    let keys = json!({ "keys": [key] });
    let keys = get(move || {
        let keys = keys.clone();
        async move { Json(keys) }
    });
    let router = Router::new()
        .route("/.well-known/openid-configuration", get(published))
        .route("/keys", keys);
    let tasks = Tasks::new(tokio::runtime::Handle::current());
    tasks.spawn(async move { axum::serve(listener, router).await.unwrap() });

    let settings = format!("issuer = {url:?}\naudience = \"swarm\"\nallow_hosts = [\"127.0.0.1\"]");
    let clock = Clock::manual(1_000_000);
    let provider = Provider::new(toml::from_str(&settings).unwrap(), clock.clone());
    provider.keys(clock.now_ms(), FRESH_MS).await.unwrap();
    assert_eq!(reads.load(Ordering::SeqCst), 1);
    hangs.store(true, Ordering::SeqCst);
    clock.advance(Duration::from_millis(FRESH_MS));
    let now_ms = clock.now_ms();
    let mut first = Box::pin(provider.keys(now_ms, FRESH_MS));
    assert!(poll!(&mut first).is_pending(), "one asks the provider");
    let others = tokio::time::timeout(SOON, provider.keys(now_ms, FRESH_MS)).await;
    others.expect("the others use what is known").unwrap();
    let missing = Box::pin(provider.keys(now_ms, PAUSE_MS));
    assert!(poll!(missing).is_pending(), "whoever misses a key waits for the new ones");
}
