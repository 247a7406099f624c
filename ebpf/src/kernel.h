/* SPDX-License-Identifier: GPL-2.0-only
 *
 * The kernel's BPF interface, as far as the sampler uses it: types, helpers, registers and kernel
 * structures, declared from the kernel's documentation (bpf(2), bpf-helpers(7)). No header of the
 * kernel or of a C library is included, so that one clang builds the objects of both architectures.
 */
#pragma once

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long s64;

#define SECTION(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))
/* A BPF function of its own, for work that few samples need: its instructions and its stack frame
 * stay out of the common path. */
#define OUT_OF_LINE static __attribute__((noinline))
/* The compiler moves no access to memory across it. */
#define COMPILER_BARRIER() __asm__ volatile("" ::: "memory")
#define LIKELY(condition) __builtin_expect(!!(condition), 1)

/* linux/bpf.h */
enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_RINGBUF = 27,
	BPF_F_MMAPABLE = 1 << 10,
	BPF_RB_NO_WAKEUP = 1,
	BPF_ANY = 0,
	BPF_NOEXIST = 1,
};
struct bpf_pidns_info {
	u32 pid;
	u32 tgid;
};
static void *(*const bpf_map_lookup_elem)(const void *map, const void *key) = (void *)1;
static s64 (*const bpf_map_update_elem)(const void *map, const void *key, const void *value,
					u64 flags) = (void *)2;
static s64 (*const bpf_map_delete_elem)(const void *map, const void *key) = (void *)3;
static u64 (*const bpf_ktime_get_ns)(void) = (void *)5;
static u32 (*const bpf_get_prandom_u32)(void) = (void *)7;
static u32 (*const bpf_get_smp_processor_id)(void) = (void *)8;
static u64 (*const bpf_get_current_pid_tgid)(void) = (void *)14;
static void *(*const bpf_get_current_task)(void) = (void *)35;
static u64 (*const bpf_get_current_uid_gid)(void) = (void *)15;
static s64 (*const bpf_get_current_comm)(void *to, u32 size) = (void *)16;
static s64 (*const bpf_get_stack)(void *context, void *to, u32 size, u64 flags) = (void *)67;
static s64 (*const bpf_probe_read_user)(void *to, u32 size, const void *from) =
	(void *)112; /* Linux 5.5 */
static s64 (*const bpf_probe_read_kernel)(void *to, u32 size, const void *from) =
	(void *)113; /* Linux 5.5 */
static s64 (*const bpf_get_ns_current_pid_tgid)(u64 dev, u64 ino, struct bpf_pidns_info *info,
						u32 size) = (void *)120;
static s64 (*const bpf_ringbuf_output)(void *ring, const void *data, u64 size, u64 flags) =
	(void *)130;
static s64 (*const bpf_get_task_stack)(void *task, void *to, u32 size, u64 flags) =
	(void *)141; /* Linux 5.9 */
static void *(*const bpf_get_current_task_btf)(void) = (void *)158; /* Linux 5.11 */
static void *(*const bpf_task_pt_regs)(void *task) = (void *)175;   /* Linux 5.15 */

/* struct bpf_perf_event_data begins with the interrupted registers: struct pt_regs on x86-64
 * (arch/x86/include/asm/ptrace.h), struct user_pt_regs on arm64
 * (arch/arm64/include/uapi/asm/ptrace.h). A kprobe's context is the same structure. */
#if defined(ARCH_x86_64)
enum {
	FIRST_ARGUMENT = 14, /* di */
	SP_REGISTER = 19,
	PC_REGISTER = 16,    /* ip: after r15 .. di and orig_ax */
	CS_REGISTER = 17,
	REGISTERS = 21, /* flags, sp and ss follow cs */
};
/* Whether user code is 64-bit code: __USER_CS, arch/x86/include/asm/segment.h. */
#define IS_64_BIT(context) ((context)->registers[CS_REGISTER] == 0x33)
#elif defined(ARCH_aarch64)
enum {
	FIRST_ARGUMENT = 0, /* x0 */
	SP_REGISTER = 31,
	PC_REGISTER = 32,   /* pc: after x0 .. x30 and sp */
	FLAGS_REGISTER = 33, /* pstate */
	REGISTERS = 34,
};
/* PSR_MODE32_BIT, arch/arm64/include/uapi/asm/ptrace.h */
#define IS_64_BIT(context) (((context)->registers[FLAGS_REGISTER] & 0x10) == 0)
#else
#error "say -DARCH_x86_64 or -DARCH_aarch64"
#endif
struct context {
	u64 registers[REGISTERS];
};

