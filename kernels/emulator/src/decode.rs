//! Words → instructions over slots.
//!
//! A kernel is decoded when it is requested. An unknown instruction is an error that names the opcode and its line.
//! This file resolves names, registers and labels and decodes what moves control; arithmetic is in `decode_alu`, what
//! touches memory or other lanes in `decode_memory`.

use std::collections::HashMap;

use crate::parse::{Function, Module, Operand, Statement, Variable, Words, float_bits, integer};
use crate::program::*;

/// Decodes one kernel. `globals` says where the module's variables were placed.
pub fn decode(module: &Module, globals: &HashMap<String, u64>, function: &Function) -> Result<Kernel, String> {
    let mut decoder = Decoder::new(module, globals, function)?;
    decoder.find_labels(&function.body);
    let mut code = Vec::new();
    for statement in &function.body {
        match statement {
            Statement::Open => decoder.scopes.push(HashMap::new()),
            Statement::Close => drop(decoder.scopes.pop()),
            Statement::Register(ty, name, count) => decoder.declare(ty, name, *count)?,
            Statement::Variable(variable) => decoder.place(variable),
            Statement::Label(_) | Statement::Targets(..) => {}
            Statement::Instr(words) => code.push(decoder.instruction(words)?),
        }
    }
    code.push(Instr { op: Op::Exit, guard: None, line: 0 });
    Ok(decoder.finish(function, code))
}

/// State while decoding one kernel.
pub(crate) struct Decoder<'a> {
    globals: &'a HashMap<String, u64>,
    /// Registers by name, innermost scope last.
    scopes: Vec<HashMap<String, Reg>>,
    /// Addresses of shared and local variables.
    variables: HashMap<String, u64>,
    /// Parameters of the kernel: offset in the parameter block.
    param_offsets: HashMap<String, usize>,
    params: Vec<Param>,
    param_bytes: usize,
    /// `.param` variables of calls inside the body.
    call_params: Vec<String>,
    /// Dynamic shared variables: they start where the static ones end, which is known last.
    dynamic_shared: Vec<(Slot, bool)>,
    dynamic_names: Vec<String>,
    labels: HashMap<String, u32>,
    tables: HashMap<String, Vec<String>>,
    slots: SlotCounts,
    words: HashMap<u32, Slot>,
    longs: HashMap<u64, Slot>,
    specials: HashMap<Special, Slot>,
    shared_bytes: usize,
    local_bytes: usize,
}

impl<'a> Decoder<'a> {
    fn new(module: &'a Module, globals: &'a HashMap<String, u64>, function: &Function) -> Result<Self, String> {
        let mut decoder = Decoder {
            globals,
            scopes: Vec::new(),
            variables: HashMap::new(),
            param_offsets: HashMap::new(),
            params: Vec::new(),
            param_bytes: 0,
            call_params: Vec::new(),
            dynamic_shared: Vec::new(),
            dynamic_names: Vec::new(),
            labels: HashMap::new(),
            tables: HashMap::new(),
            slots: SlotCounts::default(),
            words: HashMap::new(),
            longs: HashMap::new(),
            specials: HashMap::new(),
            shared_bytes: 0,
            local_bytes: 0,
        };
        for param in &function.params {
            let size = param.size.ok_or("a parameter without a size")?;
            let offset = decoder.param_bytes.next_multiple_of(param.align.max(1));
            decoder.param_offsets.insert(param.name.clone(), offset);
            decoder.params.push(Param { offset, size });
            decoder.param_bytes = offset + size;
        }
        for variable in &module.shared {
            decoder.place(variable);
        }
        Ok(decoder)
    }

    fn finish(self, function: &Function, code: Vec<Instr>) -> Kernel {
        let shared_static = self.shared_bytes.next_multiple_of(16);
        let mut constants32: Vec<(Slot, u32)> = self.words.into_iter().map(|(v, s)| (s, v)).collect();
        let mut constants64: Vec<(Slot, u64)> = self.longs.into_iter().map(|(v, s)| (s, v)).collect();
        for (slot, wide) in self.dynamic_shared {
            if wide {
                constants64.push((slot, shared_static as u64));
            } else {
                constants32.push((slot, shared_static as u32));
            }
        }
        Kernel {
            name: function.name.clone(),
            params: self.params,
            param_bytes: self.param_bytes,
            code,
            slots: self.slots,
            constants32,
            constants64,
            specials: self.specials.into_iter().map(|(v, s)| (s, v)).collect(),
            shared_static,
            local_bytes: self.local_bytes.next_multiple_of(16),
            max_threads: function.max_threads,
        }
    }

