// Sorts texts for the seconds of CPU time given, and prints {"cpu_s": ...}: C++ with templates, whose names are mangled.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

static double cpu_s() {
    timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

int main(int argc, char **argv) {
    const double seconds = argc > 1 ? std::atof(argv[1]) : 1;
    std::uint64_t state = 1;
    while (cpu_s() < seconds) {
        std::vector<std::string> texts;
        for (int i = 0; i < 10000; i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            texts.push_back(std::to_string(state >> 20));
        }
        std::sort(texts.begin(), texts.end());
    }
    std::printf("{\"cpu_s\": %.6f}\n", cpu_s());
}
