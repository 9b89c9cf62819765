//! Runs that take more than their share, beside one that must not suffer.

use super::*;

/// CPU time between two awaits, and what a neighbour may be late beyond it.
const SLICE: Duration = Duration::from_millis(100);
const GRACE: Duration = Duration::from_millis(if cfg!(debug_assertions) { 150 } else { 20 });

/// Each breaks a limit in a way of its own.
const ATTACKS: &[(&str, &str)] = &[
    ("a plain loop", "while true do end"),
    ("a loop under pcall", "while true do pcall(function() while true do end end) end"),
    ("a loop in a coroutine", "coroutine.wrap(function() while true do end end)()"),
    ("a sort comparator", "table.sort({ 3, 2, 1 }, function() while true do end end)"),
    ("a gsub callback", "string.gsub('abc', '.', function() while true do end end)"),
    ("a pattern bomb", "return string.find(string.rep('a', 5000), string.rep('a*', 30) .. 'b')"),
    (
        "an __index of a returned table",
        "return setmetatable({}, { __index = function() while true do end end })",
    ),
    (
        "an error that prints for ever",
        "error(setmetatable({}, { __tostring = function() while true do end end }))",
    ),
    ("a table that grows", "local t = {} while true do t[#t + 1] = { #t } end"),
    ("a string that doubles", "local s = 'x' while true do s = s .. s end"),
    (
        "a huge buffer of strings",
        "local t = {} while true do t[#t + 1] = string.rep('x', 65536) .. #t end",
    ),
    ("deep recursion", "local function f(n) return 1 + f(n + 1) end return f(1)"),
    ("nested output", "local t = {} for i = 1, 200 do t = { t } end return t"),
    ("a flood of logs", "while true do ctx:log('info', 'x') end"),
    ("a flood of statuses", "while true do ctx:status('x') end"),
    ("a flood of events", "while true do ctx:publish('x', 1) end"),
    ("a flood of spawns", "while true do ctx:spawn(function() ctx:wait('never') end) end"),
    ("a flood of steps", "while true do ctx:run('e', 1) end"),
    ("a flood of state", "local n = 0 while true do n = n + 1 ctx.state:set('k' .. n, n) end"),
    ("a value that is too large", "return ctx:run('e', string.rep('x', 5000000))"),
    (
        "a fan-out without end",
        "local t = {} for i = 1, 100000 do t[i] = i end ctx:map(t, function() ctx:wait('never') end)",
    ),
];

/// Measures how much longer than its processor time work takes on this machine now: 1 where nobody
/// else has the processor. A slice is processor time, lateness is not.
fn stretch() -> f64 {
    use rustix::time::{ClockId, clock_gettime};
    let seconds = |clock| {
        let time = clock_gettime(clock);
        #[expect(clippy::cast_precision_loss, reason = "seconds and nanoseconds of one test")]
        let seconds = time.tv_sec as f64 + time.tv_nsec as f64 / 1e9;
        seconds
    };
    let (cpu, wall) = (seconds(ClockId::ThreadCPUTime), seconds(ClockId::Monotonic));
    while seconds(ClockId::ThreadCPUTime) - cpu < 0.02 {}
    ((seconds(ClockId::Monotonic) - wall) / 0.02).max(1.0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attack_fails_alone_and_a_neighbour_is_hardly_late() {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let bench = Bench::open_with(
        dir,
        Clock::system(),
        1,
        RunLimits { steps: 3_000, ..RunLimits::default() },
        Recovery::All,
    );
    let metronome = r#"flow = function(ctx)
            local worst = 0
            ctx:on_query("worst", function() return worst end)
            local stop = false
            ctx:spawn(function() ctx:wait("stop") stop = true end)
            while not stop do
                local due = ctx:now() + 0.02
                ctx:sleep_until(due)
                worst = math.max(worst, ctx:now() - due)
            end
            return worst
        end"#;
    let beat = bench.start(metronome, "null").await;
    let mut slowdown = stretch();
    for (name, attack) in ATTACKS {
        let body = format!(
            "agents = {{ e = {{ operator = \"echo\" }} }}, flow = function(ctx) {attack} end"
        );
        let run = bench.start(&body, "null").await;
        let view = bench.ended(run).await;
        let kind = view.error.map(|error| error.kind);
        let late =
            bench.engine.query(&bench.admin(), beat, "worst".into(), Json::null()).await.unwrap();
        println!("{name}: {kind:?}, the neighbour was late by at most {late} s so far");
        slowdown = slowdown.max(stretch());
        match kind.as_deref() {
            Some("limit" | "script") => {}
            // The host looks at a returned table without asking it.
            None if name.starts_with("an __index") => {}
            other => panic!("{name}: {other:?}"),
        }
    }
    bench.signal(beat, "stop", "true").await.unwrap();
    let worst: f64 = bench.ended(beat).await.output.unwrap().decode().unwrap();
    let bound = (SLICE + GRACE).as_secs_f64() * slowdown;
    println!("the neighbour was late by at most {:.0} ms", worst * 1_000.0);
    assert!(worst <= bound, "the neighbour was late by {worst} s; {bound} s are allowed");
}
