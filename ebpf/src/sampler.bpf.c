/* SPDX-License-Identifier: GPL-2.0-only
 *
 * The sampler: on a counter overflow, count (address space, program counter, event) in this CPU's
 * table. One compilation unit, so that each program is compiled as a whole:
 *
 *   count.c      counting a sample, and the 16 programs that do it; with
 *                place.h (key and address space), spill.h (what leaves the table),
 *                snapshot.h, ahead.h (registers and memory of user code), stack.h, walk.h,
 *                rules.h, calls.h, erlang.h (call stacks)
 *   processes.c  exec and fork: which process runs which program
 *   mappings.c   new mappings: generations, and libraries that are counted once; both with
 *                changes.h (numbers of programs, messages to the daemon)
 *   waits.c      threads that leave a CPU or come to one: their times, and stacks of some waits
 *   wait_samples.c  waiting threads, seen at random moments
 *   shared       kernel.h (the BPF interface), abi.h (twins of ebpf/abi/src/lib.rs), settings.h,
 *                maps.h, process.h (the current process and its slot)
 *
 * The rules of the sample path (SOSP 1997, section 4.2):
 *  - a sample writes nothing that CPUs share: no lock, no atomic, no barrier. The one exception is
 *    the atomic counters of the CPU's own rings of snapshots and stacks;
 *  - a sample touches two cache lines of its CPU's page (its words and one bucket; a second bucket
 *    for code that one process alone has), the process's slot, which samples only read, and, when
 *    the bucket is full, one entry of the spill buffer;
 *  - no count vanishes: an entry that leaves its bucket goes to the spill buffer, and when that is
 *    full, the sample is counted as lost.
 *
 * Programs of one CPU do not nest: the kernel runs no second one while bpf_prog_active is held
 * (kernel/events/core.c, bpf_overflow_handler, 5.10 to 6.18). The half that the daemon drains is
 * never the half written here: the daemon flips `half` and then makes the CPU take an interrupt,
 * after which no run that saw the old value is left (daemon/kernel/src/sample_table.rs).
 */
#include "count.c"
#include "processes.c"
#include "mappings.c"
#include "waits.c"
#include "wait_samples.c"

char LICENSE[] SECTION("license") = "GPL";
