//! The pages of the host's things: triggers, state, tokens, operators.

use serde_json::json;

use crate::{
    person::Person,
    support::{Daemon, send},
};

const NIGHTLY: &str = r#"
return require("swarm").blueprint {
  name = "nightly",
  on = { { schedule = "0 7 * * *", input = 1 }, { signal = "<b>opened" } },
  flow = function(ctx, input) return input end,
}
"#;

async fn publish(daemon: &Daemon, name: &str, source: &str) {
    let body = json!({ "source": source });
    let (status, view) = send(daemon.put(&format!("/v1/blueprints/{name}"), &body)).await;
    assert_eq!(status, 200, "{view}");
}

/// Gives a daemon a few things to look at.
pub async fn furnish(daemon: &Daemon) {
    publish(daemon, "nightly", &NIGHTLY.replace("0 7 * * *", "0 6 * * *")).await;
    publish(daemon, "nightly", NIGHTLY).await;
    for (key, value) in [("plan%2Fmoon", json!({ "text": "a full moon rises" })), ("top", json!(1))]
    {
        let path = format!("/v1/state/custom:notes/{key}");
        assert_eq!(send(daemon.put(&path, &json!({ "value": value }))).await.0, 200);
    }
    let signal = daemon.post("/v1/blueprints/nightly/signals/<b>opened", &json!(1));
    assert_eq!(send(signal).await.0, 201);
}

#[tokio::test]
async fn a_trigger_is_paused_resumed_and_fired_from_its_page() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&dir.path().join("data"));
    publish(&daemon, "nightly", NIGHTLY).await;
    let (_, list) = send(daemon.get("/v1/triggers")).await;
    let id = list["items"][0]["id"].as_str().unwrap().to_owned();
    let desk = Person::of_role(&daemon, "operator").await;
    let page = desk.get("/ui/triggers").await.page();
    for part in
        ["0 7 * * *", &id, "Pause", "Fire now", "moonswarm triggers pause", "&lt;b&gt;opened"]
    {
        assert!(page.contains(part), "{part}: {page}");
    }
    let act = |act: &str| format!("/ui/triggers/{id}/{act}");
    let sent = desk.post(&act("pause"), &[]).await;
    assert_eq!(sent.to, format!("/ui/triggers?done=pause#{id}"));
    let page = desk.get("/ui/triggers?done=pause").await.page();
    assert!(page.contains("⏸ paused") && page.contains("Resume"), "{page}");
    desk.post(&act("resume"), &[]).await;
    assert!(!desk.get("/ui/triggers").await.page().contains("⏸ paused"));
    let sent = desk.post(&act("fire"), &[]).await;
    let run = sent.to.rsplit('/').next().unwrap().to_owned();
    assert_eq!(daemon.ended(&run).await["output"], 1);

    let observer = Person::of_role(&daemon, "observer").await;
    let page = observer.get("/ui/triggers").await.page();
    assert!(
        page.contains(&id) && !page.contains("Fire now") && !page.contains(">Pause<"),
        "{page}"
    );
    assert_eq!(observer.post(&act("pause"), &[]).await.status, 403);
}

