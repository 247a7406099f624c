/* short MICROSECONDS: works for so long. */
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

int main(int count, char **arguments)
{
    double end_s = count > 1 ? 1e-6 * strtod(arguments[1], NULL) : 0;
    struct timespec now;
    volatile uint64_t x = 0;

    do {
        for (int i = 0; i < 10000; i++)
            x += i;
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    } while ((double)now.tv_sec + 1e-9 * (double)now.tv_nsec < end_s);
    return 0;
}