    fn find_labels(&mut self, body: &[Statement]) {
        let mut pc = 0;
        for statement in body {
            match statement {
                Statement::Label(name) => drop(self.labels.insert(name.clone(), pc)),
                Statement::Targets(name, labels) => drop(self.tables.insert(name.clone(), labels.clone())),
                Statement::Instr(_) => pc += 1,
                _ => {}
            }
        }
    }

    fn declare(&mut self, ty: &str, name: &str, count: Option<u32>) -> Result<(), String> {
        let names: Vec<String> = match count {
            Some(n) => (0..n).map(|i| format!("{name}{i}")).collect(),
            None => vec![name.to_owned()],
        };
        for name in names {
            let reg = match ty {
                ".pred" => Reg::Pred(next_slot(&mut self.slots.predicates)?),
                ".b16" | ".u16" | ".s16" | ".f16" | ".bf16" | ".b8" | ".u8" | ".s8" => {
                    Reg::Half(next_slot(&mut self.slots.words)?)
                }
                ".b32" | ".u32" | ".s32" | ".f32" | ".f16x2" | ".bf16x2" => {
                    Reg::Word(next_slot(&mut self.slots.words)?)
                }
                ".b64" | ".u64" | ".s64" | ".f64" => Reg::Long(next_slot(&mut self.slots.longs)?),
                _ => return Err(format!("registers of type {ty} are not emulated")),
            };
            self.scopes.last_mut().ok_or("a register outside a body")?.insert(name, reg);
        }
        Ok(())
    }

    fn place(&mut self, variable: &Variable) {
        let bytes = match variable.space {
            Space::Shared => &mut self.shared_bytes,
            Space::Local => &mut self.local_bytes,
            _ => return self.call_params.push(variable.name.clone()),
        };
        match variable.size {
            Some(size) => {
                let at = bytes.next_multiple_of(variable.align.max(1));
                *bytes = at + size;
                self.variables.insert(variable.name.clone(), at as u64);
            }
            None => self.dynamic_names.push(variable.name.clone()),
        }
    }

    fn instruction(&mut self, words: &Words) -> Result<Instr, String> {
        let guard = match &words.guard {
            Some((name, negate)) => match self.lookup(name) {
                Some(Reg::Pred(slot)) => Some(Guard { slot, negate: *negate }),
                _ => return Err(format!("PTX line {}: `{name}` is not a predicate", words.line)),
            },
            None => None,
        };
        let op =
            self.operation(words).map_err(|what| format!("PTX line {}: `{}`: {what}", words.line, words.opcode))?;
        Ok(Instr { op, guard, line: words.line })
    }

    fn operation(&mut self, words: &Words) -> Result<Op, String> {
        let parts: Vec<&str> = words.opcode.split('.').collect();
        let (base, mods) = parts.split_first().ok_or("no opcode")?;
        let form = Form { base, mods, operands: &words.operands };
        if let Some(op) = self.control(&form)? {
            return Ok(op);
        }
        if let Some(op) = self.memory(&form)? {
            return Ok(op);
        }
        if let Some(op) = self.arithmetic(&form)? {
            return Ok(op);
        }
        Err("this instruction is not emulated".into())
    }

    /// Branches, barriers, and what has no effect here.
    fn control(&mut self, form: &Form) -> Result<Option<Op>, String> {
        Ok(Some(match form.base {
            "bra" => Op::Bra { target: self.label(form.name(0)?)? },
            "brx" => {
                let labels = self.tables.get(form.name(1)?).cloned().ok_or("unknown jump table")?;
                let targets = labels.iter().map(|l| self.label(l)).collect::<Result<Vec<_>, _>>()?;
                Op::Brx { index: self.word(form.operand(0)?)?, targets: targets.into() }
            }
            "ret" | "exit" => Op::Exit,
            "trap" | "brkpt" => Op::Trap,
            "bar" | "barrier" if form.has("warp") => Op::WarpSync { members: self.word(form.operand(0)?)? },
            "bar" | "barrier" => self.barrier(form)?,
            "membar" | "fence" => Op::Fence,
            "nanosleep" | "prefetch" | "prefetchu" | "discard" | "applypriority" | "griddepcontrol" | "pmevent" => {
                Op::Nop
            }
            "call" => {
                let called = form.operands.iter().find_map(|o| match o {
                    Operand::Word(name) => Some(name.as_str()),
                    _ => None,
                });
                match called {
                    Some("__assertfail") => Op::Assert,
                    Some("vprintf") => Op::Nop,
                    _ => return Err("calls are not emulated; is a device function not inlined?".into()),
                }
            }
            _ => return Ok(None),
        }))
    }

