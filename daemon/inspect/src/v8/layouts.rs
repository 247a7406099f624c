//! Offsets of fields in V8's objects, in bytes from an object's first, and numbers of types: from
//! the symbols that V8's build makes for debuggers (tools/gen-postmortem-metadata.py). Where a
//! version lacks a symbol, the source of the offset is given.

use super::symbols::Symbols;
use abi::{FrameLayout, RUNTIME_BLOCK_BYTES};

/// Versions that are known, as pairs of the first two numbers: the oldest and the newest.
pub const VERSIONS: [(u32, u32); 2] = [(9, 0), (14, 9)];

/// A version's structures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The first three numbers of the version.
    pub version: (u32, u32, u32),
    /// What the sampler copies of frames.
    pub sampler: FrameLayout,
    /// Numbers of types.
    pub types: Types,
    /// Map: the type of its objects, 16 bits.
    pub map_instance_type: u64,
    /// Bits of types of strings.
    pub strings: Strings,
    /// String: the number of its units, 32 bits.
    pub string_length: u64,
    /// Sequential string: its characters.
    pub string_characters: u64,
    /// String of two: the first, the second.
    pub cons_string: [u64; 2],
    /// Part of a string: the string, the first unit of the part.
    pub sliced_string: [u64; 2],
    /// String that stands for another: that.
    pub thin_string: u64,
    /// String whose characters are outside of the heap: its C++ object; the address of the
    /// characters follows.
    pub external_string: u64,
    /// Function, as shared by closures: its bytecode or code, its name or scope, its script.
    pub shared: [u64; 3],
    /// Scopes.
    pub scope: ScopeLayout,
    /// Script: its source, its name, the line that it begins in, the positions of its line ends.
    pub script: [u64; 4],
    /// Bytecode: the table of its positions; its first byte.
    pub bytecode: [u64; 2],
    /// What leads from code of Sparkplug, and from a copy of the interpreter's entry, to bytecode.
    pub to_bytecode: [u64; 2],
    /// Function that was never run, or long ago: its inferred name, its first position.
    pub uncompiled: [u64; 2],
    /// Array: its length, its first element.
    pub array: [u64; 2],
    /// Optimised code; None: functions that are inlined there are not known.
    pub code: Option<CodeLayout>,
}

/// Numbers of types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Types {
    /// SharedFunctionInfo.
    pub shared: u16,
    /// Script.
    pub script: u16,
    /// ScopeInfo.
    pub scope: u16,
    /// BytecodeArray.
    pub bytecode: u16,
    /// FixedArray.
    pub array: u16,
    /// ByteArray, and the one that V8 cannot be made to change (TrustedByteArray).
    pub bytes: [u16; 2],
    /// Code.
    pub code: u16,
    /// InterpreterData.
    pub interpreter_data: u16,
    /// The least and the greatest of UncompiledData.
    pub uncompiled: [u16; 2],
}

/// Bits of types of strings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strings {
    /// Types from here on are of no strings.
    pub first_other: u16,
    /// The bits that tell the kinds apart, and those kinds.
    pub representations: u16,
    /// Characters follow the head.
    pub sequential: u16,
    /// Two strings.
    pub cons: u16,
    /// A part of a string.
    pub sliced: u16,
    /// Another string.
    pub thin: u16,
    /// Characters outside of the heap.
    pub external: u16,
    /// Such without their address.
    pub uncached: u16,
    /// The bits of the size of a character, and those of one byte.
    pub encodings: u16,
    /// One byte.
    pub one_byte: u16,
}

/// Words of a scope behind its map (src/objects/scope-info.tq).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScopeLayout {
    /// The number of the word with the number of variables in the context.
    pub context_locals: u64,
    /// The number of the first word that is not in all scopes.
    pub variable_part: u64,
    /// Whether positions are in the words before that.
    pub has_fixed_positions: bool,
    /// The number of the scope type of modules.
    pub of_module: u64,
}

/// Offsets of fields of Code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeLayout {
    /// What its points of deoptimisation have in common: an array.
    pub deoptimization: u64,
    /// The table of positions.
    pub positions: u64,
    /// Its first instruction, or that instruction's address.
    pub start: u64,
    /// Whether it is the address.
    pub is_address: bool,
    /// Bytes of its instructions, 32 bits.
    pub size: u64,
    /// Its kind is in these bits of 32 bits.
    pub flags: u64,
    /// Those bits.
    pub kind_mask: u32,
    /// The kind of Sparkplug's code, whose table is another one.
    pub baseline: u32,
    /// Numbers of elements of that array: the functions that are inlined.
    pub literals: u64,
    /// The inlined calls.
    pub calls: u64,
}

