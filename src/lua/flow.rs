//! A flow that is a Lua script.
//!
//! Owns the scheduling of a flow's branches: an input makes one branch ready, and branches run, one
//! after the other, until each waits for something of the outside. What they ask for is gathered
//! as commands. Refuses what breaks a limit of the run.

mod branches;
mod listen;
mod moment;
mod origin;

pub use moment::{BranchStack, Moment};
pub use origin::Origin;

use std::{
    cell::RefCell,
    collections::{BTreeMap, VecDeque},
    rc::Rc,
    sync::Arc,
};

use mlua::Function;

use super::{
    call::{self, Operation, Refusal},
    desk::Mode,
    failure,
    pool::Pool,
    random::Random,
    raw::{Allowance, Armed, Coroutine, Delivery, Frame, Halt},
    tree::{Home, Id, JoinKind, Tree, Waiter},
    vm::Vm,
    watchdog::Lane,
};
use crate::{
    flow::{
        Advance, Command, Input, NextAction, RunLimits, StepOp, StepRequest, compensation_scope,
    },
    journal::{ScopePath, StepKey},
    protocol::{Failure, Json, failure::kind},
};

/// The facts of a run that its flow can read.
#[derive(Debug, Clone, PartialEq)]
pub struct RunFacts {
    /// Its id, as `ctx.run_id` shows it.
    pub run_id: String,
    /// Its blueprint, as `ctx.blueprint` shows it: `name@hash`.
    pub blueprint: String,
    /// Its input.
    pub input: Json,
    /// The cause of its start.
    pub trigger: Json,
    /// The seed of its ids and random numbers.
    pub seed: u64,
}

/// The phase of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Fresh,
    Running,
    /// Running deferred functions; the next free index of their scope.
    Compensating(u32),
    Ended,
}

/// A run's script, live in a VM of its shard.
pub struct ScriptFlow {
    vm: Rc<Vm>,
    pool: Rc<RefCell<Pool>>,
    lane: Arc<Lane>,
    facts: RunFacts,
    limits: RunLimits,
    category: u8,
    phase: Phase,
    random: Random,
    tree: Tree,
    /// Branches that the VM has counted as this flow's.
    counted: usize,
    defers: Vec<Function>,
    queries: BTreeMap<String, Function>,
    /// The functions that receive the pieces of open tasks.
    listeners: BTreeMap<StepKey, Function>,
    /// The error of the branch that failed last, and the calls that were in progress in it.
    below: Option<(String, Vec<Frame>)>,
    /// The answers left over from the last turn.
    ready: VecDeque<(Id, Answer)>,
    /// Branches of joins that began since the last input.
    births: u32,
    /// A look at its calls, at the moment when it asks for a step.
    watch: Option<Box<moment::Watch>>,
}

/// Branches of joins that begin in one turn before the host gets to do something else.
///
/// A turn ends nowhere else: what loops without an await meets the limit of its slice. Nor does it
/// once as many began for one input as may be open, so that a loop over joins whose branches return
/// at once meets it too.
const TURN: u32 = 256;

/// Bytes that the commands of one turn carry before the host gets to do something with them.
const TURN_BYTES: usize = 4 << 20;

/// The answer to a `ctx` call, delivered in the turn of its branch.
enum Answer {
    Nothing,
    Value(Json),
    Failure(Failure),
    Usage(String),
    Number(f64),
    RaisedBy(Coroutine),
    /// Not for a branch but for a join: begin the next of its branches.
    Birth,
}

/// One advance, while it goes on.
struct Advancing<'a> {
    armed: &'a Armed<'a>,
    now_ms: u64,
    commands: Vec<Command>,
    /// The bytes of what the commands carry.
    bytes: usize,
    ready: VecDeque<(Id, Answer)>,
}

type Step<T = ()> = Result<T, NextAction>;

