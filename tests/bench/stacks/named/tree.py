import sys, time
x = 1
%function
def NAME(n):
    global x
    s = 0
    for i in range(40):
        s += i & n
    x = (x * 1103515245 + 12345) & 0x7fffffff
    c = (x >> 16) % 4
%call
    if c == NUMBER:
        s += CALLEE(n + 1)
%end
    return s + 1
%main
end = time.time() + float(sys.argv[1])
while time.time() < end:
    f(0)
