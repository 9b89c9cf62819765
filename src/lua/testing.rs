//! A file of tests of blueprints, and one of its tests in progress.
//!
//! A test makes requests in JSON (start a run, advance it, look at it), and the test runner answers
//! them. The functions that replace agents are called while the test waits.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use serde::Deserialize;

use super::{
    desk::Mode,
    failure,
    program::HOST,
    random::Random,
    raw::{Allowance, Armed, Breach, Clock, Coroutine, Delivery, Halt},
    source::Source,
    vm::Vm,
};
use crate::{
    blueprint::{Bundle, Edition},
    journal::Note,
    protocol::{Failure, Json, failure::kind},
};

/// The number of a request among the library's operations.
const ASK: u64 = 19;

/// The allowance of a file of tests.
#[derive(Clone)]
pub struct TestLimits {
    /// CPU time between two requests.
    pub slice: Duration,
    /// Memory, in bytes.
    pub memory: usize,
    /// A request, and the answer to it, in bytes of JSON.
    pub value: usize,
    /// The printed lines of a test, in bytes.
    pub printed: usize,
    /// Returns the time that is left of all; without it there is no end.
    pub left: Option<Rc<dyn Fn() -> Duration>>,
    /// Set by the caller that wants the test to end.
    pub stop: Arc<AtomicBool>,
}

impl Default for TestLimits {
    fn default() -> Self {
        Self {
            slice: Duration::from_secs(10),
            memory: 256 << 20,
            value: 4 << 20,
            printed: 64 << 20,
            left: None,
            stop: Arc::default(),
        }
    }
}

/// A file of tests, evaluated.
pub struct TestFile {
    vm: Vm,
    limits: TestLimits,
    printed: RefCell<Vec<String>>,
    /// The bytes that may still be printed.
    room: Cell<usize>,
    names: Vec<TestName>,
    asserts: bool,
}

/// A test's name and where it stands.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct TestName {
    /// Its name.
    pub name: String,
    /// The line in its file.
    pub line: Option<u32>,
}

/// A test that was begun.
pub struct TestCase(Coroutine);

/// The reason why a test halted.
#[derive(Debug)]
pub enum TestHalt {
    /// The test makes a request.
    Asks(Json),
    /// The test has passed.
    Passed {
        /// True if it made at least one assertion.
        asserted: bool,
    },
    /// Something was wrong.
    Failed(Failure),
}

impl TestFile {
    /// Evaluates a file of tests.
    ///
    /// # Errors
    /// Fails when the file has an error.
    pub fn open(bundle: &Bundle, limits: &TestLimits) -> Result<Self, Failure> {
        // Nothing is stored of a test: it is always written in the latest edition.
        let source = Source::new(bundle.hash(), bundle.clone(), HOST).of_edition(Edition::LATEST);
        let vm = Vm::open(&source, limits.memory.saturating_mul(2), 1, true);
        let vm = vm.map_err(|_| limits.no_room())?;
        let asserts = bundle.files().values().any(|text| {
            text.contains("assert(") || text.contains("error(") || text.contains("assert (")
        });
        let mut file = Self {
            vm,
            limits: limits.clone(),
            printed: RefCell::default(),
            room: Cell::new(limits.printed),
            names: Vec::new(),
            asserts,
        };
        let co = file.vm.machine.coroutine(1, &file.vm.entries.tests, ());
        let co = co.map_err(|_| limits.no_room())?;
        file.names = match file.resume(&co, Delivery::Nothing)? {
            Halt::Returned => {
                let names = co.json(1, limits.value).map_err(|error| script(error.to_string()))?;
                names.decode().map_err(|error| script(error.to_string()))?
            }
            Halt::Called => {
                return Err(script("what is outside of t.test cannot ask for anything"));
            }
            _ => return Err(co.raised()),
        };
        Ok(file)
    }

    /// Returns true if it uses `assert` or `error`, which the library cannot observe.
    pub fn has_assert(&self) -> bool {
        self.asserts
    }

    /// Its tests, in their order.
    pub fn names(&self) -> &[TestName] {
        &self.names
    }

