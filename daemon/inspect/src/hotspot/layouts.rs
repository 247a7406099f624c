//! Offsets of fields of one HotSpot.

use super::tables::Tables;

/// The code cache: its heaps, and what they consist of.
#[derive(Clone, Debug)]
pub struct Cache {
    /// Address of the pointer to the list of heaps; before JDK 9 to the only heap.
    pub heaps: u64,
    /// Where the list has its length and its first element; None: there is one heap.
    pub list: Option<(u64, u64)>,
    /// In a heap: first byte of the memory, and the byte behind its last one.
    pub memory: [u64; 2],
    /// In a heap: first byte of the map of segments.
    pub segments: u64,
    /// In a heap: the logarithm of the bytes of a segment.
    pub segment_log: u64,
    /// Bytes in front of a blob.
    pub head_bytes: u64,
    /// Where the head says whether the blob is in use.
    pub used: u64,
}

/// A piece of code with its tables.
#[derive(Clone, Debug)]
pub struct Blob {
    /// Pointer to its name.
    pub name: u64,
    /// Its bytes.
    pub size: u64,
    /// Words of a frame of its code.
    pub frame_size: u64,
    /// Offset in the code from which on the frame is complete, of so many bytes.
    pub frame_complete: (u64, usize),
    /// Address of the code, or its distance from the blob.
    pub code: CodeAt,
    /// Of a method's code: the method.
    pub method: u64,
    /// Bytes from the blob on that have all of that.
    pub bytes: usize,
}

/// Where a blob has its code.
#[derive(Clone, Copy, Debug)]
pub enum CodeAt {
    /// At the address in this field.
    Address(u64),
    /// At the distance in this field, of 4 bytes.
    Offset(u64),
}

/// Methods and what names them.
#[derive(Clone, Debug)]
pub struct Method {
    /// In a method: the part that does not change.
    pub constant: u64,
    /// In that: the constants of its class, flags, bytes of bytecode, name.
    pub pool: u64,
    /// Flags.
    pub flags: u64,
    /// Bytes of that part, in words.
    pub words: u64,
    /// Bytes of bytecode.
    pub code_size: u64,
    /// Number of the constant that is its name.
    pub name: u64,
    /// The bytecode is behind so many bytes.
    pub bytes: u64,
    /// The flag of a table of lines behind the bytecode.
    pub has_lines: u16,
    /// In the constants: kinds, the class, the number of constants, and their bytes before them.
    pub tags: u64,
    /// The class.
    pub holder: u64,
    /// Number of constants.
    pub length: u64,
    /// The first constant.
    pub constants: u64,
    /// Number of the constant that is the source file: in the constants, or in the class.
    pub source: Source,
    /// In a class: its name.
    pub class_name: u64,
    /// Its constants.
    pub class_pool: u64,
    /// In a symbol: its length and its text.
    pub symbol: [u64; 2],
    /// Whether numbers in tables have no byte that is zero (since JDK 19).
    pub is_nonzero: bool,
}

/// What has the number of the source file's name.
#[derive(Clone, Copy, Debug)]
pub enum Source {
    /// The constants.
    Pool(u64),
    /// The class.
    Class(u64),
}

/// The interpreter.
#[derive(Clone, Debug)]
pub struct Interpreter {
    /// Address of the pointer to the queue of its codelets.
    pub queue: u64,
    /// In the queue: the buffer, and its bytes.
    pub buffer: u64,
    /// Bytes of the buffer that are in use.
    pub limit: u64,
    /// Offset in a codelet (`InterpreterCodelet`): the number of its bytes.
    pub size: u64,
    /// Offset in a codelet: the address of its description, a C string.
    pub description: u64,
    /// From the frame pointer to the place of the current bytecode.
    pub bytecode_at: i16,
}

