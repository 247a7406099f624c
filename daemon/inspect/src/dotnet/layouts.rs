//! Where CoreCLR has its structures.
//!
//! Since .NET 9 the library describes itself: the offsets of the fields of methods, types and
//! modules. The structures of the code manager are described since .NET 10 only, so there is a
//! table of those by version.

use serde_json::Value;

/// The parts of structures that only the version tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeOffsets {
    /// In a module: its code that was compiled ahead (`ReadyToRunInfo`).
    pub compiled_ahead: u64,
    /// In that: the information of the file, which several modules may share; its functions and
    /// their number; the buckets of the table from entries to methods.
    pub composite: u64,
    /// Likewise.
    pub functions: u64,
    /// Likewise.
    pub function_count: u64,
    /// The number of functions of which a part is elsewhere (hot and cold parts).
    pub split_count: u64,
    /// Likewise.
    pub entries: u64,
}

/// By the first number of the version.
///
/// 9: src/coreclr/vm/readytoruninfo.h, ceeload.h of v9.0; seen in memory of 9.0.5.
const VERSIONS: [(&str, CodeOffsets); 1] = [(
    "9",
    CodeOffsets {
        compiled_ahead: 984,
        composite: 40,
        functions: 80,
        function_count: 88,
        split_count: 104,
        entries: 448,
    },
)];

/// The code manager's offsets in a version.
pub fn code_offsets(version: &str) -> Option<CodeOffsets> {
    let major = version.split('.').next()?;
    VERSIONS.iter().find(|(known, _)| *known == major).map(|(_, offsets)| *offsets)
}

/// What a library tells of its types (docs/design/datacontracts/datadescriptor.md).
#[derive(Debug)]
pub struct Contract(Value);

impl Contract {
    /// A contract's text. None: it is none.
    pub fn parse(text: &[u8]) -> Option<Self> {
        serde_json::from_slice(text).ok().filter(Value::is_object).map(Self)
    }

    /// The offset of a field, alone or with its type; of `!` the size of the type.
    fn field(&self, of: &str, field: &str) -> Result<u64, String> {
        let value = self.0.get("types").and_then(|types| types.get(of)?.get(field));
        let value = value.and_then(|value| value.as_u64().or_else(|| value.get(0)?.as_u64()));
        let is_near = |offset: &u64| *offset < OFFSET_MAX;
        value.filter(is_near).ok_or_else(|| format!("{of}.{field}"))
    }

    /// A constant: a number in hexadecimal text, with its type.
    fn constant(&self, name: &str) -> Result<u64, String> {
        let value = self.0.get("globals").and_then(|globals| globals.get(name)?.get(0)?.as_str());
        let number = value.and_then(|value| value.strip_prefix("0x"));
        let number = number.and_then(|digits| u64::from_str_radix(digits, 16).ok());
        number.ok_or_else(|| name.to_owned())
    }
}

/// Largest offset of a field, in bytes.
const OFFSET_MAX: u64 = 1 << 16;

/// Offsets of fields, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Address in the file of the table of globals.
    pub globals: u64,
    /// Of a method: its number in its chunk, its flags, its token's lower part.
    pub method_number: u64,
    /// Likewise.
    pub method_flags: u64,
    /// Likewise.
    pub method_token: u64,
    /// Bits of that part.
    pub token_bits: u32,
    /// Unit of a method's number, in bytes.
    pub method_unit: u64,
    /// Of a chunk: its size, its class, the token's upper part.
    pub chunk_bytes: u64,
    /// Likewise.
    pub chunk_class: u64,
    /// Likewise.
    pub chunk_token: u64,
    /// Of a class: its module.
    pub class_module: u64,
    /// Of a module: where its file is.
    pub module_base: u64,
    /// Of a method that has no token: its name.
    pub dynamic_name: u64,
    /// The code manager's.
    pub code: CodeOffsets,
}

impl Layout {
    /// The offsets of a contract and a version.
    ///
    /// # Errors
    /// What the contract does not tell.
    pub fn of(contract: &Contract, code: CodeOffsets) -> Result<Self, String> {
        let field = |of, field| contract.field(of, field);
        let bits = contract.constant("MethodDescTokenRemainderBitCount")?;
        let unit = contract.constant("MethodDescAlignment")?;
        Ok(Self {
            globals: 0,
            method_number: field("MethodDesc", "ChunkIndex")?,
            method_flags: field("MethodDesc", "Flags")?,
            method_token: field("MethodDesc", "Flags3AndTokenRemainder")?,
            token_bits: u32::try_from(bits).ok().filter(|bits| *bits <= 16).ok_or("tokens")?,
            method_unit: Some(unit).filter(|unit| *unit <= 64).ok_or("MethodDescAlignment")?,
            chunk_bytes: field("MethodDescChunk", "!")?,
            chunk_class: field("MethodDescChunk", "MethodTable")?,
            chunk_token: field("MethodDescChunk", "FlagsAndTokenRange")?,
            class_module: field("MethodTable", "Module")?,
            module_base: field("Module", "Base")?,
            dynamic_name: field("DynamicMethodDesc", "MethodName")?,
            code,
        })
    }

    /// With the address of the table of globals.
    pub fn with_globals(self, globals: u64) -> Self {
        Self { globals, ..self }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The parts of 9.0.5's contract that are read.
    pub(crate) const CONTRACT: &str = r#"{"version":0,"types":{
        "Module":{"Base":288},"MethodTable":{"Module":24},
        "MethodDesc":{"ChunkIndex":2,"Slot":4,"Flags":6,"Flags3AndTokenRemainder":0},
        "MethodDescChunk":{"!":24,"MethodTable":0,"FlagsAndTokenRange":[18,"uint16"]},
        "DynamicMethodDesc":{"MethodName":32}},
        "globals":{"MethodDescTokenRemainderBitCount":["0xc","uint8"],
        "MethodDescAlignment":["0x8","uint64"],"AppDomain":[[1],"pointer"]}}"#;

    #[test]
    fn a_contract_tells_offsets() {
        let code = code_offsets("9.0.525.21509").unwrap();
        let contract = Contract::parse(CONTRACT.as_bytes()).unwrap();
        let layout = Layout::of(&contract, code).unwrap();
        assert_eq!((layout.token_bits, layout.method_unit, layout.chunk_bytes), (12, 8, 24));
        assert_eq!((layout.chunk_token, layout.module_base), (18, 288));
        let other = CONTRACT.replace("\"Base\"", "\"Begin\"");
        let other = Contract::parse(other.as_bytes()).unwrap();
        assert_eq!(Layout::of(&other, code), Err("Module.Base".to_owned()));
        let far = Contract::parse(CONTRACT.replace(":288", ":9999999").as_bytes()).unwrap();
        assert_eq!(Layout::of(&far, code), Err("Module.Base".to_owned()));
        assert!(["{", "[]", "\0"].iter().all(|text| Contract::parse(text.as_bytes()).is_none()));
        assert_eq!(code_offsets("4.700.22.11601"), None);
        assert_eq!(code_offsets(""), None);
    }
}
