//! Recursive-descent parser that also checks types. Depth and number of comparisons are bounded.

use super::Expr;
use super::lexer::{Lexer, Token};
use super::literal::{self, Literal};
use super::suggest::nearest;
use crate::atom::{Atom, Compare, Table, Test};
use crate::error::ConditionError;
use crate::field::{Field, FieldId, Kind};
use crate::spec::Limits;

const FIELDS: [&str; 13] = [
    "method", "scheme", "host", "path", "query", "header", "cookie", "client", "local", "tls", "form",
    "json", "xml",
];
const METHODS: [&str; 6] = ["starts_with", "ends_with", "contains", "matches", "path_prefix", "exists"];

/// Parses and types a condition; blank means `true`. Atoms, fields and patterns are added to `table`.
pub(crate) fn parse(source: &str, table: &mut Table, limits: &Limits) -> Result<Expr, ConditionError> {
    if source.len() > limits.condition_bytes_max {
        return Err(ConditionError::new(0, format!("the condition has {} bytes", source.len()))
            .why(format!("at most {} are read", limits.condition_bytes_max))
            .remedy("split it into several rules"));
    }
    if source.trim().is_empty() {
        return Ok(Expr::Constant(true));
    }
    let mut lexer = Lexer::new(source);
    let (token, at) = lexer.next()?;
    let mut parser = Parser { lexer, token, at, table, limits, depth: 0, atoms: 0 };
    let expr = parser.or()?;
    if parser.token != Token::End {
        return Err(parser.unexpected("&&, || or the end of the condition"));
    }
    Ok(expr)
}

struct Parser<'s, 't> {
    lexer: Lexer<'s>,
    token: Token,
    at: usize,
    table: &'t mut Table,
    limits: &'t Limits,
    depth: usize,
    atoms: usize,
}

impl Parser<'_, '_> {
    fn advance(&mut self) -> Result<Token, ConditionError> {
        let (token, at) = self.lexer.next()?;
        self.at = at;
        Ok(std::mem::replace(&mut self.token, token))
    }

    fn is(&self, sign: &str) -> bool {
        matches!(&self.token, Token::Sign(found) if *found == sign)
    }

    fn take(&mut self, sign: &str) -> Result<bool, ConditionError> {
        let found = self.is(sign);
        if found {
            self.advance()?;
        }
        Ok(found)
    }

    fn expect(&mut self, sign: &str) -> Result<(), ConditionError> {
        if self.take(sign)? { Ok(()) } else { Err(self.unexpected(&format!("'{sign}'"))) }
    }

    fn unexpected(&self, expected: &str) -> ConditionError {
        let met = match &self.token {
            Token::End => "end of the condition".to_owned(),
            token => token.show(),
        };
        let error = ConditionError::new(self.at, format!("unexpected {met}"))
            .why(format!("expected here: {expected}"));
        match &self.token {
            Token::Ident(word) if word.eq_ignore_ascii_case("and") => error.remedy("write && for and"),
            Token::Ident(word) if word.eq_ignore_ascii_case("or") => error.remedy("write || for or"),
            _ => error,
        }
    }

    fn or(&mut self) -> Result<Expr, ConditionError> {
        let mut parts = vec![self.and()?];
        while self.take("||")? {
            parts.push(self.and()?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Expr::Or(parts) })
    }

    fn and(&mut self) -> Result<Expr, ConditionError> {
        let mut parts = vec![self.unary()?];
        while self.take("&&")? {
            parts.push(self.unary()?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Expr::And(parts) })
    }

    fn unary(&mut self) -> Result<Expr, ConditionError> {
        self.depth += 1;
        if self.depth > self.limits.depth_max {
            return Err(ConditionError::new(
                self.at,
                format!("nested deeper than {}", self.limits.depth_max),
            )
            .remedy("split the condition into several rules"));
        }
        let expr = if self.take("!")? {
            Expr::Not(Box::new(self.unary()?))
        } else if self.take("(")? {
            let inner = self.or()?;
            self.expect(")")?;
            inner
        } else {
            self.primary()?
        };
        self.depth -= 1;
        Ok(expr)
    }

    fn primary(&mut self) -> Result<Expr, ConditionError> {
        match &self.token {
            Token::Ident(name) if name == "true" || name == "false" => {
                let value = name == "true";
                self.advance()?;
                Ok(Expr::Constant(value))
            }
            Token::Ident(_) => self.comparison(),
            Token::Text(_) | Token::Number(_) => {
                Err(ConditionError::new(self.at, "a comparison begins with a literal")
                    .remedy("write the field on the left, as in host == \"a.example\""))
            }
            _ => Err(self.unexpected("a field, '!' or '('")),
        }
    }

