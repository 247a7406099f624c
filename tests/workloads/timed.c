/* Calls `work` as often as its first argument says, each time with as many steps as the second. */
#include <stdlib.h>

__attribute__((noinline)) static unsigned work(unsigned x, unsigned steps)
{
    while (steps--)
        x = x * 1664525u + 1013904223u;
    return x;
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    unsigned x = 1, calls = (unsigned)atoi(argv[1]), steps = (unsigned)atoi(argv[2]);
    while (calls--)
        x = work(x, steps);
    return x == 12345;
}
