// Calls as Go's programs make them: frames of many sizes, stacks that grow, deferred calls, panics,
// methods through interfaces, closures, and the runtime on a stack of its own.
package main

import (
	"fmt"
	"runtime"
	"sort"
	"strings"
	"time"
)

type shape interface{ area(n int) int }
type square struct{ side int }
type ring struct{ inner, outer [40]int }

func (s square) area(n int) int { return s.side * s.side * n }
func (r ring) area(n int) int   { return r.outer[n%40] - r.inner[n%40] + leaf(n) }

//go:noinline
func leaf(n int) int { return n*7 + 1 }

//go:noinline
func inner(n int) int { return leaf(n) + leaf(n+1) }

// The stack grows beneath it.
//
//go:noinline
func deep(n int) int {
	var room [64]int
	room[n%64] = n
	if n == 0 {
		return inner(n)
	}
	return deep(n-1) + room[(n+1)%64]
}

func recovered(n int) (result int) {
	defer func() {
		if recover() != nil {
			result = inner(n)
		}
	}()
	defer func() { result++ }()
	if n%2 == 0 {
		panic("even")
	}
	return n
}

func round(n int) int {
	shapes := []shape{square{n}, ring{}}
	sum := 0
	for _, shape := range shapes {
		sum += shape.area(n)
	}
	add := func(m int) int { return sum + leaf(m) }
	words := strings.Fields(fmt.Sprintf("%d %x %v c b a", add(n), n, n))
	sort.Strings(words)
	seen := map[string]int{}
	for _, word := range words {
		seen[word] += len(word)
	}
	sum += time.Now().Nanosecond()%2 + recovered(n) + deep(n%200) + len(seen)
	return sum + len(make([]byte, 100*n))
}

func init() { runtime.LockOSThread() }

func worker() {
	for {
		inner(3)
	}
}

func main() {
	if runtime.NumCPU() == 0 {
		go worker()
	}
	sum := 0
	for n := 0; ; n++ {
		sum += round(n % 500)
	}
}
