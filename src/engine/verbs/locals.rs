//! The variables of a flow at a step: its run's history is replayed up to there, in a VM of its own.
//!
//! Nothing is written, nothing is dispatched, and no shard takes part. The source is compiled with the
//! names of its variables, which changes nothing of what it does.

use std::{collections::HashMap, sync::Arc};

use crate::{
    engine::{
        Caller, Divergence, EngineError, FlowForm, LocalsBranch, LocalsFrame, LocalsRole,
        LocalsVariable, LocalsView,
        shared::{looks::LookPlace, places::scheduled},
        turn::{
            replay::facts_of,
            retell::{ReplayStop, retell_while},
        },
        verbs::engine::HistoryVerbs,
    },
    flow::RunLimits,
    journal::{Entry, Fact, Scheduled, StepKey},
    lua::{self, BranchStack, Moment, StackFrame, VariableRole, Vms, Watchdog},
    memory::Memory,
    middleware::Stacks,
    protocol::{Code, Json, RunId, text::floor_char_boundary},
    token::Verb,
};

/// The longest replay, in milliseconds.
const LONGEST_MS: u64 = 10_000;
/// Memory for the names of variables, beyond the limit of a run.
const NAMES: usize = 32 << 20;
/// The longest line of source that is shown, in bytes.
const TEXT: usize = 200;

impl HistoryVerbs<'_> {
    /// Returns the calls of a run's flow with their arguments, locals and upvalues, at the moment when
    /// it requested a step of its current history. Values are bounded and redacted.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, there is no such step, the source does not lead to it
    /// any more, or too many looks are in progress.
    ///
    /// # Cancel safety
    /// May be dropped at any time; a replay that has begun still ends by itself.
    pub async fn locals(
        self,
        caller: &Caller,
        run: RunId,
        step: u32,
    ) -> Result<LocalsView, EngineError> {
        caller.may(Verb::RunInspect, run)?;
        let header = self.engine.header(run).await?;
        if header.hash.is_empty() {
            return Err(conflict(format!(
                "run {run} has no flow: a program drives it, and knows its own variables"
            )));
        }
        let place = self.engine.inner.looks.take(&caller.jti).await?;
        let program = self.engine.blueprints().program_by(header.hash).await?;
        let reach = self.engine.blueprints().reach(caller, Verb::BlueprintRead, &program).await;
        let has_source = reach.is_ok();
        let entries = self.engine.read(move |store| store.entries(run.num(), 0)).await?;
        let shared = self.engine.shared();
        let look = LocalsLook {
            run,
            step,
            has_source,
            limits: RunLimits {
                memory: shared.settings.limits.memory.saturating_add(NAMES),
                ..shared.settings.limits.clone()
            },
            stacks: shared.stacks.of(&program),
            program,
            lua: shared.programs.limits(),
            watchdog: Arc::clone(&self.engine.inner.watchdog),
            memory: Arc::clone(&shared.memory),
            place,
        };
        let clock = shared.clock.clone();
        let until_ms = clock.steady_ms().saturating_add(LONGEST_MS);
        let is_late = move || clock.steady_ms() > until_ms;
        let looked = shared.tasks.spawn_blocking(move || look.take(&entries, &is_late));
        looked.await.map_err(|_| EngineError::Stopping)?
    }
}

/// A look at one step.
struct LocalsLook {
    run: RunId,
    step: u32,
    /// True if the caller may read the source.
    has_source: bool,
    program: Arc<lua::Program>,
    limits: RunLimits,
    stacks: Arc<Stacks>,
    lua: lua::Limits,
    watchdog: Arc<Watchdog>,
    memory: Arc<Memory>,
    /// Held as long as the look takes.
    #[expect(dead_code, reason = "dropping it is what it is for")]
    place: LookPlace,
}

/// The place of a step in a history.
struct Place<'a> {
    /// The request of the flow: the step itself, or the whole that it is a part of.
    asked: &'a Scheduled,
    /// The entries up to it.
    entries: &'a [Entry],
    previous: Option<u32>,
    next: Option<u32>,
}

impl LocalsLook {
    fn take(
        self,
        entries: &[Entry],
        is_late: &dyn Fn() -> bool,
    ) -> Result<LocalsView, EngineError> {
        let not_found =
            || EngineError::NotFound { what: "step", id: format!("{}/{}", self.run, self.step) };
        let place = place_of(entries, self.step).ok_or_else(not_found)?;
        let form = self.form(entries);
        let moment = match self.moment(&place, is_late) {
            Err(ReplayStop::Broken(_)) => self.moment(&place, is_late),
            looked => looked,
        };
        let moment = moment.map_err(|stop| self.refusal(stop))?;
        let moment = match moment {
            Some(moment) => moment,
            None if is_late() => {
                return Err(conflict(format!(
                    "replaying run {} up to step {} takes over {} s; look at an earlier step",
                    self.run,
                    self.step,
                    LONGEST_MS / 1_000
                )));
            }
            None => {
                let stop = format!("the flow does not request step {}", place.asked.key);
                return Err(self.refusal(ReplayStop::Diverged(Divergence::of(stop))));
            }
        };
        let numbers: HashMap<&StepKey, u32> = place
            .entries
            .iter()
            .filter_map(scheduled)
            .filter(|it| it.whole().is_none())
            .map(|it| (&it.key, it.step))
            .collect();
        Ok(LocalsView {
            run: self.run,
            step: self.step,
            requested: place.asked.step,
            kind: place.asked.kind.as_str().to_owned(),
            name: place.asked.name.clone(),
            blueprint: self.program.blueprint().version(),
            flow: form,
            more_branches: if moment.branches.is_empty() { 0 } else { moment.more },
            branches: moment
                .branches
                .into_iter()
                .map(|branch| self.branch(branch, &numbers))
                .collect(),
            previous: place.previous,
            next: place.next,
        })
    }

