//! Resolves the names of a Luau source: the globals, the calls of `ctx`, and the results of
//! functions.
//!
//! The tokens of a source that the compiler has accepted are read by descent, with a limit of depth.
//! Unknown syntax ends the reading without a finding, so that newer syntax is never a mistake.

use std::collections::{BTreeSet, HashMap};

use super::tokens::{Kind, Token};

mod expressions;

/// The maximum nesting of blocks and expressions.
const DEEPEST: usize = 150;

/// The findings of one source.
#[derive(Debug, Default)]
pub(super) struct Names<'s> {
    /// Globals that are read, by the place of their token.
    pub globals: Vec<Global<'s>>,
    /// Globals that are written.
    pub assigned: BTreeSet<&'s str>,
    /// Every local name, wherever it holds.
    pub locals: BTreeSet<&'s str>,
    /// Calls of methods of `ctx` and `ctx.state`.
    pub calls: Vec<Call<'s>>,
    /// The return values of functions, by the offset of the word `function`.
    pub functions: HashMap<usize, Returns>,
}

/// A use of a global.
#[derive(Debug)]
pub(super) struct Global<'s> {
    pub name: &'s str,
    pub at: usize,
    /// True if it is called or indexed, which fails where there is no such global.
    pub needed: bool,
}

/// A call of a method.
#[derive(Debug)]
pub(super) struct Call<'s> {
    /// `ctx` or `ctx.state`.
    pub of: &'static str,
    pub method: &'s str,
    pub at: usize,
    pub arguments: Vec<Value<'s>>,
}

/// The value of an expression, as far as it is written out, and where it begins.
#[derive(Debug)]
pub(super) struct Value<'s> {
    pub at: usize,
    pub is: Shape<'s>,
}

/// The notation of a value.
#[derive(Debug)]
pub(super) enum Shape<'s> {
    Text,
    Number,
    Boolean,
    Nil,
    Function,
    /// A table: its named entries, each with the place of its name, and whether these are all.
    Table(Vec<(&'s str, usize, Value<'s>)>, bool),
    /// Any number of values: a call, or `...`.
    Many,
    Other,
}

/// The return values of a function.
#[derive(Debug, Default)]
pub(super) struct Returns {
    /// True if some `return` has a value.
    pub some: bool,
    /// The offset of a second value of a `return`.
    pub second: Option<usize>,
}

/// Reads the names of a source; `None` if something in it is not known here.
pub(super) fn names<'s>(tokens: &[Token<'s>]) -> Option<Names<'s>> {
    let mut reader = NameReader {
        tokens,
        at: 0,
        depth: 0,
        scope: Vec::new(),
        held: HashMap::new(),
        returns: vec![Returns::default()],
        out: Names::default(),
    };
    reader.block()?;
    (reader.at == tokens.len()).then_some(reader.out)
}

/// The operand before an operator or an assignment.
enum Operand<'s> {
    Name(&'s str, usize),
    Call,
    Other,
}

struct NameReader<'t, 's> {
    tokens: &'t [Token<'s>],
    at: usize,
    depth: usize,
    /// The locals that hold, in the order of their declarations, and how often each name is there.
    scope: Vec<&'s str>,
    held: HashMap<&'s str, usize>,
    returns: Vec<Returns>,
    out: Names<'s>,
}

const KEYWORDS: [&str; 21] = [
    "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in", "local",
    "nil", "not", "or", "repeat", "return", "then", "true", "until", "while",
];

