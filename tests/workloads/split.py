"""Two functions of the same lines, of which one runs three times as long as the other."""

import json
import sys
import time


def heavy(rounds):
    total = 0
    for number in range(rounds):
        total += number * 3 & 7
    return total


def light(rounds):
    total = 0
    for number in range(rounds):
        total += number * 3 & 7
    return total


def main(seconds):
    end = time.process_time() + seconds
    times = {"heavy": 0.0, "light": 0.0}
    while time.process_time() < end:
        begin = time.process_time()
        heavy(30_000)
        between = time.process_time()
        light(10_000)
        times["heavy"] += between - begin
        times["light"] += time.process_time() - between
    print(json.dumps(times))


main(float(sys.argv[1]))
