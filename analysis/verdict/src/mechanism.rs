//! The vocabulary of causes.

use crate::Evidence;
use std::fmt;

macro_rules! mechanisms {
    ($($variant:ident $name:literal $class:ident $text:literal,)*) => {
        /// What takes time.
        #[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Mechanism {
            $(#[doc = $text] $variant,)*
        }

        impl Mechanism {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The name that scripts read.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The class of mechanisms that it belongs to.
            pub fn class(self) -> Class {
                match self { $(Self::$variant => Class::$class,)* }
            }
        }

        impl fmt::Display for Mechanism {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$variant => $text,)* })
            }
        }
    };
}

mechanisms! {
    LoadFromL2 "load_from_l2" Memory "loads from the second-level cache",
    LoadFromL3 "load_from_l3" Memory "loads from the third-level cache",
    LoadFromMemory "load_from_memory" Memory "loads from memory",
    PageWalk "page_walk" Memory "page walks",
    MemoryBandwidth "memory_bandwidth" Memory "memory bandwidth",
    StoreBuffer "store_buffer" Memory "the store buffer is full",
    StoreForwarding "store_forwarding" Memory "stores that cannot be forwarded to loads",
    SplitAccess "split_access" Memory "accesses across lines of the cache",
    Aliasing4k "aliasing_4k" Memory "loads and stores 4 KiB apart",
    FalseSharing "false_sharing" Memory "threads write to different bytes of one line",
    ContendedLine "contended_line" Memory "threads contend for a line",
    LockedInstruction "locked_instruction" Core "locked instructions",
    BranchMispredict "branch_mispredict" Speculation "mispredicted branches",
    IndirectMispredict "indirect_mispredict" Speculation "mispredicted indirect branches",
    ReturnMispredict "return_mispredict" Speculation "mispredicted returns",
    InstructionFetch "instruction_fetch" FrontEnd "fetching instructions",
    Divider "divider" Core "divisions and square roots",
    DependencyChain "dependency_chain" Core "a chain of dependent instructions",
    Throughput "throughput" Core "busy execution units",
    Assist "assist" Core "microcode assists, as for denormal numbers",
    SerialisingInstruction "serialising_instruction" Core "instructions that serialise",
    HypervisorTrap "hypervisor_trap" Kernel "instructions that trap to the hypervisor",
    PageFault "page_fault" Kernel "page faults",
    SystemCall "system_call" Kernel "system calls",
    KernelCopy "kernel_copy" Kernel "copying by the kernel",
    Spinning "spinning" Waiting "spinning",
    WaitLock "wait_lock" Waiting "waiting for a lock",
    WaitDisk "wait_disk" Waiting "waiting for a disk",
    WaitNetwork "wait_network" Waiting "waiting for the network",
    WaitProcess "wait_process" Waiting "waiting for another process",
    WaitTimer "wait_timer" Waiting "waiting for a timer",
    NoCpu "no_cpu" Waiting "waiting for a CPU",
    Interpreter "interpreter" Runtime "an interpreter at work",
    Allocator "allocator" Runtime "the allocator of memory",
    AtLimit "at_limit" Limit "it runs at the processor's limit, and waits for nothing",
    Unknown "unknown" Limit "not known",
}

/// Classes of mechanisms.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Data come late.
    Memory,
    /// Instructions come late.
    FrontEnd,
    /// Work that is thrown away.
    Speculation,
    /// Execution itself.
    Core,
    /// The kernel, or a hypervisor, works for the program.
    Kernel,
    /// Nothing is done.
    Waiting,
    /// Nothing can be gained without less work.
    Limit,
    /// A runtime works for the program.
    Runtime,
}

impl Class {
    /// The name that scripts read.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::FrontEnd => "front_end",
            Self::Speculation => "speculation",
            Self::Core => "core",
            Self::Kernel => "kernel",
            Self::Waiting => "waiting",
            Self::Limit => "limit",
            Self::Runtime => "runtime",
        }
    }
}

/// How sure a verdict is.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Certainty {
    /// Nothing is known.
    Unknown,
    /// Less than likely.
    Possible,
    /// A probability of at least 0.75.
    Likely,
    /// A probability of at least 0.95.
    Certain,
}

impl Certainty {
    /// The word for a probability of a mechanism.
    pub fn of(mechanism: Mechanism, probability: f64) -> Self {
        match probability {
            _ if mechanism == Mechanism::Unknown => Self::Unknown,
            0.95.. => Self::Certain,
            0.75.. => Self::Likely,
            _ => Self::Possible,
        }
    }

    /// The word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Possible => "possible",
            Self::Likely => "likely",
            Self::Certain => "certain",
        }
    }
}

/// Share of accesses to huge pages above which these are not advised.
const HUGE_ALREADY: f64 = 0.9;

