//! The tests of blueprints, played without effects.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use axum::{Json as JsonBody, extract::State};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    app::Api,
    body::Posted,
    params::{self, Asker},
    runs,
};
use crate::{
    blueprint::Bundle,
    clock::Clock,
    door::{Code, Problem, ProblemBody},
    testkit::{self, Bounds, Covered, FileReport, NoPlace, PostedReport, TestReport},
    token,
};

/// The time of one test, in milliseconds.
const TEST_MS: u64 = 10_000;
/// The time of all tests of a request, in milliseconds.
const ALL_MS: u64 = 30_000;
/// The tests of a request.
const TESTS: usize = 200;
/// The texts of an answer, in bytes.
const SHOWN: usize = 256 << 10;
/// The ranges of lines, and the nodes, that are named of a file.
const NAMED: usize = 50;
/// The characters of the name of a node.
const NAME: usize = 200;
/// The seconds after which a refused request may be sent again.
const AGAIN_S: u64 = 2;

/// A blueprint and its tests.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TestBody {
    /// A stored blueprint: `name` or `name@hash-prefix`. Takes the verb `blueprint.read`. Either this,
    /// or `source` or `files`.
    blueprint: Option<String>,
    /// The Lua source of the entry.
    source: Option<String>,
    /// The files around `source`, or all of a bundle: text by relative path.
    files: Option<BTreeMap<String, String>>,
    /// The path of `source` among the files (`main.lua`), or the file of the bundle that returns
    /// the blueprint. A test names it: `t.start("main.lua", input)`.
    entry: Option<String>,
    /// The tests: text by path, relative to the blueprint. Files whose name ends in `_test.lua` are
    /// run; others are there for them: modules, blueprints that are called, snapshots, exported runs.
    tests: BTreeMap<String, String>,
    /// Runs only tests whose name contains this text.
    filter: Option<String>,
    /// Runs each test again with a crash of the host after every write to a journal.
    crash: Option<bool>,
    /// The time of one test with its repetitions, at most 10 s, which is the default: `"2s"`.
    timeout: Option<String>,
}

/// The results of tests.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct TestsView {
    /// True if there are tests, and every one ran and passed.
    ok: bool,
    /// The number of tests that passed.
    passed: usize,
    /// The number of tests that failed.
    failed: usize,
    /// The number of tests that did not run, because a request runs at most 200, for at most 30 s.
    skipped: usize,
    /// The files of tests.
    files: Vec<TestFileView>,
    /// The files of blueprints that ran, and what of them did.
    coverage: Vec<CoverageView>,
}

/// A file of tests.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TestFile)]
pub(super) struct TestFileView {
    /// Its path.
    file: String,
    /// The reason why none of its tests could be run.
    broken: Option<String>,
    /// Its tests that ran, in their order.
    tests: Vec<TestView>,
}

/// A test.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Test)]
pub(super) struct TestView {
    /// Its name.
    name: String,
    /// The line in its file.
    line: Option<u32>,
    /// True if it passed.
    passed: bool,
    /// The reason why it failed.
    failure: Option<TestFailureView>,
    /// Its duration, in milliseconds of real time.
    took_ms: u64,
    /// The number of repetitions with a crash.
    crashes: usize,
    /// Its output.
    printed: Vec<String>,
    /// Warnings about a test that passed: it asserts nothing, for instance.
    warnings: Vec<String>,
}

/// The failure of a test.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TestFailure)]
pub(super) struct TestFailureView {
    /// `assertion`, `usage` for a mistake of the test, `limit`, or the kind of the error.
    kind: String,
    /// The failure, with its place.
    message: String,
    /// The file of the place, if the message names one.
    file: Option<String>,
    /// Its line.
    line: Option<u32>,
    /// The number of the write to a journal after which the host had died, if only that makes it
    /// fail.
    after_write: Option<usize>,
}

/// The lines of a file that ran.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Coverage)]
pub(super) struct CoverageView {
    /// The file.
    file: String,
    /// The number of lines that have code; none in a file that is data.
    lines: usize,
    /// The number of those that ran.
    ran: usize,
    /// Those that did not, as pairs of a first and a last line: the first 50.
    #[schema(value_type = Vec<Vec<u32>>)]
    missed: Vec<(u32, u32)>,
    /// The nodes of a flow that is a table.
    nodes: Option<NodesView>,
}

/// The nodes of a flow that is a table.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CoveredNodes)]
pub(super) struct NodesView {
    /// The number of nodes.
    all: usize,
    /// The number of those that ran.
    ran: usize,
    /// Those that did not: the first 50.
    missed: Vec<NodeView>,
}

/// A node of a flow.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CoveredNode)]
pub(super) struct NodeView {
    /// Its JSON pointer.
    at: String,
    /// The line in its file.
    line: u32,
    /// Its title.
    title: String,
}

