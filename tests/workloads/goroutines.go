// Two functions that divide one kind of work 3 to 1, for so many seconds: work in C ("c"),
// allocations that the collector of garbage makes goroutines help with ("collector"), or a function
// that is inlined into both ("inlined"). Says how long each took.
package main

/*
__attribute__((noinline)) static unsigned long work(unsigned long rounds) {
	unsigned long sum = rounds;
	for (unsigned long i = 0; i < rounds; i++)
		sum = sum * 6364136223846793005 + (sum >> 7);
	return sum;
}
*/
import "C"

import (
	"fmt"
	"os"
	"strconv"
	"time"
)

type node struct{ left, right *node }

var (
	sum  uint64
	kept *node
)

func tree(depth int) *node {
	if depth == 0 {
		return &node{}
	}
	return &node{tree(depth - 1), tree(depth - 1)}
}

func mix(value uint64) uint64 {
	value ^= value >> 33
	value *= 0xff51afd7ed558ccd
	value ^= value >> 29
	value *= 0xc4ceb9fe1a85ec53
	return value ^ value>>32
}

func mixed(value uint64) uint64 { return mix(value) + mix(value+1) }

//go:noinline
func loop(rounds int) {
	for i := 0; i < rounds; i++ {
		sum = mixed(sum + uint64(i))
	}
}

//go:noinline
func in_c(rounds int) { sum += uint64(C.work(C.ulong(rounds))) }

//go:noinline
func allocate(rounds int) {
	for i := 0; i < rounds; i++ {
		kept = tree(12)
	}
}

//go:noinline
func often(work func(int), rounds int) { work(3 * rounds) }

//go:noinline
func seldom(work func(int), rounds int) { work(rounds) }

func main() {
	work, rounds := loop, 200000
	switch os.Args[1] {
	case "c":
		work, rounds = in_c, 200000
	case "collector":
		work, rounds = allocate, 2
	}
	seconds, _ := strconv.Atoi(os.Args[2])
	var first, second time.Duration
	for begin := time.Now(); time.Since(begin) < time.Duration(seconds)*time.Second; {
		start := time.Now()
		often(work, rounds)
		middle := time.Now()
		seldom(work, rounds)
		first += middle.Sub(start)
		second += time.Since(middle)
	}
	fmt.Printf("{\"often\": %f, \"seldom\": %f}\n", first.Seconds(), second.Seconds())
}
