//! Disjunctive normal form: a condition as a list of conjuncts, so that each conjunct can be indexed by one atom.
//!
//! Every step is also valid in Kleene's logic (distribution, De Morgan, absorption), so unknown values survive. The law
//! `a && !a == false` is not, so it is used only for atoms that always have a value.

use crate::atom::{Atom, AtomId, Table, Test};
use crate::lang::Expr;

/// An atom or its negation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Literal(u32);

impl Literal {
    pub(crate) fn new(atom: AtomId, negated: bool) -> Literal {
        Literal(atom << 1 | u32::from(negated))
    }

    pub(crate) fn atom(self) -> AtomId {
        self.0 >> 1
    }

    pub(crate) fn negated(self) -> bool {
        self.0 & 1 == 1
    }

    pub(crate) fn inverse(self) -> Literal {
        Literal(self.0 ^ 1)
    }
}

/// Literals that must all hold, sorted. An empty conjunct always holds.
pub(crate) type Conjunct = Vec<Literal>;

/// The condition exceeds the limit on conjuncts.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooMany;

/// The disjunctive normal form; an empty form never holds.
pub(crate) fn normal_form(
    expr: &Expr,
    table: &mut Table,
    conjuncts_max: usize,
) -> Result<Vec<Conjunct>, TooMany> {
    let merged = merge(expr, table);
    build(&merged, false, table, conjuncts_max)
}

/// Joins alternatives such as `host == "a" || host == "b"` into one atom, before they multiply.
fn merge(expr: &Expr, table: &mut Table) -> Expr {
    match expr {
        Expr::Constant(_) | Expr::Atom(_) => expr.clone(),
        Expr::Not(inner) => Expr::Not(Box::new(merge(inner, table))),
        Expr::And(parts) => Expr::And(parts.iter().map(|part| merge(part, table)).collect()),
        Expr::Or(parts) => {
            let mut joined: Vec<Expr> = Vec::new();
            for part in parts {
                let part = merge(part, table);
                let union = joined.iter().enumerate().find_map(|(at, other)| match (&part, other) {
                    (Expr::Atom(a), Expr::Atom(b)) => Some((at, union(table.atom(*a), table.atom(*b))?)),
                    _ => None,
                });
                match union {
                    Some((at, atom)) => joined[at] = Expr::Atom(table.intern(atom)),
                    None => joined.push(part),
                }
            }
            Expr::Or(joined)
        }
    }
}

fn union(a: &Atom, b: &Atom) -> Option<Atom> {
    fn both<T: Clone + PartialEq>(a: &[T], b: &[T], order: impl Fn(&T, &T) -> std::cmp::Ordering) -> Vec<T> {
        let mut list = [a, b].concat();
        list.sort_by(order);
        list.dedup();
        list
    }
    if a.field != b.field {
        return None;
    }
    let test = match (&a.test, &b.test) {
        (Test::OneOf(a), Test::OneOf(b)) => Test::OneOf(both(a, b, Ord::cmp)),
        (Test::InNets(a), Test::InNets(b)) => Test::InNets(both(a, b, Ord::cmp)),
        (Test::NumberIn(a), Test::NumberIn(b)) => {
            Test::NumberIn(both(a, b, |a, b| a.get().total_cmp(&b.get())))
        }
        _ => return None,
    };
    Some(Atom { field: a.field, test })
}

fn build(expr: &Expr, negate: bool, table: &Table, max: usize) -> Result<Vec<Conjunct>, TooMany> {
    let (parts, product) = match expr {
        Expr::Constant(value) => return Ok(if *value != negate { vec![Vec::new()] } else { Vec::new() }),
        Expr::Atom(atom) => return Ok(vec![vec![Literal::new(*atom, negate)]]),
        Expr::Not(inner) => return build(inner, !negate, table, max),
        Expr::And(parts) => (parts, !negate),
        Expr::Or(parts) => (parts, negate),
    };
    let mut sum: Vec<Conjunct> = if product { vec![Vec::new()] } else { Vec::new() };
    for part in parts {
        let part = build(part, negate, table, max)?;
        if product {
            let mut next = Vec::new();
            for left in &sum {
                for right in &part {
                    next.extend(join(left, right, table));
                }
            }
            sum = absorb(next);
        } else {
            sum.extend(part);
            sum = absorb(sum);
        }
        if sum.len() > max {
            return Err(TooMany);
        }
    }
    Ok(sum)
}

