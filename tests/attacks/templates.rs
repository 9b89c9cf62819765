//! Templates and expressions that ask for more memory than they may have.
