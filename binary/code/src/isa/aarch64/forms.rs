//! Forms of A64 instructions, as far as LLVM's models of Arm's processors distinguish them and
//! compilers write them.
// tidy: table, a row for each group of encodings

use crate::isa::work::Form;

macro_rules! kinds {
    ($($kind:ident $name:literal,)*) => {
        /// The operation of an instruction, whatever its sizes.
        #[derive(Copy, Clone, Debug, PartialEq, Eq)]
        pub(super) enum Kind {
            $($kind,)*
        }

        const NAMES: &[&str] = &[$($name,)*];
    };
}

kinds! {
    Other "other", Add "add", AddFlags "adds", AddShifted "add_shifted", AddFlagsShifted "adds_shifted", AddExtended "add_extended",
    AddFlagsExtended "adds_extended", Carry "adc", Logic "and", LogicFlags "ands", LogicShifted "and_shifted", LogicFlagsShifted "ands_shifted",
    Address "adr", Wide "movz", Insert "movk", BitField "ubfm", BitInsert "bfm", Extract "extr", Shift "lslv", Select "csel", Compare "ccmp",
    Bits "clz", Multiply "mul", MultiplyAdd "madd", MultiplyLong "smull", MultiplyAddLong "smaddl", MultiplyHigh "smulh", Divide "sdiv", Crc "crc32",
    Jump "b", Conditional "b.cond", Zero "cbz", Call "bl", Indirect "br", IndirectCall "blr", Return "ret", Hint "nop", Barrier "dmb", Get "mrs", Set "msr",
    Kernel "svc", Pointer "pacia", Load "ldr", LoadSigned "ldrsw", LoadMoved "ldr_moved", LoadIndexed "ldr_indexed", LoadLiteral "ldr_literal", LoadPair "ldp",
    LoadPairMoved "ldp_moved", LoadPairSigned "ldpsw", Prefetch "prfm", Store "str", StoreMoved "str_moved", StoreIndexed "str_indexed", StorePair "stp",
    StorePairMoved "stp_moved", LoadVector "ldr_v", LoadVectorMoved "ldr_v_moved", LoadVectorIndexed "ldr_v_indexed", LoadVectorLiteral "ldr_v_literal",
    LoadVectorPair "ldp_v", LoadVectorPairMoved "ldp_v_moved", StoreVector "str_v", StoreVectorMoved "str_v_moved", StoreVectorIndexed "str_v_indexed",
    StoreVectorPair "stp_v", StoreVectorPairMoved "stp_v_moved", LoadExclusive "ldxr", StoreExclusive "stxr", LoadOrdered "ldar", StoreOrdered "stlr",
    Swap "cas", Atomic "ldadd", Load1 "ld1", Load1x2 "ld1_2", Load1x3 "ld1_3", Load1x4 "ld1_4", Load2 "ld2", Load3 "ld3", Load4 "ld4", LoadLane "ld1_lane",
    LoadAllLanes "ld1r", Store1 "st1", Store1x2 "st1_2", Store1x3 "st1_3", Store1x4 "st1_4", Store2 "st2", Store3 "st3", Store4 "st4", StoreLane "st1_lane",
    FloatMove "fmov", FloatConstant "fmov_immediate", FloatFrom "fmov_from", FloatTo "fmov_to", FloatSign "fabs", FloatAdd "fadd", FloatMultiply "fmul",
    FloatMultiplyAdd "fmadd", FloatDivide "fdiv", FloatRoot "fsqrt", FloatCompare "fcmp", FloatCompareIf "fccmp", FloatSelect "fcsel", FloatConvert "fcvt",
    FloatRound "frint", FloatMost "fmax", ToInteger "fcvtzs", FromInteger "scvtf", VectorAdd "v_add", VectorCompare "v_cmeq", VectorLogic "v_and",
    VectorSelect "v_bsl", VectorShift "v_sshl", VectorMost "v_smax", VectorDifference "v_sabd", VectorDifferenceAdd "v_saba", VectorMultiply "v_mul",
    VectorMultiplyAdd "v_mla", VectorPairs "v_addp", VectorFloatAdd "v_fadd", VectorFloatMultiply "v_fmul", VectorFloatMultiplyAdd "v_fmla",
    VectorFloatDivide4 "v_fdiv_s", VectorFloatDivide8 "v_fdiv_d", VectorFloatRoot4 "v_fsqrt_s", VectorFloatRoot8 "v_fsqrt_d", VectorFloatConvert "v_fcvtzs",
    VectorFloatRound "v_frint", VectorAddLong "v_saddl", VectorMultiplyLong "v_smull", VectorMultiplyAddLong "v_smlal", Polynomial "pmull",
    VectorReverse "v_rev64", VectorCount "v_cnt", VectorPairsLong "v_saddlp", VectorPairsLongAdd "v_sadalp", VectorNarrow "v_xtn", VectorAcross "v_addv",
    VectorAcrossMost "v_smaxv", VectorCopy "v_dup", VectorFrom "v_dup_from", VectorInsert "v_ins", VectorInsertFrom "v_ins_from", VectorTo "v_umov",
    Table1 "tbl_1", Table2 "tbl_2", Table3 "tbl_3", Table4 "tbl_4", VectorExtract "v_ext", VectorPermute "v_zip", VectorDot "v_sdot",
    VectorConstant "v_movi", VectorShiftBy "v_sshr", VectorShiftAdd "v_ssra", VectorShiftNarrow "v_shrn", VectorShiftLong "v_sshll", Aes "aese",
    AesMix "aesmc", Sha1 "sha1c", Sha1Schedule "sha1su0", Sha256 "sha256h", Sha256Schedule "sha256su0", Scalable "sve",
}

impl Kind {
    /// The form of an instruction with this operation on wide registers (64 bits of a general one,
    /// 128 of a vector, double precision) or on narrow ones.
    pub(super) fn form(self, wide: bool) -> Form {
        Form((self as u16) << 1 | u16::from(wide))
    }
}

pub(in crate::isa) fn form_name(form: Form) -> String {
    let wide = if form.0 & 1 == 1 { "_wide" } else { "" };
    NAMES.get(usize::from(form.0 >> 1)).map_or_else(String::new, |name| format!("{name}{wide}"))
}

pub(in crate::isa) fn forms() -> impl Iterator<Item = Form> {
    (0_u16..).map(Form).take(NAMES.len() * 2)
}
