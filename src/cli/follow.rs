//! Watches a run until it ends: shows it, asks people, notices Ctrl-C.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::pending,
    time::Duration,
};

use anyhow::Result;
use tokio::{signal::unix::Signal, time::sleep};

use super::{
    client::Client,
    exit::{Exit, Stop},
    people,
    render::{Changes, FRAME_MS, Live, LiveText, printable, since_ms, waiting},
    sse::Events,
    terminal::{Questions, Terminal},
};
use crate::{
    clock::Clock,
    engine::{EventView, RunView, StepView, TaskView},
    protocol::RunId,
    store::RunStatus,
};

/// The least time between two looks at the steps.
const REFRESH: Duration = Duration::from_millis(120);
/// The interval at which the tree is redrawn, because durations change without events.
const FRAME: Duration = Duration::from_millis(FRAME_MS);
/// The most: what is asked for even where no event comes.
const IDLE: Duration = Duration::from_secs(5);
/// After so long a wait, lines say what a run waits for.
const PATIENCE_MS: u64 = 2_000;
/// A look takes at most this part of the time.
const SHARE: u64 = 8;

/// The latest steps that are looked at. Of a run that is further ahead those between are counted.
const LATEST: u32 = 500;

/// The reason why the watching ended.
#[derive(Debug)]
pub enum End {
    /// The run ended.
    Ended(RunView),
    /// Only people can move it.
    People(RunView),
    /// The time to wait is over.
    TimedOut(RunView),
    /// Ctrl-C.
    Interrupted(RunView),
}

/// The settings for watching a run.
pub struct Follow<'a> {
    /// The daemon.
    pub client: &'a Client,
    /// The terminal.
    pub terminal: Terminal,
    /// The time.
    pub clock: &'a Clock,
    /// True if watching stops when only people can move the run.
    pub leave_to_people: bool,
    /// True if people are asked in this terminal.
    pub ask: bool,
    /// The maximum time to wait.
    pub wait: Option<Duration>,
    /// True if the tree stays on the terminal when the run has ended.
    pub leaves_tree: bool,
}

impl Follow<'_> {
    /// Watches until the run ends or there is a reason to stop, `interrupt` being one.
    ///
    /// # Errors
    /// A daemon that goes away, or does not let this token look.
    pub async fn until_end(&self, run: RunView, interrupt: &mut Signal) -> Result<End> {
        let over = async {
            match self.wait {
                Some(wait) => sleep(wait).await,
                None => pending().await,
            }
        };
        let mut watch = Watch::new(run, self.terminal);
        let ended = tokio::select! {
            ended = self.watch(&mut watch) => Some(ended),
            _ = interrupt.recv() => None,
            () = over => {
                watch.screen.hide();
                return Ok(End::TimedOut(watch.run));
            }
        };
        match &ended {
            Some(Ok(false)) if self.leaves_tree => watch.leave(self.clock.now_ms()),
            _ => watch.screen.hide(),
        }
        match ended {
            Some(end) => end.map(|only_people| match only_people {
                true => End::People(watch.run),
                false => End::Ended(watch.run),
            }),
            None => Ok(End::Interrupted(watch.run)),
        }
    }

    /// Returns whether it stopped for people; otherwise the run has ended.
    async fn watch(&self, watch: &mut Watch) -> Result<bool> {
        let mut questions = self.ask.then(Questions::new);
        let run = watch.run.id;
        let mut feed = Feed { client: self.client, run, after: 0, events: None, broken: None };
        loop {
            let began = self.clock.now_ms();
            watch.refresh(self.client, began).await?;
            if watch.run.status.is_ended() {
                return Ok(false);
            }
            if let Some(why) = feed.broken.take() {
                return Err(why.into());
            }
            if watch.is_stuck(began) {
                watch.announce(self.client, began).await?;
            }
            if people::only_people_left(&watch.run) {
                watch.announce(self.client, began).await?;
                if self.leave_to_people {
                    return Ok(true);
                }
                if let Some(questions) = &mut questions
                    && let Some(task) = watch.question(self.client).await?
                {
                    // What happens meanwhile may end the question, but never an answer that was given.
                    let question = asking(&task);
                    let line = tokio::select! {
                        line = questions.ask(&question) => line?,
                        _ = feed.next() => continue,
                    };
                    match line {
                        Some(line) => watch.put(self.client, &line, &task).await?,
                        // Nobody types any more.
                        None => drop(feed.next().await),
                    }
                    continue;
                }
            }
            let took = self.clock.now_ms().saturating_sub(began);
            let pause = REFRESH.max(Duration::from_millis(took.saturating_mul(SHARE)));
            self.settle(&mut feed, watch, pause).await;
        }
    }

    /// Waits until there is something new, and then long enough that looking stays cheap.
    async fn settle(&self, feed: &mut Feed<'_>, watch: &mut Watch, pause: Duration) {
        let (idle, mut frame) = (sleep(IDLE), FRAME);
        tokio::pin!(idle);
        // Pieces of answers change no step: they are shown, and nothing is asked for because of them.
        let mut event = loop {
            let next = feed.next();
            tokio::pin!(next);
            let event = loop {
                tokio::select! {
                    event = &mut next => break event,
                    () = &mut idle => return,
                    () = sleep(frame), if watch.is_live() => {
                        let began = self.clock.now_ms();
                        watch.draw(began);
                        // A large tree takes its time.
                        let took = self.clock.now_ms().saturating_sub(began);
                        frame = FRAME.max(Duration::from_millis(took.saturating_mul(SHARE)));
                    }
                }
            };
            match event {
                Some(event) if LiveText::is_piece(&event) => {
                    watch.event(&event, self.clock.now_ms());
                }
                other => break other,
            }
        };
        let over = sleep(pause);
        tokio::pin!(over);
        loop {
            if let Some(event) = &event {
                watch.event(event, self.clock.now_ms());
            }
            if event.as_ref().is_none_or(|event| event.kind.starts_with("run.")) {
                return;
            }
            event = tokio::select! {
                event = feed.next() => event,
                () = &mut over => return,
            };
        }
    }
}

