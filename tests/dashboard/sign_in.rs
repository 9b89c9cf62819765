//! Signing in: tokens, links, cookies, forms, and the end of it.

use reqwest::{
    Method,
    header::{COOKIE, ORIGIN, SET_COOKIE},
};
use serde_json::json;

use crate::{
    person::{Person, daemon, form, get_bare, mint, post_bare},
    shim::Shim,
    support::{Daemon, program, send},
};

#[tokio::test]
async fn a_token_signs_in_and_its_cookie_is_for_pages_alone() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path()).await;
    let refused = get_bare(&daemon, "/ui/runs?status=failed").await;
    assert_eq!(
        (refused.status, refused.to.as_str()),
        (303, "/ui/login?next=%2Fui%2Fruns%3Fstatus%3Dfailed")
    );

    let fields = [("token", daemon.token.as_str()), ("next", "/ui/runs?status=failed")];
    let shown = post_bare(&daemon, "/ui/login", &fields).await;
    assert_eq!((shown.status, shown.to.as_str()), (303, "/ui/runs?status=failed"));
    let cookie = shown.headers[SET_COOKIE].to_str().unwrap().to_owned();
    assert!(cookie.ends_with("; Path=/ui; Max-Age=604800; HttpOnly; SameSite=Strict"), "{cookie}");
    let (name, secret) = cookie.split(';').next().unwrap().split_once('=').unwrap();

    // Neither as a cookie nor as a bearer does it open the API.
    let as_cookie = daemon.bare(Method::GET, "/v1/runs").header(COOKIE, format!("{name}={secret}"));
    assert_eq!(send(as_cookie).await.0, 401);
    assert_eq!(send(daemon.with(secret, Method::GET, "/v1/runs")).await.0, 401);
    // Nor does a bearer open a page.
    let bearer = daemon.with(&daemon.token, Method::GET, "/ui/live/runs");
    assert_eq!(send(bearer).await.0, 401);
    // The cookie and its token are nowhere in the data directory.
    for file in std::fs::read_dir(dir.path().join("data")).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap_or_default();
        assert!(!bytes.windows(secret.len()).any(|part| part == secret.as_bytes()));
    }
}

#[tokio::test]
async fn a_sign_in_that_nobody_uses_ends_also_while_its_page_is_open() {
    let dir = tempfile::tempdir().unwrap();
    let (shim, ahead) = (Shim::build(dir.path(), "no file"), dir.path().join("ahead"));
    let clock = ("MOONSWARM_FAULT_CLOCK", ahead.to_str().unwrap());
    let env: Vec<_> = shim.env().into_iter().chain([clock]).collect();
    let daemon = Daemon::launch(&dir.path().join("data"), &env).unwrap();
    let hours_later = |hours: u32| std::fs::write(&ahead, (hours * 3_600).to_string()).unwrap();
    let gone = Person::with(&daemon, &daemon.token).await;
    let works = Person::with(&daemon, &daemon.token).await;
    hours_later(5);
    assert_eq!(gone.head("/ui/runs").await.status, 200, "its page looks by itself");
    assert_eq!(works.get("/ui/runs").await.status, 200);
    hours_later(9);
    let shown = gone.get("/ui/runs").await;
    assert_eq!((shown.status, shown.to.as_str()), (303, "/ui/login?next=%2Fui%2Fruns"));
    assert_eq!(works.get("/ui/runs").await.status, 200);
}

#[tokio::test]
async fn what_is_no_token_for_the_api_is_refused_with_a_page() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path()).await;
    let queue = mint(&daemon, "queue", &json!({ "scopes": ["queue:x"] })).await;
    for (token, status, words) in [
        ("", 401, "token"),
        ("nonsense", 401, "token"),
        ("once_0000", 401, "older than a minute"),
        (queue.as_str(), 403, "may not run.read"),
    ] {
        let shown = post_bare(&daemon, "/ui/login", &[("token", token)]).await;
        assert_eq!(shown.status, status, "{token}: {}", shown.html);
        assert!(
            shown.html.contains(words) && shown.html.contains("name=\"token\""),
            "{}",
            shown.html
        );
        assert!(!shown.headers.contains_key(SET_COOKIE));
    }
}