    /// Begins the test at an index of [`TestFile::names`].
    ///
    /// # Errors
    /// Fails when there is no memory for it.
    pub fn begin(&self, place: usize) -> Result<TestCase, Failure> {
        let number = u32::try_from(place + 1).unwrap_or(u32::MAX);
        let co = self.vm.machine.coroutine(1, &self.vm.entries.test, number);
        co.map(TestCase).map_err(|_| self.limits.no_room())
    }

    /// Lets a test go on with the answer to what it asked for; nothing at its beginning.
    pub fn go_on(&self, case: &TestCase, answer: Option<&Result<Json, Failure>>) -> TestHalt {
        let co = &case.0;
        let text;
        let delivery = match answer {
            None => Delivery::Nothing,
            Some(Ok(value)) => Delivery::Value(value.as_str()),
            Some(Err(failure)) => {
                text = serde_json::to_string(failure).unwrap_or_default();
                Delivery::Failure(&text)
            }
        };
        match self.resume(co, delivery) {
            Err(failure) => TestHalt::Failed(failure),
            Ok(Halt::Returned) => TestHalt::Passed {
                asserted: co.json(1, self.limits.value).is_ok_and(|it| it.as_str() == "true"),
            },
            Ok(Halt::Called) if super::call::whole(co, 1) == Some(ASK) => {
                match co.json(2, self.limits.value) {
                    Ok(request) => TestHalt::Asks(request),
                    Err(error) => {
                        TestHalt::Failed(script(format!("what the test asks for: {error}")))
                    }
                }
            }
            Ok(Halt::Called) => TestHalt::Failed(script("`ctx` works only in a flow")),
            Ok(_) => TestHalt::Failed(co.raised()),
        }
    }

    /// Calls a function that replaces an agent.
    ///
    /// # Errors
    /// Fails with the error that it raised.
    pub fn answer(&self, function: u32, input: &Json) -> Result<Json, Failure> {
        let args = (function, input.as_str());
        let co = self.vm.machine.coroutine(1, &self.vm.entries.answer, args);
        let co = co.map_err(|_| self.limits.no_room())?;
        match self.resume(&co, Delivery::Nothing)? {
            Halt::Returned => {
                co.json(1, self.limits.value).map_err(|error| script(error.to_string()))
            }
            Halt::Called => {
                Err(script("a function that stands in for an agent cannot ask for anything"))
            }
            _ => Err(co.raised()),
        }
    }

    /// Takes the printed lines, as many as there was room for.
    pub fn said(&self) -> Vec<String> {
        self.room.set(self.limits.printed);
        self.printed.take()
    }

    fn resume(&self, co: &Coroutine, delivery: Delivery<'_>) -> Result<Halt, Failure> {
        let slice = match &self.limits.left {
            Some(left) => left().min(self.limits.slice),
            None => self.limits.slice,
        };
        let memory = self.limits.memory;
        self.vm.desk.open(Mode::Test, 0, Random::new(0), self.limits.value);
        let armed = Armed::new(Allowance {
            category: 1,
            memory,
            clock: Clock::Own { limit: slice, cancel: Some(&self.limits.stop) },
        });
        let halt = co.resume(&armed, delivery);
        self.keep_notes();
        match armed.breach() {
            Some(Breach::Canceled) => return Err(failure::canceled()),
            Some(Breach::Cpu) => {
                let message = format!(
                    "the test ran for more than {} ms without asking for anything: is there a loop that never ends?",
                    slice.as_millis()
                );
                return Err(failure::at(&armed, &message));
            }
            Some(Breach::Memory) => {
                return Err(failure::at(&armed, &self.limits.no_room().message));
            }
            None if self.vm.desk.starved.get() => return Err(self.limits.no_room()),
            None => {}
        }
        match halt {
            Halt::OutOfMemory | Halt::Undelivered => Err(self.limits.no_room()),
            halt => Ok(halt),
        }
    }