/// Where a method's code has the tables of inlined methods: places, their descriptions, methods.
#[derive(Clone, Copy, Debug)]
pub enum Scopes {
    /// At distances from the blob; the descriptions before JDK 23 at an address, before JDK 9 at a
    /// distance.
    InBlob {
        /// First place.
        places: u64,
        /// Behind the last one.
        places_end: u64,
        /// Descriptions.
        descriptions: CodeAt,
        /// Methods.
        methods: u64,
    },
    /// In memory of their own, since JDK 23: the first two at distances from `data`, and methods
    /// behind the relocations in `mutable`.
    Apart {
        /// Address of what does not change.
        data: u64,
        /// Distance of the first place.
        places: u64,
        /// Distance of the descriptions, which follow.
        descriptions: u64,
        /// Address of what may change.
        mutable: u64,
        /// Bytes of relocations there.
        relocation: u64,
    },
}

/// From the frame pointer of an interpreted frame to the method (frame_x86.hpp, JDK 8 to 25).
pub const METHOD_AT: i16 = -24;
/// To the caller's stack pointer.
pub const SENDER_AT: i16 = -8;

/// All offsets. Addresses of static fields are those of the process that was read, less its bias.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The code cache.
    pub cache: Cache,
    /// Pieces of code.
    pub blob: Blob,
    /// Methods.
    pub method: Method,
    /// The interpreter.
    pub interpreter: Interpreter,
    /// Inlined methods.
    pub scopes: Scopes,
}

impl Layout {
    /// The offsets that the tables tell. `major` is the version of the VM.
    ///
    /// # Errors
    /// What they do not tell.
    pub fn of(tables: &Tables, major: u32) -> Result<Self, String> {
        let has_one_heap = tables.field(&["CodeCache::_heaps"]).is_none();
        let field = |names: &[&str]| {
            tables.field(names).ok_or_else(|| names.first().copied().unwrap_or("").to_owned())
        };
        let size = |name: &str| tables.size(name).ok_or_else(|| name.to_owned());
        let memory = field(&["CodeHeap::_memory"])?;
        let (low, high) = (field(&["VirtualSpace::_low"])?, field(&["VirtualSpace::_high"])?);
        let length = field(&["GrowableArrayBase::_len", "GenericGrowableArray::_len"]);
        let cache = Cache {
            heaps: field(&["CodeCache::_heaps", "CodeCache::_heap"])?,
            list: match has_one_heap {
                true => None,
                false => Some((length?, field(&["GrowableArray<int>::_data"])?)),
            },
            memory: [memory.wrapping_add(low), memory.wrapping_add(high)],
            segments: field(&["CodeHeap::_segmap"])?.wrapping_add(low),
            segment_log: field(&["CodeHeap::_log2_segment_size"])?,
            head_bytes: size("HeapBlock")?,
            used: field(&["HeapBlock::Header::_used"])?,
        };
        let symbol = [field(&["Symbol::_length"])?, field(&["Symbol::_body"])?];
        let source = match tables.field(&["ConstantPool::_source_file_name_index"]) {
            Some(at) => Source::Pool(at),
            None => Source::Class(field(&["InstanceKlass::_source_file_name_index"])?),
        };
        let flag =
            ["ConstMethod::_has_linenumber_table", "ConstMethodFlags::_misc_has_linenumber_table"];
        let flag = tables.constant(&flag).and_then(|flag| u16::try_from(flag).ok());
        let method = Method {
            constant: field(&["Method::_constMethod"])?,
            pool: field(&["ConstMethod::_constants"])?,
            flags: field(&["ConstMethod::_flags", "ConstMethod::_flags._flags"])?,
            words: field(&["ConstMethod::_constMethod_size"])?,
            code_size: field(&["ConstMethod::_code_size"])?,
            name: field(&["ConstMethod::_name_index"])?,
            bytes: size("ConstMethod")?,
            has_lines: flag.unwrap_or(1),
            tags: field(&["ConstantPool::_tags"])?,
            holder: field(&["ConstantPool::_pool_holder"])?,
            length: field(&["ConstantPool::_length"])?,
            constants: size("ConstantPool")?,
            source,
            class_name: field(&["Klass::_name"])?,
            class_pool: field(&["InstanceKlass::_constants"])?,
            symbol,
            is_nonzero: !has_one_heap && major >= 19,
        };
        let interpreter = Interpreter {
            queue: field(&["AbstractInterpreter::_code"])?,
            buffer: field(&["StubQueue::_stub_buffer"])?,
            limit: field(&["StubQueue::_buffer_limit"])?,
            size: field(&["InterpreterCodelet::_size"])?,
            description: field(&["InterpreterCodelet::_description"])?,
            // A slot for the class's mirror came with JDK 9, as the list of heaps did.
            bytecode_at: if has_one_heap { -56 } else { -64 },
        };
        let (blob, scopes) = (Self::blob(tables)?, Self::scopes(tables)?);
        Ok(Self { cache, blob, method, interpreter, scopes })
    }

