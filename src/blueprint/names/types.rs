//! Annotations of types, which are skipped.

use super::Reader;
use crate::blueprint::tokens::Kind;

impl Reader<'_, '_> {
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

    pub(super) fn plain_type(&mut self) -> Option<()> {
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
    pub(super) fn brackets(&mut self) -> Option<()> {
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
