//! Routes whatever could make a value larger through a bounded function.
//!
//! The template engine bounds how many instructions a template runs, and not how much memory one of
//! them takes: `a ~ a` doubles, a list of lists multiplies when it is written out, and captured
//! text grows with every turn of a loop. Its operators cannot be replaced, so the source is: each
//! operator that makes a value becomes a call of a function in [`super::bounded`], and each value
//! made by a literal, a slice or a filter passes `sized__`. Nor does it count what one instruction
//! goes through: `in`, a comparison or a filter may look at a list of a million parts, in a loop.
//! So such a value passes `looked__`, or `glanced__` if only a text takes long there. Nothing is
//! added that has a line break, so lines stay what they were.

use std::collections::BTreeSet;

use minijinja::{
    Error,
    machinery::{
        Span, Token,
        ast::{self, BinOpKind, CallArg, CompareOpKind, Expr, Stmt},
        parse, parse_expr, tokenize,
    },
    syntax::SyntaxConfig,
};

/// Text between tags that is shorter than this is bounded well enough by the number of instructions.
const SHORT: usize = 32;
/// Filters that do not go through the parts of a value.
const GLANCES: [&str; 6] = ["attr", "bool", "count", "first", "length", "safe"];
/// Tests that go through the parts of a value.
const COMPARISONS: [&str; 16] = [
    "!=",
    "<",
    "<=",
    "==",
    ">",
    ">=",
    "eq",
    "equalto",
    "ge",
    "greaterthan",
    "gt",
    "le",
    "lessthan",
    "lt",
    "ne",
    "sameas",
];

/// The source of a template with its values bounded.
///
/// # Errors
/// Fails when it does not parse.
pub(super) fn template(source: &str) -> Result<String, Error> {
    let parsed = parse(source, "<template>", SyntaxConfig::default())?;
    let mut edits = Edits::of(source, false)?;
    edits.statement(&parsed);
    Ok(edits.apply())
}

/// The source of an expression with its values bounded.
///
/// # Errors
/// Fails when it does not parse.
pub(super) fn expression(source: &str) -> Result<String, Error> {
    let parsed = parse_expr(source)?;
    let mut edits = Edits::of(source, true)?;
    edits.expression(&parsed);
    Ok(edits.apply())
}

/// Adds the variables that an expression reads.
fn variables<'e>(expr: &'e Expr<'_>, into: &mut BTreeSet<&'e str>) {
    let mut parts: Vec<&Expr<'_>> = Vec::new();
    let mut args: &[CallArg<'_>] = &[];
    match expr {
        Expr::Var(it) => {
            into.insert(it.id);
        }
        Expr::Const(_) => {}
        Expr::Slice(it) => {
            parts.push(&it.expr);
            parts.extend([&it.start, &it.stop, &it.step].into_iter().flatten());
        }
        Expr::UnaryOp(it) => parts.push(&it.expr),
        Expr::BinOp(it) => parts.extend([&it.left, &it.right]),
        Expr::Compare(it) => {
            parts.push(&it.expr);
            parts.extend(it.ops.iter().map(|op| &op.expr));
        }
        Expr::IfExpr(it) => {
            parts.extend([&it.test_expr, &it.true_expr]);
            parts.extend(&it.false_expr);
        }
        Expr::Filter(it) => {
            parts.extend(&it.expr);
            args = &it.args;
        }
        Expr::Test(it) => {
            parts.push(&it.expr);
            args = &it.args;
        }
        Expr::GetAttr(it) => parts.push(&it.expr),
        Expr::GetItem(it) => parts.extend([&it.expr, &it.subscript_expr]),
        Expr::Call(it) => {
            parts.push(&it.expr);
            args = &it.args;
        }
        Expr::List(it) => parts.extend(&it.items),
        Expr::Tuple(it) => parts.extend(&it.items),
        Expr::Map(it) => parts.extend(it.keys.iter().chain(&it.values)),
    }
    parts.extend(args.iter().map(|arg| match arg {
        CallArg::Pos(it)
        | CallArg::Kwarg(_, it)
        | CallArg::PosSplat(it)
        | CallArg::KwargSplat(it) => it,
    }));
    for part in parts {
        variables(part, into);
    }
}

/// One change of the text: how many bytes it takes away, and what it puts there.
struct Edit {
    at: usize,
    opens: bool,
    removes: usize,
    text: String,
}

struct Edits<'s> {
    source: &'s str,
    /// The offsets of parentheses, and whether each opens.
    parentheses: Vec<(usize, bool)>,
    list: Vec<Edit>,
}

