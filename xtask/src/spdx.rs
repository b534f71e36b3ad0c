//! Licence expressions: is there a way to take this that the list allows?

/// Whether `expression` can be satisfied with licences of `allowed` alone. `OR` needs one side, `AND` both; `/` is the old spelling of `OR`; a
/// licence with an exception is allowed only as written in full.
///
/// # Errors
/// What in the expression cannot be read.
pub(crate) fn is_allowed(expression: &str, allowed: &[String]) -> Result<bool, String> {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let tokens: Vec<&str> = spaced.split_whitespace().collect();
    let mut parser = Parser { tokens: &tokens, at: 0, allowed };
    let value = parser.or()?;
    match parser.peek() {
        None => Ok(value),
        Some(token) => Err(format!("`{token}` is not expected there")),
    }
}

struct Parser<'a> {
    tokens: &'a [&'a str],
    at: usize,
    allowed: &'a [String],
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<&'a str> {
        self.tokens.get(self.at).copied()
    }

    fn eat(&mut self, token: &str) -> bool {
        let found = self.peek() == Some(token);
        if found {
            self.at += 1;
        }
        found
    }

    fn or(&mut self) -> Result<bool, String> {
        let mut value = self.and()?;
        while self.eat("OR") {
            value |= self.and()?;
        }
        Ok(value)
    }

    fn and(&mut self) -> Result<bool, String> {
        let mut value = self.licence()?;
        while self.eat("AND") {
            value &= self.licence()?;
        }
        Ok(value)
    }

    fn licence(&mut self) -> Result<bool, String> {
        if self.eat("(") {
            let value = self.or()?;
            return if self.eat(")") { Ok(value) } else { Err("`)` is missing".to_owned()) };
        }
        let Some(name) = self.peek().filter(|token| !["OR", "AND", "WITH", ")"].contains(token))
        else {
            return Err("a licence is missing".to_owned());
        };
        self.at += 1;
        let mut full = name.to_owned();
        if self.eat("WITH") {
            let exception =
                self.peek().ok_or_else(|| "the exception after WITH is missing".to_owned())?;
            self.at += 1;
            full = format!("{name} WITH {exception}");
        }
        Ok(self.allowed.contains(&full))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_weighed() {
        let allowed: Vec<String> = ["MIT", "Apache-2.0", "Unicode-3.0"].map(str::to_owned).to_vec();
        let cases = [
            ("MIT", true),
            ("GPL-3.0", false),
            ("MIT OR GPL-3.0", true),
            ("GPL-3.0 OR MIT", true),
            ("MIT AND GPL-3.0", false),
            ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
            ("(MIT OR Apache-2.0) AND NCSA", false),
            ("MIT/Apache-2.0", true),
            ("GPL-3.0 AND MIT OR Apache-2.0", true),
            ("GPL-3.0 AND (MIT OR Apache-2.0)", false),
            ("Apache-2.0 WITH LLVM-exception", false),
            ("Apache-2.0 WITH LLVM-exception OR Apache-2.0 OR MIT", true),
        ];
        for (expression, expected) in cases {
            assert_eq!(is_allowed(expression, &allowed), Ok(expected), "{expression}");
        }
        assert_eq!(
            is_allowed(
                "Apache-2.0 WITH LLVM-exception",
                &["Apache-2.0 WITH LLVM-exception".into()]
            ),
            Ok(true)
        );
    }

    #[test]
    fn rubbish_is_an_error() {
        for expression in ["", "MIT OR", "AND MIT", "(MIT", "MIT)", "MIT Apache-2.0", "MIT WITH"] {
            assert!(is_allowed(expression, &["MIT".into()]).is_err(), "{expression}");
        }
    }
}
