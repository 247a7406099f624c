// What the engine does not execute.
#define _GNU_SOURCE
#include <asm/prctl.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv) {
    if (argc < 2) return 0;
    if (strcmp(argv[1], "int") == 0) __asm__ volatile("int $0x80" ::"a"(1), "b"(0));
    if (strcmp(argv[1], "gs") == 0) __asm__ volatile("mov %%gs:0, %%rax" ::: "rax");
    if (strcmp(argv[1], "arch_prctl") == 0) syscall(SYS_arch_prctl, ARCH_SET_GS, &argc);
    if (strcmp(argv[1], "far") == 0) __asm__ volatile("lretq");
    return 0;
}