/// The events of a run, across broken connections.
struct Feed<'a> {
    client: &'a Client,
    run: RunId,
    after: u32,
    events: Option<Events>,
    /// The reason why it cannot go on.
    broken: Option<Stop>,
}

impl Feed<'_> {
    /// The next event; `None` where the stream ended, after a moment in which it may come back.
    async fn next(&mut self) -> Option<EventView> {
        if self.events.is_none() {
            self.events = self.client.sampled_events(self.run, self.after).await.ok();
        }
        let next = match &mut self.events {
            Some(events) => events.next().await.unwrap_or_else(|error| {
                // What is damaged stays so; anything else may pass.
                let why = error.downcast::<Stop>().ok();
                self.broken = why.filter(|why| why.code.as_deref() == Some("damaged"));
                None
            }),
            None => None,
        };
        match &next {
            Some(event) => self.after = event.seq.unwrap_or(self.after),
            None => {
                self.events = None;
                sleep(REFRESH).await;
            }
        }
        next
    }
}

enum Screen {
    Live(Option<Live>),
    Lines(Changes, Terminal),
}

impl Screen {
    fn say(&mut self, terminal: Terminal, line: &str) {
        match self {
            Self::Live(Some(live)) => live.say(line),
            Self::Live(None) | Self::Lines(..) => terminal.say(line),
        }
    }

    /// Clears what is redrawn, until the next drawing.
    fn hide(&mut self) {
        match self {
            Self::Live(live) => {
                if let Some(live) = live.take() {
                    live.end();
                }
            }
            Self::Lines(..) => {}
        }
    }
}

struct Watch {
    run: RunView,
    steps: BTreeMap<u32, StepView>,
    /// The last step that is not looked at any more.
    before: u32,
    screen: Screen,
    terminal: Terminal,
    told: BTreeSet<String>,
    said: LiveText,
    drawn_ms: u64,
}

impl Watch {
    fn new(run: RunView, terminal: Terminal) -> Self {
        let screen = match terminal.live {
            true => Screen::Live(None),
            false => Screen::Lines(Changes::default(), terminal),
        };
        Self {
            run,
            steps: BTreeMap::new(),
            before: 0,
            screen,
            terminal,
            told: BTreeSet::new(),
            said: LiveText::default(),
            drawn_ms: 0,
        }
    }

    async fn refresh(&mut self, client: &Client, now_ms: u64) -> Result<()> {
        // The run first: steps that are newer than its header are shown, none is missed.
        self.run = client.run(self.run.id).await?;
        let run_ms = since_ms(&self.run.created_at, now_ms);
        let skipped = self.skip();
        let new = client.steps_between(self.run.id, self.settled(), self.run.steps).await?;
        if let Screen::Lines(changes, terminal) = &mut self.screen {
            changes.forget(self.before);
            if skipped > 0 {
                let line = format!("… {skipped} more steps, {} done", self.run.steps_done);
                terminal.say(&Changes::stamped(run_ms, &line));
            }
            for line in changes.lines(&self.run, &new, run_ms) {
                terminal.say(&line);
            }
        }
        self.steps.extend(new.into_iter().map(|step| (step.seq, step)));
        self.draw(now_ms);
        Ok(())
    }

