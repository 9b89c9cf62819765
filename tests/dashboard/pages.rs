//! Each page with nothing and with many things, for a token of each role, and what its forms do.

use serde_json::json;

use crate::{
    person::{Person, daemon, get_bare, mint},
    support::{Daemon, send},
};

/// Ends at once.
const SHORT: &str = r#"
return require("swarm").blueprint { name = "short", flow = function() return 1 end }
"#;

const PAGES: [&str; 17] = [
    "/ui",
    "/ui/runs",
    "/ui/runs?status=failed&blueprint=x&since=24h",
    "/ui/inbox",
    "/ui/inbox?show=mine&q=x",
    "/ui/inbox?show=answered",
    "/ui/inbox?show=answered-mine&q=x",
    "/ui/blueprints",
    "/ui/blueprints?archived=1",
    "/ui/state",
    "/ui/state?scope=global&q=x",
    "/ui/triggers",
    "/ui/operators",
    "/ui/usage",
    "/ui/usage?since=1d",
    "/ui/tokens",
    "/ui/system",
];

#[tokio::test]
async fn every_page_is_whole_with_nothing_to_show_and_guarded() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&dir.path().join("data"));
    let person = Person::with(&daemon, &daemon.token).await;
    for path in PAGES {
        let shown = person.get(path).await;
        let policy = shown.headers["content-security-policy"].to_str().unwrap().to_owned();
        assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
        assert!(policy.contains("frame-ancestors 'none'"), "{policy}");
        for (name, value) in [
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "same-origin"),
            ("cache-control", "no-store"),
            ("x-frame-options", "DENY"),
        ] {
            assert_eq!(shown.headers[name], value, "{path}");
        }
        let page = shown.page();
        assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>"), "{page}");
        for inline in [" style=", " onclick=", "<style", "javascript:"] {
            assert!(!page.contains(inline), "{path}: {inline}");
        }
        assert_eq!(page.matches("<script").count(), 8, "{path}: {page}");
        assert!(page.len() < 60_000, "{path}: {} bytes", page.len());
    }
}

#[tokio::test]
async fn an_example_of_the_gallery_is_stored_from_the_overview_of_a_new_host() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&dir.path().join("data"));
    let desk = Person::of_role(&daemon, "operator").await;
    let page = desk.get("/ui").await.page();
    assert!(page.contains("value=\"saga\"") && page.contains("Nothing ran yet"), "{page}");
    assert!(page.contains("gallery-token"), "an operator may store no source: {page}");
    let fields = [("example", "saga"), ("token", daemon.token.as_str())];
    assert_eq!(desk.post("/ui/gallery", &fields[..1]).await.status, 403, "it needs a token");
    let done = desk.post("/ui/gallery", &fields).await;
    assert_eq!(done.to, "/ui/blueprints/saga", "{}", done.html);
    assert!(desk.get(&done.to).await.page().contains("Start a run"));
    let other = [("example", "none"), ("token", daemon.token.as_str())];
    assert_eq!(desk.post("/ui/gallery", &other).await.status, 404);
    let observer = Person::of_role(&daemon, "observer").await;
    assert!(!observer.get("/ui").await.page().contains("/ui/gallery"));
}

#[tokio::test]
async fn the_owner_runs_an_example_without_another_token_and_replaces_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&dir.path().join("data"));
    let owner = Person::of_role(&daemon, "admin").await;
    let page = owner.get("/ui").await.page();
    assert!(page.contains("/ui/gallery") && !page.contains("gallery-token"), "{page}");
    let done = owner.post("/ui/gallery", &[("example", "welcome")]).await;
    assert_eq!(done.to, "/ui/blueprints/welcome", "{}", done.html);
    let form = owner.get(&done.to).await;
    let started =
        owner.post("/ui/blueprints/welcome/start", &[("once", &form.hidden("once"))]).await;
    assert!(started.to.starts_with("/ui/runs/run_"), "{}", started.html);
    // A token of the owner's role that may store no source stores no example either.
    let narrow = json!({ "verbs": ["run.start", "run.read", "blueprint.read"] });
    let narrow = Person::with(&daemon, &mint(&daemon, "admin", &narrow).await).await;
    let refused = narrow.post("/ui/gallery", &[("example", "research")]).await;
    assert_eq!(refused.status, 403, "{}", refused.html);
    // What somebody has stored under the name of an example stays.
    let own = r#"return require("swarm").blueprint { name = "saga", flow = function() return "mine" end }"#;
    let (status, put) = send(daemon.put("/v1/blueprints/saga", &json!({ "source": own }))).await;
    assert!(status < 300, "{put}");
    assert_eq!(owner.post("/ui/gallery", &[("example", "saga")]).await.to, "/ui/blueprints/saga");
    let (_, now) = send(daemon.get("/v1/blueprints/saga")).await;
    assert_eq!(now["hash"], put["hash"], "{now}");
}

