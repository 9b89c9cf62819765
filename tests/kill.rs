//! A daemon that is killed again and again in the middle of its work loses nothing, repeats nothing
//! that had finished, and ends with the right results.
//!
//! Every step is a real child process that writes into a ledger of its own, so that what the
//! journal says can be held against what really ran. `MOONSWARM_KILLS`, `MOONSWARM_KILL_RUNS` and
//! `MOONSWARM_KILL_OPEN` change the size.

mod support;

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    sync::mpsc,
    time::Instant,
};

use futures::{StreamExt as _, stream};
use moonswarm::protocol::RunId;
use serde_json::json;
use support::{Daemon, PATIENCE, numbered_events, send};

const STEPS: u64 = 10;

/// The child marks its begin and its end in the ledger and tells the test of both; its result
/// depends on the result of the step before it.
const BLUEPRINT: &str = r#"
local swarm = require("swarm")
local CHILD = [[
printf 'start %s %s %s\n' "$1" "$2" "$3" >> "$6/ledger"
echo s > "$6/bell"
sleep "0.$4"
printf 'end %s %s %s\n' "$1" "$2" "$3" >> "$6/ledger"
printf '{"value":%d}' $(( ($5 * 31 + $2) % 65521 ))
echo e > "$6/bell"
]]
return swarm.blueprint {
  name = "chain",
  agents = {
    child = { operator = "process", timeout = "10m", command = { "sh", "-c", CHILD, "child",
      "{{ run.id }}", "{{ step }}", "{{ attempt }}", "{{ nap }}", "{{ value }}", "{{ dir }}" } },
  },
  flow = function(ctx, input)
    local value = input.seed
    for step = 1, 10 do
      local nap = string.format("%03d", 50 + (input.seed * 37 + step * 101) % 251)
      value = ctx:run("child", { step = step, nap = nap, value = value, dir = input.dir }).value
    end
    return value
  end,
}
"#;

fn expected(seed: u64) -> u64 {
    (1..=STEPS).fold(seed, |value, step| (value * 31 + step) % 65_521)
}

fn size(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

/// A line of the ledger.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Mark {
    run: String,
    step: u64,
    attempt: u64,
}

#[derive(Debug, Default)]
struct Ledger {
    starts: Vec<Mark>,
    ends: Vec<Mark>,
}

impl Ledger {
    fn read(dir: &Path) -> Self {
        let mut it = Self::default();
        let text = std::fs::read_to_string(dir.join("ledger")).unwrap_or_default();
        for line in text.lines() {
            let words: Vec<_> = line.split(' ').collect();
            let [what, run, step, attempt] = words[..] else { panic!("a torn line: {line:?}") };
            let mark = Mark {
                run: run.to_owned(),
                step: step.parse().unwrap(),
                attempt: attempt.parse().unwrap(),
            };
            match what {
                "start" => it.starts.push(mark),
                "end" => it.ends.push(mark),
                other => panic!("a torn line: {other:?}"),
            }
        }
        it
    }
}

/// What the disk had when the daemon was gone.
struct Wreck {
    /// Attempts that were open.
    open: usize,
    /// Children that had begun and not ended.
    children: usize,
    /// The steps that had finished, by run.
    done: BTreeMap<String, u64>,
    /// How many children had begun since the test began.
    starts: usize,
}

