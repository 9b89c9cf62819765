---@meta
-- Written by `moonswarm init`: what Luau has beside Lua 5.4.

---Calls a function; returns true and its results, or false and the error, which may be a table.
---@param f function
---@param ... any
---@return boolean ok
---@return any ...
function pcall(f, ...) end

---The same, with a function that gets the error first.
---@param f function
---@param handler function
---@param ... any
---@return boolean ok
---@return any ...
function xpcall(f, handler, ...) end

---@param value any
---@return string
function typeof(value) end

---@param list table
---@param first? number
---@param last? number
---@return any ...
function unpack(list, first, last) end

---@param text string
---@param separator? string
---@return string[]
function string.split(text, separator) end

---@param list table
---@param value any
---@param from? number
---@return number?
function table.find(list, value, from) end

---@generic T
---@param source T
---@return T
function table.clone(source) end

---@generic T
---@param source T
---@return T
function table.freeze(source) end

---@param source table
---@return boolean
function table.isfrozen(source) end

---@param count number
---@param value? any
---@return table
function table.create(count, value) end

---@param source table
function table.clear(source) end

---@param value number
---@param low number
---@param high number
---@return number
function math.clamp(value, low, high) end

---@param value number
---@return number
function math.sign(value) end

---@param value number
---@return number
function math.round(value) end

---@param base number
---@param exponent number
---@return number
function math.pow(base, exponent) end

---@param value number
---@return number
function math.log10(value) end

---@class bit32
bit32 = {}

---@param ... number
---@return number
function bit32.band(...) end

---@param ... number
---@return number
function bit32.bor(...) end

---@param ... number
---@return number
function bit32.bxor(...) end

---@param value number
---@return number
function bit32.bnot(value) end

---@param ... number
---@return boolean
function bit32.btest(...) end

---@param value number
---@param by number
---@return number
function bit32.lshift(value, by) end

---@param value number
---@param by number
---@return number
function bit32.rshift(value, by) end

---@param value number
---@param by number
---@return number
function bit32.arshift(value, by) end

---@param value number
---@param by number
---@return number
function bit32.lrotate(value, by) end

---@param value number
---@param by number
---@return number
function bit32.rrotate(value, by) end

---@param value number
---@param first number
---@param width? number
---@return number
function bit32.extract(value, first, width) end

---@param value number
---@param with number
---@param first number
---@param width? number
---@return number
function bit32.replace(value, with, first, width) end

---@param value number
---@return number
function bit32.countlz(value) end

---@param value number
---@return number
function bit32.countrz(value) end
