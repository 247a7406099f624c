"""As others.c, of an interpreter."""

import sys
import time


class Value:
    def __init__(self, number):
        self.number = number

    def plus(self, other):
        return Value(self.number + other.number)


if len(sys.argv) < 3:
    print("objects interpreter")
else:
    end = time.monotonic() + float(sys.argv[2])
    while time.monotonic() < end:
        value = Value(0)
        for number in range(20000):
            value = value.plus(Value(number))
