// Exceptions through frames with and without clean-up, through the C library, and out of threads.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

struct Counter {
    static int alive;
    Counter() { alive++; }
    ~Counter() { alive--; }
};
int Counter::alive = 0;

__attribute__((noinline)) static int risky(int n) {
    Counter counter;
    if (n % 7 == 3) throw std::runtime_error("three");
    if (n % 11 == 5) throw n;
    return n;
}

__attribute__((noinline)) static int nested(int n, int depth) {
    Counter counter;
    try {
        return depth == 0 ? risky(n) : nested(n, depth - 1) + 1;
    } catch (int thrown) {
        if (depth % 2) throw;
        return -thrown;
    }
}

template <typename T> static T sum_of(const std::vector<T> &all) {
    T sum{};
    for (const T &one : all) sum += one;
    return sum;
}

static int compare(const void *a, const void *b) {
    int x = *static_cast<const int *>(a), y = *static_cast<const int *>(b);
    if (x == 13 && y != 13) throw std::string("thirteen");
    return x < y ? -1 : x > y;
}

int main() {
    std::vector<int> values;
    int caught = 0;
    for (int i = 0; i < 2000; i++) {
        try {
            values.push_back(nested(i, i % 5));
        } catch (const std::runtime_error &) {
            caught++;
        } catch (int) {
            caught += 2;
        }
    }
    std::sort(values.begin(), values.end(), [](int a, int b) { return a % 100 < b % 100; });
    int through = 0;
    for (int i = 0; i < 5; i++) {
        int numbers[] = {5, 1, 13, 2, 8};
        try {
            std::qsort(numbers, 5, sizeof *numbers, compare);
        } catch (const std::string &) {
            through++;
        }
    }
    long from_thread = 0;
    std::thread worker([&] {
        try {
            nested(3, 4);
        } catch (const std::exception &) {
            from_thread = sum_of(std::vector<long>{1, 2, 3});
        }
    });
    worker.join();
    std::printf("%d %d %d %ld %d\n", caught, sum_of(values), through, from_thread, Counter::alive);
    return Counter::alive;
}
