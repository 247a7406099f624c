/* SPDX-License-Identifier: GPL-2.0-only
 *
 * The sampler: on a counter overflow, count (address space, program counter, event) in this CPU's table.
 *
 * Self-contained on purpose: the few types, constants and helpers of the kernel's BPF interface that it uses are declared here
 * from the kernel's documentation (bpf(2), bpf-helpers(7)), so that one clang builds the objects of both architectures without
 * any header of theirs. The structures are twins of those in abi/src/lib.rs.
 *
 * Rules it lives by (SOSP 1997, section 4.2):
 *  - nothing that a sample writes is shared between CPUs: no lock, no atomic, no barrier;
 *  - a sample touches two lines of this CPU's private page (its own words, one bucket; another bucket, too, where it is of what its process has for
 *    itself), the process's line (which it only reads), and, when a whole bucket is in use, one spill entry;
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
#define LIKELY(condition) __builtin_expect(!!(condition), 1)
/* What few samples need, or none by default: a function of its own to the kernel too, so that neither its code nor its part of the stack is in their way. */
#define APART static __attribute__((noinline))

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
enum { PC_REGISTER = 16, REGISTERS = 21 }; /* ip: after r15 .. di and orig_ax; cs, flags, sp and ss follow */
#elif defined(ARCH_aarch64)
enum { PC_REGISTER = 32, REGISTERS = 33 }; /* pc: after x0 .. x30 and sp */
#else
#error "say -DARCH_x86_64 or -DARCH_aarch64"
#endif
struct context {
	u64 registers[REGISTERS];
};

/* The fields we need of include/linux/{sched,mm_types,fs}.h; the loader puts the running kernel's offsets in (CO-RE). */
#define KERNEL_TYPE __attribute__((preserve_access_index))
struct super_block {
	u32 s_dev;
} KERNEL_TYPE;
struct timespec64 {
	s64 tv_sec;
	s64 tv_nsec;
} KERNEL_TYPE;
/* When it was last changed: its name since Linux 6.11, and in structures of the same type the one before, since 6.6, and the first. */
struct inode {
	u64 i_ino;
	s64 i_size;
	struct super_block *i_sb;
	s64 i_ctime_sec;
	u32 i_ctime_nsec;
} KERNEL_TYPE;
struct inode___6_6 {
	struct timespec64 __i_ctime;
} KERNEL_TYPE;
struct inode___5_10 {
	struct timespec64 i_ctime;
} KERNEL_TYPE;
enum { FIELD_EXISTS = 2 }; /* of __builtin_preserve_field_info: BPF_CORE_FIELD_EXISTS in linux/bpf.h */
struct qstr {
	const char *name;
} KERNEL_TYPE;
struct dentry {
	struct qstr d_name;
} KERNEL_TYPE;
struct path {
	struct dentry *dentry;
} KERNEL_TYPE;
struct file {
	struct path f_path;
	struct inode *f_inode;
} KERNEL_TYPE;
struct maple_tree {
	void *ma_root;
} KERNEL_TYPE;
struct ma_state {
	struct maple_tree *tree;
	u64 index;
	u64 last;
} KERNEL_TYPE;
struct mm_struct {
	struct maple_tree mm_mt; /* Linux 6.1 */
	u64 start_code;
	u64 end_code;
	struct file *exe_file;
} KERNEL_TYPE;
struct vm_area_struct {
	u64 vm_start;
	u64 vm_end;
	u64 vm_flags;
	u64 vm_pgoff;
	struct file *vm_file;
} KERNEL_TYPE;
struct task_struct {
	u32 pid;
	u32 tgid;
	u64 self_exec_id;
	u64 start_boottime;
	struct mm_struct *mm;
	struct task_struct *group_leader;
} KERNEL_TYPE;
enum { VM_EXEC = 4 };

/* Twins of abi/src/lib.rs. */
enum { WAYS = 4, BUCKETS = 31, HALVES = 2, PC_BITS = 57, EVENTS_MAX = 16, PID_BITS = 22, GENERATION_BITS = 10, SLOT_BITS = 15 };
#define SPACE_KERNEL 0u
#define SPACE_FOREIGN (1u << PID_BITS)
#define IN_PROGRAM (1ull << 63)
#define PROGRAM_NONE 0u
#define PROGRAM_APART (~0u)
#define PID_MASK ((1u << PID_BITS) - 1)
#define GENERATION_MASK ((1u << GENERATION_BITS) - 1)

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

