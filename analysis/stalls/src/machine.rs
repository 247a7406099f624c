//! Models of processors: the issue width, and the units and latencies of each form of instruction.
//!
//! The tables in `machines/` are made by `cargo xtask machines` from LLVM's scheduling models
//! (llvm-mca, instruction tables; Apache-2.0 with LLVM exception), for the forms of instructions
//! that the programs of a Debian machine have. A form that is not in the table has a latency of one
//! cycle and one micro-operation.

use std::collections::HashMap;
use std::sync::OnceLock;

use code::isa::Isa;
use code::isa::work::Work;
use estimate::BranchBias;
use model::{Cpuid, MeasuredMachine};

/// A model of a processor.
#[derive(Clone, Debug)]
pub struct Machine {
    /// LLVM's name of the processor, such as `znver3`.
    pub name: &'static str,
    /// The instruction set.
    pub isa: Isa,
    /// Micro-operations issued per cycle.
    pub width: f64,
    /// Entries of the reorder buffer, in instructions; 0 for a processor that issues in order.
    pub reorder_buffer: usize,
    /// Cycles from an address to the value, on a hit in the first level of the data cache.
    pub load_latency: f64,
    /// Most cycles that a mispredicted branch costs, until execution is at full speed again.
    pub mispredict_cycles: f64,
    /// Most cycles of a load or store that misses all caches, code included.
    pub miss_cycles_max: f64,
    /// Most cycles of a page walk.
    pub page_walk_cycles_max: f64,
    /// Cycles of a page walk of a program whose page tables are in caches, as a rule: what data TLB
    /// misses may take from other causes of the same instruction.
    pub usual_page_walk_cycles_max: f64,
    /// Most cycles from a store to a load that depends on it and cannot have its bytes forwarded,
    /// beyond the wait until the store is in the cache.
    pub forward_cycles_max: f64,
    /// Cycles of the core per ns, where they are known.
    pub core_ghz: Option<f64>,
    costs: Vec<Cost>,
    /// Index in `costs`, by the name of a form.
    by_name: HashMap<&'static str, u16>,
    /// Index in `costs`, by the number of a form; filled when first needed, since there are ten
    /// thousand forms and a procedure has some dozens.
    by_number: Vec<OnceLock<Option<u16>>>,
}

/// The cost of a form of an instruction.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cost {
    /// Cycles from operands to result, without the load from memory.
    pub latency: f64,
    /// Cycles until a plain addition can use the result, where forwarding makes that sooner. May be
    /// negative for a load, whose latency is added to it. Used for processors that issue in order.
    pub forwarded_latency: f64,
    /// Cycles by which the form needs its operands sooner than a plain addition does. Used for
    /// processors that issue in order.
    pub operand_lead: f64,
    /// Micro-operations.
    pub uops: f64,
    /// Units: a set of units of which any will do, as bits, and the cycles that one of them is
    /// busy.
    pub units: Vec<(u64, f64)>,
}

/// A processor's table, with the properties that LLVM's tables lack.
struct Model {
    name: &'static str,
    isa: Isa,
    table: &'static str,
    /// [`Machine::reorder_buffer`].
    reorder_buffer: usize,
    /// [`Machine::mispredict_cycles`].
    mispredict_cycles: f64,
}

const fn model(
    name: &'static str,
    isa: Isa,
    table: &'static str,
    (reorder_buffer, mispredict_cycles): (usize, f64),
) -> Model {
    Model { name, isa, table, reorder_buffer, mispredict_cycles }
}

