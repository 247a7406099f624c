# Calls of Python that a profiler must find: recursion, a generator, calls from C code (sorted, the
# C encoder of json) back into Python. The argument is the time to run in seconds. Prints the CPU
# time of each kind of call.
import json
import sys
import time


def leaf(n):
    total = 0
    for i in range(n):
        total += i * i
    return total


def recursion(depth):
    if depth == 0:
        return leaf(20000)
    return recursion(depth - 1)


def generator():
    for _ in range(3):
        yield leaf(10000)


class Sorter:
    def key(self, value):
        return leaf(300) + value

    def sort(self):
        return sorted(range(20), key=self.key)


class Encoder(json.JSONEncoder):
    def default(self, value):
        leaf(10000)
        return 1


def encode():
    return json.dumps([object()], cls=Encoder)


def generate():
    return sum(generator())


def main(seconds):
    end = time.monotonic() + seconds
    works = {"recursion": lambda: recursion(3), "generate": generate, "sort": Sorter().sort,
             "encode": encode}
    times = dict.fromkeys(works, 0.0)
    while time.monotonic() < end:
        for name, work in works.items():
            begin = time.process_time()
            work()
            times[name] += time.process_time() - begin
    print(json.dumps(times))


main(float(sys.argv[1]))