/* A page. The table is small, because each page more that a sample touches is one that the program has made the processor forget meanwhile. */
struct cpu_block {
	u32 half;
	u32 snapshot_in; /* samples of user code before the one with the next snapshot */
	struct half_stats stats[HALVES];
	u32 snapshot_every; /* 0: none */
	struct bucket table[HALVES][BUCKETS];
} __attribute__((aligned(4096)));

struct losses {
	u64 spill_full[EVENTS_MAX];
};

/* Code of a file that many processes have, wherever each has it. A line is used once: its len may become 0, and then it stays so. */
struct library {
	u64 start;
	u32 len;
	u32 number;
};
enum { INTERPRETER, LIBC, LIBRARIES };

/* What is known of a process: written when it forks, execs or maps a file, read by samples. */
struct slot {
	u64 mm; /* which memory this is true of; 0: of none */
	u64 text;
	u32 text_len;
	u32 program;
	u32 space;
	u32 born; /* when it began to run its program, in units of 2^BORN_SHIFT ns */
	struct library libraries[LIBRARIES];
} __attribute__((aligned(64)));

/* An exec; or, when program is PROGRAM_APART, a mapping over what may have been another; text_len is the generation before, then; or, when
 * generation is CHANGE_LIBRARY, the mapping of a library. */
#define CHANGE_LIBRARY (1u << 31)
struct change {
	u64 time_ns;
	u64 text;
	u32 text_len;
	u32 program;
	u32 pid;
	u32 generation;
};

/* Samples of user code after which it is asked again whether to take snapshots, where none are. */
enum { LOOK_AGAIN = 64 };
/* The registers of user code at a sample, and what is around the top of its stack. */
enum { SNAPSHOTS_PER_CPU = 128, SNAPSHOT_REGISTERS = 18, STACK_BYTES = 256 };
struct snapshot {
	u64 key;
	u32 space;
	u32 stack_len;
	u64 registers[SNAPSHOT_REGISTERS];
	unsigned char stack[STACK_BYTES];
};

/* A ring of a CPU's snapshots: the sampler writes the first line, the daemon the second. Numbers only grow. */
struct snapshot_ring {
	u32 written;
	u32 dropped;
	u32 reserved[14];
	u32 taken;
	u32 reserved_too[15];
} __attribute__((aligned(64)));

_Static_assert(sizeof(struct snapshot) == 416, "abi: Snapshot");
_Static_assert(sizeof(struct snapshot_ring) == 128, "abi: SnapshotRing");
_Static_assert(sizeof(struct slot) == 64, "abi: Slot");
_Static_assert(sizeof(struct change) == 32, "abi: Change");
_Static_assert(sizeof(struct entry) == 16, "abi: Entry");
_Static_assert(sizeof(struct bucket) == 64, "abi: Bucket");
_Static_assert(sizeof(struct half_stats) == 16, "abi: HalfStats");
_Static_assert(sizeof(struct cpu_block) == 4096, "abi: CpuBlock");

/* Set by the daemon before the program is loaded, to match max_entries of the maps: it puts the value in place of such a number, in the instruction itself
 * (ebpf/src/lib.rs). So the kernel knows it when it verifies, and leaves out branches on it. It does so for read-only globals too, but leaves their loads
 * in, and their page is one that no cache has: a third of what a sample of a loop cost. What few samples ask is in globals. */
enum { SETTING = 0x5e771e00 };
#define CHOSEN(number)                                                            \
	({                                                                        \
		u64 value;                                                        \
		__asm__ volatile("%0 = %1" : "=r"(value) : "i"(SETTING | number)); \
		value;                                                            \
	})
