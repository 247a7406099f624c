// Semantics of signals: masks, pending ones, one-shot handlers, addresses of faults, signalfd.
#define _GNU_SOURCE
#include <errno.h>
#include <fenv.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

static volatile int order[16], orders;
static void *volatile where;
static volatile uintptr_t pc;

static void note(int signal) { order[orders++ & 15] = signal; }

static void fault(int signal, siginfo_t *info, void *context) {
    note(signal);
    where = info->si_addr;
    ucontext_t *user = context;
    pc = user->uc_mcontext.gregs[REG_RIP];
    user->uc_mcontext.gregs[REG_RIP] += 3;
}

extern char faulting[], dividing[];
__attribute__((noinline, noclone)) static void fault_at(long address) {
    __asm__ volatile("faulting: mov %%rax, (%0)\n" ::"r"(address) : "memory");
}

__attribute__((noinline, noclone)) static void divide(void) {
    __asm__ volatile("xor %%ecx, %%ecx\n"
                     "mov $1, %%eax\n"
                     "cltd\n"
                     "dividing: .byte 0x48, 0xf7, 0xf1\n" ::: "rax", "rcx", "rdx");
}

#define CHECK(what) if (!(what)) { printf("failed: %s\n", #what); return __LINE__ & 127; }

static struct sigaction action = {.sa_handler = note}, after;
static sigset_t all, none, seen;

static int masks(void) {
    for (int signal = 34; signal < 38; signal++) sigaction(signal, &action, 0);
    sigaction(SIGUSR1, &action, 0);
    sigaction(SIGUSR2, &action, 0);
    // Several pending: real-time signals come in order, a standard one once.
    sigprocmask(SIG_SETMASK, &all, 0);
    const int sent[] = {36, 35, 36, SIGUSR1, SIGUSR1};
    for (int i = 0; i < 5; i++) kill(getpid(), sent[i]);
    sigpending(&seen);
    CHECK(sigismember(&seen, 35) && sigismember(&seen, SIGUSR1) && orders == 0);
    sigprocmask(SIG_SETMASK, 0, &seen);
    CHECK(sigismember(&seen, SIGSEGV) && sigismember(&seen, SIGBUS));
    CHECK(!sigismember(&seen, SIGKILL));
    sigprocmask(SIG_SETMASK, &none, &seen);
    CHECK(orders == 4);
    int standard = 0, last = 0, sorted = 1;
    for (int i = 0; i < 4; i++) {
        if (order[i] == SIGUSR1) standard++;
        else { sorted &= order[i] <= last || last == 0; last = order[i]; }
    }
    CHECK(standard == 1 && sorted);
    sigprocmask(SIG_SETMASK, 0, &seen);
    CHECK(!sigismember(&seen, SIGSEGV));
    // Programs ask with an unknown request whether memory can be read (Abseil, our loader hook):
    // the mask is read before the request is looked at.
    CHECK(syscall(SYS_rt_sigprocmask, -1, &all, 0, 8) == -1 && errno == EINVAL);
    CHECK(syscall(SYS_rt_sigprocmask, -1, 8, 0, 8) == -1 && errno == EFAULT);
    return 0;
}

static int actions(void) {
    // One-shot.
    struct sigaction once = {.sa_handler = note, .sa_flags = SA_RESETHAND};
    sigaction(SIGUSR2, &once, 0);
    raise(SIGUSR2);
    sigaction(SIGUSR2, 0, &after);
    CHECK(after.sa_handler == SIG_DFL);
    sigaction(SIGUSR1, 0, &after);
    CHECK(after.sa_handler == note && !(after.sa_flags & SA_SIGINFO));
    // Faults: addresses, and the program's own instruction pointer.
    struct sigaction faults = {.sa_sigaction = fault, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &faults, &after);
    CHECK(after.sa_handler == SIG_DFL);
    sigaction(SIGFPE, &faults, 0);
    fault_at(0x123);
    CHECK(where == (void *)0x123 && pc == (uintptr_t)faulting);
    divide();
    CHECK(where == dividing && pc == (uintptr_t)dividing);
    return 0;
}

static int waits(void) {
    // signalfd reads a blocked signal.
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, SIGUSR1);
    sigprocmask(SIG_BLOCK, &one, 0);
    int file = signalfd(-1, &one, 0);
    raise(SIGUSR1);
    struct signalfd_siginfo info;
    CHECK(read(file, &info, sizeof info) == sizeof info && info.ssi_signo == SIGUSR1);
    // sigsuspend and sigwait.
    int before = orders;
    raise(SIGUSR1);
    sigsuspend(&none);
    CHECK(errno == EINTR && orders == before + 1);
    raise(SIGUSR1);
    int got;
    sigwait(&one, &got);
    CHECK(got == SIGUSR1);
    return 0;
}

static int deaths(void) {
    // A child that dies of a fault dies of it here too.
    signal(SIGSEGV, SIG_DFL);
    if (fork() == 0) fault_at(0);
    int status;
    wait(&status);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    if (fork() == 0) { kill(getpid(), SIGSEGV); _exit(0); }
    wait(&status);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    signal(SIGSEGV, SIG_IGN);
    kill(getpid(), SIGSEGV);
    return 0;
}

static int restarts(void) {
    // Interrupted and restarted calls.
    int pipes[2];
    CHECK(pipe(pipes) == 0);
    sigprocmask(SIG_SETMASK, &none, 0);
    struct itimerval soon = {{0, 0}, {0, 20000}};
    sigaction(SIGALRM, &action, 0);
    setitimer(ITIMER_REAL, &soon, 0);
    char byte;
    CHECK(read(pipes[0], &byte, 1) == -1 && errno == EINTR);
    action.sa_flags = SA_RESTART;
    sigaction(SIGALRM, &action, 0);
    setitimer(ITIMER_REAL, &soon, 0);
    if (fork() == 0) { usleep(60000); write(pipes[1], "x", 1); _exit(0); }
    CHECK(read(pipes[0], &byte, 1) == 1 && byte == 'x');
    return 0;
}

int main(void) {
    sigfillset(&all);
    sigemptyset(&none);
    int (*const parts[])(void) = {masks, actions, waits, deaths, restarts};
    for (int i = 0; i < 5; i++) {
        int line = parts[i]();
        if (line != 0) return line;
    }
    return 0;
}
