// C called by Go, and Go called back by C; tracebacks, which the runtime makes on the
// thread's stack.
package main

/*
#include <stdlib.h>
static int order(const void *a, const void *b) { return *(const int*)a - *(const int*)b; }
static void sort(int *numbers, int count) { qsort(numbers, count, sizeof *numbers, order); }
extern int back(int);
static int there(int n) { return back(n) + 1; }
*/
import "C"
import "runtime"

func init() { runtime.LockOSThread() }

//export back
func back(n C.int) C.int {
	sum := C.int(0)
	for i := C.int(0); i < 50000; i++ {
		sum += i ^ n
	}
	return sum
}

var text = make([]byte, 4096)

func main() {
	numbers := make([]C.int, 2000)
	for {
		for i := range numbers {
			numbers[i] = C.int((i * 7919) % 20011)
		}
		C.sort(&numbers[0], C.int(len(numbers)))
		C.there(3)
		for i := 0; i < 20; i++ {
			runtime.Stack(text, false)
		}
	}
}