impl ScriptFlow {
    pub(super) fn new(
        vm: Rc<Vm>,
        category: u8,
        pool: Rc<RefCell<Pool>>,
        lane: Arc<Lane>,
        facts: RunFacts,
        limits: RunLimits,
    ) -> Self {
        Self {
            vm,
            pool,
            lane,
            random: Random::new(facts.seed),
            facts,
            limits,
            category,
            phase: Phase::Fresh,
            tree: Tree::default(),
            counted: 0,
            defers: Vec::new(),
            queries: BTreeMap::new(),
            listeners: BTreeMap::new(),
            below: None,
            ready: VecDeque::new(),
            births: 0,
            watch: None,
        }
    }

    fn take(&mut self, input: Input, turn: &mut Advancing<'_>) -> Step {
        if input != Input::More {
            self.births = 0;
        }
        match (self.phase, input) {
            (Phase::Fresh, Input::Start) => self.start(turn)?,
            (Phase::Running | Phase::Compensating(_), Input::Completed { key, output }) => {
                self.settle(&key, Answer::Value(output), turn);
            }
            (Phase::Running | Phase::Compensating(_), Input::Failed { key, failure }) => {
                self.settle(&key, Answer::Failure(failure), turn);
            }
            (Phase::Fresh | Phase::Running | Phase::Ended, Input::Compensate) => {
                self.uproot();
                turn.ready.clear();
                self.phase = Phase::Compensating(0);
                self.compensate(turn)?;
            }
            (Phase::Running | Phase::Compensating(_), Input::More) => {}
            (Phase::Compensating(_), Input::Compensate)
            | (Phase::Running | Phase::Compensating(_) | Phase::Ended, Input::Start)
            | (
                Phase::Fresh | Phase::Ended,
                Input::More | Input::Completed { .. } | Input::Failed { .. },
            ) => {}
        }
        let mut began = 0;
        while let Some((id, answer)) = turn.ready.pop_front() {
            if turn.bytes >= TURN_BYTES {
                // What was asked for so far is counted and written first.
                turn.ready.push_front((id, answer));
                return Err(NextAction::More);
            }
            if !matches!(answer, Answer::Birth) {
                self.step(id, &answer, turn)?;
                continue;
            }
            if began == TURN && self.births < self.limits.branches {
                turn.ready.push_front((id, answer));
                return Err(NextAction::More);
            }
            began += 1;
            self.births += 1;
            self.birth(id, turn)?;
        }
        Ok(())
    }

    fn start(&mut self, turn: &mut Advancing<'_>) -> Step {
        let facts = &self.facts;
        let args = (
            facts.run_id.as_str(),
            facts.blueprint.as_str(),
            facts.input.as_str(),
            facts.trigger.as_str(),
        );
        let machine = &self.vm.machine;
        let co = machine.coroutine(self.category, &self.vm.entries.flow, args);
        let co = co.map_err(|_| self.out_of_room())?;
        self.phase = Phase::Running;
        let id = self.grow(co, ScopePath::main(), 0, Home::Flow);
        turn.ready.push_back((id, Answer::Nothing));
        Ok(())
    }

    /// Begins the latest deferred function, or ends the flow when there is none left.
    fn compensate(&mut self, turn: &mut Advancing<'_>) -> Step {
        let Phase::Compensating(index) = self.phase else { return Ok(()) };
        let Some(function) = self.defers.pop() else {
            return Err(NextAction::Complete(Json::null()));
        };
        let co = self.vm.machine.coroutine(self.category, &function, ());
        let co = co.map_err(|_| self.out_of_room())?;
        let id = self.grow(co, compensation_scope(), index, Home::Defer);
        turn.ready.push_back((id, Answer::Nothing));
        Ok(())
    }