#[tokio::test]
async fn assets_are_named_by_their_content_and_kept_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&dir.path().join("data"));
    let login = get_bare(&daemon, "/ui/login").await.page();
    let mut paths: Vec<_> =
        login.split(['"', '\'']).filter(|it| it.starts_with("/ui/assets/")).collect();
    paths.sort_unstable();
    paths.dedup();
    assert!(paths.len() >= 5, "{login}");
    for path in paths {
        let asset = get_bare(&daemon, path).await;
        assert_eq!(asset.headers["cache-control"], "public, max-age=31536000, immutable");
        assert!(!asset.headers.contains_key("content-encoding"));
        let client = moonswarm::environment::http_client().no_proxy().build().unwrap();
        let packed =
            client.get(format!("{}{path}", daemon.url)).header("accept-encoding", "br, gzip");
        let packed = packed.send().await.unwrap();
        assert_eq!(packed.headers()["content-encoding"], "gzip");
        assert_eq!(packed.headers()["content-type"], asset.headers["content-type"]);
        let bytes = packed.bytes().await.unwrap();
        assert!(bytes.starts_with(&[0x1f, 0x8b]) && bytes.len() < asset.html.len() + 64, "{path}");
        assert_eq!(asset.headers["x-content-type-options"], "nosniff");
        assert!(asset.status == 200 && !asset.html.is_empty());
    }
    assert_eq!(get_bare(&daemon, "/ui/assets/live.js").await.status, 404);
}

#[tokio::test]
async fn a_role_sees_the_pages_of_its_verbs() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path()).await;
    for (role, seen) in [
        (
            "admin",
            &[
                "/ui/runs",
                "/ui/inbox",
                "/ui/blueprints",
                "/ui/operators",
                "/ui/usage",
                "/ui/tokens",
                "/ui/system",
            ][..],
        ),
        (
            "operator",
            &[
                "/ui/runs",
                "/ui/inbox",
                "/ui/blueprints",
                "/ui/operators",
                "/ui/usage",
                "/ui/tokens",
                "/ui/system",
            ],
        ),
        (
            "observer",
            &[
                "/ui/runs",
                "/ui/inbox",
                "/ui/blueprints",
                "/ui/operators",
                "/ui/usage",
                "/ui/tokens",
                "/ui/system",
            ],
        ),
        ("approver", &["/ui/runs", "/ui/inbox", "/ui/usage", "/ui/tokens"]),
        ("senior", &["/ui/runs", "/ui/inbox", "/ui/usage", "/ui/tokens"]),
    ] {
        let person = Person::of_role(&daemon, role).await;
        let overview = person.get("/ui").await.page();
        for path in [
            "/ui/runs",
            "/ui/inbox",
            "/ui/blueprints",
            "/ui/operators",
            "/ui/usage",
            "/ui/tokens",
            "/ui/system",
        ] {
            let may = seen.contains(&path);
            assert_eq!(person.get(path).await.status, if may { 200 } else { 403 }, "{role} {path}");
            assert_eq!(
                overview.contains(&format!("<a href=\"{path}\">")),
                may,
                "{role} {path}: {overview}"
            );
        }
    }
}

