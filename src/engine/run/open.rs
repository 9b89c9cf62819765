//! The open steps of a run, with counts of the properties that every commit needs: one result among
//! ten thousand open steps visits none of the others.

use std::{
    collections::HashMap,
    ops::{AddAssign, SubAssign},
    sync::Arc,
};

use crate::{
    engine::{
        Subject,
        run::{
            composite::OpenComposite,
            driver::Driver,
            due::Due,
            model_loop::OpenLoop,
            task::{OpenTask, Phase},
        },
    },
    flow::StateOp,
    operator::Residence,
    protocol::{Json, RunId},
};

/// The maximum number of steps that are lent before they are counted again.
const LENT: usize = 32;

/// The open steps of a run, by their number.
#[derive(Default)]
pub(crate) struct OpenSteps {
    steps: HashMap<u32, Counted>,
    /// The counts of the steps that are not lent.
    sums: Sums,
    /// Steps that were lent for changes since they were counted, each once.
    lent: Vec<u32>,
}

struct Counted {
    open: Open,
    /// Its properties as counted; `None` while it is lent.
    class: Option<Sums>,
}

/// The number of steps with each property; also the properties of one step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    /// Tasks.
    pub(crate) tasks: usize,
    /// A worker has them.
    pub(crate) worked_on: usize,
    /// They must be visited at every boot.
    pub(crate) at_boot: usize,
    /// They have data in this process.
    pub(crate) in_memory: usize,
    /// The size of their requests and of the results of their parts, in bytes.
    pub(crate) bytes: usize,
}

impl OpenSteps {
    /// Returns a step.
    pub(crate) fn get(&self, number: u32) -> Option<&Open> {
        Some(&self.steps.get(&number)?.open)
    }

    /// Returns a step for changes.
    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut Open> {
        if self.lent.len() >= LENT {
            self.recount();
        }
        let counted = self.steps.get_mut(&number)?;
        if let Some(class) = counted.class.take() {
            self.sums -= class;
            self.lent.push(number);
        }
        Some(&mut counted.open)
    }

    /// Returns every step for changes, in the order of their numbers.
    pub(crate) fn each_mut(&mut self) -> Vec<(u32, &mut Open)> {
        self.sums = Sums::default();
        self.lent = self.steps.keys().copied().collect();
        let each = self.steps.iter_mut().map(|(number, counted)| {
            counted.class = None;
            (*number, &mut counted.open)
        });
        let mut each: Vec<_> = each.collect();
        each.sort_unstable_by_key(|(number, _)| *number);
        each
    }

    /// Adds an open step.
    pub(crate) fn insert(&mut self, number: u32, open: Open) {
        drop(self.remove(number));
        let class = Sums::of(&open);
        self.sums += class;
        self.steps.insert(number, Counted { open, class: Some(class) });
    }

    /// Removes a step.
    pub(crate) fn remove(&mut self, number: u32) -> Option<Open> {
        let counted = self.steps.remove(&number)?;
        match counted.class {
            Some(class) => self.sums -= class,
            None => self.lent.retain(|lent| *lent != number),
        }
        Some(counted.open)
    }

    /// Returns the steps, in no order.
    pub(crate) fn values(&self) -> impl Iterator<Item = &Open> {
        self.steps.values().map(|counted| &counted.open)
    }

    /// Returns their numbers, in no order.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> {
        self.steps.keys().copied()
    }

    /// Returns the number of steps.
    pub(crate) fn len(&self) -> usize {
        self.steps.len()
    }

    /// Returns true if there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Returns the counts.
    pub(crate) fn sums(&self) -> Sums {
        let mut sums = self.sums;
        for number in &self.lent {
            if let Some(counted) = self.steps.get(number) {
                sums += Sums::of(&counted.open);
            }
        }
        sums
    }

    fn recount(&mut self) {
        for number in self.lent.drain(..) {
            if let Some(counted) = self.steps.get_mut(&number) {
                let class = Sums::of(&counted.open);
                counted.class = Some(class);
                self.sums += class;
            }
        }
    }
}

impl Open {
    /// Returns the driver of its parts, if it has parts.
    pub(crate) fn driver(&self) -> Option<&dyn Driver> {
        match self {
            Self::Composite(open) => Some(&**open),
            Self::Loop(open) => Some(&**open),
            Self::Timer
            | Self::Signal
            | Self::State { .. }
            | Self::Child { .. }
            | Self::Task(_) => None,
        }
    }

    /// Returns the driver of its parts for changes, if it has parts.
    pub(crate) fn driver_mut(&mut self) -> Option<&mut dyn Driver> {
        match self {
            Self::Composite(open) => Some(&mut **open),
            Self::Loop(open) => Some(&mut **open),
            Self::Timer
            | Self::Signal
            | Self::State { .. }
            | Self::Child { .. }
            | Self::Task(_) => None,
        }
    }

    /// Returns true if it only waits for its members, which are open beside it.
    pub(crate) fn waits_for_members(&self) -> bool {
        match self {
            Self::Composite(_) => true,
            Self::Loop(open) => !open.waits_in_line(),
            Self::Timer
            | Self::Signal
            | Self::State { .. }
            | Self::Child { .. }
            | Self::Task(_) => false,
        }
    }

