// Exceptions: sums in brackets are read, some of which have mistakes.
#include <cstdio>
#include <map>
#include <stdexcept>
#include <string>

struct Mistake : std::runtime_error {
    int at;
    Mistake(const char *what, int at) : std::runtime_error(what), at(at) {}
};

struct Guard {
    int &depth;
    explicit Guard(int &depth) : depth(depth) { depth++; }
    ~Guard() { depth--; }
};

class Reader {
    const std::string &text;
    size_t at = 0;
    int depth = 0;

    long number() {
        if (at >= text.size()) throw Mistake("end", at);
        if (text[at] == '(') {
            Guard guard(depth);
            at++;
            long inner = sum();
            if (at >= text.size() || text[at++] != ')') throw Mistake("no bracket", at);
            return inner;
        }
        if (text[at] < '0' || text[at] > '9') throw Mistake("no number", at);
        long value = 0;
        while (at < text.size() && text[at] >= '0' && text[at] <= '9')
            value = value * 10 + text[at++] - '0';
        if (value > 900) throw std::out_of_range("large");
        return value;
    }

    long sum() {
        long value = number();
        while (at < text.size() && (text[at] == '+' || text[at] == '-'))
            value += text[at++] == '+' ? number() : -number();
        return value;
    }

public:
    explicit Reader(const std::string &text) : text(text) {}
    long read() {
        long value = sum();
        if (at != text.size() || depth) throw Mistake("more", at);
        return value;
    }
};

int main() {
    unsigned seed = 1;
    auto next = [&] { return (seed = seed * 1664525 + 1013904223) >> 10; };
    long total = 0, large = 0;
    std::map<std::string, int> mistakes;
    for (int round = 0; round < 60000; round++) {
        std::string text;
        int open = 0;
        for (int word = 0; word < 12; word++) {
            if (next() % 3 == 0) text += '(', open++;
            text += std::to_string(next() % 920);
            if (open && next() % 2) text += ')', open--;
            text += next() % 40 ? "+" : "*";
        }
        text += "1" + std::string(open, ')');
        try {
            total += Reader(text).read();
        } catch (const Mistake &mistake) {
            mistakes[mistake.what()] += mistake.at;
        } catch (const std::exception &) {
            large++;
        }
    }
    std::printf("%ld %ld %d %d\n", total, large, mistakes["more"], mistakes["no bracket"]);
}
