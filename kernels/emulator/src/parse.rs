//! PTX text → a module: variables and functions, whose bodies are still words.
//!
//! Nothing is said here about what an instruction means; `decode` does that when a function is requested, so that a
//! module with one unknown instruction still serves its other kernels.

use std::collections::HashMap;

use crate::lexer::{Token, tokens};
use crate::program::Space;

/// A parsed module.
#[derive(Debug, Default)]
pub struct Module {
    /// `.global` and `.const` variables, to be placed in device memory when the module is loaded.
    pub globals: Vec<Variable>,
    /// `.shared` variables declared outside functions. `size` is `None` for `.extern .shared x[]`.
    pub shared: Vec<Variable>,
    /// Kernels by name.
    pub entries: HashMap<String, Function>,
}

/// A variable in memory.
#[derive(Debug, Clone)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// Where it lives.
    pub space: Space,
    /// Alignment in bytes.
    pub align: usize,
    /// Size in bytes; `None` if it has no size of its own.
    pub size: Option<usize>,
    /// What it holds at the start.
    pub initial: Vec<u8>,
}

/// A kernel as text.
#[derive(Debug)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Parameters in order.
    pub params: Vec<Variable>,
    /// Its statements.
    pub body: Vec<Statement>,
    /// Product of `.maxntid`, 1024 if not given.
    pub max_threads: u32,
}

/// One statement of a body.
#[derive(Debug)]
pub enum Statement {
    /// `{`: names declared from here on are local.
    Open,
    /// `}`
    Close,
    /// `name:`
    Label(String),
    /// `.reg .b32 %r<5>;` gives (`.b32`, `%r`, Some(5)).
    Register(String, String, Option<u32>),
    /// `.shared`, `.local` or `.param` variable.
    Variable(Variable),
    /// `name: .branchtargets a, b, c;`
    Targets(String, Vec<String>),
    /// An instruction.
    Instr(Words),
}

/// An instruction as words.
#[derive(Debug, Clone)]
pub struct Words {
    /// Guard predicate and whether it is negated.
    pub guard: Option<(String, bool)>,
    /// For example `ld.global.f32`.
    pub opcode: String,
    /// Its operands.
    pub operands: Vec<Operand>,
    /// Line in the PTX.
    pub line: u32,
}

/// An operand as written.
#[derive(Debug, Clone, PartialEq)]
pub enum Operand {
    /// Register, name or number; a minus sign is part of it, and `name+4` is one word.
    Word(String),
    /// `!%p`
    Not(String),
    /// `%r1|%p2`
    Pair(String, String),
    /// `{a, b}`
    Vector(Vec<Operand>),
    /// `[base+offset]`
    Address(String, i64),
}

/// Parses a module. The error says which line.
pub fn parse(text: &str) -> Result<Module, String> {
    let mut parser = Parser { tokens: tokens(text), at: 0 };
    let mut module = Module::default();
    while let Some(word) = parser.peek().map(str::to_owned) {
        match word.as_str() {
            ".version" | ".target" | ".address_size" | ".file" | ".section" | ".pragma" => parser.skip_line(),
            ".visible" | ".extern" | ".weak" | ".common" => parser.at += 1,
            ".global" | ".const" => module.globals.push(parser.variable(Space::Global)?),
            ".shared" => module.shared.push(parser.variable(Space::Shared)?),
            ".entry" => {
                let function = parser.entry()?;
                module.entries.insert(function.name.clone(), function);
            }
            ".func" => parser.skip_function()?,
            _ => return Err(parser.error(&format!("unexpected `{word}`"))),
        }
    }
    Ok(module)
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
}

impl Parser {
    fn peek(&self) -> Option<&str> {
        self.tokens.get(self.at).map(|t| t.text.as_str())
    }

    fn peek_after(&self) -> Option<&str> {
        self.tokens.get(self.at + 1).map(|t| t.text.as_str())
    }

    fn line(&self) -> u32 {
        self.tokens.get(self.at.min(self.tokens.len().saturating_sub(1))).map_or(0, |t| t.line)
    }

    fn error(&self, what: &str) -> String {
        format!("PTX line {}: {what}", self.line())
    }

    fn next(&mut self) -> Result<String, String> {
        let word = self.peek().ok_or_else(|| self.error("the text ends too early"))?.to_owned();
        self.at += 1;
        Ok(word)
    }

    fn take(&mut self, word: &str) -> bool {
        let found = self.peek() == Some(word);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, word: &str) -> Result<(), String> {
        if self.take(word) {
            Ok(())
        } else {
            Err(self.error(&format!("expected `{word}`, found `{}`", self.peek().unwrap_or(""))))
        }
    }

    fn number(&mut self) -> Result<i64, String> {
        let negative = self.take("-");
        let word = self.next()?;
        let value = integer(&word).ok_or_else(|| self.error(&format!("`{word}` is not a number")))?;
        Ok(if negative { value.wrapping_neg() } else { value })
    }

    fn skip_line(&mut self) {
        let line = self.line();
        while self.at < self.tokens.len() && self.line() == line {
            self.at += 1;
        }
    }

