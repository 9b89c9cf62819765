//! Pages that are open while runs go on: how soon they show a change, and what they cost the runs.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{sync::mpsc, task::JoinSet};

use crate::{
    PAGE_LIMIT,
    client::{Browser, Daemon},
    figure, share,
};

/// The open pages, and the changes that they show.
const OPEN: usize = 100;
const CHANGES: usize = 60;
/// The time between two changes: a page comes to rest, as those that people watch do.
const REST: Duration = Duration::from_millis(100);
/// The runs that go on beside it, each with a hundred events a second at most.
const OTHERS: usize = 10;
/// The steps of a run that is watched: as many as a history has, so that it takes a second or two.
const STEPS: usize = 99_000;
/// The number of times that each is measured.
const ROUNDS: usize = 7;
/// The last event of a page whose run has ended.
const END: &[u8] = b"event: end\ndata: {}\n\n";
/// The share of its steps a second that a run may lose while it is watched.
const WATCHED: f64 = 0.05;

/// Starts runs that make about 1,000 events a second together, and returns them.
async fn others(daemon: &Daemon) -> Vec<String> {
    let source = r#"return require("swarm").blueprint { name = "others",
        flow = function(ctx) for i = 1, 100000 do ctx:sleep("20ms") end end }"#;
    let mut runs = Vec::with_capacity(OTHERS);
    for _ in 0..OTHERS {
        runs.push(daemon.started(source).await);
    }
    runs
}

/// Returns the number of events that runs have.
async fn events(daemon: &Daemon, runs: &[String]) -> u64 {
    let mut sum = 0;
    for run in runs {
        let (_, view) = daemon.asked(&format!("/v1/runs/{run}")).await;
        sum += view["last_event"].as_u64().expect("a number of events");
    }
    sum
}

/// Measures how soon the open pages show what a run does, from the answer to the signal that moved it.
pub async fn changes(daemon: &Daemon, browser: &Arc<Browser>) -> bool {
    let others = others(daemon).await;
    let (began, before) = (Instant::now(), events(daemon, &others).await);
    let source = r#"return require("swarm").blueprint { name = "ticks",
        flow = function(ctx) for i = 0, 100000 do ctx:status("tick " .. i .. ".") ctx:wait("go") end end }"#;
    let run = daemon.started(source).await;
    let path = format!("/ui/live/runs/{run}?tab=steps");
    let (tell, mut told) = mpsc::unbounded_channel();
    // With the set all of them end.
    let mut pages = JoinSet::new();
    for _ in 0..OPEN {
        let (browser, path, tell) = (Arc::clone(browser), path.clone(), tell.clone());
        pages.spawn(async move { ticks(&browser, &path, tell).await });
    }
    let (mut all, mut first, mut behind) = (Vec::new(), Vec::new(), Vec::new());
    let mut committed = Instant::now();
    for change in 0..CHANGES {
        let mut times = Vec::with_capacity(OPEN);
        while times.len() < OPEN {
            let (shown, at) = told.recv().await.expect("the pages are open");
            if shown == change {
                times.push(at.saturating_duration_since(committed));
            }
        }
        // The first one is what the pages began with.
        if change > 0 {
            let (least, most) = (share(&mut times, 0.0), share(&mut times, 1.0));
            first.push(least);
            behind.push(most - least);
            all.append(&mut times);
        }
        tokio::time::sleep(REST).await;
        daemon.go(&run).await;
        committed = Instant::now();
    }
    let events = (events(daemon, &others).await - before) as f64 / began.elapsed().as_secs_f64();
    for run in others {
        daemon.cancel(&run).await;
    }
    let parts = format!(
        ", {events:.0} events a second; the first page p50 {:.1?}, p99 {:.1?}, the last one behind it p50 {:.1?}, p99 {:.1?}",
        share(&mut first, 0.5),
        share(&mut first, 0.99),
        share(&mut behind, 0.5),
        share(&mut behind, 0.99)
    );
    figure(&format!("a change on {OPEN} open pages"), &mut all, PAGE_LIMIT, &parts)
}

/// Sends the time at which an open page shows each change.
async fn ticks(browser: &Browser, path: &str, seen: mpsc::UnboundedSender<(usize, Instant)>) {
    let mut answer = browser.get(path).await;
    let (mut text, mut next) = (String::new(), 0);
    while let Ok(Some(chunk)) = answer.chunk().await {
        text.push_str(&String::from_utf8_lossy(&chunk));
        while let Some(at) = text.find(&format!("tick {next}.")) {
            text.drain(..at);
            // The bench may be over.
            let _ = seen.send((next, Instant::now()));
            next += 1;
        }
        if text.len() > 1 << 20 {
            let cut = (1 << 19..).find(|at| text.is_char_boundary(*at)).unwrap_or(0);
            text.drain(..cut);
        }
    }
}