#[tokio::test]
async fn a_login_or_a_form_from_elsewhere_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path()).await;
    let person = Person::of_role(&daemon, "operator").await;
    let run = person.starts("moon").await;
    let path = format!("/ui/runs/{run}/cancel");
    let own = person.get("/ui").await.hidden("form");
    let other = Person::of_role(&daemon, "operator").await.get("/ui").await.hidden("form");
    assert_ne!(own, other);
    let cases = [
        (vec![], Some(daemon.url.as_str()), "form_refused"),
        (vec![("form", "")], Some(daemon.url.as_str()), "form_refused"),
        (vec![("form", other.as_str())], Some(daemon.url.as_str()), "form_refused"),
        (vec![("form", own.as_str())], None, "origin_not_allowed"),
        (vec![("form", own.as_str())], Some("null"), "origin_not_allowed"),
        (vec![("form", own.as_str())], Some("http://evil.example"), "origin_not_allowed"),
    ];
    for (fields, origin, code) in cases {
        let mut request = person.request(&path, &fields);
        if let Some(origin) = origin {
            request = request.header(ORIGIN, origin);
        }
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status(), 403);
        let html = answer.text().await.unwrap();
        assert!(html.contains(code), "{origin:?} {fields:?}: {html}");
    }
    let login = form(&daemon, "/ui/login", &[("token", &daemon.token)]).send().await.unwrap();
    assert_eq!(login.status(), 403, "a login without an origin");
    let (_, view) = send(daemon.get(&format!("/v1/runs/{run}"))).await;
    assert_ne!(view["status"], "canceled", "none of them did anything");
}

#[tokio::test]
async fn signing_out_ends_the_token_behind_the_sign_in() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path()).await;
    let token = mint(&daemon, "operator", &json!({ "name": "ann" })).await;
    let (one, other) = (Person::with(&daemon, &token).await, Person::with(&daemon, &token).await);
    let gone = one.post("/ui/logout", &[]).await;
    assert_eq!((gone.status, gone.to.as_str()), (303, "/ui/login"));
    assert!(gone.headers[SET_COOKIE].to_str().unwrap().contains("Max-Age=0"));
    assert_eq!(one.get("/ui").await.status, 303);
    assert_eq!(other.get("/ui").await.status, 200, "another sign-in stays");
    assert_eq!(send(daemon.with(&token, Method::GET, "/v1/runs")).await.0, 200);
    let (_, tokens) = send(daemon.get("/v1/tokens")).await;
    let anns: Vec<_> =
        tokens["items"].as_array().unwrap().iter().filter(|it| it["subject"] == "ann").collect();
    assert_eq!(anns.len(), 3, "a person stays one person: {anns:?}");
    assert_eq!(anns.iter().filter(|it| !it["revoked_at"].is_null()).count(), 1);
}

#[tokio::test]
async fn a_token_has_twenty_sign_ins_and_one_more_ends_the_oldest() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path()).await;
    let token = mint(&daemon, "observer", &json!({ "name": "ann" })).await;
    let mut people = Vec::new();
    for _ in 0..21 {
        people.push(Person::with(&daemon, &token).await);
    }
    assert_eq!(people[0].get("/ui").await.status, 303, "the oldest one has ended");
    for person in &people[1..] {
        assert_eq!(person.get("/ui").await.status, 200, "the others go on");
    }
    // Also when many begin at the same time, and after the next start.
    let at_once = (0..30).map(|_| Person::with(&daemon, &token));
    let at_once = futures::future::join_all(at_once).await;
    let cookies: Vec<String> = at_once.into_iter().map(|it| it.cookie).collect();
    let good = async |daemon: &Daemon| {
        let mut good = Vec::new();
        for cookie in &cookies {
            good.push(crate::person::get_with(daemon, "/ui", cookie).await.status == 200);
        }
        good
    };
    let before = good(&daemon).await;
    assert_eq!(before.iter().filter(|it| **it).count(), 20, "{before:?}");
    let (_, tokens) = send(daemon.get("/v1/tokens")).await;
    let anns = tokens["items"].as_array().unwrap().iter().filter(|it| it["subject"] == "ann");
    assert_eq!(anns.count(), 21, "the token, and those of its sign-ins");
    daemon.kill();
    let next = Daemon::start(&dir.path().join("data"));
    assert_eq!(good(&next).await, before);
}

