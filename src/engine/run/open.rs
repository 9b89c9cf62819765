//! The open steps of a run, counted by what has to be known of all of them at each commit: one
//! result among ten thousand open steps costs no look at the others.

use std::{
    collections::HashMap,
    ops::{AddAssign, SubAssign},
};

use crate::{
    engine::run::{
        composite::OpenComposite,
        model_loop::OpenLoop,
        task::{OpenTask, Phase},
    },
    flow::StateOp,
    operator::Residence,
    protocol::{Json, RunId},
};

/// Steps that may be out for a change before they are counted again.
const LENT: usize = 32;

/// The open steps of a run, by their number.
#[derive(Default)]
pub(crate) struct OpenSteps {
    steps: HashMap<u32, Counted>,
    /// Of those that are not lent.
    sums: Sums,
    /// Given out to be changed since they were counted, each once.
    lent: Vec<u32>,
}

struct Counted {
    open: Open,
    /// What it was counted as; nothing while it is lent.
    class: Option<Sums>,
}

/// How many steps are what, or what one step is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    /// Tasks.
    pub(crate) tasks: usize,
    /// Somebody works on them.
    pub(crate) worked_on: usize,
    /// They need a look at every boot.
    pub(crate) at_boot: usize,
    /// Something in this memory belongs to them.
    pub(crate) in_memory: usize,
    /// The bytes of what they were asked and of what came of their parts.
    pub(crate) bytes: usize,
}

impl OpenSteps {
    /// The step of a number.
    pub(crate) fn get(&self, number: u32) -> Option<&Open> {
        Some(&self.steps.get(&number)?.open)
    }

    /// The step of a number, to be changed.
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

    /// Every step, to be changed, in the order of their numbers.
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

    /// Opens a step.
    pub(crate) fn insert(&mut self, number: u32, open: Open) {
        drop(self.remove(number));
        let class = Sums::of(&open);
        self.sums += class;
        self.steps.insert(number, Counted { open, class: Some(class) });
    }

    /// Takes a step out.
    pub(crate) fn remove(&mut self, number: u32) -> Option<Open> {
        let counted = self.steps.remove(&number)?;
        match counted.class {
            Some(class) => self.sums -= class,
            None => self.lent.retain(|lent| *lent != number),
        }
        Some(counted.open)
    }

    /// The steps, in no order.
    pub(crate) fn values(&self) -> impl Iterator<Item = &Open> {
        self.steps.values().map(|counted| &counted.open)
    }

    /// Their numbers, in no order.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> {
        self.steps.keys().copied()
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// How many are what.
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
    /// About how many bytes of payload it holds.
    fn bytes(&self) -> usize {
        match &self.kind {
            OpenKind::Timer | OpenKind::Signal => 0,
            OpenKind::State { op, .. } => op.size(),
            OpenKind::Child { input, .. } => input.len(),
            OpenKind::Task(task) => {
                let row = task.row.as_ref().map_or(0, |row| {
                    row.prompt.len() + row.question.as_ref().map_or(0, String::len)
                });
                task.request.size() + row
            }
            OpenKind::Composite(open) => open.request.size() + open.course.size(),
            OpenKind::Loop(open) => open.size(),
        }
    }
}

impl Sums {
    fn of(open: &Open) -> Self {
        let (task, worked_on, at_boot, in_memory) = match &open.kind {
            OpenKind::Timer | OpenKind::Signal | OpenKind::Composite(_) | OpenKind::Loop(_) => {
                (false, false, false, false)
            }
            OpenKind::State { .. } | OpenKind::Child { .. } => (false, true, true, true),
            OpenKind::Task(task) => {
                let here = task.residence != Residence::Elsewhere;
                // While it is being handed over, whoever does that reports to this memory.
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

/// An open step.
pub(crate) struct Open {
    pub(crate) kind: OpenKind,
}

/// What an open step waits for.
pub(crate) enum OpenKind {
    /// A time.
    Timer,
    /// A signal.
    Signal,
    /// What shared state answers.
    State { scope: String, op: Box<StateOp> },
    /// A called run.
    Child { run: RunId, blueprint: String, input: Json },
    /// An operator.
    Task(Box<OpenTask>),
    /// Its members.
    Composite(Box<OpenComposite>),
    /// The calls of a model and of its tools.
    Loop(Box<OpenLoop>),
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::protocol::{Json, RunId};

    fn open(kind: u8) -> Open {
        let kind = match kind % 3 {
            0 => OpenKind::Timer,
            1 => OpenKind::Signal,
            _ => OpenKind::Child {
                run: RunId::new(1, 1),
                blueprint: "b".into(),
                input: Json::null(),
            },
        };
        Open { kind }
    }

    proptest! {
        /// Whatever is opened, changed and closed, the sums are those of a count of all.
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
