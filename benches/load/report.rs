//! The figures, as tables or as JSON.

use serde::Serialize;

use crate::bare::Bare;

/// One load's figures.
#[derive(Serialize)]
pub struct Figures {
    /// `serial` or `fan-out`.
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

/// What the daemon is before any load.
#[derive(Serialize)]
pub struct Idle {
    /// From the start of the process, over an empty directory, until it listens.
    pub start_to_ready_ms: Option<f64>,
    /// Resident memory.
    pub rss_bytes: Option<u64>,
    /// The size of the program.
    pub binary_bytes: Option<u64>,
}

/// Whether memory grows with the runs that ended.
#[derive(Default, Serialize)]
pub struct Memory {
    /// Resident after 1,000 one-step runs.
    pub after_1_000_runs: Option<u64>,
    /// Resident after 10,000.
    pub after_10_000_runs: Option<u64>,
    /// Resident after every load.
    pub at_the_end: Option<u64>,
}

/// Everything.
#[derive(Serialize)]
pub struct Report {
    /// Before any load.
    pub idle: Idle,
    /// Each load.
    pub loads: Vec<Figures>,
    /// The disk.
    pub bare: Bare,
    /// Memory over time.
    pub memory: Memory,
}

impl Report {
    /// Requests that failed, of all loads.
    pub fn errors(&self) -> usize {
        self.loads.iter().map(|load| load.errors).sum()
    }

    /// Prints the tables.
    pub fn print(&self) {
        println!(
            "{:<8} {:>5} {:>5} {:>8} {:>6} {:>9} {:>9} {:>8} {:>8} {:>9} {:>8} {:>8} {:>8}",
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
                "{:<8} {:>5} {:>5} {:>8} {:>6} {:>9.0} {:>9.0} {:>8.2} {:>8.2} {:>9} {:>8} {:>8.2} {:>8}",
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
        let Bare { steps_s_batch_1, steps_s_batch_64, commit_p50_ms, commit_p99_ms } = &self.bare;
        println!();
        println!("bare loop, 1 step a commit    {steps_s_batch_1:>9.0} steps/s");
        println!("bare loop, 64 steps a commit  {steps_s_batch_64:>9.0} steps/s");
        println!(
            "bare commit                   p50 {commit_p50_ms:.3} ms, p99 {commit_p99_ms:.3} ms"
        );
        if let Some(one) = self.loads.iter().find(|it| it.steps == 1 && it.concurrency == 1) {
            let over = one.p50_ms - 2.0 * commit_p50_ms;
            println!("a one-step run                two bare commits {over:+.2} ms (p50)");
        }
        if let Some((ten, hundred)) = self.serial(10).zip(self.serial(100)) {
            let change = (ten.steps_s / hundred.steps_s - 1.0) * 100.0;
            println!(
                "a step of 100                 {change:+.1} % of the cost of a step of 10 (at 64)"
            );
        }
        let Memory { after_1_000_runs, after_10_000_runs, at_the_end } = &self.memory;
        println!(
            "resident                      idle {} MiB, after 1,000 runs {}, after 10,000 {}, at the end {}",
            mib(self.idle.rss_bytes),
            mib(*after_1_000_runs),
            mib(*after_10_000_runs),
            mib(*at_the_end)
        );
        if let Some(ms) = self.idle.start_to_ready_ms {
            println!(
                "start to ready                {ms:.0} ms, program {} MiB",
                mib(self.idle.binary_bytes)
            );
        }
    }

    fn serial(&self, steps: usize) -> Option<&Figures> {
        self.loads
            .iter()
            .find(|it| it.load == "serial" && it.steps == steps && it.concurrency == 64)
    }
}

fn mib(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "-".into(), |bytes| format!("{:.1}", bytes as f64 / 1_048_576.0))
}
