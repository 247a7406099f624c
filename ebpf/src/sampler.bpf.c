/* SPDX-License-Identifier: GPL-2.0-only
 *
 * The sampler: on a counter overflow, count (address space, program counter, event) in this CPU's table.
 *
 * Self-contained on purpose: the few types, constants and helpers of the kernel's BPF interface that it uses are declared here
 * from the kernel's documentation (bpf(2), bpf-helpers(7)), so that one clang builds the objects of both architectures without
 * any header of theirs. The structures are twins of those in abi/src/lib.rs.
 *
 * Rules it lives by (SOSP 1997, section 4.2):
 *  - nothing is shared between CPUs: no lock, no atomic, no barrier;
 *  - a sample touches this CPU's private line, one bucket, and, when a whole bucket is in use, one spill entry;
 *  - no count vanishes: what the bucket evicts goes to the spill buffer, and a sample is counted as lost when that is full.
 *
 * Programs of one CPU do not nest: the kernel runs no second one while bpf_prog_active is held (kernel/events/core.c,
 * bpf_overflow_handler, 5.10 to 6.18). The half that the daemon drains is never the half written here: the daemon flips
 * `half` and then makes the CPU take an interrupt, after which no run that saw the old value is left (daemon/src/kernel/table.rs).
 */

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long s64;

#define SECTION(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))

/* linux/bpf.h */
enum { BPF_MAP_TYPE_ARRAY = 2, BPF_MAP_TYPE_RINGBUF = 27, BPF_F_MMAPABLE = 1 << 10, BPF_RB_NO_WAKEUP = 1 };
struct bpf_pidns_info {
	u32 pid;
	u32 tgid;
};
static void *(*const bpf_map_lookup_elem)(const void *map, const void *key) = (void *)1;
static u64 (*const bpf_ktime_get_ns)(void) = (void *)5;
static u32 (*const bpf_get_smp_processor_id)(void) = (void *)8;
static u64 (*const bpf_get_current_pid_tgid)(void) = (void *)14;
static void *(*const bpf_get_current_task)(void) = (void *)35;
static s64 (*const bpf_probe_read_kernel)(void *to, u32 size, const void *from) = (void *)113;
static s64 (*const bpf_ringbuf_output)(void *ring, const void *data, u64 size, u64 flags) = (void *)130;
static s64 (*const bpf_get_ns_current_pid_tgid)(u64 dev, u64 ino, struct bpf_pidns_info *info, u32 size) = (void *)120;
static void *(*const bpf_get_current_task_btf)(void) = (void *)158; /* Linux 5.11 */

/* struct bpf_perf_event_data begins with the interrupted registers: struct pt_regs on x86-64 (arch/x86/include/asm/ptrace.h),
 * struct user_pt_regs on arm64 (arch/arm64/include/uapi/asm/ptrace.h). */
#if defined(ARCH_x86_64)
enum { PC_REGISTER = 16 }; /* ip: after r15 .. di and orig_ax */
#elif defined(ARCH_aarch64)
enum { PC_REGISTER = 32 }; /* pc: after x0 .. x30 and sp */
#else
#error "say -DARCH_x86_64 or -DARCH_aarch64"
#endif
struct context {
	u64 registers[PC_REGISTER + 1];
};

/* The fields we need of include/linux/sched.h; the loader puts the running kernel's offsets in (CO-RE). */
struct task_struct {
	u64 self_exec_id;
	u64 start_boottime;
	struct task_struct *group_leader;
} __attribute__((preserve_access_index));

/* Twins of abi/src/lib.rs. */
enum { WAYS = 4, HALVES = 2, PC_BITS = 57, EVENTS_MAX = 16, PID_BITS = 22, GENERATION_BITS = 10 };
#define SPACE_KERNEL 0u
#define SPACE_FOREIGN (1u << PID_BITS)

struct entry {
	u64 key;
	u32 space;
	u32 count;
};

struct bucket {
	struct entry entries[WAYS];
} __attribute__((aligned(64)));

struct half_stats {
	u64 taken;
	u32 misses;
	u32 spilled;
};

struct cpu_block {
	u32 half;
	u32 reserved;
	struct half_stats stats[HALVES];
} __attribute__((aligned(64)));

struct losses {
	u64 spill_full[EVENTS_MAX];
};

struct exec {
	u64 time_ns;
	u32 pid;
	u32 generation;
};