    fn barrier(&mut self, form: &Form) -> Result<Op, String> {
        let what = match () {
            () if form.has("arrive") => Barrier::Arrive,
            () if form.has("popc") => Barrier::Popc,
            () if form.has("and") => Barrier::And,
            () if form.has("or") => Barrier::Or,
            () => Barrier::Sync,
        };
        if matches!(what, Barrier::Sync | Barrier::Arrive) {
            let id = self.word(form.operand(0)?)?;
            let count = form.operands.get(1).map(|o| self.word(o)).transpose()?;
            return Ok(Op::Bar { what, d: None, id, count, a: None });
        }
        let d = Some(self.register(form.operand(0)?)?);
        let id = self.word(form.operand(1)?)?;
        let count = if form.operands.len() == 4 { Some(self.word(form.operand(2)?)?) } else { None };
        let a = Some(self.predicate(form.operand(form.operands.len() - 1)?)?);
        Ok(Op::Bar { what, d, id, count, a })
    }

    fn label(&self, name: &str) -> Result<u32, String> {
        self.labels.get(name).copied().ok_or_else(|| format!("unknown label `{name}`"))
    }

    pub(crate) fn lookup(&self, name: &str) -> Option<Reg> {
        self.scopes.iter().rev().find_map(|scope| scope.get(name).copied())
    }

    /// The register an operand names; `_` is a sink.
    pub(crate) fn register(&self, operand: &Operand) -> Result<Reg, String> {
        let Operand::Word(name) = operand else { return Err(format!("{operand:?} is not a register")) };
        if name == "_" {
            return Ok(Reg::Sink);
        }
        self.lookup(name).ok_or_else(|| format!("`{name}` is not a register"))
    }

    /// A 32-bit source: register, special register, immediate or address of a variable.
    pub(crate) fn word(&mut self, operand: &Operand) -> Result<Slot, String> {
        let Operand::Word(name) = operand else { return Err(format!("{operand:?} is not a 32-bit operand")) };
        match self.lookup(name) {
            Some(Reg::Word(slot) | Reg::Half(slot)) => return Ok(slot),
            Some(_) => return Err(format!("`{name}` is not a 32-bit register")),
            None => {}
        }
        if let Some(special) = special(name) {
            return match self.specials.get(&special) {
                Some(&slot) => Ok(slot),
                None => {
                    let slot = next_slot(&mut self.slots.words)?;
                    self.specials.insert(special, slot);
                    Ok(slot)
                }
            };
        }
        if self.dynamic_names.contains(name) {
            let slot = next_slot(&mut self.slots.words)?;
            self.dynamic_shared.push((slot, false));
            return Ok(slot);
        }
        let bits = match float_bits(name) {
            Some(bits) if name.len() == 10 => bits as u32,
            Some(bits) => (f64::from_bits(bits) as f32).to_bits(),
            None => match integer(name) {
                Some(value) => value as u32,
                None => self.symbol(name)? as u32,
            },
        };
        self.constant32(bits)
    }

    /// A 64-bit source.
    pub(crate) fn long(&mut self, operand: &Operand) -> Result<Slot, String> {
        let Operand::Word(name) = operand else { return Err(format!("{operand:?} is not a 64-bit operand")) };
        match self.lookup(name) {
            Some(Reg::Long(slot)) => return Ok(slot),
            Some(_) => return Err(format!("`{name}` is not a 64-bit register")),
            None => {}
        }
        if self.dynamic_names.contains(name) {
            let slot = next_slot(&mut self.slots.longs)?;
            self.dynamic_shared.push((slot, true));
            return Ok(slot);
        }
        let bits = match float_bits(name) {
            Some(bits) if name.len() == 18 => bits,
            Some(bits) => f64::from(f32::from_bits(bits as u32)).to_bits(),
            None => match integer(name) {
                Some(value) => value as u64,
                None => self.symbol(name)?,
            },
        };
        self.constant64(bits)
    }

