//! The figures, as tables or as JSON, and the ratios that a build must keep.

use anyhow::{Result, ensure};
use serde::Serialize;

use crate::{
    bare::Bare,
    fairness::Fairness,
    llm::Llm,
    mcp::Mcp,
    parked::{Parked, Replay, Timers},
    pressure::Pressure,
    sessions::Sessions,
    state::StateRates,
    worker::Rate,
};

/// One load's figures.
#[derive(Serialize)]
pub struct Figures {
    /// `serial`, `fan-out`, `queue`, `queue-next`, `batch`, `batch-next` or `process`.
    pub load: &'static str,
    /// Steps a run.
    pub steps: usize,
    /// Runs at a time.
    pub concurrency: usize,
    /// Runs that completed.
    pub runs: usize,
    /// Requests that did not come back with a completed run.
    pub errors: usize,
    /// Runs a second.
    pub runs_s: f64,
    /// Durable steps a second.
    pub steps_s: f64,
    /// Half of all requests took no longer.
    pub p50_ms: f64,
    /// 99 of 100 requests took no longer.
    pub p99_ms: f64,
    /// Journal rows a step, with the rows of start and end.
    pub rows_per_step: Option<f64>,
    /// Processor time of the daemon a step, of all its threads; the figure that a busy machine
    /// and a slow disk change least.
    pub cpu_us_per_step: Option<f64>,
    /// The daemon's resident memory afterwards.
    pub rss_bytes: Option<u64>,
}

/// The figures of the daemon before any load.
#[derive(Default, Serialize)]
pub struct Idle {
    /// From the start of the process, over an empty directory, until it listens.
    pub start_to_ready_ms: Option<f64>,
    /// Resident memory.
    pub rss_bytes: Option<u64>,
    /// The size of the program.
    pub binary_bytes: Option<u64>,
}

/// The growth of memory with the runs that ended.
#[derive(Default, Serialize)]
pub struct Memory {
    /// The number of one-step runs: at first, and in all.
    pub runs: [usize; 2],
    /// Resident after the first.
    pub after_the_first: Option<u64>,
    /// Resident after all of them.
    pub after_all: Option<u64>,
    /// Resident after every load.
    pub at_the_end: Option<u64>,
}

/// Everything.
#[derive(Default, Serialize)]
pub struct Report {
    /// Before any load.
    pub idle: Idle,
    /// Each load.
    pub loads: Vec<Figures>,
    /// The worker API by itself.
    pub worker: Vec<Rate>,
    /// The disk.
    pub bare: Bare,
    /// Memory over time.
    pub memory: Memory,
    /// A long history, read again.
    pub replay: Option<Replay>,
    /// Runs that wait for a signal.
    pub parked: Option<Parked>,
    /// Timers that are due at the boot.
    pub timers: Option<Timers>,
    /// Health under pressure.
    pub pressure: Option<Pressure>,
    /// State, read, written and searched.
    pub state: Option<StateRates>,
    /// Small runs beside floods.
    pub fairness: Option<Fairness>,
    /// Connected operators.
    pub sessions: Option<Sessions>,
    /// Streams of models.
    pub llm: Option<Llm>,
    /// Coding agents with tools alone.
    pub mcp: Option<Mcp>,
}

impl Report {
    /// Requests that failed, of all loads.
    pub fn errors(&self) -> usize {
        let loads: usize = self.loads.iter().map(|load| load.errors).sum();
        loads + self.worker.iter().map(|rate| rate.errors).sum::<usize>()
    }

    /// Prints the tables.
    pub fn print(&self) {
        self.print_loads();
        self.print_worker();
        self.print_state();
        self.print_disk();
        self.print_waiting();
        self.print_sessions();
        self.print_mcp();
        self.print_llm();
        self.print_process();
    }

