//! People by the tokens of an OpenID Connect provider, which this test plays.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use axum::{
    Json, Router,
    extract::{Query, State},
    http::{HeaderMap, StatusCode},
    response::Redirect,
    routing::{get, post},
};
use data_encoding::BASE64URL_NOPAD;
use reqwest::Method;
use ring::{
    digest::{SHA256, digest},
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _},
};
use serde_json::{Value, json};

use crate::support::{DEMO, Daemon, Shell, eventually, refusal, send, when};

/// The keys of a provider, with their ids.
type Keys = Arc<Mutex<Vec<(String, Arc<EcdsaKeyPair>)>>>;

/// A provider: its address, its keys by their ids, and how often they were read.
#[derive(Clone)]
struct Provider {
    url: String,
    keys: Keys,
    reads: Arc<AtomicUsize>,
    /// True while it answers nothing of use.
    gone: Arc<AtomicBool>,
    /// The questions of browsers, by the codes that they got.
    asked: Arc<Mutex<HashMap<String, HashMap<String, String>>>>,
    /// The claims of the tokens that codes are exchanged for.
    claims: Arc<Mutex<Value>>,
    /// The number of codes that were sent to it and that it has not answered.
    hanging: Arc<AtomicUsize>,
}

/// A code that the provider never answers.
const HANGS: &str = "hangs";

fn text(bytes: &[u8]) -> String {
    BASE64URL_NOPAD.encode(bytes)
}

impl Provider {
    async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let it = Self {
            url,
            keys: Arc::default(),
            reads: Arc::default(),
            gone: Arc::default(),
            asked: Arc::default(),
            claims: Arc::new(Mutex::new(json!({ "aud": "browsers" }))),
            hanging: Arc::default(),
        };
        it.add("one");
        let router = Router::new()
            .route("/.well-known/openid-configuration", get(Self::configuration))
            .route("/keys", get(Self::published))
            .route("/authorize", get(Self::authorize))
            .route("/token", post(Self::exchange))
            .with_state(it.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        it
    }

    async fn configuration(State(it): State<Self>) -> Json<Value> {
        if it.gone.load(Ordering::SeqCst) {
            return Json(json!(null));
        }
        Json(json!({
            "issuer": it.url,
            "jwks_uri": format!("{}/keys", it.url),
            "authorization_endpoint": format!("{}/authorize", it.url),
            "token_endpoint": format!("{}/token", it.url),
            "end_session_endpoint": format!("{}/leave?realm=x", it.url),
        }))
    }

    /// Signs everybody in, and sends the browser back.
    async fn authorize(
        State(it): State<Self>,
        Query(asked): Query<HashMap<String, String>>,
    ) -> Redirect {
        assert_eq!((&*asked["response_type"], &*asked["client_id"]), ("code", "browsers"));
        assert_eq!(asked["code_challenge_method"], "S256");
        assert!(asked["scope"].split(' ').any(|scope| scope == "openid"));
        let mut all = it.asked.lock().unwrap();
        let code = format!("code-{}", all.len());
        let to = format!(
            "{}?code={code}&state={}&iss={}",
            asked["redirect_uri"], asked["state"], it.url
        );
        all.insert(code, asked);
        Redirect::to(&to)
    }

