//! Acts on many runs, the filters of their list, and the tags of a start.

use serde_json::json;

use crate::{
    person::{Person, Shown, daemon},
    support::{Daemon, send},
};

async fn status(daemon: &Daemon, run: &str) -> String {
    let (_, view) = send(daemon.get(&format!("/v1/runs/{run}"))).await;
    view["status"].as_str().unwrap().to_owned()
}

/// Sends the form that a dry run showed.
async fn confirm(person: &Person<'_>, dry: &Shown, more: &[(&str, &str)]) -> Shown {
    let digest = dry.hidden("digest");
    let mut fields = vec![("digest", digest.as_str()), ("reason", "enough")];
    fields.extend(more);
    person.post("/ui/runs/bulk", &fields).await
}

#[tokio::test]
async fn many_runs_are_paused_resumed_and_canceled_after_a_look_at_what_would_be_done() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path()).await;
    let desk = Person::of_role(&daemon, "operator").await;
    let (one, two, three) =
        (desk.starts("a").await, desk.starts("b").await, desk.starts("c").await);
    for run in [&one, &two, &three] {
        daemon.waits(run, "task").await;
    }
    let list = desk.get("/ui/runs").await.page();
    assert!(list.contains(&format!("name=\"id\" value=\"{one}\"")) && list.contains("Pause …"));
    let picked = [("act", "pause"), ("which", "ids"), ("id", one.as_str()), ("id", two.as_str())];
    let dry = desk.post("/ui/runs/bulk", &picked).await;
    assert_eq!(dry.status, 200, "{}", dry.html);
    for part in ["2</strong> of 2 runs", "would be paused", "moonswarm bulk pause", "/v1/runs/bulk"]
    {
        assert!(dry.html.contains(part), "{part}: {}", dry.html);
    }
    assert_eq!(status(&daemon, &one).await, "waiting", "nothing was done");
    let done = confirm(&desk, &dry, &picked).await.page();
    assert!(done.contains("What was done") && done.contains("2 of 2 runs: paused"), "{done}");
    assert_eq!([status(&daemon, &one).await, status(&daemon, &three).await], ["paused", "waiting"]);

    // A run that moved on in between changes the digest.
    let all = [("act", "cancel"), ("which", "filter"), ("blueprint", "demo")];
    let dry = desk.post("/ui/runs/bulk", &all).await;
    assert!(dry.html.contains("3</strong> of 3 runs"), "{}", dry.html);
    assert_eq!(desk.post(&format!("/ui/runs/{one}/resume"), &[]).await.status, 303);
    let changed = confirm(&desk, &dry, &all).await;
    assert!(
        changed.status == 409 && changed.html.contains("selection_changed"),
        "{}",
        changed.html
    );
    assert_eq!(status(&daemon, &two).await, "paused", "nothing was done");
    let done = confirm(&desk, &changed, &all).await.page();
    assert!(done.contains("3 of 3 runs: canceled"), "{done}");
    for run in [&one, &two, &three] {
        assert_eq!(daemon.ended(run).await["status"], "canceled");
    }

    let again = [("act", "rerun"), ("which", "ids"), ("id", one.as_str())];
    let dry = desk.post("/ui/runs/bulk", &again).await;
    let once = dry.hidden("once");
    let with_once: Vec<_> = again.iter().copied().chain([("once", once.as_str())]).collect();
    let made = confirm(&desk, &dry, &with_once).await.page();
    assert!(made.contains("the new run"), "{made}");

    // An operator deletes nothing, an observer has no form, and nothing selected is no act.
    let delete = [("act", "delete"), ("which", "ids"), ("id", one.as_str())];
    assert_eq!(desk.post("/ui/runs/bulk", &delete).await.status, 403);
    assert!(!desk.get("/ui/runs").await.page().contains("value=\"delete\""));
    assert_eq!(desk.post("/ui/runs/bulk", &[("act", "pause")]).await.to, "/ui/runs");
    let observer = Person::of_role(&daemon, "observer").await;
    assert!(!observer.get("/ui/runs").await.page().contains("/ui/runs/bulk"));
    assert_eq!(observer.post("/ui/runs/bulk", &picked).await.status, 403);
}

