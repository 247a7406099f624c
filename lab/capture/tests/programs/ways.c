/* Ways in which code is left and entered: callbacks, longjmp, tables of jumps, tail calls, threads,
   signals, children. What it does is the same in each run. */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile unsigned sum;

static int compare(const void *a, const void *b) {
    int x = *(const int *)a, y = *(const int *)b;
    if (x < y) return -1;
    return x > y;
}

static int descending(const void *a, const void *b) {
    /* A callback that calls back: the C library lies between two of ours, twice. */
    int pair[2] = {*(const int *)b, *(const int *)a};
    qsort(pair, 2, sizeof *pair, compare);
    return *(const int *)b == *(const int *)a ? 0 : pair[0] == *(const int *)b ? -1 : 1;
}

static jmp_buf out;

static void dive(int depth) {
    if (depth == 0) longjmp(out, 1);
    dive(depth - 1);
    sum += depth;
}

static unsigned table(unsigned n) {
    switch (n % 9) {
    case 0: return n + 1;
    case 1: return n * 3;
    case 2: return n ^ 5;
    case 3: return n % 5;
    case 4: return n >> 1;
    case 5: return n << 2;
    case 6: return n - 7;
    case 7: return ~n;
    default: return 0;
    }
}

static unsigned computed(unsigned n) {
    static void *const labels[] = {&&add, &&half, &&done};
    unsigned steps = 0;
    goto *labels[n % 3];
add:
    n += 3;
    if (++steps > 50) goto done;
    goto *labels[(n >> 1) % 3];
half:
    n /= 2;
    if (++steps > 50) goto done;
    goto *labels[(n >> 2) % 3];
done:
    return n + steps;
}

__attribute__((noinline)) static int even(int n);
__attribute__((noinline)) static int odd(int n) { return n == 0 ? 0 : even(n - 1); }
__attribute__((noinline)) static int even(int n) { return n == 0 ? 1 : odd(n - 1); }

__attribute__((noinline)) static unsigned deep(unsigned n) {
    unsigned below = n ? deep(n - 1) : 0;
    return below * 31 + table(n);
}

static void *thread(void *argument) {
    unsigned own = (unsigned)(size_t)argument, result = 0;
    for (unsigned i = 0; i < 20000; i++) result += table(i + own) & 3;
    return (void *)(size_t)result;
}

static volatile sig_atomic_t signals;

static void handler(int signal) {
    for (int i = 0; i < signal; i++) signals = signals + 1;
}

static void informed(int signal, siginfo_t *information, void *context) {
    (void)context;
    if (information->si_signo == signal) signals = signals + 1;
}

int main(void) {
    int numbers[500];
    unsigned state = 7;
    for (int i = 0; i < 500; i++) numbers[i] = (int)((state = state * 1103515245u + 12345u) >> 8);
    qsort(numbers, 500, sizeof *numbers, compare);
    qsort(numbers, 500, sizeof *numbers, descending);
    for (int i = 0; i < 20; i++) {
        if (setjmp(out) == 0) dive(i);
        else sum++;
    }
    for (unsigned i = 0; i < 1000; i++) sum += table(i) + computed(i);
    sum += (unsigned)even(1001);
    /* Longer than a chunk on the way down and on the way up. */
    sum += deep(60000);
    pthread_t threads[3];
    for (size_t i = 0; i < 3; i++) pthread_create(&threads[i], NULL, thread, (void *)i);
    for (int i = 0; i < 3; i++) {
        void *result;
        pthread_join(threads[i], &result);
        sum += (unsigned)(size_t)result;
    }
    signal(SIGUSR1, handler);
    struct sigaction action = {0}, before;
    action.sa_sigaction = informed;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGUSR2, &action, NULL);
    for (int i = 0; i < 40; i++) raise(i % 2 ? SIGUSR1 : SIGUSR2);
    sigaction(SIGUSR2, NULL, &before);
    if (before.sa_sigaction != informed || signal(SIGUSR1, SIG_DFL) != handler) abort();
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        for (unsigned i = 0; i < 3000; i++) sum += table(i);
        _exit((int)(sum & 3));
    }
    int status;
    waitpid(child, &status, 0);
    char text[64];
    snprintf(text, sizeof text, "%u %d %d", sum, (int)signals, status != -1);
    puts(text);
    return strlen(text) > 5 ? 0 : 1;
}