    /// Hands the end of a step to the coroutine that waits for it.
    fn settle(&mut self, key: &StepKey, answer: Answer, turn: &mut Advancing<'_>) {
        self.listeners.remove(key);
        match self.tree.waiting.remove(key) {
            None => {}
            Some(Waiter::Branch(id)) => {
                if let Some(branch) = self.tree.branches.get_mut(&id) {
                    branch.waits = None;
                }
                turn.ready.push_back((id, answer));
            }
            Some(Waiter::Timer(id)) => self.time_out(id, answer, turn),
        }
    }

    fn step(&mut self, id: Id, answer: &Answer, turn: &mut Advancing<'_>) -> Step {
        let Some(branch) = self.tree.branches.get_mut(&id) else { return Ok(()) };
        let text;
        let delivery = match answer {
            Answer::Nothing => Delivery::Nothing,
            Answer::Value(value) => Delivery::Value(value.as_str()),
            Answer::Failure(failure) => {
                text = serde_json::to_string(failure).unwrap_or_default();
                Delivery::Failure(&text)
            }
            Answer::Usage(text) => Delivery::Usage(text),
            Answer::Number(number) => Delivery::Number(*number),
            Answer::RaisedBy(co) => Delivery::RaisedBy(co),
            Answer::Birth => return Ok(()),
        };
        let halt = branch.co.resume(turn.armed, delivery);
        for note in self.vm.desk.notes.borrow_mut().drain(..) {
            let key = StepKey::new(branch.scope.clone(), branch.next);
            branch.next += 1;
            turn.bytes += note.size();
            turn.commands.push(Command::Note { key, note });
        }
        if let Some(breach) = turn.armed.breach() {
            return Err(NextAction::Limit(failure::breach(breach, turn.armed, &self.limits)));
        }
        if self.vm.desk.flooded.get() {
            return Err(NextAction::Limit(failure::limit(
                "more was said than fits between two awaits",
            )));
        }
        match halt {
            Halt::Undelivered | Halt::OutOfMemory => Err(self.out_of_room()),
            _ if self.vm.desk.starved.get() => Err(self.out_of_room()),
            Halt::Called => match self.call(id, turn) {
                Ok(()) => Ok(()),
                Err(Interrupt::Next(next)) => Err(next),
                Err(Interrupt::Refused(Refusal::Usage(text))) => {
                    turn.ready.push_front((id, Answer::Usage(text)));
                    Ok(())
                }
                Err(Interrupt::Refused(Refusal::TooLarge(error))) => {
                    let branch = self.tree.branches.get(&id);
                    Err(NextAction::Limit(match branch {
                        Some(branch) => failure::too_large(&error, &branch.co),
                        None => failure::limit(error.to_string()),
                    }))
                }
                Err(Interrupt::Refused(Refusal::NoRoom)) => Err(self.out_of_room()),
            },
            Halt::Returned => self.returned(id, turn),
            Halt::Raised => self.raised(id, turn),
        }
    }