/* The fields of include/linux/{sched,mm_types,rbtree_types,fs,dcache,maple_tree}.h that the sampler
 * reads. The loader replaces their offsets with those of the running kernel (CO-RE). */
#define KERNEL_TYPE __attribute__((preserve_access_index))
struct super_block {
	u32 s_dev;
} KERNEL_TYPE;
struct timespec64 {
	s64 tv_sec;
	s64 tv_nsec;
} KERNEL_TYPE;
/* The time of an inode's last change has had three names: i_ctime_sec and i_ctime_nsec since Linux
 * 6.11, __i_ctime since 6.6, i_ctime before. CO-RE ignores a name's part from ___ on. */
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
/* For __builtin_preserve_field_info: BPF_CORE_FIELD_EXISTS in linux/bpf.h. */
enum { FIELD_EXISTS = 2 };
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
	u64 start_stack;
	struct file *exe_file;
} KERNEL_TYPE;
struct rb_node {
	u64 __rb_parent_color;
} KERNEL_TYPE;
struct vm_area_struct {
	u64 vm_start;
	u64 vm_end;
	u64 vm_flags;
	u64 vm_pgoff;
	struct file *vm_file;
	struct {
		struct rb_node rb;
	} KERNEL_TYPE shared; /* its place among the mappings of the file */
} KERNEL_TYPE;
enum { VM_EXEC = 4 }; /* a bit of vm_flags */
struct thread_struct {
	u64 fsbase; /* x86-64 */
} KERNEL_TYPE;
struct ns_common {
	u32 inum;
} KERNEL_TYPE;
struct pid_namespace {
	struct ns_common ns;
} KERNEL_TYPE;
struct upid { /* the same since Linux 2.6.24 */
	u32 nr;
	struct pid_namespace *ns;
};
struct pid {
	u32 level;
	struct upid numbers[1];
} KERNEL_TYPE;
typedef struct {
	u32 val;
} kuid_t;
struct cred {
	kuid_t uid;
} KERNEL_TYPE;
struct kernfs_node {
	u64 id;
} KERNEL_TYPE;
struct cgroup {
	struct kernfs_node *kn;
} KERNEL_TYPE;
struct css_set {
	struct cgroup *dfl_cgrp;
} KERNEL_TYPE;
struct task_struct {
	u32 pid;
	u32 tgid;
	u32 flags;
	u64 self_exec_id;
	u64 start_boottime;
	struct mm_struct *mm;
	struct task_struct *real_parent;
	struct task_struct *group_leader;
	struct pid *thread_pid;
	char comm[16];
	struct thread_struct thread;
	u32 __state; /* Linux 5.14 */
	u32 on_cpu;
	u64 nvcsw; /* switches: on the thread's own will, and others */
	u64 nivcsw;
	struct cred *real_cred;
	struct css_set *cgroups;
} KERNEL_TYPE;
struct task_struct___5_10 {
	s64 state;
} KERNEL_TYPE;
/* Bits of a task's flags: threads that may have a process's memory and never execute its code.
 * Those of vhost have PF_USER_WORKER since Linux 6.4, of io_uring PF_IO_WORKER since 5.12; before,
 * both were kernel threads. */
enum { PF_IO_WORKER = 0x10, PF_USER_WORKER = 0x4000, PF_KTHREAD = 0x200000 };
/* Bits of a task's state: what ends it (EXIT_DEAD, EXIT_ZOMBIE, TASK_DEAD). */
enum { TASK_ENDS = 0x10 | 0x20 | 0x80 };

/* A copy of 8 bytes of kernel memory; 0 when the address cannot be read. */
INLINE u64 copied(const void *from)
{
	u64 value = 0;

	bpf_probe_read_kernel(&value, sizeof(value), from);
	return value;
}

/* A copy of 4 bytes of kernel memory; 0 when the address cannot be read. */
INLINE u32 copied_u32(const void *from)
{
	u32 value = 0;

	bpf_probe_read_kernel(&value, sizeof(value), from);
	return value;
}

/* Bounds a value in the very register that is then used: the compiler compares a copy, of which the
 * verifier does not know that it is one. */
#define AT_MOST(value, most) \
	__asm__ volatile("if %0 < %1 goto +1\n\t%0 = %1" : "+r"(value) : "i"(most))

/* Twins of the daemon's structures have these sizes and offsets. */
#define ASSERT_SIZE(type, bytes) _Static_assert(sizeof(struct type) == (bytes), "abi: " #type)
#define ASSERT_OFFSET(type, field, bytes) \
	_Static_assert(__builtin_offsetof(struct type, field) == (bytes), "abi: " #type "." #field)
