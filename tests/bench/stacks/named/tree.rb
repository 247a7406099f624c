$x = 1
%function
def NAME(n)
  s = 0
  40.times { |i| s += i & n }
  $x = ($x * 1103515245 + 12345) & 0x7fffffff
  c = ($x >> 16) % 4
%call
  s += CALLEE(n + 1) if c == NUMBER
%end
  s + 1
end
%main
finish = Time.now + ARGV[0].to_f
f(0) while Time.now < finish
