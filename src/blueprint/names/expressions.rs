//! Expressions and types of a source, and the calls of `ctx` in them.

use super::{ARITHMETIC, COMPARING, Call, NameReader, Operand, Shape, Value};
use crate::blueprint::tokens::Kind;

impl<'s> NameReader<'_, 's> {
    pub(super) fn expressions(&mut self) -> Option<Vec<Value<'s>>> {
        let mut values = vec![self.expression()?];
        while self.takes(",") {
            values.push(self.expression()?);
        }
        Some(values)
    }

    pub(super) fn expression(&mut self) -> Option<Value<'s>> {
        let at = self.at;
        let mut is = self.deeper(Self::operand)?;
        loop {
            if self.takes("::") {
                self.a_type()?;
                continue;
            }
            let symbol =
                self.symbol(0).filter(|it| ARITHMETIC.contains(it) || COMPARING.contains(it));
            match (symbol, self.word(0)) {
                (Some(symbol), _) => {
                    self.at += 1;
                    if symbol == "/" {
                        self.takes("/");
                    }
                }
                (None, Some("and" | "or")) => self.at += 1,
                _ => return Some(Value { at, is }),
            }
            self.deeper(Self::operand)?;
            is = Shape::Other;
        }
    }

    fn operand(&mut self) -> Option<Shape<'s>> {
        let mut changed = false;
        while self.word(0) == Some("not") || matches!(self.symbol(0), Some("-" | "#")) {
            self.at += 1;
            changed = true;
        }
        let is = match self.kind(0)?.clone() {
            Kind::Number(_) => self.number()?,
            Kind::Symbol(".") => self.number()?,
            Kind::Text { .. } => {
                self.at += 1;
                Shape::Text
            }
            Kind::Interpolation { closes: false, .. } => self.interpolation()?,
            Kind::Symbol("...") => {
                self.at += 1;
                Shape::Many
            }
            Kind::Symbol("{") => self.table()?,
            Kind::Name("nil") => {
                self.at += 1;
                Shape::Nil
            }
            Kind::Name("true" | "false") => {
                self.at += 1;
                Shape::Boolean
            }
            Kind::Name("function") => {
                let at = self.at;
                self.at += 1;
                self.function_body(at, false)?;
                Shape::Function
            }
            Kind::Name("if") => self.choice()?,
            _ => match self.suffixed()? {
                Operand::Name(name, at) => {
                    self.read(name, at, false);
                    Shape::Other
                }
                Operand::Call => Shape::Many,
                Operand::Other => Shape::Other,
            },
        };
        Some(if changed { Shape::Other } else { is })
    }

    /// A number, which the tokens may have in pieces: `1`, `.`, `5e`, `-`, `3`.
    fn number(&mut self) -> Option<Shape<'s>> {
        if let Some(Kind::Number(_)) = self.kind(0) {
            self.exponent()?;
        }
        if self.symbol(0) == Some(".") && matches!(self.kind(1), Some(Kind::Number(_))) {
            self.at += 1;
            self.exponent()?;
        }
        Some(Shape::Number)
    }

    fn exponent(&mut self) -> Option<()> {
        let Some(Kind::Number(digits)) = self.kind(0) else { return None };
        let open = digits.ends_with(['e', 'E']) && !digits.starts_with("0x");
        self.at += 1;
        if open && (self.takes("-") || self.takes("+")) {
            matches!(self.kind(0), Some(Kind::Number(_))).then(|| self.at += 1)?;
        }
        Some(())
    }

    fn interpolation(&mut self) -> Option<Shape<'s>> {
        loop {
            let Some(Kind::Interpolation { opens, .. }) = self.kind(0) else { return None };
            let opens = *opens;
            self.at += 1;
            if !opens {
                return Some(Shape::Text);
            }
            self.expression()?;
        }
    }

    fn table(&mut self) -> Option<Shape<'s>> {
        self.expect("{")?;
        let (mut entries, mut whole) = (Vec::new(), true);
        while !self.takes("}") {
            if let Some(name) = self.word(0)
                && self.symbol(1) == Some("=")
            {
                let at = self.at;
                self.at += 2;
                entries.push((name, at, self.expression()?));
            } else if self.takes("[") {
                self.expression()?;
                self.expect("]")?;
                self.expect("=")?;
                self.expression()?;
                whole = false;
            } else {
                self.expression()?;
                whole = false;
            }
            if !(self.takes(",") || self.takes(";")) {
                self.expect("}")?;
                break;
            }
        }
        Some(Shape::Table(entries, whole))
    }

    /// `if … then … else …` as an expression.
    fn choice(&mut self) -> Option<Shape<'s>> {
        loop {
            self.at += 1;
            self.expression()?;
            self.expect_word("then")?;
            self.expression()?;
            if self.word(0)? != "elseif" {
                self.expect_word("else")?;
                self.expression()?;
                return Some(Shape::Other);
            }
        }
    }

    pub(super) fn suffixed(&mut self) -> Option<Operand<'s>> {
        let start = self.at;
        let mut named = None;
        if self.takes("(") {
            self.expression()?;
            self.expect(")")?;
        } else {
            named = Some(self.name()?);
        }
        let mut found = match named {
            Some(name) => Operand::Name(name, start),
            None => Operand::Other,
        };
        // What `ctx` is called with, while nothing else stands between them.
        let mut of = (named == Some("ctx")).then_some("ctx");
        loop {
            let plain = matches!(found, Operand::Name(..));
            let mut method = None;
            let next = match self.kind(0) {
                Some(Kind::Symbol(".")) => {
                    self.at += 1;
                    let state = self.word(0) == Some("state") && of == Some("ctx") && plain;
                    self.word(0)?;
                    self.at += 1;
                    of = state.then_some("ctx.state");
                    Operand::Other
                }
                Some(Kind::Symbol("[")) => {
                    self.at += 1;
                    self.expression()?;
                    self.expect("]")?;
                    of = None;
                    Operand::Other
                }
                Some(Kind::Symbol(":")) => {
                    self.at += 1;
                    method = Some((self.word(0)?, self.at));
                    self.at += 1;
                    Operand::Call
                }
                Some(Kind::Symbol("(" | "{") | Kind::Text { .. }) => Operand::Call,
                _ => return Some(found),
            };
            if let (true, Some(name)) = (plain, named) {
                self.read(name, start, true);
            }
            if matches!(next, Operand::Call) {
                let arguments = self.arguments()?;
                if let (Some((method, at)), Some(of)) = (method, of) {
                    self.out.calls.push(Call { of, method, at, arguments });
                }
                of = None;
            }
            found = next;
        }
    }

    fn arguments(&mut self) -> Option<Vec<Value<'s>>> {
        let at = self.at;
        match self.kind(0)? {
            Kind::Text { .. } => {
                self.at += 1;
                Some(vec![Value { at, is: Shape::Text }])
            }
            Kind::Symbol("{") => Some(vec![Value { at, is: self.deeper(Self::table)? }]),
            Kind::Symbol("(") => {
                self.at += 1;
                if self.takes(")") {
                    return Some(Vec::new());
                }
                let values = self.expressions()?;
                self.expect(")")?;
                Some(values)
            }
            _ => None,
        }
    }

    pub(super) fn a_type(&mut self) -> Option<()> {
        while self.takes("|") || self.takes("&") {}
        loop {
            self.deeper(Self::plain_type)?;
            while self.takes("?") {}
            if !(self.takes("|") || self.takes("&") || self.takes("->")) {
                return Some(());
            }
        }
    }

    fn plain_type(&mut self) -> Option<()> {
        match self.kind(0)?.clone() {
            Kind::Text { .. } => self.at += 1,
            Kind::Name(_) => {
                self.at += 1;
                while self.takes(".") {
                    self.name()?;
                }
                match self.symbol(0) {
                    Some("<") => self.angles()?,
                    Some("(") if self.tokens[self.at - 1].is_name("typeof") => self.brackets()?,
                    _ => {}
                }
            }
            Kind::Symbol("{" | "(") => self.brackets()?,
            Kind::Symbol("...") => {
                self.at += 1;
                self.plain_type()?;
            }
            Kind::Symbol("<") => {
                self.angles()?;
                self.plain_type()?;
            }
            _ => return None,
        }
        Some(())
    }

    /// Skips brackets of a type with what is in them.
    fn brackets(&mut self) -> Option<()> {
        let mut depth = 0_usize;
        loop {
            match self.kind(0)? {
                Kind::Symbol("(" | "{" | "[") => depth += 1,
                Kind::Symbol(")" | "}" | "]") => depth -= 1,
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                return Some(());
            }
        }
    }

    pub(super) fn angles(&mut self) -> Option<()> {
        let mut depth = 0_usize;
        loop {
            match self.kind(0)? {
                Kind::Symbol("<") => depth += 1,
                Kind::Symbol(">") => depth -= 1,
                Kind::Name("end" | "do" | "then") => return None,
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                return Some(());
            }
        }
    }
}
