class Tree {
    static int x = 1;
%function
    static double NAME(int n) {
        double s = 0;
        for (int i = 0; i < 200; i++) s += (i & n) * 1.5;
        x = (x * 1103515245 + 12345) & 0x7fffffff;
        int c = (x >> 16) % 4;
%call
        if (c == NUMBER) s += CALLEE(n + 1);
%end
        return s + 1;
    }
%main
    static double sum;
    public static void main(String[] words) {
        long end = System.currentTimeMillis() + 1000 * Long.parseLong(words[0]);
        while (System.currentTimeMillis() < end) for (int i = 0; i < 1000; i++) sum += f(0);
    }
}
