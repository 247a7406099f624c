// Virtual calls, templates, exceptions and threads.
#include <algorithm>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

struct Node {
    virtual ~Node() = default;
    virtual long value(int depth) const = 0;
};
struct Leaf : Node {
    long value(int depth) const override
    {
        if (depth % 64 == 63)
            throw std::runtime_error("deep");
        return depth;
    }
};
struct Sum : Node {
    std::vector<std::unique_ptr<Node>> parts;
    long value(int depth) const override
    {
        long sum = 0;
        for (const auto &part : parts)
            sum += part->value(depth + 1);
        return sum;
    }
};

static std::unique_ptr<Node> tree(int depth)
{
    if (depth == 0)
        return std::make_unique<Leaf>();
    auto sum = std::make_unique<Sum>();
    for (int i = 0; i < 4; i++)
        sum->parts.push_back(tree(depth - 1));
    return sum;
}

static void work(long rounds)
{
    volatile long sum = 0;
    for (long round = 0; round != rounds; round++) {
        auto root = tree(6);
        for (int i = 0; i < 70; i++) {
            try {
                sum = sum + root->value(i);
            } catch (const std::exception &) {
            }
        }
        std::map<std::string, int> words;
        for (int i = 0; i < 5000; i++)
            words[std::to_string(i * 7919 % 5000)]++;
        std::vector<std::string> keys;
        for (const auto &[word, count] : words)
            keys.push_back(word);
        std::sort(keys.rbegin(), keys.rend());
    }
}

// So many rounds, or on two threads until it is ended.
int main(int argc, char **argv)
{
    if (argc > 1) {
        work(std::stol(argv[1]));
        return 0;
    }
    std::thread other(work, -1);
    work(-1);
}
