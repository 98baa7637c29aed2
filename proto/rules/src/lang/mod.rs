//! Language of conditions: text to typed expression.
//!
//! ```text
//! or         = and { "||" and }
//! and        = unary { "&&" unary }
//! unary      = "!" unary | "(" or ")" | "true" | "false" | comparison
//! comparison = field ( op literal | "in" "[" literal { "," literal } "]" | "." method "(" [ string ] ")" )
//! op         = "==" | "!=" | "<" | "<=" | ">" | ">="
//! ```
//! The parser also checks types, so each error has the position of the wrong token.

mod lexer;
mod literal;
mod parser;
mod spelling;
mod suggest;

pub(crate) use literal::is_token;
pub(crate) use parser::parse;
pub(crate) use spelling::canonical_address;

use crate::atom::AtomId;

/// A typed condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expr {
    Constant(bool),
    Atom(AtomId),
    Not(Box<Expr>),
    And(Vec<Expr>),
    Or(Vec<Expr>),
}
