/* Calls of many kinds, executed instruction by instruction by the tests: recursion, frames of
   variable and of aligned size, callbacks through the C library, signal handlers, on this stack
   and on another, a context of its own, jumps over frames. Built with several sets of options. */
#define _GNU_SOURCE
#include <alloca.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

static volatile long sum;
static jmp_buf back;

__attribute__((noinline)) static long leaf(long n) {
	return n * sum + 1;
}

__attribute__((noinline)) static long recursive(long n) {
	if (n == 0)
		return leaf(n);
	return recursive(n - 1) + leaf(n);
}

__attribute__((noinline)) static long variable(long n) {
	char *bytes = alloca(n * 16 + 1);
	memset(bytes, (int)n, n * 16 + 1);
	return n > 0 ? variable(n - 1) + bytes[n] : leaf(3);
}

__attribute__((noinline)) static long aligned(long n) {
	_Alignas(64) volatile char bytes[128];
	bytes[n & 127] = (char)n;
	char *more = alloca(n + 8);
	memset(more, 1, n + 8);
	return n > 0 ? aligned(n - 1) + bytes[n & 127] + more[1] : leaf(4);
}

__attribute__((noinline)) static long many(long a, long b, long c, long d, long e, long f, long g) {
	return leaf(a) * leaf(b) + leaf(c) * leaf(d) + leaf(e) * leaf(f) + g;
}

__attribute__((noinline)) static long last(long n) {
	return recursive(n & 3); /* a jump, if optimised */
}

static int compare(const void *left, const void *right) {
	long a = *(const long *)left, b = *(const long *)right;
	return leaf(a) < leaf(b) ? -1 : a > b;
}

static void handler(int number) {
	sum += recursive(3) + number;
}

static void jumping(long n) {
	if (n == 0)
		longjmp(back, 1);
	jumping(n - 1);
	sum++;
}

static ucontext_t caller, coroutine;
static char coroutine_stack[16384];

static void in_coroutine(void) {
	sum += variable(4);
	swapcontext(&coroutine, &caller);
	sum += recursive(4);
}

int main(void) {
	static char other_stack[32768];
	stack_t stack = {.ss_sp = other_stack, .ss_size = sizeof other_stack};
	struct sigaction action = {.sa_handler = handler};
	long numbers[40];

	sigaction(SIGUSR1, &action, NULL);
	sigaltstack(&stack, NULL);
	action.sa_flags = SA_ONSTACK;
	sigaction(SIGUSR2, &action, NULL);

	sum += recursive(10) + variable(6) + aligned(5) + many(1, 2, 3, 4, 5, 6, 7) + last(3);
	for (int i = 0; i < 40; i++)
		numbers[i] = i * 7919 % 41;
	qsort(numbers, 40, sizeof *numbers, compare);
	long key = 3;
	sum += bsearch(&key, numbers, 40, sizeof *numbers, compare) != NULL;
	kill(getpid(), SIGUSR1);
	kill(getpid(), SIGUSR2);
	if (setjmp(back) == 0)
		jumping(5);

	getcontext(&coroutine);
	coroutine.uc_stack.ss_sp = coroutine_stack;
	coroutine.uc_stack.ss_size = sizeof coroutine_stack;
	coroutine.uc_link = &caller;
	makecontext(&coroutine, in_coroutine, 0);
	swapcontext(&caller, &coroutine);
	swapcontext(&caller, &coroutine);
	return sum == 42;
}
