//! Finds the names that a template looks up, with the first place of each: those that may be
//! undefined, since `default` or `is defined` looks at them, and those without which no rendering
//! succeeds.

use std::collections::{BTreeMap, BTreeSet};

use minijinja::{
    Error,
    machinery::{
        ast::{self, BinOpKind, CallArg, Expr, Stmt},
        parse,
    },
    syntax::SyntaxConfig,
};

/// The names that a template looks up plainly, with their attributes, each with the byte offset of
/// its first use.
#[derive(Default)]
pub(super) struct Uses {
    /// Those that `default` or `is defined` looks at.
    optional: BTreeMap<String, usize>,
    /// Those that every rendering needs: no condition, loop or macro is around them.
    certain: BTreeMap<String, usize>,
    /// All others.
    other: BTreeMap<String, usize>,
    /// The names that the template gives to something itself.
    own: BTreeSet<String>,
    /// True if another template decides what is rendered.
    extends: bool,
}

/// Why a name must be defined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Need {
    /// The byte offset of a use that needs it.
    pub at: usize,
    /// The name that `default` or `is defined` looks at elsewhere: this one, or one that it is an
    /// attribute of.
    pub beside: Option<String>,
}

impl Uses {
    /// Reads a template.
    ///
    /// # Errors
    /// Fails when it does not parse.
    pub fn of(source: &str) -> Result<Self, Error> {
        let mut uses = Self::default();
        uses.statement(&parse(source, "<template>", SyntaxConfig::default())?, true);
        Ok(uses)
    }

    /// Returns the name that must be defined so that `name` can be looked up, and why; `None` if
    /// none must be. Where `default` or `is defined` looks at an attribute, the value that it is an
    /// attribute of must be.
    pub fn required(&self, name: String) -> Option<(String, Need)> {
        let outer = name.match_indices('.').map(|(at, _)| &name[..at]);
        let found = outer.chain([name.as_str()]).find(|it| self.optional.contains_key(*it));
        let (needed, beside) = match found.map(str::to_owned) {
            Some(found) if !self.is_certain(&name) => (found.rsplit_once('.')?.0.to_owned(), None),
            beside => (name, beside),
        };
        let at = self.place_of(&needed);
        Some((needed, Need { at, beside }))
    }

    fn is_certain(&self, name: &str) -> bool {
        let root = name.split('.').next().unwrap_or(name);
        self.certain.contains_key(name) && !self.own.contains(root) && !self.extends
    }

    /// The first use of a name or of one of its attributes.
    fn place_of(&self, name: &str) -> usize {
        let found = [&self.certain, &self.other, &self.optional].into_iter().find_map(|uses| {
            // An attribute's name comes directly behind the name itself.
            let (next, at) = uses.range(name.to_owned()..).next()?;
            let rest = next.strip_prefix(name)?;
            (rest.is_empty() || rest.starts_with('.')).then_some(*at)
        });
        found.unwrap_or(0)
    }