#[tokio::test]
async fn state_is_browsed_as_a_tree_searched_and_changed_from_its_pages() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&dir.path().join("data"));
    for (key, value) in [
        ("plan/<b>a", json!("a full <i>moon</i> rises")),
        ("plan/b", json!({ "n": 1 })),
        ("plan/deep/c", json!(3)),
        ("top", json!("x".repeat(20_000))),
    ] {
        let key = key.replace('/', "%2F").replace('<', "%3C").replace('>', "%3E");
        let path = format!("/v1/state/custom:notes/{key}");
        let (status, body) = send(daemon.put(&path, &json!({ "value": value }))).await;
        assert_eq!(status, 200, "{body}");
    }
    let link = json!({ "ops": [{ "op": "link", "scope": "custom:notes", "key": "plan/b", "to": "top", "relation": "of" }] });
    assert_eq!(send(daemon.post("/v1/state/batch", &link)).await.0, 200);

    let desk = Person::of_role(&daemon, "operator").await;
    let all = desk.get("/ui/state").await.page();
    assert!(all.contains("/ui/state?scope=custom%3Anotes"), "{all}");
    let scope = desk.get("/ui/state?scope=custom:notes").await.page();
    assert!(scope.contains("▸ <bdi>plan/</bdi>") && scope.contains(">top<"), "{scope}");
    assert!(!scope.contains("deep"), "a folder is folded: {scope}");
    let folder = desk.get("/ui/state?scope=custom:notes&prefix=plan/").await.page();
    assert!(folder.contains("&lt;b&gt;a") && folder.contains("▸ <bdi>deep/</bdi>"), "{folder}");
    let found = desk.get("/ui/state?scope=custom:notes&q=moon").await.page();
    assert!(found.contains("<mark>moon</mark>") && !found.contains("<i>"), "{found}");

    let path = "/ui/state/value?scope=custom:notes&key=plan/b";
    let shown = desk.get(path).await;
    let revision = shown.hidden("revision");
    let page = shown.page();
    assert!(page.contains("Links to") && page.contains("key=top"), "{page}");
    assert!(page.contains("moonswarm state set --scope custom:notes --if-revision"), "{page}");
    let put = |value: &'static str| {
        let fields = [
            ("scope", "custom:notes"),
            ("key", "plan/b"),
            ("revision", &revision),
            ("value", value),
        ];
        let fields = fields.map(|(name, value)| (name, value.to_owned()));
        let desk = &desk;
        async move {
            let fields: Vec<_> =
                fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
            desk.post("/ui/state/put", &fields).await
        }
    };
    assert_eq!(put("{").await.status, 400);
    let done = put("{\"n\": 2}").await;
    assert_eq!(
        done.to, "/ui/state/value?scope=custom%3Anotes&key=plan%2Fb&done=put",
        "{}",
        done.html
    );
    let stale = put("{\"n\": 3}").await;
    assert!(stale.status == 409 && stale.html.contains("revision_mismatch"), "{}", stale.html);
    let fields = [("scope", "custom:notes"), ("key", "plan/b"), ("revision", "2")];
    assert_eq!(desk.post("/ui/state/delete", &fields).await.status, 303);
    assert_eq!(desk.get(path).await.status, 404);

    let observer = Person::of_role(&daemon, "observer").await;
    let page = observer.get("/ui/state/value?scope=custom:notes&key=top").await.page();
    assert!(page.contains("Show all of it") && !page.contains("/ui/state/put"), "{page}");
    let fields = [("scope", "custom:notes"), ("key", "top"), ("revision", "1"), ("value", "1")];
    assert_eq!(observer.post("/ui/state/put", &fields).await.status, 403);
    let approver = Person::of_role(&daemon, "approver").await;
    assert_eq!(approver.get("/ui/state").await.status, 403);
}

#[tokio::test]
async fn a_token_is_minted_and_revoked_only_with_a_token_that_is_entered_again() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&dir.path().join("data"));
    let person = Person::with(&daemon, &daemon.token).await;
    let fields = |token: &'static str| {
        [
            ("role", "approver"),
            ("name", "ann"),
            ("ttl", "1h"),
            ("scopes", "task:*\n"),
            ("verbs", ""),
            ("token", token),
        ]
    };
    for wrong in ["", "nonsense", "wh_nothing"] {
        let shown = person.post("/ui/tokens/mint", &fields(wrong)).await;
        assert_eq!(shown.status, 403, "{wrong}: {}", shown.html);
    }
    let mut right = fields("");
    right[5].1 = &daemon.token;
    let shown = person.post("/ui/tokens/mint", &right).await;
    assert_eq!(shown.status, 201, "{}", shown.html);
    assert_eq!(shown.headers["cache-control"], "no-store");
    let token = shown.html.split("tabindex=\"0\">").nth(1).unwrap().split('<').next().unwrap();
    let (status, own) = send(daemon.with(token, reqwest::Method::GET, "/v1/tokens/self")).await;
    assert_eq!((status, &own["subject"]), (200, &json!("ann")), "{own}");
    let jti = own["jti"].as_str().unwrap();

    let page = person.get(&format!("/ui/tokens?jti={jti}")).await.page();
    assert!(page.contains("ann") && !page.contains(token), "{page}");
    let fields = [("jti", jti), ("token", "nonsense")];
    assert_eq!(person.post("/ui/tokens/revoke", &fields).await.status, 403);
    let fields = [("jti", jti), ("token", daemon.token.as_str())];
    assert_eq!(person.post("/ui/tokens/revoke", &fields).await.to, "/ui/tokens?done=revoke");
    let (status, _) = send(daemon.with(token, reqwest::Method::GET, "/v1/tokens/self")).await;
    assert_eq!(status, 401);

    // An approver sees its own token alone, and what it may not do stays refused with a token of its own.
    let plain = crate::person::mint(&daemon, "approver", &json!({})).await;
    let approver = Person::with(&daemon, &plain).await;
    let page = approver.get("/ui/tokens").await.page();
    assert!(page.contains("This sign-in") && !page.contains("All tokens"), "{page}");
    let mut tried = right;
    tried[5].1 = &plain;
    assert_eq!(approver.post("/ui/tokens/mint", &tried).await.status, 403);
}

