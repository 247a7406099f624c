package main

import (
	"os"
	"strconv"
	"time"
)

var x = 1
var sum float64
%function

func NAME(n int) float64 {
	s := 0.0
	for i := 0; i < 200; i++ {
		s += float64(i&n) * 1.5
	}
	x = (x*1103515245 + 12345) & 0x7fffffff
	c := (x >> 16) % 4
%call
	if c == NUMBER {
		s += CALLEE(n + 1)
	}
%end
	return s + 1
}
%main

func main() {
	seconds, _ := strconv.Atoi(os.Args[1])
	end := time.Now().Add(time.Duration(seconds) * time.Second)
	for time.Now().Before(end) {
		sum += f(0)
	}
}
