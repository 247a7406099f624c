// Calls of C# whose chains are known by construction: recursion, calls through an interface, of
// generic methods, from an exception's handlers, of a delegate, and from the library back into a
// method. Each kind ends in `Leaf`; Thrice takes three times as long as Once. The argument is the
// time to run in seconds. Prints the seconds of CPU time of each kind.
using System;
using System.Diagnostics;
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;

namespace Work
{
    interface IShape
    {
        long Area(long n);
    }

    sealed class Square : IShape
    {
        [MethodImpl(MethodImplOptions.NoInlining)]
        public long Area(long n)
        {
            return Functions.Leaf(n) + 1;
        }
    }

    sealed class Circle : IShape
    {
        [MethodImpl(MethodImplOptions.NoInlining)]
        public long Area(long n)
        {
            return Functions.Leaf(n) + 2;
        }
    }

    sealed class Box<T>
    {
        [MethodImpl(MethodImplOptions.NoInlining)]
        public long Put<U>(T item, U other, long n)
        {
            return Functions.Leaf(n) + item.GetHashCode() % 2 + other.GetHashCode() % 2;
        }
    }

    struct Timespec
    {
        public long Seconds, Nanoseconds;
    }

    static class Functions
    {
        // clock_gettime(2); 3 is CLOCK_THREAD_CPUTIME_ID.
        [DllImport("libc.so.6")]
        static extern int clock_gettime(int clock, out Timespec time);

        static double CpuSeconds()
        {
            Timespec time;
            clock_gettime(3, out time);
            return time.Seconds + time.Nanoseconds / 1e9;
        }

        static readonly string[] Kinds =
            { "Recursion", "Shapes", "Generic", "Caught", "Lambda", "Sort", "Thrice", "Once" };
        static long sum;

        [MethodImpl(MethodImplOptions.NoInlining)]
        public static long Leaf(long n)
        {
            long x = n | 1;
            for (long i = 0; i < n; i++)
            {
                x = x * 6364136223846793005 + 1442695040888963407;
                x ^= x >> 17;
            }
            return x;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static long Recursion(int depth)
        {
            return depth == 0 ? Leaf(20000) : Recursion(depth - 1) + 1;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static long Shapes(IShape[] shapes)
        {
            long all = 0;
            foreach (IShape shape in shapes) all += shape.Area(10000);
            return all;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static long Generic()
        {
            return new Box<string>().Put("x", 1, 10000) + new Box<int>().Put(1, "y", 10000);
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static long Caught()
        {
            long all = 0;
            try
            {
                all += Leaf(10000);
                throw new InvalidOperationException();
            }
            catch (InvalidOperationException)
            {
                all += Leaf(10000);
            }
            finally
            {
                all += Leaf(10000);
            }
            return all;
        }

        // Better code of a caller has it inlined.
        static long Added(long n)
        {
            return Leaf(n) + 1;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static long Lambda(long bound)
        {
            Func<long, long> function = n => Added(n) + bound;
            return function(20000);
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static int Compare(long a, long b)
        {
            sum += Leaf(200);
            return a.CompareTo(b);
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static long Sort()
        {
            long[] items = new long[32];
            for (int i = 0; i < items.Length; i++) items[i] = i * 7919 % 32;
            Array.Sort(items, Compare);
            return items[0];
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static long Thrice()
        {
            return Leaf(30000) + Leaf(30000);
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static long Once()
        {
            return Leaf(20000);
        }

        static long Call(int kind, IShape[] shapes)
        {
            switch (kind)
            {
                case 0: return Recursion(40);
                case 1: return Shapes(shapes);
                case 2: return Generic();
                case 3: return Caught();
                case 4: return Lambda(kind);
                case 5: return Sort();
                case 6: return Thrice();
                default: return Once();
            }
        }

        static int Main(string[] arguments)
        {
            double seconds = double.Parse(arguments[0]);
            IShape[] shapes = { new Square(), new Circle() };
            double[] times = new double[Kinds.Length];
            Stopwatch all = Stopwatch.StartNew();
            while (all.Elapsed.TotalSeconds < seconds)
                for (int kind = 0; kind < Kinds.Length; kind++)
                {
                    double begin = CpuSeconds();
                    for (int n = 0; n < 20; n++) sum += Call(kind, shapes);
                    times[kind] += CpuSeconds() - begin;
                }
            for (int kind = 0; kind < Kinds.Length; kind++)
                Console.Write((kind == 0 ? "{" : ", ") + "\"" + Kinds[kind] + "\": " + times[kind]);
            Console.WriteLine("}");
            return sum == 42 ? 1 : 0;
        }
    }
}
