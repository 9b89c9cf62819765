//! Pieces of answers: who hears them, and that nothing depends on it.

use super::*;

/// An agent whose model says what its input says, word by word, and a flow that waits to be told to
/// begin.
fn body(flow: &str) -> String {
    format!(
        "agents = {{ w = {{ operator = \"scripted\", fn = function(request)
            return {{ text = \"one two three\" }} end }} }},
         flow = function(ctx, input) ctx:wait(\"go\") {flow} end"
    )
}

const ASK: &str = "{ items = swarm.array {} }";

async fn go(bench: &Bench, run: RunId) {
    bench.engine.signal(&bench.admin(), run, "go".into(), Json::null(), None).await.unwrap();
}

/// Every event of a run that is told to begin once somebody listens.
async fn heard(bench: &Bench, run: RunId) -> Vec<EventView> {
    let mut events = bench.engine.events(&bench.admin(), run, 0).await.unwrap();
    let (mut heard, mut gone) = (Vec::new(), false);
    while let Some(event) = events.next().await.unwrap() {
        // The first event comes after the subscription.
        if !std::mem::replace(&mut gone, true) {
            go(bench, run).await;
        }
        heard.push(event);
    }
    heard
}

fn of<'a>(events: &'a [EventView], kind: &str) -> Vec<&'a EventView> {
    events.iter().filter(|event| event.kind == kind && event.seq.is_none()).collect()
}

#[tokio::test]
async fn pieces_are_events_without_a_number_and_are_not_stored() {
    let bench = Bench::new();
    let flow = format!("return ctx:run(\"w\", {ASK})");
    let run = bench.start(&body(&flow), "null").await;
    let events = heard(&bench, run).await;
    let pieces = of(&events, "model.delta");
    let texts: String = pieces
        .iter()
        .filter_map(|it| it.data.to_value()["delta"]["delta"].as_str().map(str::to_owned))
        .collect();
    assert_eq!(texts, "one two three");
    let first = pieces[0].data.to_value();
    assert_eq!((&first["agent"], &first["attempt"]), (&"w".into(), &1.into()), "{first}");
    let numbers: Vec<u32> = events.iter().filter_map(|event| event.seq).collect();
    assert!(numbers.iter().zip(1..).all(|(seq, n)| *seq == n), "{numbers:?}");
    let stored = bench.store.all_entries(run.num(), 0).unwrap();
    assert_eq!(stored.len(), numbers.len());
}

/// A model that says a word, waits, and says the rest.
struct Halting(Arc<tokio::sync::Semaphore>);

#[async_trait::async_trait]
impl crate::operator::Backend for Halting {
    fn kind(&self) -> &'static str {
        "halting"
    }

    fn residence(&self) -> crate::operator::Residence {
        crate::operator::Residence::Host
    }

    async fn execute(
        &self,
        task: Arc<crate::operator::Task>,
        _: Json,
    ) -> Result<crate::operator::Reply, crate::protocol::Failure> {
        let say = |words: &str| {
            let (item, part, delta) = (0, 0, words.to_owned());
            task.reporter.delta(crate::protocol::ModelDelta::Text { item, part, delta });
        };
        say("one ");
        say("two ");
        // Said, and delivered: who waits for this knows that there is something to hear.
        task.reporter.delivered(crate::operator::Delivery { worker: "it".into() });
        self.0.acquire().await.unwrap().forget();
        say("three");
        Ok(crate::operator::Reply::Done(crate::middleware::TaskDone::new(Json::null())))
    }
}

