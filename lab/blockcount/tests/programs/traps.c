// Traps, instructions that are none, and jumps to where no code is: the handler sees the program's
// own addresses and repairs what happened.
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

extern char at_breakpoint[], at_undefined[], at_halt[];
void breakpoint(void), undefined(void), halt(void);
__asm__(".text\n"
        "breakpoint:\n"
        "at_breakpoint: int3\n"
        "ret\n"
        "undefined:\n"
        "at_undefined: ud2\n"
        "ret\n"
        "halt:\n"
        "at_halt: hlt\n"
        "ret\n");
static char data[64];
static volatile uintptr_t pc;
static void *volatile address;

static void handler(int signal, siginfo_t *info, void *context) {
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    pc = registers[REG_RIP];
    address = info->si_addr;
    if (signal == SIGILL) {
        registers[REG_RIP] += 2;
    } else if (pc == (uintptr_t)at_halt) {
        registers[REG_RIP] += 1;
    } else if (signal == SIGSEGV) {
        // Back to the caller.
        registers[REG_RIP] = *(greg_t *)registers[REG_RSP];
        registers[REG_RSP] += 8;
    }
}

int main(void) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    sigaction(SIGTRAP, &action, 0);
    sigaction(SIGILL, &action, 0);
    sigaction(SIGSEGV, &action, 0);
    for (int round = 0; round < 3; round++) {
        breakpoint();
        if (pc != (uintptr_t)at_breakpoint + 1) return 1;
        undefined();
        if (pc != (uintptr_t)at_undefined || address != at_undefined) return 2;
        halt();
        if (pc != (uintptr_t)at_halt) return 3;
        ((void (*)(void))data)();
        if (pc != (uintptr_t)data || address != data) return 4;
        void (*volatile none)(void) = 0;
        none();
        if (pc != 0 || address != 0) return 5;
    }
    for (int code = 5; code < 8; code++) {
        int status;
        if (vfork() == 0) syscall(SYS_exit, code);
        wait(&status);
        if (WEXITSTATUS(status) != code) return 6;
    }
    return 0;
}
