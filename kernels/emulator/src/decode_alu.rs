//! Decodes arithmetic: integers, floats, comparisons, conversions, moves. Part of `decode`.

use crate::decode::{Decoder, Form, type_of};
use crate::parse::{Operand, integer};
use crate::program::*;

impl Decoder<'_> {
    /// An arithmetic instruction, or `None` if it is not one.
    pub(crate) fn arithmetic(&mut self, form: &Form) -> Result<Option<Op>, String> {
        if form.base == "mov" {
            return self.mov(form).map(Some);
        }
        if form.base == "cvt" {
            return self.convert(form).map(Some);
        }
        if matches!(form.base, "setp" | "selp" | "testp") {
            return self.compare(form).map(Some);
        }
        if let Some(op) = self.packed(form)? {
            return Ok(Some(op));
        }
        match form.ty()? {
            Type::Pred => self.logic(form),
            Type::F32 => self.float(form),
            Type::F64 => self.double(form),
            Type::U16 | Type::S16 => self.short(form),
            Type::U32 | Type::S32 => self.int(form),
            Type::U64 | Type::S64 => self.long_int(form),
            _ => Ok(None),
        }
    }

    fn int(&mut self, form: &Form) -> Result<Option<Op>, String> {
        let signed = form.ty()?.is_signed();
        if form.has("cc") || form.has("sat") {
            return Ok(None);
        }
        if form.has("wide") {
            let (a, b) = (self.word(form.operand(1)?)?, self.word(form.operand(2)?)?);
            let d = self.to_long(form.operand(0)?)?;
            return Ok(match form.base {
                "mul" => Some(Op::MulWide { signed, d, a, b }),
                "mad" => Some(Op::MadWide { signed, d, a, b, c: self.long(form.operand(3)?)? }),
                _ => None,
            });
        }
        if let Some(f) = int1(form, signed) {
            return Ok(Some(Op::Int1 { f, d: self.to_word(form.operand(0)?)?, a: self.word(form.operand(1)?)? }));
        }
        if let Some(f) = int2(form, signed) {
            let (a, b) = (self.word(form.operand(1)?)?, self.word(form.operand(2)?)?);
            return Ok(Some(Op::Int2 { f, d: self.to_word(form.operand(0)?)?, a, b }));
        }
        let f = match form.base {
            "mad" if form.has("hi") => pick(signed, Int3::MadHiS, Int3::MadHiU),
            "mad" => Int3::MadLo,
            "sad" => pick(signed, Int3::SadS, Int3::SadU),
            "bfe" => pick(signed, Int3::BfeS, Int3::BfeU),
            "dp4a" => pick(signed, Int3::Dp4aS, Int3::Dp4aU),
            "shf" => match (form.has("l"), form.has("wrap")) {
                (true, true) => Int3::ShfLWrap,
                (true, false) => Int3::ShfLClamp,
                (false, true) => Int3::ShfRWrap,
                (false, false) => Int3::ShfRClamp,
            },
            "prmt" if form.mods == ["b32"] => Int3::Prmt,
            "bfi" => {
                let d = self.to_word(form.operand(0)?)?;
                let (a, b) = (self.word(form.operand(1)?)?, self.word(form.operand(2)?)?);
                let (pos, len) = (self.word(form.operand(3)?)?, self.word(form.operand(4)?)?);
                return Ok(Some(Op::Bfi { d, a, b, pos, len }));
            }
            "lop3" => {
                let table = integer(form.name(4)?).ok_or("the table of lop3 is not a number")? as u8;
                let (d, [a, b, c]) = self.words3(form)?;
                return Ok(Some(Op::Lop3 { d, a, b, c, table }));
            }
            _ => return Ok(None),
        };
        let (d, [a, b, c]) = self.words3(form)?;
        Ok(Some(Op::Int3 { f, d, a, b, c }))
    }

    fn short(&mut self, form: &Form) -> Result<Option<Op>, String> {
        let signed = form.ty()?.is_signed();
        let d = self.to_word(form.operand(0)?)?;
        let a = self.word(form.operand(1)?)?;
        if form.has("wide") && form.base == "mul" {
            return Ok(Some(Op::MulWideShort { signed, d, a, b: self.word(form.operand(2)?)? }));
        }
        if let Some(f @ (Int1::Neg | Int1::Not | Int1::Abs)) = int1(form, signed) {
            return Ok(Some(Op::Short1 { f, d, a }));
        }
        Ok(match int2(form, signed) {
            Some(f) if !form.has("hi") && !form.has("sat") => {
                Some(Op::Short2 { f, signed, d, a, b: self.word(form.operand(2)?)? })
            }
            _ => None,
        })
    }

    fn long_int(&mut self, form: &Form) -> Result<Option<Op>, String> {
        let signed = form.ty()?.is_signed();
        if form.has("cc") {
            return Ok(None);
        }
        if let Some(f) = int1(form, signed) {
            let a = self.long(form.operand(1)?)?;
            return Ok(Some(match f {
                Int1::Neg | Int1::Not | Int1::Abs | Int1::Brev => {
                    Op::Long1 { f, d: self.to_long(form.operand(0)?)?, a }
                }
                _ => Op::LongTo32 { f, d: self.to_word(form.operand(0)?)?, a },
            }));
        }
        if let Some(f) = int2(form, signed) {
            let d = self.to_long(form.operand(0)?)?;
            let a = self.long(form.operand(1)?)?;
            if matches!(f, Int2::Shl | Int2::ShrS | Int2::ShrU) {
                return Ok(Some(Op::LongShift { f, d, a, b: self.word(form.operand(2)?)? }));
            }
            return Ok(Some(Op::Long2 { f, d, a, b: self.long(form.operand(2)?)? }));
        }
        if form.base == "mad" && form.has("lo") {
            let d = self.to_long(form.operand(0)?)?;
            let (a, b) = (self.long(form.operand(1)?)?, self.long(form.operand(2)?)?);
            return Ok(Some(Op::LongMad { d, a, b, c: self.long(form.operand(3)?)? }));
        }
        Ok(None)
    }

    fn float(&mut self, form: &Form) -> Result<Option<Op>, String> {
        let how = form.finish();
        if how.round != Round::Nearest && !matches!(form.base, "add" | "sub" | "mul" | "fma") {
            return Ok(None);
        }
        if let Some(f) = float1(form) {
            let (d, a) = (self.to_word(form.operand(0)?)?, self.word(form.operand(1)?)?);
            return Ok(Some(Op::Float1 { f, how, d, a }));
        }
        if let Some(f) = float2(form) {
            let (a, b) = (self.word(form.operand(1)?)?, self.word(form.operand(2)?)?);
            return Ok(Some(Op::Float2 { f, how, d: self.to_word(form.operand(0)?)?, a, b }));
        }
        if matches!(form.base, "fma" | "mad") {
            let (d, [a, b, c]) = self.words3(form)?;
            return Ok(Some(Op::Fma { how, d, a, b, c }));
        }
        Ok(None)
    }

    fn double(&mut self, form: &Form) -> Result<Option<Op>, String> {
        let how = form.finish();
        if how.round != Round::Nearest || how.sat {
            return Ok(None);
        }
        if let Some(f) = float1(form) {
            let f = match f {
                Float1::Rcp if form.has("approx") => Float1::RcpUpper,
                Float1::Rsqrt => Float1::RsqrtUpper,
                other => other,
            };
            let (d, a) = (self.to_long(form.operand(0)?)?, self.long(form.operand(1)?)?);
            return Ok(Some(Op::Double1 { f, d, a }));
        }
        if let Some(f) = float2(form) {
            let (a, b) = (self.long(form.operand(1)?)?, self.long(form.operand(2)?)?);
            return Ok(Some(Op::Double2 { f, d: self.to_long(form.operand(0)?)?, a, b }));
        }
        if matches!(form.base, "fma" | "mad") {
            let d = self.to_long(form.operand(0)?)?;
            let (a, b) = (self.long(form.operand(1)?)?, self.long(form.operand(2)?)?);
            return Ok(Some(Op::DoubleFma { d, a, b, c: self.long(form.operand(3)?)? }));
        }
        Ok(None)
    }

    /// f16, bf16 and their pairs.
    fn packed(&mut self, form: &Form) -> Result<Option<Op>, String> {
        let bf16 = form.has("bf16") || form.has("bf16x2");
        if !bf16 && !form.has("f16") && !form.has("f16x2") {
            return Ok(None);
        }
        let f = match form.base {
            "add" => Packed::Add,
            "sub" => Packed::Sub,
            "mul" => Packed::Mul,
            "fma" => Packed::Fma,
            "min" if !form.has("NaN") => Packed::Min,
            "max" if !form.has("NaN") => Packed::Max,
            "neg" => Packed::Neg,
            "abs" => Packed::Abs,
            _ => return Ok(None),
        };
        if form.has("relu") || form.has("sat") {
            return Ok(None);
        }
        let d = self.to_word(form.operand(0)?)?;
        let a = self.word(form.operand(1)?)?;
        let b = form.operands.get(2).map_or(Ok(a), |o| self.word(o))?;
        let c = form.operands.get(3).map_or(Ok(a), |o| self.word(o))?;
        let pair = form.has("bf16x2") || form.has("f16x2");
        Ok(Some(Op::Packed { f, bf16, pair, d, a, b, c }))
    }

    fn logic(&mut self, form: &Form) -> Result<Option<Op>, String> {
        let f = match form.base {
            "and" => Logic::And,
            "or" => Logic::Or,
            "xor" => Logic::Xor,
            "not" => {
                let a = self.predicate(form.operand(1)?)?;
                let a = Guard { negate: !a.negate, ..a };
                return Ok(Some(Op::MovPred { d: self.to_pred(form.operand(0)?)?, a }));
            }
            _ => return Ok(None),
        };
        let (a, b) = (self.predicate(form.operand(1)?)?, self.predicate(form.operand(2)?)?);
        Ok(Some(Op::Logic { f, d: self.to_pred(form.operand(0)?)?, a, b }))
    }

    fn compare(&mut self, form: &Form) -> Result<Op, String> {
        let ty = form.ty()?;
        let wide = ty.bytes() == 8;
        if form.base == "testp" {
            let what = match form.mods[0] {
                "finite" => Testp::Finite,
                "infinite" => Testp::Infinite,
                "number" => Testp::Number,
                "notanumber" => Testp::NotANumber,
                "normal" => Testp::Normal,
                "subnormal" => Testp::Subnormal,
                _ => return Err("unknown property".into()),
            };
            let a = if wide { self.long(form.operand(1)?)? } else { self.word(form.operand(1)?)? };
            return Ok(Op::Testp { what, wide, d: self.to_pred(form.operand(0)?)?, a });
        }
        if form.base == "selp" {
            let p = self.predicate(form.operand(3)?)?;
            let (mut a, mut b) = (form.operand(1)?, form.operand(2)?);
            if p.negate {
                (a, b) = (b, a);
            }
            return Ok(if ty == Type::Pred {
                let (a, b) = (self.predicate(a)?, self.predicate(b)?);
                Op::SelectPred { d: self.to_pred(form.operand(0)?)?, a, b, p: p.slot }
            } else if wide {
                Op::Select64 { d: self.to_long(form.operand(0)?)?, a: self.long(a)?, b: self.long(b)?, p: p.slot }
            } else {
                Op::Select32 { d: self.to_word(form.operand(0)?)?, a: self.word(a)?, b: self.word(b)?, p: p.slot }
            });
        }
        let cmp = match form.mods[0] {
            "eq" => Compare::Eq,
            "ne" => Compare::Ne,
            "lt" | "lo" => Compare::Lt,
            "le" | "ls" => Compare::Le,
            "gt" | "hi" => Compare::Gt,
            "ge" | "hs" => Compare::Ge,
            "equ" => Compare::EqU,
            "neu" => Compare::NeU,
            "ltu" => Compare::LtU,
            "leu" => Compare::LeU,
            "gtu" => Compare::GtU,
            "geu" => Compare::GeU,
            "num" => Compare::Num,
            "nan" => Compare::Nan,
            other => return Err(format!("unknown comparison {other}")),
        };
        let with = match form.mods.get(1) {
            Some(&"and") => Some(Logic::And),
            Some(&"or") => Some(Logic::Or),
            Some(&"xor") => Some(Logic::Xor),
            _ => None,
        };
        let with = with.map(|f| Ok::<_, String>((f, self.predicate(form.operand(3)?)?))).transpose()?;
        let (d, q) = match form.operand(0)? {
            Operand::Pair(d, q) => {
                let q = if q == "_" { None } else { Some(self.to_pred(&Operand::Word(q.clone()))?) };
                (self.to_pred(&Operand::Word(d.clone()))?, q)
            }
            operand => (self.to_pred(operand)?, None),
        };
        let (a, b) = if wide {
            (self.long(form.operand(1)?)?, self.long(form.operand(2)?)?)
        } else {
            (self.word(form.operand(1)?)?, self.word(form.operand(2)?)?)
        };
        if !matches!(ty.bytes(), 2 | 4 | 8) {
            return Err("this type is not emulated".into());
        }
        Ok(Op::Setp { ty, cmp, ftz: form.has("ftz"), d, q, a, b, with })
    }

    fn mov(&mut self, form: &Form) -> Result<Op, String> {
        let (to, from) = (form.operand(0)?, form.operand(1)?);
        let ty = form.ty()?;
        match (to, from) {
            (_, Operand::Vector(parts)) => self.pack(to, parts),
            (Operand::Vector(parts), _) => self.unpack(parts, from),
            _ if ty == Type::Pred => {
                let d = self.to_pred(to)?;
                if let Operand::Word(word) = from
                    && let Some(value) = integer(word)
                {
                    return Ok(Op::ConstPred { d, value: value != 0 });
                }
                Ok(Op::MovPred { d, a: self.predicate(from)? })
            }
            (_, Operand::Word(name)) if matches!(name.as_str(), "%clock" | "%clock64" | "%globaltimer" | "%gridid") => {
                Ok(Op::Clock { d: self.register(to)? })
            }
            _ if ty.bytes() == 8 => Ok(Op::Mov64 { d: self.to_long(to)?, a: self.long(from)? }),
            _ if ty.bytes() == 2 => Ok(Op::Mov16 { d: self.to_word(to)?, a: self.word(from)? }),
            _ => Ok(Op::Mov32 { d: self.to_word(to)?, a: self.word(from)? }),
        }
    }

    fn pack(&mut self, to: &Operand, parts: &[Operand]) -> Result<Op, String> {
        let slots = parts.iter().map(|p| self.word(p)).collect::<Result<Vec<_>, _>>()?;
        match (self.register(to)?, slots.as_slice()) {
            (Reg::Long(d), &[lo, hi]) => Ok(Op::Pack64 { d, lo, hi }),
            (Reg::Long(d), &[a, b, c, e]) => Ok(Op::Pack64From16 { d, parts: [a, b, c, e] }),
            (Reg::Word(d), &[lo, hi]) => Ok(Op::Pack32 { d, lo, hi }),
            _ => Err("this way of packing is not emulated".into()),
        }
    }

    fn unpack(&mut self, parts: &[Operand], from: &Operand) -> Result<Op, String> {
        let regs = parts.iter().map(|p| self.register(p)).collect::<Result<Vec<_>, _>>()?;
        let wide = matches!(from, Operand::Word(name) if matches!(self.lookup(name), Some(Reg::Long(_))));
        match *regs.as_slice() {
            [lo, hi] if wide => Ok(Op::Unpack64 { lo, hi, a: self.long(from)? }),
            [lo, hi] => Ok(Op::Unpack32 { lo, hi, a: self.word(from)? }),
            [a, b, c, d] if wide => Ok(Op::Unpack64To16 { d: [a, b, c, d], a: self.long(from)? }),
            _ => Err("this way of unpacking is not emulated".into()),
        }
    }

    fn convert(&mut self, form: &Form) -> Result<Op, String> {
        if form.has("bf16x2") || form.has("f16x2") {
            if form.mods.last() != Some(&"f32") || !form.has("rn") {
                return Err("this conversion is not emulated".into());
            }
            let d = self.to_word(form.operand(0)?)?;
            let (hi, lo) = (self.word(form.operand(1)?)?, self.word(form.operand(2)?)?);
            return Ok(Op::CvtPair { bf16: form.has("bf16x2"), relu: form.has("relu"), d, hi, lo });
        }
        let mut types = form.mods.iter().rev().filter_map(|m| type_of(m));
        let (Some(from), Some(to)) = (types.next(), types.next()) else { return Err("two types are needed".into()) };
        let integer = form.mods.iter().any(|m| matches!(*m, "rni" | "rzi" | "rmi" | "rpi"));
        if form.has("relu") || to == Type::Pred || from == Type::Pred {
            return Err("this conversion is not emulated".into());
        }
        let a = self.source(form.operand(1)?, from)?;
        Ok(Op::Cvt { d: self.register(form.operand(0)?)?, a, to, from, how: form.finish(), integer })
    }

    fn words3(&mut self, form: &Form) -> Result<(Slot, [Slot; 3]), String> {
        let d = self.to_word(form.operand(0)?)?;
        Ok((d, [self.word(form.operand(1)?)?, self.word(form.operand(2)?)?, self.word(form.operand(3)?)?]))
    }
}

