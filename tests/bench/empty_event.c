/*
 * The least that sampling can cost: the same perf event as dcpid's on every CPU, cpu-clock at the
 * period given in nanoseconds, with a BPF program attached that returns 0 at once. What dcpid costs
 * above this is dcpid's own.
 *
 *   empty_event PERIOD_NS   prints "ready", samples until SIGTERM or SIGINT, then prints
 *                           {"runs": N, "run_ns": N}
 *                           (both 0 unless the kernel's BPF statistics are on)
 *   empty_event --switches  the same with an empty program at each switch between threads, on the
 *                           raw tracepoint sched_switch
 *   empty_event --waits     prints {"runs": N, "run_ns": N}: runs of dcpid's program at that
 *                           tracepoint, and the time in it and in those at the tracepoints of
 *                           wakeups
 *   empty_event --stats     prints "ready" and keeps the kernel's BPF statistics on until SIGTERM
 *                           or SIGINT: they go off with this process, however it ends
 *                           (BPF_ENABLE_STATS, Linux 5.8), unlike the sysctl
 *                           kernel.bpf_stats_enabled
 */
#include <errno.h>
#include <linux/bpf.h>
#include <linux/perf_event.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

static long bpf(int command, union bpf_attr *attr) {
    return syscall(SYS_bpf, command, attr, sizeof *attr);
}

static int fail(const char *what) {
    fprintf(stderr, "empty_event: %s: %s\n", what, strerror(errno));
    return 2;
}

/* Says that everything is there, and waits for the signal. */
static void wait_for_the_end(const sigset_t *signals) {
    int signal;
    printf("ready\n");
    fflush(stdout);
    sigwait(signals, &signal);
}

static int load_empty_program(uint32_t type) {
    const struct bpf_insn instructions[2] = {
        {.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_0, .imm = 0},
        {.code = BPF_JMP | BPF_EXIT},
    };
    union bpf_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.prog_type = type;
    attr.insns = (uint64_t)(uintptr_t)instructions;
    attr.insn_cnt = 2;
    attr.license = (uint64_t)(uintptr_t) "GPL";
    return (int)bpf(BPF_PROG_LOAD, &attr);
}

/* Opens the event on one CPU; 0 when the CPU is offline, -1 on an error. */
static int open_event(int cpu, uint64_t period_ns, int program) {
    struct perf_event_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.size = sizeof attr;
    attr.type = PERF_TYPE_SOFTWARE;
    attr.config = PERF_COUNT_SW_CPU_CLOCK;
    attr.sample_period = period_ns;
    attr.disabled = 1;
    int event = (int)syscall(SYS_perf_event_open, &attr, -1, cpu, -1, PERF_FLAG_FD_CLOEXEC);
    if (event < 0)
        return errno == ENODEV || errno == ENXIO ? 0 : -1;
    if (ioctl(event, PERF_EVENT_IOC_SET_BPF, program) != 0 ||
        ioctl(event, PERF_EVENT_IOC_ENABLE, 0) != 0)
        return -1;
    return event;
}

static int program_info(int program, struct bpf_prog_info *info) {
    union bpf_attr attr;
    memset(&attr, 0, sizeof attr);
    memset(info, 0, sizeof *info);
    attr.info.bpf_fd = (uint32_t)program;
    attr.info.info_len = sizeof *info;
    attr.info.info = (uint64_t)(uintptr_t)info;
    return bpf(BPF_OBJ_GET_INFO_BY_FD, &attr) == 0 ? 0 : -1;
}

static int show(uint64_t runs, uint64_t run_ns) {
    printf("{\"runs\": %llu, \"run_ns\": %llu}\n", (unsigned long long)runs,
           (unsigned long long)run_ns);
    return 0;
}

static int open_switches(int program) {
    union bpf_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.raw_tracepoint.name = (uint64_t)(uintptr_t) "sched_switch";
    attr.raw_tracepoint.prog_fd = (uint32_t)program;
    return (int)bpf(BPF_RAW_TRACEPOINT_OPEN, &attr);
}

/* What dcpid's programs at tracepoints took. */
static int show_waits(void) {
    uint64_t runs = 0, run_ns = 0;
    struct bpf_prog_info info;
    union bpf_attr attr;
    for (uint32_t id = 0;; id = attr.next_id) {
        memset(&attr, 0, sizeof attr);
        attr.start_id = id;
        if (bpf(BPF_PROG_GET_NEXT_ID, &attr) != 0)
            return show(runs, run_ns);
        uint32_t next = attr.next_id;
        memset(&attr, 0, sizeof attr);
        attr.prog_id = next;
        int program = (int)bpf(BPF_PROG_GET_FD_BY_ID, &attr);
        int is_known = program >= 0 && program_info(program, &info) == 0;
        if (program >= 0)
            close(program);
        attr.next_id = next;
        if (!is_known)
            continue;
        int is_switch = strcmp(info.name, "switched") == 0;
        if (is_switch || strcmp(info.name, "woken") == 0 || strcmp(info.name, "woken_new") == 0)
            run_ns += info.run_time_ns;
        runs += is_switch ? info.run_cnt : 0;
    }
}

int main(int argc, char **argv) {
    sigset_t signals;
    union bpf_attr attr;
    struct bpf_prog_info info;
    struct rlimit unlimited = {RLIM_INFINITY, RLIM_INFINITY};

    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    setrlimit(RLIMIT_MEMLOCK, &unlimited); /* before 5.11 programs are charged to it */
    memset(&attr, 0, sizeof attr);
    if (argc == 2 && strcmp(argv[1], "--stats") == 0) {
        attr.enable_stats.type = BPF_STATS_RUN_TIME;
        if (bpf(BPF_ENABLE_STATS, &attr) < 0)
            return fail("switching the BPF statistics on");
        wait_for_the_end(&signals);
        return 0;
    }
    int is_switches = argc == 2 && strcmp(argv[1], "--switches") == 0;
    if (argc == 2 && strcmp(argv[1], "--waits") == 0)
        return show_waits();
    uint64_t period_ns = argc == 2 && !is_switches ? strtoull(argv[1], NULL, 10) : 0;
    if (!is_switches && period_ns < 10000) {
        fprintf(stderr, "empty_event: say a period of at least 10000 ns, or an option\n");
        return 2;
    }
    int program = load_empty_program(is_switches ? BPF_PROG_TYPE_RAW_TRACEPOINT
                                                 : BPF_PROG_TYPE_PERF_EVENT);
    if (program < 0)
        return fail("loading the empty BPF program");
    long cpus = is_switches ? 0 : sysconf(_SC_NPROCESSORS_CONF);
    if (is_switches && open_switches(program) < 0)
        return fail("opening the tracepoint");
    for (int cpu = 0; cpu < cpus; cpu++)
        if (open_event(cpu, period_ns, program) < 0)
            return fail("opening the event");
    wait_for_the_end(&signals);
    if (program_info(program, &info) != 0)
        return fail("reading the program's statistics");
    return show(info.run_cnt, info.run_time_ns);
}