    /// Device functions are inlined by NVRTC; a call of one that is left is refused by `decode`.
    fn skip_function(&mut self) -> Result<(), String> {
        let mut depth = 0;
        loop {
            match self.next()?.as_str() {
                "{" => depth += 1,
                "}" if depth == 1 => return Ok(()),
                "}" => depth -= 1,
                ";" if depth == 0 => return Ok(()),
                _ => {}
            }
        }
    }

    /// `.space .align 4 .b8 name[16] = {1, 2};` The word at hand is the state space.
    fn variable(&mut self, space: Space) -> Result<Variable, String> {
        self.at += 1;
        let variable = self.variable_body(space)?;
        self.expect(";")?;
        Ok(variable)
    }

    fn variable_body(&mut self, space: Space) -> Result<Variable, String> {
        let mut align = 0;
        let mut element = 0;
        loop {
            match self.peek().unwrap_or("") {
                ".align" => {
                    self.at += 1;
                    align = self.number()? as usize;
                }
                ".ptr" | ".global" | ".const" | ".shared" | ".managed" | ".attribute" => self.at += 1,
                word if word.starts_with('.') => {
                    element = type_bytes(word).ok_or_else(|| self.error(&format!("`{word}` is not a type")))?;
                    self.at += 1;
                }
                _ => break,
            }
        }
        let name = self.next()?;
        let mut size = Some(element);
        while self.take("[") {
            if self.take("]") {
                size = None;
            } else {
                let count = self.number()? as usize;
                size = size.map(|s| s * count);
                self.expect("]")?;
            }
        }
        let mut initial = Vec::new();
        if self.take("=") {
            let braces = self.take("{");
            loop {
                let bytes = self.initial_value(element)?;
                initial.extend(bytes);
                if !self.take(",") {
                    break;
                }
            }
            if braces {
                self.expect("}")?;
            }
        }
        Ok(Variable { name, space, align: if align == 0 { element } else { align }, size, initial })
    }

    fn initial_value(&mut self, element: usize) -> Result<Vec<u8>, String> {
        let negative = self.take("-");
        let word = self.next()?;
        let bits = float_bits(&word).or_else(|| integer(&word).map(|v| v as u64));
        let bits = bits.ok_or_else(|| self.error(&format!("cannot initialise a variable with `{word}`")))?;
        let bits = if negative { bits.wrapping_neg() } else { bits };
        Ok(bits.to_le_bytes()[..element].to_vec())
    }

    fn entry(&mut self) -> Result<Function, String> {
        self.at += 1;
        let name = self.next()?;
        let mut params = Vec::new();
        if self.take("(") {
            while !self.take(")") {
                self.expect(".param")?;
                params.push(self.variable_body(Space::Param)?);
                self.take(",");
            }
        }
        let mut max_threads = 1024;
        while self.peek() != Some("{") {
            let word = self.next()?;
            if word == ".maxntid" || word == ".reqntid" {
                max_threads = self.number()? as u32;
                while self.take(",") {
                    max_threads *= self.number()? as u32;
                }
            }
        }
        let body = self.body()?;
        Ok(Function { name, params, body, max_threads })
    }

    fn body(&mut self) -> Result<Vec<Statement>, String> {
        let mut body = Vec::new();
        let mut depth = 0;
        loop {
            let word = self.peek().ok_or_else(|| self.error("a function does not end"))?.to_owned();
            match word.as_str() {
                "{" => {
                    self.at += 1;
                    depth += 1;
                    body.push(Statement::Open);
                }
                "}" => {
                    self.at += 1;
                    depth -= 1;
                    body.push(Statement::Close);
                    if depth == 0 {
                        return Ok(body);
                    }
                }
                ";" => self.at += 1,
                ".reg" => self.registers(&mut body)?,
                ".shared" => body.push(Statement::Variable(self.variable(Space::Shared)?)),
                ".local" => body.push(Statement::Variable(self.variable(Space::Local)?)),
                ".param" => body.push(Statement::Variable(self.variable(Space::Param)?)),
                ".loc" | ".pragma" | ".file" => self.skip_line(),
                _ if self.peek_after() == Some(":") => {
                    self.at += 2;
                    if self.take(".branchtargets") {
                        let mut labels = vec![self.next()?];
                        while self.take(",") {
                            labels.push(self.next()?);
                        }
                        self.expect(";")?;
                        body.push(Statement::Targets(word, labels));
                    } else {
                        body.push(Statement::Label(word));
                    }
                }
                _ => body.push(Statement::Instr(self.instruction()?)),
            }
        }
    }

    /// `.reg .f32 %f<5>, a, b;`
    fn registers(&mut self, body: &mut Vec<Statement>) -> Result<(), String> {
        self.at += 1;
        let ty = self.next()?;
        loop {
            let name = self.next()?;
            let count = if self.take("<") {
                let count = self.number()? as u32;
                self.expect(">")?;
                Some(count)
            } else {
                None
            };
            body.push(Statement::Register(ty.clone(), name, count));
            if !self.take(",") {
                break;
            }
        }
        self.expect(";")
    }