/// The conjunction of two conjuncts; `None` if it can never hold.
fn join(left: &Conjunct, right: &Conjunct, table: &Table) -> Option<Conjunct> {
    let mut both = [left.as_slice(), right.as_slice()].concat();
    both.sort_unstable();
    both.dedup();
    let contradicts =
        |pair: &[Literal]| pair[0].inverse() == pair[1] && !table.field_of(pair[0].atom()).may_be_unknown();
    (!both.windows(2).any(contradicts)).then_some(both)
}

/// Drops conjuncts that contain all literals of another one.
fn absorb(mut sum: Vec<Conjunct>) -> Vec<Conjunct> {
    let mut kept: Vec<Conjunct> = Vec::with_capacity(sum.len());
    let order: Vec<Conjunct> = sum.clone();
    sum.sort_by_key(Vec::len);
    for conjunct in sum {
        if !kept.iter().any(|other| other.iter().all(|literal| conjunct.binary_search(literal).is_ok())) {
            kept.push(conjunct);
        }
    }
    // Original order: the order of evaluation must not depend on lengths.
    kept.sort_by_key(|conjunct| order.iter().position(|other| other == conjunct));
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lang::parse;
    use crate::spec::Limits;

    fn form(source: &str) -> Result<Vec<Vec<String>>, TooMany> {
        let mut table = Table::new();
        let expr = parse(source, &mut table, &Limits::default()).unwrap();
        let form = normal_form(&expr, &mut table, 64)?;
        let show = |literal: &Literal| table.show(literal.atom(), literal.negated());
        Ok(form.iter().map(|conjunct| conjunct.iter().map(show).collect()).collect())
    }

    #[test]
    fn negation_is_pushed_to_the_atoms() {
        let shown = form(r#"!(path == "/a" || !(method == "GET" && query("x").exists()))"#).unwrap();
        assert_eq!(shown, [[r#"path != "/a""#, r#"method == "GET""#, r#"query("x").exists()"#]]);
    }

    #[test]
    fn alternatives_of_one_field_become_one_atom() {
        let shown = form(r#"(host == "b" || host in ["a", "c"]) && (path == "/x" || path == "/y")"#).unwrap();
        assert_eq!(shown, [[r#"(host in ["a", "b", "c"])"#, r#"(path in ["/x", "/y"])"#]]);
    }

    #[test]
    fn contradictions_vanish_unless_they_may_be_unknown() {
        assert!(form(r#"path == "/a" && path != "/a""#).unwrap().is_empty());
        for field in ["form", "query", "cookie"] {
            assert_eq!(form(&format!(r#"{field}("a") == "1" && {field}("a") != "1""#)).unwrap().len(), 1);
        }
    }

    #[test]
    fn absorption_keeps_the_weaker_conjunct() {
        assert_eq!(
            form(r#"path == "/a" && method == "GET" || path == "/a""#).unwrap(),
            [[r#"path == "/a""#]]
        );
        assert_eq!(form(r#"true || path == "/a""#).unwrap(), [Vec::<String>::new()]);
    }

    #[test]
    fn conjuncts_are_capped() {
        let alternatives: Vec<String> =
            (0..7).map(|i| format!(r#"(query("a{i}").exists() || query("b{i}").exists())"#)).collect();
        assert_eq!(form(&alternatives.join(" && ")), Err(TooMany));
    }
}