#[tokio::test]
async fn operators_are_shown_with_queues_and_workers_and_a_seat_is_taken_over() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&dir.path().join("data"));
    let open = async || {
        let request = daemon.post("/v1/operators/main-ai/sessions", &json!({}));
        let (status, opened) = send(request).await;
        assert_eq!(status, 201, "{opened}");
        opened["session"].as_str().unwrap().to_owned()
    };
    let (first, second) = (open().await, open().await);
    let source = r#"return require("swarm").blueprint { name = "seats",
      agents = { a = { operator = "main-ai", prompt = "x", worker = { subagent_type = "coder" } }, q = { operator = "queue", queue = "jobs", prompt = "y" } },
      flow = function(ctx) return ctx:all { function() return ctx:run("a", {}) end, function() return ctx:run("q", {}) end } end }"#;
    let body = json!({ "source": source, "seats": { "main-ai": first } });
    let (status, run) = send(daemon.post("/v1/runs", &body)).await;
    assert_eq!(status, 201, "{run}");
    let run = run["id"].as_str().unwrap();
    daemon.waits(run, "task").await;

    let desk = Person::of_role(&daemon, "operator").await;
    let page = desk.get("/ui/operators").await.page();
    let parts = [first.as_str(), "jobs", "Take over a seat", "No worker was seen", "Last seen"];
    for part in parts.into_iter().chain(["not since the start"]) {
        assert!(page.contains(part), "{part}: {page}");
    }
    let fields = [("run", run), ("session", second.as_str())];
    let sent = desk.post("/ui/operators/seat", &fields).await;
    assert_eq!(sent.to, "/ui/operators?done=seat", "{}", sent.html);
    let (_, view) = send(daemon.get(&format!("/v1/runs/{run}"))).await;
    assert!(view["seats"].to_string().contains(&second), "{view}");
    let unknown = [("run", run), ("session", "ses_nothing")];
    assert_eq!(desk.post("/ui/operators/seat", &unknown).await.status, 404);
    let observer = Person::of_role(&daemon, "observer").await;
    assert!(!observer.get("/ui/operators").await.page().contains("Take over a seat"));
    assert_eq!(observer.post("/ui/operators/seat", &fields).await.status, 403);
}

#[tokio::test]
async fn an_admin_sees_the_settings_of_operators_and_no_secret() {
    let dir = tempfile::tempdir().unwrap();
    let config = "[operators.hook]\nkind = \"http\"\nurl = \"https://a.example/x?key=hush\"\n\
        headers = { Authorization = { env = \"HOOK_KEY\", prefix = \"Bearer \" }, X-Plain = \"hush\" }\n";
    let toml = dir.path().join("moonswarm.toml");
    std::fs::write(&toml, config).unwrap();
    let flags = ["--config".as_ref(), toml.as_os_str()];
    let daemon = Daemon::start_with(&dir.path().join("data"), &flags);
    let admin = Person::with(&daemon, &daemon.token).await;
    let page = admin.get("/ui/operators").await.page();
    let parts = ["from the variable HOOK_KEY", "a.example/x?…", "answer_within", "60s"];
    for part in parts {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(!page.contains("hush"), "{page}");
    let desk = Person::of_role(&daemon, "operator").await;
    let page = desk.get("/ui/operators").await.page();
    assert!(page.contains("hook") && !page.contains("Settings"), "{page}");
}

#[tokio::test]
async fn the_system_is_shown_and_a_backup_needs_the_token_again() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&dir.path().join("data"));
    let admin = Person::with(&daemon, &daemon.token).await;
    let page = admin.get("/ui/system").await.page();
    for part in ["What doctor says", "Effective configuration", "Back up now", "Free on its disk"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert_eq!(admin.post("/ui/system/backup", &[("token", "nonsense")]).await.status, 403);
    let approver = crate::person::mint(&daemon, "approver", &json!({})).await;
    assert_eq!(admin.post("/ui/system/backup", &[("token", &approver)]).await.status, 403);
    let request = admin.request(
        "/ui/system/backup",
        &[("form", &admin.get("/ui").await.hidden("form")), ("token", &daemon.token)],
    );
    let answer = request.header("origin", &daemon.url).send().await.unwrap();
    assert!(answer.headers()["content-disposition"].to_str().unwrap().starts_with("attachment"));
    assert!(answer.bytes().await.unwrap().starts_with(b"SQLite format 3"));

    let observer = Person::of_role(&daemon, "observer").await;
    let page = observer.get("/ui/system").await.page();
    for part in ["What doctor says", "Effective configuration", "Back up now"] {
        assert!(!page.contains(part), "{part}: {page}");
    }
}