    fn all(&mut self, statements: &[Stmt<'_>], certain: bool) {
        for statement in statements {
            self.statement(statement, certain);
        }
    }

    fn statement(&mut self, statement: &Stmt<'_>, certain: bool) {
        match statement {
            Stmt::Template(it) => self.all(&it.children, certain),
            Stmt::EmitExpr(it) => self.expression(&it.expr, certain),
            Stmt::EmitRaw(_) => {}
            Stmt::ForLoop(it) => {
                self.expression(&it.iter, certain);
                self.target(&it.target);
                it.filter_expr.iter().for_each(|filter| self.expression(filter, false));
                self.all(&it.body, false);
                self.all(&it.else_body, false);
            }
            Stmt::IfCond(it) => {
                self.expression(&it.expr, certain);
                self.all(&it.true_body, false);
                self.all(&it.false_body, false);
            }
            Stmt::WithBlock(it) => {
                for (target, value) in &it.assignments {
                    self.target(target);
                    self.value(value, certain);
                }
                self.all(&it.body, certain);
            }
            Stmt::Set(it) => {
                self.target(&it.target);
                self.value(&it.expr, certain);
            }
            Stmt::SetBlock(it) => {
                self.target(&it.target);
                self.filters(it.filter.as_ref(), certain);
                self.all(&it.body, certain);
            }
            Stmt::AutoEscape(it) => self.all(&it.body, certain),
            Stmt::FilterBlock(it) => {
                self.filters(Some(&it.filter), certain);
                self.all(&it.body, certain);
            }
            Stmt::Block(it) => self.all(&it.body, false),
            Stmt::Import(it) => {
                self.expression(&it.expr, false);
                self.target(&it.name);
            }
            Stmt::FromImport(it) => {
                self.expression(&it.expr, false);
                for (name, alias) in &it.names {
                    self.target(alias.as_ref().unwrap_or(name));
                }
            }
            Stmt::Extends(it) => {
                self.expression(&it.name, false);
                self.extends = true;
            }
            Stmt::Include(it) => self.expression(&it.name, false),
            Stmt::Macro(it) => {
                self.own.insert(it.name.to_owned());
                self.macro_(it);
            }
            Stmt::CallBlock(it) => {
                self.value(&it.call.expr, certain);
                self.arguments(&it.call.args, certain);
                self.macro_(&it.macro_decl);
            }
            Stmt::Do(it) => {
                self.value(&it.call.expr, certain);
                self.arguments(&it.call.args, certain);
            }
        }
    }

    fn macro_(&mut self, it: &ast::Macro<'_>) {
        it.args.iter().for_each(|argument| self.target(argument));
        it.defaults.iter().for_each(|default| self.expression(default, false));
        self.all(&it.body, false);
    }

    /// Reads the target of an assignment: its names are the template's own.
    fn target(&mut self, expr: &Expr<'_>) {
        match expr {
            Expr::Var(it) => {
                self.own.insert(it.id.to_owned());
            }
            Expr::List(it) => it.items.iter().for_each(|item| self.target(item)),
            Expr::Tuple(it) => it.items.iter().for_each(|item| self.target(item)),
            _ => {}
        }
    }

    fn filters(&mut self, chain: Option<&Expr<'_>>, certain: bool) {
        if let Some(Expr::Filter(it)) = chain {
            self.filters(it.expr.as_ref(), certain);
            self.arguments(&it.args, certain);
        }
    }

    fn arguments(&mut self, args: &[CallArg<'_>], certain: bool) {
        for arg in args {
            match arg {
                CallArg::Pos(it)
                | CallArg::Kwarg(_, it)
                | CallArg::PosSplat(it)
                | CallArg::KwargSplat(it) => self.value(it, certain),
            }
        }
    }

    /// A value that is passed on, and may be an undefined name.
    fn value(&mut self, expr: &Expr<'_>, certain: bool) {
        self.expression(expr, certain && plain(expr).is_none());
    }

    /// Reads an expression that `default` or `is defined` looks at: its name may be undefined.
    fn looked_at(&mut self, expr: &Expr<'_>, certain: bool) {
        match plain(expr) {
            Some((name, at)) => {
                self.optional.entry(name).or_insert(at);
            }
            None => self.expression(expr, certain),
        }
    }

    /// A value that fails where it is an undefined name.
    fn expression(&mut self, expr: &Expr<'_>, certain: bool) {
        if let Some((name, at)) = plain(expr) {
            let uses = if certain { &mut self.certain } else { &mut self.other };
            uses.entry(name).or_insert(at);
            return;
        }
        match expr {
            Expr::Var(_) | Expr::Const(_) => {}
            Expr::Slice(it) => {
                self.expression(&it.expr, certain);
                for part in [&it.start, &it.stop, &it.step].into_iter().flatten() {
                    self.value(part, certain);
                }
            }
            Expr::UnaryOp(it) => self.expression(&it.expr, certain),
            Expr::BinOp(it) => match it.op {
                BinOpKind::Add
                | BinOpKind::Sub
                | BinOpKind::Mul
                | BinOpKind::Div
                | BinOpKind::FloorDiv
                | BinOpKind::Rem
                | BinOpKind::Pow
                | BinOpKind::Concat => {
                    self.expression(&it.left, certain);
                    self.expression(&it.right, certain);
                }
                // The right side may not be looked at.
                BinOpKind::ScAnd | BinOpKind::ScOr => {
                    self.expression(&it.left, certain);
                    self.expression(&it.right, false);
                }
                BinOpKind::Eq
                | BinOpKind::Ne
                | BinOpKind::Lt
                | BinOpKind::Lte
                | BinOpKind::Gt
                | BinOpKind::Gte
                | BinOpKind::In => {
                    self.value(&it.left, certain);
                    self.value(&it.right, certain);
                }
            },
            Expr::Compare(it) => {
                self.value(&it.expr, certain);
                // A chain ends with its first comparison that does not hold.
                for op in &it.ops {
                    self.expression(&op.expr, false);
                }
            }
            Expr::IfExpr(it) => {
                self.expression(&it.test_expr, certain);
                self.expression(&it.true_expr, false);
                it.false_expr.iter().for_each(|otherwise| self.expression(otherwise, false));
            }
            Expr::Filter(it) => {
                match (&it.expr, it.name) {
                    (Some(of), "default" | "d") => self.looked_at(of, certain),
                    (Some(of), _) => self.value(of, certain),
                    (None, _) => {}
                }
                self.arguments(&it.args, certain);
            }
            Expr::Test(it) => {
                match it.name {
                    "defined" | "undefined" => self.looked_at(&it.expr, certain),
                    _ => self.value(&it.expr, certain),
                }
                self.arguments(&it.args, certain);
            }
            Expr::GetAttr(it) => self.expression(&it.expr, certain),
            Expr::GetItem(it) => {
                self.expression(&it.expr, certain);
                self.value(&it.subscript_expr, certain);
            }
            Expr::Call(it) => {
                self.value(&it.expr, certain);
                self.arguments(&it.args, certain);
            }
            Expr::List(it) => it.items.iter().for_each(|item| self.value(item, certain)),
            Expr::Tuple(it) => it.items.iter().for_each(|item| self.value(item, certain)),
            Expr::Map(it) => {
                it.keys.iter().chain(&it.values).for_each(|part| self.value(part, certain));
            }
        }
    }
}

/// The name that an expression looks up plainly, with its attributes, and its byte offset.
fn plain(expr: &Expr<'_>) -> Option<(String, usize)> {
    match expr {
        Expr::Var(it) => Some((it.id.to_owned(), expr.span().start_offset as usize)),
        Expr::GetAttr(it) => {
            let (of, at) = plain(&it.expr)?;
            Some((of + "." + it.name, at))
        }
        _ => None,
    }
}
