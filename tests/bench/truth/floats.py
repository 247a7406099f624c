"""Floating point in an interpreter: a set of Mandelbrot, primes by division, and statistics; again
and again if a number is given."""
import cmath
import math
import statistics
import sys


def rounds(point, most):
    z = 0j
    for count in range(most):
        if abs(z) > 2:
            return count
        z = z * z + point
    return most


for _ in range(int([*sys.argv, "1"][1])):
    total = sum(rounds(complex(x / 40 - 2, y / 20 - 1), 50) for x in range(120) for y in range(40))
    primes = [n for n in range(2, 4000) if all(n % d for d in range(2, math.isqrt(n) + 1))]
    waves = [cmath.exp(1j * n / 7).real * math.log(n + 1) for n in range(20000)]
    print(total, len(primes), round(statistics.fmean(waves), 6), round(statistics.pstdev(primes), 3))
