//! A pure Lua agent: one call of its function, off the shard.

use std::{cell::RefCell, sync::atomic::AtomicBool, time::Duration};

use super::{
    desk::Mode,
    failure,
    random::Random,
    raw::{Allowance, Armed, Breach, Clock, Delivery, EncodeError, Halt},
    source::Source,
    vm::Vm,
};
use crate::protocol::{Failure, Json, failure::kind};

/// The allowance of one call of an agent's function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskLimits {
    /// CPU time, in milliseconds.
    pub cpu_ms: u64,
    /// Memory, in bytes.
    pub memory: usize,
    /// Its result, in bytes of JSON.
    pub value: usize,
}

impl Default for TaskLimits {
    fn default() -> Self {
        Self { cpu_ms: 10_000, memory: 256 << 20, value: 4 << 20 }
    }
}

/// A VM that holds more after a call is not kept.
const KEPT: usize = 8 << 20;

thread_local! {
    /// The VM of the thread's last call, for the next one of the same source.
    static LAST: RefCell<Option<Vm>> = const { RefCell::new(None) };
}

/// Calls the function of `agent` with `input` until it returns or `cancel` is set. Blocks.
///
/// The source is evaluated again for each call, in a fresh environment, so calls share no state.
///
/// # Errors
/// Returns the error that the function raised, kind `limit` for an exceeded limit, kind `canceled`.
pub fn call_agent(
    source: &Source,
    agent: &str,
    input: &Json,
    limits: &TaskLimits,
    cancel: &AtomicBool,
) -> Result<Json, Failure> {
    let no_room = || no_room(limits);
    // What is counted is left when the VM goes.
    let counts = source.coverage().is_some();
    let kept = LAST.with_borrow_mut(Option::take).filter(|vm| vm.key() == source.key() && !counts);
    let vm = match kept {
        Some(vm) => vm,
        None => Vm::open(source, usize::MAX, 1, true).map_err(|_| no_room())?,
    };
    vm.bound(limits.memory.saturating_mul(2));
    let result = call(&vm, agent, input, limits, cancel)?;
    if vm.machine.memory() < KEPT && !counts {
        LAST.set(Some(vm));
    }
    Ok(result)
}

fn no_room(limits: &TaskLimits) -> Failure {
    failure::limit(format!("the agent used more than {} MiB of memory", limits.memory >> 20))
}

fn call(
    vm: &Vm,
    agent: &str,
    input: &Json,
    limits: &TaskLimits,
    cancel: &AtomicBool,
) -> Result<Json, Failure> {
    let no_room = || no_room(limits);
    vm.desk.open(Mode::Pure, 0, Random::new(0), limits.value);
    let args = (agent, input.as_str());
    let co = vm.machine.coroutine(1, &vm.entries.agent, args).map_err(|_| no_room())?;
    let armed = Armed::new(Allowance {
        category: 1,
        memory: limits.memory,
        clock: Clock::Own { limit: Duration::from_millis(limits.cpu_ms), cancel: Some(cancel) },
    });
    let halt = co.resume(&armed, Delivery::Nothing);
    match armed.breach() {
        None => {}
        Some(Breach::Memory) => return Err(failure::at(&armed, &no_room().message)),
        Some(Breach::Canceled) => return Err(failure::canceled()),
        Some(Breach::Cpu) => {
            let message = format!(
                "the agent ran for more than {} ms: is there a loop that never ends?",
                limits.cpu_ms
            );
            return Err(failure::at(&armed, &message));
        }
    }
    match halt {
        _ if vm.desk.starved.get() => Err(no_room()),
        Halt::Returned => co.json(1, limits.value).map_err(|error| match error {
            EncodeError::Value { .. } => {
                Failure::new(kind::SCRIPT, format!("the agent's result: {error}"))
            }
            EncodeError::TooLarge { .. } => failure::limit(format!("the agent's result: {error}")),
        }),
        Halt::Raised => Err(failure::raised(&co)),
        Halt::Called => Err(Failure::new(kind::SCRIPT, "an agent's function cannot use ctx")),
        Halt::OutOfMemory | Halt::Undelivered => Err(no_room()),
    }
}
