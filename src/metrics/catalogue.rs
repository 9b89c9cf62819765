//! The table of all families. docs/telemetry.md has the same rows, and a test compares both.

/// The kind of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A sum that only grows.
    Counter,
    /// A number that goes up and down.
    Gauge,
    /// Counts by size.
    Histogram,
}

/// A family.
#[derive(Debug, PartialEq, Eq)]
pub struct Described {
    /// The name.
    pub name: &'static str,
    /// The kind.
    pub kind: Kind,
    /// The names of the labels, in their order.
    pub labels: &'static [&'static str],
    /// The text of its `HELP` line.
    pub help: &'static str,
}

impl Described {
    /// Returns the unit, if it has one.
    pub fn unit(&self) -> Option<&'static str> {
        let name = self.name.trim_end_matches("_total");
        ["seconds", "bytes", "usd"].into_iter().find(|unit| name.ends_with(unit))
    }
}

const fn family(
    name: &'static str,
    kind: Kind,
    labels: &'static [&'static str],
    help: &'static str,
) -> Described {
    Described { name, kind, labels, help }
}

/// All families, in the order of a reading.
#[rustfmt::skip]
pub static FAMILIES: &[Described] = &[
    family("moonswarm_build_info", Kind::Gauge, &["version"], "1, with the version of the program."),
    family("moonswarm_ready", Kind::Gauge, &[], "1 if the host accepts work."),
    family("moonswarm_started_after_crash", Kind::Gauge, &[], "1 if the process before did not shut down cleanly."),
    family("moonswarm_runs_started_total", Kind::Counter, &["blueprint", "trigger"], "Runs that started, by what started them."),
    family("moonswarm_runs_ended_total", Kind::Counter, &["blueprint", "status"], "Runs that ended."),
    family("moonswarm_run_duration_seconds", Kind::Histogram, &["blueprint"], "Time from the start of a run to its end."),
    family("moonswarm_runs_open", Kind::Gauge, &[], "Runs of this process that have not ended."),
    family("moonswarm_runs_quarantined_total", Kind::Counter, &[], "Runs that were paused because they are damaged or end the process."),
    family("moonswarm_steps_total", Kind::Counter, &["blueprint", "kind", "status"], "Steps that ended."),
    family("moonswarm_step_duration_seconds", Kind::Histogram, &["kind"], "Time from the scheduling of a step to its end; steps that are decided at once are not in it."),
    family("moonswarm_attempts_total", Kind::Counter, &["operator", "agent", "outcome"], "Attempts that ended: completed, failed, canceled, retried, interrupted or followed. Work that is done within one turn of a run (kinds echo and lua) may have none."),
    family("moonswarm_attempt_failures_total", Kind::Counter, &["operator", "kind"], "Attempts that failed, by the kind of the failure."),
    family("moonswarm_attempt_wait_seconds", Kind::Histogram, &["operator"], "Time that a task waited before the work on it, retries included."),
    family("moonswarm_attempt_duration_seconds", Kind::Histogram, &["operator"], "Time of the work of a task's last attempt."),
    family("moonswarm_model_calls_total", Kind::Counter, &["model", "operator", "status"], "Questions to models that ended. The model is the one that answered, else the one that was asked, or the name of the operator if neither is known."),
    family("moonswarm_model_call_failures_total", Kind::Counter, &["model", "operator", "kind"], "Questions to models that failed, by the kind of the failure; those that were repeated are in it."),
    family("moonswarm_model_call_seconds", Kind::Histogram, &["model", "operator"], "Time from a question to a model to its answer."),
    family("moonswarm_tokens_total", Kind::Counter, &["model", "operator", "type"], "Tokens that were reported: input, output, cached (a part of input), reasoning (a part of output). No model where a worker reported them."),
    family("moonswarm_cost_usd_total", Kind::Counter, &["model", "operator"], "Cost that was reported, in US dollars."),
    family("moonswarm_usage_unreported_total", Kind::Counter, &["operator"], "Attempts that were delivered and reported no usage. Those of people, of programs that the host starts, and those that were interrupted, are not counted."),
    family("moonswarm_replays_total", Kind::Counter, &["outcome"], "Histories that were replayed into a flow: same, diverged or no_memory."),
    family("moonswarm_replay_seconds", Kind::Histogram, &[], "Time of a replay."),
    family("moonswarm_queue_tasks", Kind::Gauge, &["queue", "state"], "Tasks of queues: waiting, or in_work."),
    family("moonswarm_queue_oldest_seconds", Kind::Gauge, &["queue"], "Age of the oldest task that waits in a queue."),
    family("moonswarm_queue_workers", Kind::Gauge, &["queue"], "Workers that were seen in the last minute."),
    family("moonswarm_queue_pollers", Kind::Gauge, &["queue"], "Workers that wait for a task now."),
    family("moonswarm_open_tasks", Kind::Gauge, &["operator", "kind"], "Open tasks outside of the process. Those of kind human are the inbox."),
    family("moonswarm_open_task_oldest_seconds", Kind::Gauge, &["operator", "kind"], "Age of the oldest of them."),
    family("moonswarm_sessions", Kind::Gauge, &["operator", "state"], "Open sessions: connected or disconnected."),
    family("moonswarm_session_tasks", Kind::Gauge, &["operator"], "Tasks that sessions hold."),
    family("moonswarm_session_frames_unacknowledged", Kind::Gauge, &["operator"], "Frames that sessions have not acknowledged."),
    family("moonswarm_breakers_open", Kind::Gauge, &["layer"], "Circuit breakers that are open, by layer."),
    family("moonswarm_budget_used_usd", Kind::Gauge, &["layer"], "Money that a budget of all runs has counted in its current window."),
    family("moonswarm_budget_used_tokens", Kind::Gauge, &["layer"], "Tokens that a budget of all runs has counted in its current window."),
    family("moonswarm_budget_limit_usd", Kind::Gauge, &["layer"], "The limit of that money, if there is one."),
    family("moonswarm_budget_limit_tokens", Kind::Gauge, &["layer"], "The limit of these tokens, if there is one."),
    family("moonswarm_schedules", Kind::Gauge, &[], "Schedules of all blueprints, those that are paused included."),
    family("moonswarm_trigger_starts_total", Kind::Counter, &["kind", "outcome"], "Starts that triggers tried: started or failed, and due times that were skipped."),
    family("moonswarm_http_requests_total", Kind::Counter, &["method", "route", "status"], "Requests that were answered, by the pattern of the route."),
    family("moonswarm_http_request_seconds", Kind::Histogram, &["route"], "Time from the head of a request to the head of its answer. Long polls wait on purpose."),
    family("moonswarm_http_requests_in_flight", Kind::Gauge, &[], "Requests without an answer yet."),
    family("moonswarm_http_connections", Kind::Gauge, &[], "Open connections."),
    family("moonswarm_event_streams", Kind::Gauge, &[], "Streams of events that are being read (SSE)."),
    family("moonswarm_watchers_dropped_total", Kind::Counter, &[], "Readers of a run's events that fell behind, and read on from the store."),
    family("moonswarm_refusals_total", Kind::Counter, &["code"], "Requests that were refused, by code."),
    family("moonswarm_mcp_requests_total", Kind::Counter, &["method", "name", "outcome"], "Requests of MCP clients that ended, by the method, the tool or prompt, and the outcome: completed, tool_error, canceled or the code of a JSON-RPC error."),
    family("moonswarm_mcp_request_seconds", Kind::Histogram, &["method", "name"], "Time of a request of an MCP client. A call of a tool may wait on purpose."),
    family("moonswarm_commit_seconds", Kind::Histogram, &[], "Time of a transaction of the store."),
    family("moonswarm_commit_sync_seconds", Kind::Histogram, &[], "Time of the end of a transaction: writing the log and syncing it to disk."),
    family("moonswarm_group_batches", Kind::Histogram, &[], "Batches in a transaction."),
    family("moonswarm_group_rows", Kind::Histogram, &[], "Entries and other rows in a transaction."),
    family("moonswarm_batches_refused_total", Kind::Counter, &[], "Batches that a check refused."),
    family("moonswarm_commits_failed_total", Kind::Counter, &[], "Transactions that failed."),
    family("moonswarm_nodes", Kind::Gauge, &["state"], "Nodes of the cluster that have not ended, as this one last saw them: up, draining or standby."),
    family("moonswarm_unknown_outcomes_total", Kind::Counter, &["found"], "Commits whose answer from PostgreSQL was lost, by what a look at the database found: committed, or not_committed (the transaction was sent again)."),
    family("moonswarm_lost_acknowledged_total", Kind::Counter, &[], "Times that the PostgreSQL database lacked commits that were acknowledged, as after a failover to an asynchronous standby."),
    family("moonswarm_forwarded_total", Kind::Counter, &["outcome"], "Requests that a node of a cluster was to forward: answered, here (it took the runs over meanwhile), no_driver, unknown_outcome or overloaded."),
    family("moonswarm_takeovers_total", Kind::Counter, &["why"], "Times that this node took the runs over: free (nobody had them, or they were handed over) or died (it ended the node that had them)."),
    family("moonswarm_fenced_total", Kind::Counter, &[], "Times that this node was ended by another, or gave its runs up because it was cut off."),
    family("moonswarm_lease_remaining_seconds", Kind::Gauge, &[], "Time for which this node trusts its lease. At 0 it answers nothing."),
    family("moonswarm_lent_runs", Kind::Gauge, &[], "Runs that other nodes drive for this one."),
    family("moonswarm_lent_total", Kind::Counter, &[], "Runs that were lent to other nodes."),
    family("moonswarm_home_total", Kind::Counter, &["why"], "Lent runs that came home: over (they ended, rest, or lost their node), needs (they needed this node) or recalled (for a request, or a reader of their events)."),
    family("moonswarm_database_bytes", Kind::Gauge, &[], "Size of the database, without its log."),
    family("moonswarm_database_log_bytes", Kind::Gauge, &[], "Size of the database's log."),
    family("moonswarm_disk_bytes", Kind::Gauge, &[], "Size of the disk of the data directory."),
    family("moonswarm_disk_free_bytes", Kind::Gauge, &[], "Free space on the disk of the data directory."),
    family("moonswarm_memory_used_bytes", Kind::Gauge, &[], "Memory that is held for runs, VMs included."),
    family("moonswarm_memory_limit_bytes", Kind::Gauge, &[], "Limit of that memory."),
    family("moonswarm_shard_runs", Kind::Gauge, &["shard"], "Runs in memory."),
    family("moonswarm_shard_flows", Kind::Gauge, &["shard"], "Flows in memory."),
    family("moonswarm_shard_vms", Kind::Gauge, &["shard"], "VMs of flows."),
    family("moonswarm_shard_vm_bytes", Kind::Gauge, &["shard"], "Memory of the VMs."),
    family("moonswarm_shard_ready_runs", Kind::Gauge, &["shard"], "Runs that wait for their turn."),
    family("moonswarm_log_lines_total", Kind::Counter, &["level"], "Lines of the log, whether the filter shows them or not: warn and error."),
    family("moonswarm_otlp_items_total", Kind::Counter, &["signal", "outcome"], "Spans, and readings of the metrics, for a collector: exported, refused or dropped."),
    family("moonswarm_otlp_failures_total", Kind::Counter, &["signal"], "Requests to a collector that failed. Those with spans are repeated."),
    family("moonswarm_otlp_left_out_entries_total", Kind::Counter, &[], "Journal entries whose spans are not exported, because the export was too far behind or the run was deleted."),
    family("moonswarm_series_full", Kind::Gauge, &["family"], "1 if names beyond a limit are counted as other."),
    family("process_cpu_seconds_total", Kind::Counter, &[], "CPU time of the process."),
    family("process_start_time_seconds", Kind::Gauge, &[], "When the process started, since the Unix epoch."),
    family("process_resident_memory_bytes", Kind::Gauge, &[], "Resident memory."),
    family("process_virtual_memory_bytes", Kind::Gauge, &[], "Virtual memory."),
    family("process_open_fds", Kind::Gauge, &[], "Open file descriptors."),
    family("process_max_fds", Kind::Gauge, &[], "Limit of open file descriptors."),
    family("process_threads", Kind::Gauge, &[], "Threads."),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_family_is_named_once_and_by_the_rules_of_both_formats() {
        let names: BTreeSet<_> = FAMILIES.iter().map(|it| it.name).collect();
        assert_eq!(names.len(), FAMILIES.len());
        for it in FAMILIES {
            assert_eq!(it.name.ends_with("_total"), it.kind == Kind::Counter, "{}", it.name);
            assert!(it.help.ends_with('.') && !it.help.contains('\n'), "{}", it.name);
        }
    }
}