    /// Returns what it waits for, of a step that is no task: kind, subject, and the timer that ends
    /// it; nothing where the members show that.
    pub(crate) fn waits_for(&self, named: Subject) -> Option<(&'static str, Subject, Option<Due>)> {
        Some(match self {
            Self::Loop(open) if open.waits_in_line() => {
                let scope = open.flow.settings().conversation.as_ref().map(|it| it.scope.clone());
                ("conversation", Subject { scope, ..named }, Some(Due::Conversation))
            }
            Self::Composite(_) | Self::Loop(_) | Self::Task(_) => return None,
            Self::Timer => ("timer", Subject::default(), Some(Due::Timer)),
            Self::Signal => ("signal", named, Some(Due::SignalDeadline)),
            Self::State { scope, .. } => {
                ("state", Subject { scope: Some(scope.clone()), ..named }, None)
            }
            Self::Child { run, .. } => ("child", Subject { run: Some(*run), ..named }, None),
        })
    }

    /// Returns the approximate size of its payload in bytes.
    fn bytes(&self) -> usize {
        match self {
            Open::Timer | Open::Signal => 0,
            Open::State { op, .. } => op.size(),
            Open::Child { input, .. } => input.len(),
            Open::Task(task) => {
                let row = task.row.as_ref().map_or(0, |row| {
                    row.prompt.len() + row.question.as_ref().map_or(0, String::len)
                });
                task.request.size() + row
            }
            Open::Composite(open) => open.request.size() + open.course.size(),
            Open::Loop(open) => open.size(),
        }
    }
}

impl Sums {
    fn of(open: &Open) -> Self {
        let (task, worked_on, at_boot, in_memory) = match open {
            Open::Timer | Open::Signal | Open::Composite(_) => (false, false, false, false),
            Open::Loop(open) => {
                let waits = open.waits_in_line();
                (false, false, waits, waits)
            }
            Open::State { .. } | Open::Child { .. } => (false, true, true, true),
            Open::Task(task) => {
                let here = task.residence != Residence::Elsewhere;
                // While it is being handed over, the party that does so reports to this process.
                let held = here || task.live.is_some();
                match task.phase {
                    Phase::Capacity => (true, false, true, true),
                    Phase::Retry => (true, false, false, false),
                    Phase::Pending => (true, here, here || task.redelivers, held),
                    Phase::Delivered => (true, task.question.is_none(), here, held),
                }
            }
        };
        Self {
            tasks: task.into(),
            worked_on: worked_on.into(),
            at_boot: at_boot.into(),
            in_memory: in_memory.into(),
            bytes: open.bytes(),
        }
    }
}

impl AddAssign for Sums {
    fn add_assign(&mut self, more: Self) {
        self.tasks += more.tasks;
        self.worked_on += more.worked_on;
        self.at_boot += more.at_boot;
        self.in_memory += more.in_memory;
        self.bytes += more.bytes;
    }
}

impl SubAssign for Sums {
    fn sub_assign(&mut self, less: Self) {
        self.tasks -= less.tasks;
        self.worked_on -= less.worked_on;
        self.at_boot -= less.at_boot;
        self.in_memory -= less.in_memory;
        self.bytes -= less.bytes;
    }
}

/// An open step, by what it waits for.
pub(crate) enum Open {
    /// A time.
    Timer,
    /// A signal.
    Signal,
    /// The result of an operation on shared state.
    State {
        scope: String,
        op: Box<StateOp>,
        /// Lives as long as the step is open: nobody begins a change for a step that is not.
        alive: Arc<()>,
    },
    /// The end of a child run.
    Child { run: RunId, blueprint: String, input: Json },
    /// The result of an operator.
    Task(Box<OpenTask>),
    /// The results of its members.
    Composite(Box<OpenComposite>),
    /// The results of model calls and tool calls.
    Loop(Box<OpenLoop>),
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::protocol::{Json, RunId};

    fn open(kind: u8) -> Open {
        match kind % 3 {
            0 => Open::Timer,
            1 => Open::Signal,
            _ => Open::Child { run: RunId::new(1, 1), blueprint: "b".into(), input: Json::null() },
        }
    }

    proptest! {
        /// Whatever is opened, changed and closed, the counts equal a full count.
        #[test]
        fn the_sums_are_those_of_a_count(deeds in prop::collection::vec((0..5_u8, 0..40_u32, 0..3_u8), 0..400)) {
            let mut steps = OpenSteps::default();
            for (deed, number, kind) in deeds {
                match deed {
                    0 | 1 => steps.insert(number, open(kind)),
                    2 => drop(steps.remove(number)),
                    3 => if let Some(step) = steps.get_mut(number) { *step = open(kind) },
                    _ => for (n, step) in steps.each_mut() {
                        if n % 2 == 0 { *step = open(kind) }
                    },
                }
                let mut counted = Sums::default();
                for step in steps.values() {
                    counted += Sums::of(step);
                }
                prop_assert_eq!(steps.sums(), counted);
            }
        }
    }
}