#[tokio::test]
async fn a_run_is_started_watched_and_moved_with_forms_alone() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path()).await;
    let (desk, boss) =
        (Person::of_role(&daemon, "operator").await, Person::of_role(&daemon, "approver").await);
    let run = desk.starts("moon").await;
    daemon.waits(&run, "task").await;
    let path = format!("/ui/runs/{run}");
    let page = desk.get(&path).await.page();
    for part in [
        "Waits for <bdi>ask (human)</bdi>",
        "moonswarm approve task_",
        "asking",
        "<progress",
        "not reported",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    for act in ["/pause\"", "/cancel\"", "/signal\""] {
        assert!(page.contains(act), "{act}: {page}");
        assert!(!boss.get(&path).await.page().contains(act), "an approver sees no button");
    }
    let (_, tasks) = send(daemon.get("/v1/tasks")).await;
    let task = tasks["items"][0]["id"].as_str().unwrap().to_owned();
    let task_path = format!("/ui/inbox/{task}");
    assert!(boss.get("/ui/inbox").await.page().contains(&task_path));
    let shown = boss.get(&task_path).await;
    let revision = shown.hidden("revision");
    assert!(shown.page().contains("&lt;script&gt;alert(1)&lt;/script&gt;"));

    // A field that cannot be read, an answer that does not fit, and then one that does.
    let answer = format!("{task_path}/answer");
    let raw = boss.post(&answer, &[("revision", &revision), ("act", "answer"), ("raw", "{")]).await;
    assert!(raw.status == 422 && raw.html.contains("this is not JSON"), "{}", raw.html);
    let fields =
        [("revision", revision.as_str()), ("act", "answer"), ("raw", "{\"ship\":\"maybe\"}")];
    let wrong = boss.post(&answer, &fields).await;
    assert!(wrong.status == 422 && wrong.html.contains("invalid_result"), "{}", wrong.html);
    assert!(wrong.html.contains("{&quot;ship&quot;:&quot;maybe&quot;}"), "what was written stays");
    let fields = [("revision", revision.as_str()), ("act", "answer"), ("raw", "{\"ship\":true}")];
    let done = boss.post(&answer, &fields).await;
    assert_eq!(done.status, 303, "{}", done.html);
    assert_eq!(done.to, format!("/ui/inbox?done=answer&run={run}"));
    assert!(desk.get(&done.to).await.page().contains("goes on"));
    assert_eq!(desk.post(&answer, &fields).await.status, 403, "an operator answers for nobody");

    daemon.waits(&run, "signal").await;
    let done = desk.post(&format!("{path}/pause"), &[("reason", "lunch")]).await;
    assert_eq!(done.to, format!("{path}?done=pause"), "{}", done.html);
    let paused = desk.get(&done.to).await.page();
    assert!(paused.contains("The run is paused") && paused.contains("lunch"), "{paused}");
    assert_eq!(desk.post(&format!("{path}/resume"), &[]).await.status, 303);
    let broken = desk.post(&format!("{path}/signal"), &[("name", "go"), ("payload", "{")]).await;
    assert!(broken.status == 400 && broken.html.contains("malformed_json"), "{}", broken.html);
    let sent = desk.post(&format!("{path}/signal"), &[("name", "go"), ("payload", "1")]).await;
    assert_eq!(sent.status, 303, "{}", sent.html);
    assert_eq!(daemon.ended(&run).await["status"], "completed");
    let ended = desk.get(&path).await.page();
    assert!(!ended.contains("data-live=") && !ended.contains("/cancel\""), "{ended}");
    for tab in ["data", "events", "artifacts", "state"] {
        let page = desk.get(&format!("{path}?tab={tab}")).await.page();
        assert!(!page.contains("<script>") && !page.contains("note <b>"), "{page}");
    }
    assert!(desk.get(&format!("{path}/steps/1")).await.page().contains("What happened"));

    // Once more with the same input, and once more from a step.
    let again = format!("from={run}");
    assert!(ended.contains(&again), "{ended}");
    let form = desk.get(&format!("/ui/blueprints/demo?{again}")).await.page();
    assert!(form.contains("&quot;who&quot;:&quot;moon&quot;"), "{form}");
    let step = desk.get(&format!("{path}/steps/2")).await.page();
    assert!(step.contains(&format!("{path}/fork?step=2")), "{step}");
    let fork = format!("{path}/fork");
    let shown = desk.get(&format!("{fork}?step=2")).await;
    let once = shown.hidden("once");
    let page = shown.page();
    for part in ["1</strong> step is kept", "not kept", "The flow then requests", "--from 2"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let fields = [
        ("once", once.as_str()),
        ("step", "2"),
        ("act", "fork"),
        ("edit", "input"),
        ("step-input", "{\"i\":9}"),
    ];
    let forked = desk.post(&fork, &fields).await;
    assert!(forked.to.ends_with("?done=fork"), "{} {}", forked.status, forked.html);
    assert_eq!(desk.post(&fork, &fields).await.to, forked.to, "sent twice, it is one run");
    let copy = desk.get(&forked.to).await.page();
    assert!(
        copy.contains(&format!("/ui/runs/{run}\">")) && copy.contains("anew from step 2"),
        "{copy}"
    );
    let edited = desk.get(&format!("{}/steps/2", forked.to.split('?').next().unwrap())).await;
    assert!(edited.page().contains("class=\"key\">i</span>: <span>9</span>"));
    assert_eq!(desk.post(&fork, &[("step", "x")]).await.status, 400);
    assert_eq!(desk.get(&format!("{fork}?step=99")).await.status, 404);
    assert_eq!(boss.post(&fork, &fields).await.status, 403);
    assert_eq!(boss.get(&fork).await.status, 403);
}

#[tokio::test]
async fn a_fork_is_shown_before_it_is_made_with_the_errors_at_their_fields() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path()).await;
    let desk = Person::of_role(&daemon, "admin").await;
    let run = desk.starts("moon").await;
    daemon.waits(&run, "task").await;
    let fork = format!("/ui/runs/{run}/fork");
    // Step 3 is the artifact, 4 the question.
    let late = desk.get(&format!("{fork}?step=5")).await.page();
    assert!(late.contains("after the last step") && !late.contains("name=\"edit\""), "{late}");
    let field = |page: &str, name: &str| {
        let (_, rest) = page.split_once(&format!("id=\"{name}\"")).unwrap();
        rest.split("</div>").next().unwrap().to_owned()
    };
    let answer = [("step", "4"), ("act", "check"), ("edit", "output")];
    let with = |name, value| answer.iter().copied().chain([(name, value)]).collect::<Vec<_>>();
    let broken = desk.post(&fork, &with("output", "{")).await;
    assert_eq!(broken.status, 422);
    assert!(field(&broken.html, "output").contains("this is not JSON"), "{}", broken.html);
    let wrong = desk.post(&fork, &with("output", "{\"ship\":\"no\"}")).await;
    assert_eq!(wrong.status, 422);
    assert!(field(&wrong.html, "output").contains("$.ship"), "{}", wrong.html);
    for refused in [&broken.html, &wrong.html] {
        let planned = ["without the edits that were refused", "3</strong> steps are kept"];
        assert!(planned.iter().all(|it| refused.contains(it)), "the plan stays: {refused}");
    }
    let right = desk.post(&fork, &with("output", "{\"ship\":true}")).await.page();
    for part in ["another output", "4</strong> steps are kept", "<code>go</code>", "--output"] {
        assert!(right.contains(part), "{part}: {right}");
    }
    let wrong = desk.post(&fork, &[("step", "1"), ("patch", "{\"who\":7}")]).await;
    assert!(field(&wrong.html, "patch").contains("$.who"), "{}", wrong.html);
    let other = desk.post(&fork, &[("step", "3"), ("patch", "{\"who\":\"sun\"}")]).await.page();
    assert!(other.contains("The fork would be paused"), "{other}");
    let (_, runs) = send(daemon.get("/v1/runs")).await;
    assert_eq!(runs["items"].as_array().unwrap().len(), 1, "nothing was made: {runs}");
}

