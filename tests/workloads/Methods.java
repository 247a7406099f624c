// Calls of Java that a profiler must find, in HotSpot's interpreter and in code of its compilers:
// recursion, calls through an interface, a lambda, calls from the library back into a method, and a
// method that is run too seldom to be compiled. The argument is the time to run in seconds. Prints
// the CPU time of each kind of call.
import java.lang.management.ManagementFactory;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.function.LongSupplier;

public class Methods {
    // Too large to be inlined, so that each kind of call has a frame of its own.
    static long leaf(int n) {
        long total = 0;
        for (int i = 0; i < n; i++) {
            total = (total * 31 + i) % 1000003;
            if (total == n) total += String.valueOf(total).length();
            switch ((int) (total & 7)) {
                case 0: total += 11; break;
                case 1: total += 13; break;
                case 2: total += 17; break;
                case 3: total += 19; break;
                case 4: total ^= 5; break;
                case 5: total ^= 3; break;
                case 6: total += total >> 3; break;
                default: total += total >> 5; break;
            }
        }
        return total;
    }

    interface Shape {
        long area();
    }

    static class Square implements Shape {
        public long area() {
            return leaf(20000) + 1;
        }
    }

    static class Circle implements Shape {
        public long area() {
            return leaf(20000) + 2;
        }
    }

    static class Star implements Shape {
        public long area() {
            return leaf(20000) + 3;
        }
    }

    static final Shape[] SHAPES = { new Square(), new Circle(), new Star() };

    static long recursion(int depth) {
        if (depth == 0) return leaf(60000);
        return recursion(depth - 1) + 1;
    }

    static long shapes() {
        long total = 0;
        for (Shape shape : SHAPES) total += shape.area();
        return total;
    }

    static int compare(Integer left, Integer right) {
        leaf(2500);
        return left - right;
    }

    static long sort() {
        Integer[] numbers = { 5, 3, 1, 4, 2, 6, 8, 7 };
        Arrays.sort(numbers, (left, right) -> compare(left, right));
        return numbers[0];
    }

    // Three times as long as `once`.
    static long thrice() {
        return leaf(20000) + leaf(20000) + leaf(20000);
    }

    static long once() {
        return leaf(20000);
    }

    static long time() {
        return ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime();
    }

    public static void main(String[] arguments) {
        long end = System.nanoTime() + (long) (Double.parseDouble(arguments[0]) * 1e9);
        Map<String, LongSupplier> works = new LinkedHashMap<>();
        works.put("recursion", () -> recursion(3));
        works.put("shapes", () -> shapes());
        works.put("sort", () -> sort());
        works.put("thrice", () -> thrice());
        works.put("once", () -> once());
        Map<String, Double> times = new LinkedHashMap<>();
        for (String name : works.keySet()) times.put(name, 0.0);
        long total = 0;
        while (System.nanoTime() < end) {
            for (Map.Entry<String, LongSupplier> work : works.entrySet()) {
                long begin = time();
                total += work.getValue().getAsLong();
                double spent = (time() - begin) / 1e9;
                times.merge(work.getKey(), spent, Double::sum);
            }
        }
        StringBuilder text = new StringBuilder("{");
        for (Map.Entry<String, Double> time : times.entrySet()) {
            text.append('"').append(time.getKey()).append("\": ").append(time.getValue());
            text.append(", ");
        }
        System.out.println(text.append("\"total\": ").append(total & 1).append('}'));
    }
}
