-- Two functions of the same lines, of which one runs three times as long as the other.

local function heavy(rounds)
  local total = 0
  for number = 1, rounds do
    total = total + number * 3 % 7
  end
  return total
end

local function light(rounds)
  local total = 0
  for number = 1, rounds do
    total = total + number * 3 % 7
  end
  return total
end

local clock = os.clock
local finish = clock() + tonumber(arg[1])
local heavy_time, light_time = 0, 0
while clock() < finish do
  local begin = clock()
  heavy(150000)
  local between = clock()
  light(50000)
  heavy_time = heavy_time + between - begin
  light_time = light_time + clock() - between
end
print(string.format('{"heavy": %f, "light": %f}', heavy_time, light_time))