#[tokio::test]
async fn a_form_that_is_sent_twice_starts_one_run() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path()).await;
    let desk = Person::of_role(&daemon, "operator").await;
    let once = desk.get("/ui/blueprints/demo").await.hidden("once");
    let names = desk.get("/ui/blueprints/demo").await.page();
    assert!(names.contains("Whom to greet"), "{names}");
    let who = field(&names, "Who");
    let fields = [("once", once.as_str()), (who.as_str(), "moon")];
    let one = desk.post("/ui/blueprints/demo/start", &fields).await;
    assert_eq!(one.status, 303, "{}", one.html);
    assert_eq!(desk.post("/ui/blueprints/demo/start", &fields).await.to, one.to);
    let missing =
        desk.post("/ui/blueprints/demo/start", &[(who.as_str(), "moon"), ("raw", "{}")]).await;
    assert!(missing.status == 422 && missing.html.contains("invalid_input"), "{}", missing.html);
}

#[tokio::test]
async fn an_answer_that_is_sent_twice_is_recorded_and_not_refused() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path()).await;
    let boss = Person::of_role(&daemon, "approver").await;
    let run = Person::of_role(&daemon, "operator").await.starts("moon").await;
    daemon.waits(&run, "task").await;
    let (_, tasks) = send(daemon.get("/v1/tasks")).await;
    let path = format!("/ui/inbox/{}", tasks["items"][0]["id"].as_str().unwrap());
    let shown = boss.get(&path).await;
    let (once, revision) = (shown.hidden("once"), shown.hidden("revision"));
    let (ship, path) = (field(&shown.html, "Ship it?"), format!("{path}/answer"));
    let fields = [("once", &*once), ("revision", &*revision), (&*ship, "true")];
    let first = boss.post(&path, &fields).await;
    assert_eq!(first.to, format!("/ui/inbox?done=answer&run={run}"), "{}", first.html);
    daemon.waits(&run, "signal").await;
    let again = boss.post(&path, &fields).await;
    assert_eq!(again.to, first.to, "{}", again.html);
    let other = boss.post(&path, &[("revision", &*revision), ("raw", "{\"ship\":true}")]).await;
    assert!(other.status == 409 && other.html.contains("already_accepted"), "{}", other.html);
}