impl<'s> Edits<'s> {
    fn of(source: &'s str, is_expression: bool) -> Result<Self, Error> {
        let mut parentheses = Vec::new();
        for token in tokenize(source, is_expression, SyntaxConfig::default()) {
            match token? {
                (Token::ParenOpen, span) => parentheses.push((span.start_offset as usize, true)),
                (Token::ParenClose, span) => parentheses.push((span.start_offset as usize, false)),
                _ => {}
            }
        }
        Ok(Self { source, parentheses, list: Vec::new() })
    }

    fn put(&mut self, at: usize, opens: bool, removes: usize, text: impl Into<String>) {
        self.list.push(Edit { at, opens, removes, text: text.into() });
    }

    /// The text with every change made. At one place, what closes stands before what opens; outer
    /// parts open first and close last, which is the order in which they were added.
    fn apply(mut self) -> String {
        self.list.sort_by_key(|edit| (edit.at, edit.opens));
        let more: usize = self.list.iter().map(|edit| edit.text.len()).sum();
        let mut out = String::with_capacity(self.source.len() + more);
        let mut done = 0;
        for edit in &self.list {
            out.push_str(&self.source[done..edit.at]);
            out.push_str(&edit.text);
            done = edit.at + edit.removes;
        }
        out.push_str(&self.source[done..]);
        out
    }

    /// Returns the place where the source of an expression begins. The parser's spans of
    /// attributes, slices, calls and
    /// filters begin at their last part, and those of an expression in parentheses leave these out.
    fn start(&self, expr: &Expr<'_>) -> usize {
        let inner = match expr {
            Expr::Slice(it) => &it.expr,
            Expr::GetAttr(it) => &it.expr,
            Expr::GetItem(it) => &it.expr,
            Expr::Call(it) => &it.expr,
            Expr::Test(it) => &it.expr,
            // `x is not y`: it begins where its test does.
            Expr::UnaryOp(it)
                if matches!(it.expr, Expr::Test(_))
                    && it.expr.span().start_offset == expr.span().start_offset =>
            {
                &it.expr
            }
            Expr::Filter(it) if it.expr.is_some() => it.expr.as_ref().expect("the guard looked"),
            other => return other.span().start_offset as usize,
        };
        let (start, end) = (self.start(inner), expr.span().end_offset as usize);
        let mut open = 0_i32;
        let mut missing = 0;
        let [first, last] =
            [start, end].map(|place| self.parentheses.partition_point(|(at, _)| *at < place));
        for (_, opens) in self.parentheses.get(first..last).unwrap_or_default() {
            open += if *opens { 1 } else { -1 };
            missing = missing.max(-open);
        }
        let mut before = self.parentheses[..first].iter().rev().filter(|(_, opens)| *opens);
        let outer = usize::try_from(missing).ok().filter(|missing| *missing > 0);
        outer.and_then(|missing| before.nth(missing - 1)).map_or(start, |(at, _)| *at)
    }

    /// Begins a call around an expression, and returns where it has to end.
    fn call(&mut self, name: &str, expr: &Expr<'_>) -> usize {
        // The blank keeps it apart from a word before it: `not[1]`.
        self.put(self.start(expr), true, 0, format!(" {name}("));
        expr.span().end_offset as usize
    }