    /// Leaves out what is too far behind, and counts the steps that were never looked at.
    fn skip(&mut self) -> u32 {
        let known = self.steps.last_key_value().map_or(self.before, |(seq, _)| *seq);
        let before = self.run.steps.saturating_sub(LATEST);
        if before <= known.max(self.before) {
            return 0;
        }
        self.steps = self.steps.split_off(&(before + 1));
        self.before = before;
        before - known
    }

    /// Returns true if there is a drawing that shows how time goes on.
    fn is_live(&self) -> bool {
        matches!(self.screen, Screen::Live(Some(_)))
    }

    fn draw(&mut self, now_ms: u64) {
        if let Screen::Live(live) = &mut self.screen {
            let live = live.get_or_insert_with(Live::start);
            live.draw(&self.run, self.steps.values(), &self.said, now_ms);
            self.drawn_ms = now_ms;
        }
    }

    /// Lets the drawing stay as it is at the end.
    fn leave(&mut self, now_ms: u64) {
        if let Screen::Live(live) = &mut self.screen {
            live.take().unwrap_or_else(Live::start).leave(self.steps.values(), now_ms);
        }
    }

    /// Returns true if a run that prints lines has waited long enough to say for what.
    fn is_stuck(&self, now_ms: u64) -> bool {
        let waited = |since: &str| since_ms(since, now_ms) >= PATIENCE_MS;
        matches!(self.screen, Screen::Lines(..))
            && self.run.status == RunStatus::Waiting
            && self.run.waiting_on.iter().any(|on| waited(&on.since))
    }

    /// The number up to which no step changes any more.
    fn settled(&self) -> u32 {
        let open = |step: &&StepView| step.state == "pending" || step.state == "processing";
        match self.steps.values().find(open) {
            Some(step) => step.seq - 1,
            None => self.steps.last_key_value().map_or(self.before, |(seq, _)| *seq),
        }
    }

    fn event(&mut self, event: &EventView, now_ms: u64) {
        let run_ms = since_ms(&self.run.created_at, now_ms);
        let lines = self.said.hear(event);
        match &self.screen {
            // The tree shows it.
            Screen::Live(_) => {
                let age = Duration::from_millis(now_ms.saturating_sub(self.drawn_ms));
                if LiveText::is_piece(event) && age >= REFRESH {
                    self.draw(now_ms);
                }
            }
            Screen::Lines(..) => {
                for line in lines {
                    self.terminal.say(&Changes::stamped(run_ms, &line));
                }
            }
        }
        if let Some(line) = Changes::event(event, run_ms) {
            self.screen.say(self.terminal, &line);
        }
    }

    /// Prints once the open questions to people, and how to answer them.
    async fn announce(&mut self, client: &Client, now_ms: u64) -> Result<()> {
        for on in self.run.waiting_on.clone() {
            let key = format!("{} {:?}", on.kind, on.subject);
            if !self.told.insert(key) {
                continue;
            }
            if let Some(task) = on.subject.task {
                let title = title(&client.task(task).await?);
                self.screen.say(self.terminal, &title);
            }
            self.screen.say(self.terminal, &waiting(&self.run, &on, now_ms));
        }
        Ok(())
    }

    /// The task that somebody at this terminal could answer.
    async fn question(&mut self, client: &Client) -> Result<Option<TaskView>> {
        let Some(task) = self.run.waiting_on.iter().find_map(|on| on.subject.task) else {
            return Ok(None);
        };
        let task = client.task(task).await?;
        self.screen.hide();
        Ok(Some(task))
    }

    /// Gives an answer; one that the daemon does not take is said to be wrong, and asked for again.
    async fn put(&self, client: &Client, line: &str, task: &TaskView) -> Result<()> {
        let Some(mut body) = people::typed(line, schema_of(task).as_ref()) else {
            let expected = match people::is_approval(schema_of(task).as_ref()) {
                true => "y approves, n rejects; Ctrl-C leaves the question open",
                false => "the answer is JSON; `moonswarm show TASK` shows its form",
            };
            self.terminal.say(expected);
            return Ok(());
        };
        if let Some(revision) = &task.revision {
            body["revision"] = revision.as_str().into();
        }
        match client.answer(task.id, &body).await {
            Ok(_) => Ok(()),
            Err(error) => match error.downcast_ref::<Stop>() {
                Some(stop) if stop.exit == Exit::Usage => {
                    self.terminal.say(&stop.to_string());
                    Ok(())
                }
                Some(stop) if stop.exit == Exit::Conflict => Ok(()),
                Some(_) | None => Err(error),
            },
        }
    }
}

