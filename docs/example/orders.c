/* Sorts orders by customer and by price: one procedure that two others call, and that calls itself.
 * It needs no library, so a recording of it is small:
 * cc -O2 -g -static -nostdlib -fno-stack-protector -o orders docs/example/orders.c
 */
#define ORDERS 20000
#define DAYS 2160

struct order {
    unsigned customer, price;
};

static struct order orders[ORDERS];

typedef int less(const struct order *, const struct order *);

__attribute__((noipa)) static int customer_less(const struct order *a, const struct order *b)
{
    return a->customer < b->customer;
}

__attribute__((noipa)) static int price_less(const struct order *a, const struct order *b)
{
    return a->price < b->price;
}

/* Quicksort (C. A. R. Hoare, 1962). */
__attribute__((noipa)) static void sort(struct order *first, struct order *last, less *less)
{
    while (last - first > 1) {
        struct order pivot = first[(last - first) / 2], *i = first, *j = last - 1;
        while (i <= j) {
            while (less(i, &pivot))
                i++;
            while (less(&pivot, j))
                j--;
            if (i <= j) {
                struct order swapped = *i;
                *i++ = *j;
                *j-- = swapped;
            }
        }
        sort(first, j + 1, less);
        first = i;
    }
}

__attribute__((noipa)) static void receive(unsigned day)
{
    unsigned random = day * 2654435761u + 1;
    for (int i = 0; i < ORDERS; i++) {
        random = random * 1664525u + 1013904223u;
        orders[i].customer = random >> 20;
        orders[i].price = random >> 4 & 0xffff;
    }
}

__attribute__((noipa)) static unsigned bill(void)
{
    unsigned sum = 0;
    sort(orders, orders + ORDERS, customer_less);
    for (int i = 0; i < ORDERS; i++)
        sum += orders[i].price;
    return sum;
}

__attribute__((noipa)) static unsigned rank(void)
{
    sort(orders, orders + ORDERS, price_less);
    return orders[ORDERS / 2].price;
}

/* Bills go out each day, prices are ranked on every third. */
__attribute__((noipa)) static unsigned work(void)
{
    unsigned sum = 0;
    for (unsigned day = 0; day < DAYS; day++) {
        receive(day);
        sum += bill();
        if (day % 3 == 0) {
            receive(day + 1);
            sum += rank();
        }
    }
    return sum;
}

/* The thread's first procedure: nothing called it, which the unwind table says. */
__asm__(".globl _start\n"
        ".type _start, @function\n"
        "_start:\n"
        ".cfi_startproc\n"
        ".cfi_undefined rip\n"
        "    call run\n"
        "    hlt\n"
        ".cfi_endproc\n"
        ".size _start, . - _start\n");

void run(void)
{
    unsigned sum = work();
    __asm__ volatile("syscall" : : "a"(60), "D"(sum & 0) : "rcx", "r11", "memory");
}
