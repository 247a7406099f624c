static volatile int odd, even;

__attribute__((noinline)) static void step(int n) {
    if (n & 1)
        odd = n;
    else even = n;
}

int main(void) {
    for (int n = 0; n < 6; n++) step(n);
    return 0;
}