/// The pages that are open while a run goes on.
#[derive(Clone, Copy, PartialEq)]
enum Pages {
    None,
    /// All are rendered at once.
    Shared,
    /// Each is a page of its own.
    Apart,
}

/// The cost of a run: its time, and the processor time of the host until all pages show its end.
struct Cost {
    took: Duration,
    cpu: Duration,
}

/// Returns the cost of a run of many steps while pages of it are open.
async fn watched(daemon: &Daemon, browser: &Arc<Browser>, shown: Pages) -> Cost {
    let source = format!(
        r#"return require("swarm").blueprint {{ name = "watched", agents = {{ echo = {{ operator = "echo" }} }},
        flow = function(ctx) ctx:wait("go") for i = 1, {STEPS} do ctx:run("echo", i) end end }}"#
    );
    let run = daemon.started(&source).await;
    let (tell, mut told) = mpsc::unbounded_channel();
    let open = if shown == Pages::None { 0 } else { OPEN };
    let mut pages = JoinSet::new();
    for n in 0..open {
        let (browser, tell) = (Arc::clone(browser), tell.clone());
        // The parameter is of another tab: it makes a page of its own, and changes nothing in it.
        let apart = if shown == Pages::Apart { format!("&skip={n}") } else { String::new() };
        let path = format!("/ui/live/runs/{run}?tab=steps{apart}");
        pages.spawn(async move {
            let mut answer = browser.get(&path).await;
            let (mut is_open, mut text) = (false, Vec::new());
            while let Some(chunk) = answer.chunk().await.expect("the page ends with its run") {
                if !std::mem::replace(&mut is_open, true) {
                    // The bench may be over.
                    let _ = tell.send(());
                }
                text.extend_from_slice(&chunk);
                text.drain(..text.len().saturating_sub(END.len()));
            }
            assert!(text == END, "a page showed no end: {}", String::from_utf8_lossy(&text));
        });
    }
    for _ in 0..open {
        told.recv().await.expect("the pages are open");
    }
    // Whatever was before is not of this run.
    tokio::time::sleep(REST).await;
    let (since, before) = (Instant::now(), daemon.cpu());
    daemon.go(&run).await;
    let steps = daemon.completed(&run).await;
    let took = since.elapsed();
    assert!(steps as usize > STEPS, "{run} has {steps} steps");
    // They end with their run, and render its end. The next run would pay for that.
    while let Some(page) = pages.join_next().await {
        page.expect("each page shows the end");
    }
    let cpu = daemon.cpu().zip(before).map_or(took, |(after, before)| after - before);
    Cost { took, cpu }
}

/// Measures what open pages cost a run: its steps a second, as a share of those without pages.
///
/// Medians, and beside them the processor time of the host until all pages show the end: what a page
/// costs is not seen in the time of a run while another processor is idle.
pub async fn cost(daemon: &Daemon, browser: &Arc<Browser>) -> bool {
    let mut rounds = [const { Vec::new() }; 3];
    // In turns, so that whatever else the machine does meets all of them.
    for _ in 0..ROUNDS {
        for (costs, pages) in rounds.iter_mut().zip([Pages::None, Pages::Shared, Pages::Apart]) {
            costs.push(watched(daemon, browser, pages).await);
        }
    }
    let [none, shared, apart] = rounds.map(|costs| {
        let median = |of: fn(&Cost) -> Duration| {
            share(&mut costs.iter().map(of).collect::<Vec<_>>(), 0.5).as_secs_f64()
        };
        (median(|it| it.took), median(|it| it.cpu))
    });
    let more = |with: (f64, f64)| (with.1 / none.1 - 1.0) * 100.0;
    let fewer = |with: (f64, f64)| (1.0 - none.0 / with.0) * 100.0;
    let good = fewer(shared) <= WATCHED * 100.0;
    println!(
        "{} a run of {STEPS} steps with {OPEN} open pages: {:.1} % fewer steps a second, {:.1} % more \
         processor time; {:.1} % and {:.1} % if each page is another one; without pages {:.0} steps a second, {:.1} us \
         of processor time each",
        if good { "ok  " } else { "OVER" },
        fewer(shared),
        more(shared),
        fewer(apart),
        more(apart),
        STEPS as f64 / none.0,
        none.1 * 1e6 / STEPS as f64,
    );
    good
}
