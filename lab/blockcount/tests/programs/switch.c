// A switch of 100 cases, each taken 5,000 times, with signals or without.
#include <signal.h>
#include <sys/time.h>

#define CASE(n) case n: x = (x << n % 31) * (2 * n + 3) ^ (x >> n % 7); break;
#define TEN(n) CASE(n##0) CASE(n##1) CASE(n##2) CASE(n##3) CASE(n##4) \
    CASE(n##5) CASE(n##6) CASE(n##7) CASE(n##8) CASE(n##9)

static volatile int handled;

static void handler(int signal) {
    (void)signal;
    handled++;
}

int main(int count, char **arguments) {
    (void)arguments;
    if (count > 1) {
        struct itimerval often = {{0, 500}, {0, 500}};
        signal(SIGALRM, handler);
        setitimer(ITIMER_REAL, &often, 0);
    }
    unsigned x = 1;
    for (int round = 0; round < 500000; round++) {
        switch (round % 100 + 100) {
            TEN(10) TEN(11) TEN(12) TEN(13) TEN(14) TEN(15) TEN(16) TEN(17) TEN(18) TEN(19)
        }
    }
    return x == 42;
}