    /// Keeps what was printed, as long as there is room for it.
    fn keep_notes(&self) {
        let notes = std::mem::take(&mut *self.vm.desk.notes.borrow_mut());
        let mut printed = self.printed.borrow_mut();
        for note in notes {
            let Note::Log { message, .. } = note else { continue };
            // A line takes room even if it is empty.
            let size = message.len() + size_of::<String>();
            match self.room.get() {
                0 => return,
                room if size > room => {
                    printed.push("… more was printed than is kept".to_owned());
                    self.room.set(0);
                }
                room => {
                    printed.push(message);
                    self.room.set(room - size);
                }
            }
        }
    }
}

impl TestLimits {
    fn no_room(&self) -> Failure {
        failure::limit(format!("the test used more than {} MiB of memory", self.memory >> 20))
    }
}

fn script(message: impl Into<String>) -> Failure {
    Failure::new(kind::SCRIPT, message)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn file(body: &str) -> Result<TestFile, Failure> {
        let text = format!("local t = require(\"swarm.test\")\n{body}");
        TestFile::open(&Bundle::from_source("a_test.lua", text).unwrap(), &TestLimits::default())
    }

    fn failure(body: &str) -> Failure {
        let file = file(&format!("t.test(\"x\", function() {body} end)")).unwrap();
        match file.go_on(&file.begin(0).unwrap(), None) {
            TestHalt::Failed(failure) => failure,
            other => panic!("{body}: {other:?}"),
        }
    }

    #[test]
    fn a_test_asks_is_answered_and_passes() {
        let file = file(
            "t.test(\"first\", function()\n local run = t.start(\"x.lua\", { n = 1 })\n \
             run:mock(\"a\", function(input) return { m = input.n * 2 } end)\n t.equal(run:finish(), { a = { 1 } })\nend)",
        )
        .unwrap();
        assert_eq!(file.names(), [TestName { name: "first".into(), line: Some(2) }]);
        let case = file.begin(0).unwrap();
        let asked = |halt| match halt {
            TestHalt::Asks(request) => request.to_value(),
            other => panic!("{other:?}"),
        };
        let request = asked(file.go_on(&case, None));
        assert_eq!(request, json!({ "op": "start", "path": "x.lua", "input": { "n": 1 } }));
        let request = asked(file.go_on(&case, Some(&Ok(Json::from(&json!(1))))));
        assert_eq!(request["answers"], json!([{ "fn": 1 }]));
        assert_eq!(
            file.answer(1, &Json::from(&json!({ "n": 4 }))).unwrap().to_value(),
            json!({ "m": 8 })
        );
        asked(file.go_on(&case, Some(&Ok(Json::null()))));
        let ended = json!({ "status": "completed", "output": { "a": [1] } });
        let halt = file.go_on(&case, Some(&Ok(Json::from(&ended))));
        assert!(matches!(halt, TestHalt::Passed { asserted: true }), "{halt:?}");
    }

    #[test]
    fn what_differs_is_said_by_its_path_and_the_test_s_line() {
        let failed = failure("\nt.equal({ a = { 1, 2 }, b = 3 }, { a = { 1, 5 }, c = true })");
        assert_eq!(failed.kind, "assertion");
        let expected = "a_test.lua:3: the values differ:\n  at $.a[2]: expected 5, got 2\n  \
                        at $.b: expected nothing, got 3\n  at $.c: expected true, got nothing";
        assert_eq!(failed.message, expected);
        assert!(failure("t.ok(false)").message.contains("expected something true"));
        assert!(failure("t.match({ a = 1, b = 2 }, { a = 2 })").message.contains("$.a"));
        assert_eq!(failure("t.raises(function() end)").kind, "assertion");
        assert_eq!(failure("t.equla(1, 2)").kind, "script");
    }

    #[test]
    fn a_file_that_cannot_be_evaluated_says_so_and_a_blueprint_has_no_tests() {
        assert!(file("t.test(1)").is_err());
        assert!(file("t.start(\"x\")").is_err());
        let program = "local t = require(\"swarm.test\") return {}";
        let bundle = Bundle::from_source("b.lua", program).unwrap();
        let source = Source::new("b", bundle, HOST);
        let errors = super::super::evaluate(&source, &super::super::Limits::default()).unwrap_err();
        assert!(errors[0].message.contains("moonswarm test"), "{errors:?}");
    }
}
