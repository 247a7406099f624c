// Goroutines that sort, hash and allocate.
package main

import (
	"crypto/sha256"
	"fmt"
	"sort"
)

func depth(n int, text []byte) [32]byte {
	if n > 0 {
		return depth(n-1, append(text, byte(n)))
	}
	return sha256.Sum256(text)
}

func work() {
	for {
		words := []string{}
		for i := 0; i < 2000; i++ {
			words = append(words, fmt.Sprintf("%x", depth(i%20, []byte{byte(i)})))
		}
		sort.Strings(words)
	}
}

func main() {
	go work()
	work()
}