impl Mechanism {
    /// Whether it is the place where loads find their data, or the way there.
    pub(crate) fn is_of_a_load(self) -> bool {
        matches!(self, Self::LoadFromL2 | Self::LoadFromL3 | Self::LoadFromMemory | Self::PageWalk)
    }

    /// Whether larger pages may change what it costs.
    pub(crate) fn is_of_pages(self) -> bool {
        matches!(self, Self::PageWalk | Self::LoadFromMemory)
    }

    /// [`Self::advice`], without what is so where the evidence has these kinds and values.
    pub fn advice_beside<'a>(
        self,
        evidence: impl IntoIterator<Item = (&'a str, Option<f64>)>,
    ) -> impl Iterator<Item = &'static str> {
        let is_huge = |share: Option<f64>| share.is_some_and(|share| share >= HUGE_ALREADY);
        let mut evidence = evidence.into_iter();
        let has_huge = evidence.any(|(kind, value)| kind == Evidence::PAGES && is_huge(value));
        let advice = self.advice().iter().copied();
        advice.filter(move |advice| !has_huge || !advice.starts_with("huge pages"))
    }

    /// What to try against it, the most promising first.
    pub fn advice(self) -> &'static [&'static str] {
        match self {
            Self::LoadFromL2 | Self::LoadFromL3 => {
                &["use fewer bytes for each element, or work on pieces that fit a nearer cache"]
            }
            Self::LoadFromMemory => &[
                "use fewer bytes for each element; put elements in the order of their use; load \
                 the next one ahead of its use",
                "huge pages, which spare page walks",
            ],
            Self::PageWalk => &["huge pages, or elements of one use in fewer pages"],
            Self::MemoryBandwidth => {
                &["fewer bytes, or more work on each piece while it is in a cache"]
            }
            Self::StoreBuffer => &["store to fewer lines, or in their order"],
            Self::StoreForwarding => &["load with the size and at the address of the store before"],
            Self::SplitAccess => &["align the data to the size of the accesses"],
            Self::Aliasing4k => &["move one of both arrays by some lines, so that they \
                 are not a multiple of 4 KiB apart"],
            Self::FalseSharing => {
                &["keep what each thread writes in lines of its own (align to 64 or 128 bytes)"]
            }
            Self::ContendedLine => &["a counter or lock for each thread or CPU, merged when read"],
            Self::LockedInstruction => {
                &["fewer atomic operations: gather changes and apply them at once"]
            }
            Self::BranchMispredict => &["sort or group the data, or compute without the \
                 branch (a conditional move, a table)"],
            Self::IndirectMispredict => {
                &["group the calls by target, or test for the usual target first"]
            }
            Self::ReturnMispredict => {
                &["fewer levels of recursion; no returns without their calls"]
            }
            Self::InstructionFetch => &[
                "a smaller program: less inlining, profile-guided \
                 layout (dcpi export --to autofdo, bolt)",
                "huge pages for the code",
            ],
            Self::Divider => &[
                "divide less: multiply by the inverse, shift, or compute it once outside the loop",
            ],
            Self::DependencyChain => {
                &["break the chain: several sums at a time, or another order of operations"]
            }
            Self::Throughput => {
                &["fewer instructions of this kind: wider vectors, or another algorithm"]
            }
            Self::Assist => &["flush denormal numbers to zero (-ffast-math, or \
                 _MM_SET_FLUSH_ZERO_MODE), or scale the data"],
            Self::SerialisingInstruction => {
                &["fences and serialising instructions only where the order needs them"]
            }
            Self::HypervisorTrap => &["ask once and keep the answer"],
            Self::PageFault => {
                &["use memory again instead of giving it back; huge pages; touch it before it \
                 is needed"]
            }
            Self::SystemCall => &["fewer and larger calls: buffers, batches"],
            Self::KernelCopy => &["copy less: mmap, splice, larger buffers that are used again"],
            Self::Spinning => &["hold the lock for less time, or wait in the kernel"],
            Self::Interpreter => {
                &["see which function it interprets: dcpi prof; move the hot loop to compiled code"]
            }
            Self::Allocator => &["allocate less: use objects again, or one allocation for \
                 many; callers: dcpi callers"],
            Self::WaitLock
            | Self::WaitDisk
            | Self::WaitNetwork
            | Self::WaitProcess
            | Self::WaitTimer
            | Self::NoCpu => &["dcpi prof --inclusive --event usertime shows who waits"],
            Self::AtLimit => &["only less work helps: fewer executions (dcpi ideal counts them), \
                 or wider instructions"],
            Self::Unknown => &[
                "dcpi ideal --sampled counts its executions; dcpi machine measures this processor",
            ],
        }
    }
}
