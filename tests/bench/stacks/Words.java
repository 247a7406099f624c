/** Recursion, streams and text. */
class Words {
    static int fib(int n) {
        return n < 2 ? n : fib(n - 1) + fib(n - 2);
    }

    public static void main(String[] arguments) {
        for (;;) {
            fib(20);
            java.util.stream.IntStream.range(0, 2000)
                .mapToObj(i -> "w" + i * 7919 % 2000)
                .sorted(java.util.Comparator.reverseOrder())
                .reduce("", (a, b) -> a.length() > 100 ? b : a + b);
        }
    }
}
