// C++ exceptions through ten frames with destructors.
#include <stdexcept>

extern "C" void work();
__asm__(".text\n"
        ".globl work\n"
        "work:\n"
        "at_50000_begin: lea 1(%rax), %rax\n"
        "at_50000_end: ret\n"
        "at_x_end:\n");

struct Guard {
    ~Guard() { work(); }
};

static int descend(int depth) {
    Guard guard;
    if (depth == 1) throw std::runtime_error("deep");
    return descend(depth - 1) + 1;
}

int main() {
    int caught = 0;
    for (int round = 0; round < 5000; round++) {
        try {
            descend(10);
        } catch (const std::runtime_error &) {
            caught++;
        }
    }
    return caught == 5000 ? 0 : 1;
}