    /// Exchanges a code, once, for the client that it was made for.
    async fn exchange(
        State(it): State<Self>,
        headers: HeaderMap,
        form: String,
    ) -> (StatusCode, Json<Value>) {
        let form = format!("http://x/?{form}").parse::<reqwest::Url>().unwrap();
        let form: HashMap<String, String> = form.query_pairs().into_owned().collect();
        if form["code"] == HANGS {
            it.hanging.fetch_add(1, Ordering::SeqCst);
            std::future::pending::<()>().await;
        }
        let asked = it.asked.lock().unwrap().remove(&form["code"]);
        let basic = data_encoding::BASE64.encode(b"browsers:hush%20%26%20hide");
        let is_client = headers["authorization"] == *format!("Basic {basic}");
        let challenge = digest(&SHA256, form["code_verifier"].as_bytes());
        let Some(asked) = asked.filter(|asked| {
            is_client
                && asked["redirect_uri"] == form["redirect_uri"]
                && asked["code_challenge"] == text(challenge.as_ref())
        }) else {
            return (StatusCode::BAD_REQUEST, Json(json!({ "error": "invalid_grant" })));
        };
        let mut claims = json!({ "nonce": asked["nonce"] });
        for (name, value) in it.claims.lock().unwrap().as_object().unwrap() {
            claims[name] = value.clone();
        }
        let token = it.token(&claims);
        (StatusCode::OK, Json(json!({ "token_type": "Bearer", "id_token": token })))
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
    // The minute of tolerance for the clocks is one for reads too.
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let late = provider.token(&json!({ "exp": now.as_secs() - 20 }));
    assert_eq!(send(ask(&late, "/v1/runs")).await.0, 200);
    // Commands take it as any other token.
    let done = shell.run(&["whoami", "--server", &daemon.url, "--token", &ada, "--json"]).ok();
    assert_eq!(done.json()["subject"], "ada@example.com");

    for (claims, status) in [
        (json!({ "aud": "other" }), 401),
        (json!({ "exp": 1_700_000_000 }), 401),
        (json!({ "email_verified": false }), 401),
        (json!({ "email_verified": "false" }), 401),
        (json!({ "email_verified": null }), 401),
        (json!({ "email_verified": 1 }), 401),
        (json!({ "email": null }), 401),
        (json!({ "groups": ["guests"] }), 403),
        (json!({ "email": "admin" }), 400),
    ] {
        let refused = refusal(ask(&provider.token(&claims), "/v1/whoami")).await;
        assert_eq!(refused.0, status, "{claims}: {refused:?}");
    }
    // Providers write the same address in several ways, and truth as a text.
    for claims in [json!({ "email": "Ada@Example.COM" }), json!({ "email_verified": "true" })] {
        let (_, who) = send(ask(&provider.token(&claims), "/v1/whoami")).await;
        assert_eq!(who["subject"], "ada@example.com", "{claims}: {who}");
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

/// A browser: what it is told and the cookies that it keeps.
struct Browser {
    http: reqwest::Client,
    cookies: HashMap<String, String>,
}

/// An answer to a browser.
struct Page {
    status: u16,
    to: String,
    cookies: Vec<String>,
    text: String,
}

impl Browser {
    fn new() -> Self {
        Self::at([127, 0, 0, 1])
    }

    /// A browser with an address of this machine.
    fn at(address: [u8; 4]) -> Self {
        let http = moonswarm::environment::http_client()
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .local_address(std::net::IpAddr::from(address));
        Self { http: http.build().unwrap(), cookies: HashMap::new() }
    }

    async fn get(&mut self, url: &str) -> Page {
        let cookies: Vec<_> = self.cookies.iter().map(|(k, v)| format!("{k}={v}")).collect();
        let answer = self.http.get(url).header("cookie", cookies.join("; ")).send().await.unwrap();
        let header = |name: &str| {
            let all = answer.headers().get_all(name).iter();
            all.map(|value| value.to_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        let cookies = header("set-cookie");
        for cookie in &cookies {
            let (name, value) = cookie.split(';').next().unwrap().split_once('=').unwrap();
            match value {
                "" => drop(self.cookies.remove(name)),
                _ => drop(self.cookies.insert(name.to_owned(), value.to_owned())),
            }
        }
        let to = header("location").into_iter().chain(header("refresh")).next();
        let (status, to) = (answer.status().as_u16(), to.unwrap_or_default());
        Page { status, to, cookies, text: answer.text().await.unwrap() }
    }

    /// Presses the button for signing out; returns where the browser goes then.
    async fn leave(&mut self, daemon: &Daemon) -> String {
        let page = self.get(&format!("{}/ui/tokens", daemon.url)).await.text;
        let form = page.split("name=\"form\" value=\"").nth(1).unwrap().split('"').next().unwrap();
        let (name, value) = self.cookies.iter().next().unwrap();
        let out = self.http.post(format!("{}/ui/logout", daemon.url));
        let out = out.header("cookie", format!("{name}={value}")).header("origin", &daemon.url);
        let out = out.header("content-type", "application/x-www-form-urlencoded");
        let out = out.body(format!("form={form}")).send().await.unwrap();
        let gone = out.headers()["set-cookie"].to_str().unwrap();
        assert!(gone.contains("Max-Age=0"), "{gone}");
        let to = out.headers().get("location").or_else(|| out.headers().get("refresh"));
        to.unwrap().to_str().unwrap().to_owned()
    }

    /// Begins to sign in; returns the path and query with which the provider sends it back.
    async fn ask(&mut self, daemon: &Daemon, next: &str) -> String {
        let begin = format!("{}/ui/login/oidc?at=own&next={next}", daemon.url);
        let begun = self.get(&begin).await;
        assert_eq!(begun.status, 303, "{}", begun.text);
        let back = self.get(&begun.to).await.to;
        back.strip_prefix(DESK).expect("the configured address").to_owned()
    }
}

/// The address of the dashboard, as it is configured.
const DESK: &str = "http://localhost:7";

fn daemon_for_browsers(shell: &Shell, provider: &Provider) -> Daemon {
    daemon_with(shell, provider, "")
}

/// A daemon whose settings for browsers have these as well.
fn daemon_with(shell: &Shell, provider: &Provider, more: &str) -> Daemon {
    let secret = shell.write("secret", "hush & hide\n");
    let text = format!(
        "[people.oidc]\nissuer = {:?}\naudience = \"swarm\"\nname = \"email\"\n\
         groups = \"groups\"\nallow_hosts = [\"127.0.0.1\"]\n\
         [people.oidc.login]\nclient_id = \"browsers\"\nclient_secret = {{ file = {:?} }}\n\
         url = \"{DESK}\"\n{more}\
         [[people.roles]]\ngroup = \"ops\"\nrole = \"operator\"\n",
        provider.url, secret
    );
    let config = shell.write("daemon.toml", text);
    Daemon::start_with(&shell.path("data"), &["--config".as_ref(), config.as_os_str()])
}

#[tokio::test]
async fn a_browser_signs_in_with_the_provider() {
    let (shell, provider) = (Shell::new(), Provider::start().await);
    let daemon = daemon_for_browsers(&shell, &provider);
    let mut browser = Browser::new();
    let login = browser.get(&format!("{}/ui/login?next=/ui/runs", daemon.url)).await;
    assert!(login.text.contains("/ui/login/oidc?next=%2Fui%2Fruns"), "{}", login.text);
    // Elsewhere, the browser is sent to the configured address first.
    let elsewhere = browser.get(&format!("{}/ui/login/oidc?next=/ui/runs", daemon.url)).await;
    assert_eq!(elsewhere.to, format!("{DESK}/ui/login/oidc?at=own&next=%2Fui%2Fruns"));
    assert!(elsewhere.cookies.is_empty());

    let back = browser.ask(&daemon, "/ui/runs").await;
    let attempt = browser.cookies.clone();
    let signed_in = browser.get(&format!("{}{back}", daemon.url)).await;
    assert_eq!((signed_in.status, &*signed_in.to), (200, "0; url=/ui/runs"), "{}", signed_in.text);
    let (gone, own) = (&signed_in.cookies[0], &signed_in.cookies[1]);
    assert!(gone.contains("Path=/ui/login/oidc; Max-Age=0; HttpOnly; SameSite=Lax"), "{gone}");
    assert!(own.contains("Path=/ui;") && own.contains("HttpOnly; SameSite=Strict"), "{own}");
    assert_eq!(browser.cookies.len(), 1);
    let runs = browser.get(&format!("{}/ui/runs", daemon.url)).await;
    assert_eq!(runs.status, 200);
    let tokens = browser.get(&format!("{}/ui/tokens", daemon.url)).await.text;
    assert!(tokens.contains("ada@example.com"), "{tokens}");

    // The same answer again, with the cookie of the attempt, is refused.
    let mut again = Browser { http: browser.http.clone(), cookies: attempt };
    let refused = again.get(&format!("{}{back}", daemon.url)).await;
    assert_eq!(refused.status, 401);
    assert!(refused.text.contains("was used"), "{}", refused.text);
    assert!(again.cookies.is_empty());

    // Signed out, the cookie stands for nothing, and the browser signs out of the provider.
    let to = browser.leave(&daemon).await;
    let to: reqwest::Url = to.strip_prefix("0; url=").unwrap().parse().unwrap();
    let asked: HashMap<String, String> = to.query_pairs().into_owned().collect();
    assert_eq!(to.as_str().split('?').next().unwrap(), format!("{}/leave", provider.url));
    assert_eq!((&*asked["realm"], &*asked["client_id"]), ("x", "browsers"));
    assert_eq!(asked["post_logout_redirect_uri"], format!("{DESK}/ui/login"));
    let claims = asked["id_token_hint"].split('.').nth(1).unwrap();
    let claims = BASE64URL_NOPAD.decode(claims.as_bytes()).unwrap();
    let claims: Value = serde_json::from_slice(&claims).unwrap();
    assert_eq!((&claims["sub"], &claims["aud"]), (&json!("42"), &json!("browsers")));
    let runs = browser.get(&format!("{}/ui/runs", daemon.url)).await;
    assert_eq!((runs.status, &*runs.to), (303, "/ui/login?next=%2Fui%2Fruns"));
}

#[tokio::test]
async fn signing_out_ends_the_sign_in_here_whatever_the_provider_does() {
    let (shell, provider) = (Shell::new(), Provider::start().await);
    let mut browser = Browser::new();
    // A restarted daemon has not read the provider's configuration, which is gone now.
    let daemon = daemon_for_browsers(&shell, &provider);
    let back = browser.ask(&daemon, "/ui").await;
    browser.get(&format!("{}{back}", daemon.url)).await;
    assert_eq!(daemon.stop(), Some(0));
    provider.gone.store(true, Ordering::SeqCst);
    let daemon = daemon_for_browsers(&shell, &provider);
    assert_eq!(browser.leave(&daemon).await, "/ui/login");
    assert_eq!(browser.get(&format!("{}/ui/runs", daemon.url)).await.status, 303);
    assert_eq!(daemon.stop(), Some(0));

    provider.gone.store(false, Ordering::SeqCst);
    let daemon = daemon_with(&shell, &provider, "sign_out = false\n");
    browser.cookies.clear();
    let back = browser.ask(&daemon, "/ui").await;
    browser.get(&format!("{}{back}", daemon.url)).await;
    assert_eq!(browser.leave(&daemon).await, "/ui/login", "the provider is left alone");
}

#[tokio::test]
async fn an_answer_of_the_provider_counts_in_the_browser_that_asked_and_for_its_client_only() {
    let (shell, provider) = (Shell::new(), Provider::start().await);
    let daemon = daemon_for_browsers(&shell, &provider);
    // Another browser, such as one to which somebody sends the link.
    let back = Browser::new().ask(&daemon, "/ui").await;
    let mut victim = Browser::new();
    let refused = victim.get(&format!("{}{back}", daemon.url)).await;
    assert_eq!(refused.status, 401);
    assert!(refused.text.contains("did not begin in this browser"), "{}", refused.text);
    victim.ask(&daemon, "/ui").await;
    let refused = victim.get(&format!("{}{back}", daemon.url)).await;
    assert_eq!(refused.status, 401, "a state of somebody else");
    assert!(victim.cookies.is_empty());

    // A code of somebody else, put into one's own answer: the verifier does not fit.
    let stolen = Browser::new().ask(&daemon, "/ui").await;
    let code =
        |back: &str| back.split("code=").nth(1).unwrap().split('&').next().unwrap().to_owned();
    let own = victim.ask(&daemon, "/ui").await;
    let mixed = own.replace(&code(&own), &code(&stolen));
    let refused = victim.get(&format!("{}{mixed}", daemon.url)).await;
    assert!(refused.text.contains("did not confirm"), "{}", refused.text);
    // An answer of another provider.
    let own = victim.ask(&daemon, "/ui").await;
    let other = own.replace("iss=http", "iss=https");
    let refused = victim.get(&format!("{}{other}", daemon.url)).await;
    assert!(refused.text.contains("of another provider"), "{}", refused.text);
    // A refusal of the provider is told without its words.
    let own = victim.ask(&daemon, "/ui").await;
    let state = own.split("state=").nth(1).unwrap().split('&').next().unwrap();
    let denied = format!("/ui/login/oidc/callback?state={state}&error=access_denied%3Cb%3E");
    let refused = victim.get(&format!("{}{denied}", daemon.url)).await;
    assert!(refused.text.contains("the provider refused: access_deniedb"), "{}", refused.text);
    for next in ["https://evil.example", "//evil.example", "/v1/runs"] {
        let back = victim.ask(&daemon, next).await;
        let signed_in = victim.get(&format!("{}{back}", daemon.url)).await;
        assert_eq!(signed_in.to, "0; url=/ui", "{next}");
        victim.cookies.clear();
    }

    for (claims, status, expected) in [
        (json!({ "aud": "swarm" }), 401, "refused"),
        (json!({ "aud": "browsers", "nonce": "another" }), 401, "not made for this sign-in"),
        (json!({ "aud": "browsers", "nonce": null }), 401, "not made for this sign-in"),
        (json!({ "aud": ["browsers", "other"] }), 401, "another client"),
        (json!({ "aud": "browsers", "azp": "other" }), 401, "another client"),
        (json!({ "aud": "browsers", "iss": "https://other.example" }), 401, "refused"),
        (json!({ "aud": "browsers", "exp": 1_700_000_000 }), 401, "refused"),
        (json!({ "aud": "browsers", "groups": ["guests"] }), 403, "has no role"),
    ] {
        *provider.claims.lock().unwrap() = claims.clone();
        let back = victim.ask(&daemon, "/ui").await;
        let refused = victim.get(&format!("{}{back}", daemon.url)).await;
        assert_eq!(refused.status, status, "{claims}: {}", refused.text);
        assert!(refused.text.contains(expected), "{claims}: {}", refused.text);
        assert!(victim.cookies.is_empty(), "{claims}");
    }
}

#[tokio::test]
async fn who_makes_codes_up_keeps_nobody_else_from_signing_in() {
    let (shell, provider) = (Shell::new(), Provider::start().await);
    let daemon = daemon_for_browsers(&shell, &provider);
    let stranger = [127, 0, 0, 3];
    let made_up = async || {
        let mut browser = Browser::at(stranger);
        let begun = browser.get(&format!("{}/ui/login/oidc?at=own", daemon.url)).await.to;
        let state = begun.split("state=").nth(1).unwrap().split('&').next().unwrap();
        let callback = format!("/ui/login/oidc/callback?code={HANGS}&state={state}");
        (browser, format!("{}{callback}", daemon.url))
    };
    let mut waiting = Vec::new();
    for _ in 0..8 {
        let (mut browser, url) = made_up().await;
        waiting.push(tokio::spawn(async move { browser.get(&url).await.status }));
    }
    eventually("eight codes at the provider", async || {
        let hanging = provider.hanging.load(Ordering::SeqCst);
        when(hanging == 8, hanging)
    })
    .await;
    let (mut browser, url) = made_up().await;
    assert_eq!(browser.get(&url).await.status, 429, "this client has its share");
    let mut browser = Browser::new();
    let back = browser.ask(&daemon, "/ui").await;
    let signed_in = browser.get(&format!("{}{back}", daemon.url)).await;
    assert_eq!(signed_in.status, 200, "{}", signed_in.text);
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn without_a_client_browsers_do_not_sign_in_with_the_provider() {
    let (shell, provider) = (Shell::new(), Provider::start().await);
    let daemon = daemon(&shell, &provider, "\"127.0.0.1\"");
    let mut browser = Browser::new();
    assert_eq!(browser.get(&format!("{}/ui/login/oidc", daemon.url)).await.status, 404);
    let callback = format!("{}/ui/login/oidc/callback?state=x&code=y", daemon.url);
    assert_eq!(browser.get(&callback).await.status, 404);
    assert!(!browser.get(&format!("{}/ui/login", daemon.url)).await.text.contains("oidc"));
}
