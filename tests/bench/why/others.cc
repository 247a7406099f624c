/*
 * As others.c, of C++'s library.
 */
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

static std::chrono::steady_clock::time_point end;
static volatile uint64_t sink;
static uint64_t state = 88172645463325252u;

static bool goes_on() { return std::chrono::steady_clock::now() < end; }

static uint64_t random_number()
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

struct Shape {
	double size = 2;
	virtual double area() const = 0;
	virtual ~Shape() = default;
};
struct Square : Shape {
	double area() const override { return size * size; }
};
struct Circle : Shape {
	double area() const override { return 3.14 * size * size; }
};
struct Triangle : Shape {
	double area() const override { return size * size / 2; }
};
struct Strip : Shape {
	double area() const override { return size + 4; }
};

static void shapes()
{
	std::vector<std::unique_ptr<Shape>> all;
	for (int i = 0; i < 4000; i++)
		switch (random_number() % 4) {
		case 0: all.emplace_back(new Square); break;
		case 1: all.emplace_back(new Circle); break;
		case 2: all.emplace_back(new Triangle); break;
		default: all.emplace_back(new Strip);
		}
	double sum = 0;
	while (goes_on()) {
		for (size_t i = all.size() - 1; i > 0; i--)
			std::swap(all[i], all[random_number() % (i + 1)]);
		for (int round = 0; round < 20; round++)
			for (auto &shape : all)
				sum += shape->area();
	}
	sink = sum;
}

static void look_ups()
{
	std::unordered_map<uint64_t, uint64_t> map;
	for (int i = 0; i < 4000000; i++)
		map[i * 2654435761u] = i;
	while (goes_on())
		for (int i = 0; i < 10000; i++) {
			auto found = map.find((random_number() % 4000000) * 2654435761u);
			sink += found == map.end() ? 0 : found->second;
		}
}

static void sorting()
{
	std::vector<int> values(200000);
	while (goes_on()) {
		for (auto &value : values)
			value = random_number();
		std::sort(values.begin(), values.end());
		sink += values[7];
	}
}

static void strings()
{
	while (goes_on()) {
		std::list<std::string> list;
		for (int i = 0; i < 2000; i++)
			list.emplace_back(40 + i % 60, 'x');
		for (int i = 0; i < 1000; i++) {
			list.pop_front();
			list.emplace_back(30 + i % 90, 'y');
		}
		sink += list.size();
	}
}

static const struct {
	const char *name, *mechanisms;
	void (*run)();
} programs[] = {
    {"shapes", "indirect_mispredict", shapes},
    {"look_ups", "load_from_memory,page_walk", look_ups},
    {"sorting", "branch_mispredict", sorting},
    {"strings", "allocator", strings},
};

int main(int argc, char **argv)
{
	for (auto &program : programs)
		if (argc < 3) {
			printf("%s %s\n", program.name, program.mechanisms);
		} else if (std::string(argv[1]) == program.name) {
			end = std::chrono::steady_clock::now() +
			      std::chrono::milliseconds((long)(1000 * atof(argv[2])));
			program.run();
			return 0;
		}
	return argc < 3 ? 0 : 2;
}
