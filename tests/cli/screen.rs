//! The program on a terminal: what stands on the screen, and what is left there.
//!
//! The terminal is a real one, made by `script`; the screen is read from what the program writes to
//! it, with the few sequences that it may use.

use std::{
    io::{Read as _, Write as _},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use crate::support::Shell;

const SLOW: &str = r#"local swarm = require("swarm")
return swarm.blueprint {
  name = "slow",
  agents = { nap = { operator = "process", command = { "sleep", "60" } } },
  flow = function(ctx)
    ctx:log("info", "the log stays above")
    ctx:status(string.rep("a long text of the flow ", 20))
    ctx:all { function() ctx:run("nap") end, function() ctx:wait("go") end }
  end,
}
"#;

/// The rows of a terminal.
struct Screen {
    width: usize,
    rows: Vec<Vec<char>>,
    row: usize,
    column: usize,
    /// A sequence that has begun.
    escape: Option<String>,
}

impl Screen {
    fn new(width: usize) -> Self {
        Self { width, rows: vec![Vec::new()], row: 0, column: 0, escape: None }
    }

    fn take(&mut self, c: char) {
        if let Some(escape) = &mut self.escape {
            escape.push(c);
            if c.is_ascii_alphabetic() {
                let escape = self.escape.take().unwrap();
                self.obey(&escape);
            }
            return;
        }
        match c {
            '\u{1b}' => self.escape = Some(String::new()),
            '\r' => self.column = 0,
            '\n' => self.down(),
            '\u{8}' => self.column = self.column.saturating_sub(1),
            '\u{7}' => {}
            c => {
                if self.column == self.width {
                    self.column = 0;
                    self.down();
                }
                let row = &mut self.rows[self.row];
                row.resize(row.len().max(self.column + 1), ' ');
                row[self.column] = c;
                self.column += 1;
            }
        }
    }

    fn down(&mut self) {
        self.row += 1;
        self.rows.resize(self.rows.len().max(self.row + 1), Vec::new());
    }

    fn obey(&mut self, escape: &str) {
        let count = escape.trim_matches(|c: char| !c.is_ascii_digit()).parse().unwrap_or(1);
        match escape.chars().last() {
            Some('A') => self.row = self.row.saturating_sub(count),
            Some('J') => {
                self.rows.truncate(self.row + 1);
                self.rows[self.row].truncate(self.column);
            }
            Some('m') => {}
            _ => panic!("the program says {escape:?} to the terminal"),
        }
    }

    fn text(&self) -> String {
        let rows = self.rows.iter().map(|row| row.iter().collect::<String>());
        rows.map(|row| row.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
    }
}

/// The program on a terminal of some width; dropped, it is killed.
struct Seat {
    child: Child,
    keys: ChildStdin,
    said: ChildStdout,
    screen: Screen,
    rest: Vec<u8>,
}

impl Seat {
    fn new(shell: &Shell, width: usize, args: &str) -> Self {
        let (program, dir) = (env!("CARGO_BIN_EXE_moonswarm"), shell.path(""));
        let line = format!("stty cols {width} rows 24; exec '{program}' {args}");
        let mut child = Command::new("script")
            .args(["-qec", &line, "/dev/null"])
            .current_dir(dir)
            .env("TERM", "xterm")
            .env("NO_COLOR", "1")
            .env("MOONSWARM_SAFE_MODE", "off")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (keys, said) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, keys, said, screen: Screen::new(width), rest: Vec::new() }
    }

    /// Reads what the program says; false at its end.
    fn read(&mut self) -> bool {
        let mut piece = [0; 4096];
        let count = self.said.read(&mut piece).unwrap();
        self.rest.extend_from_slice(&piece[..count]);
        // A character may come in two pieces.
        let whole = match std::str::from_utf8(&self.rest) {
            Ok(text) => text.len(),
            Err(error) => error.valid_up_to(),
        };
        let text: Vec<u8> = self.rest.drain(..whole).collect();
        String::from_utf8(text).unwrap().chars().for_each(|c| self.screen.take(c));
        count > 0
    }

    #[track_caller]
    fn until(&mut self, shown: impl Fn(&str) -> bool) -> String {
        loop {
            let text = self.screen.text();
            if shown(&text) {
                return text;
            }
            assert!(self.read(), "it ended:\n{text}");
        }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
        self.keys.flush().unwrap();
    }

    fn end(mut self) -> (Option<i32>, String) {
        while self.read() {}
        (self.child.wait().unwrap().code(), self.screen.text())
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        // One that has ended cannot be killed any more.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A text without what a narrow terminal breaks it at.
fn flat(text: &str) -> String {
    text.split_whitespace().collect()
}

#[test]
fn a_tree_stays_whole_at_any_width_and_nothing_of_it_is_left_after_ctrl_c() {
    for width in [80, 40, 24] {
        let shell = Shell::new();
        shell.write("slow.lua", SLOW);
        let mut seat = Seat::new(&shell, width, "run slow.lua");
        let shown = seat.until(|text| {
            let said = flat(text).contains("thelogstaysabove");
            said && text.contains("● nap") && text.contains("○ signal")
        });
        let rows: Vec<_> = shown.lines().filter(|row| !row.is_empty()).collect();
        let tree = rows.iter().position(|row| row.contains("slow r")).unwrap();
        assert_eq!(rows.len() - tree, 4, "a row each, width {width}:\n{shown}");
        assert!(rows[tree].ends_with('…') && rows[tree].chars().count() < width, "{shown}");
        // Its times go on where nothing happens.
        let now = rows[tree + 2].to_owned();
        seat.until(|text| text.contains("● nap") && (width < 40 || !text.contains(&now)));
        seat.press("\u{3}");
        seat.until(|text| flat(text).contains("moonswarmserve`:"));
        seat.press("y\n");
        let (code, text) = seat.end();
        assert_eq!(code, Some(130), "{text}");
        for stays in ["thelogstaysabove", "runcanceled"] {
            assert!(flat(&text).contains(stays), "{stays:?}, width {width}:\n{text}");
        }
        for gone in ["nap", "signal go", "slow r", "^C"] {
            assert!(!flat(&text).contains(&flat(gone)), "{gone:?} is left, width {width}:\n{text}");
        }
    }
}

#[test]
fn a_person_at_the_terminal_is_asked_below_the_tree_and_a_wrong_answer_again() {
    let shell = Shell::new();
    let ship = r#"local swarm = require("swarm")
        local s = swarm.schema
        return swarm.blueprint {
          name = "ask",
          agents = { ship = { operator = "human", output = s.object { approved = s.boolean } } },
          flow = function(ctx) return ctx:run("ship", { title = "Ship it?" }) end,
        }"#;
    shell.write("ask.lua", ship);
    let mut seat = Seat::new(&shell, 100, "run ask.lua");
    let asked = seat.until(|text| text.ends_with("ship [y/n or JSON]"));
    assert!(asked.contains("Ship it?\nwaiting for task ship (human)"), "{asked}");
    assert!(asked.contains("→ moonswarm approve task_"), "{asked}");
    seat.press("perhaps\n");
    seat.until(|text| {
        text.contains("does not match its schema") && text.ends_with("[y/n or JSON]")
    });
    seat.press("y\n");
    let (code, text) = seat.end();
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("\"approved\": true") && text.contains("completed in"), "{text}");
}

const WIDE: &str = r#"local swarm = require("swarm")
return swarm.blueprint {
  name = "wide",
  agents = { w = { operator = "lua", fn = function(input)
    if input == 13 then error("thirteen is refused") end
    return input
  end } },
  flow = function(ctx)
    local items = {}
    for n = 1, 40 do items[n] = n end
    ctx:map(items, function(n) return (ctx:try("w", n)) end)
    return "done"
  end,
}
"#;

#[test]
fn after_the_run_the_tree_stays_with_what_failed_and_nothing_is_wider_than_the_terminal() {
    let shell = Shell::new();
    shell.write("wide.lua", WIDE);
    let (code, text) = Seat::new(&shell, 80, "run wide.lua").end();
    assert_eq!(code, Some(0), "{text}");
    for part in ["40 branches · 39 completed · 1 failed", "[13] #13 ✗ w", "39 more: --all"] {
        assert!(text.contains(part), "{part}:\n{text}");
    }
    for args in ["ps", "show last", "show last --all", "logs last", "blueprints"] {
        let (code, text) = Seat::new(&shell, 80, args).end();
        assert_eq!(code, Some(0), "{args}: {text}");
        // A row that is full has gone on in the next one.
        assert!(text.lines().all(|row| row.chars().count() < 80), "{args}:\n{text}");
    }
    let (_, listed) = Seat::new(&shell, 80, "ps").end();
    let id =
        listed.lines().find_map(|row| row.split(' ').find(|it| it.starts_with("run_"))).unwrap();
    assert!(id.len() < 20, "{listed}");
    assert!(shell.run(&["show", id]).ok().stdout.contains("#13 ✗ w"), "{listed}");
}
