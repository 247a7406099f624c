// Maps, slices, interfaces, sorting and a tree.
package main

import (
	"fmt"
	"sort"
	"strings"
)

type shape interface{ area() float64 }
type square struct{ side float64 }
type circle struct{ radius float64 }

func (s square) area() float64 { return s.side * s.side }
func (c circle) area() float64 { return 3.14159 * c.radius * c.radius }

type node struct {
	key         uint32
	left, right *node
}

func (n *node) insert(key uint32) *node {
	if n == nil {
		return &node{key: key}
	}
	if key < n.key {
		n.left = n.left.insert(key)
	} else if key > n.key {
		n.right = n.right.insert(key)
	}
	return n
}

func (n *node) depth() int {
	if n == nil {
		return 0
	}
	return 1 + max(n.left.depth(), n.right.depth())
}

func max(a, b int) int {
	if a > b {
		return a
	}
	return b
}

func main() {
	seed := uint32(1)
	next := func() uint32 { seed = seed*1664525 + 1013904223; return seed >> 8 }
	var tree *node
	words := map[string]int{}
	shapes := []shape{}
	for i := 0; i < 60000; i++ {
		tree = tree.insert(next())
		words[fmt.Sprintf("w%d", next()%3000)]++
		if i%2 == 0 {
			shapes = append(shapes, square{float64(i)})
		} else {
			shapes = append(shapes, circle{float64(i)})
		}
	}
	keys := make([]string, 0, len(words))
	for key := range words {
		keys = append(keys, key)
	}
	sort.Slice(keys, func(a, b int) bool {
		if words[keys[a]] != words[keys[b]] {
			return words[keys[a]] > words[keys[b]]
		}
		return keys[a] < keys[b]
	})
	sum := 0.0
	for _, s := range shapes {
		sum += s.area()
	}
	text := strings.ToUpper(strings.Join(keys, ","))
	fmt.Println(tree.depth(), keys[0], sum > 0, strings.Count(text, "1"))
}
