//! What a PTX kernel becomes: a flat list of instructions over numbered register slots.
//!
//! Every source operand is a slot. Immediates, addresses of variables and special registers (`%tid.x`) are slots too,
//! filled when a warp starts, so that the interpreter never asks what kind of operand it holds. There are three
//! register files: predicates (one bit a lane), 32-bit registers (16-bit ones live there, zero-extended) and 64-bit
//! registers. Made by `decode`, executed by `warp`.

/// Index into one of the three register files.
pub type Slot = u16;

/// A kernel ready to run.
#[derive(Debug)]
pub struct Kernel {
    /// Name of the `.entry`.
    pub name: String,
    /// The `.param` list: the driver reads exactly these from the launch arguments.
    pub params: Vec<Param>,
    /// Size of the parameter block.
    pub param_bytes: usize,
    /// Instructions; a branch target is an index into it.
    pub code: Vec<Instr>,
    /// How many slots each register file has.
    pub slots: SlotCounts,
    /// 32-bit slots that hold a constant.
    pub constants32: Vec<(Slot, u32)>,
    /// 64-bit slots that hold a constant.
    pub constants64: Vec<(Slot, u64)>,
    /// 32-bit slots that hold a special register.
    pub specials: Vec<(Slot, Special)>,
    /// Bytes of shared memory declared in the PTX. Dynamic shared memory follows.
    pub shared_static: usize,
    /// Bytes of local memory of one thread.
    pub local_bytes: usize,
    /// `.maxntid`, as a product.
    pub max_threads: u32,
}

/// Sizes of the register files.
#[derive(Debug, Default, Clone, Copy)]
pub struct SlotCounts {
    /// Predicates.
    pub predicates: usize,
    /// 32-bit registers.
    pub words: usize,
    /// 64-bit registers.
    pub longs: usize,
}

/// One kernel parameter.
#[derive(Debug, Clone)]
pub struct Param {
    /// Its place in the parameter block.
    pub offset: usize,
    /// Its size in bytes.
    pub size: usize,
}

/// One instruction with its guard.
#[derive(Debug, Clone)]
pub struct Instr {
    /// What to do.
    pub op: Op,
    /// Predicate that switches lanes off, if any.
    pub guard: Option<Guard>,
    /// Line in the PTX text, for reports.
    pub line: u32,
}

/// `@%p` or `@!%p`; also a predicate operand with an optional `!`.
#[derive(Debug, Clone, Copy)]
pub struct Guard {
    /// Predicate slot.
    pub slot: Slot,
    /// Whether it is negated.
    pub negate: bool,
}

/// Values that differ between threads or blocks.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Special {
    TidX,
    TidY,
    TidZ,
    NtidX,
    NtidY,
    NtidZ,
    CtaidX,
    CtaidY,
    CtaidZ,
    NctaidX,
    NctaidY,
    NctaidZ,
    LaneId,
    WarpId,
    NumWarps,
    LaneMaskEq,
    LaneMaskLt,
    LaneMaskLe,
    LaneMaskGt,
    LaneMaskGe,
    DynamicShared,
    TotalShared,
    Zero,
    One,
    WarpSize,
}

/// A type of an operand.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    U8,
    S8,
    U16,
    S16,
    U32,
    S32,
    U64,
    S64,
    F16,
    Bf16,
    Tf32,
    F32,
    F64,
    Pred,
}

impl Type {
    /// Size in bytes; a predicate has none.
    pub fn bytes(self) -> usize {
        match self {
            Type::Pred => 0,
            Type::U8 | Type::S8 => 1,
            Type::U16 | Type::S16 | Type::F16 | Type::Bf16 => 2,
            Type::U32 | Type::S32 | Type::F32 | Type::Tf32 => 4,
            Type::U64 | Type::S64 | Type::F64 => 8,
        }
    }

    /// Whether a load or a conversion extends its sign.
    pub fn is_signed(self) -> bool {
        matches!(self, Type::S8 | Type::S16 | Type::S32 | Type::S64)
    }

    /// Whether it is a floating-point type.
    pub fn is_float(self) -> bool {
        matches!(self, Type::F16 | Type::Bf16 | Type::Tf32 | Type::F32 | Type::F64)
    }
}

/// Where an address points.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space {
    Generic,
    Global,
    Shared,
    Local,
    Param,
}

/// The base of an address.
#[derive(Debug, Clone, Copy)]
pub enum Base {
    /// No register: the offset says it all.
    None,
    /// A 32-bit register.
    Word(Slot),
    /// A 64-bit register.
    Long(Slot),
}

/// `[base + offset]`
#[derive(Debug, Clone, Copy)]
pub struct Address {
    /// Register part.
    pub base: Base,
    /// Constant part.
    pub offset: i64,
}

