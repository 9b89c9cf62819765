//! The counters of the engine, and the gauges of its shards.

use std::sync::Arc;

use super::{Counter, Gauge, Histogram, HttpCounts, McpCounts, Scrape, Series};
use crate::{
    clock::Clock,
    journal::{Ending, Usage},
    protocol::StepKind,
};

/// The maximum number of blueprints with series of their own.
const BLUEPRINTS: usize = 200;
/// The maximum number of pairs of an operator and an agent with series of their own.
const AGENTS: usize = 500;
/// The maximum number of operators with series of their own.
const OPERATORS: usize = 200;
/// The maximum number of pairs of a model and an operator with series of their own.
const MODELS: usize = 200;
/// The maximum number of kinds of failures, for all operators together, and for all models.
const FAILURES: usize = 500;
/// The number of billionths in a dollar.
const NANO: f64 = 1e9;

/// The number of kinds of steps; their series are in the order of [`StepKind::ALL`].
const KINDS: usize = StepKind::ALL.len();
/// The kinds of triggers that start runs by themselves, with the outcomes. An alert that looks for
/// growth needs the series before its first event.
const TRIGGERS: [[&str; 2]; 5] = [
    ["schedule", "started"],
    ["schedule", "failed"],
    ["schedule", "skipped"],
    ["watch", "started"],
    ["watch", "failed"],
];
/// The endings, in the order of their series.
const ENDINGS: [&str; 3] = ["completed", "failed", "canceled"];

/// The counters of a host.
#[derive(Debug)]
pub struct Counts {
    /// When they began, in Unix milliseconds.
    pub since_ms: u64,
    runs: Series<1, RunSeries>,
    started: Series<2, Counter>,
    steps: [Histogram; KINDS],
    attempts: Series<3, Counter>,
    failures: Series<2, Counter>,
    call_failures: Series<3, Counter>,
    work: Series<1, OperatorTimes>,
    calls: Series<2, Calls>,
    tokens: Series<2, Tokens>,
    /// Replays of a history into a new flow: those that matched, diverged, or had no memory.
    pub replays: [Counter; 3],
    /// The duration of replays.
    pub replay: Histogram,
    /// Runs that were put into quarantine.
    pub quarantined: Counter,
    /// Starts by triggers, by the kind of the trigger and the outcome.
    pub triggered: Series<2, Counter>,
    /// The schedules of all blueprints.
    pub schedules: Gauge,
    /// The spans and the readings of the metrics for a collector, by signal and outcome.
    pub exports: Series<2, Counter>,
    /// The requests to a collector that failed and are repeated, by signal.
    pub export_failures: Series<1, Counter>,
    /// The entries of the journal whose spans are not exported.
    pub export_left_out: Counter,
    /// The requests at the door.
    pub http: HttpCounts,
    /// The requests of MCP clients.
    pub mcp: McpCounts,
    /// Readers of a run's events that fell behind.
    pub watchers_dropped: Counter,
}

/// The counters of the runs of one blueprint.
#[derive(Debug)]
pub struct RunSeries {
    ended: [Counter; 3],
    duration: Histogram,
    steps: [[Counter; 3]; KINDS],
}

impl Default for RunSeries {
    fn default() -> Self {
        Self { ended: Default::default(), duration: Histogram::long(), steps: Default::default() }
    }
}

impl RunSeries {
    /// Counts a step that ended.
    pub fn step(&self, kind: StepKind, ending: Ending) {
        if let (Some(kind), Some(ending)) = (place(kind), ended(ending)) {
            self.steps[kind][ending].inc();
        }
    }

    /// Counts a run that ended.
    pub fn end(&self, ending: Ending, took_ms: u64) {
        if let Some(ending) = ended(ending) {
            self.ended[ending].inc();
            self.duration.add_ms(took_ms);
        }
    }
}

/// The times of an operator's attempts.
#[derive(Debug)]
struct OperatorTimes {
    ran: Histogram,
    queued: Histogram,
    unreported: Counter,
}

impl Default for OperatorTimes {
    fn default() -> Self {
        Self { ran: Histogram::long(), queued: Histogram::long(), unreported: Counter::default() }
    }
}

/// The calls of a model through an operator.
#[derive(Debug)]
struct Calls {
    ended: [Counter; 3],
    duration: Histogram,
}

impl Default for Calls {
    fn default() -> Self {
        Self { ended: Default::default(), duration: Histogram::long() }
    }
}

/// The usage of a model through an operator.
#[derive(Debug, Default)]
struct Tokens {
    input: Counter,
    output: Counter,
    cached: Counter,
    reasoning: Counter,
    nano_usd: Counter,
}

/// An attempt that ended.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// Its operator.
    pub operator: Arc<str>,
    /// Its agent.
    pub agent: String,
    /// `completed`, `failed`, `canceled`, `retried`, `interrupted` or `followed`.
    pub outcome: &'static str,
    /// The kind of its failure, if it failed.
    pub failure: Option<String>,
    /// The time that its step waited in all, and the time that it worked, in milliseconds.
    pub times: Option<(u64, u64)>,
    /// The usage, if it was reported.
    pub usage: Option<Usage>,
    /// True if it was delivered and ended without reporting usage.
    pub unreported: bool,
    /// The model, if it was a question to one: the one that answered, else the one that was asked.
    pub model: Option<String>,
    /// The end of the model call that it was, if no other attempt follows.
    pub call: Option<ModelCall>,
}

