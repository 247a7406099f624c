#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>
struct Shape { virtual ~Shape() = default; virtual double area() const = 0; };
struct Square : Shape { double a; Square(double a) : a(a) {} double area() const override { return a * a; } };
struct Circle : Shape { double r; Circle(double r) : r(r) {} double area() const override { return 3.14 * r * r; } };
int main() {
    unsigned seed = 1; auto next = [&] { return seed = seed * 1664525 + 1013904223; };
    double total = 0;
    for (int round = 0; round < 20; round++) {
        std::map<std::string, int> counts; std::unordered_map<int, std::string> names; std::vector<std::unique_ptr<Shape>> shapes;
        for (int i = 0; i < 4000; i++) {
            counts[std::to_string(next() >> 22)]++; names[next() >> 20] += 'x';
            if (next() & 1024) shapes.push_back(std::make_unique<Square>(i)); else shapes.push_back(std::make_unique<Circle>(i));
        }
        std::sort(shapes.begin(), shapes.end(), [](auto &a, auto &b) { return a->area() < b->area(); });
        std::function<int(int)> f = [&](int n) { return n <= 0 ? 0 : 1 + f(n / 2); };
        for (auto &[name, count] : counts) total += count + f(name.size() * 100);
        for (auto &shape : shapes) total += shape->area();
        try { if (names.size() > 100) throw round; } catch (int n) { total += n; }
    }
    std::printf("%f\n", total);
}