    fn form(&self, entries: &[Entry]) -> FlowForm {
        let started = entries.iter().find_map(|entry| match &entry.fact {
            Fact::RunStarted(started) => Some(started.trigger.to_value()),
            _ => None,
        });
        let trigger = started.unwrap_or_default();
        if trigger["kind"] == "response" && trigger["agent"].is_string() {
            return FlowForm::Agent;
        }
        match self.program.blueprint().definition().flow {
            Some(_) => FlowForm::Table,
            None => FlowForm::Script,
        }
    }

    /// Replays the history up to the step, and looks.
    fn moment(
        &self,
        place: &Place<'_>,
        is_late: &dyn Fn() -> bool,
    ) -> Result<Option<Moment>, ReplayStop> {
        let Some(Fact::RunStarted(started)) = place.entries.first().map(|entry| &entry.fact) else {
            return Err(ReplayStop::Diverged(Divergence::of("the history has no beginning")));
        };
        let facts = facts_of(self.run, self.program.blueprint().version(), started);
        let mut vms = Vms::new(self.lua.clone(), &self.watchdog).within(&self.memory);
        let source = Arc::new((**self.program.source()).clone().with_names());
        let mut flow = vms
            .start(&source, facts, self.limits.clone())
            .map_err(|failure| ReplayStop::Broken(failure.to_string()))?;
        let stacks = Arc::clone(&self.stacks);
        flow.watch(place.asked.key.clone(), move |text| stacks.redacted(text));
        let goes_on = |flow: &lua::ScriptFlow| !flow.has_seen() && !is_late();
        let mut told = retell_while(flow, place.entries, goes_on)?;
        Ok(told.flow.moment())
    }

    fn refusal(&self, stop: ReplayStop) -> EngineError {
        match stop {
            ReplayStop::Diverged(divergence) => conflict(format!(
                "the source does not lead to step {} any more: {}; `moonswarm replay {}` shows the \
                 difference",
                self.step, divergence.message, self.run
            )),
            ReplayStop::Broken(why) => EngineError::Busy {
                code: Code::MemoryFull,
                message: format!("replay run {}: the VM has no room: {why}", self.run),
                retry_after_s: 5,
            },
        }
    }

    fn branch(&self, branch: BranchStack, numbers: &HashMap<&StepKey, u32>) -> LocalsBranch {
        let BranchStack { name, scope, waits, frames, more } = branch;
        LocalsBranch {
            branch: name,
            scope: scope.to_string(),
            step: waits.and_then(|key| numbers.get(&key).copied()),
            frames: frames.into_iter().map(|frame| self.frame(frame)).collect(),
            more_frames: more,
        }
    }

    fn frame(&self, frame: StackFrame) -> LocalsFrame {
        let StackFrame { function, file, line, variables } = frame;
        let bundle = self.program.blueprint().bundle();
        let text = bundle.file(&file).filter(|_| self.has_source);
        let text = text.and_then(|text| text.lines().nth((line as usize).checked_sub(1)?));
        let text = text.map(|text| {
            let text = text.trim();
            text[..floor_char_boundary(text, TEXT)].to_owned()
        });
        let variables = variables.into_iter().map(|it| LocalsVariable {
            value: Json::from(self.stacks.redacted_value(&it.name, it.value)),
            name: it.name,
            role: match it.role {
                VariableRole::Argument => LocalsRole::Argument,
                VariableRole::Local => LocalsRole::Local,
                VariableRole::Upvalue => LocalsRole::Upvalue,
            },
            of_type: it.of_type,
        });
        LocalsFrame { variables: variables.collect(), function, file, line, text }
    }
}

fn conflict(message: String) -> EngineError {
    EngineError::Conflict { code: Code::Conflict, message }
}

/// Finds a step, and the request of the flow that it belongs to.
fn place_of(entries: &[Entry], step: u32) -> Option<Place<'_>> {
    let mut steps: HashMap<u32, (usize, &Scheduled)> = HashMap::new();
    let (mut previous, mut next) = (None, None);
    for (at, entry) in entries.iter().enumerate() {
        if let Some(it) = scheduled(entry) {
            steps.insert(it.step, (at, it));
            if it.step < step {
                previous = previous.max(Some(it.step));
            } else if it.step > step && next.is_none_or(|next| it.step < next) {
                next = Some(it.step);
            }
        }
    }
    let (mut at, mut asked) = *steps.get(&step)?;
    // A part is nested in few others; a history that says otherwise has no place.
    for _ in 0..steps.len() {
        let Some(whole) = asked.whole() else {
            return Some(Place { asked, entries: &entries[..=at], previous, next });
        };
        (at, asked) = *steps.get(&whole)?;
    }
    None
}