#define SPILL_ENTRIES ((u32)CHOSEN(1)) /* spill entries of a half */
/* How to look into the current task: not at all (no BTF), by copying (5.10), or by typed pointers. */
enum { TASK_HIDDEN, TASK_COPIED, TASK_TYPED };
#define TASK_ACCESS CHOSEN(2)
#define SHARE_PROGRAMS CHOSEN(3)    /* count a program's own text, and that of libraries, once for all processes that run it */
#define KERNEL_BY_PROCESS CHOSEN(4) /* count kernel addresses for each process */
#define SNAPSHOTS CHOSEN(5)	    /* take snapshots of registers with samples of event 0 */
#define TABLE_BUCKETS ((u32)CHOSEN(6)) /* buckets of a half that are not in the CPU's page; 0: those that are */
const volatile u64 PIDNS_DEV = 0; /* the daemon's pid namespace when it is not the root one, else 0 */
const volatile u64 PIDNS_INO = 0;

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

/* By CPU; by (CPU, number). */
struct {
	int (*type)[BPF_MAP_TYPE_ARRAY];
	int (*map_flags)[BPF_F_MMAPABLE];
	int (*max_entries)[1];
	u32 *key;
	struct snapshot_ring *value;
} SNAPSHOT_RINGS SECTION(".maps");

struct {
	int (*type)[BPF_MAP_TYPE_ARRAY];
	int (*map_flags)[BPF_F_MMAPABLE];
	int (*max_entries)[1];
	u32 *key;
	struct snapshot *value;
} SNAPSHOT_DATA SECTION(".maps");

/* Indexed by the low bits of the process's number in the root namespace; who finds another's line there does without. */
struct {
	int (*type)[BPF_MAP_TYPE_ARRAY];
	int (*map_flags)[BPF_F_MMAPABLE];
	int (*max_entries)[1 << SLOT_BITS];
	u32 *key;
	struct slot *value;
} SLOTS SECTION(".maps");

/* Changes of address spaces as they happen, so that the daemon knows which generation means what. Not in NMI context, so a ring will
 * do. */
struct {
	int (*type)[BPF_MAP_TYPE_RINGBUF];
	int (*max_entries)[256 << 10];
} CHANGES SECTION(".maps");

INLINE u64 copied(const void *from)
{
	u64 value = 0;

	bpf_probe_read_kernel(&value, sizeof(value), from);
	return value;
}

INLINE u32 copied_u32(const void *from)
{
	u32 value = 0;

	bpf_probe_read_kernel(&value, sizeof(value), from);
	return value;
}

INLINE u32 hashed_generation(u64 exec_id, u64 birth)
{
	return ((exec_id + birth) * 0x9e3779b97f4a7c15ull) >> (64 - GENERATION_BITS);
}

/* Tells this address space from others that the same process number had or will have: exec counts self_exec_id up, and a process
 * that reuses the number was born at another time. All threads agree: self_exec_id is copied when a thread is made, and the birth
 * is the first thread's. 10 bits of a hash, so two that follow each other are mixed up once in 1024 times. */