impl Wreck {
    /// Looks at a copy, so that the next daemon finds the files as the dead one left them.
    fn survey(dir: &Path, data: &Path, starts_before: usize, ends_before: usize) -> Self {
        let copy = dir.join("copy");
        std::fs::create_dir_all(&copy).unwrap();
        for name in ["moonswarm.db", "moonswarm.db-wal"] {
            std::fs::copy(data.join(name), copy.join(name)).unwrap();
        }
        let db = rusqlite::Connection::open(copy.join("moonswarm.db")).unwrap();
        let open: i64 = db.query_row("SELECT count(*) FROM tasks", [], |row| row.get(0)).unwrap();
        let mut runs = db.prepare("SELECT num, created_ms, steps_done FROM runs").unwrap();
        let done = runs
            .query_map([], |row| {
                let (num, created, done): (i64, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
                let id = RunId::new(num.unsigned_abs(), created.unsigned_abs());
                Ok((id.to_string(), done.unsigned_abs()))
            })
            .unwrap()
            .map(Result::unwrap)
            .collect();
        drop(runs);
        drop(db);
        std::fs::remove_dir_all(&copy).unwrap();
        let ledger = Ledger::read(dir);
        let children =
            (ledger.starts.len() - starts_before).saturating_sub(ledger.ends.len() - ends_before);
        Self { open: usize::try_from(open).unwrap(), children, done, starts: ledger.starts.len() }
    }
}

/// Rings when a child begins or ends.
struct Bell {
    rings: mpsc::Receiver<String>,
    _open: File,
}

impl Bell {
    fn hang(dir: &Path) -> Self {
        let path = dir.join("bell");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        // Open for both, so that it never ends and no child waits for a reader.
        let open = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let reader = BufReader::new(open.try_clone().unwrap());
        let (tell, rings) = mpsc::channel();
        std::thread::spawn(move || {
            for line in reader.lines() {
                if line.is_err() || tell.send(line.unwrap()).is_err() {
                    return;
                }
            }
        });
        Self { rings, _open: open }
    }

