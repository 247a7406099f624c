/* A program with a known number of each floating-point exception in known call paths. Prints what
 * it computed, the flags that it read, and the signals that it asked for.
 *
 * Usage: exceptional [own] */
#define _GNU_SOURCE
#include <fenv.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define APART __attribute__((noipa))

static volatile double zero = 0, one = 1, large = 1e308, small = 3e-308, three = 3;
static volatile double least = 0x1p-1022;
static volatile double sink;

APART static void divides(void) { sink = one / zero; }
APART static void is_invalid(void) { sink = zero / zero; }
APART static void overflows(void) { sink = large * large; }
APART static void underflows(void) { sink = small / three; }
APART static void rounds(void) { sink = one / three; }
/* Very small, but exact: no exception where it is masked. */
APART static void is_exact(void) { sink = least / 4; }

APART static void often(int times)
{
	while (times-- > 0) {
		divides();
		if (times % 2)
			is_invalid();
	}
}

APART static void seldom(void)
{
	divides();
	overflows();
	underflows();
	underflows();
	rounds();
}

static void show(const char *when)
{
	int flags = fetestexcept(FE_ALL_EXCEPT);

	printf("%s:%s%s%s%s%s\n", when, flags & FE_INVALID ? " invalid" : "",
	       flags & FE_DIVBYZERO ? " divide" : "", flags & FE_OVERFLOW ? " overflow" : "",
	       flags & FE_UNDERFLOW ? " underflow" : "", flags & FE_INEXACT ? " inexact" : "");
	fflush(stdout);
}

static void *in_thread(void *nothing)
{
	show("thread");
	often(3);
	show("thread, later");
	return nothing;
}

static void on_signal(int number)
{
	(void)number;
	overflows();
	sink = zero; /* so that the call is not a jump */
}

static sigjmp_buf back;
static volatile int codes[16], signals;

static void on_fpe(int number, siginfo_t *info, void *context)
{
	(void)number, (void)context;
	if (signals < 16)
		codes[signals] = info->si_code;
	signals++;
	siglongjmp(back, 1);
}

/* Asks for SIGFPE at divisions by zero, but not at operations without meaning. */
static void own(void)
{
	struct sigaction action;

	memset(&action, 0, sizeof action);
	action.sa_sigaction = on_fpe;
	action.sa_flags = SA_SIGINFO | SA_NODEFER;
	sigaction(SIGFPE, &action, 0);
	printf("asked for before: %#x\n", fegetexcept());
	printf("asked for before: %#x\n", feenableexcept(FE_DIVBYZERO));
	is_invalid();
	for (volatile int i = 0; i < 3; i++) {
		/* A handler begins with the defaults, and siglongjmp leaves them. */
		feenableexcept(FE_DIVBYZERO);
		if (!sigsetjmp(back, 1))
			divides();
	}
	fedisableexcept(FE_DIVBYZERO);
	divides();
	printf("signals: %d, codes %d %d %d\n", signals, codes[0], codes[1], codes[2]);
	show("own");
}

int main(int count, char **arguments)
{
	struct sigaction action;
	pthread_t thread;
	pid_t child;

	if (count > 1 && !strcmp(arguments[1], "own")) {
		own();
		return 0;
	}
	show("begin");
	is_exact();
	show("exact");
	often(10);
	show("often");
	feclearexcept(FE_ALL_EXCEPT);
	show("cleared");
	seldom();
	show("seldom");
	fesetround(FE_UPWARD);
	rounds();
	printf("%.17g\n", sink);
	divides();
	printf("%g\n", sink);
	fesetround(FE_TONEAREST);
	if (pthread_create(&thread, 0, in_thread, 0))
		return 1;
	pthread_join(thread, 0);
	memset(&action, 0, sizeof action);
	action.sa_handler = on_signal;
	sigaction(SIGUSR1, &action, 0);
	raise(SIGUSR1);
	fflush(stdout);
	child = fork();
	if (child == 0) {
		is_invalid();
		show("child");
		_exit(7);
	}
	waitpid(child, &count, 0);
	printf("child: %d\n", WEXITSTATUS(count));
	return 3;
}