    fn comparison(&mut self) -> Result<Expr, ConditionError> {
        self.atoms += 1;
        if self.atoms > self.limits.atoms_max {
            return Err(ConditionError::new(
                self.at,
                format!("more than {} comparisons", self.limits.atoms_max),
            )
            .remedy("use in [..], or split the condition into several rules"));
        }
        let start = self.at;
        let field = self.field()?;
        let kind = field.kind();
        let id = self.table.fields.intern(field);
        let sign_at = self.at;
        let token = self.advance()?;
        match token {
            Token::Sign(".") => self.call(id, start),
            Token::Sign(sign @ ("==" | "!=")) => {
                let literal = self.literal()?;
                let test = self.equality(id, vec![literal])?;
                let expr = self.atom(id, test);
                Ok(if sign == "!=" { Expr::Not(Box::new(expr)) } else { expr })
            }
            Token::Sign(sign @ ("<" | "<=" | ">" | ">=")) => {
                if !matches!(kind, Kind::Number | Kind::TextOrNumber) {
                    let field = self.table.fields.get(id);
                    return Err(ConditionError::new(
                        sign_at,
                        format!("{field} {sign} .. compares text by size"),
                    )
                    .why(format!("{field} is not a number"))
                    .remedy("use ==, in [..] or a method such as .starts_with(..)"));
                }
                let compare = match sign {
                    "<" => Compare::Less,
                    "<=" => Compare::LessEqual,
                    ">" => Compare::Greater,
                    _ => Compare::GreaterEqual,
                };
                match self.literal()? {
                    (Literal::Number(number), at) => {
                        let test = literal::comparison(self.table.fields.get(id), compare, number, at)?;
                        Ok(self.atom(id, test))
                    }
                    (other, at) => Err(ConditionError::new(at, format!("{sign} with {}", other.show()))
                        .why("only numbers are compared by size")
                        .remedy("write a number without quotation marks")),
                }
            }
            Token::Ident(word) if word == "in" => {
                self.expect("[")?;
                let mut literals = vec![self.literal()?];
                while self.take(",")? {
                    if self.is("]") {
                        break;
                    }
                    literals.push(self.literal()?);
                }
                self.expect("]")?;
                let test = self.equality(id, literals)?;
                Ok(self.atom(id, test))
            }
            other => {
                let field = self.table.fields.get(id);
                Err(ConditionError::new(sign_at, format!("{field} is followed by {}", other.show()))
                    .why("a field alone is neither true nor false")
                    .remedy(format!("compare it, as in {field} == .., {field} in [..] or {field}.exists()")))
            }
        }
    }

    fn atom(&mut self, field: FieldId, test: Test) -> Expr {
        Expr::Atom(self.table.intern(Atom { field, test }))
    }

    fn equality(&mut self, id: FieldId, literals: Vec<(Literal, usize)>) -> Result<Test, ConditionError> {
        literal::equality(self.table.fields.get(id), literals)
    }

    fn literal(&mut self) -> Result<(Literal, usize), ConditionError> {
        let at = self.at;
        let literal = match self.advance()? {
            Token::Text(bytes) => Literal::Text(bytes),
            Token::Number(digits) => Literal::Number(literal::number(&digits, false, at)?),
            Token::Sign("-") => match self.advance()? {
                Token::Number(digits) => Literal::Number(literal::number(&digits, true, at)?),
                other => return Err(ConditionError::new(at, format!("'-' before {}", other.show()))),
            },
            Token::Ident(word) if word == "true" || word == "false" => Literal::Bool(word == "true"),
            other => {
                return Err(ConditionError::new(at, format!("{} where a literal is needed", other.show()))
                    .why("a field is compared with literals only")
                    .remedy("quote text, as in \"a.example\""));
            }
        };
        Ok((literal, at))
    }

