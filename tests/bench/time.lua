-- Sorts, tables and text, SIZE times: `dcpi time` measures it with two sizes. SEED chooses the data.
local seed, size, sum = tonumber(SEED), tonumber(SIZE), 0
local function random(n)
    seed = (seed * 1103515245 + 12345) % 2147483648
    return (seed >> 8) % n + 1
end
for _ = 1, size do
    local numbers, words = {}, {}
    for at = 1, 60 do numbers[at] = random(1000) end
    table.sort(numbers, function(a, b) return a < b end)
    for at = 1, 12 do words[at] = tostring(numbers[at * 5]) end
    sum = sum + #table.concat(words, " "):gsub("1", "x") + numbers[30]
end
return sum
