local x = 1
-- Arguments: rounds of each loop, 60 without; seconds.
local last = (arg[2] and arg[1] or 60) - 1
%function
function NAME(n)
  local s = 0
  for i = 0, last do s = s + i % (n + 1) end
  x = (x * 1103515245 + 12345) % 2147483648
  local c = math.floor(x / 65536) % 4
%call
  if c == NUMBER then s = s + CALLEE(n + 1) end
%end
  return s + 1
end
%main
local finish = os.clock() + tonumber(arg[#arg])
while os.clock() < finish do f(0) end