/// Runs tests of a blueprint.
///
/// Tests are Lua files (docs/testing.md). They run in the sandbox, in virtual time and on an engine of
/// their own: no operator is asked, and nothing outside of the request is read or changed. A request
/// runs at most 200 tests for at most 30 s; one of an account at a time.
#[utoipa::path(
    post, path = "/v1/test", operation_id = "blueprint_test", tag = "blueprints",
    request_body = TestBody,
    responses(
        (status = 200, description = "What the tests came to; tests that fail are a result, too.", body = TestsView),
        (status = 404, description = "`not_found`: the blueprint", body = ProblemBody),
        (status = 422, description = "`blueprint_invalid`: the files are no bundle, or none is one of tests", body = ProblemBody),
        (status = 429, description = "`busy`: tests of this account are running", body = ProblemBody),
        (status = 503, description = "`overloaded`: the host runs as many tests as it can", body = ProblemBody),
    ),
)]
pub(super) async fn test(
    State(api): State<Api>,
    Asker(caller): Asker,
    posted: Posted<TestBody>,
) -> Result<JsonBody<TestsView>, Problem> {
    let place = api.tests.take(token::account(&caller.subject)).map_err(no_place)?;
    let TestBody { blueprint, source, files, entry, tests, filter, crash, timeout } = posted.body;
    let test_ms = time_of(timeout.as_deref())?;
    let program = runs::program(blueprint, source, files, entry)?;
    let bundle = api.engine.blueprints().to_test(&caller, program).await?;
    let posted = files_of(bundle, tests)?;

    let stop = Stop::default();
    let shown = SHOWN;
    let bounds = Bounds { test_ms, all_ms: ALL_MS, tests: TESTS, shown, stop: Arc::clone(&stop.0) };
    let known = api.engine.registry().clone();
    let played = api.tasks.spawn_blocking(move || {
        // Whoever goes away leaves the place only when the thread is free.
        let _place = place;
        let which = (filter.as_deref(), crash.unwrap_or(false));
        view(testkit::run_posted(&posted, &known, which, bounds, &Clock::system()))
    });
    tokio::pin!(played);
    let view = tokio::select! {
        biased;
        view = &mut played => view,
        () = api.stopping.cancelled() => {
            stop.now();
            played.await
        }
    };
    let broken = |_| Problem::new(Code::Internal, "the tests did not come to an end");
    view.map(JsonBody).map_err(broken)
}

/// Ends the tests of a request: when it is dropped, since nobody waits for them any more.
#[derive(Default)]
struct Stop(Arc<AtomicBool>);

impl Stop {
    fn now(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Drop for Stop {
    fn drop(&mut self) {
        self.now();
    }
}

fn no_place(none: NoPlace) -> Problem {
    let problem = match none {
        NoPlace::Own => {
            let detail =
                "tests of this account are running; it runs those of one request at a time";
            Problem::new(Code::Busy, detail)
        }
        NoPlace::All => Problem::new(Code::Overloaded, "the host runs as many tests as it can"),
    };
    problem.retry_after(AGAIN_S)
}

fn time_of(timeout: Option<&str>) -> Result<u64, Problem> {
    let asked = params::wait(timeout)
        .map_err(|detail| Problem::new(Code::InvalidBody, detail).at("$.timeout"))?;
    let ms = asked.map_or(TEST_MS, |it| u64::try_from(it.as_millis()).unwrap_or(u64::MAX));
    if (1..=TEST_MS).contains(&ms) {
        return Ok(ms);
    }
    let detail = "the time of a test is between 1 ms and 10 s";
    Err(Problem::new(Code::InvalidBody, detail).at("$.timeout"))
}

fn files_of(
    blueprint: Bundle,
    tests: BTreeMap<String, String>,
) -> Result<testkit::Posted, Problem> {
    let tests = tests.into_iter().map(|(path, text)| (path, Arc::from(text))).collect();
    testkit::Posted::new(blueprint, tests).map_err(|error| match error {
        testkit::PostedError::Bundle(error) => Problem::findings(vec![error.finding("tests")]),
        other => Problem::new(Code::InvalidBody, other.to_string()).at("$.tests"),
    })
}

fn view(report: PostedReport) -> TestsView {
    let PostedReport { files, covered, skipped } = report;
    let tests = || files.iter().flat_map(|file| &file.tests);
    let failed = tests().filter(|test| test.failed.is_some()).count();
    let passed = tests().count() - failed;
    let broken = files.iter().any(|file| file.broken.is_some());
    TestsView {
        ok: passed > 0 && failed == 0 && skipped == 0 && !broken,
        passed,
        failed,
        skipped,
        files: files.into_iter().map(file_view).collect(),
        coverage: covered.iter().map(coverage_view).collect(),
    }
}

fn file_view(file: FileReport) -> TestFileView {
    TestFileView {
        file: file.path.display().to_string(),
        broken: file.broken.map(|broken| broken.message),
        tests: file.tests.into_iter().map(test_view).collect(),
    }
}

fn test_view(test: TestReport) -> TestView {
    let (file, line) = test.place().map(|(file, line)| (file.to_owned(), line)).unzip();
    let failure = test.failed.map(|failed| TestFailureView {
        kind: failed.kind,
        message: failed.message,
        file,
        line,
        after_write: test.after_crash,
    });
    TestView {
        name: test.name,
        line: test.line,
        passed: failure.is_none(),
        failure,
        took_ms: test.took_ms,
        crashes: test.crashes,
        printed: test.said,
        warnings: test.findings,
    }
}

fn coverage_view(covered: &Covered) -> CoverageView {
    let ((ran, lines), (nodes_ran, nodes)) = (covered.lines(), covered.nodes());
    let mut missed = covered.missed();
    missed.truncate(NAMED);
    let missed_nodes = covered.missed_nodes().take(NAMED).map(|node| NodeView {
        at: node.at.chars().take(NAME).collect(),
        line: node.line,
        title: node.title.chars().take(NAME).collect(),
    });
    CoverageView {
        file: covered.path.display().to_string(),
        lines,
        ran,
        missed,
        nodes: (nodes > 0).then(|| NodesView {
            all: nodes,
            ran: nodes_ran,
            missed: missed_nodes.collect(),
        }),
    }
}
