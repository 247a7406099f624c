// Two methods of the same lines, of which one runs three times as long as the other.

class Split {
    static long heavy(int rounds) {
        long total = 0;
        for (int number = 0; number < rounds; number++) {
            total += total * 3 ^ number & 7;
        }
        return total;
    }

    static long light(int rounds) {
        long total = 0;
        for (int number = 0; number < rounds; number++) {
            total += total * 3 ^ number & 7;
        }
        return total;
    }

    static long sum;

    public static void main(String[] words) {
        long end = System.nanoTime() + 1_000_000_000L * Integer.parseInt(words[0]);
        long ofHeavy = 0;
        long ofLight = 0;
        while (System.nanoTime() < end) {
            long begin = System.nanoTime();
            sum += heavy(300_000);
            long between = System.nanoTime();
            sum += light(100_000);
            ofHeavy += between - begin;
            ofLight += System.nanoTime() - between;
        }
        System.out.println("{\"heavy\": " + ofHeavy + ", \"light\": " + ofLight + "}");
    }
}