_Static_assert(sizeof(struct exec) == 16, "abi: Exec");
_Static_assert(sizeof(struct entry) == 16, "abi: Entry");
_Static_assert(sizeof(struct bucket) == 64, "abi: Bucket");
_Static_assert(sizeof(struct half_stats) == 16, "abi: HalfStats");
_Static_assert(sizeof(struct cpu_block) == 64, "abi: CpuBlock");

/* Set by the daemon before the program is loaded. The kernel knows read-only globals as constants when it verifies, so the
 * branches on them cost nothing per sample. max_entries of the maps are set to match. */
const volatile u32 BUCKET_BITS = 4;   /* buckets of a half: 1 << BUCKET_BITS */
const volatile u32 SPILL_ENTRIES = 1; /* spill entries of a half */
const volatile u64 PIDNS_DEV = 0;     /* the daemon's pid namespace when it is not the root one, else 0 */
const volatile u64 PIDNS_INO = 0;
/* How to look into the current task: not at all (no BTF), by copying (5.10), or by typed pointers. */
enum { TASK_HIDDEN, TASK_COPIED, TASK_TYPED };
const volatile u32 TASK_ACCESS = TASK_HIDDEN;

/* Indexed by CPU; by (CPU, half, bucket); by (CPU, half, entry); by (CPU, half). */
struct {
	int (*type)[BPF_MAP_TYPE_ARRAY];
	int (*map_flags)[BPF_F_MMAPABLE];
	int (*max_entries)[1];
	u32 *key;
	struct cpu_block *value;
} CPUS SECTION(".maps");

struct {
	int (*type)[BPF_MAP_TYPE_ARRAY];
	int (*map_flags)[BPF_F_MMAPABLE];
	int (*max_entries)[1];
	u32 *key;
	struct bucket *value;
} TABLE SECTION(".maps");

struct {
	int (*type)[BPF_MAP_TYPE_ARRAY];
	int (*map_flags)[BPF_F_MMAPABLE];
	int (*max_entries)[1];
	u32 *key;
	struct entry *value;
} SPILL SECTION(".maps");

struct {
	int (*type)[BPF_MAP_TYPE_ARRAY];
	int (*map_flags)[BPF_F_MMAPABLE];
	int (*max_entries)[1];
	u32 *key;
	struct losses *value;
} LOSSES SECTION(".maps");

/* Execs as they happen, so that the daemon knows which generation ran which program. Not in NMI context, so a ring will do. */
struct {
	int (*type)[BPF_MAP_TYPE_RINGBUF];
	int (*max_entries)[256 << 10];
} EXECS SECTION(".maps");

INLINE u64 copied(const void *from)
{
	u64 value = 0;

	bpf_probe_read_kernel(&value, sizeof(value), from);
	return value;
}

/* Tells this address space from others that the same process number had or will have: exec counts self_exec_id up, and a process
 * that reuses the number was born at another time. All threads agree: self_exec_id is copied when a thread is made, and the birth
 * is the first thread's. 10 bits of a hash, so two that follow each other are mixed up once in 1024 times. */
INLINE u32 generation(void)
{
	u64 exec_id, birth;

	if (TASK_ACCESS == TASK_TYPED) {
		struct task_struct *task = bpf_get_current_task_btf();

		exec_id = task->self_exec_id;
		birth = task->group_leader->start_boottime;
	} else if (TASK_ACCESS == TASK_COPIED) {
		struct task_struct *task = bpf_get_current_task();
		struct task_struct *leader = (void *)copied(&task->group_leader);

		exec_id = copied(&task->self_exec_id);
		birth = copied(&leader->start_boottime);
	} else {
		return 0;
	}
	return ((exec_id + birth) * 0x9e3779b97f4a7c15ull) >> (64 - GENERATION_BITS);
}

/* The current process's number as the daemon sees it; 0 when it cannot. */
INLINE u32 process(void)
{
	struct bpf_pidns_info info = {};

	if (PIDNS_INO == 0)
		return bpf_get_current_pid_tgid() >> 32;
	if (bpf_get_ns_current_pid_tgid(PIDNS_DEV, PIDNS_INO, &info, sizeof(info)) != 0)
		return 0;
	return info.tgid;
}

INLINE u32 address_space(u64 pc)
{
	u32 pid;

	if ((s64)pc < 0)
		return SPACE_KERNEL;
	pid = process();
	return pid == 0 ? SPACE_FOREIGN : pid | generation() << PID_BITS;
}