/// A question to a model that was answered, or not.
#[derive(Debug, Clone)]
pub struct ModelCall {
    /// The ending.
    pub ending: Ending,
    /// The duration, in milliseconds.
    pub took_ms: u64,
}

/// The state of a shard, as it was at the end of its last round.
#[derive(Debug, Default)]
pub struct ShardGauges {
    /// Runs in memory.
    pub runs: Gauge,
    /// Flows in memory.
    pub flows: Gauge,
    /// VMs.
    pub vms: Gauge,
    /// Memory of the VMs, in bytes.
    pub vm_bytes: Gauge,
    /// Runs that wait for their turn.
    pub ready: Gauge,
}

impl Default for Counts {
    fn default() -> Self {
        let counts = Self {
            since_ms: Clock::system().now_ms(),
            runs: Series::new(BLUEPRINTS),
            started: Series::new(4 * BLUEPRINTS),
            steps: std::array::from_fn(|_| Histogram::long()),
            attempts: Series::new(4 * AGENTS),
            failures: Series::new(FAILURES),
            call_failures: Series::new(FAILURES),
            work: Series::new(OPERATORS),
            calls: Series::new(MODELS),
            tokens: Series::new(MODELS),
            replays: Default::default(),
            replay: Histogram::short(),
            quarantined: Counter::default(),
            triggered: Series::new(20),
            schedules: Gauge::default(),
            exports: Series::new(20),
            export_failures: Series::new(20),
            export_left_out: Counter::default(),
            http: HttpCounts::default(),
            mcp: McpCounts::default(),
            watchers_dropped: Counter::default(),
        };
        for trigger in TRIGGERS {
            drop(counts.triggered.of(trigger));
        }
        counts
    }
}

impl Counts {
    /// Returns the series of a blueprint's runs.
    pub fn runs_of(&self, blueprint: &str) -> Arc<RunSeries> {
        self.runs.of([blueprint])
    }

    /// Counts a run that started.
    pub fn started(&self, blueprint: &str, trigger: &str) {
        self.started.of([blueprint, trigger]).inc();
    }

    /// Adds the duration of a step.
    pub fn took(&self, kind: StepKind, took_ms: u64) {
        if let Some(kind) = place(kind) {
            self.steps[kind].add_ms(took_ms);
        }
    }

    /// Counts an attempt that ended.
    pub fn attempt(&self, attempt: &Attempt) {
        let Attempt { operator, agent, outcome, failure, times, usage, .. } = attempt;
        self.attempts.of([operator, agent, outcome]).inc();
        if let Some(kind) = failure {
            self.failures.of([operator, kind]).inc();
            if let Some(model) = &attempt.model {
                self.call_failures.of([model, operator, kind]).inc();
            }
        }
        let work = self.work.of([operator]);
        if let Some((queued_ms, ran_ms)) = times {
            work.queued.add_ms(*queued_ms);
            work.ran.add_ms(*ran_ms);
        }
        if attempt.unreported {
            work.unreported.inc();
        }
        let model = attempt.model.as_deref().unwrap_or_default();
        if let Some(call) = &attempt.call {
            let calls = self.calls.of([model, operator]);
            calls.duration.add_ms(call.took_ms);
            if let Some(ending) = ended(call.ending) {
                calls.ended[ending].inc();
            }
        }
        if let Some(usage) = usage {
            let tokens = self.tokens.of([model, operator]);
            tokens.input.add(usage.input_tokens.unwrap_or(0));
            tokens.output.add(usage.output_tokens.unwrap_or(0));
            tokens.cached.add(usage.cached_tokens.unwrap_or(0));
            tokens.reasoning.add(usage.reasoning_tokens.unwrap_or(0));
            tokens.nano_usd.add(usage.nano_usd().unwrap_or(0));
        }
    }

