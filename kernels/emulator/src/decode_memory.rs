//! Decodes what touches memory or other lanes: loads, stores, atomics, copies, matrices, shuffles, votes. Part of
//! `decode`.

use crate::decode::{Decoder, Form};
use crate::parse::{Operand, integer};
use crate::program::*;

impl Decoder<'_> {
    /// Such an instruction, or `None` if it is not one.
    pub(crate) fn memory(&mut self, form: &Form) -> Result<Option<Op>, String> {
        Ok(Some(match form.base {
            "ld" | "ldu" => self.load(form)?,
            "st" => self.store(form)?,
            "atom" | "red" => self.atomic(form)?,
            "cp" => self.copy(form)?,
            "ldmatrix" => self.load_matrix(form)?,
            "mma" => self.mma(form)?,
            "cvta" => self.cvta(form)?,
            "isspacep" => {
                let d = self.to_pred(form.operand(0)?)?;
                Op::IsSpace { space: space(form)?, d, a: self.long(form.operand(1)?)? }
            }
            "shfl" => self.shuffle(form)?,
            "vote" => self.vote(form)?,
            "redux" => {
                let f = atomic_op(form).ok_or("unknown reduction")?;
                let d = self.to_word(form.operand(0)?)?;
                let (a, members) = (self.word(form.operand(1)?)?, self.word(form.operand(2)?)?);
                Op::Redux { f, signed: form.has("s32"), d, a, members }
            }
            "match" => {
                let (d, p) = self.pair(form.operand(0)?)?;
                let wide = form.has("b64");
                let a = if wide { self.long(form.operand(1)?)? } else { self.word(form.operand(1)?)? };
                Op::Match { all: form.has("all"), wide, d, p, a, members: self.word(form.operand(2)?)? }
            }
            "activemask" => Op::ActiveMask { d: self.to_word(form.operand(0)?)? },
            _ => return Ok(None),
        }))
    }

    fn load(&mut self, form: &Form) -> Result<Op, String> {
        let at = form.operand(1)?;
        let space = space(form)?;
        if space == Space::Param && self.is_call_param(at) {
            return Ok(Op::Nop); // the result of vprintf, which nobody needs
        }
        if form.has("L2::cache_hint") {
            return Err("cache policies are not emulated".into());
        }
        let ty = form.ty()?;
        let (d, n) = self.vector(form.operand(0)?, |me, o| me.register(o))?;
        Ok(Op::Load { space, ty, d, n, at: self.address(at, space)? })
    }

    fn store(&mut self, form: &Form) -> Result<Op, String> {
        let at = form.operand(0)?;
        let space = space(form)?;
        if space == Space::Param && self.is_call_param(at) {
            return Ok(Op::Nop); // an argument of vprintf or __assertfail
        }
        if space == Space::Param || form.has("L2::cache_hint") {
            return Err("this store is not emulated".into());
        }
        let ty = form.ty()?;
        let (a, n) = self.vector(form.operand(1)?, |me, o| me.source(o, ty))?;
        Ok(Op::Store { space, ty, a, n, at: self.address(at, space)? })
    }

    /// One register, or two or four in braces.
    fn vector(
        &mut self,
        operand: &Operand,
        mut resolve: impl FnMut(&mut Self, &Operand) -> Result<Reg, String>,
    ) -> Result<([Reg; 4], u8), String> {
        let mut regs = [Reg::Sink; 4];
        let Operand::Vector(parts) = operand else {
            regs[0] = resolve(self, operand)?;
            return Ok((regs, 1));
        };
        if !matches!(parts.len(), 1 | 2 | 4) {
            return Err(format!("a vector of {}", parts.len()));
        }
        for (reg, part) in regs.iter_mut().zip(parts) {
            *reg = resolve(self, part)?;
        }
        Ok((regs, parts.len() as u8))
    }

    fn atomic(&mut self, form: &Form) -> Result<Op, String> {
        let space = space(form)?;
        let ty = form.ty()?;
        let f = atomic_op(form).ok_or("unknown atomic operation")?;
        let known = match ty {
            Type::U32 | Type::S32 | Type::U64 | Type::S64 => true,
            Type::F32 | Type::F64 => f == Atomic::Add,
            _ => false,
        };
        if !known || form.mods.iter().any(|m| matches!(*m, "v2" | "v4" | "v8")) {
            return Err("this atomic operation is not emulated".into());
        }
        let returns = usize::from(form.base == "atom");
        let d = if returns == 1 { self.register(form.operand(0)?)? } else { Reg::Sink };
        let at = self.address(form.operand(returns)?, space)?;
        let b = self.source(form.operand(returns + 1)?, ty)?;
        let c = if f == Atomic::CompareSwap { self.source(form.operand(returns + 2)?, ty)? } else { Reg::Sink };
        Ok(Op::Atomic { space, f, ty, d, at, b, c })
    }

    fn copy(&mut self, form: &Form) -> Result<Op, String> {
        if form.mods.first() != Some(&"async") || form.has("bulk") || form.has("mbarrier") {
            return Err("this copy is not emulated".into());
        }
        if form.has("commit_group") {
            return Ok(Op::CopyCommit);
        }
        if form.has("wait_all") {
            return Ok(Op::CopyWaitAll);
        }
        if form.has("wait_group") {
            let pending = integer(form.name(0)?).ok_or("wait_group wants a number")? as u32;
            return Ok(Op::CopyWait { pending });
        }
        if form.has("L2::cache_hint") {
            return Err("cache policies are not emulated".into());
        }
        let to = self.address(form.operand(0)?, Space::Shared)?;
        let from = self.address(form.operand(1)?, Space::Global)?;
        let size = integer(form.name(2)?).ok_or("the size is not a number")?;
        if !matches!(size, 4 | 8 | 16) || (form.has("cg") && size != 16) {
            return Err(format!("a copy of {size} bytes"));
        }
        let source_size = match form.operands.get(3) {
            Some(Operand::Word(name)) if matches!(self.lookup(name), Some(Reg::Pred(_))) => {
                return Err("ignore-src is not emulated".into());
            }
            Some(operand) => Some(self.word(operand)?),
            None => None,
        };
        Ok(Op::CopyAsync { to, from, size: size as u8, source_size })
    }

    fn load_matrix(&mut self, form: &Form) -> Result<Op, String> {
        if !form.has("m8n8") || !form.has("b16") {
            return Err("this shape is not emulated".into());
        }
        let n: u8 = if form.has("x4") { 4 } else { 1 + u8::from(form.has("x2")) };
        let d = self.slots(form.operand(0)?)?;
        if d.len() != usize::from(n) {
            return Err("the number of registers does not fit".into());
        }
        let mut all = [0; 4];
        all[..d.len()].copy_from_slice(&d);
        let at = self.address(form.operand(1)?, Space::Shared)?;
        Ok(Op::LoadMatrix { n, trans: form.has("trans"), d: all, at })
    }

    fn mma(&mut self, form: &Form) -> Result<Op, String> {
        let wanted = ["sync", "aligned", "row", "col"];
        let types = &form.mods[form.mods.len().saturating_sub(4)..];
        let shape = form.mods.iter().find(|m| m.starts_with("m16n8k")).copied().unwrap_or("");
        let kind = match (shape, types) {
            ("m16n8k4", ["f32", "tf32", "tf32", "f32"]) => MmaKind::Tf32K4,
            ("m16n8k8", ["f32", "tf32", "tf32", "f32"]) => MmaKind::Tf32K8,
            ("m16n8k8", ["f32", "bf16", "bf16", "f32"]) => MmaKind::Bf16K8,
            ("m16n8k16", ["f32", "bf16", "bf16", "f32"]) => MmaKind::Bf16K16,
            ("m16n8k8", ["f32", "f16", "f16", "f32"]) => MmaKind::F16K8,
            ("m16n8k16", ["f32", "f16", "f16", "f32"]) => MmaKind::F16K16,
            _ => return Err("this shape is not emulated".into()),
        };
        if !wanted.iter().all(|w| form.has(w)) {
            return Err("only row.col products are emulated".into());
        }
        let (num_a, num_b) = match kind {
            MmaKind::Tf32K4 | MmaKind::Bf16K8 | MmaKind::F16K8 => (2, 1),
            _ => (4, 2),
        };
        let d = self.exactly::<4>(form.operand(0)?, 4)?;
        let a = self.exactly::<4>(form.operand(1)?, num_a)?;
        let b = self.exactly::<2>(form.operand(2)?, num_b)?;
        let c = self.exactly::<4>(form.operand(3)?, 4)?;
        Ok(Op::Mma { kind, d, a, b, c })
    }

    fn exactly<const N: usize>(&mut self, operand: &Operand, count: usize) -> Result<[Slot; N], String> {
        let slots = self.slots(operand)?;
        if slots.len() != count {
            return Err(format!("{} registers where {count} are needed", slots.len()));
        }
        let mut out = [0; N];
        out[..count].copy_from_slice(&slots);
        Ok(out)
    }

    fn slots(&mut self, operand: &Operand) -> Result<Vec<Slot>, String> {
        match operand {
            Operand::Vector(parts) => parts.iter().map(|p| self.word(p)).collect(),
            one => Ok(vec![self.word(one)?]),
        }
    }

    fn cvta(&mut self, form: &Form) -> Result<Op, String> {
        let base = match space(form)? {
            Space::Shared => SHARED_WINDOW,
            Space::Local => LOCAL_WINDOW,
            _ => 0,
        };
        let add = if form.has("to") { base.wrapping_neg() } else { base };
        Ok(Op::Cvta { d: self.to_long(form.operand(0)?)?, a: self.long(form.operand(1)?)?, add })
    }

    fn shuffle(&mut self, form: &Form) -> Result<Op, String> {
        let mode = match form.mods {
            ["sync", "up", "b32"] => Shuffle::Up,
            ["sync", "down", "b32"] => Shuffle::Down,
            ["sync", "bfly", "b32"] => Shuffle::Butterfly,
            ["sync", "idx", "b32"] => Shuffle::Index,
            _ => return Err("unknown shuffle".into()),
        };
        let (d, p) = self.pair(form.operand(0)?)?;
        let (a, b) = (self.word(form.operand(1)?)?, self.word(form.operand(2)?)?);
        let (c, members) = (self.word(form.operand(3)?)?, self.word(form.operand(4)?)?);
        Ok(Op::Shfl { mode, d, p, a, b, c, members })
    }

    fn vote(&mut self, form: &Form) -> Result<Op, String> {
        let mode = match form.mods {
            ["sync", "all", "pred"] => Vote::All,
            ["sync", "any", "pred"] => Vote::Any,
            ["sync", "uni", "pred"] => Vote::Uniform,
            ["sync", "ballot", "b32"] => Vote::Ballot,
            _ => return Err("unknown vote".into()),
        };
        let d = if mode == Vote::Ballot { self.to_word(form.operand(0)?)? } else { self.to_pred(form.operand(0)?)? };
        Ok(Op::Vote { mode, d, a: self.predicate(form.operand(1)?)?, members: self.word(form.operand(2)?)? })
    }

    /// `%r1|%p1` or `%r1`
    fn pair(&self, operand: &Operand) -> Result<(Slot, Option<Slot>), String> {
        match operand {
            Operand::Pair(d, p) => {
                let p = self.to_pred(&Operand::Word(p.clone()))?;
                Ok((self.to_word(&Operand::Word(d.clone()))?, Some(p)))
            }
            one => Ok((self.to_word(one)?, None)),
        }
    }
}

fn space(form: &Form) -> Result<Space, String> {
    for modifier in form.mods {
        return Ok(match *modifier {
            "global" | "const" => Space::Global,
            "shared" | "shared::cta" => Space::Shared,
            "local" => Space::Local,
            "param" => Space::Param,
            "shared::cluster" => return Err("clusters are not emulated".into()),
            _ => continue,
        });
    }
    Ok(Space::Generic)
}

fn atomic_op(form: &Form) -> Option<Atomic> {
    form.mods.iter().find_map(|m| {
        Some(match *m {
            "add" => Atomic::Add,
            "min" => Atomic::Min,
            "max" => Atomic::Max,
            "and" => Atomic::And,
            "or" => Atomic::Or,
            "xor" => Atomic::Xor,
            "exch" => Atomic::Exchange,
            "cas" => Atomic::CompareSwap,
            "inc" => Atomic::Inc,
            "dec" => Atomic::Dec,
            _ => return None,
        })
    })
}