#[tokio::test]
async fn ended_runs_are_deleted_with_a_token_that_is_entered_again() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path()).await;
    let admin = Person::with(&daemon, &daemon.token).await;
    let (one, two) = (admin.starts("a").await, admin.starts("b").await);
    let cancel = daemon.post(&format!("/v1/runs/{one}/cancel"), &json!({}));
    assert_eq!(send(cancel).await.0, 200);
    daemon.ended(&one).await;
    daemon.waits(&two, "task").await;
    let page = admin.get(&format!("/ui/runs/{one}")).await.page();
    assert!(page.contains("Delete …") && page.contains("name=\"act\" value=\"delete\""), "{page}");
    let open = admin.get(&format!("/ui/runs/{two}")).await.page();
    assert!(!open.contains("Delete …"), "an open run is not deleted");
    let both = [("act", "delete"), ("which", "ids"), ("id", one.as_str()), ("id", two.as_str())];
    let dry = admin.post("/ui/runs/bulk", &both).await;
    assert_eq!(dry.status, 200, "{}", dry.html);
    for part in ["1</strong> of 2 runs", "would be deleted", "not_ended", "name=\"token\""] {
        assert!(dry.html.contains(part), "{part}: {}", dry.html);
    }
    assert_eq!(confirm(&admin, &dry, &both).await.status, 403, "a sign-in is not enough");
    assert_eq!(status(&daemon, &one).await, "canceled", "nothing was done");
    let operator = crate::person::mint(&daemon, "operator", &json!({})).await;
    for (token, expected) in [(operator.as_str(), 403), (daemon.token.as_str(), 200)] {
        let fields: Vec<_> = both.iter().copied().chain([("token", token)]).collect();
        let done = confirm(&admin, &dry, &fields).await;
        assert_eq!(done.status, expected, "{}", done.html);
    }
    assert_eq!(send(daemon.get(&format!("/v1/runs/{one}"))).await.0, 404);
    assert_eq!(status(&daemon, &two).await, "waiting");
}

#[tokio::test]
async fn tags_are_given_at_the_start_and_filters_are_in_the_url() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path()).await;
    let desk = Person::of_role(&daemon, "operator").await;
    let start = "/ui/blueprints/demo/start";
    let input = json!({ "who": "moon", "times": 1 }).to_string();
    let wrong = desk.post(start, &[("raw", &input), ("tags", "<nothing>")]).await;
    assert!(
        wrong.status == 422 && wrong.html.contains("&lt;nothing&gt;</textarea>"),
        "{}",
        wrong.html
    );
    let tags = "team=red\r\nenv=<b>\r\n\r\n note=for the moon ";
    let sent = desk.post(start, &[("raw", &input), ("tags", tags)]).await;
    assert_eq!(sent.status, 303, "{}", sent.html);
    let run = sent.to.split('?').next().unwrap().rsplit('/').next().unwrap().to_owned();
    // They are metadata: shown on the page of the run, and offered when it is started once more.
    let shown = desk.get(&format!("/ui/runs/{run}")).await.page();
    assert!(shown.contains("env=&lt;b&gt;") && shown.contains("note=for the moon"), "{shown}");
    let again = desk.get(&format!("/ui/blueprints/demo?from={run}")).await.page();
    assert!(again.contains("env=&lt;b&gt;\nnote=for the moon\nteam=red</textarea>"), "{again}");
    let plain = desk.starts("plain").await;
    for run in [&run, &plain] {
        daemon.waits(run, "task").await;
    }
    let rows = |page: &str| page.matches("<tr data-key=\"run_").count();
    let list = async |query: &str| desk.get(&format!("/ui/runs?{query}")).await.page();
    let tagged = list("tag=team%3Dred").await;
    assert!(rows(&tagged) == 1 && tagged.contains(&run), "{tagged}");
    assert!(tagged.contains("env=&lt;b&gt;") && tagged.contains("name=\"tag\" value=\"team=red\""));
    // Several tags and statuses, everywhere on the page, and the time in its commands.
    let both = list("tag=team%3Dred&tag=env&status=waiting,running&since=1h").await;
    assert_eq!(rows(&both), 1, "{both}");
    for part in [
        "name=\"tag\" value=\"team=red\"",
        "name=\"tag\" value=\"env\"",
        "name=\"status\" value=\"waiting\"",
        "name=\"status\" value=\"running\"",
        "<option value=\"waiting,running\" selected>waiting, running</option>",
        "status=waiting&amp;status=running",
        "--status waiting --status running",
        "--tag team=red --tag env",
        "--since 20",
        "tag=team%3Dred&amp;tag=env",
    ] {
        assert!(both.contains(part), "{part}: {both}");
    }
    assert!(rows(&list("status=failed,waiting").await) == 2, "with commas");
    assert!(rows(&list("status=failed&status=waiting").await) == 2, "or several times");
    assert_eq!(rows(&list("tag=team%3Dred&tag=env%3Dother").await), 0);
    assert_eq!(rows(&list("min_cost=0.01").await), 0);
    assert!(list("min_cost=0.01").await.contains("moonswarm ps --min-cost 0.01"));
    assert_eq!(rows(&list(&format!("parent={run}")).await), 0);
    assert_eq!(desk.get("/ui/runs?min_cost=much").await.status, 400);
    assert_eq!(desk.get("/ui/runs?parent=x").await.status, 404);
}