impl CodeLayout {
    /// The layout that symbols say; what 9.0 to 13.6 leave out is as in the OpenTelemetry eBPF
    /// profiler's interpreter/nodev8/v8.go. None: it is not known.
    pub fn of(version: (u32, u32, u32), symbols: &Symbols) -> Option<Self> {
        let of = |name| symbols.offset(name);
        let (mut start, mut size) =
            (of("class_Code__instruction_start__"), of("class_Code__instruction_size__"));
        let mut positions = of("class_Code__source_position_table__");
        let mut flags = of("class_Code__flags__");
        if let Some(size) = size {
            // Behind the table are a word and, since 12.4, two.
            positions = positions.or(match symbols.kind("type_CodeWrapper__") {
                Some(_) => start?.checked_sub(24),
                None => size.checked_sub(16),
            });
            flags = flags.or(Some(size + 8));
        } else {
            start = start.or(Some(positions? + 16));
            flags = flags.or(Some(start? + 8));
            let others = if version < (11, 4, 59) { 8 } else { 4 };
            size = Some(flags? + others);
        }
        let index = |name, otherwise| symbols.offset(name).unwrap_or(otherwise);
        let of_functions = index("DeoptimizationDataSharedFunctionInfo", 6);
        Some(Self {
            deoptimization: of("class_Code__deoptimization_data__").or(positions?.checked_sub(8))?,
            positions: positions?,
            start: start?,
            // Code was in one object with its instructions until 11.0.
            is_address: version >= (11, 1, 0),
            size: size?,
            flags: flags?,
            kind_mask: u32::try_from(of("CodeKindFieldMask").unwrap_or(15)).ok()?,
            baseline: u32::try_from(of("CodeKindBaseline").unwrap_or(11)).ok()?,
            literals: index("DeoptimizationDataLiteralArrayIndex", 2),
            calls: index("DeoptimizationDataInliningPositionsIndex", of_functions + 1),
        })
    }
}

/// `kScopeInfoMaxInlinedLocalNamesSize` (src/objects/scope-info.h, 9.4 to 13.6): with more names, a
/// scope has a table of them in their place, since 10.0.
pub const INLINED_NAMES_MAX: u64 = 75;

impl Layout {
    /// The layout that a file's symbols say. The error is one line.
    pub fn of(symbols: &Symbols) -> Result<Self, String> {
        let version = symbols.version().ok_or("a V8 without version")?;
        let (major, minor, build) = version;
        let [oldest, newest] = VERSIONS;
        let name = format!("V8 {major}.{minor}.{build}");
        if (major, minor) < oldest || (major, minor) > newest {
            return Err(format!("{name} is not known"));
        }
        if symbols.offset("class_FixedArray__data__") != Some(16)
            || symbols.value("SmiShiftSize") != Some(31)
            || symbols.value("HeapObjectTagMask") != Some(3)
        {
            return Err(format!("{name} has compressed pointers"));
        }
        Self::of_version(version, symbols)
            .map_err(|symbol| format!("{name} does not say where its `{symbol}` is"))
    }

    fn of_version(version: (u32, u32, u32), symbols: &Symbols) -> Result<Self, &'static str> {
        let offset = |name| symbols.offset(name).ok_or(name);
        let or = |name, otherwise| symbols.offset(name).unwrap_or(otherwise);
        // Function data is the first field of all versions; it lost its symbol in 12.4
        // (src/objects/shared-function-info.tq).
        let shared_name = offset("class_SharedFunctionInfo__name_or_scope_info__")?;
        let script_name = offset("class_Script__name__")?;
        let positions = or("class_BytecodeArray__source_position_table__", 32);
        Ok(Self {
            version,
            sampler: sampler(version, symbols)?,
            types: Types::of(symbols)?,
            map_instance_type: offset("class_Map__instance_type__")?,
            strings: Strings::of(symbols)?,
            string_length: offset("class_String__length__")?,
            string_characters: or("class_SeqOneByteString__chars__", 16),
            cons_string: [
                or("class_ConsString__first__", 16),
                or("class_ConsString__second__", 24),
            ],
            sliced_string: [
                or("class_SlicedString__parent__", 16),
                or("class_SlicedString__offset__", 24),
            ],
            thin_string: or("class_ThinString__actual__", 16),
            external_string: or("class_ExternalString__resource__", 16),
            shared: [
                or("class_SharedFunctionInfo__function_data__", 8),
                shared_name,
                symbols
                    .offset("class_SharedFunctionInfo__script_or_debug_info__")
                    .or_else(|| symbols.offset("class_SharedFunctionInfo__script__"))
                    .unwrap_or(shared_name + 16),
            ],
            scope: ScopeLayout::of(version, symbols)?,
            // The fields of src/objects/script.tq have been in this order since 8.4.
            script: [
                or("class_Script__source__", script_name - 8),
                script_name,
                script_name + 8,
                or("class_Script__line_ends__", script_name + 40),
            ],
            bytecode: [positions, or("class_BytecodeArray__data__", positions + 8 + 14)],
            to_bytecode: [
                or("class_Code__bytecode_or_interpreter_data__", 16),
                or("class_InterpreterData__bytecode_array__", 8),
            ],
            uncompiled: [
                or("class_UncompiledData__inferred_name__", 8),
                or("class_UncompiledData__start_position__", 16),
            ],
            array: [offset("class_FixedArrayBase__length__")?, 16],
            code: CodeLayout::of(version, symbols),
        })
    }
}