#[tokio::test]
async fn a_signal_that_is_sent_twice_is_one() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path()).await;
    let desk = Person::of_role(&daemon, "operator").await;
    let waits = r#"local swarm = require("swarm")
        return swarm.blueprint { name = "waits",
          flow = function(ctx) return { ctx:wait("go"), ctx:wait("go") } end }"#;
    let run = daemon.run_source(waits, json!(null)).await;
    daemon.waits(&run, "signal").await;
    let path = format!("/ui/runs/{run}");
    let once = desk.get(&path).await.hidden("once");
    let signal = async |once: &str, payload: &str| {
        let fields = [("once", once), ("name", "go"), ("payload", payload)];
        let sent = desk.post(&format!("{path}/signal"), &fields).await;
        assert_eq!(sent.to, format!("{path}?done=signal"), "{}", sent.html);
    };
    signal(&once, "1").await;
    signal(&once, "1").await;
    signal(&desk.get(&path).await.hidden("once"), "2").await;
    assert_eq!(daemon.ended(&run).await["output"], json!([1, 2]));
}

/// The name of the field with this label.
pub fn field(page: &str, label: &str) -> String {
    let (before, _) = page.split_once(&format!("<bdi>{label}</bdi>")).unwrap();
    before.rsplit("for=\"").next().unwrap().split('"').next().unwrap().to_owned()
}

#[tokio::test]
async fn a_task_that_changed_is_not_answered_and_the_page_says_what_changed() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path()).await;
    let boss = Person::of_role(&daemon, "approver").await;
    let run = Person::of_role(&daemon, "operator").await.starts("moon").await;
    daemon.waits(&run, "task").await;
    let (_, tasks) = send(daemon.get("/v1/tasks")).await;
    let path = format!("/ui/inbox/{}", tasks["items"][0]["id"].as_str().unwrap());
    let shown = boss.get(&path).await;
    let fields =
        [("revision", "0000"), ("act", "reject"), ("reason", "no <b>"), ("seen-prompt", "other")];
    let stale = boss.post(&format!("{path}/answer"), &fields).await;
    assert_eq!(stale.status, 409, "{}", stale.html);
    for part in
        ["stale_task", "the prompt changed", "no &lt;b&gt;", shown.hidden("revision").as_str()]
    {
        assert!(stale.html.contains(part), "{part}: {}", stale.html);
    }
    let rejected = boss
        .post(
            &format!("{path}/answer"),
            &[("revision", &shown.hidden("revision")), ("act", "reject"), ("reason", "no")],
        )
        .await;
    assert_eq!(rejected.status, 303, "{}", rejected.html);
    assert_eq!(daemon.ended(&run).await["error"]["kind"], "human_rejected");
}

#[tokio::test]
async fn what_a_token_does_not_reach_is_not_shown() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path()).await;
    let desk = Person::of_role(&daemon, "operator").await;
    let (own, other) = (desk.starts("own").await, desk.starts("other").await);
    let scopes = json!({ "scopes": [format!("run:{own}")] });
    let guest = Person::with(&daemon, &mint(&daemon, "observer", &scopes).await).await;
    assert!(guest.get("/ui").await.page().contains(&format!("/ui/runs/{own}")));
    assert_eq!(guest.get(&format!("/ui/runs/{own}")).await.status, 200);
    for path in [
        format!("/ui/runs/{other}"),
        format!("/ui/runs/{other}/steps/1"),
        format!("/ui/live/runs/{other}"),
        "/ui/runs".to_owned(),
    ] {
        let shown = guest.get(&path).await;
        assert!([403, 404].contains(&shown.status), "{path}: {}", shown.status);
        assert!(!shown.html.contains("other"), "{path}: {}", shown.html);
    }
    for path in ["/ui/runs/nothing", "/ui/nowhere", "/ui/inbox/task_x", "/ui/blueprints/none"] {
        assert_eq!(desk.get(path).await.status, 404, "{path}");
    }
    assert_eq!(desk.get("/ui/runs?cursor=x").await.status, 404);
    assert_eq!(desk.get("/ui/runs?status=sleeping").await.status, 400);
}