/// Integer operations of two operands.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Int2 {
    Add,
    Sub,
    MulLo,
    MulHiS,
    MulHiU,
    DivS,
    DivU,
    RemS,
    RemU,
    MinS,
    MinU,
    MaxS,
    MaxU,
    And,
    Or,
    Xor,
    Shl,
    ShrU,
    ShrS,
}

/// Integer operations of one operand.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Int1 {
    Neg,
    Not,
    Abs,
    Popc,
    Clz,
    Brev,
    FindS,
    FindU,
    FindShiftS,
    FindShiftU,
}

/// Integer operations of three operands.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Int3 {
    MadLo,
    MadHiS,
    MadHiU,
    BfeS,
    BfeU,
    ShfLWrap,
    ShfLClamp,
    ShfRWrap,
    ShfRClamp,
    Prmt,
    SadS,
    SadU,
    Dp4aS,
    Dp4aU,
}

/// Floating-point operations of two operands.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Float2 {
    Add,
    Sub,
    Mul,
    Div,
    Min,
    Max,
    MinNan,
    MaxNan,
    Copysign,
}

/// Floating-point operations of one operand.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Float1 {
    Neg,
    Abs,
    Sqrt,
    Rsqrt,
    Rcp,
    RcpUpper,
    RsqrtUpper,
    Exp2,
    Log2,
    Sin,
    Cos,
    Tanh,
}

/// How a float result is rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Round {
    /// To nearest, ties to even.
    Nearest,
    /// To nearest, ties away from zero (tf32).
    NearestAway,
    /// Toward zero.
    Zero,
    /// Toward minus infinity.
    Down,
    /// Toward plus infinity.
    Up,
}

/// What is done to the result of a float operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Finish {
    /// Rounding of the result.
    pub round: Round,
    /// Subnormal inputs and results become zero.
    pub ftz: bool,
    /// The result is clamped to [0, 1].
    pub sat: bool,
}

/// Comparisons; the `U` forms are true if an operand is NaN.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compare {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    EqU,
    NeU,
    LtU,
    LeU,
    GtU,
    GeU,
    Num,
    Nan,
}

/// Operations on predicates, and reductions over bits.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Logic {
    And,
    Or,
    Xor,
}

/// Ways to choose the source lane of a shuffle.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shuffle {
    Up,
    Down,
    Butterfly,
    Index,
}

/// `vote.sync`
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Vote {
    All,
    Any,
    Uniform,
    Ballot,
}

/// Atomic operations and warp reductions.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Atomic {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
    Exchange,
    CompareSwap,
    Inc,
    Dec,
}

/// Matrix products of a warp. Row A, column B, f32 accumulators.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MmaKind {
    Tf32K4,
    Tf32K8,
    Bf16K8,
    Bf16K16,
    F16K8,
    F16K16,
}

/// What a barrier does besides waiting.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Barrier {
    Sync,
    Arrive,
    Popc,
    And,
    Or,
}

/// A register of a known width, for loads, stores and conversions.
#[derive(Debug, Clone, Copy)]
pub enum Reg {
    /// 16 bits, in a 32-bit slot.
    Half(Slot),
    /// 32 bits.
    Word(Slot),
    /// 64 bits.
    Long(Slot),
    /// Predicate.
    Pred(Slot),
    /// `_`: the value is dropped.
    Sink,
}

