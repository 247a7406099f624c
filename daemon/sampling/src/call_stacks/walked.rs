//! A stack that was walked.

use abi::StackRecord;
use address_spaces::mappings::AddressMap;
use address_spaces::scopes::Tags;
use inspect::questions::{RuntimeFunction, RuntimeRun};
use model::{Attributes, Cut};
use std::sync::Arc;

/// A stack that was walked.
pub struct WalkedStack {
    /// Thread, time, weight. Its registers are wiped.
    pub record: StackRecord,
    /// Return addresses in the kernel, innermost first.
    pub kernel: Vec<u64>,
    /// Addresses of user code, innermost first: of the next instruction in the first, within the
    /// call in others.
    pub user: Vec<u64>,
    /// Functions of runtimes in the place of native frames, the innermost first.
    pub runs: Vec<RuntimeRun>,
    /// Functions that `runs` names.
    pub functions: Arc<Vec<RuntimeFunction>>,
    /// What the program had set for the thread.
    pub attributes: Attributes,
    /// Why the thread's first frames are not known.
    pub cut: Option<Cut>,
    /// The mappings and tags of the process.
    pub space: Option<(Arc<AddressMap>, Tags)>,
}
