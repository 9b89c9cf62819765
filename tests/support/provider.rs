//! A model provider that a test writes: a small HTTP server that speaks the three wire formats, and
//! stalls, cuts and lies where it is told to.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use serde_json::{Value, json};

/// What the provider was asked.
#[derive(Debug, Clone)]
pub struct Asked {
    /// `/v1/chat/completions`, `/v1/responses`, `/v1/messages`.
    pub path: String,
    /// The head, in small letters.
    pub head: String,
    /// The body.
    pub body: Value,
}

/// What it answers.
pub struct Answer {
    status: &'static str,
    headers: String,
    bits: Vec<Bit>,
}

/// A bit of an answer.
pub enum Bit {
    /// These bytes.
    Send(Vec<u8>),
    /// Nothing, until the gate is opened.
    Wait(Gate),
    /// Nothing, until the other side has gone; then the gate is opened.
    Stall(Gate),
    /// The end of the connection, in the middle.
    Cut,
    /// These bytes again and again, until the other side has gone.
    Flood(Vec<u8>),
}

/// Something to wait for.
#[derive(Clone, Default)]
pub struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    pub fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }

    pub fn pass(&self) {
        let open = self.0.0.lock().unwrap();
        drop(self.0.1.wait_while(open, |open| !*open).unwrap());
    }
}

/// What a model says at a time.
#[derive(Debug, Clone, Default)]
pub struct Turn {
    pub reasoning: &'static str,
    pub text: &'static str,
    /// (id, name, arguments)
    pub calls: Vec<(&'static str, &'static str, &'static str)>,
}

impl Turn {
    pub fn text(text: &'static str) -> Self {
        Self { text, ..Self::default() }
    }