    fn call(&mut self, id: FieldId, start: usize) -> Result<Expr, ConditionError> {
        let at = self.at;
        let name = match self.advance()? {
            Token::Ident(name) => name,
            other => return Err(ConditionError::new(at, format!("'.' followed by {}", other.show()))),
        };
        if !METHODS.contains(&name.as_str()) {
            let hint = nearest(&name, &METHODS).map_or_else(
                || format!("methods are {}", METHODS.join(", ")),
                |near| format!("did you mean {near}?"),
            );
            return Err(ConditionError::new(at, format!("unknown method {name}")).remedy(hint));
        }
        if !self.is("(") {
            let (field, argument) = (self.table.fields.get(id), if name == "exists" { "" } else { "\"..\"" });
            let remedy = format!("write {field}.{name}({argument})");
            return Err(self.unexpected(&format!("the brackets of {name}")).remedy(remedy));
        }
        self.advance()?;
        let argument_at = self.at;
        let argument = match &self.token {
            Token::Text(bytes) => Some(bytes.clone()),
            _ => None,
        };
        if argument.is_some() {
            self.advance()?;
        }
        self.expect(")")?;
        let field = self.table.fields.get(id).clone();
        if matches!(field.kind(), Kind::Number | Kind::Address) {
            let remedy = match field.kind() {
                Kind::Address => format!("write {field} in [\"10.0.0.0/8\"]"),
                _ => format!("write {field} == .. or {field} > .."),
            };
            return Err(ConditionError::new(at, format!("{field} has no method {name}"))
                .why(format!("{field} is not text"))
                .remedy(remedy));
        }
        if name == "exists" {
            return match (argument, field.optional()) {
                (Some(_), _) => Err(ConditionError::new(argument_at, "exists takes no argument")),
                (None, false) => Err(ConditionError::new(start, format!("{field}.exists() always holds"))
                    .why(format!("every request has {field}"))
                    .remedy("leave it out")),
                (None, true) => Ok(self.atom(id, Test::Exists)),
            };
        }
        let Some(argument) = argument else {
            return Err(ConditionError::new(argument_at, format!("{name} without a string"))
                .remedy(format!("write {field}.{name}(\"..\")")));
        };
        let test = literal::method(&field, &name, argument, at, argument_at, self.table, self.limits)?;
        Ok(self.atom(id, test))
    }

    fn field(&mut self) -> Result<Field, ConditionError> {
        let at = self.at;
        let Token::Ident(name) = self.token.clone() else { return Err(self.unexpected("a field")) };
        // The lexer reads the short form of the thesis in one piece, because its slashes are not operators.
        if name == "xml" {
            let (sign, sign_at) = self.lexer.next()?;
            if sign == Token::Sign(".") {
                let (path, path_at) = self.lexer.xml_path();
                self.advance()?;
                return literal::xml_path(path.into_bytes(), path_at);
            }
            self.token = sign;
            self.at = sign_at;
            let (path, path_at) = self.argument("xml")?;
            return literal::xml_path(path, path_at);
        }
        self.advance()?;
        let named = match name.as_str() {
            "method" => return Ok(Field::Method),
            "scheme" => return Ok(Field::Scheme),
            "host" => return Ok(Field::Host),
            "path" => return Ok(Field::Path),
            "query" | "header" | "cookie" | "form" | "json" => name.as_str(),
            "client" => return self.member(&name, &[("ip", Field::ClientIp), ("port", Field::ClientPort)]),
            "local" => return self.member(&name, &[("ip", Field::LocalIp), ("port", Field::LocalPort)]),
            "body" => return self.member(&name, &[("size", Field::BodySize)]),
            "tls" => {
                let members = [
                    ("sni", Field::Sni),
                    ("alpn", Field::Alpn),
                    ("version", Field::TlsVersion),
                    ("client_subject", Field::ClientSubject),
                ];
                return self.member(&name, &members);
            }
            _ => {
                let hint = match nearest(&name, &FIELDS) {
                    Some(near) => format!("did you mean {near}?"),
                    None => format!("fields are {}, body.size", FIELDS.join(", ")),
                };
                return Err(ConditionError::new(at, format!("unknown field {name}")).remedy(hint));
            }
        };
        let (argument, argument_at) = self.argument(named)?;
        literal::named_field(named, argument, argument_at)
    }

    fn argument(&mut self, field: &str) -> Result<(Vec<u8>, usize), ConditionError> {
        if !self.is("(") {
            return Err(self.unexpected(&format!("a name, as in {field}(\"..\")")));
        }
        self.advance()?;
        let at = self.at;
        let argument = match self.advance()? {
            Token::Text(bytes) => bytes,
            other => {
                return Err(ConditionError::new(at, format!("{field}(..) of {}", other.show()))
                    .remedy(format!("write {field}(\"..\")")));
            }
        };
        self.expect(")")?;
        Ok((argument, at))
    }

    fn member(&mut self, space: &str, members: &[(&str, Field)]) -> Result<Field, ConditionError> {
        let names: Vec<&str> = members.iter().map(|(name, _)| *name).collect();
        let list = names.iter().map(|name| format!("{space}.{name}")).collect::<Vec<_>>().join(", ");
        if !self.take(".")? {
            return Err(ConditionError::new(self.at, format!("{space} is not a field"))
                .remedy(format!("fields are {list}")));
        }
        let at = self.at;
        let Token::Ident(name) = self.advance()? else {
            return Err(ConditionError::new(at, format!("{space}. without a name"))
                .remedy(format!("fields are {list}")));
        };
        match members.iter().find(|(known, _)| *known == name) {
            Some((_, field)) => Ok(field.clone()),
            None => {
                let hint = match nearest(&name, &names) {
                    Some(near) => format!("did you mean {space}.{near}?"),
                    None => format!("fields are {list}"),
                };
                Err(ConditionError::new(at, format!("unknown field {space}.{name}")).remedy(hint))
            }
        }
    }
}
