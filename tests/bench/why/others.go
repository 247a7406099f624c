// As others.c, of Go's library.
package main

import (
	"fmt"
	"os"
	"strconv"
	"time"
)

type node struct {
	left, right *node
	key         int
}

func build(depth int) *node {
	if depth == 0 {
		return &node{key: 1}
	}
	return &node{build(depth - 1), build(depth - 1), depth}
}

func (n *node) sum() int {
	if n.left == nil {
		return n.key
	}
	return n.key + n.left.sum() + n.right.sum()
}

func main() {
	if len(os.Args) < 3 {
		fmt.Println("trees allocator")
		return
	}
	seconds, _ := strconv.ParseFloat(os.Args[2], 64)
	begun, sum := time.Now(), 0
	for time.Since(begun).Seconds() < seconds {
		sum += build(14).sum()
	}
	fmt.Println(sum)
}