    fn all(&mut self, statements: &[Stmt<'_>]) {
        for statement in statements {
            self.statement(statement);
        }
    }

    fn statement(&mut self, statement: &Stmt<'_>) {
        match statement {
            Stmt::Template(it) => self.all(&it.children),
            Stmt::EmitExpr(it) => self.expression(&it.expr),
            Stmt::EmitRaw(it) => self.text(it.raw),
            Stmt::ForLoop(it) => {
                self.expression(&it.iter);
                self.maybe(it.filter_expr.as_ref());
                self.all(&it.body);
                self.all(&it.else_body);
            }
            Stmt::IfCond(it) => {
                self.expression(&it.expr);
                self.all(&it.true_body);
                self.all(&it.false_body);
            }
            Stmt::WithBlock(it) => {
                for (_, value) in &it.assignments {
                    self.expression(value);
                }
                self.all(&it.body);
            }
            Stmt::Set(it) if matches!(it.target, Expr::GetAttr(_)) => {
                let end = self.call("plain__", &it.expr);
                self.expression(&it.expr);
                self.put(end, false, 0, ")");
            }
            Stmt::Set(it) => self.expression(&it.expr),
            Stmt::SetBlock(it) => {
                self.filters(it.filter.as_ref());
                self.all(&it.body);
            }
            Stmt::AutoEscape(it) => self.all(&it.body),
            Stmt::FilterBlock(it) => {
                self.filters(Some(&it.filter));
                self.all(&it.body);
            }
            Stmt::Block(it) => self.all(&it.body),
            Stmt::Import(it) => self.expression(&it.expr),
            Stmt::FromImport(it) => self.expression(&it.expr),
            Stmt::Extends(it) => self.expression(&it.name),
            Stmt::Include(it) => self.expression(&it.name),
            Stmt::Macro(it) => self.macro_(it),
            Stmt::CallBlock(it) => {
                self.arguments(&it.call.args);
                self.macro_(&it.macro_decl);
            }
            Stmt::Do(it) => {
                self.expression(&it.call.expr);
                self.arguments(&it.call.args);
            }
        }
    }

    fn macro_(&mut self, it: &ast::Macro<'_>) {
        for default in &it.defaults {
            self.expression(default);
        }
        self.all(&it.body);
    }

    /// A chain of filters over captured text: their names stand in a place where only names may,
    /// so just their arguments change.
    fn filters(&mut self, chain: Option<&Expr<'_>>) {
        if let Some(Expr::Filter(it)) = chain {
            self.filters(it.expr.as_ref());
            self.arguments(&it.args);
        }
    }

    /// Text between tags, which is counted when it is written: it may be captured within a loop.
    fn text(&mut self, raw: &str) {
        if raw.len() < SHORT {
            return;
        }
        let mut at = raw.as_ptr().addr() - self.source.as_ptr().addr();
        // Within a raw block a tag would be text: it goes before the block.
        let before = &self.source[..at];
        let tag = before.trim_end().strip_suffix("%}").and_then(|_| before.rfind("{%"));
        let mut dash = "";
        if let Some(tag) = tag
            && before[tag..].trim_matches(['{', '%', '}', '-', '+', ' ', '\t', '\r', '\n']) == "raw"
        {
            at = tag;
            dash = if before[tag..].starts_with("{%-") { "-" } else { "" };
        }
        self.put(at, true, 0, format!("{{{{{dash} spend__({}) }}}}", raw.len()));
    }

    fn maybe(&mut self, expr: Option<&Expr<'_>>) {
        if let Some(expr) = expr {
            self.expression(expr);
        }
    }

    fn arguments(&mut self, args: &[CallArg<'_>]) {
        for arg in args {
            match arg {
                CallArg::Pos(it)
                | CallArg::Kwarg(_, it)
                | CallArg::PosSplat(it)
                | CallArg::KwargSplat(it) => self.expression(it),
            }
        }
    }

    /// Wraps a value that was made, and changes its parts.
    fn made(&mut self, expr: &Expr<'_>, parts: impl FnOnce(&mut Self)) {
        let end = self.call("sized__", expr);
        parts(self);
        self.put(end, false, 0, ")");
    }

    /// Passes a value that is about to be gone through to a function that counts it.
    fn counted(&mut self, expr: &Expr<'_>) {
        let end = self.call("looked__", expr);
        self.expression(expr);
        self.put(end, false, 0, ")");
    }

    fn expression(&mut self, expr: &Expr<'_>) {
        let span = expr.span();
        match expr {
            Expr::Var(_) | Expr::Const(_) => {}
            Expr::Slice(it) => {
                // The engine overlooks the names in what is sliced: it finds them beside it.
                let mut names = BTreeSet::new();
                variables(&it.expr, &mut names);
                let beside =
                    names.into_iter().fold(String::new(), |beside, name| beside + ", " + name);
                let end = self.call("cut__", expr);
                self.counted(&it.expr);
                self.maybe(it.start.as_ref());
                self.maybe(it.stop.as_ref());
                self.maybe(it.step.as_ref());
                self.put(end, false, 0, format!("{beside})"));
            }
            Expr::UnaryOp(it) => self.expression(&it.expr),
            Expr::BinOp(it) => self.operator(it, span),
            Expr::Compare(it) => {
                let (mut left, mut is_container) = (&it.expr, false);
                for op in &it.ops {
                    let is_in = matches!(op.op, CompareOpKind::In | CompareOpKind::NotIn);
                    let end = is_container.then(|| self.call("looked__", left));
                    self.operand(left, is_in);
                    if let Some(end) = end {
                        self.put(end, false, 0, ")");
                    }
                    (left, is_container) = (&op.expr, is_in);
                }
                match is_container {
                    true => self.counted(left),
                    false => self.expression(left),
                }
            }
            Expr::IfExpr(it) => {
                self.expression(&it.test_expr);
                self.expression(&it.true_expr);
                self.maybe(it.false_expr.as_ref());
            }
            // The span of a filter leaves out what it is applied to.
            Expr::Filter(it) => {
                self.maybe(it.expr.as_ref());
                let look = match it.name {
                    "default" | "d" => None,
                    name if GLANCES.contains(&name) => Some("|glanced__"),
                    _ => Some("|looked__"),
                };
                if let Some(look) = look {
                    // Nothing but blanks stands between the bar and the name.
                    let before = &self.source[..span.start_offset as usize];
                    let bar = before.rfind('|').expect("a bar stands before a filter");
                    self.put(bar, false, 0, look);
                }
                self.arguments(&it.args);
                self.put(span.end_offset as usize, false, 0, "|sized__");
            }
            Expr::Test(it) => {
                self.expression(&it.expr);
                let look = match it.name {
                    "defined" | "undefined" => None,
                    name if COMPARISONS.contains(&name) => Some("|looked__ "),
                    _ => Some("|glanced__ "),
                };
                if let Some(look) = look {
                    // `is` or `is not`, and then its name, where its span begins.
                    let before = self.source[..span.start_offset as usize].trim_end();
                    let before = before.strip_suffix("not").unwrap_or(before).trim_end();
                    self.put(before.len() - "is".len(), false, 0, look);
                }
                self.arguments(&it.args);
            }
            Expr::GetAttr(it) => self.expression(&it.expr),
            Expr::GetItem(it) => {
                self.expression(&it.expr);
                self.expression(&it.subscript_expr);
            }
            Expr::Call(it) => {
                self.expression(&it.expr);
                self.arguments(&it.args);
            }
            Expr::List(it) => self.made(expr, |edits| edits.every(&it.items)),
            // Without its parentheses a tuple would be the call's arguments.
            Expr::Tuple(it) => {
                self.put(span.start_offset as usize, true, 0, " sized__((");
                self.every(&it.items);
                self.put(span.end_offset as usize, false, 0, "))");
            }
            Expr::Map(it) => self.made(expr, |edits| {
                edits.every(&it.keys);
                edits.every(&it.values);
            }),
        }
    }

    fn every(&mut self, items: &[Expr<'_>]) {
        for item in items {
            self.expression(item);
        }
    }

    /// A left side: `in` writes it out to look for it in a text, a comparison goes through it.
    fn operand(&mut self, expr: &Expr<'_>, is_shown: bool) {
        if is_shown {
            self.made(expr, |edits| edits.expression(expr));
        } else {
            self.counted(expr);
        }
    }

    fn operator(&mut self, it: &ast::BinOp<'_>, span: Span) {
        let (name, sign) = match it.op {
            BinOpKind::Concat => ("concat__", "~"),
            BinOpKind::Add => ("add__", "+"),
            BinOpKind::Mul => ("mul__", "*"),
            BinOpKind::In => {
                self.operand(&it.left, true);
                self.counted(&it.right);
                return;
            }
            BinOpKind::Eq
            | BinOpKind::Ne
            | BinOpKind::Lt
            | BinOpKind::Lte
            | BinOpKind::Gt
            | BinOpKind::Gte => {
                self.operand(&it.left, false);
                self.expression(&it.right);
                return;
            }
            BinOpKind::ScAnd
            | BinOpKind::ScOr
            | BinOpKind::Sub
            | BinOpKind::Div
            | BinOpKind::FloorDiv
            | BinOpKind::Rem
            | BinOpKind::Pow => {
                self.expression(&it.left);
                self.expression(&it.right);
                return;
            }
        };
        let left = it.left.span().end_offset as usize;
        let end = span.end_offset as usize;
        self.put(span.start_offset as usize, true, 0, format!(" {name}("));
        self.expression(&it.left);
        // Nothing but blanks and closing parentheses stands before it.
        let sign_at = self.source[left..].find(sign).expect("the operator follows its operand");
        self.put(left + sign_at, false, sign.len(), ",");
        self.expression(&it.right);
        self.put(end, false, 0, ")");
    }
}