    /// Adds its numbers to a reading.
    pub fn collect(&self, scrape: &mut Scrape) {
        self.collect_runs(scrape);
        self.collect_attempts(scrape);
        self.collect_models(scrape);
        for (outcome, count) in ["same", "diverged", "no_memory"].iter().zip(&self.replays) {
            scrape.count("moonswarm_replays_total", &[outcome], count.get());
        }
        scrape.histogram("moonswarm_replay_seconds", &[], &self.replay);
        scrape.count("moonswarm_runs_quarantined_total", &[], self.quarantined.get());
        for ([kind, outcome], count) in self.triggered.all() {
            scrape.count("moonswarm_trigger_starts_total", &[&kind, &outcome], count.get());
        }
        scrape.count("moonswarm_schedules", &[], self.schedules.whole());
        scrape.count("moonswarm_watchers_dropped_total", &[], self.watchers_dropped.get());
        for ([signal, outcome], count) in self.exports.all() {
            scrape.count("moonswarm_otlp_items_total", &[&signal, &outcome], count.get());
        }
        for ([signal], count) in self.export_failures.all() {
            scrape.count("moonswarm_otlp_failures_total", &[&signal], count.get());
        }
        let left_out = self.export_left_out.get();
        scrape.count("moonswarm_otlp_left_out_entries_total", &[], left_out);
        self.http.collect(scrape);
        self.mcp.collect(scrape);
        for (family, is_full) in [
            ("blueprint", self.runs.is_full() || self.started.is_full()),
            ("agent", self.attempts.is_full()),
            ("operator", self.work.is_full()),
            ("failure", self.failures.is_full() || self.call_failures.is_full()),
            ("model", self.calls.is_full() || self.tokens.is_full()),
            ("route", self.http.is_full()),
            ("mcp", self.mcp.is_full()),
        ] {
            scrape.count("moonswarm_series_full", &[family], is_full.into());
        }
    }

    fn collect_runs(&self, scrape: &mut Scrape) {
        for ([blueprint, trigger], count) in self.started.all() {
            scrape.count("moonswarm_runs_started_total", &[&blueprint, &trigger], count.get());
        }
        for ([blueprint], runs) in self.runs.all() {
            for (status, count) in ENDINGS.iter().zip(&runs.ended) {
                scrape.count("moonswarm_runs_ended_total", &[&blueprint, status], count.get());
            }
            scrape.histogram("moonswarm_run_duration_seconds", &[&blueprint], &runs.duration);
            for (kind, endings) in StepKind::ALL.iter().zip(&runs.steps) {
                for (status, count) in ENDINGS.iter().zip(endings) {
                    if count.get() > 0 {
                        let labels = [blueprint.as_str(), kind.as_str(), status];
                        scrape.count("moonswarm_steps_total", &labels, count.get());
                    }
                }
            }
        }
        for (kind, durations) in StepKind::ALL.iter().zip(&self.steps) {
            scrape.histogram("moonswarm_step_duration_seconds", &[kind.as_str()], durations);
        }
    }

    fn collect_attempts(&self, scrape: &mut Scrape) {
        for ([operator, agent, outcome], count) in self.attempts.all() {
            let labels = [operator.as_str(), &agent, &outcome];
            scrape.count("moonswarm_attempts_total", &labels, count.get());
        }
        for ([operator, kind], count) in self.failures.all() {
            scrape.count("moonswarm_attempt_failures_total", &[&operator, &kind], count.get());
        }
        for ([operator], work) in self.work.all() {
            let of = [operator.as_str()];
            scrape.histogram("moonswarm_attempt_duration_seconds", &of, &work.ran);
            scrape.histogram("moonswarm_attempt_wait_seconds", &of, &work.queued);
            scrape.count("moonswarm_usage_unreported_total", &of, work.unreported.get());
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "dollars need no exact billionth")]
    fn collect_models(&self, scrape: &mut Scrape) {
        for ([model, operator], calls) in self.calls.all() {
            for (status, count) in ENDINGS.iter().zip(&calls.ended) {
                let labels = [model.as_str(), &operator, status];
                scrape.count("moonswarm_model_calls_total", &labels, count.get());
            }
            let of = [model.as_str(), &operator];
            scrape.histogram("moonswarm_model_call_seconds", &of, &calls.duration);
        }
        for ([model, operator, kind], count) in self.call_failures.all() {
            let labels = [model.as_str(), &operator, &kind];
            scrape.count("moonswarm_model_call_failures_total", &labels, count.get());
        }
        for ([model, operator], tokens) in self.tokens.all() {
            for (sort, count) in [
                ("input", &tokens.input),
                ("output", &tokens.output),
                ("cached", &tokens.cached),
                ("reasoning", &tokens.reasoning),
            ] {
                let labels = [model.as_str(), &operator, sort];
                scrape.count("moonswarm_tokens_total", &labels, count.get());
            }
            let usd = tokens.nano_usd.get() as f64 / NANO;
            scrape.number("moonswarm_cost_usd_total", &[&model, &operator], usd);
        }
    }
}

fn place(kind: StepKind) -> Option<usize> {
    StepKind::ALL.iter().position(|it| *it == kind)
}

fn ended(ending: Ending) -> Option<usize> {
    match ending {
        Ending::Completed => Some(0),
        Ending::Failed => Some(1),
        Ending::Canceled => Some(2),
        Ending::Open => None,
    }
}

impl ShardGauges {
    /// Adds the gauges of a shard to a reading.
    pub fn collect(&self, shard: usize, scrape: &mut Scrape) {
        let shard = shard.to_string();
        for (name, gauge) in [
            ("moonswarm_shard_runs", &self.runs),
            ("moonswarm_shard_flows", &self.flows),
            ("moonswarm_shard_vms", &self.vms),
            ("moonswarm_shard_vm_bytes", &self.vm_bytes),
            ("moonswarm_shard_ready_runs", &self.ready),
        ] {
            scrape.count(name, &[&shard], gauge.whole());
        }
    }
}