#[tokio::test]
async fn lists_have_pages_and_a_page_of_many_stays_small() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path()).await;
    let wide = r#"local swarm = require("swarm")
        return swarm.blueprint { name = "wide", agents = { echo = { operator = "echo" } },
          flow = function(ctx) for i = 1, 450 do ctx:run("echo", { i = i }) end end }"#;
    let run = daemon.run_source(wide, json!(null)).await;
    daemon.ended(&run).await;
    for n in 0..60 {
        daemon.run_source(SHORT, json!(n)).await;
    }
    let desk = Person::of_role(&daemon, "operator").await;
    let first = desk.get("/ui/runs").await.page();
    assert_eq!(first.matches("<tr data-key=\"run_").count(), 50);
    let next = next_of(&first);
    let second = desk.get(&next).await.page();
    assert_eq!(second.matches("<tr data-key=\"run_").count(), 11);
    assert!(!second.contains("data-live=") && second.contains("first page"), "{second}");
    let mut path = format!("/ui/runs/{run}");
    assert!(desk.get(&path).await.page().contains("450 of 450 ended, 450 attempts"));
    let mut steps = 0;
    loop {
        let page = desk.get(&path).await.page();
        assert!(page.len() < 150_000, "{} bytes", page.len());
        steps += page.matches("<tr data-key=\"").count();
        if !page.contains("rel=\"next\"") {
            break;
        }
        path = next_of(&page);
    }
    assert_eq!(steps, 450);
}

/// The address of the next page.
fn next_of(page: &str) -> String {
    let (_, rest) = page.split_once("rel=\"next\" href=\"").unwrap();
    rest.split('"').next().unwrap().replace("&amp;", "&")
}

#[tokio::test]
async fn usage_has_what_ended_by_blueprint_and_agent() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path()).await;
    let desk = Person::of_role(&daemon, "operator").await;
    for _ in 0..3 {
        let body = json!({ "source": SHORT });
        let (status, run) = send(daemon.post("/v1/runs", &body)).await;
        assert_eq!(status, 201, "{run}");
        daemon.ended(run["id"].as_str().unwrap()).await;
    }
    let page = desk.get("/ui/usage").await.page();
    for part in ["/ui/blueprints/short", "3 ended, 0 of them failed", "moonswarm stats --since 30d"]
    {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert_eq!(desk.get("/ui/usage?since=2d").await.status, 400);
    let overview = desk.get("/ui").await.page();
    assert!(overview.contains("Ended in 30 days") && overview.contains("3 ended"), "{overview}");
    let (status, put) = send(daemon.put("/v1/blueprints/short", &json!({ "source": SHORT }))).await;
    assert!(status < 300, "{put}");
    let blueprint = desk.get("/ui/blueprints/short").await.page();
    assert!(blueprint.contains("Runs of 30 days") && blueprint.contains("100 %"), "{blueprint}");
}

#[tokio::test]
async fn the_overview_has_the_host_and_runs_near_a_limit() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path()).await;
    let tight = r#"local swarm = require("swarm")
        return swarm.blueprint { name = "tight", limits = { steps = 10 }, agents = { echo = { operator = "echo" } },
          flow = function(ctx) for i = 1, 8 do ctx:run("echo", i) end ctx:wait("go") end }"#;
    let run = daemon.run_source(tight, json!(null)).await;
    daemon.waits(&run, "signal").await;
    let desk = Person::of_role(&daemon, "operator").await;
    let page = desk.get("/ui").await.page();
    assert!(page.contains("90 % of its limit of steps is used"), "{page}");
    assert!(page.contains("takes work") && page.contains("Free on its disk"), "{page}");
    let pause = daemon.post(&format!("/v1/runs/{run}/pause"), &json!({ "reason": "lunch" }));
    assert_eq!(send(pause).await.0, 200);
    let page = desk.get("/ui").await.page();
    assert!(page.contains("paused") && page.contains("<bdi>lunch</bdi>"), "{page}");
    let approver = Person::of_role(&daemon, "approver").await;
    assert!(!approver.get("/ui").await.page().contains("Free on its disk"));
}
