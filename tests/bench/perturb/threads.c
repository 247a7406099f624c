/* Two threads that hand items to each other: one makes them, the other one sums them up, both with
 * work of their own. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>

#define ITEMS 8000
#define ROOM 16

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static uint64_t items[ROOM];
static unsigned made, taken;

__attribute__((noinline)) uint64_t work(uint64_t x, int steps)
{
    for (int i = 0; i < steps; i++)
        x = x * 6364136223846793005u + 1442695040888963407u;
    return x;
}

__attribute__((noinline)) void give(uint64_t item)
{
    pthread_mutex_lock(&lock);
    while (made - taken == ROOM)
        pthread_cond_wait(&changed, &lock);
    items[made++ % ROOM] = item;
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
}

__attribute__((noinline)) uint64_t take(void)
{
    pthread_mutex_lock(&lock);
    while (made == taken)
        pthread_cond_wait(&changed, &lock);
    uint64_t item = items[taken++ % ROOM];
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
    return item;
}

static void *make(void *nothing)
{
    (void)nothing;
    for (int i = 0; i < ITEMS; i++)
        give(work(i, 20000));
    return NULL;
}

int main(void)
{
    pthread_t maker;
    uint64_t sum = 0;
    if (pthread_create(&maker, NULL, make, NULL))
        return 2;
    for (int i = 0; i < ITEMS; i++)
        sum ^= work(take(), 15000);
    pthread_join(maker, NULL);
    printf("%llu\n", (unsigned long long)sum);
    return 0;
}