INLINE u32 generation(void)
{
	if (TASK_ACCESS == TASK_TYPED) {
		struct task_struct *task = bpf_get_current_task_btf();

		return hashed_generation(task->self_exec_id, task->group_leader->start_boottime);
	}
	if (TASK_ACCESS == TASK_COPIED) {
		struct task_struct *task = bpf_get_current_task();
		struct task_struct *leader = (void *)copied(&task->group_leader);

		return hashed_generation(copied(&task->self_exec_id), copied(&leader->start_boottime));
	}
	return 0;
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

APART u32 own_space(void)
{
	u32 pid = process();

	return pid == 0 ? SPACE_FOREIGN : pid | generation() << PID_BITS;
}

INLINE struct slot *slot_of(u32 root_pid)
{
	u32 index = root_pid & ((1 << SLOT_BITS) - 1);

	return bpf_map_lookup_elem(&SLOTS, &index);
}

/* The current process's line of SLOTS; none when another process has it. One look at the task tells both: each helper called costs as much as a
 * line that is not in the cache. */
INLINE struct slot *own_slot(void)
{
	struct slot *slot;
	u32 root_pid;
	u64 mm;

	if (TASK_ACCESS == TASK_TYPED) {
		struct task_struct *task = bpf_get_current_task_btf();

		mm = (u64)task->mm;
		root_pid = task->tgid;
	} else if (TASK_ACCESS == TASK_COPIED) {
		struct task_struct *task = bpf_get_current_task();

		mm = copied(&task->mm);
		root_pid = bpf_get_current_pid_tgid() >> 32;
	} else {
		return 0;
	}
	slot = slot_of(root_pid);
	return LIKELY(slot && mm && slot->mm == mm) ? slot : 0; /* a kernel thread has no memory, and an unused line knows of none */
}

struct place {
	u64 key; /* without the event */
	u32 space;
};

INLINE struct place inside(const struct library *library, u64 pc)
{
	return (struct place){ .key = IN_PROGRAM | (pc - library->start), .space = library->number };
}

/* Kernel addresses mean the same everywhere. So does a program's own text, wherever it is loaded: it is counted by its distance from its
 * begin, so that a thousand runs of the compiler share their entries; and so does that of two libraries. All else belongs to an address
 * space. */
INLINE struct place placed(u64 pc)
{
	const u64 address = (1ull << PC_BITS) - 1;
	struct slot *slot;

	if (!LIKELY((s64)pc >= 0 || KERNEL_BY_PROCESS))
		return (struct place){ .key = pc & address, .space = SPACE_KERNEL };
	slot = own_slot();
	if (!LIKELY(slot))
		return (struct place){ .key = pc & address, .space = own_space() };
	if (LIKELY(pc - slot->text < slot->text_len))
		return (struct place){ .key = IN_PROGRAM | (pc - slot->text), .space = slot->program };
	if (pc - slot->libraries[LIBC].start < slot->libraries[LIBC].len)
		return inside(&slot->libraries[LIBC], pc);
	if (pc - slot->libraries[INTERPRETER].start < slot->libraries[INTERPRETER].len)
		return inside(&slot->libraries[INTERPRETER], pc);
	return (struct place){ .key = pc & address, .space = slot->space };
}

/* Moves the oldest entry out of a full bucket. False when there is no room for it. */
APART int spill(struct half_stats *stats, u32 half_index, const struct entry *oldest)
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
APART int lose(u32 half_index, u64 event)
{
	struct losses *losses = bpf_map_lookup_elem(&LOSSES, &half_index);

	if (losses)
		losses->spill_full[event]++;
	return 0;
}

#if defined(ARCH_x86_64)
static s64 (*const bpf_probe_read_user)(void *to, u32 size, const void *from) = (void *)112; /* Linux 5.5 */
enum { USER_CODE_64 = 0x33 }; /* __USER_CS, arch/x86/include/asm/segment.h */

/* Where the daemon interprets what is next: registers in the order of their encoding, and the top of the stack as far as it is in memory. The daemon frees a place of the ring by counting `taken` up. */
APART void take_snapshot(struct context *context, u32 cpu, struct place place)
{
	struct snapshot_ring *ring = bpf_map_lookup_elem(&SNAPSHOT_RINGS, &cpu);
	struct snapshot *snapshot;
	u64 *to, from, rest;
	u32 index, written;

	if (!ring)
		return;
	written = ring->written;
	index = cpu * SNAPSHOTS_PER_CPU + written % SNAPSHOTS_PER_CPU;
	snapshot = bpf_map_lookup_elem(&SNAPSHOT_DATA, &index);
	if (!snapshot)
		return;
	if (written - *(volatile u32 *)&ring->taken >= SNAPSHOTS_PER_CPU) {
		ring->dropped++;
		return;
	}
	snapshot->key = place.key;
	snapshot->space = place.space;
	to = snapshot->registers;
	to[0] = context->registers[10]; /* ax */
	to[1] = context->registers[11]; /* cx */
	to[2] = context->registers[12]; /* dx */
	to[3] = context->registers[5];	/* bx */
	to[4] = context->registers[19]; /* sp */
	to[5] = context->registers[4];	/* bp */
	to[6] = context->registers[13]; /* si */
	to[7] = context->registers[14]; /* di */
	to[8] = context->registers[9];	/* r8 */
	to[9] = context->registers[8];
	to[10] = context->registers[7];
	to[11] = context->registers[6];
	to[12] = context->registers[3]; /* r12 */
	to[13] = context->registers[2];
	to[14] = context->registers[1];
	to[15] = context->registers[0];
	to[16] = context->registers[PC_REGISTER];
	to[17] = context->registers[18]; /* flags */
	from = to[4];
	snapshot->stack_len = STACK_BYTES;
	if (bpf_probe_read_user(snapshot->stack, STACK_BYTES, (void *)from) != 0) {
		/* The next page may not be there. */
		rest = (4096 - (from & 4095)) & 4095;
		if (rest > STACK_BYTES)
			rest = 0;
		if (bpf_probe_read_user(snapshot->stack, rest, (void *)from) != 0)
			rest = 0;
		snapshot->stack_len = rest;
	}
	__sync_fetch_and_add(&ring->written, 1); /* after all of it */
}
#endif

/* Fibonacci hashing: the top bits of the product depend on every bit (Knuth, TAOCP 3, 6.4). */
INLINE u32 bucket_number(u32 buckets, u32 place, u32 space, u32 event)
{
	u32 hash = (place ^ event << 12 ^ space * 0x85ebca6bu) * 0x9e3779b1u;

	return ((u64)hash * buckets) >> 32;
}

INLINE struct bucket *bucket_of(struct bucket *table, u32 place, u32 space, u32 event)
{
	return &table[bucket_number(BUCKETS, place, space, event)];
}

/* Where buckets are not in the page. None: there is no such place, which the kernel cannot know. */
APART struct bucket *far_bucket(u32 half_index, u32 place, u32 event)
{
	u32 index = half_index * TABLE_BUCKETS + bucket_number(TABLE_BUCKETS, place, 0, event);

	return bpf_map_lookup_elem(&TABLE, &index);
}

INLINE int take_sample(struct context *context, u64 event)
{
	u64 pc = context->registers[PC_REGISTER];
	u32 cpu = bpf_get_smp_processor_id();
	struct cpu_block *block = bpf_map_lookup_elem(&CPUS, &cpu);
	struct half_stats *stats;
	struct bucket *bucket;
	struct entry *entry;
	struct place place;
	u64 key;
	u32 half, way, space;

	if (!LIKELY(block))
		return 0;
	half = block->half & 1;
	stats = &block->stats[half];
	stats->taken++;
	/* What many processes share is in the bucket of the low 12 bits of its address, which are the same wherever a file is mapped: the processor fetches it
	 * while it waits for the line of the process, and a sample waits for the slower of two cold lines, not for both. */
	bucket = TABLE_BUCKETS ? far_bucket(half + cpu * HALVES, pc & 4095, event) : bucket_of(block->table[half], pc & 4095, 0, event);
	if (!LIKELY(bucket))
		return 0;
	*(volatile u64 *)&bucket->entries[0].key;
	place = placed(pc);
	key = (event << PC_BITS) | place.key;
	space = place.space;
	/* What each has for itself is apart: else one line of a hundred workers' code would have four entries for all of them. Not in a larger table: a
	 * second look there would need stack, which is cold. */
	if (!LIKELY((place.key & IN_PROGRAM) || space == SPACE_KERNEL) && !TABLE_BUCKETS)
		bucket = bucket_of(block->table[half], pc, space, event);
	entry = &bucket->entries[0];
#if defined(ARCH_x86_64)
	if (event == 0 && SNAPSHOTS && LIKELY((s64)pc >= 0)) {
		if (LIKELY(block->snapshot_in != 0)) {
			block->snapshot_in--;
		} else {
			u32 every = *(volatile u32 *)&block->snapshot_every;

			block->snapshot_in = every ? every - 1 : LOOK_AGAIN;
			if (every && context->registers[17] == USER_CODE_64)
				take_snapshot(context, cpu, place);
		}
	}
#endif

	if (LIKELY(entry->key == key && entry->space == space)) {
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
	if (bucket->entries[WAYS - 1].count != 0 && !spill(stats, half + cpu * HALVES, &bucket->entries[WAYS - 1]))
		return lose(half + cpu * HALVES, event);
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

enum { BORN_SHIFT = 20, SETTLED = 4 }; /* 4.2 ms: most programs have mapped their first libraries by then */

INLINE u32 now_born(void)
{
	return bpf_ktime_get_ns() >> BORN_SHIFT;
}

/* When a file was last changed: a number that is another after each change. */
INLINE u64 changed(struct inode *inode)
{
	struct inode___6_6 *since_6_6 = (void *)inode;
	struct inode___5_10 *since_5_10 = (void *)inode;

	if (__builtin_preserve_field_info(inode->i_ctime_sec, FIELD_EXISTS))
		return copied(&inode->i_ctime_sec) * 1000000000 + copied_u32(&inode->i_ctime_nsec);
	if (__builtin_preserve_field_info(since_6_6->__i_ctime, FIELD_EXISTS))
		return copied(&since_6_6->__i_ctime.tv_sec) * 1000000000 + copied(&since_6_6->__i_ctime.tv_nsec);
	if (__builtin_preserve_field_info(since_5_10->i_ctime, FIELD_EXISTS))
		return copied(&since_5_10->i_ctime.tv_sec) * 1000000000 + copied(&since_5_10->i_ctime.tv_nsec);
	return 0;
}

/* A number of this part of a file: of the file, its size and when it was changed, so that one that is built anew is another, be it in the same
 * inode. Programs are part 0, mappings the page that they begin with and 1. */
INLINE u32 number_of(const struct file *file, u64 part)
{
	struct inode *inode = (void *)copied(&file->f_inode);
	struct super_block *super = (void *)copied(&inode->i_sb);
	u64 identity = (copied(&inode->i_ino) ^ part << 40) * 0x9e3779b97f4a7c15ull;

	if (!inode)
		return PROGRAM_NONE;
	identity = (identity ^ copied_u32(&super->s_dev)) * 0x9e3779b97f4a7c15ull;
	identity = (identity ^ copied(&inode->i_size)) * 0x9e3779b97f4a7c15ull;
	identity = (identity ^ changed(inode)) * 0x9e3779b97f4a7c15ull;
	identity >>= 32;
	return identity == PROGRAM_APART ? 1 : identity | 1;
}

/* Slot.mm while a process is on its way into this memory: no task's. */
#define IN_EXEC(mm) ((u64)(mm) | 1)

INLINE int tell(const struct change *change)
{
	return bpf_ringbuf_output(&CHANGES, change, sizeof(*change), BPF_RB_NO_WAKEUP) == 0;
}

INLINE void forget_libraries(struct slot *slot)
{
	slot->libraries[INTERPRETER] = (struct library){};
	slot->libraries[LIBC] = (struct library){};
}

/* After an exec, in the new program's name (fs/exec.c, exec_binprm). Too full a ring costs the daemon a guess, never a sample. */
SECTION("raw_tp/sched_process_exec")
int process_exec(void *context)
{
	struct change change = { .time_ns = bpf_ktime_get_ns(), .pid = process(), .generation = generation() };
	struct slot *slot = slot_of(bpf_get_current_pid_tgid() >> 32);
	struct task_struct *task = bpf_get_current_task();
	struct mm_struct *mm;
	int apart;

	(void)context;
	if (!slot)
		return 0;
	if (TASK_ACCESS == TASK_HIDDEN) {
		if (change.pid != 0)
			tell(&change);
		return 0;
	}
	apart = slot->program == PROGRAM_APART && (slot->space & PID_MASK) == change.pid;
	mm = (void *)copied(&task->mm);
	if (slot->mm != IN_EXEC(mm) || apart)
		forget_libraries(slot);
	slot->mm = 0;
	if (change.pid == 0)
		return 0;
	if (SHARE_PROGRAMS && !apart) {
		u64 text_len;

		change.text = copied(&mm->start_code);
		text_len = copied(&mm->end_code) - change.text;
		change.program = number_of((void *)copied(&mm->exe_file), 0);
		change.text_len = change.program == PROGRAM_NONE || text_len >> 32 ? 0 : text_len;
	}
	slot->text = change.text;
	slot->text_len = tell(&change) ? change.text_len : 0;
	slot->program = apart ? PROGRAM_APART : change.program;
	slot->space = change.pid | change.generation << PID_BITS;
	slot->born = now_born();
	*(volatile u64 *)&slot->mm = (u64)mm;
	return 0;
}

/* A new process runs its parent's program (kernel/fork.c, kernel_clone; the child has not run yet). */
SECTION("raw_tp/sched_process_fork")
int process_fork(u64 *arguments)
{
	struct task_struct *parent = (void *)arguments[0], *child = (void *)arguments[1];
	u32 pid;
	struct slot *slot, *from;

	if (TASK_ACCESS == TASK_HIDDEN)
		return 0;
	pid = copied_u32(&child->tgid);
	if (pid != copied_u32(&child->pid))
		return 0; /* a thread */
	slot = slot_of(pid);
	from = slot_of(copied_u32(&parent->tgid));
	if (!slot || !from)
		return 0;
	slot->mm = 0;
	/* What the child's number is in another namespace cannot be asked for. */
	if (PIDNS_INO != 0)
		return 0;
	if (from != slot && from->mm == copied(&parent->mm)) {
		slot->text = from->text;
		slot->text_len = from->text_len;
		slot->program = from->program;
		slot->born = from->born;
		slot->libraries[INTERPRETER] = from->libraries[INTERPRETER];
		slot->libraries[LIBC] = from->libraries[LIBC];
	} else {
		slot->text_len = 0;
		forget_libraries(slot);
		slot->program = from != slot && from->program == PROGRAM_APART && (from->space & PID_MASK) == copied_u32(&parent->tgid)
					? PROGRAM_APART
					: PROGRAM_NONE;
		slot->born = now_born();
	}
	slot->space = copied_u32(&child->tgid) | hashed_generation(copied(&child->self_exec_id), copied(&child->start_boottime)) << PID_BITS;
	*(volatile u64 *)&slot->mm = copied(&child->mm);
	return 0;
}

#if defined(ARCH_x86_64)
enum { FIRST_ARGUMENT = 14 }; /* di */
#else
enum { FIRST_ARGUMENT = 0 }; /* x0 */
#endif

/* The current process maps a file that is executable. Where it has settled, another file may have been there before: a
 * new generation tells the samples of before and after apart. The first mappings of a program find nothing there, and are left
 * alone: there are many. */
INLINE void note_change(u64 mm)
{
	struct change change = { .time_ns = bpf_ktime_get_ns(), .program = PROGRAM_APART, .pid = process() };
	struct slot *slot = slot_of(bpf_get_current_pid_tgid() >> 32);

	if (!slot || change.pid == 0)
		return;
	/* In the middle of an exec the process has its new memory and still the line of the old: process_exec comes soon. */
	if (slot->mm != mm && slot->mm && (slot->space & PID_MASK) == change.pid)
		return;
	if (slot->mm != mm) {
		/* Older than the sampler, or its line was taken by another process. */
		int apart = slot->program == PROGRAM_APART && (slot->space & PID_MASK) == change.pid;

		slot->mm = 0;
		slot->text_len = 0;
		forget_libraries(slot);
		slot->program = apart ? PROGRAM_APART : PROGRAM_NONE;
		slot->born = now_born();
		/* Another one than it had when it was last known here. */
		change.text_len = generation();
		change.generation = (change.text_len + slot->born) & GENERATION_MASK;
		slot->space = change.pid | (tell(&change) ? change.generation : change.text_len) << PID_BITS;
		*(volatile u64 *)&slot->mm = mm;
		return;
	}
	if (now_born() - slot->born < SETTLED)
		return;
	change.text_len = slot->space >> PID_BITS;
	change.generation = (change.text_len + 1) & GENERATION_MASK;
	if (tell(&change))
		slot->space = change.pid | change.generation << PID_BITS;
}

INLINE u64 current_mm(void)
{
	struct task_struct *task = bpf_get_current_task();

	return copied(&task->mm);
}

#define MAS_STORE 0x726f74735f73616dull /* "mas_stor", little-endian */

struct mapping {
	u64 start;
	u64 end;
	u64 flags;
	u64 page;
	struct file *file;
};

/* What is mapped from start to end is no longer what was there. Nobody runs there before the mapping is complete (its lock is held). */
INLINE void forget_library(struct library *library, u64 start, u64 end)
{
	if (start < library->start + library->len && library->start < end)
		*(volatile u32 *)&library->len = 0;
}

INLINE int is_libc(const struct file *file)
{
	struct dentry *dentry = (void *)copied(&file->f_path.dentry);
	u64 name = copied((void *)copied(&dentry->d_name.name));

	/* libc.so.6, and libc-2.31.so before glibc 2.34; musl's is its interpreter. Little-endian. */
	return (u32)name == 0x6362696c && ((u8)(name >> 32) == '.' || (u8)(name >> 32) == '-');
}

/* Counts a mapping of this file once for all processes that have it. In user code that many short processes have in common, nearly all
 * samples outside of their programs are in these two libraries (4 and 7 % of a compile storm's, and none other has 1). */
INLINE void note_library(struct slot *slot, const struct mapping *mapping, u64 mm)
{
	u64 len = mapping->end - mapping->start;
	struct change change = {
		.time_ns = bpf_ktime_get_ns(), .text = mapping->start, .text_len = len, .generation = CHANGE_LIBRARY
	};
	struct mm_struct *memory = (void *)mm;
	struct library *library;

	change.pid = bpf_get_current_pid_tgid() >> 32;
	if (slot->program == PROGRAM_APART || (slot->space & PID_MASK) != change.pid || len >> 32)
		return;
	if (slot->mm == mm) {
		library = &slot->libraries[LIBC];
		if (library->number != PROGRAM_NONE || !is_libc(mapping->file))
			return;
	} else {
		/* The kernel maps the program and then its interpreter, before process_exec. Nobody reads the line meanwhile. */
		if (slot->mm == 0 || copied(&memory->exe_file) == (u64)mapping->file)
			return;
		if (slot->mm != IN_EXEC(mm))
			forget_libraries(slot);
		*(volatile u64 *)&slot->mm = IN_EXEC(mm);
		library = &slot->libraries[INTERPRETER];
	}
	change.program = number_of(mapping->file, mapping->page + 1);
	if (change.program == PROGRAM_NONE || !tell(&change))
		return;
	library->start = mapping->start;
	library->number = change.program;
	*(volatile u32 *)&library->len = len;
}

/* Something is being mapped, perhaps over what was there; its record is written after this. What is unmapped need not be known. */
INLINE void note_mapping(const struct mapping *mapping, u64 mm)
{
	struct slot *slot = slot_of(bpf_get_current_pid_tgid() >> 32);

	if (TASK_ACCESS == TASK_HIDDEN || !slot)
		return;
	if (slot->mm == mm) {
		forget_library(&slot->libraries[INTERPRETER], mapping->start, mapping->end);
		forget_library(&slot->libraries[LIBC], mapping->start, mapping->end);
		if (mapping->start < slot->text + slot->text_len && slot->text < mapping->end)
			slot->text_len = 0;
	}
	if (!mapping->file || !(mapping->flags & VM_EXEC))
		return;
	note_change(mm);
	if (SHARE_PROGRAMS)
		note_library(slot, mapping, mm);
}

/* Two ways in, the first that the kernel has: what is written into the tree of a process's mappings (include/trace/events/maple_tree.h,
 * Linux 6.1), whoever writes it and why, or a probe. */
SECTION("raw_tp/ma_write")
int mappings_write(u64 *arguments)
{
	struct ma_state *state = (void *)arguments[1];
	struct vm_area_struct *area = (void *)arguments[3];
	struct mm_struct *mm = (void *)current_mm();
	struct mapping mapping = {};

	/* Other trees than this, and those of others: a fork writes its child's. */
	if (!mm || copied(&state->tree) != (u64)&mm->mm_mt)
		return 0;
	/* mas_store_prealloc tells before it writes (lib/maple_tree.c, 6.1 to 7.2), and what it calls mostly tells it again. Unmapping and brk, by
	 * mas_store_gfp, are not always told of. */
	if (copied((void *)arguments[0]) != MAS_STORE)
		return 0;
	mapping.start = copied(&state->index);
	mapping.end = copied(&state->last) + 1;
	if (area) {
		mapping.flags = copied(&area->vm_flags);
		mapping.page = copied(&area->vm_pgoff);
		mapping.file = (void *)copied(&area->vm_file);
	}
	note_mapping(&mapping, (u64)mm);
	return 0;
}

SECTION("kprobe/perf_event_mmap")
int mmap_probe(struct context *context)
{
	struct vm_area_struct *area = (void *)context->registers[FIRST_ARGUMENT];
	struct mapping mapping = {
		.start = copied(&area->vm_start),
		.end = copied(&area->vm_end),
		.flags = copied(&area->vm_flags),
		.page = copied(&area->vm_pgoff),
		.file = (void *)copied(&area->vm_file),
	};

	note_mapping(&mapping, current_mm());
	return 0;
}

char LICENSE[] SECTION("license") = "GPL";
