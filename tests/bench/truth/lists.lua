-- Tables, strings, closures and coroutines.
local seed = 1
local function random(most)
    seed = (seed * 1103515245 + 12345) % 2147483648
    return seed % most
end
local list = {}
for i = 1, 20000 do list[i] = { name = "n" .. random(5000), number = random(1000) } end
table.sort(list, function(a, b)
    if a.name ~= b.name then return a.name < b.name end
    return a.number < b.number
end)
local by_name = {}
for _, item in ipairs(list) do by_name[item.name] = (by_name[item.name] or 0) + item.number end
local function queens(size)
    local columns, found = {}, 0
    local function place(row)
        if row > size then found = found + 1 return end
        for column = 1, size do
            local free = true
            for other = 1, row - 1 do
                local distance = columns[other] - column
                if distance == 0 or distance == row - other or distance == other - row then
                    free = false
                    break
                end
            end
            if free then columns[row] = column; place(row + 1) end
        end
    end
    place(1)
    return found
end
local numbers = coroutine.wrap(function()
    for i = 1, 20000 do coroutine.yield(i * i % 97) end
end)
local sum = 0
for _ = 1, 20000 do sum = sum + numbers() end
local text = {}
for word in ("the quick brown fox jumps over the lazy dog "):rep(500):gmatch("%a+") do
    text[#text + 1] = word:upper():reverse():gsub("O", "0")
end
print(by_name["n42"], queens(7), sum, #table.concat(text, " "))