/// All models, by LLVM's names, with the sizes of reorder buffers and the most cycles of a
/// misprediction.
///
/// x86-64: reorder buffers from the Intel 64 and IA-32 optimization manual (2024), chapter 2, and
/// AMD's software optimization guides for families 17h and 19h, section 2. Mispredictions as
/// measured by A. Fog (microarchitecture, 2024), doubled, because the code after the branch must be
/// fetched again. Arm: LLVM's models (`MicroOpBufferSize`, and twice the largest
/// `MispredictPenalty` of the processors that issue in order and of the others).
const MODELS: [Model; 15] = [
    model("haswell", Isa::X86_64, include_str!("../machines/haswell.txt"), (192, 40.0)),
    model(
        "skylake-avx512",
        Isa::X86_64,
        include_str!("../machines/skylake-avx512.txt"),
        (224, 40.0),
    ),
    model(
        "icelake-server",
        Isa::X86_64,
        include_str!("../machines/icelake-server.txt"),
        (352, 40.0),
    ),
    model(
        "sapphirerapids",
        Isa::X86_64,
        include_str!("../machines/sapphirerapids.txt"),
        (512, 40.0),
    ),
    model("znver2", Isa::X86_64, include_str!("../machines/znver2.txt"), (224, 40.0)),
    model("znver3", Isa::X86_64, include_str!("../machines/znver3.txt"), (256, 36.0)),
    model("znver4", Isa::X86_64, include_str!("../machines/znver4.txt"), (320, 36.0)),
    model("cortex-a53", Isa::Aarch64, include_str!("../machines/cortex-a53.txt"), (0, 20.0)),
    model("cortex-a55", Isa::Aarch64, include_str!("../machines/cortex-a55.txt"), (0, 20.0)),
    model("cortex-a510", Isa::Aarch64, include_str!("../machines/cortex-a510.txt"), (0, 20.0)),
    model("cortex-a72", Isa::Aarch64, include_str!("../machines/cortex-a72.txt"), (128, 32.0)),
    model("neoverse-n1", Isa::Aarch64, include_str!("../machines/neoverse-n1.txt"), (128, 32.0)),
    model("neoverse-n2", Isa::Aarch64, include_str!("../machines/neoverse-n2.txt"), (160, 32.0)),
    model("neoverse-v1", Isa::Aarch64, include_str!("../machines/neoverse-v1.txt"), (256, 32.0)),
    model("neoverse-v2", Isa::Aarch64, include_str!("../machines/neoverse-v2.txt"), (320, 32.0)),
];

/// Most cycles of a cache miss on any machine. Memory of another socket, modified in a cache there,
/// takes 300 ns (Intel Memory Latency Checker, published figures of two-socket servers), at 4 GHz.
/// Code comes from the same places. A smaller value leaves real stalls unexplained; a larger one
/// widens the range of each cause.
const MISS_CYCLES_MAX: f64 = 1200.0;
/// Most cycles of a page walk on any machine. In a guest, a walk reads up to 24 words (AMD64 APM
/// volume 2, 15.25), nearly all of them cached: two of them from memory at most.
const PAGE_WALK_CYCLES_MAX: f64 = 2.0 * MISS_CYCLES_MAX;
/// Factor between the longest page walk and the median of those that were measured without caches:
/// a walk in five takes half as long again, by other load on memory. Set by hand.
const COLD_WALK_FACTOR: f64 = 1.5;
/// Factor between the cost of a misprediction at most and that in the loop where it is measured,
/// whose code comes from the cache of decoded instructions. Code that is decoded again comes about
/// 5 cycles later (A. Fog, microarchitecture, 2024: 11 to 18 cycles on Zen, 15 to 20 on Skylake).
const DECODE_FACTOR: f64 = 1.5;

/// The processors on which the attribution of samples and the bias of branches were measured.
const FITTED: [&str; 2] = ["znver3", "znver4"];
/// [`Machine::scatter`] of a processor that executes out of order and was not measured: a group of
/// instructions that are renamed or retire together. On Sapphire Rapids 16 % of the samples of a
/// store that waits for the store buffer land three instructions before it. A larger value widens
/// the limits of causes.
const SCATTER_UNKNOWN: usize = 8;

/// Arm's code among the implementers of Arm processors (`MIDR_EL1`).
const ARM: &str = "0x41";