    /// A source of the width of `ty`, as a register.
    pub(crate) fn source(&mut self, operand: &Operand, ty: Type) -> Result<Reg, String> {
        if let Operand::Word(name) = operand
            && let Some(reg) = self.lookup(name)
        {
            return Ok(reg);
        }
        if ty.bytes() == 8 { Ok(Reg::Long(self.long(operand)?)) } else { Ok(Reg::Word(self.word(operand)?)) }
    }

    pub(crate) fn predicate(&self, operand: &Operand) -> Result<Guard, String> {
        let (name, negate) = match operand {
            Operand::Word(name) => (name, false),
            Operand::Not(name) => (name, true),
            _ => return Err(format!("{operand:?} is not a predicate")),
        };
        match self.lookup(name) {
            Some(Reg::Pred(slot)) => Ok(Guard { slot, negate }),
            _ => Err(format!("`{name}` is not a predicate")),
        }
    }

    /// Destination slot of a 32-bit (or 16-bit) result.
    pub(crate) fn to_word(&self, operand: &Operand) -> Result<Slot, String> {
        match self.register(operand)? {
            Reg::Word(slot) | Reg::Half(slot) => Ok(slot),
            _ => Err(format!("{operand:?} is not a 32-bit register")),
        }
    }

    /// Destination slot of a 64-bit result.
    pub(crate) fn to_long(&self, operand: &Operand) -> Result<Slot, String> {
        match self.register(operand)? {
            Reg::Long(slot) => Ok(slot),
            _ => Err(format!("{operand:?} is not a 64-bit register")),
        }
    }

    /// Destination slot of a predicate.
    pub(crate) fn to_pred(&self, operand: &Operand) -> Result<Slot, String> {
        match self.register(operand)? {
            Reg::Pred(slot) => Ok(slot),
            _ => Err(format!("{operand:?} is not a predicate")),
        }
    }

    pub(crate) fn constant32(&mut self, bits: u32) -> Result<Slot, String> {
        if let Some(&slot) = self.words.get(&bits) {
            return Ok(slot);
        }
        let slot = next_slot(&mut self.slots.words)?;
        self.words.insert(bits, slot);
        Ok(slot)
    }

    pub(crate) fn constant64(&mut self, bits: u64) -> Result<Slot, String> {
        if let Some(&slot) = self.longs.get(&bits) {
            return Ok(slot);
        }
        let slot = next_slot(&mut self.slots.longs)?;
        self.longs.insert(bits, slot);
        Ok(slot)
    }

    /// Address of a variable, perhaps with an offset behind `+`.
    fn symbol(&self, name: &str) -> Result<u64, String> {
        let (name, offset) = name.split_once('+').unwrap_or((name, "0"));
        let offset = integer(offset).ok_or("an offset that is not a number")?;
        let base = self.variables.get(name).or_else(|| self.globals.get(name));
        base.map(|b| b.wrapping_add(offset as u64)).ok_or_else(|| format!("unknown name `{name}`"))
    }

    /// `[…]` in the given space.
    pub(crate) fn address(&mut self, operand: &Operand, space: Space) -> Result<Address, String> {
        let Operand::Address(name, offset) = operand else { return Err(format!("{operand:?} is not an address")) };
        let offset = *offset;
        match self.lookup(name) {
            Some(Reg::Word(slot)) => return Ok(Address { base: Base::Word(slot), offset }),
            Some(Reg::Long(slot)) => return Ok(Address { base: Base::Long(slot), offset }),
            Some(_) => return Err(format!("`{name}` cannot hold an address")),
            None => {}
        }
        if space == Space::Param {
            let at = self.param_offsets.get(name).ok_or_else(|| format!("unknown parameter `{name}`"))?;
            return Ok(Address { base: Base::None, offset: *at as i64 + offset });
        }
        if self.dynamic_names.contains(name) {
            let slot = self.word(&Operand::Word(name.clone()))?;
            return Ok(Address { base: Base::Word(slot), offset });
        }
        let base = match integer(name) {
            Some(value) => value as u64,
            None => self.symbol(name)?,
        };
        Ok(Address { base: Base::None, offset: (base as i64).wrapping_add(offset) })
    }