fn schema_of(task: &TaskView) -> Option<serde_json::Value> {
    task.output_schema.as_ref().map(crate::protocol::Json::to_value)
}

/// Returns the prompt for the answer to a task.
fn asking(task: &TaskView) -> String {
    let choice = match people::is_approval(schema_of(task).as_ref()) {
        true => "[y/n or JSON]",
        false => "[JSON]",
    };
    format!("{} {choice}", task.agent)
}

/// Returns the title of a task, or its summary, or its agent.
pub fn title(task: &TaskView) -> String {
    let input = task.input.as_ref().map(crate::protocol::Json::to_value).unwrap_or_default();
    let title = input.get("title").and_then(|title| title.as_str());
    let text = title.or(task.summary.as_deref()).unwrap_or(&task.agent);
    printable(text)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tokio::signal::unix::{SignalKind, signal};

    use super::*;
    use crate::{
        cli::fixture::{self, run, step},
        engine::{Subject, WaitingOn},
    };

    async fn watched(answers: Vec<Value>) -> End {
        let answers = answers.into_iter().map(|body| (200, body.to_string())).collect();
        let server = fixture::serve(answers).await;
        let follow = Follow {
            client: &Client::new(&server.url, "t").unwrap(),
            terminal: Terminal::quiet(),
            clock: &Clock::manual(1_767_225_600_000),
            leave_to_people: true,
            ask: false,
            wait: Some(Duration::from_secs(20)),
            leaves_tree: false,
        };
        let mut interrupt = signal(SignalKind::interrupt()).unwrap();
        follow.until_end(run(RunStatus::Queued), &mut interrupt).await.unwrap()
    }

    fn page(steps: &[StepView]) -> Value {
        json!({"items": steps, "next_cursor": null})
    }

    #[tokio::test]
    async fn a_run_that_has_ended_is_shown_once_more_and_given_back() {
        let done = json!(run(RunStatus::Completed));
        let end = watched(vec![done, page(&[step(1, "", 0, "completed")])]).await;
        assert!(matches!(end, End::Ended(run) if run.status == RunStatus::Completed));
    }

    #[tokio::test]
    async fn a_run_that_only_people_can_move_is_left_to_them() {
        let on = WaitingOn {
            kind: "signal".into(),
            subject: Subject { name: Some("go".into()), ..Subject::default() },
            since: "2026-01-01T00:00:00.000Z".into(),
            until: None,
        };
        let waits = RunView { waiting_on: vec![on], ..run(RunStatus::Waiting) };
        let end = watched(vec![json!(waits), page(&[])]).await;
        assert!(matches!(end, End::People(_)));
    }

    #[test]
    fn where_there_is_no_terminal_a_long_wait_is_explained() {
        let mut watch = Watch::new(run(RunStatus::Waiting), Terminal::quiet());
        watch.run.waiting_on = vec![WaitingOn {
            kind: "task".into(),
            subject: Subject { name: Some("notes".into()), ..Subject::default() },
            since: "2026-01-01T00:00:00.000Z".into(),
            until: None,
        }];
        assert!(!watch.is_stuck(1_767_225_601_000));
        assert!(watch.is_stuck(1_767_225_602_000));
        watch.run.status = RunStatus::Running;
        assert!(!watch.is_stuck(1_767_225_602_000));
    }

    #[test]
    fn steps_are_asked_for_from_the_first_that_is_open() {
        let mut watch = Watch::new(run(RunStatus::Running), Terminal::quiet());
        assert_eq!(watch.settled(), 0);
        for (seq, state) in [(1, "completed"), (2, "failed"), (3, "completed")] {
            watch.steps.insert(seq, step(seq, "", seq - 1, state));
        }
        assert_eq!(watch.settled(), 3);
        watch.steps.insert(2, step(2, "", 1, "processing"));
        assert_eq!(watch.settled(), 1);
    }

    #[test]
    fn of_a_run_that_is_far_ahead_only_the_latest_steps_are_looked_at() {
        let mut watch = Watch::new(run(RunStatus::Running), Terminal::quiet());
        for seq in 1..=100 {
            watch.steps.insert(seq, step(seq, "", seq - 1, "completed"));
        }
        watch.run.steps = 600;
        assert_eq!((watch.skip(), watch.settled()), (0, 100), "one page brings it there");
        watch.run.steps = 90_000;
        assert_eq!((watch.skip(), watch.settled()), (89_400, 89_500));
        assert!(watch.steps.is_empty());
        watch.steps.insert(90_000, step(90_000, "", 89_999, "completed"));
        assert_eq!((watch.skip(), watch.settled()), (0, 90_000));
    }
}