    /// Refuses figures whose ratios are beyond what any machine excuses. A limit here is about
    /// half of what a quiet machine shows, because the machine of a test is not quiet.
    ///
    /// # Errors
    /// Every ratio that is broken, in one message.
    pub fn gate(&self) -> Result<()> {
        let mut broken = Vec::new();
        let mut hold = |name: &str, seen: Option<f64>, holds: fn(f64) -> bool| match seen {
            Some(seen) if holds(seen) => println!("gate: {name}: {seen:.2}, ok"),
            Some(seen) => broken.push(format!("{name}: {seen:.2}")),
            None => {}
        };
        let rows = |it: &Figures| it.steps_s * it.rows_per_step.unwrap_or(1.0);
        let ten = self.serial(10, 64);
        hold(
            "journal rows/s of 10-step runs at 64, over the bare loop's (at least 0.2)",
            ten.map(|it| rows(it) / self.bare.steps_s_batch_64),
            |ratio| ratio >= 0.2,
        );
        hold(
            "steps/s that start a child each, 32 at a time, over bare children (at least 0.25)",
            self.load("process", 10, 32).map(|it| it.steps_s / self.bare.children_s),
            |ratio| ratio >= 0.25,
        );
        let cpu_over_serial = |load: &str| {
            let (it, ten) = self.load(load, 10, 64).zip(ten)?;
            Some(it.cpu_us_per_step? / ten.cpu_us_per_step?)
        };
        hold(
            "CPU us of a step through a queue, over one in the process (at most 16)",
            cpu_over_serial("queue"),
            |ratio| ratio <= 16.0,
        );
        hold(
            "CPU us of a step through a worker with batches, over one in the process (at most 12)",
            cpu_over_serial("batch"),
            |ratio| ratio <= 12.0,
        );
        hold(
            "a step of a 1,000-step run, over one of a 10-step run (at most 1.1)",
            ten.zip(self.serial(1_000, 64)).map(|(ten, more)| ten.steps_s / more.steps_s),
            |ratio| ratio <= 1.1,
        );
        hold(
            "p99 over p50 of a one-step run at 1 (at most 10)",
            self.serial(1, 1).map(|it| it.p99_ms / it.p50_ms),
            |ratio| ratio <= 10.0,
        );
        let Memory { after_the_first, after_all, .. } = &self.memory;
        hold(
            "resident memory after all one-step runs, over that after the first (at most 1.5)",
            after_all.zip(*after_the_first).map(|(all, first)| all as f64 / first as f64),
            |ratio| ratio <= 1.5,
        );
        hold(
            "KiB of resident memory for a connected session (at most 40)",
            self.sessions.as_ref().and_then(|it| it.bytes_each).map(|bytes| bytes / 1024.0),
            |kib| kib <= 40.0,
        );
        let llm = self.llm.as_ref();
        hold(
            "ms that a first token is later than from the provider, less two bare commits (at most 2)",
            llm.map(|it| it.through_p50_ms - it.direct_p50_ms - 2.0 * self.bare.commit_p50_ms),
            |ms| ms <= 2.0,
        );
        hold(
            "the slowest of 64 streams, over the provider's pace (at least 0.95)",
            llm.map(|it| it.slowest_pace / 50.0),
            |ratio| ratio >= 0.95,
        );
        hold(
            "KiB of resident memory for a stream (at most 60)",
            llm.and_then(|it| it.bytes_each).map(|bytes| bytes / 1024.0),
            |kib| kib <= 60.0,
        );
        let mcp = self.mcp.as_ref();
        hold(
            "ms, a list of the tools beside 1,000 blueprints (at most 10)",
            mcp.map(|it| it.list_p50_ms),
            |ms| ms <= 10.0,
        );
        hold(
            "ms, report_task and next_task, less two bare commits (at most 6)",
            mcp.map(|it| it.round_p50_ms - 2.0 * self.bare.commit_p50_ms),
            |ms| ms <= 6.0,
        );
        let fairness = self.fairness.as_ref();
        for flood in fairness.iter().flat_map(|it| &it.floods) {
            let name =
                format!("ms, p99 of a small run beside eight of {} (at most 120)", flood.kind);
            hold(&name, Some(flood.p99_ms), |ms| ms <= 120.0);
            let name = format!("ms, a cancel of {} (at most 1,000)", flood.kind);
            hold(&name, Some(flood.cancel_ms), |ms| ms <= 1_000.0);
        }
        let long = fairness.and_then(|it| it.long.last_bytes.zip(it.long.first_bytes));
        hold(
            "resident memory after a run in many histories, over that after a tenth (at most 1.5)",
            long.map(|(last, first)| last as f64 / first as f64),
            |ratio| ratio <= 1.5,
        );
        ensure!(broken.is_empty(), "beyond their limits: {}", broken.join("; "));
        Ok(())
    }

