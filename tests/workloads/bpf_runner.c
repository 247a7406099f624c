/* Loads a BPF program and has the kernel run it for so many seconds of CPU time. Prints the seconds
 * that it ran, by the kernel's own clock. */
#include <linux/bpf.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define STEPS 3000

static int bpf(int command, union bpf_attr *attr)
{
	return syscall(SYS_bpf, command, attr, sizeof *attr);
}

static double cpu_s(void)
{
	struct timespec now;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	return now.tv_sec + now.tv_nsec * 1e-9;
}

int main(int argc, char **argv)
{
	static struct bpf_insn code[STEPS + 2];
	static char packet[64];
	double end = cpu_s() + (argc > 1 ? atof(argv[1]) : 1), ran = 0;
	union bpf_attr attr;
	int program;

	code[0] = (struct bpf_insn){
		.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_0, .imm = 1
	};
	for (int i = 1; i <= STEPS; i++)
		code[i] = (struct bpf_insn){
			.code = BPF_ALU64 | BPF_MUL | BPF_K, .dst_reg = BPF_REG_0, .imm = 31
		};
	code[STEPS + 1] = (struct bpf_insn){ .code = BPF_JMP | BPF_EXIT };

	memset(&attr, 0, sizeof attr);
	attr.prog_type = BPF_PROG_TYPE_SOCKET_FILTER;
	attr.insns = (uint64_t)code;
	attr.insn_cnt = STEPS + 2;
	attr.license = (uint64_t)"GPL";
	strcpy(attr.prog_name, "dcpi_test_hot");
	program = bpf(BPF_PROG_LOAD, &attr);
	if (program < 0) {
		perror("BPF_PROG_LOAD");
		return 1;
	}
	while (cpu_s() < end) {
		double begin = cpu_s();

		memset(&attr, 0, sizeof attr);
		attr.test.prog_fd = program;
		attr.test.repeat = 20000;
		attr.test.data_in = (uint64_t)packet;
		attr.test.data_size_in = sizeof packet;
		if (bpf(BPF_PROG_TEST_RUN, &attr) < 0) {
			perror("BPF_PROG_TEST_RUN");
			return 1;
		}
		ran += cpu_s() - begin;
	}
	printf("{\"ran_s\": %f}\n", ran);
	return 0;
}