    fn call(&mut self, id: Id, turn: &mut Advancing<'_>) -> Result<(), Interrupt> {
        let Some(branch) = self.tree.branches.get(&id) else { return Ok(()) };
        let co = &branch.co;
        let value = self.limits.value;
        let Some(operation) = Operation::of(co) else {
            return Err(Refusal::Usage("is not a call of ctx".to_owned()).into());
        };
        if let Some(op) = call::step(operation, co, turn.now_ms, value)? {
            let hears = operation == Operation::Run && !co.is_nil(5);
            let hears = hears.then(|| co.function(5)).transpose().map_err(Refusal::from)?;
            return self.schedule(id, op, hears, turn);
        }
        match operation {
            Operation::All => self.join(id, JoinKind::All, turn),
            Operation::Race => self.join(id, JoinKind::Race, turn),
            Operation::Timeout => self.join(id, JoinKind::Timeout, turn),
            Operation::Spawn => self.spawn(id, turn),
            Operation::Await => {
                let task = call::number(co, 2)?;
                self.wait_for(id, task, turn)
            }
            Operation::Cancel => {
                let task = call::number(co, 2)?;
                turn.ready.push_front((id, Answer::Nothing));
                self.cancel_spawned(task, turn);
                Ok(())
            }
            Operation::Defer => {
                if matches!(self.phase, Phase::Compensating(_)) {
                    return Err(
                        Refusal::Usage("a deferred function cannot defer".to_owned()).into()
                    );
                }
                let function = co.function(2).map_err(Refusal::from)?;
                self.defers.push(function);
                turn.ready.push_front((id, Answer::Nothing));
                Ok(())
            }
            Operation::Query => {
                let (name, function) = (call::text(co, 2)?, co.function(3).map_err(Refusal::from)?);
                self.queries.insert(name, function);
                turn.ready.push_front((id, Answer::Nothing));
                Ok(())
            }
            Operation::ContinueAs => {
                let problem = if branch.home != Home::Flow {
                    Some("works only in the flow's own function, not in a branch of it")
                } else if self.tree.branches.len() > 1 {
                    Some("does not work while a spawned function runs")
                } else if !self.defers.is_empty() {
                    Some("does not work while something is deferred")
                } else {
                    None
                };
                if let Some(problem) = problem {
                    return Err(Refusal::Usage(problem.to_owned()).into());
                }
                Err(Interrupt::Next(NextAction::ContinueAs(call::json(co, 2, "input", value)?)))
            }
            Operation::Run
            | Operation::Sleep
            | Operation::SleepUntil
            | Operation::Wait
            | Operation::Call
            | Operation::State
            | Operation::Write
            | Operation::Read
            | Operation::Signal => Ok(()),
        }
    }

    fn schedule(
        &mut self,
        id: Id,
        op: StepOp,
        hears: Option<Function>,
        turn: &mut Advancing<'_>,
    ) -> Result<(), Interrupt> {
        let open = self.limits.open_steps as usize;
        if self.tree.waiting.len() >= open {
            return Err(limit(format!("more than {open} steps are open")));
        }
        if let Some(key) = self.tree.take_key(id) {
            self.tree.park(id, key.clone());
            if let Some(hears) = hears {
                // Those of branches that were cut off go here.
                self.listeners.retain(|key, _| self.tree.waiting.contains_key(key));
                self.listeners.insert(key.clone(), hears);
            }
            turn.bytes += op.size();
            self.asks(id, &key);
            turn.commands.push(Command::Schedule(StepRequest { key, op }));
        }
        Ok(())
    }

    fn uproot(&mut self) {
        self.listeners.clear();
        self.tree = Tree::default();
        self.recount();
    }

    /// The VM had no room, for what the script did or for what it was to be given.
    ///
    /// That may be the fault of its neighbours: the run fails only if it happens again in a VM of
    /// its own, which it gets when it is started again. The neighbours go on, unless the VM is full.
    fn out_of_room(&self) -> NextAction {
        if self.vm.solo {
            return NextAction::Limit(failure::memory(&self.limits));
        }
        self.vm.condemned.set(self.vm.is_full());
        self.pool.borrow_mut().suspect(&self.facts.run_id);
        NextAction::Broken("the VM ran out of memory".to_owned())
    }
}