    fn print_loads(&self) {
        println!(
            "{:<8} {:>6} {:>5} {:>8} {:>6} {:>9} {:>9} {:>8} {:>8} {:>9} {:>8} {:>8} {:>8}",
            "load",
            "steps",
            "at",
            "runs",
            "errors",
            "runs/s",
            "steps/s",
            "p50 ms",
            "p99 ms",
            "rows/step",
            "CPU us",
            "/bare 64",
            "RSS MiB"
        );
        for load in &self.loads {
            let rows = load.rows_per_step.map_or_else(|| "-".into(), |it| format!("{it:.2}"));
            let cpu = load.cpu_us_per_step.map_or_else(|| "-".into(), |it| format!("{it:.1}"));
            println!(
                "{:<8} {:>6} {:>5} {:>8} {:>6} {:>9.0} {:>9.0} {:>8.2} {:>8.2} {:>9} {:>8} {:>8.2} {:>8}",
                load.load,
                load.steps,
                load.concurrency,
                load.runs,
                load.errors,
                load.runs_s,
                load.steps_s,
                load.p50_ms,
                load.p99_ms,
                rows,
                cpu,
                load.steps_s / self.bare.steps_s_batch_64,
                mib(load.rss_bytes)
            );
        }
    }

    fn print_worker(&self) {
        for Rate { name, per_second, p50_ms, p99_ms, cpu_us, .. } in &self.worker {
            let cpu = cpu_us.map_or_else(|| "-".into(), |it| format!("{it:.1}"));
            println!(
                "{name:<29} {per_second:>9.0} /s, p50 {p50_ms:.2} ms, p99 {p99_ms:.2} ms, \
                 CPU {cpu} us"
            );
        }
    }

    fn print_llm(&self) {
        let Some(llm) = &self.llm else { return };
        println!();
        println!(
            "model, first token            {:>9.2} ms from the provider, p50 {:.2} ms and p99 {:.2} ms \
             through the daemon",
            llm.direct_p50_ms, llm.through_p50_ms, llm.through_p99_ms
        );
        println!(
            "model, {} streams watched, the slowest at {:.1} of 50 tokens/s",
            llm.watched, llm.slowest_pace
        );
        let kib = llm.bytes_each.map_or_else(|| "-".into(), |it| format!("{:.1}", it / 1024.0));
        println!(
            "model, {} streams at a time: {kib} KiB each, {} completed",
            llm.streams, llm.completed
        );
    }

    fn print_state(&self) {
        let Some(state) = &self.state else { return };
        println!();
        println!("state, reads in process       {:>9.0} /s", state.reads_s);
        println!("state, reads over HTTP at 64  {:>9.0} /s", state.http_reads_s);
        println!(
            "state, durable writes         {:>9.0} /s in batches of 500, 4 at once",
            state.writes_s
        );
        println!(
            "state, search of {} values, {} fit, best 20: p50 {:.2} ms, p99 {:.2} ms",
            state.values, state.matching, state.search_p50_ms, state.search_p99_ms
        );
    }

    fn print_disk(&self) {
        let Bare { steps_s_batch_1, steps_s_batch_64, commit_p50_ms, commit_p99_ms, children_s } =
            &self.bare;
        println!();
        println!("bare loop, 1 step a commit    {steps_s_batch_1:>9.0} steps/s");
        println!("bare loop, 64 steps a commit  {steps_s_batch_64:>9.0} steps/s");
        println!("bare children                 {children_s:>9.0} /s");
        println!(
            "bare commit                   p50 {commit_p50_ms:.3} ms, p99 {commit_p99_ms:.3} ms"
        );
        if let Some(one) = self.serial(1, 1) {
            let over = one.p50_ms - 2.0 * commit_p50_ms;
            println!("a one-step run                two bare commits {over:+.2} ms (p50)");
        }
        for more in [100, 1_000] {
            if let Some((ten, more)) = self.serial(10, 64).zip(self.serial(more, 64)) {
                let change = (ten.steps_s / more.steps_s - 1.0) * 100.0;
                let steps = more.steps;
                println!(
                    "a step of {steps:<19} {change:+.1} % of the cost of a step of 10 (at 64)"
                );
            }
        }
    }

