// Work of two labels, 3 to 1, for so many seconds, in goroutines that change threads. Says how long
// each took.
package main

import (
	"context"
	"fmt"
	"os"
	"runtime/pprof"
	"strconv"
	"time"
)

var sum uint64

//go:noinline
func spin(rounds int) {
	value := sum
	for i := 0; i < rounds; i++ {
		value = value*2862933555777941757 + 3037000493
	}
	sum = value
}

func main() {
	seconds, _ := strconv.ParseFloat(os.Args[1], 64)
	end := time.Now().Add(time.Duration(seconds * 1e9))
	var took [2]time.Duration
	for time.Now().Before(end) {
		for number, route := range []string{"/checkout", "/search"} {
			done := make(chan bool)
			labels := pprof.Labels("route", route, "tenant", "acme")
			pprof.Do(context.Background(), labels, func(context.Context) {
				// A goroutine has the labels of the one that begins it.
				go func() {
					begun := time.Now()
					spin([]int{3000000, 1000000}[number])
					took[number] += time.Since(begun)
					done <- true
				}()
			})
			<-done
		}
	}
	fmt.Printf("{\"often\": %f, \"seldom\": %f}\n", took[0].Seconds(), took[1].Seconds())
}