#[tokio::test]
async fn keys_are_rotated_with_the_token_that_is_entered_again() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&dir.path().join("data"));
    let observer = Person::of_role(&daemon, "observer").await;
    assert!(!observer.get("/ui/system").await.page().contains("Rotate keys"));
    let admin = Person::with(&daemon, &daemon.token).await;
    assert!(admin.get("/ui/system").await.page().contains("moonswarm key rotate"));
    let path = "/ui/system/keys";
    let fields = |token: &str, keys: &str, grace: &str| {
        [("token", token), ("keys", keys), ("grace", grace)]
            .map(|(a, b)| (a.to_owned(), b.to_owned()))
    };
    let post = async |fields: [(String, String); 3], now: &str| {
        let mut all: Vec<(&str, &str)> =
            fields.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
        all.extend((!now.is_empty()).then_some(("now", now)));
        admin.post(path, &all).await
    };
    let approver = crate::person::mint(&daemon, "approver", &json!({})).await;
    assert_eq!(post(fields("", "both", "7d"), "").await.status, 403, "a sign-in is not enough");
    assert_eq!(post(fields(&approver, "both", "7d"), "").await.status, 403);
    assert_eq!(post(fields(&daemon.token, "all", "7d"), "").await.status, 400);
    assert_eq!(post(fields(&daemon.token, "both", "0s"), "").await.status, 400);
    let done = post(fields(&daemon.token, "signing", "1h"), "").await;
    assert!(
        done.status == 200 && done.html.contains("The previous keys stop verifying"),
        "{}",
        done.html
    );
    let of_pre = |html: &str| {
        let token = html.split("<pre class=\"clip\" tabindex=\"0\">").nth(1)?;
        Some(token.split('<').next()?.to_owned())
    };
    let token = of_pre(&done.html).unwrap();
    assert_ne!(token, daemon.token);
    assert_eq!(admin.get("/ui/system").await.status, 200, "within the grace the sign-in is good");
    let done = post(fields(&token, "both", ""), "on").await;
    assert!(done.status == 200 && done.html.contains("is refused"), "{}", done.html);
    let newest = of_pre(&done.html).unwrap();
    assert_eq!(admin.get("/ui/system").await.status, 303, "it has ended");
    assert_eq!(Person::with(&daemon, &newest).await.get("/ui/system").await.status, 200);
}

#[tokio::test]
async fn a_question_of_a_worker_is_in_the_inbox_and_answered_there() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&dir.path().join("data"));
    let source = r#"return require("swarm").blueprint { name = "asks", agents = { w = { operator = "queue", queue = "q" } },
      flow = function(ctx) return ctx:run("w", {}) end }"#;
    let run = daemon.run_source(source, json!({})).await;
    let lease = json!({ "queue": "q", "wait": "20s" });
    let (_, leased) = send(daemon.post("/v1/worker/lease", &lease)).await;
    let handle = leased[0]["handle"].as_str().unwrap();
    let question = format!("Tabs or <b>spaces</b>? {}", "Which? ".repeat(40));
    let asks = daemon.with(handle, reqwest::Method::POST, "/v1/worker/escalate");
    let body = json!({ "question": question, "data": { "file": "<i>a.c" } });
    assert_eq!(send(asks.json(&body)).await.0, 204);

    let senior = Person::of_role(&daemon, "senior").await;
    let list = senior.get("/ui/inbox").await.page();
    assert!(list.contains("asks: <bdi>Tabs or &lt;b&gt;spaces"), "{list}");
    assert!(senior.get("/ui/inbox?q=tabs").await.page().contains("asks:"));
    assert!(!senior.get("/ui/inbox?q=braces").await.page().contains("asks:"));
    let (_, tasks) = send(daemon.get("/v1/tasks")).await;
    let short = tasks["items"][0]["question"].as_str().unwrap();
    assert!(short.len() == 120 && tasks["items"][0].get("question_data").is_none(), "{tasks}");
    let path = format!("/ui/inbox/{}", tasks["items"][0]["id"].as_str().unwrap());
    assert!(list.contains(&path), "{list}");
    let desk = Person::of_role(&daemon, "operator").await;
    assert!(
        desk.get(&format!("/ui/runs/{run}")).await.page().contains(&path),
        "the run leads there"
    );
    let page = desk.get(&path).await.page();
    assert!(page.contains("gives no advice") && !page.contains("/advice\""), "{page}");
    let advice = format!("{path}/advice");
    assert_eq!(desk.post(&advice, &[("advice", "tabs")]).await.status, 403);
    let page = senior.get(&path).await.page();
    for part in ["&lt;b&gt;spaces", &"Which? ".repeat(40), "&lt;i&gt;a.c", "moonswarm advise task_"]
    {
        assert!(page.contains(part), "{part}: {page}");
    }
    let stale = senior.post(&advice, &[("advice", "none"), ("revision", "0000")]).await;
    assert!(stale.status == 409 && stale.html.contains("stale_task"), "{}", stale.html);
    let revision = stale.hidden("revision");
    let fields = [("advice", "both\r\n\"of\" <them>"), ("revision", revision.as_str())];
    let sent = senior.post(&advice, &fields).await;
    assert_eq!(sent.to, format!("/ui/inbox?done=answer&run={run}"), "{}", sent.html);
    let prompt = daemon.with(handle, reqwest::Method::GET, "/v1/worker/prompt");
    assert_eq!(send(prompt).await.1["advice"]["answer"], "both\n\"of\" <them>");
    let late = senior.post(&advice, &[("advice", "late")]).await;
    assert!(late.status == 409 && late.html.contains("no_question"), "{}", late.html);
    assert!(!senior.get("/ui/inbox").await.page().contains("asks:"));
}