    fn scopes(tables: &Tables) -> Result<Scopes, String> {
        let field = |names: &[&str]| {
            tables.field(names).ok_or_else(|| names.first().copied().unwrap_or("").to_owned())
        };
        let places = field(&["nmethod::_scopes_pcs_offset"])?;
        if let Some(data) = tables.field(&["nmethod::_immutable_data"]) {
            return Ok(Scopes::Apart {
                data,
                places,
                descriptions: field(&["nmethod::_scopes_data_offset"])?,
                mutable: field(&["CodeBlob::_mutable_data"])?,
                relocation: field(&["CodeBlob::_relocation_size"])?,
            });
        }
        let descriptions = match tables.field(&["CompiledMethod::_scopes_data_begin"]) {
            Some(at) => CodeAt::Address(at),
            None => CodeAt::Offset(field(&["nmethod::_scopes_data_offset"])?),
        };
        Ok(Scopes::InBlob {
            places,
            places_end: field(&["nmethod::_dependencies_offset"])?,
            descriptions,
            methods: field(&["nmethod::_metadata_offset"])?,
        })
    }

    /// The layout with the addresses of the file: those of a process with this bias less that.
    #[must_use]
    pub fn moved(mut self, bias: u64) -> Self {
        for address in [&mut self.cache.heaps, &mut self.interpreter.queue] {
            *address = address.wrapping_sub(bias);
        }
        self
    }

    fn blob(tables: &Tables) -> Result<Blob, String> {
        let field = |names: &[&str]| {
            tables.field(names).ok_or_else(|| names.first().copied().unwrap_or("").to_owned())
        };
        let code = match tables.field(&["CodeBlob::_code_begin"]) {
            Some(at) => CodeAt::Address(at),
            None => CodeAt::Offset(field(&["CodeBlob::_code_offset"])?),
        };
        // 16 bits since JDK 23, where code has an offset again.
        let is_short =
            matches!(code, CodeAt::Offset(_)) && tables.field(&["CodeCache::_heaps"]).is_some();
        let mut blob = Blob {
            name: field(&["CodeBlob::_name"])?,
            size: field(&["CodeBlob::_size"])?,
            frame_size: field(&["CodeBlob::_frame_size"])?,
            frame_complete: (
                field(&["CodeBlob::_frame_complete_offset"])?,
                if is_short { 2 } else { 4 },
            ),
            code,
            method: field(&["nmethod::_method", "CompiledMethod::_method"])?,
            bytes: 0,
        };
        let (CodeAt::Address(code) | CodeAt::Offset(code)) = code;
        let last =
            [blob.name, blob.size, blob.frame_size, blob.frame_complete.0, code, blob.method];
        let last = last.into_iter().max().unwrap_or(0);
        blob.bytes = usize::try_from(last).ok().filter(|at| *at < BLOB_MAX).ok_or("CodeBlob")? + 8;
        Ok(blob)
    }
}

/// Most bytes of a blob's head: of JDK 11 it has 376.
const BLOB_MAX: usize = 1024;
