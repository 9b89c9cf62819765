use std::sync::Mutex;

use serde_json::json;

use super::*;

fn say(text: &str) -> Message {
    Message::new(Role::User, Content::text(text))
}

fn texts(messages: &[Message]) -> Vec<String> {
    messages.iter().map(Message::text_content).collect()
}

fn context(texts: &[&str]) -> Context {
    let mut context = Context::new(OperatorId::from("o"));
    for text in texts {
        context.push(say(text)).unwrap();
    }
    context
}

/// Rejects everything, and records each call.
#[derive(Default)]
struct Refuses(Mutex<Vec<String>>);

impl Refuses {
    fn no(&self, what: String) -> WatcherVerdict {
        self.0.lock().unwrap().push(what);
        WatcherVerdict::Reject { reason: "no".into() }
    }
}

impl ContextWatcher for Refuses {
    fn on_inject(&self, msg: &dyn fmt::Debug, _: Position) -> WatcherVerdict {
        self.no(format!("inject {}", format!("{msg:?}").len() > 5))
    }

    fn on_remove(&self, count: usize) -> WatcherVerdict {
        self.no(format!("remove {count}"))
    }

    fn on_pre_compact(&self, count: usize) -> WatcherVerdict {
        self.no(format!("compact {count}"))
    }

    fn on_post_compact(&self, removed: usize, remaining: usize) {
        self.0.lock().unwrap().push(format!("compacted {removed} {remaining}"));
    }
}

#[test]
fn messages_go_where_they_are_put() {
    let mut context = context(&["b"]);
    context.insert(say("a"), Position::Front).unwrap();
    context.insert(say("c"), Position::At(2)).unwrap();
    assert_eq!(texts(context.messages()), ["a", "b", "c"]);
    let error = context.insert(say("x"), Position::At(4)).unwrap_err();
    assert_eq!(error.to_string(), "index 4 is out of bounds (len = 3)");
    assert_eq!(context.len(), 3);
}

#[test]
fn a_refusal_changes_nothing_and_the_first_one_stands() {
    let mut context = context(&["a"]);
    let watcher = Arc::new(Refuses::default());
    let second = Arc::new(Refuses::default());
    context.add_watcher(Arc::clone(&watcher) as Arc<dyn ContextWatcher>);
    context.add_watcher(Arc::clone(&second) as Arc<dyn ContextWatcher>);
    let error = context.push(say("b")).unwrap_err();
    assert_eq!(error.to_string(), "rejected by watcher: no");
    assert_eq!((context.len(), watcher.0.lock().unwrap().len()), (1, 1));
    assert!(second.0.lock().unwrap().is_empty());
}

#[test]
fn compaction_keeps_what_it_says() {
    let mut last = context(&["a", "b", "c"]);
    assert_eq!(texts(&last.compact_truncate(1)), ["a", "b"]);
    assert_eq!(texts(&last.compact_truncate(5)), [""; 0]);
    let mut pinned = context(&["a"]);
    pinned.push(Message::pinned(Role::System, Content::text("p"))).unwrap();
    assert_eq!(texts(&pinned.compact_by_policy()), ["a"]);
    assert_eq!(texts(pinned.messages()), ["p"]);
    assert!(pinned.snapshot().has_system);
    let mut own = context(&["a", "b"]);
    assert_eq!(texts(&own.compact_with(|all| all[1..].to_vec())), ["a", "b"]);
    assert_eq!(texts(own.messages()), ["b"]);
}

#[test]
fn watchers_hear_of_a_compaction_before_and_after() {
    let mut context = context(&["a", "b"]);
    let watcher = Arc::new(Refuses::default());
    context.add_watcher(Arc::clone(&watcher) as Arc<dyn ContextWatcher>);
    context.compact_truncate(0);
    assert_eq!(*watcher.0.lock().unwrap(), ["compact 2", "compacted 2 0"]);
}

#[test]
fn tokens_are_guessed_from_text_and_pictures() {
    let image = ContentBlock::Image {
        source: crate::protocol::ImageSource::Url { url: "u".into() },
        media_type: "image/png".into(),
    };
    let result = ContentBlock::ToolResult {
        tool_use_id: "1".into(),
        content: "12345678".into(),
        is_error: false,
    };
    let message = Message::new(Role::User, Content::Blocks(vec![image, result]));
    assert_eq!(message.estimated_tokens(), 1_000 + 2 + 4);
    assert_eq!(message.text_content(), "12345678");
    assert_eq!(say("12345678").estimated_tokens(), 6);
}

fn own(texts: &[&'static str]) -> OperatorContext<&'static str> {
    let mut context = OperatorContext::new(OperatorId::from("o"));
    for text in texts {
        let message = ContextMessage { message: *text, meta: MessageMeta::default() };
        context.inject(message, Position::Back).unwrap();
    }
    context
}

fn shown(messages: &[ContextMessage<&'static str>]) -> Vec<&'static str> {
    messages.iter().map(|it| it.message).collect()
}

#[test]
fn an_own_history_loses_what_is_taken_away() {
    let mut context = own(&["a", "b", "c", "d", "e"]);
    assert_eq!(shown(&context.truncate_back(1).unwrap()), ["e"]);
    assert_eq!(shown(&context.truncate_front(1).unwrap()), ["a"]);
    assert_eq!(shown(&context.remove_where(|it| it.message == "c").unwrap()), ["c"]);
    assert_eq!(shown(context.messages()), ["b", "d"]);
    let error = context.truncate_back(3).unwrap_err();
    assert_eq!(error, ContextError::OutOfBounds { index: 3, len: 2 });
    assert_eq!(context.extract(|it| it.message == "d").len(), 1);
    assert_eq!(shown(&context.replace_messages(Vec::new()).unwrap()), ["b", "d"]);
}

#[test]
fn an_own_history_asks_before_anything_goes() {
    let mut context = own(&["a", "b"]);
    context.add_watcher(Arc::new(Refuses::default()));
    assert!(context.truncate_back(1).is_err());
    assert!(context.truncate_front(1).is_err());
    assert!(context.remove_where(|_| true).is_err());
    assert!(context.replace_messages(Vec::new()).is_err());
    assert!(context.truncate_back(0).is_ok(), "nothing goes, so nobody is asked");
    assert_eq!(context.len(), 2);
}

#[test]
fn a_change_of_every_message_counts_their_versions() {
    let mut context = own(&["a"]);
    context.set_system("be brief");
    context.transform(|it| it.message = "z");
    let snapshot = context.snapshot();
    assert_eq!((snapshot.message_metas[0].version, snapshot.has_system), (1, true));
    assert_eq!(snapshot.estimated_tokens, ("be brief".len() + "\"z\"".len()) / 4);
    context.clear_system();
    assert_eq!(context.system(), None);
}

#[test]
fn a_message_is_plain_data() {
    let tool = Role::Tool { name: "ls".into(), call_id: "1".into() };
    let meta = MessageMeta::default().set_source("tool:ls").set_salience(0.5);
    let message = Message { meta, ..Message::new(tool, Content::text("x")) };
    let wire = json!({"role": {"tool": {"name": "ls", "call_id": "1"}}, "content": "x",
        "meta": {"policy": "normal", "source": "tool:ls", "salience": 0.5, "version": 0}});
    assert_eq!(serde_json::to_value(&message).unwrap(), wire);
    assert_eq!(serde_json::from_value::<Message>(wire).unwrap(), message);
}
