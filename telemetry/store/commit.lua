-- Write what one tick of a shard made, all of it or none.
--
-- ARGV[1]: a msgpack map, built in changes.py. Answers {written, blocks, steps}: how many were
-- new; written is 0 when somebody moved the clock first, and then nothing was changed.

local ask = redis.call
local new = cmsgpack.unpack(ARGV[1])
local newest = tonumber(ask('GET', 'hot:newest') or '0')

-- Time is the data's own: older than keep_s before the newest is too old.
local function admits(what, at)
  if at < newest - new.keep_s or at > new.latest then
    ask('HINCRBY', 'service:counters', 'refused_' .. what, 1)
    return false
  end
  newest = math.max(newest, math.floor(at))
  return true
end

local function ttl(minute)
  return minute + 120 + new.keep_s - newest
end

local function keep(layout)
  local key, ttl_s = 'hot:layout:' .. layout.digest, 2 * new.keep_s + 600
  if ask('EXPIRE', key, ttl_s) == 0 then ask('SET', key, layout.encoded, 'EX', ttl_s) end
end

-- Whether an index (a sorted set: name, newest) knows the name or has room for it.
local function has_room(index, name, n_wanted)
  if ask('ZSCORE', index, name) or ask('ZCARD', index) < new.most_names then return true end
  ask('HINCRBY', 'service:counters', 'refused_for_room', n_wanted)
  return false
end

local function saw(part, block)
  local seen = {}
  for i, node in ipairs(part.nodes) do
    if block.reported == '' or string.byte(block.reported, i) == 1 then
      seen[#seen + 1] = block.tick
      seen[#seen + 1] = node
    end
    if #seen >= 1000 then
      ask('ZADD', 'hot:seen', 'GT', unpack(seen))
      seen = {}
    end
  end
  if #seen > 0 then
    ask('ZADD', 'hot:seen', 'GT', unpack(seen))
  end
end

-- Totals are (metric, node) in one flat list; a node that joins starts from zero.
local function totals_so_far(part)
  local key = 'totals:' .. part.shard
  local held = ask('GET', key)
  local width = #part.nodes
  local sums = {}
  for i = 1, #part.counted * width do sums[i] = 0 end
  if not held then return key, sums end
  local old = cmsgpack.unpack(held)
  if old.roster == part.roster then return key, old.sums end
  local metric_at, node_at = {}, {}
  for i, metric in ipairs(old.counted) do metric_at[metric] = i end
  for i, node in ipairs(old.nodes) do node_at[node] = i end
  for m, metric in ipairs(part.counted) do
    for n, node in ipairs(part.nodes) do
      if metric_at[metric] and node_at[node] then
        sums[(m - 1) * width + n] = old.sums[(metric_at[metric] - 1) * #old.nodes + node_at[node]]
      end
    end
  end
  return key, sums
end

local function append_blocks(part)
  if not has_room('hot:shards', part.shard, #part.blocks) then return 0 end
  local n, key, sums = 0, nil, nil
  for _, block in ipairs(part.blocks) do
    local minute = 'hot:' .. part.shard .. ':' .. block.minute
    if admits('blocks', block.tick)
        and ask('HSETNX', minute, block.second, block.blob) == 1 then
      if n == 0 then
        keep(part.layout)
        key, sums = totals_so_far(part)
      end
      n = n + 1
      ask('EXPIRE', minute, ttl(block.minute))
      saw(part, block)
      for i, more in ipairs(block.sums) do sums[i] = sums[i] + more end
      ask('ZADD', 'hot:shards', 'GT', block.tick, part.shard)
    end
  end
  if n > 0 then
    local held = { roster = part.roster, counted = part.counted, nodes = part.nodes, sums = sums }
    ask('SET', key, cmsgpack.pack(held), 'EX', new.remember_s)
    ask('ZREMRANGEBYSCORE', 'hot:shards', '-inf', newest - new.keep_s)
    ask('ZREMRANGEBYSCORE', 'hot:seen', '-inf', newest - new.remember_s)
  end
  return n
end

-- A bit per step number says which steps are held, so that each counts once.
local function append_step(run, row)
  local minute = 'steps:' .. run .. ':' .. row.minute
  local held = 'steps:' .. run .. ':held:' .. row.chapter
  if not admits('steps', row.ended_at_s) or ask('GETBIT', held, row.place) == 1 then
    return false
  end
  if ask('LLEN', minute) >= new.most_steps then
    ask('HINCRBY', 'service:counters', 'refused_for_room', 1)
    return false
  end
  ask('SETBIT', held, row.place, 1)
  ask('EXPIRE', held, new.remember_s)
  ask('RPUSH', minute, row.record)
  ask('EXPIRE', minute, ttl(row.minute))
  return true
end

local function append_steps(part)
  if not has_room('hot:runs', part.run, #part.rows) then return 0 end
  local n, tokens, last = 0, 0, 0
  for _, row in ipairs(part.rows) do
    if append_step(part.run, row) then
      n, tokens, last = n + 1, tokens + row.tokens, math.max(last, row.ended_at_s)
    end
  end
  if n > 0 then
    keep(part.layout)
    ask('HINCRBYFLOAT', 'totals:tokens', part.run, tokens)
    ask('HINCRBY', 'totals:steps', part.run, n)
    ask('ZADD', 'hot:runs', 'GT', last, part.run)
    ask('ZREMRANGEBYSCORE', 'hot:runs', '-inf', newest - new.remember_s)
  end
  return n
end

if new.clock then
  local before = ask('HGET', 'clocks', new.clock.shard) or ''
  if before ~= new.clock.before then return { 0, 0, 0 } end
  ask('HSET', 'clocks', new.clock.shard, new.clock.after)
end
local n_blocks, n_steps = 0, 0
for _, part in ipairs(new.parts or {}) do n_blocks = n_blocks + append_blocks(part) end
if new.steps then n_steps = append_steps(new.steps) end
ask('SET', 'hot:newest', newest, 'EX', new.keep_s + 60)
return { 1, n_blocks, n_steps }