impl ScriptFlow {
    /// Processes one input at the time `now_ms` (Unix milliseconds, the time of the input's entry),
    /// until the flow needs another input or its turn ends.
    ///
    /// The ends of turns affect neither the requests nor their order. The end of a step that the
    /// flow no longer awaits is ignored.
    pub fn advance(&mut self, input: Input, now_ms: u64) -> Advance {
        if self.vm.condemned.get() {
            let next = NextAction::Broken("another run used up the VM".to_owned());
            return Advance { commands: Vec::new(), next };
        }
        let (vm, lane) = (Rc::clone(&self.vm), Arc::clone(&self.lane));
        let slice = lane.begin(self.limits.slice_ms);
        let armed = Armed::new(Allowance {
            category: self.category,
            memory: self.limits.memory,
            clock: slice.clock(),
        });
        vm.let_grow(self.limits.memory);
        vm.desk.open(Mode::Flow, now_ms, self.random, self.limits.value);
        let ready = std::mem::take(&mut self.ready);
        let mut turn = Advancing { armed: &armed, now_ms, commands: Vec::new(), bytes: 0, ready };
        let next = match self.take(input, &mut turn) {
            Ok(()) => NextAction::Wait,
            Err(next) => next,
        };
        let Advancing { mut commands, ready, .. } = turn;
        self.random = vm.desk.random.get();
        vm.desk.mode.set(Mode::Pure);
        vm.weigh();
        if let NextAction::Limit(_) | NextAction::Broken(_) = next {
            commands.clear();
        }
        match next {
            NextAction::Wait => {}
            NextAction::More => self.ready = ready,
            NextAction::Complete(_)
            | NextAction::Fail(_)
            | NextAction::ContinueAs(_)
            | NextAction::Limit(_)
            | NextAction::Broken(_) => {
                self.uproot();
                self.phase = Phase::Ended;
            }
        }
        Advance { commands, next }
    }

    /// Returns true if deferred functions must run when the flow fails or is canceled.
    pub fn has_defers(&self) -> bool {
        !self.defers.is_empty()
    }

    /// Answers a query with a function that the flow registered. Does not change the flow.
    ///
    /// # Errors
    /// Fails when there is no such query, or its function fails.
    pub fn query(&mut self, name: &str, argument: &Json) -> Result<Json, Failure> {
        let Some(function) = self.queries.get(name) else {
            return Err(Failure::new(
                "unknown_query",
                format!("the run answers no query {name:?}"),
            ));
        };
        if self.vm.condemned.get() {
            return Err(failure::limit("the VM ran out of memory"));
        }
        let no_room = |_| failure::limit("the VM has no room for the query");
        let lane = Arc::clone(&self.lane);
        let slice = lane.begin(self.limits.slice_ms);
        let armed = Armed::new(Allowance {
            category: self.category,
            memory: self.limits.memory,
            clock: slice.clock(),
        });
        self.vm.let_grow(self.limits.memory);
        self.vm.desk.open(Mode::Pure, self.vm.desk.now_ms.get(), self.random, self.limits.value);
        let argument = self.vm.machine.decode(argument.as_str()).map_err(|_| no_room(()))?;
        let argument = argument.map_err(|problem| Failure::new(kind::INVALID_INPUT, problem))?;
        let co = self.vm.machine.coroutine(self.category, function, argument);
        let co = co.map_err(|_| no_room(()))?;
        let halt = co.resume(&armed, Delivery::Nothing);
        if let Some(breach) = armed.breach() {
            return Err(failure::breach(breach, &armed, &self.limits));
        }
        match halt {
            Halt::Returned => co.json(1, self.limits.value).map_err(|error| {
                Failure::new(kind::SCRIPT, format!("the query's answer: {error}"))
            }),
            Halt::Raised => Err(failure::raised(&co)),
            Halt::Called => Err(Failure::new(kind::SCRIPT, "a query cannot use ctx")),
            Halt::OutOfMemory | Halt::Undelivered => Err(no_room(())),
        }
    }
}

impl Drop for ScriptFlow {
    fn drop(&mut self) {
        self.ready.clear();
        self.uproot();
        self.defers.clear();
        self.queries.clear();
        self.vm.release(self.category);
        self.pool.borrow_mut().left(&self.vm);
    }
}

/// The reason why a call did not continue at once.
enum Interrupt {
    Refused(Refusal),
    Next(NextAction),
}

impl From<Refusal> for Interrupt {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

fn limit(message: impl Into<String>) -> Interrupt {
    Interrupt::Next(NextAction::Limit(failure::limit(message)))
}