/// What the sampler copies of a frame: what leads to the function's shared part and its code, and
/// the slots that an interpreted frame has for its bytecode and its place there.
fn sampler(version: (u32, u32, u32), symbols: &Symbols) -> Result<FrameLayout, &'static str> {
    let slot = |name| symbols.value(name).filter(|offset| (-128..0).contains(offset));
    let context = slot("off_fp_context").ok_or("off_fp_context")?;
    let function = slot("off_fp_function").ok_or("off_fp_function")?;
    // Behind the number of arguments, which has been in frames since 8.7
    // (src/execution/frame-constants.h); the symbols came with 9.5.
    let bytecode = slot("off_fp_bytecode_array").unwrap_or(function - 16);
    let offset = slot("off_fp_bytecode_offset").unwrap_or(bytecode - 8);
    let shared_symbol = "class_JSFunction__shared__";
    let shared = symbols.offset(shared_symbol).ok_or(shared_symbol)?;
    // The code was behind the context and the feedback until 11.7, and is before the shared part
    // since (src/objects/js-function.tq).
    let code = symbols.offset("class_JSFunction__code__").unwrap_or(match version < (11, 7, 368) {
        true => shared + 24,
        false => shared.saturating_sub(8),
    });
    let begin = [context, function, bytecode, offset].into_iter().min().unwrap_or(0);
    let object = shared.min(code);
    let (bytes, object_bytes) = (begin.unsigned_abs(), shared.max(code) + 8 - object);
    let word = |slot: i32| u8::try_from((slot - begin) / 8).map_err(|_| "off_fp_");
    let object_word = |at: u64| u8::try_from(8 + (at - object) / 8).map_err(|_| shared_symbol);
    if bytes as usize > RUNTIME_BLOCK_BYTES || object_bytes as usize > RUNTIME_BLOCK_BYTES {
        return Err("off_fp_");
    }
    let short = |value: i64| i16::try_from(value).map_err(|_| shared_symbol);
    Ok(FrameLayout {
        block_at: short(begin.into())?,
        block_bytes: u16::try_from(bytes).map_err(|_| "off_fp_")?,
        // Without the tag.
        object_at: short(object.cast_signed() - 1)?,
        object_bytes: u16::try_from(object_bytes).map_err(|_| shared_symbol)?,
        object: word(function)?,
        // Frames of other kinds have a number there, whose lowest bit is 0
        // (StackFrame::TypeToMarker).
        tag: word(context)?,
        tag_mask: 3,
        tag_bits: 1,
        words: [object_word(shared)?, object_word(code)?, word(bytecode)?, word(offset)?],
    })
}

impl Types {
    fn of(symbols: &Symbols) -> Result<Self, &'static str> {
        let kind = |name| symbols.kind(name).ok_or(name);
        let bytes = kind("type_ByteArray__")?;
        let uncompiled = symbols.kinds("type_UncompiledData");
        Ok(Self {
            shared: kind("type_SharedFunctionInfo__")?,
            script: kind("type_Script__")?,
            scope: kind("type_ScopeInfo__")?,
            bytecode: kind("type_BytecodeArray__")?,
            array: kind("type_FixedArray__")?,
            bytes: [bytes, symbols.kind("type_TrustedByteArray__").unwrap_or(bytes)],
            code: kind("type_Code__")?,
            interpreter_data: kind("type_InterpreterData__")?,
            uncompiled: uncompiled.ok_or("type_UncompiledData")?,
        })
    }
}

impl Strings {
    fn of(symbols: &Symbols) -> Result<Self, &'static str> {
        let bits = |name| symbols.value(name).and_then(|bits| u16::try_from(bits).ok()).ok_or(name);
        Ok(Self {
            first_other: bits("FirstNonstringType")?,
            representations: bits("StringRepresentationMask")?,
            sequential: bits("SeqStringTag")?,
            cons: bits("ConsStringTag")?,
            sliced: bits("SlicedStringTag")?,
            thin: bits("ThinStringTag")?,
            external: bits("ExternalStringTag")?,
            // kUncachedExternalStringTag (src/objects/instance-type.h): the bit above the encoding.
            uncached: bits("StringEncodingMask")? << 1,
            encodings: bits("StringEncodingMask")?,
            one_byte: bits("OneByteStringTag")?,
        })
    }
}

impl ScopeLayout {
    fn of(version: (u32, u32, u32), symbols: &Symbols) -> Result<Self, &'static str> {
        let name = "scopeinfo_idx_first_vars";
        let variable_part = symbols.offset(name).ok_or(name)?;
        let name = "scopeinfo_idx_ncontextlocals";
        let context_locals = symbols.offset(name).ok_or(name)?;
        let _ = version;
        Ok(Self {
            context_locals,
            variable_part,
            has_fixed_positions: variable_part >= context_locals + 3,
            of_module: 3,
        })
    }
}