#[tokio::test]
async fn a_revoked_token_takes_its_sign_ins_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path()).await;
    let (_, minted) =
        send(daemon.post("/v1/tokens", &json!({ "role": "observer", "ttl": "1h" }))).await;
    let person = Person::with(&daemon, minted["token"].as_str().unwrap()).await;
    assert_eq!(person.get("/ui").await.status, 200);
    let jti = minted["jti"].as_str().unwrap();
    assert_eq!(send(daemon.delete(&format!("/v1/tokens/{jti}"))).await.0, 204);
    assert_eq!(person.get("/ui").await.status, 303);
}

#[tokio::test]
async fn a_sign_in_outlives_the_process_and_grants_nothing_that_needs_the_token_itself() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path()).await;
    let cookie = Person::with(&daemon, &daemon.token).await.cookie;
    let (_, tokens) = send(daemon.get("/v1/tokens")).await;
    let newest = &tokens["items"][0];
    let verbs = newest["verbs"].to_string();
    for never in [
        "token.mint",
        "token.revoke",
        "key.rotate",
        "run.source",
        "run.delete",
        "blueprint.write",
        "host.backup",
    ] {
        assert!(!verbs.contains(never), "{never}: {newest}");
    }
    daemon.kill();
    let next = Daemon::start(&dir.path().join("data"));
    let shown = crate::person::get_with(&next, "/ui", &cookie).await;
    assert_eq!(shown.status, 200, "{}", shown.html);
}

#[tokio::test]
async fn a_link_signs_in_once_with_its_role() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path()).await;
    for role in ["observer", "approver", "operator", "admin", ""] {
        let words = ["--role", role];
        let words = if role.is_empty() { &words[..0] } else { &words };
        let link = open(&dir.path().join("data"), words);
        // The owner's own role, if none is named.
        let role = if role.is_empty() { "admin" } else { role };
        let (page, code) = link.split_once("#code=").unwrap();
        assert!(page.contains(".localhost:") && page.ends_with("/ui/login"), "{link}");
        let shown = post_bare(&daemon, "/ui/login", &[("token", code)]).await;
        assert_eq!(shown.status, 303, "{}", shown.html);
        let cookie =
            shown.headers[SET_COOKIE].to_str().unwrap().split(';').next().unwrap().to_owned();
        let page = crate::person::get_with(&daemon, "/ui", &cookie).await.page();
        assert!(page.contains(&format!("<dt>Role</dt><dd>{role}</dd>")), "{page}");
        let again = post_bare(&daemon, "/ui/login", &[("token", code)]).await;
        assert_eq!(again.status, 401, "{}", again.html);
    }
}

#[tokio::test]
async fn a_link_signs_in_anew_where_somebody_is_signed_in() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path()).await;
    let admin = Person::with(&daemon, &daemon.token).await;
    // The code is in the fragment of the link, which no server is sent: the form brings it.
    let page = admin.get("/ui/login").await.page();
    assert!(page.contains("class=\"sign-in\"") && page.contains("/sign_in-"), "{page}");
    let asked = admin.get("/ui/login?next=%2Fui%2Fruns").await;
    assert_eq!((asked.status, asked.to.as_str()), (303, "/ui/runs"));
}

#[tokio::test]
async fn a_link_needs_a_token_that_may_make_others() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path()).await;
    let code = |token: String, role: &'static str| {
        send(daemon.with(&token, Method::POST, "/ui/codes").json(&json!({ "role": role })))
    };
    let operator = mint(&daemon, "operator", &json!({})).await;
    let approver = mint(&daemon, "approver", &json!({})).await;
    assert_eq!(code(operator.clone(), "operator").await.0, 201);
    let own = daemon.with(&operator, Method::POST, "/ui/codes").json(&json!({}));
    assert_eq!(send(own).await.1["role"], "operator");
    let (status, refused) = code(operator.clone(), "admin").await;
    assert_eq!((status, refused["code"].as_str()), (403, Some("token_widens")));
    let (status, refused) = code(approver, "approver").await;
    assert_eq!((status, refused["code"].as_str()), (403, Some("forbidden_verb")));
    assert_eq!(code(operator, "worker").await.1["code"], "token_widens");
    let (status, _) =
        send(daemon.bare(Method::POST, "/ui/codes").json(&json!({ "role": "observer" }))).await;
    assert_eq!(status, 401);
}

/// The link of `moonswarm open`.
pub fn open(data: &std::path::Path, words: &[&str]) -> String {
    let done =
        program().args(["open", "--print", "--data"]).arg(data).args(words).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap().trim().to_owned()
}