    /// Whether an address names the parameter of a call inside the body.
    pub(crate) fn is_call_param(&self, operand: &Operand) -> bool {
        matches!(operand, Operand::Address(name, _) if self.call_params.contains(name))
    }
}

/// An instruction split into parts, with helpers to ask about them.
pub(crate) struct Form<'a> {
    pub base: &'a str,
    pub mods: &'a [&'a str],
    pub operands: &'a [Operand],
}

impl<'a> Form<'a> {
    pub fn has(&self, modifier: &str) -> bool {
        self.mods.contains(&modifier)
    }

    pub fn operand(&self, index: usize) -> Result<&'a Operand, String> {
        self.operands.get(index).ok_or_else(|| format!("operand {index} is missing"))
    }

    pub fn name(&self, index: usize) -> Result<&'a str, String> {
        match self.operand(index)? {
            Operand::Word(name) => Ok(name),
            other => Err(format!("{other:?} is not a name")),
        }
    }

    /// The type the opcode ends with.
    pub fn ty(&self) -> Result<Type, String> {
        self.mods.iter().rev().find_map(|m| type_of(m)).ok_or_else(|| "no type".into())
    }

    /// Rounding, flushing and saturation.
    pub fn finish(&self) -> Finish {
        let round = match () {
            () if self.has("rz") || self.has("rzi") => Round::Zero,
            () if self.has("rm") || self.has("rmi") => Round::Down,
            () if self.has("rp") || self.has("rpi") => Round::Up,
            () if self.has("rna") => Round::NearestAway,
            () => Round::Nearest,
        };
        Finish { round, ftz: self.has("ftz"), sat: self.has("sat") }
    }
}

/// The type a modifier names. Untyped bits are unsigned.
pub(crate) fn type_of(word: &str) -> Option<Type> {
    Some(match word {
        "u8" | "b8" => Type::U8,
        "s8" => Type::S8,
        "u16" | "b16" => Type::U16,
        "s16" => Type::S16,
        "u32" | "b32" => Type::U32,
        "s32" => Type::S32,
        "u64" | "b64" => Type::U64,
        "s64" => Type::S64,
        "f16" => Type::F16,
        "bf16" => Type::Bf16,
        "tf32" => Type::Tf32,
        "f32" => Type::F32,
        "f64" => Type::F64,
        "pred" => Type::Pred,
        _ => return None,
    })
}

fn special(name: &str) -> Option<Special> {
    Some(match name {
        "%tid.x" => Special::TidX,
        "%tid.y" => Special::TidY,
        "%tid.z" => Special::TidZ,
        "%ntid.x" => Special::NtidX,
        "%ntid.y" => Special::NtidY,
        "%ntid.z" => Special::NtidZ,
        "%ctaid.x" => Special::CtaidX,
        "%ctaid.y" => Special::CtaidY,
        "%ctaid.z" => Special::CtaidZ,
        "%nctaid.x" => Special::NctaidX,
        "%nctaid.y" => Special::NctaidY,
        "%nctaid.z" => Special::NctaidZ,
        "%laneid" => Special::LaneId,
        "%warpid" => Special::WarpId,
        "%nwarpid" => Special::NumWarps,
        "%lanemask_eq" => Special::LaneMaskEq,
        "%lanemask_lt" => Special::LaneMaskLt,
        "%lanemask_le" => Special::LaneMaskLe,
        "%lanemask_gt" => Special::LaneMaskGt,
        "%lanemask_ge" => Special::LaneMaskGe,
        "%dynamic_smem_size" => Special::DynamicShared,
        "%total_smem_size" => Special::TotalShared,
        "%smid" => Special::Zero,
        "%nsmid" => Special::One,
        "WARP_SZ" => Special::WarpSize,
        _ => return None,
    })
}

fn next_slot(count: &mut usize) -> Result<Slot, String> {
    let slot = Slot::try_from(*count).map_err(|_| "more than 65536 registers")?;
    *count += 1;
    Ok(slot)
}