#[tokio::test]
async fn who_comes_in_the_middle_hears_what_was_said_once_and_then_the_rest() {
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let code = Coded::default().and("halting", Halting(Arc::clone(&gate)));
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let bench = Bench::open_coded(dir, Clock::manual(1_700_000_000_000), &code);
    let body = "agents = { w = { operator = \"halting\" } }, flow = function(ctx) return ctx:run(\"w\") end";
    let run = bench.start(body, "null").await;
    let delivered = |view: &RunView| {
        let _ = view;
        bench.count(run, |fact| matches!(fact, Fact::AttemptDelivered { .. })) == 1
    };
    bench.until(run, "its delivery", delivered).await;

    let piece = |event: &EventView| {
        let data = event.data.to_value();
        (
            data["n"].as_u64(),
            data["first"].as_u64(),
            data["delta"]["delta"].as_str().map(str::to_owned),
        )
    };
    let mut heard = Vec::new();
    for _ in 0..2 {
        let mut events = bench.engine.events(&bench.admin(), run, 0).await.unwrap();
        loop {
            let event = events.next().await.unwrap().expect("a piece");
            if event.kind == "model.delta" {
                assert_eq!(piece(&event), (Some(1), Some(0), Some("one two ".to_owned())));
                break;
            }
        }
        heard.push(events);
    }
    gate.add_permits(1);
    for mut events in heard {
        let mut rest = Vec::new();
        while let Some(event) = events.next().await.unwrap() {
            rest.extend((event.kind == "model.delta").then(|| piece(&event)));
        }
        assert_eq!(rest, [(Some(2), None, Some("three".to_owned()))]);
    }
}

#[tokio::test]
async fn a_function_hears_them_in_a_copy_of_the_flow_and_the_flow_is_the_same_without() {
    let bench = Bench::new();
    let flow = format!(
        "local n, said = 0, {{}}
         ctx:run(\"w\", {ASK}, {{ on_delta = function(piece)
           n += 1
           said[n] = piece.type
           if piece.type == \"text\" then
             ctx:publish(\"piece\", {{ n = n, text = piece.delta, agent = piece.agent }})
           end
         end }})
         return {{ n = n, said = #said }}"
    );
    let run = bench.start(&body(&flow), "null").await;
    let events = heard(&bench, run).await;
    let said: Vec<_> =
        of(&events, "event").iter().map(|it| it.data.to_value()["data"].clone()).collect();
    let text: String = said.iter().filter_map(|it| it["text"].as_str()).collect();
    assert_eq!(text, "one two three", "{said:?}");
    assert!(said[0]["n"].as_u64() >= Some(2) && said[0]["agent"] == "w", "{said:?}");
    let output = bench.ended(run).await.output.unwrap().to_value();
    assert_eq!(output, serde_json::json!({ "n": 0, "said": 0 }));
    let replayed = bench.engine.histories().replay(&bench.admin(), run, None).await.unwrap();
    assert_eq!(replayed.divergence, None);
}

#[tokio::test]
async fn a_function_that_asks_for_more_or_fails_hears_no_more_and_the_run_goes_on() {
    for (does, why) in [
        ("ctx:sleep(1)", "can only say things"),
        ("error(\"oops\")", "oops"),
        ("while true do end", "100 ms"),
    ] {
        let bench = Bench::new();
        let flow = format!(
            "ctx:run(\"w\", {ASK}, {{ on_delta = function() {does} end }}) return \"done\""
        );
        let run = bench.start(&body(&flow), "null").await;
        let events = heard(&bench, run).await;
        let warned = of(&events, "log");
        assert_eq!(warned.len(), 1, "{does}: {events:#?}");
        let message = warned[0].data.to_value()["message"].as_str().unwrap().to_owned();
        assert!(message.contains(why), "{does}: {message}");
        let view = bench.ended(run).await;
        assert_eq!(view.status, RunStatus::Completed, "{:?}", view.error);
    }
}

#[tokio::test]
async fn what_is_no_function_cannot_hear() {
    let bench = Bench::new();
    let flow = "return ctx:run(\"w\", nil, { on_delta = 7 })";
    let run = bench.start(&body(flow), "null").await;
    go(&bench, run).await;
    let error = bench.ended(run).await.error.unwrap();
    assert!(error.message.contains("opts.on_delta must be a function, not number"), "{error:?}");
}