    /// Waits until this many children have begun and that many have ended.
    async fn wait(&self, mut starts: usize, mut ends: usize, daemon: &Daemon) {
        while self.rings.try_recv().is_ok() {}
        let since = Instant::now();
        while starts + ends > 0 {
            let left = PATIENCE.saturating_sub(since.elapsed());
            let Ok(ring) = self.rings.recv_timeout(left) else {
                let (_, runs) = send(daemon.get("/v1/runs?limit=3")).await;
                panic!("{starts} starts and {ends} ends did not come: {runs}\n{}", daemon.log());
            };
            match ring.as_str() {
                "s" => starts = starts.saturating_sub(1),
                "e" => ends = ends.saturating_sub(1),
                other => panic!("a torn ring: {other:?}"),
            }
        }
    }
}

/// Numbers that are the same in every test run.
fn dice(seed: u64) -> u64 {
    let mut x = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x5DEE_CE66;
    for shift in [13_u32, 7, 17] {
        x ^= x << shift;
        x ^= x >> (shift / 2 + 1);
    }
    x >> 16
}

async fn start_runs(daemon: &Daemon, dir: &Path, count: usize) -> Vec<(String, u64)> {
    let (status, stored) =
        send(daemon.put("/v1/blueprints/chain", &json!({"files": {"main.lua": BLUEPRINT}}))).await;
    assert_eq!(status, 200, "{stored}");
    stream::iter(0..count as u64)
        .map(|seed| async move {
            let input = json!({ "seed": seed, "dir": dir });
            let body = json!({ "blueprint": "chain", "input": input });
            let (status, run) = send(daemon.post("/v1/runs", &body)).await;
            assert_eq!(status, 201, "{run}");
            (run["id"].as_str().unwrap().to_owned(), seed)
        })
        // All at once, so that no run ends before the last one began.
        .buffered(count)
        .collect()
        .await
}

/// Holds a run's journal against the ledger; gives the attempts that were interrupted.
async fn audit(daemon: &Daemon, ledger: &Ledger, run: &str, seed: u64) -> u64 {
    let view = daemon.ended(run).await;
    assert_eq!(view["status"], "completed", "{view}");
    assert_eq!(view["output"], expected(seed), "{view}");

    let (_, page) = send(daemon.get(&format!("/v1/runs/{run}/steps"))).await;
    let steps = page["items"].as_array().unwrap();
    assert_eq!(steps.len() as u64, STEPS, "{page}");
    let mut interrupted = 0;
    for (at, step) in steps.iter().enumerate() {
        let (number, attempts) = (at as u64 + 1, step["attempts"].as_u64().unwrap());
        assert_eq!((&step["state"], &step["seq"]), (&json!("completed"), &json!(number)), "{step}");
        let of = |marks: &[Mark]| -> Vec<u64> {
            let mut of: Vec<_> = marks
                .iter()
                .filter(|mark| mark.run == run && mark.step == number)
                .map(|mark| mark.attempt)
                .collect();
            of.sort_unstable();
            of
        };
        let (starts, ends) = (of(&ledger.starts), of(&ledger.ends));
        assert!(
            starts.windows(2).all(|two| two[0] < two[1]),
            "an attempt ran twice: {step} {starts:?}"
        );
        assert_eq!(starts.last(), Some(&attempts), "the accepted attempt began last: {step}");
        assert_eq!(ends.last(), Some(&attempts), "the accepted attempt did its work: {step}");
        interrupted += attempts - 1;
    }
    gapless(daemon, run).await;
    interrupted
}

/// The events of an ended run are numbered without a gap, and every step completed once.
async fn gapless(daemon: &Daemon, run: &str) {
    let answer = daemon.get(&format!("/v1/runs/{run}/events")).send().await.unwrap();
    let text = answer.text().await.unwrap();
    let events = numbered_events(&text);
    let completed = events.iter().filter(|event| event["type"] == "step.completed").count();
    assert_eq!(completed as u64, STEPS);
    assert_eq!(events.last().unwrap()["type"], "run.ended");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_is_killed_again_and_again_repeats_nothing_that_had_finished() {
    let (kills, count) = (size("MOONSWARM_KILLS", 50), size("MOONSWARM_KILL_RUNS", 200));
    let least_open = size("MOONSWARM_KILL_OPEN", 100);
    let begun = Instant::now();
    let home = tempfile::tempdir().unwrap();
    let dir: PathBuf = home.path().canonicalize().unwrap();
    let data = dir.join("data");
    let bell = Bell::hang(&dir);

    let mut daemon = Daemon::start(&data);
    let runs = start_runs(&daemon, &dir, count).await;
    let mut wrecks: Vec<Wreck> = Vec::new();
    for kill in 0..kills {
        let before = Ledger::read(&dir);
        // From "as soon as one child began" to "in the middle of everything".
        let ends = usize::try_from(dice(kill as u64) % 31).unwrap();
        bell.wait(1, ends, &daemon).await;
        daemon.kill();
        wrecks.push(Wreck::survey(&dir, &data, before.starts.len(), before.ends.len()));
        daemon = Daemon::start(&data);
    }
    let killed_for = begun.elapsed();
    for (run, _) in &runs {
        daemon.ended(run).await;
    }

    let ledger = Ledger::read(&dir);
    let daemon = &daemon;
    let interrupted: u64 = stream::iter(&runs)
        .map(|(run, seed)| audit(daemon, &ledger, run, *seed))
        .buffered(8)
        .fold(0, |sum, one| async move { sum + one })
        .await;
    for wreck in &wrecks {
        for mark in &ledger.starts[wreck.starts..] {
            let done = wreck.done.get(&mark.run).copied().unwrap_or(0);
            assert!(mark.step > done, "{mark:?} began after the step had finished");
        }
    }
    let spread = |of: fn(&Wreck) -> usize| {
        let mut all: Vec<_> = wrecks.iter().map(of).collect();
        all.sort_unstable();
        (all.first().copied().unwrap_or(0), all.get(all.len() / 2).copied().unwrap_or(0))
    };
    let (open, children) = (spread(|wreck| wreck.open), spread(|wreck| wreck.children));
    println!(
        "{kills} kills in {killed_for:.1?}, {:.1?} in all; attempts open at a kill: least {}, median {}; \
         children alive: least {}, median {}; {} children began, {interrupted} attempts interrupted",
        begun.elapsed(),
        open.0,
        open.1,
        children.0,
        children.1,
        ledger.starts.len(),
    );
    assert!(wrecks.iter().all(|wreck| wreck.open >= least_open), "too little was under way");
}