fn pick<T>(signed: bool, yes: T, no: T) -> T {
    if signed { yes } else { no }
}

fn int1(form: &Form, signed: bool) -> Option<Int1> {
    Some(match form.base {
        "neg" => Int1::Neg,
        "not" => Int1::Not,
        "abs" => Int1::Abs,
        "popc" => Int1::Popc,
        "clz" => Int1::Clz,
        "brev" => Int1::Brev,
        "bfind" if form.has("shiftamt") => pick(signed, Int1::FindShiftS, Int1::FindShiftU),
        "bfind" => pick(signed, Int1::FindS, Int1::FindU),
        _ => return None,
    })
}

fn int2(form: &Form, signed: bool) -> Option<Int2> {
    Some(match form.base {
        "add" => Int2::Add,
        "sub" => Int2::Sub,
        "mul" if form.has("hi") => pick(signed, Int2::MulHiS, Int2::MulHiU),
        "mul" if form.has("lo") => Int2::MulLo,
        "div" => pick(signed, Int2::DivS, Int2::DivU),
        "rem" => pick(signed, Int2::RemS, Int2::RemU),
        "min" => pick(signed, Int2::MinS, Int2::MinU),
        "max" => pick(signed, Int2::MaxS, Int2::MaxU),
        "and" => Int2::And,
        "or" => Int2::Or,
        "xor" => Int2::Xor,
        "shl" => Int2::Shl,
        "shr" => pick(signed, Int2::ShrS, Int2::ShrU),
        _ => return None,
    })
}

fn float1(form: &Form) -> Option<Float1> {
    Some(match form.base {
        "neg" => Float1::Neg,
        "abs" => Float1::Abs,
        "sqrt" => Float1::Sqrt,
        "rsqrt" => Float1::Rsqrt,
        "rcp" => Float1::Rcp,
        "ex2" => Float1::Exp2,
        "lg2" => Float1::Log2,
        "sin" => Float1::Sin,
        "cos" => Float1::Cos,
        "tanh" => Float1::Tanh,
        _ => return None,
    })
}

fn float2(form: &Form) -> Option<Float2> {
    Some(match form.base {
        "add" => Float2::Add,
        "sub" => Float2::Sub,
        "mul" => Float2::Mul,
        "div" => Float2::Div,
        "min" if form.has("NaN") => Float2::MinNan,
        "max" if form.has("NaN") => Float2::MaxNan,
        "min" if form.mods.len() <= 2 => Float2::Min,
        "max" if form.mods.len() <= 2 => Float2::Max,
        "copysign" => Float2::Copysign,
        _ => return None,
    })
}
