//! Statements with blocks: branches, repetitions, results, and aliases of types.

use super::Reader;
use crate::blueprint::tokens::Kind;

impl Reader<'_, '_> {
    pub(super) fn branches(&mut self) -> Option<()> {
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

    pub(super) fn repetition(&mut self) -> Option<()> {
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
        self.scope.truncate(outer);
        Some(())
    }

    pub(super) fn results(&mut self) -> Option<()> {
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
    pub(super) fn alias(&mut self) -> Option<()> {
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
}