/// Operations. `d` is the destination, `a`, `b`, `c` are sources.
#[rustfmt::skip] // one operation a line
#[allow(missing_docs)]
#[derive(Debug, Clone)]
pub enum Op {
    Nop,
    Int1 { f: Int1, d: Slot, a: Slot },
    Int2 { f: Int2, d: Slot, a: Slot, b: Slot },
    /// 16-bit operands in 32-bit slots.
    Short2 { f: Int2, signed: bool, d: Slot, a: Slot, b: Slot },
    Short1 { f: Int1, d: Slot, a: Slot },
    Int3 { f: Int3, d: Slot, a: Slot, b: Slot, c: Slot },
    Bfi { d: Slot, a: Slot, b: Slot, pos: Slot, len: Slot },
    Lop3 { d: Slot, a: Slot, b: Slot, c: Slot, table: u8 },
    Long1 { f: Int1, d: Slot, a: Slot },
    /// 64-bit operand, 32-bit result: popc, clz, bfind.
    LongTo32 { f: Int1, d: Slot, a: Slot },
    Long2 { f: Int2, d: Slot, a: Slot, b: Slot },
    /// The amount is a 32-bit register.
    LongShift { f: Int2, d: Slot, a: Slot, b: Slot },
    LongMad { d: Slot, a: Slot, b: Slot, c: Slot },
    MulWide { signed: bool, d: Slot, a: Slot, b: Slot },
    MadWide { signed: bool, d: Slot, a: Slot, b: Slot, c: Slot },
    /// 16-bit operands, 32-bit result.
    MulWideShort { signed: bool, d: Slot, a: Slot, b: Slot },
    Float1 { f: Float1, how: Finish, d: Slot, a: Slot },
    Float2 { f: Float2, how: Finish, d: Slot, a: Slot, b: Slot },
    Fma { how: Finish, d: Slot, a: Slot, b: Slot, c: Slot },
    Double1 { f: Float1, d: Slot, a: Slot },
    Double2 { f: Float2, d: Slot, a: Slot, b: Slot },
    DoubleFma { d: Slot, a: Slot, b: Slot, c: Slot },
    /// Two bf16 or f16 values at a time, or one, in the lower half.
    Packed { f: Packed, bf16: bool, pair: bool, d: Slot, a: Slot, b: Slot, c: Slot },
    /// `d = a cmp b`, combined with `with`; `q` gets the combination with the opposite comparison.
    Setp {
        ty: Type,
        cmp: Compare,
        ftz: bool,
        d: Slot,
        q: Option<Slot>,
        a: Slot,
        b: Slot,
        with: Option<(Logic, Guard)>,
    },
    Select32 { d: Slot, a: Slot, b: Slot, p: Slot },
    Select64 { d: Slot, a: Slot, b: Slot, p: Slot },
    SelectPred { d: Slot, a: Guard, b: Guard, p: Slot },
    Logic { f: Logic, d: Slot, a: Guard, b: Guard },
    MovPred { d: Slot, a: Guard },
    ConstPred { d: Slot, value: bool },
    Testp { what: Testp, wide: bool, d: Slot, a: Slot },
    Mov32 { d: Slot, a: Slot },
    Mov64 { d: Slot, a: Slot },
    /// Truncation of a 32-bit value to a 16-bit register.
    Mov16 { d: Slot, a: Slot },
    Pack64 { d: Slot, lo: Slot, hi: Slot },
    Unpack64 { lo: Reg, hi: Reg, a: Slot },
    Pack32 { d: Slot, lo: Slot, hi: Slot },
    Unpack32 { lo: Reg, hi: Reg, a: Slot },
    Pack64From16 { d: Slot, parts: [Slot; 4] },
    Unpack64To16 { d: [Reg; 4], a: Slot },
    Cvt { d: Reg, a: Reg, to: Type, from: Type, how: Finish, integer: bool },
    CvtPair { bf16: bool, relu: bool, d: Slot, hi: Slot, lo: Slot },
    /// An address made generic, or the reverse, by adding the base of its window.
    Cvta { d: Slot, a: Slot, add: u64 },
    IsSpace { space: Space, d: Slot, a: Slot },
    Clock { d: Reg },
    Load { space: Space, ty: Type, d: [Reg; 4], n: u8, at: Address },
    Store { space: Space, ty: Type, a: [Reg; 4], n: u8, at: Address },
    Atomic { space: Space, f: Atomic, ty: Type, d: Reg, at: Address, b: Reg, c: Reg },
    CopyAsync { to: Address, from: Address, size: u8, source_size: Option<Slot> },
    CopyCommit,
    /// Wait until at most so many groups are pending.
    CopyWait { pending: u32 },
    /// Wait for all copies, committed or not.
    CopyWaitAll,
    LoadMatrix { n: u8, trans: bool, d: [Slot; 4], at: Address },
    Mma { kind: MmaKind, d: [Slot; 4], a: [Slot; 4], b: [Slot; 2], c: [Slot; 4] },
    Shfl { mode: Shuffle, d: Slot, p: Option<Slot>, a: Slot, b: Slot, c: Slot, members: Slot },
    Vote { mode: Vote, d: Slot, a: Guard, members: Slot },
    Redux { f: Atomic, signed: bool, d: Slot, a: Slot, members: Slot },
    /// Lanes with an equal value; with `all`, `p` says whether every lane has it.
    Match { all: bool, wide: bool, d: Slot, p: Option<Slot>, a: Slot, members: Slot },
    ActiveMask { d: Slot },
    Bar { what: Barrier, d: Option<Reg>, id: Slot, count: Option<Slot>, a: Option<Guard> },
    WarpSync { members: Slot },
    Fence,
    Bra { target: u32 },
    /// Jump table.
    Brx { index: Slot, targets: Box<[u32]> },
    Exit,
    Trap,
    /// `__assertfail`: a failed `assert`.
    Assert,
}

/// Arithmetic on packed halves.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packed {
    Add,
    Sub,
    Mul,
    Fma,
    Min,
    Max,
    Neg,
    Abs,
}

/// `testp`
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Testp {
    Finite,
    Infinite,
    Number,
    NotANumber,
    Normal,
    Subnormal,
}

/// Generic addresses of shared memory start here. Device memory lies above, host memory never looks like this.
pub const SHARED_WINDOW: u64 = 0x0000_0010_0000_0000;
/// Generic addresses of local memory start here.
pub const LOCAL_WINDOW: u64 = 0x0000_0020_0000_0000;
/// Size of each window.
pub const WINDOW: u64 = 0x0000_0001_0000_0000;