    pub fn calls(calls: &[(&'static str, &'static str, &'static str)]) -> Self {
        Self { calls: calls.to_vec(), ..Self::default() }
    }

    /// The events of an answer, as the API of `path` sends them. It reads 100 tokens, 40 of them
    /// from a cache, and writes 20, 5 of them reasoning.
    pub fn events(&self, path: &str) -> Vec<String> {
        let anthropic = path.ends_with("/messages");
        let events = if anthropic {
            self.anthropic()
        } else if path.ends_with("/responses") {
            self.responses()
        } else {
            self.chat()
        };
        let mut texts: Vec<String> = events
            .iter()
            .map(|event| match event["type"].as_str() {
                Some(kind) => format!("event: {kind}\ndata: {event}\n\n"),
                None => format!("data: {event}\n\n"),
            })
            .collect();
        if !anthropic {
            texts.push("data: [DONE]\n\n".to_owned());
        }
        texts
    }

    fn chat(&self) -> Vec<Value> {
        let chunk = |delta: Value, reason: Option<&str>| {
            json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "mock-1",
                "choices": [{"index": 0, "delta": delta, "finish_reason": reason}], "usage": null})
        };
        let mut events = vec![chunk(json!({"role": "assistant", "content": ""}), None)];
        events
            .extend(words(self.reasoning).map(|it| chunk(json!({"reasoning_content": it}), None)));
        events.extend(words(self.text).map(|it| chunk(json!({"content": it}), None)));
        for (index, (id, name, arguments)) in self.calls.iter().enumerate() {
            let call = json!({"index": index, "id": id, "type": "function",
                "function": {"name": name, "arguments": ""}});
            events.push(chunk(json!({"tool_calls": [call]}), None));
            events.extend(words(arguments).map(|it| {
                let call = json!({"index": index, "function": {"arguments": it}});
                chunk(json!({"tool_calls": [call]}), None)
            }));
        }
        let reason = if self.calls.is_empty() { "stop" } else { "tool_calls" };
        events.push(chunk(json!({}), Some(reason)));
        events.push(
            json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "mock-1",
            "choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": 20,
                "total_tokens": 120, "prompt_tokens_details": {"cached_tokens": 40},
                "completion_tokens_details": {"reasoning_tokens": 5}}}),
        );
        events
    }

    fn responses(&self) -> Vec<Value> {
        let mut events = vec![
            json!({"type": "response.created", "response": {"id": "resp_1", "status": "in_progress"}}),
            json!({"type": "response.in_progress", "response": {"id": "resp_1"}}),
        ];
        let mut output = Vec::new();
        let mut item = |begins: Value, kind: &str, text: &str, whole: Value| {
            let index = output.len();
            events.push(json!({"type": "response.output_item.added", "output_index": index,
                "item": begins}));
            events.extend(words(text).map(|it| {
                json!({"type": format!("response.{kind}.delta"), "output_index": index,
                    "item_id": whole["id"], "content_index": 0, "delta": it})
            }));
            events.push(json!({"type": format!("response.{kind}.done"), "output_index": index}));
            events.push(json!({"type": "response.output_item.done", "output_index": index,
                "item": whole}));
            output.push(whole);
        };
        if !self.reasoning.is_empty() {
            let whole = json!({"type": "reasoning", "id": "rs_1", "summary": [],
                "content": [{"type": "reasoning_text", "text": self.reasoning}],
                "encrypted_content": "sealed=="});
            let begins = json!({"type": "reasoning", "id": "rs_1", "summary": []});
            item(begins, "reasoning_text", self.reasoning, whole);
        }
        if !self.text.is_empty() {
            let message = |content: Value| {
                json!({"type": "message", "id": "msg_1", "status": "completed",
                    "role": "assistant", "content": content})
            };
            let part = json!([{"type": "output_text", "text": self.text, "annotations": [],
                "logprobs": []}]);
            item(message(json!([])), "output_text", self.text, message(part));
        }
        for (id, name, arguments) in &self.calls {
            let call = |arguments: &str| {
                json!({"type": "function_call", "id": format!("fc_{id}"), "call_id": id,
                    "name": name, "arguments": arguments, "status": "completed"})
            };
            item(call(""), "function_call_arguments", arguments, call(arguments));
        }
        let response = json!({"id": "resp_1", "model": "mock-1", "status": "completed",
            "output": output, "error": null, "incomplete_details": null,
            "usage": {"input_tokens": 100, "input_tokens_details": {"cached_tokens": 40},
                "output_tokens": 20, "output_tokens_details": {"reasoning_tokens": 5},
                "total_tokens": 120}});
        events.push(json!({"type": "response.completed", "response": response}));
        events
    }

    fn anthropic(&self) -> Vec<Value> {
        let mut events = vec![json!({"type": "message_start", "message": {"id": "msg_1",
            "type": "message", "role": "assistant", "model": "mock-1", "content": [],
            "usage": {"input_tokens": 60, "cache_read_input_tokens": 40,
                "cache_creation_input_tokens": 0, "output_tokens": 1}}})];
        let mut index = 0;
        let mut block = |begins: Value, pieces: Vec<Value>| {
            events.push(json!({"type": "content_block_start", "index": index,
                "content_block": begins}));
            events.extend(pieces.into_iter().map(
                |piece| json!({"type": "content_block_delta", "index": index, "delta": piece}),
            ));
            events.push(json!({"type": "content_block_stop", "index": index}));
            index += 1;
        };
        if !self.reasoning.is_empty() {
            let piece = |it| json!({"type": "thinking_delta", "thinking": it});
            let mut pieces: Vec<Value> = words(self.reasoning).map(piece).collect();
            pieces.push(json!({"type": "signature_delta", "signature": "signed=="}));
            block(json!({"type": "thinking", "thinking": "", "signature": ""}), pieces);
        }
        if !self.text.is_empty() {
            let piece = |it| json!({"type": "text_delta", "text": it});
            block(json!({"type": "text", "text": ""}), words(self.text).map(piece).collect());
        }
        for (id, name, arguments) in &self.calls {
            let piece = |it| json!({"type": "input_json_delta", "partial_json": it});
            let begins = json!({"type": "tool_use", "id": id, "name": name, "input": {}});
            block(begins, words(arguments).map(piece).collect());
        }
        let reason = if self.calls.is_empty() { "end_turn" } else { "tool_use" };
        events.push(json!({"type": "message_delta", "delta": {"stop_reason": reason},
            "usage": {"output_tokens": 20}}));
        events.push(json!({"type": "message_stop"}));
        events
    }
}

/// A text word by word.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split_inclusive(' ')
}

impl Answer {
    /// A stream of these bits.
    pub fn stream(bits: Vec<Bit>) -> Self {
        Self { status: "200 OK", headers: "content-type: text/event-stream\r\n".into(), bits }
    }