    fn print_waiting(&self) {
        if let Some(Replay { entries, per_second, locals_ms }) = &self.replay {
            println!(
                "replay of {entries:<19} {per_second:>9.0} entries/s, reading and end included"
            );
            println!("locals at its step 10000      {locals_ms:>9.1} ms, half took no longer");
        }
        if let Some(it) = &self.parked {
            println!(
                "parked runs                   {} take {} MiB, boot {:.0} ms, wake p50 {:.2} ms, p99 {:.2} ms",
                it.runs,
                mib(it.rss_bytes),
                it.boot_ms,
                it.wake_p50_ms,
                it.wake_p99_ms
            );
        }
        if let Some(it) = &self.timers {
            println!(
                "timers due at the boot        {}: {:.0} /s, new runs meanwhile p99 {:.2} ms",
                it.runs, it.per_second, it.new_run_p99_ms
            );
        }
        for it in self.fairness.iter().flat_map(|it| &it.floods) {
            println!(
                "beside 8 of {:<17} p50 {:.2} ms, p99 {:.2} ms, max {:.2} ms of {} small runs; a cancel {:.0} ms, {} MiB",
                it.kind,
                it.p50_ms,
                it.p99_ms,
                it.max_ms,
                it.runs,
                it.cancel_ms,
                mib(it.rss_bytes)
            );
        }
        if let Some(it) = self.fairness.as_ref().map(|it| &it.long) {
            println!(
                "one run of {:<18} {:>9.0} entries/s, {} MiB after a tenth, {} MiB after all; listed in {:.1} ms",
                it.entries,
                it.per_second,
                mib(it.first_bytes),
                mib(it.last_bytes),
                it.view_ms
            );
        }
        if let Some(it) = &self.pressure {
            println!(
                "health                        p99 {:.2} ms, max {:.2} ms, beside {} queued runs and {} waiting workers, {} MiB",
                it.health_p99_ms,
                it.health_max_ms,
                it.queued,
                it.workers,
                mib(it.rss_bytes)
            );
        }
    }

    fn print_sessions(&self) {
        let Some(it) = &self.sessions else { return };
        let each = it.bytes_each.map_or_else(|| "-".into(), |it| format!("{:.1}", it / 1024.0));
        println!("sessions                      {} connected, {each} KiB each", it.connected);
        println!(
            "spawn to frame                p50 {:.2} ms, p99 {:.2} ms, while {} work",
            it.spawn_p50_ms, it.spawn_p99_ms, it.working
        );
        println!(
            "round of a session            p50 {:.2} ms, p99 {:.2} ms alone; {:.0} /s at {}",
            it.round_p50_ms, it.round_p99_ms, it.rounds_per_second, it.at_once
        );
    }

    fn print_mcp(&self) {
        let Some(it) = &self.mcp else { return };
        println!(
            "tools of {:<20} {} listed, p50 {:.2} ms, p99 {:.2} ms, the first {:.2} ms, \
             the first after a start {:.2} ms",
            format!("{} blueprints", it.blueprints),
            it.tools,
            it.list_p50_ms,
            it.list_p99_ms,
            it.first_list_ms,
            it.started_list_ms
        );
        println!(
            "report_task and next_task     p50 {:.2} ms, p99 {:.2} ms alone; {:.0} /s at {}, with {} us \
             of processor time in the daemon and {:.0} us in the client",
            it.round_p50_ms,
            it.round_p99_ms,
            it.rounds_per_second,
            it.at_once,
            it.daemon_us.map_or_else(|| "?".to_owned(), |us| format!("{us:.0}")),
            it.client_us
        );
    }

    fn print_process(&self) {
        let Memory { runs: [first, all], after_the_first, after_all, at_the_end } = &self.memory;
        println!(
            "resident                      idle {} MiB, after {first} runs {}, after {all} {}, at the end {}",
            mib(self.idle.rss_bytes),
            mib(*after_the_first),
            mib(*after_all),
            mib(*at_the_end)
        );
        if let Some(ms) = self.idle.start_to_ready_ms {
            println!(
                "start to ready                {ms:.0} ms, program {} MiB",
                mib(self.idle.binary_bytes)
            );
        }
    }

    fn serial(&self, steps: usize, concurrency: usize) -> Option<&Figures> {
        self.load("serial", steps, concurrency)
    }

    fn load(&self, load: &str, steps: usize, concurrency: usize) -> Option<&Figures> {
        self.loads
            .iter()
            .find(|it| it.load == load && it.steps == steps && it.concurrency == concurrency)
    }
}

fn mib(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "-".into(), |bytes| format!("{:.1}", bytes as f64 / 1_048_576.0))
}
