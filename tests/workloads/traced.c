/* Calls whose number is known: traced THREADS CALLS CHILDREN. Each thread makes CALLS calls of
 * step, each child one; the first thread recurses five deep once, and leaves three calls by
 * longjmp. Ends with code 7. traced forever: a call of step each ms, until it is killed. */
#include <pthread.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile long sum;
static jmp_buf out;
static int calls;

__attribute__((noinline)) static void step(int rounds)
{
	for (int i = 0; i < rounds; i++)
		sum += i;
}

__attribute__((noinline)) static int deep(int left)
{
	return left > 1 ? 1 + deep(left - 1) : 1;
}

__attribute__((noinline)) static void leave(int left)
{
	if (left <= 1)
		longjmp(out, 1);
	leave(left - 1);
	sum++;
}

static void *many(void *unused)
{
	for (int i = 0; i < calls; i++)
		step(10);
	return unused;
}

int main(int count, char **words)
{
	if (count > 1 && strcmp(words[1], "forever") == 0)
		for (;;) {
			step(10);
			usleep(1000);
		}
	int threads = atoi(words[1]), children = atoi(words[3]);
	pthread_t thread[256];
	calls = atoi(words[2]);
	for (int i = 0; i < threads; i++)
		pthread_create(&thread[i], NULL, many, NULL);
	for (int i = 0; i < threads; i++)
		pthread_join(thread[i], NULL);
	for (int i = 0; i < children; i++) {
		if (fork() == 0) {
			step(10);
			_exit(0);
		}
		wait(NULL);
	}
	int depth = deep(5);
	if (setjmp(out) == 0)
		leave(3);
	printf("{\"depth\": %d}\n", depth); /* line for a probe */
	return 7;
}