    /// A stream of what a model says, as the API of `path` sends it.
    pub fn turn(turn: &Turn, path: &str) -> Self {
        Self::stream(turn.events(path).into_iter().map(|it| Bit::Send(it.into_bytes())).collect())
    }

    /// A whole document.
    pub fn document(status: &'static str, headers: &str, body: &str) -> Self {
        let headers = format!("content-type: application/json\r\n{headers}");
        Self { status, headers, bits: vec![Bit::Send(body.as_bytes().to_vec())] }
    }
}

/// The server; dropped, it takes no more connections.
pub struct Provider {
    /// `http://127.0.0.1:PORT/v1`.
    pub base_url: String,
    address: std::net::SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
    stopped: Arc<AtomicBool>,
}

type Script = Arc<dyn Fn(usize, &Asked) -> Answer + Send + Sync>;

impl Provider {
    /// Answers each request by `script`, which is told how many came before it.
    pub fn start(script: impl Fn(usize, &Asked) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (asked, stopped) = (Arc::<Mutex<Vec<Asked>>>::default(), Arc::<AtomicBool>::default());
        let (script, heard): (Script, _) = (Arc::new(script), Arc::clone(&asked));
        let stops = Arc::clone(&stopped);
        let accepts = move || {
            for stream in listener.incoming() {
                if stops.load(Ordering::SeqCst) {
                    return;
                }
                let (script, heard) = (Arc::clone(&script), Arc::clone(&heard));
                // Whoever hangs up in the middle has heard enough.
                thread(move || {
                    let _ = serve(stream.unwrap(), &script, &heard);
                });
            }
        };
        thread(accepts);
        Self { base_url: format!("http://{address}/v1"), address, asked, stopped }
    }

    /// Answers with these turns, one after the other.
    pub fn says(turns: Vec<Turn>) -> Self {
        Self::start(move |number, asked| match turns.get(number) {
            Some(turn) => Answer::turn(turn, &asked.path),
            None => Answer::document("500 Internal Server Error", "", "{\"error\":\"no turn\"}"),
        })
    }

    /// What it was asked so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::SeqCst);
        // Lets the accepting thread look.
        drop(TcpStream::connect(self.address));
    }
}

fn thread(does: impl FnOnce() + Send + 'static) {
    std::thread::Builder::new().name("provider".to_owned()).spawn(does).unwrap();
}

fn serve(stream: TcpStream, script: &Script, heard: &Mutex<Vec<Asked>>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut stream = stream;
    loop {
        let mut head = String::new();
        while reader.read_line(&mut head).ok()? > 2 {}
        let path = head.split_whitespace().nth(1)?.to_owned();
        let head = head.to_lowercase();
        let length = head.split("content-length: ").nth(1).and_then(|it| it.lines().next());
        let mut body = vec![0; length.and_then(|it| it.parse().ok()).unwrap_or(0)];
        reader.read_exact(&mut body).ok()?;
        let body = serde_json::from_slice(&body).unwrap_or_default();
        let asked = Asked { path, head, body };
        let number = {
            let mut heard = heard.lock().unwrap();
            heard.push(asked.clone());
            heard.len() - 1
        };
        answer(&mut stream, script(number, &asked))?;
    }
}

fn answer(stream: &mut TcpStream, answer: Answer) -> Option<()> {
    let head = format!(
        "HTTP/1.1 {}\r\ntransfer-encoding: chunked\r\n{}\r\n",
        answer.status, answer.headers
    );
    stream.write_all(head.as_bytes()).ok()?;
    for bit in answer.bits {
        match bit {
            Bit::Send(bytes) => chunk(stream, &bytes)?,
            Bit::Wait(gate) => gate.pass(),
            Bit::Stall(gate) => {
                // Nothing more comes from the other side but its end.
                let _ = stream.read(&mut [0]);
                gate.open();
                return None;
            }
            Bit::Cut => return None,
            Bit::Flood(bytes) => loop {
                chunk(stream, &bytes)?;
            },
        }
    }
    stream.write_all(b"0\r\n\r\n").ok()
}

fn chunk(stream: &mut TcpStream, bytes: &[u8]) -> Option<()> {
    if bytes.is_empty() {
        return Some(());
    }
    let mut chunk = format!("{:x}\r\n", bytes.len()).into_bytes();
    chunk.extend_from_slice(bytes);
    chunk.extend_from_slice(b"\r\n");
    stream.write_all(&chunk).ok()
}