impl Machine {
    /// Names of the models of an instruction set.
    pub fn names(isa: Isa) -> impl Iterator<Item = &'static str> {
        MODELS.iter().filter(move |model| model.isa == isa).map(|model| model.name)
    }

    /// The model with LLVM's name of the processor.
    pub fn named(name: &str) -> Option<Self> {
        let model = MODELS.iter().find(|model| model.name == name)?;
        let mut this = Self {
            name: model.name,
            isa: model.isa,
            width: 4.0,
            reorder_buffer: model.reorder_buffer,
            load_latency: 4.0,
            mispredict_cycles: model.mispredict_cycles,
            miss_cycles_max: MISS_CYCLES_MAX,
            page_walk_cycles_max: PAGE_WALK_CYCLES_MAX,
            usual_page_walk_cycles_max: PAGE_WALK_CYCLES_MAX,
            forward_cycles_max: 0.0,
            core_ghz: None,
            costs: Vec::new(),
            by_name: HashMap::new(),
            by_number: Vec::new(),
        };
        this.read(model.table)?;
        Some(this)
    }

    /// Takes latencies and bounds of this very processor, as `dcpi machine` measured them, instead
    /// of the generic ones. Bounds are the highest that were seen, also while other CPUs used
    /// memory.
    pub fn learn(&mut self, measured: &MeasuredMachine) {
        self.core_ghz = Some(measured.core_ghz.value);
        if let Some(cycles) = measured.load_cycles() {
            self.load_latency = cycles;
        }
        let miss = measured.memory_cycles_max();
        if miss > 0.0 {
            self.miss_cycles_max = miss;
            self.forward_cycles_max = measured.forward_failing_cycles.high;
        }
        if let Some(usual) = measured.page_walk_cycles {
            // Where no walk without caches was measured, the generic bound holds on.
            self.page_walk_cycles_max = measured
                .cold_page_walk_cycles
                .map_or(PAGE_WALK_CYCLES_MAX, |cold| cold.max(usual.high) * COLD_WALK_FACTOR);
            self.usual_page_walk_cycles_max = usual.value;
        }
        if measured.mispredict_cycles.high > 0.0 {
            self.mispredict_cycles = measured.mispredict_cycles.high * DECODE_FACTOR;
        }
    }

    /// Whether it was measured on this kind of processor where samples land and how observed
    /// branches are biased. On others both are unknown, and limits allow for it.
    pub fn is_fitted(&self) -> bool {
        FITTED.contains(&self.name)
    }

    /// Bias of observed branches on this processor.
    pub fn branch_bias(&self) -> BranchBias {
        if self.is_fitted() { BranchBias::ZEN } else { BranchBias::UNKNOWN }
    }

    /// Most instructions between the one that took the time and the one that a sample is attributed
    /// to, beyond what the measured skid corrects.
    pub fn scatter(&self) -> usize {
        if self.is_fitted() || self.in_order() { 0 } else { SCATTER_UNKNOWN }
    }

    /// Whether the processor issues instructions in program order.
    pub fn in_order(&self) -> bool {
        self.reorder_buffer == 0
    }

    /// The name of the model nearest to a processor: its own, or that of nearly the same core;
    /// `None` for others. Families and models: Linux 6.12, `arch/x86/include/asm/intel-family.h`
    /// and `arch/x86/kernel/cpu/amd.c`. Parts: `arch/arm64/include/asm/cputype.h`.
    pub fn nearest(cpuid: &Cpuid) -> Option<&'static str> {
        Some(match (cpuid.vendor.as_str(), cpuid.family, cpuid.model) {
            ("AuthenticAMD" | "HygonGenuine", 0x17 | 0x18, _) => "znver2",
            ("AuthenticAMD", 0x19, 0x00..=0x0f | 0x20..=0x5f) => "znver3",
            // LLVM 22 has the same tables for later families.
            ("AuthenticAMD", 0x19.., _) => "znver4",
            ("GenuineIntel", 6, 0x3c | 0x3f | 0x45 | 0x46 | 0x3d | 0x47 | 0x4f | 0x56) => "haswell",
            ("GenuineIntel", 6, 0x4e | 0x5e | 0x55 | 0x8e | 0x9e | 0xa5 | 0xa6) => "skylake-avx512",
            ("GenuineIntel", 6, 0x6a | 0x6c | 0x7d | 0x7e | 0x8c | 0x8d | 0xa7) => "icelake-server",
            // Golden Cove and its successors: servers from Sapphire Rapids, clients from Alder Lake
            // (whose small cores are of another kind).
            ("GenuineIntel", 6, 0x8f | 0x97 | 0x9a | 0xad | 0xae | 0xb7 | 0xba | 0xbf | 0xcf) => {
                "sapphirerapids"
            }
            // Cortex-A53, -A35; -A55; -A510, -A520.
            (ARM, _, 0xd03 | 0xd04) => "cortex-a53",
            (ARM, _, 0xd05) => "cortex-a55",
            (ARM, _, 0xd46 | 0xd80) => "cortex-a510",
            // Cortex-A57, -A72, -A73, -A75: LLVM has the same tables for the first two.
            (ARM, _, 0xd07..=0xd0a) => "cortex-a72",
            // Neoverse N1, and of the same family Cortex-A76, -A77, -A78.
            (ARM, _, 0xd0c | 0xd0b | 0xd0e | 0xd0d | 0xd41 | 0xd42 | 0xd4b) => "neoverse-n1",
            // Neoverse N2, Cortex-A710, -A715, -A720, Neoverse N3.
            (ARM, _, 0xd49 | 0xd47 | 0xd4d | 0xd81 | 0xd8e) => "neoverse-n2",
            // Neoverse V1, Cortex-X1.
            (ARM, _, 0xd40 | 0xd44 | 0xd4c) => "neoverse-v1",
            // Neoverse V2, Cortex-X2, -X3, -X4, Neoverse V3.
            (ARM, _, 0xd4f | 0xd48 | 0xd4e | 0xd82 | 0xd83 | 0xd84) => "neoverse-v2",
            _ => return None,
        })
    }

    /// The cost of an instruction; `None` if its form is not in the table.
    pub fn cost(&self, work: &Work) -> Option<&Cost> {
        let find = || self.by_name.get(self.isa.form_name(work.form).as_str()).copied();
        let cost = self.by_number.get(work.form.number())?.get_or_init(find);
        self.costs.get(usize::from((*cost)?))
    }

    /// Cycles of the issue width that an instruction takes: micro-operations / width, at most 1.
    pub fn issue_cycles(&self, work: &Work) -> f64 {
        self.cost(work).map_or(1.0, |cost| cost.uops).min(self.width) / self.width
    }

    fn read(&mut self, table: &'static str) -> Option<()> {
        self.by_number.resize(self.isa.forms().count(), OnceLock::new());
        for line in table.lines().filter(|line| !line.starts_with('#')) {
            let mut words = line.split_whitespace();
            match words.next()? {
                "width" => self.width = words.next()?.parse().ok()?,
                "load" => self.load_latency = words.next()?.parse().ok()?,
                latency => {
                    let (latency, early) = latency.split_once('+').unwrap_or((latency, "0"));
                    let (latency, forwarded) =
                        latency.split_once('/').unwrap_or((latency, latency));
                    let number = |text: &str| text.parse::<f64>().ok();
                    let (latency, forwarded, early) =
                        (number(latency)?, number(forwarded)?, number(early)?);
                    let uops = words.next()?.parse().ok()?;
                    let units = words.next()?.split(',').filter(|unit| *unit != "-");
                    let unit = |unit: &str| {
                        let (bits, cycles) = unit.split_once(':')?;
                        Some((u64::from_str_radix(bits, 16).ok()?, cycles.parse().ok()?))
                    };
                    let units: Option<Vec<(u64, f64)>> = units.map(unit).collect();
                    let cost = u16::try_from(self.costs.len()).ok()?;
                    self.costs.push(Cost {
                        latency,
                        forwarded_latency: forwarded,
                        operand_lead: early,
                        uops,
                        units: units?,
                    });
                    self.by_name.extend(words.map(|name| (name, cost)));
                }
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(machine: &Machine, bytes: &[u8]) -> Cost {
        machine.cost(&Isa::X86_64.work(bytes).unwrap()).unwrap().clone()
    }

    /// How many forms have a cost. Every name in the table is a form's.
    fn forms(machine: &Machine) -> usize {
        let names: Vec<String> =
            machine.isa.forms().map(|form| machine.isa.form_name(form)).collect();
        let works = machine.isa.forms().map(|form| Work { form, ..Work::default() });
        let forms = works.filter(|work| machine.cost(work).is_some()).count();
        assert!(
            machine.by_name.keys().all(|name| names.iter().any(|known| known == name)),
            "{}",
            machine.name
        );
        forms
    }

    #[test]
    fn all_tables_are_read() {
        for name in Machine::names(Isa::X86_64) {
            let machine = Machine::named(name).unwrap();
            let forms = forms(&machine);
            assert!(forms > 700, "{name}: {forms}");
            assert!((4.0..=8.0).contains(&machine.width), "{name}");
            assert!((4.0..=5.0).contains(&machine.load_latency), "{name}");
            // add rax, rbx; mov rax, [rdi]; imul rax, rbx; div rcx
            let add = cost(&machine, &[0x48, 0x01, 0xd8]);
            assert_eq!((add.latency, add.uops), (1.0, 1.0), "{name}");
            let load = cost(&machine, &[0x48, 0x8b, 0x07]);
            assert_eq!((load.latency, load.uops), (0.0, 1.0), "{name}");
            assert!(
                (3.0..=4.0).contains(&cost(&machine, &[0x48, 0x0f, 0xaf, 0xc3]).latency),
                "{name}"
            );
            assert!(cost(&machine, &[0x48, 0xf7, 0xf1]).latency >= 7.0, "{name}");
            for cost in &machine.costs {
                assert!(
                    cost.units.iter().all(|(bits, cycles)| *bits != 0 && *cycles > 0.0),
                    "{name}: {cost:?}"
                );
            }
        }
    }

    #[test]
    fn tables_of_arm() {
        for name in Machine::names(Isa::Aarch64) {
            let machine = Machine::named(name).unwrap();
            let cost = |word: u32| {
                machine.cost(&Isa::Aarch64.work(&word.to_le_bytes()).unwrap()).unwrap().clone()
            };
            assert!(forms(&machine) > 250, "{name}");
            assert!(
                (2.0..=16.0).contains(&machine.width)
                    && (2.0..=5.0).contains(&machine.load_latency),
                "{name}"
            );
            // add x0, x1, x2; ldr x0, [x1]; mul x0, x1, x2; fdiv d0, d1, d2
            assert!((cost(0x8b02_0020).forwarded_latency - 1.0).abs() < 1e-9, "{name}");
            assert!((cost(0xf940_0020).latency).abs() < 1e-9, "{name}");
            assert!((2.0..=5.0).contains(&cost(0x9b02_7c20).forwarded_latency), "{name}");
            assert!(cost(0x1e62_1820).latency >= 10.0, "{name}");
            for cost in &machine.costs {
                assert!(
                    cost.units.iter().all(|(bits, cycles)| *bits != 0 && *cycles > 0.0),
                    "{name}: {cost:?}"
                );
                assert!(
                    cost.forwarded_latency <= cost.latency
                        && (0.0..=3.0).contains(&cost.operand_lead),
                    "{name}: {cost:?}"
                );
            }
        }
        assert!(
            Machine::named("cortex-a53").unwrap().in_order()
                && !Machine::named("neoverse-n1").unwrap().in_order()
        );
    }

    /// A bound is never below the highest that was seen, and generic where nothing was measured.
    #[test]
    fn what_was_measured_replaces_what_is_generic() {
        let text = include_str!("../tests/zen4.json");
        let measured = MeasuredMachine::of_file(text.as_bytes()).unwrap();
        let generic = Machine::named("znver4").unwrap();
        let mut machine = generic.clone();
        machine.learn(&measured);
        assert_eq!((generic.load_latency, generic.miss_cycles_max), (5.0, 1200.0));
        assert_eq!(machine.load_latency.round(), 4.0);
        assert_eq!(machine.miss_cycles_max, measured.loaded_memory_cycles.unwrap().high);
        assert!(machine.miss_cycles_max >= measured.memory_cycles.high);
        assert!(machine.usual_page_walk_cycles_max < machine.page_walk_cycles_max);
        assert!(machine.mispredict_cycles < generic.mispredict_cycles);
        let mut unmeasured = generic.clone();
        unmeasured.learn(&MeasuredMachine {
            page_walk_cycles: None,
            caches: Vec::new(),
            mispredict_cycles: model::Spread::default(),
            ..measured
        });
        assert_eq!(unmeasured.page_walk_cycles_max, generic.page_walk_cycles_max);
        assert_eq!(unmeasured.load_latency, generic.load_latency);
        assert_eq!(unmeasured.mispredict_cycles, generic.mispredict_cycles);
    }

    #[test]
    fn processors_have_tables() {
        let of = |vendor: &str, family, model| {
            Machine::nearest(&Cpuid { vendor: vendor.to_owned(), family, model })
        };
        assert_eq!(of("AuthenticAMD", 25, 1), Some("znver3"));
        assert_eq!(of("AuthenticAMD", 25, 17), Some("znver4"));
        assert_eq!(of("AuthenticAMD", 26, 2), Some("znver4"));
        assert_eq!(of("GenuineIntel", 6, 85), Some("skylake-avx512"));
        assert_eq!(of("GenuineIntel", 6, 207), Some("sapphirerapids"));
        assert_eq!(of("VIA", 6, 1), None);
        assert_eq!(of("0x41", 8, 0xd03), Some("cortex-a53"));
        assert_eq!(of("0x41", 8, 0xd0c), Some("neoverse-n1"));
        assert_eq!(of("0x61", 8, 0x22), None);
    }
}