impl<'s> NameReader<'_, 's> {
    fn kind(&self, ahead: usize) -> Option<&Kind<'s>> {
        self.tokens.get(self.at + ahead).map(|token| &token.kind)
    }

    fn symbol(&self, ahead: usize) -> Option<&'s str> {
        match self.kind(ahead)? {
            Kind::Symbol(symbol) => Some(symbol),
            _ => None,
        }
    }

    fn word(&self, ahead: usize) -> Option<&'s str> {
        match self.kind(ahead)? {
            Kind::Name(word) => Some(word),
            _ => None,
        }
    }

    fn takes(&mut self, symbol: &str) -> bool {
        let is = self.symbol(0) == Some(symbol);
        self.at += usize::from(is);
        is
    }

    fn expect(&mut self, symbol: &str) -> Option<()> {
        self.takes(symbol).then_some(())
    }

    fn expect_word(&mut self, word: &str) -> Option<()> {
        (self.word(0) == Some(word)).then(|| self.at += 1)
    }

    fn name(&mut self) -> Option<&'s str> {
        let name = self.word(0).filter(|word| !KEYWORDS.contains(word))?;
        self.at += 1;
        Some(name)
    }

    fn declare(&mut self, name: &'s str) {
        self.out.locals.insert(name);
        self.scope.push(name);
        *self.held.entry(name).or_default() += 1;
    }

    fn leave(&mut self, outer: usize) {
        for name in self.scope.drain(outer..) {
            if let Some(count) = self.held.get_mut(name) {
                *count -= 1;
            }
        }
    }

    fn holds(&self, name: &str) -> bool {
        self.held.get(name).is_some_and(|count| *count > 0)
    }

    fn read(&mut self, name: &'s str, at: usize, needed: bool) {
        if !self.holds(name) {
            self.out.globals.push(Global { name, at, needed });
        }
    }

    fn deeper<T>(&mut self, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        self.depth += 1;
        let found = if self.depth > DEEPEST { None } else { read(self) };
        self.depth -= 1;
        found
    }

    /// Statements up to the end of their block, with a scope of their own.
    fn block(&mut self) -> Option<()> {
        let outer = self.scope.len();
        self.deeper(Self::statements)?;
        self.leave(outer);
        Some(())
    }

    fn statements(&mut self) -> Option<()> {
        while self.at < self.tokens.len() {
            match self.word(0) {
                Some("end" | "else" | "elseif" | "until") => break,
                Some("local") => self.local()?,
                Some("function") => self.function()?,
                Some("if") => self.branches()?,
                Some("while") => {
                    self.at += 1;
                    self.expression()?;
                    self.body()?;
                }
                Some("for") => self.repetition()?,
                Some("do") => self.body()?,
                Some("repeat") => {
                    self.at += 1;
                    let outer = self.scope.len();
                    self.deeper(Self::statements)?;
                    self.expect_word("until")?;
                    self.expression()?;
                    self.leave(outer);
                }
                Some("return") => self.results()?,
                Some("break") => self.at += 1,
                Some("continue") if !self.goes_on(1) => self.at += 1,
                Some("type") if self.word(1).is_some() => self.alias()?,
                Some("export") if self.word(1) == Some("type") => {
                    self.at += 1;
                    self.alias()?;
                }
                _ if self.takes(";") => {}
                _ if self.takes("@") => {
                    self.name()?;
                }
                _ => self.assignment_or_call()?,
            }
        }
        Some(())
    }

    /// Returns true if what comes makes an expression of a word that could stand alone.
    fn goes_on(&self, ahead: usize) -> bool {
        let symbol = self.symbol(ahead);
        matches!(symbol, Some("=" | "." | "(" | "[" | ":" | "{" | "," | "+" | "-" | ".."))
            || matches!(self.kind(ahead), Some(Kind::Text { .. }))
    }

    /// `do … end`.
    fn body(&mut self) -> Option<()> {
        self.expect_word("do")?;
        self.block()?;
        self.expect_word("end")
    }

    fn local(&mut self) -> Option<()> {
        self.at += 1;
        if self.word(0) == Some("function") {
            let at = self.at;
            self.at += 1;
            let name = self.name()?;
            self.declare(name);
            return self.function_body(at, false);
        }
        let mut names = vec![self.declared()?];
        while self.takes(",") {
            names.push(self.declared()?);
        }
        if self.takes("=") {
            self.expressions()?;
        }
        for name in names {
            self.declare(name);
        }
        Some(())
    }

    /// A name with a type or without.
    fn declared(&mut self) -> Option<&'s str> {
        let name = self.name()?;
        if self.takes("<") {
            self.name()?;
            self.expect(">")?;
        }
        if self.takes(":") {
            self.a_type()?;
        }
        Some(name)
    }

    fn function(&mut self) -> Option<()> {
        let at = self.at;
        self.at += 1;
        let (start, name) = (self.at, self.name()?);
        let (mut field, mut method) = (false, false);
        while !method && (self.takes(".") || self.symbol(0) == Some(":")) {
            method = self.takes(":");
            self.name()?;
            field = true;
        }
        if field {
            self.read(name, start, true);
        } else if !self.holds(name) {
            self.out.assigned.insert(name);
        }
        self.function_body(at, method)
    }

    fn function_body(&mut self, at: usize, method: bool) -> Option<()> {
        if self.symbol(0) == Some("<") {
            self.angles()?;
        }
        let outer = self.scope.len();
        if method {
            self.declare("self");
        }
        self.expect("(")?;
        while !self.takes(")") {
            if self.takes("...") {
                if self.takes(":") {
                    self.a_type()?;
                }
            } else {
                let name = self.declared()?;
                self.declare(name);
            }
            if !self.takes(",") {
                self.expect(")")?;
                break;
            }
        }
        if self.takes(":") {
            self.a_type()?;
        }
        self.returns.push(Returns::default());
        self.block()?;
        let returns = self.returns.pop()?;
        self.out.functions.insert(at, returns);
        self.expect_word("end")?;
        self.leave(outer);
        Some(())
    }

    fn branches(&mut self) -> Option<()> {
        self.at += 1;
        loop {
            self.expression()?;
            self.expect_word("then")?;
            self.block()?;
            match self.word(0)? {
                "elseif" => self.at += 1,
                "else" => {
                    self.at += 1;
                    self.block()?;
                    return self.expect_word("end");
                }
                _ => return self.expect_word("end"),
            }
        }
    }

    fn repetition(&mut self) -> Option<()> {
        self.at += 1;
        let mut names = vec![self.declared()?];
        while self.takes(",") {
            names.push(self.declared()?);
        }
        if !self.takes("=") {
            self.expect_word("in")?;
        }
        self.expressions()?;
        let outer = self.scope.len();
        for name in names {
            self.declare(name);
        }
        self.body()?;
        self.leave(outer);
        Some(())
    }

    fn results(&mut self) -> Option<()> {
        self.at += 1;
        let ends = match self.kind(0) {
            None | Some(Kind::Symbol(";")) => true,
            Some(Kind::Name(word)) => matches!(*word, "end" | "else" | "elseif" | "until"),
            Some(_) => false,
        };
        if !ends {
            let values = self.expressions()?;
            let returns = self.returns.last_mut()?;
            returns.some = true;
            returns.second = returns.second.or(values.get(1).map(|value| value.at));
        }
        self.takes(";");
        Some(())
    }

    /// `type Name<…> = …`.
    fn alias(&mut self) -> Option<()> {
        self.at += 1;
        if self.word(0) == Some("function") {
            return None;
        }
        self.name()?;
        if self.symbol(0) == Some("<") {
            self.angles()?;
        }
        self.expect("=")?;
        self.a_type()
    }

    fn assignment_or_call(&mut self) -> Option<()> {
        let mut operand = self.suffixed()?;
        loop {
            if let Operand::Name(name, at) = operand {
                match self.symbol(0) {
                    Some("=" | ",") if !self.holds(name) => {
                        self.out.assigned.insert(name);
                    }
                    _ => self.read(name, at, false),
                }
            }
            if !self.takes(",") {
                break;
            }
            operand = self.suffixed()?;
        }
        if self.takes("=") {
            return self.expressions().map(drop);
        }
        if matches!(operand, Operand::Call) {
            return Some(());
        }
        // `+=` and its like.
        let operator = self.symbol(0).filter(|it| ARITHMETIC.contains(it))?;
        self.at += 1;
        if operator == "/" {
            self.takes("/");
        }
        self.expect("=")?;
        self.expression().map(drop)
    }
}