#[tokio::test]
async fn the_inbox_has_lists_of_what_is_open_mine_and_answered() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = crate::person::daemon(dir.path()).await;
    let desk = Person::of_role(&daemon, "operator").await;
    let run = desk.starts("moon").await;
    daemon.waits(&run, "task").await;
    let ann = Person::with(
        &daemon,
        &crate::person::mint(&daemon, "approver", &json!({ "name": "ann" })).await,
    )
    .await;
    let (_, tasks) = send(daemon.get("/v1/tasks")).await;
    let task = tasks["items"][0]["id"].as_str().unwrap().to_owned();
    for show in ["", "mine"] {
        let page = ann.get(&format!("/ui/inbox?show={show}")).await.page();
        assert!(page.contains(&task) && page.contains("For me"), "{show}: {page}");
    }
    // Each list has the commands that make it, and is searched by the texts of its tasks.
    for (show, line, path) in [
        ("", "moonswarm inbox", "/v1/tasks?kind=human"),
        ("mine", "moonswarm inbox --mine", "/v1/tasks?kind=human&amp;mine=true"),
        ("answered", "moonswarm inbox --answered", "/v1/tasks?state=answered"),
        (
            "answered-mine",
            "moonswarm inbox --answered --mine",
            "/v1/tasks?state=answered&amp;mine=true",
        ),
    ] {
        let page = ann.get(&format!("/ui/inbox?show={show}")).await.page();
        let (line, path) = (format!(">{line}</pre>"), format!("{path}'</pre>"));
        assert!(page.contains(&line) && page.contains(&path), "{show}: {page}");
    }
    for (query, is_found) in
        [("q=SHIP+moon", true), ("show=mine&q=ask", true), ("q=ship+sun", false)]
    {
        let page = ann.get(&format!("/ui/inbox?{query}")).await.page();
        assert_eq!(page.contains(&task), is_found, "{query}: {page}");
        assert!(page.contains("--text") && page.contains("&amp;q="), "{page}");
    }
    assert!(ann.get("/ui/inbox?q=ship+sun").await.page().contains("No task has these words."));
    assert!(!ann.get("/ui/inbox?show=answered").await.page().contains(&task));
    let revision = ann.get(&format!("/ui/inbox/{task}")).await.hidden("revision");
    let fields = [("revision", revision.as_str()), ("act", "answer"), ("raw", "{\"ship\":true}")];
    assert_eq!(ann.post(&format!("/ui/inbox/{task}/answer"), &fields).await.status, 303);
    for show in ["answered", "answered-mine"] {
        let page = ann.get(&format!("/ui/inbox?show={show}")).await.page();
        assert!(page.contains(&task) && page.contains("ann"), "{show}: {page}");
    }
    assert!(!desk.get("/ui/inbox?show=answered-mine").await.page().contains(&task));
    let by = async |text: &str| ann.get(&format!("/ui/inbox?show=answered&q={text}")).await.page();
    assert!(by("ANN").await.contains(&task));
    assert!(by("bob").await.contains("No task with these words was answered"));
}
