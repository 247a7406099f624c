//! What was where in which address space: mappings of processes, the files behind them, code made
//! at run time, the kernel's text, and whose process it was.

pub mod cgroups;
pub mod file_facts;
pub mod file_versions;
pub mod jit;
pub mod kernel_code_records;
pub mod kernel_text;
pub mod loader_notices;
pub mod mapped_files;
pub mod mappings;
pub mod open_mapped;
pub mod python_files;
pub mod scopes;
pub mod system;
pub mod unknown_code;
pub mod users;
pub mod vdso;
pub mod vdso32;