const ARITHMETIC: [&str; 7] = ["+", "-", "*", "/", "%", "^", ".."];
const COMPARING: [&str; 6] = ["==", "~=", "<", "<=", ">", ">="];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::blueprint::tokens::tokens;

    fn globals(source: &str) -> Vec<String> {
        let tokens = tokens(source);
        let names = names(&tokens).unwrap_or_else(|| panic!("gave up: {source}"));
        names.globals.iter().map(|it| it.name.to_owned()).collect()
    }

    #[test]
    fn a_name_that_no_scope_holds_is_a_global() {
        for (source, expected) in [
            ("local a = b local b = a", vec!["b"]),
            ("local a = 1 do local c = a end return c", vec!["c"]),
            ("local function f(x, ...) return f(x, y, ...) end", vec!["y"]),
            (
                "for i, v in pairs(t) do print(i, v) end print(i)",
                vec!["pairs", "t", "print", "print", "i"],
            ),
            ("for i = 1, n do local _ = i end", vec!["n"]),
            ("repeat local ok = f() until ok", vec!["f"]),
            ("function g.m:n(a) return self, a end", vec!["g"]),
            ("x, y = 1, x", vec!["x"]),
            ("n += 1", vec!["n"]),
            ("return { a = b, [c] = d, e }", vec!["b", "c", "d", "e"]),
            ("return `a {b} c {`{d}`}`", vec!["b", "d"]),
            ("return if a then b elseif c then d else e", vec!["a", "b", "c", "d", "e"]),
            (
                "local t: { [string]: number? } = {} type X<T> = (T) -> ...T return (t :: any).x",
                vec![],
            ),
            ("local function f<T>(a: T, b: typeof(1)?): (T, string) return a end", vec![]),
            ("return 1.5e-3 + .5 + 0xFF + 1e3 .. 'x'", vec![]),
            ("local x = a // b x //= 2 x ..= 'y'", vec!["a", "b"]),
            ("while true do if a then break elseif b then continue end end", vec!["a", "b"]),
            ("f { x = 1 } g 'y' h [[z]] i:j(k).l.m[n]()", vec!["f", "g", "h", "i", "k", "n"]),
        ] {
            assert_eq!(globals(source), expected, "{source}");
        }
    }

    #[test]
    fn what_is_written_is_known_everywhere() {
        let tokens = tokens("function helper() end count = 1 a.b = 2");
        let names = names(&tokens).unwrap();
        assert_eq!(names.assigned.into_iter().collect::<Vec<_>>(), ["count", "helper"]);
        assert_eq!(names.globals.len(), 1);
    }

    #[test]
    fn calls_of_ctx_come_with_their_arguments() {
        let tokens = tokens(
            "ctx:run('e', {}, { timout = '5s', retry = { a = 1 } }) ctx.state:get(x) y.ctx:run() ctx:run 'e'",
        );
        let names = names(&tokens).unwrap();
        let found: Vec<_> =
            names.calls.iter().map(|it| (it.of, it.method, it.arguments.len())).collect();
        assert_eq!(found, [("ctx", "run", 3), ("ctx.state", "get", 1), ("ctx", "run", 1)]);
        let Shape::Table(entries, true) = &names.calls[0].arguments[2].is else {
            panic!("a table")
        };
        assert_eq!(entries[0].0, "timout");
    }

    #[test]
    fn what_functions_return_is_counted_for_each() {
        let source = "local f = function() local g = function() return 1, 2 end g() end";
        let tokens = tokens(source);
        let functions = names(&tokens).unwrap().functions;
        let mut all: Vec<_> = functions.into_iter().collect();
        all.sort_by_key(|(at, _)| *at);
        assert!(!all[0].1.some && all[1].1.some && all[1].1.second.is_some());
    }

    #[test]
    fn a_file_full_of_locals_is_read_in_no_time() {
        let mut source = String::new();
        for n in 0..60_000 {
            source.push_str(&format!("local a{n} = b{n}\n"));
        }
        let tokens = tokens(&source);
        assert_eq!(names(&tokens).unwrap().globals.len(), 60_000);
    }

    #[test]
    fn what_is_not_known_is_given_up() {
        for source in
            ["local", "a b", "return )", "f<<T>>()", &"(".repeat(100_000), &"do ".repeat(9_000)]
        {
            assert!(names(&tokens(source)).is_none(), "{}", &source[..source.len().min(20)]);
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in "(local|function|if|then|end|ctx|:|\\(|\\)|\\{|\\}|=|,|a|1|\\.|'x'|`|<|>| |\n){0,80}") {
            let found = tokens(&text);
            let _ = names(&found);
        }
    }
}