    fn instruction(&mut self) -> Result<Words, String> {
        let line = self.line();
        let guard = if self.take("@") {
            let negate = self.take("!");
            Some((self.next()?, negate))
        } else {
            None
        };
        let opcode = self.next()?;
        let mut operands = Vec::new();
        while !self.take(";") {
            operands.push(self.operand()?);
            self.take(",");
        }
        Ok(Words { guard, opcode, operands, line })
    }

    fn operand(&mut self) -> Result<Operand, String> {
        if self.take("[") {
            let base = self.word()?;
            let mut offset = 0;
            while self.take("+") {
                offset += self.number()?;
            }
            self.expect("]")?;
            return Ok(Operand::Address(base, offset));
        }
        if self.take("!") {
            return Ok(Operand::Not(self.next()?));
        }
        for (open, close) in [("{", "}"), ("(", ")")] {
            if self.take(open) {
                let mut parts = Vec::new();
                while !self.take(close) {
                    parts.push(self.operand()?);
                    self.take(",");
                }
                return Ok(Operand::Vector(parts));
            }
        }
        let word = self.word()?;
        if self.take("|") {
            return Ok(Operand::Pair(word, self.next()?));
        }
        if self.take("+") {
            let offset = self.number()?;
            return Ok(Operand::Word(format!("{word}+{offset}")));
        }
        Ok(Operand::Word(word))
    }

    fn word(&mut self) -> Result<String, String> {
        if self.take("-") { Ok(format!("-{}", self.next()?)) } else { self.next() }
    }
}

/// A decimal, hexadecimal, octal or binary number, perhaps with a sign or a `U`.
pub fn integer(word: &str) -> Option<i64> {
    if let Some(rest) = word.strip_prefix('-') {
        return integer(rest).map(i64::wrapping_neg);
    }
    let digits = word.trim_end_matches(['U', 'u']);
    let parsed = if let Some(hex) = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        u64::from_str_radix(hex, 16)
    } else if let Some(binary) = digits.strip_prefix("0b").or_else(|| digits.strip_prefix("0B")) {
        u64::from_str_radix(binary, 2)
    } else if digits.len() > 1 && digits.starts_with('0') {
        u64::from_str_radix(&digits[1..], 8)
    } else {
        digits.parse()
    };
    parsed.ok().map(|v| v as i64)
}

/// The bits of `0f3F800000` or `0d3FF0000000000000`.
pub fn float_bits(word: &str) -> Option<u64> {
    let (prefix, hex) = word.split_at_checked(2)?;
    match (prefix, hex.len()) {
        ("0f" | "0F", 8) | ("0d" | "0D", 16) => u64::from_str_radix(hex, 16).ok(),
        _ => None,
    }
}

fn type_bytes(word: &str) -> Option<usize> {
    Some(match word {
        ".b8" | ".u8" | ".s8" => 1,
        ".b16" | ".u16" | ".s16" | ".f16" | ".bf16" => 2,
        ".b32" | ".u32" | ".s32" | ".f32" => 4,
        ".b64" | ".u64" | ".s64" | ".f64" => 8,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_module_is_read() {
        let module = parse(
            ".version 8.4\n.target sm_80\n.address_size 64\n.global .align 4 .b8 t[4] = {1, 2, 0xff};\n\
             .extern .shared .align 16 .b8 dyn[];\n\
             .visible .entry k(.param .u64 a, .param .align 8 .b8 s[24])\n.maxntid 64, 2, 1\n{\n.reg .b32 %r<3>;\n\
             @!%p1 bra $L;\nshfl.sync.up.b32 %r1|%p2, %r2, 1, 0, -1;\n$L: ret;\n}",
        )
        .unwrap();
        assert_eq!(module.globals[0].initial, [1, 2, 255]);
        assert_eq!(module.shared[0].size, None);
        let k = &module.entries["k"];
        assert_eq!((k.max_threads, k.params[1].size, k.params[1].align), (128, Some(24), 8));
        let Statement::Instr(words) = &k.body[3] else { panic!("{:?}", k.body) };
        assert_eq!(words.operands[0], Operand::Pair("%r1".into(), "%p2".into()));
        assert_eq!(words.operands[4], Operand::Word("-1".into()));
    }

    #[test]
    fn a_broken_module_says_where() {
        assert_eq!(parse(".version 8.4\nrubbish").unwrap_err(), "PTX line 2: unexpected `rubbish`");
    }

    #[test]
    fn text_that_ends_anywhere_is_an_error_and_not_a_panic() {
        let whole = include_str!("../tests/ptx/simple.ptx");
        for end in (0..whole.len()).step_by(13) {
            let _ = parse(&whole[..end]);
            let _ = parse(&whole[end..]);
        }
    }

    #[test]
    fn numbers_of_every_kind() {
        assert_eq!(integer("-0x10"), Some(-16));
        assert_eq!(integer("017"), Some(15));
        assert_eq!(integer("0b101"), Some(5));
        assert_eq!(float_bits("0f3F800000"), Some(0x3f80_0000));
        assert_eq!(float_bits("0d3FF0000000000000"), Some(1f64.to_bits()));
    }
}