/* Moves the oldest entry out of a full bucket. False when there is no room for it. */
INLINE int spill(struct half_stats *stats, u32 half_index, const struct entry *oldest)
{
	u32 used = stats->spilled;
	u32 index = half_index * SPILL_ENTRIES + used;
	struct entry *slot;

	if (used >= SPILL_ENTRIES)
		return 0;
	slot = bpf_map_lookup_elem(&SPILL, &index);
	if (!slot)
		return 0;
	*slot = *oldest;
	stats->spilled = used + 1;
	return 1;
}

/* The one rare path: apart, so that the private line stays one line. */
INLINE int lose(u32 half_index, u64 event)
{
	struct losses *losses = bpf_map_lookup_elem(&LOSSES, &half_index);

	if (losses)
		losses->spill_full[event]++;
	return 0;
}

INLINE int take_sample(struct context *context, u64 event)
{
	u64 pc = context->registers[PC_REGISTER];
	u64 key = (event << PC_BITS) | (pc & ((1ull << PC_BITS) - 1));
	u32 space = address_space(pc);
	u32 cpu = bpf_get_smp_processor_id();
	struct half_stats *stats;
	struct cpu_block *block;
	struct bucket *bucket;
	struct entry *entry;
	u32 half_index, index, way;
	u64 hash;

	block = bpf_map_lookup_elem(&CPUS, &cpu);
	if (!block)
		return 0;
	/* Two branches rather than an index: a constant offset is cheaper than a checked one. */
	if (block->half & 1) {
		stats = &block->stats[1];
		half_index = cpu * HALVES + 1;
	} else {
		stats = &block->stats[0];
		half_index = cpu * HALVES;
	}
	stats->taken++;

	/* Fibonacci hashing: the top bits of the product depend on every bit of the key (Knuth, TAOCP 3, 6.4). */
	hash = (key ^ ((u64)space << 32)) * 0x9e3779b97f4a7c15ull;
	index = (half_index << BUCKET_BITS) + (u32)(hash >> (64 - BUCKET_BITS));
	bucket = bpf_map_lookup_elem(&TABLE, &index);
	if (!bucket)
		return lose(half_index, event);

	entry = &bucket->entries[0];
	if (entry->key == key && entry->space == space) {
		entry->count++;
		return 0;
	}
	/* A hit further back swaps with the front, so that the next one is found at once (SOSP 1997, section 5.4). */
#pragma unroll
	for (way = 1; way < WAYS; way++) {
		struct entry *found = &bucket->entries[way];

		if (found->key == key && found->space == space) {
			u32 count = found->count + 1;

			*found = *entry;
			entry->key = key;
			entry->space = space;
			entry->count = count;
			return 0;
		}
	}

	stats->misses++;
	if (bucket->entries[WAYS - 1].count != 0 && !spill(stats, half_index, &bucket->entries[WAYS - 1]))
		return lose(half_index, event);
	bucket->entries[3] = bucket->entries[2];
	bucket->entries[2] = bucket->entries[1];
	bucket->entries[1] = bucket->entries[0];
	entry->key = key;
	entry->space = space;
	entry->count = 1;
	return 0;
}

/* One program per event number, so that the number is a constant in each. A return of 0 keeps the sample out of the event's
 * ring buffer: perf writes no record, counts are all there is. */
#define SAMPLER(n)                              \
	SECTION("perf_event")                   \
	int sample_##n(struct context *context) \
	{                                       \
		return take_sample(context, n); \
	}

SAMPLER(0)
SAMPLER(1)
SAMPLER(2)
SAMPLER(3)
SAMPLER(4)
SAMPLER(5)
SAMPLER(6)
SAMPLER(7)
SAMPLER(8)
SAMPLER(9)
SAMPLER(10)
SAMPLER(11)
SAMPLER(12)
SAMPLER(13)
SAMPLER(14)
SAMPLER(15)

/* After an exec, in the new program's name (fs/exec.c, exec_binprm). Too full a ring costs the daemon a guess, never a sample. */
SECTION("raw_tp/sched_process_exec")
int process_exec(void *context)
{
	struct exec exec = { .time_ns = bpf_ktime_get_ns(), .pid = process(), .generation = generation() };

	(void)context;
	if (exec.pid != 0)
		bpf_ringbuf_output(&EXECS, &exec, sizeof(exec), BPF_RB_NO_WAKEUP);
	return 0;
}

char LICENSE[] SECTION("license") = "GPL";
