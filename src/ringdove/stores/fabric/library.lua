#!lua name=ringdove_@VERSION@

-- The queue-type KVS (T2.2): every operation of a store on a stripe is one function, atomic on its master. All keys of a
-- stripe share one hash tag and are passed in KEYS, in this order:
--
--    1 m  hash     the stripe: s its state, c its settings, =NAME each subscription (all cmsgpack)
--    2 l  hash     the log: blocks, each under the name that its sender has drawn for it
--    3 n  zset     notes on blocks, in lexical order: last offset, count, bytes, stored, not before, name
--    4 k  hash     key hashes of blocks of key-ordered queues, 1,024 each, by last offset and part
--    5 p  hash     producers: next sequence, sequence and base of the last segment
--    6 i  hash     message ids: offset, when seen
--    7 j  zset     message ids by when they were seen
--    8 x  zset     the index of all subscriptions, in lexical order; see below
--    9 f  zset     subscriptions by floor
--   10 y  zset     delayed blocks, in lexical order: last offset, count, not before
--   11 o  zset     producers by when they were heard last
--   12 c  zset     where done messages are kept: floors of all subscriptions together, and when they were reached
--
-- A member of the index begins with the number of its subscription (four bytes) and a letter:
--
--    d  lo, hi             messages that are done above the floor
--    g  group, out, place  a group (key hash) with runs out, or in line
--    q  place, group       the line of groups that have something waiting and nothing out
--    r  lo                 a run that is ready, where order is not by key
--    t  till, lo           a run that is leased or waits for its time
--    w  group, lo, hi      a run that is ready in its group; 'x' behind it when it is written below too
--    x  lo, hi, ...        a run that was handed out once, waits for its time, or was passed over
--
-- No function sees a block: a sender writes it with HSET and calls `append` in one transaction, for Lua looks at every
-- byte of every word that it is given. Whatever `append` does not take it removes again.
--
-- Below a subscription's `scan` everything that is not done is in x or w; above it nothing is written. Where a run is
-- follows from its state, so `enter` and `leave` keep the index and all counters in step. Nothing below the floor is in x;
-- a group's list is cut to the floor when its turn comes. A subscription that loses everything (purge) takes a new
-- number, and what is under the old one is swept up little by little.
--
-- Numbers inside members are big-endian, so lexical order is numerical order; all are below 2^53. Tokens are fifteen
-- hexadecimal digits. Whatever a call does is bounded by the limits it brings; one that has to stop says so and is called
-- again. Refusals are answered as {'!', code, text, number}.

local M, LOG, NOTES, HASHES, PRODUCERS, IDS = 1, 2, 3, 4, 5, 6
local SEEN, INDEX, FLOORS, DELAYS, HEARD, MARKS = 7, 8, 9, 10, 11, 12
local IS_READY, IS_LEASED, IS_WAITING = 0, 1, 2
local NUMBER_MAX = 2 ^ 53
local NO_KEY = '\0\0\0\0\0\0\0\0'
-- Offsets that one epoch may use up.
local SKIP = 2 ^ 32
-- Words of one command, an even number; members or notes that are read at once.
local WORDS_MAX, SOME = 1000, 100
-- Members of forgotten subscriptions that one call sweeps up.
local SWEEPS_MAX = 1000
-- Runs that one call gives up.
local DROPS_MAX = 2000
-- Messages below the floor that one call cuts from a group.
local CLIP_MAX = 1000
-- Groups that one call looks at; those that have lost all their messages give nothing.
local VISITS_MAX = 5000
-- Messages that a claim may name; no lease has more.
local CLAIM_MAX = 100000
-- For how long a full stripe remembers a producer of one job, as in limits.py.
local JOB_PRODUCER_MS = 3600000
-- Where the name of a block begins in its note, and words of each segment of an append.
local NAME_AT, SEGMENT_WORDS = 33, 10
-- Key hashes that are written and read together.
local HASHES_PART = 1024
-- Delayed blocks that statistics look at.
local DELAYS_MAX = 10000
-- So many marks of what is kept there are at most; one may be late by this part of the time.
local MARK_PART = 1000

-- Set when a function runs; it is not there before.
local call

local function be(number) return struct.pack('>I8', number) end
local function number_at(text, at) return (struct.unpack('>I8', text, at)) end
-- Small numbers as words of a command, which is slow to make.
local written = {}
local function word(number)
  local text = written[number]
  if not text then
    text = tostring(number)
    if number <= 1000 then written[number] = text end
  end
  return text
end
local function digits(number) return string.format('%.0f', number) end

local function refuse(code, text, number) return {'!', code, text, number or 0} end

local function raise(code, text, number) error({refusal = refuse(code, text, number)}, 0) end

-- The stripe that the running function has loaded.
local current = nil

-- Runs a function; a refusal that was raised becomes its answer, and what was changed before stays so.
local function guarded(work)
  return function(keys, args)
    current, call = nil, redis.call
    local ok, answer = pcall(work, keys, args)
    if ok then return answer end
    if current then current:save() end
    if type(answer) ~= 'table' or not answer.refusal then error(answer) end
    return answer.refusal
  end
end

local function now_of(given)
  if given ~= '' then return tonumber(given) end
  local time = call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- Calls a command with as many words as it takes, some at a time.
local function in_parts(command, key, words)
  for at = 1, #words, WORDS_MAX do
    call(command, key, unpack(words, at, math.min(at + WORDS_MAX - 1, #words)))
  end
end

-- Stripes --------------------------------------------------------------------------------------

local Stripe = {}
Stripe.__index = Stripe

local function pack_state(self)
  return cmsgpack.pack(self.epoch, self.tail, self.stable, self.head, self.dropped, self.nbytes, self.numbered, self.owner,
    self.oldest, self.kept, self.marked, self.marked_at, self.delays, self.garbage, self.run)
end

local function unpack_state(self, raw)
  self.epoch, self.tail, self.stable, self.head, self.dropped, self.nbytes, self.numbered, self.owner, self.oldest,
    self.kept, self.marked, self.marked_at, self.delays, self.garbage, self.run = cmsgpack.unpack(raw)
end

local function pack_settings(self)
  return cmsgpack.pack(self.version, self.order, self.retention, self.keep, self.dedup, self.bytes_max, self.drops,
    self.receives_max, self.backoff, self.backoff_max, self.copies, self.when_short)
end

local function unpack_settings(self, raw)
  self.version, self.order, self.retention, self.keep, self.dedup, self.bytes_max, self.drops, self.receives_max,
    self.backoff, self.backoff_max, self.copies, self.when_short = cmsgpack.unpack(raw)
end

local function pack_subscription(sub)
  return cmsgpack.pack(sub.number, sub.floor, sub.scan, sub.fence, sub.owner, sub.held, sub.leased, sub.delayed, sub.above,
    sub.leases, sub.place, sub.scan_due)
end

local function unpack_subscription(sub, raw)
  sub.number, sub.floor, sub.scan, sub.fence, sub.owner, sub.held, sub.leased, sub.delayed, sub.above, sub.leases,
    sub.place, sub.scan_due = cmsgpack.unpack(raw)
end

local function prefix_of(number) return struct.pack('>I4', number) end

function Stripe:take_in(name, raw)
  local sub = {name = name, raw = raw, groups = {}}
  unpack_subscription(sub, raw)
  sub.own, sub.written_floor = prefix_of(sub.number), sub.floor
  self.subs[name] = sub
  return sub
end

-- Reads a stripe and perhaps one of its subscriptions, without changing anything.
local function look(keys, name)
  local state, settings, sub = unpack(call('HMGET', keys[M], 's', 'c', '=' .. (name or '')))
  if not state then raise('queue_not_found', 'There is no such stripe; its queue was deleted.') end
  local self = setmetatable({keys = keys, subs = {}, raw = string.sub(state, 9), drops_left = DROPS_MAX,
    sweeps_left = SWEEPS_MAX}, Stripe)
  self.clock = number_at(state, 1)
  self.now = self.clock
  unpack_state(self, self.raw)
  unpack_settings(self, settings)
  if sub then self:take_in(name, sub) end
  return self
end

-- Reads a stripe for a change. The time never runs backwards; nil leaves it where it was.
local function load(keys, version, given_now, name)
  local self = look(keys, name)
  if given_now then self.now = math.max(now_of(given_now), self.clock) end
  version = tonumber(version)
  if version ~= 0 and version ~= self.version then
    raise('settings_stale', "The queue's settings have version " .. self.version .. ', not '
      .. version .. ': read them again.')
  end
  current = self
  self:check_owner()
  return self
end

-- What tells this process from the one that the node was before it was started again.
local run = nil
local function run_of_node()
  run = run or string.match(call('INFO', 'server'), 'run_id:(%x+)')
  return run
end

-- After a failover the last appends may be gone, and others may come in their place: a new epoch begins, far above all
-- offsets that may have been given out. So it does on a node that was started again, for its file may have lacked the end.
-- Versions before this one write no run.
function Stripe:check_owner()
  local me, now = call('CLUSTER', 'MYID'), run_of_node()
  if self.owner == me and (self.run or now) == now then
    self.run = now
    return
  end
  if self.owner ~= '' then
    local skipped = (math.floor(self.tail / SKIP) + 1) * SKIP
    self.epoch = self.epoch + 1
    for _, sub in pairs(self:everybody()) do self:add_done(sub, self.tail, skipped) end
    if self.stable == self.tail then self.stable = skipped end
    self.tail = skipped
    if self.oldest < 0 then self.head = skipped end
  end
  self.owner, self.run = me, now
end

-- What was read of the log is good for as long as this is the same.
function Stripe:era() return self.epoch .. '.' .. self.run end

-- Writes what has changed. An answer that copies must have is followed by WAIT, which waits for the last change of its
-- connection: such a call always changes something (the default), because others may have done what it answers.
function Stripe:save(only_if_changed)
  local words, state = nil, pack_state(self)
  for name, sub in pairs(self.subs) do
    if next(sub.groups) then self:save_groups(sub) end
    self:save_floor(sub)
    local raw = pack_subscription(sub)
    if raw ~= sub.raw then
      words = words or {}
      words[#words + 1], words[#words + 2] = '=' .. name, raw
      sub.raw = raw
    end
  end
  if only_if_changed and not words and state == self.raw then return end
  call('HSET', self.keys[M], 's', be(self.now) .. state)
  if words then in_parts('HSET', self.keys[M], words) end
end

-- Tells those who listen that something may have come; 'later' that something will, when it has its copies.
function Stripe:announce(channel, when)
  if channel ~= '' then call('SPUBLISH', channel, when or '') end
end

-- Notes on blocks ------------------------------------------------------------------------------

local function read_note(member)
  local last, count, nbytes, stored, not_before = struct.unpack('>I8I4I4I8I8', member)
  return {last = last, stop = last + 1, count = count, base = last + 1 - count, nbytes = nbytes, stored = stored,
    not_before = not_before}
end

-- Answers, one by one, the notes on the block that holds an offset, or on the first one behind it, and those that follow.
function Stripe:notes_from(offset)
  local some, at, size = {}, 0, 1
  return function()
    at = at + 1
    if at > #some then
      if #some > 0 and #some < size then return nil end
      if #some > 0 then size = SOME end
      some = call('ZRANGEBYLEX', self.keys[NOTES], '[' .. be(offset), '+', 'LIMIT', '0', word(size))
      at = 1
      if #some == 0 then return nil end
    end
    local note = read_note(some[at])
    offset = note.stop
    return note
  end
end

function Stripe:note_at(offset) return self:notes_from(offset)() end

-- Subscriptions --------------------------------------------------------------------------------

function Stripe:maybe_subscription(name)
  local sub = self.subs[name]
  if sub then return sub end
  local raw = call('HGET', self.keys[M], '=' .. name)
  return raw and self:take_in(name, raw)
end

-- What was given up for everybody, a subscription learns when it is needed. One call may not get to the end of it: then
-- the floor stays lower, and nothing may be leased.
function Stripe:catch_up(sub)
  if sub.floor < self.dropped then self:drop_subscription_below(sub, self.dropped) end
  return sub
end

function Stripe:is_behind(sub) return sub.floor < self.dropped end

-- A few of the names that there are, for those who look for another.
function Stripe:known_names()
  local names = call('ZRANGE', self.keys[FLOORS], '0', '20')
  table.sort(names)
  if #names == 0 then return 'none' end
  if #names > 20 then names[21] = '...' end
  return table.concat(names, ', ')
end

function Stripe:subscription(name)
  local sub = self:maybe_subscription(name)
  if not sub then
    raise('subscription_not_found', "There is no subscription '" .. name .. "' on this queue (it has: "
      .. self:known_names() .. ').')
  end
  return self:catch_up(sub)
end

-- All subscriptions.
function Stripe:everybody()
  local all = call('HGETALL', self.keys[M])
  for at = 1, #all, 2 do
    local name = string.sub(all[at], 2)
    if string.sub(all[at], 1, 1) == '=' and not self.subs[name] then self:take_in(name, all[at + 1]) end
  end
  for _, sub in pairs(self.subs) do self:catch_up(sub) end
  return self.subs
end

function Stripe:new_number()
  self.numbered = self.numbered + 1
  return self.numbered
end

function Stripe:add_subscription(name, offset)
  local floor = math.min(math.max(offset, self.head, self.dropped), self.tail)
  local sub = {name = name, raw = '', groups = {}, number = self:new_number(), floor = floor, scan = floor, fence = 0,
    owner = '', held = 0, leased = 0, delayed = 0, above = 0, leases = 0, place = 0, scan_due = 0}
  sub.own = prefix_of(sub.number)
  self.subs[name] = sub
  return sub
end

-- Forgets everything that a subscription has in the index. What is much goes little by little, under its old number.
function Stripe:forget(sub)
  local from, to = '[' .. sub.own, '(' .. prefix_of(sub.number + 1)
  local count = call('ZLEXCOUNT', self.keys[INDEX], from, to)
  if count > self.sweeps_left then
    self.garbage = self.garbage .. sub.own
    sub.number = self:new_number()
    sub.own = prefix_of(sub.number)
  elseif count > 0 then
    self.sweeps_left = self.sweeps_left - call('ZREMRANGEBYLEX', self.keys[INDEX], from, to)
  end
  sub.leased, sub.delayed, sub.above, sub.leases, sub.scan_due = 0, 0, 0, 0, 0
  sub.groups = {}
end

-- Removes some of what was forgotten.
function Stripe:sweep()
  while self.garbage ~= '' and self.sweeps_left > 0 do
    local own = string.sub(self.garbage, 1, 4)
    local from, to = '[' .. own, '(' .. prefix_of((struct.unpack('>I4', own)) + 1)
    local rest = call('ZRANGEBYLEX', self.keys[INDEX], from, to, 'LIMIT', word(self.sweeps_left), '1')[1]
    self.sweeps_left = self.sweeps_left - 1 - call('ZREMRANGEBYLEX', self.keys[INDEX], from, rest and '(' .. rest or to)
    if not rest then self.garbage = string.sub(self.garbage, 5) end
  end
end

function Stripe:save_floor(sub)
  if sub.floor ~= sub.written_floor then
    call('ZADD', self.keys[FLOORS], digits(sub.floor), sub.name)
    sub.written_floor = sub.floor
  end
end

-- Below it every subscription is done; without subscriptions nothing is.
function Stripe:done_floor()
  for _, sub in pairs(self.subs) do self:save_floor(sub) end
  local lowest = call('ZRANGE', self.keys[FLOORS], '0', '0', 'WITHSCORES')[2]
  return math.max(lowest and tonumber(lowest) or self.head, self.dropped)
end

-- The index ------------------------------------------------------------------------------------

function Stripe:add(...) call('ZADD', self.keys[INDEX], ...) end
function Stripe:remove(...) call('ZREM', self.keys[INDEX], ...) end

-- The first members from one to another, which is not among them.
function Stripe:some(from, to, most)
  return call('ZRANGEBYLEX', self.keys[INDEX], '[' .. from, '(' .. to, 'LIMIT', '0', word(most))
end

function Stripe:first(from, to)
  return call('ZRANGEBYLEX', self.keys[INDEX], '[' .. from, '(' .. to, 'LIMIT', '0', '1')[1]
end

function Stripe:last(from, to)
  return call('ZREVRANGEBYLEX', self.keys[INDEX], '(' .. to, '[' .. from, 'LIMIT', '0', '1')[1]
end

-- Done -----------------------------------------------------------------------------------------

-- Takes in runs of done offsets that the floor has reached.
function Stripe:settle_floor(sub)
  local most = 1
  while sub.above > 0 do
    local some, reached = self:some(sub.own .. 'd', sub.own .. 'e', most), {}
    for _, member in ipairs(some) do
      local lo, hi = number_at(member, 6), number_at(member, 14)
      if lo > sub.floor then break end
      reached[#reached + 1] = member
      sub.above = sub.above - (hi - lo)
      sub.floor = math.max(sub.floor, hi)
    end
    in_parts('ZREM', self.keys[INDEX], reached)
    if #reached < most then break end
    most = SOME
  end
end

function Stripe:add_done(sub, lo, hi)
  if lo <= sub.floor then
    sub.floor = math.max(sub.floor, hi)
    return self:settle_floor(sub)
  end
  local own = sub.own .. 'd'
  if sub.above > 0 then
    local left = self:last(own, own .. be(lo))
    local right = self:first(own .. be(hi), own .. be(hi + 1))
    if left and number_at(left, 14) == lo then
      self:remove(left)
      sub.above = sub.above - (lo - number_at(left, 6))
      lo = number_at(left, 6)
    end
    if right then
      self:remove(right)
      sub.above = sub.above - (number_at(right, 14) - hi)
      hi = number_at(right, 14)
    end
  end
  sub.above = sub.above + (hi - lo)
  self:add('0', own .. be(lo) .. be(hi))
end

function Stripe:is_done(sub, lo, hi)
  if lo >= hi then return false end
  if hi <= sub.floor then return true end
  lo = math.max(lo, sub.floor)
  local left = self:last(sub.own .. 'd', sub.own .. 'd' .. be(lo + 1))
  return left and number_at(left, 14) >= hi
end

-- Passes over offsets that were never stored. Those of a later epoch may be done already: none counts twice.
function Stripe:skip(sub, lo, hi)
  if not self:is_done(sub, lo, hi) then
    if sub.above > 0 then
      for _, member in ipairs(self:some(sub.own .. 'd' .. be(lo), sub.own .. 'd' .. be(hi), WORDS_MAX)) do
        self:remove(member)
        sub.above = sub.above - (number_at(member, 14) - number_at(member, 6))
      end
    end
    self:add_done(sub, lo, hi)
  end
  sub.scan = hi
end

-- Whether messages are done behind others that are not. Offsets that were never given out are done, and do not count.
function Stripe:is_done_apart(sub)
  local from = sub.own .. 'd'
  while sub.above > 0 do
    local member = self:first(from, sub.own .. 'e')
    if not member then break end
    local note = self:note_at(number_at(member, 6))
    if note and note.base < number_at(member, 14) then return true end
    from = member .. '\0'
  end
  return false
end

-- Runs -----------------------------------------------------------------------------------------

local RUN = '>I8I8I8I8I4BBBc0'

local function new_run(lo, hi, group)
  return {lo = lo, hi = hi, token = '', till = 0, receives = 0, first = 0, state = IS_READY, released = 0,
    group = group or ''}
end

local function part_of(run, lo, hi)
  return {lo = lo, hi = hi, token = run.token, till = run.till, receives = run.receives, first = run.first,
    state = run.state, released = run.released, group = run.group}
end

local function read_run(member)
  local lo, hi, till, first, receives, state, released, group, at = struct.unpack(RUN, member, 6)
  return {member = member, lo = lo, hi = hi, till = till, first = first, receives = receives, state = state,
    released = released, group = group, token = string.sub(member, at)}
end

-- The run that begins at an offset.
function Stripe:run_at(sub, lo)
  local key = sub.own .. 'x' .. be(lo)
  return read_run(self:first(key, key .. '\255'))
end

-- The member of the index that says where a run is.
function Stripe:place_of(sub, run)
  if run.state ~= IS_READY then return sub.own .. 't' .. be(run.till) .. be(run.lo) end
  if self.order == 'key' then return sub.own .. 'w' .. run.group .. be(run.lo) .. be(run.hi) .. 'x' end
  return sub.own .. 'r' .. be(run.lo)
end

function Stripe:account(sub, run, sign)
  local count = sign * (run.hi - run.lo)
  if run.state == IS_LEASED then sub.leased = sub.leased + count end
  if run.state == IS_WAITING then sub.delayed = sub.delayed + count end
  if run.token ~= '' then sub.leases = sub.leases + sign end
  if self.order == 'key' and run.state ~= IS_READY then
    local group = self:group(sub, run.group)
    group.out = group.out + sign
  end
end

-- Puts a run where its state belongs; it is nowhere yet.
function Stripe:enter(sub, run)
  run.member = sub.own .. 'x' .. struct.pack(RUN, run.lo, run.hi, run.till, run.first, run.receives, run.state,
    run.released, #run.group, run.group) .. run.token
  self:account(sub, run, 1)
  self:add('0', run.member, '0', self:place_of(sub, run))
end

-- Takes a run out of the index, as it was put there.
function Stripe:leave(sub, run)
  self:account(sub, run, -1)
  self:remove(run.member, self:place_of(sub, run))
end

-- Makes ready what has come due; answers false when the limit stopped it, and how many runs it were.
function Stripe:promote(sub, most)
  if sub.leased + sub.delayed == 0 then return true, 0 end
  local own = sub.own .. 't'
  local due = self:some(own, own .. be(self.now + 1), most)
  for _, member in ipairs(due) do
    local run = self:run_at(sub, number_at(member, 14))
    self:leave(sub, run)
    run.state = IS_READY
    self:enter(sub, run)
    self:offer(sub, run.group)
  end
  return #due < most, #due
end

-- Groups ---------------------------------------------------------------------------------------

-- A group as it is now; what changes is written at the end of the call.
function Stripe:group(sub, hash)
  local group = sub.groups[hash]
  if group then return group end
  local key = sub.own .. 'g' .. hash
  local member = self:first(key, key .. '\255')
  group = {hash = hash, member = member, out = 0, place = 0}
  if member then group.out, group.place = struct.unpack('>I8I8', member, 14) end
  sub.groups[hash] = group
  return group
end

function Stripe:save_groups(sub)
  local gone, come = {}, {}
  for _, group in pairs(sub.groups) do
    local member = nil
    if group.out > 0 or group.place > 0 then
      member = sub.own .. 'g' .. group.hash .. be(group.out) .. be(group.place)
    end
    if member ~= group.member then
      if group.member then gone[#gone + 1] = group.member end
      if member then come[#come + 1], come[#come + 2] = '0', member end
      group.member = member
    end
  end
  in_parts('ZREM', self.keys[INDEX], gone)
  in_parts('ZADD', self.keys[INDEX], come)
end

local function line_member(sub, group) return sub.own .. 'q' .. be(group.place) .. group.hash end

function Stripe:join_line(sub, group)
  sub.place = sub.place + 1
  group.place = sub.place
  return line_member(sub, group)
end

function Stripe:leave_line(sub, group)
  self:remove(line_member(sub, group))
  group.place = 0
end

-- Puts a group in line if it has something waiting and nothing out; only then is it there.
function Stripe:offer(sub, hash)
  if self.order ~= 'key' then return end
  local group = self:group(sub, hash)
  local own = sub.own .. 'w' .. hash
  local ready = group.out == 0 and self:first(own, own .. '\255')
  if ready and group.place == 0 then self:add('0', self:join_line(sub, group)) end
  if not ready and group.place > 0 then self:leave_line(sub, group) end
end

-- Cuts a group's list to the floor; false when there is more to cut than one call may.
function Stripe:clip(sub, group)
  local own = sub.own .. 'w' .. group.hash
  local cut = self:some(own, own .. be(sub.floor), CLIP_MAX)
  if #cut == 0 then return true end
  in_parts('ZREM', self.keys[INDEX], cut)
  local hi = number_at(cut[#cut], 22)
  if hi > sub.floor then self:add('0', own .. be(sub.floor) .. be(hi)) end
  return #cut < CLIP_MAX
end

-- Room and retention ---------------------------------------------------------------------------

-- Settles the runs below an offset, as many as the call may; answers the offset below which none is left.
function Stripe:drop_runs(sub, offset)
  local own = sub.own .. 'x'
  while true do
    local some = self:some(own, own .. be(offset), SOME)
    for _, member in ipairs(some) do
      local run = read_run(member)
      if self.drops_left <= 0 then return run.lo end
      self.drops_left = self.drops_left - 1
      self:leave(sub, run)
      if run.hi > offset then self:enter(sub, part_of(run, offset, run.hi)) end
      self:offer(sub, run.group)
    end
    if #some < SOME then return offset end
  end
end

-- Forgets everything that a subscription knows, except what is done above an offset: offsets that were skipped.
function Stripe:drop_all(sub, offset)
  local kept = {}
  if sub.above > 0 then
    local last = self:last(sub.own .. 'd', sub.own .. 'd' .. be(offset))
    if last then kept[1] = last end
    for _, member in ipairs(self:some(sub.own .. 'd' .. be(offset), sub.own .. 'e', WORDS_MAX)) do
      kept[#kept + 1] = member
    end
  end
  self:forget(sub)
  for _, member in ipairs(kept) do
    if number_at(member, 14) > offset then
      self:add_done(sub, math.max(offset, number_at(member, 6)), number_at(member, 14))
    end
  end
end

-- Gives up everything of a subscription below an offset, or below a lower one where the limit stopped it; answers which.
function Stripe:drop_subscription_below(sub, offset)
  if offset <= sub.floor then return offset end
  if offset >= sub.scan then
    self:drop_all(sub, offset)
  else
    offset = self:drop_runs(sub, offset)
  end
  sub.floor = math.max(sub.floor, offset)
  self:settle_floor(sub)
  sub.scan = math.max(sub.scan, sub.floor)
  return offset
end

function Stripe:expire(most)
  if self.oldest < 0 or self.oldest + self.retention > self.now then return end
  local at = math.max(self.head, self.dropped)
  local notes = self:notes_from(at)
  for _ = 1, most do
    local note = notes()
    if not note or note.stored + self.retention > self.now then break end
    at = note.stop
  end
  self.dropped = math.max(self.dropped, at)
end

-- Remembers since when all subscriptions are done with what is below the floor; answers below which offset that is long
-- ago enough. A new subscription may want again what all others were done with.
function Stripe:kept_below(floor)
  local marks = self.keys[MARKS]
  self.kept = math.min(self.kept, floor)
  if self.marked > floor then
    call('ZREMRANGEBYLEX', marks, '[' .. be(floor + 1), '+')
    local last = call('ZREVRANGE', marks, '0', '0')[1]
    self.marked, self.marked_at = last and number_at(last, 1) or -1, last and number_at(last, 9) or 0
  end
  if floor > (self.marked >= 0 and self.marked or self.kept) then
    local part = math.max(1, math.floor(self.keep / MARK_PART))
    if self.marked >= 0 and math.floor(self.marked_at / part) == math.floor(self.now / part) then
      call('ZREM', marks, be(self.marked) .. be(self.marked_at))
    end
    call('ZADD', marks, '0', be(floor) .. be(self.now))
    self.marked, self.marked_at = floor, self.now
  end
  while self.marked >= 0 do
    local first = call('ZRANGE', marks, '0', '0')[1]
    if not first or number_at(first, 9) + self.keep > self.now then break end
    self.kept = number_at(first, 1)
    call('ZREM', marks, first)
    if self.kept == self.marked then self.marked = -1 end
  end
  return self.kept
end

-- The offset below which no block is needed any more (I6).
function Stripe:trim_offset()
  local floor = self:done_floor()
  if self.keep > 0 then return math.min(floor, math.max(self:kept_below(floor), self.dropped)) end
  if self.marked >= 0 then
    call('DEL', self.keys[MARKS])
    self.marked = -1
  end
  return floor
end

function Stripe:trim(most)
  local limit = self:trim_offset()
  if self.oldest < 0 or limit <= self.head then return end
  local gone = call('ZRANGEBYLEX', self.keys[NOTES], '-', '(' .. be(limit), 'LIMIT', '0', word(most))
  if #gone == 0 then return end
  local hashes, names, last = {}, {}, read_note(gone[#gone])
  for at, member in ipairs(gone) do
    local count, nbytes = struct.unpack('>I4I4', member, 9)
    self.nbytes = self.nbytes - nbytes
    names[at] = string.sub(member, NAME_AT)
    for part = 0, math.ceil(count / HASHES_PART) - 1 do hashes[#hashes + 1] = string.sub(member, 1, 8) .. be(part) end
  end
  call('ZREMRANGEBYRANK', self.keys[NOTES], '0', word(#gone - 1))
  if call('EXISTS', self.keys[HASHES]) == 1 then in_parts('HDEL', self.keys[HASHES], hashes) end
  if self.delays > 0 then
    self.delays = self.delays - call('ZREMRANGEBYLEX', self.keys[DELAYS], '-', '(' .. be(last.stop))
  end
  local first = self:note_at(last.stop)
  self.head, self.oldest = first and first.base or self.tail, first and first.stored or -1
  in_parts('HDEL', self.keys[LOG], names)
end

function Stripe:tidy(most)
  self:sweep()
  self:expire(most)
  self:trim(most)
end

-- Sees that so many bytes more fit, giving up kept or oldest messages; answers whether it did.
function Stripe:make_room(nbytes)
  local excess = self.nbytes + nbytes - self.bytes_max
  if excess <= 0 then return false end
  local limit = self.drops and self.tail or self:done_floor()
  local at, notes = self.head, self:notes_from(self.head)
  while excess > 0 and at < limit do
    local note = notes()
    if not note or note.stop > limit then break end
    excess = excess - note.nbytes
    at = note.stop
  end
  if excess > 0 then
    raise('queue_full', string.format('The queue holds %.0f bytes and may hold %.0f; %.0f more do not fit. '
      .. 'Receive some, or raise bytes_max.', self.nbytes, self.bytes_max, nbytes))
  end
  self.dropped = math.max(self.dropped, at)
  return true
end

-- Appending ------------------------------------------------------------------------------------

-- Judges a segment by its producer's sequence: nothing to accept it, else an answer.
function Stripe:judge(segment, known)
  local expected = known and known[1] or 0
  local stop = segment.sequence + segment.span
  if known and stop <= expected then
    return {'=', segment.sequence == known[2] and known[3] or -1}
  end
  if segment.sequence < expected then
    return refuse('sequence_refused', string.format('The segment covers sequence %.0f to %.0f, but %.0f is next: '
      .. 'send the part that is new under its own sequence.', segment.sequence, stop - 1, expected), expected)
  end
  if segment.sequence > expected and not segment.gaps then
    return refuse('sequence_refused', string.format('The segment starts at sequence %.0f, but %.0f is next: '
      .. 'an earlier segment has not arrived.', segment.sequence, expected)
      .. (known and '' or ' The stripe does not know this producer; start a new one at 0.'), expected)
  end
  if segment.span > NUMBER_MAX - segment.sequence then
    return refuse('invalid_argument', string.format('Sequence numbers are below %.0f: the segment covers %.0f from %.0f.',
      NUMBER_MAX, segment.span, segment.sequence))
  end
end

-- Whether one producer more may be remembered; when there are many, forgets those not heard of for as long as messages
-- are kept.
function Stripe:room_for_producer(most)
  if call('HLEN', self.keys[PRODUCERS]) < most then return true end
  local old = call('ZRANGEBYSCORE', self.keys[HEARD], '-inf', digits(self.now - self.retention), 'LIMIT', '0',
    word(WORDS_MAX))
  in_parts('HDEL', self.keys[PRODUCERS], old)
  in_parts('ZREM', self.keys[HEARD], old)
  return call('HLEN', self.keys[PRODUCERS]) < most
end

-- When a producer counts as heard of: that of one job may go after an hour, as heard_ms of core/dedup.py has it.
function Stripe:heard(name)
  if name:byte(1) ~= 0 then return self.now end
  return self.now - math.max(0, self.retention - JOB_PRODUCER_MS)
end

function Stripe:forget_ids(most)
  local old = call('ZRANGEBYSCORE', self.keys[SEEN], '-inf', digits(self.now - self.dedup), 'LIMIT', '0', word(most))
  in_parts('HDEL', self.keys[IDS], old)
  in_parts('ZREM', self.keys[SEEN], old)
end

function Stripe:known_producer(name)
  local raw = call('HGET', self.keys[PRODUCERS], name)
  return raw and {cmsgpack.unpack(raw)} or nil
end

function Stripe:known_id(id)
  local raw = call('HGET', self.keys[IDS], id)
  if not raw then return nil end
  local offset, seen = cmsgpack.unpack(raw)
  return seen + self.dedup > self.now and offset or nil
end

-- Decides what becomes of each segment, before anything is written.
function Stripe:plan(segments, producers_max)
  local answers, accepted, producers, ids = {}, {}, {}, {}
  local tail, nbytes, admitted = self.tail, 0, 0
  for at, segment in ipairs(segments) do
    local answer
    if segment.producer then
      local known = producers[segment.producer] or self:known_producer(segment.producer)
      answer = self:judge(segment, known)
      if not answer and not known then
        if self:room_for_producer(producers_max - admitted) then
          admitted = admitted + 1
        else
          answer = refuse('limit_exceeded', 'The stripe remembers ' .. producers_max
            .. ' producers, the most: use fewer, or wait until old ones are forgotten.')
        end
      end
      if not answer then
        producers[segment.producer] = {segment.sequence + segment.span, segment.sequence, tail}
      end
    elseif segment.id then
      local known = ids[segment.id] or self:known_id(segment.id)
      if known then answer = {'=', known} else ids[segment.id] = tail end
    end
    if not answer then
      answer = {'+', tail}
      segment.base = tail
      accepted[#accepted + 1] = segment
      tail = tail + segment.count
      nbytes = nbytes + segment.nbytes
    end
    answers[at] = answer
  end
  return answers, accepted, producers, ids, tail, nbytes
end

-- Remembers a delayed block for the statistics, and forgets one or two that are due.
function Stripe:note_delay(last, segment)
  local delays = self.keys[DELAYS]
  for _, member in ipairs(call('ZRANGE', delays, '0', '1')) do
    if number_at(member, 13) > self.now then break end
    self.delays = self.delays - call('ZREM', delays, member)
  end
  self.delays = self.delays + call('ZADD', delays, '0', struct.pack('>I8I4I8', last, segment.count, segment.not_before))
end

function Stripe:store(segment)
  local last = segment.base + segment.count - 1
  call('ZADD', self.keys[NOTES], '0', struct.pack('>I8I4I4I8I8', last, segment.count, segment.nbytes, self.now,
    segment.not_before) .. segment.name)
  for part = 0, math.ceil(#segment.hashes / 8 / HASHES_PART) - 1 do
    local from = part * 8 * HASHES_PART
    call('HSET', self.keys[HASHES], be(last) .. be(part), string.sub(segment.hashes, from + 1, from + 8 * HASHES_PART))
  end
  if segment.not_before > self.now then self:note_delay(last, segment) end
  if self.oldest < 0 then self.head, self.oldest = segment.base, self.now end
end

-- args: now, version, channel, limits (trim, producers, forget), most copies, then ten per segment:
-- producer, sequence, span, gaps, id, count, not before, key hashes, name of the block, its bytes
local function append_segments(keys, args)
  local self = load(keys, args[2], args[1])
  local trim_max, producers_max, forget_max = tonumber(args[4]), tonumber(args[5]), tonumber(args[6])
  self:tidy(trim_max)
  local segments, named = {}, 0
  for at = 8, #args, SEGMENT_WORDS do
    segments[#segments + 1] = {
      producer = args[at] ~= '' and args[at] or nil, sequence = tonumber(args[at + 1]),
      span = tonumber(args[at + 2]), gaps = args[at + 3] == '1',
      id = args[at + 4] ~= '' and args[at + 4] or nil, count = tonumber(args[at + 5]),
      not_before = math.min(tonumber(args[at + 6]), NUMBER_MAX), hashes = self.order == 'key' and args[at + 7] or '',
      name = args[at + 8], nbytes = tonumber(args[at + 9])}
    if args[at + 4] ~= '' then named = named + 1 end
  end
  -- As many go as may come, and some more.
  if named > 0 then self:forget_ids(forget_max + named) end
  local answers, accepted, producers, ids, tail, nbytes = self:plan(segments, producers_max)
  local dropped = self:make_room(nbytes)
  for _, segment in ipairs(accepted) do self:store(segment) end
  for name, state in pairs(producers) do
    call('HSET', keys[PRODUCERS], name, cmsgpack.pack(unpack(state)))
    call('ZADD', keys[HEARD], digits(self:heard(name)), name)
  end
  for id, offset in pairs(ids) do
    call('HSET', keys[IDS], id, cmsgpack.pack(offset, self.now))
    call('ZADD', keys[SEEN], digits(self.now), id)
  end
  self.tail, self.nbytes = tail, self.nbytes + nbytes
  local copies = math.min(self.copies, tonumber(args[7]))
  if copies == 1 then self.stable = tail end
  if dropped then self:tidy(trim_max) end
  self:save()
  if #accepted > 0 then self:announce(args[3], copies > 1 and 'later' or nil) end
  return {copies, self.when_short, self:era(), answers, self.tail, digits(self.now)}
end

-- Removes blocks that were written for an append which did not take them: all, or those it did not answer '+' for.
local function remove_unwanted(keys, args, answers)
  local names = {}
  for at = 8, #args, SEGMENT_WORDS do
    local answer = answers and answers[(at - 8) / SEGMENT_WORDS + 1]
    if not answer or answer[1] ~= '+' then names[#names + 1] = args[at + 8] end
  end
  in_parts('HDEL', keys[LOG], names)
end

local function append(keys, args)
  local ok, answer = pcall(append_segments, keys, args)
  remove_unwanted(keys, args, ok and answer[4] or nil)
  if not ok then error(answer, 0) end
  return answer
end

-- args: now, most copies. A change that means nothing, for WAIT to follow: what was appended before has its copies
-- when this has.
local function touch(keys, args)
  local self = load(keys, '0', args[1])
  self:save()
  return {math.min(self.copies, tonumber(args[2])), self.when_short, self:era(), self.tail}
end

-- Leasing --------------------------------------------------------------------------------------

local Lease = {}
Lease.__index = Lease

function Lease:strict() return self.stripe.order == 'strict' end
function Lease:is_full() return #self.pieces + #self.dead >= self.runs_max end

function Lease:is_dead(run)
  local most = self.stripe.receives_max
  return most > 0 and run.receives >= most
end

-- Takes a run, of which no more than `want` messages; what is behind them is answered.
function Lease:keep(run, want)
  local rest = nil
  if run.hi - run.lo > want then
    rest = part_of(run, run.lo + want, run.hi)
    run.hi = rest.lo
  end
  local last = self.pieces[#self.pieces]
  if last and last.hi == run.lo and last.token == '' and run.token == '' and last.group == run.group then
    last.hi = run.hi
  else
    self.pieces[#self.pieces + 1] = run
  end
  return rest
end

-- Advances the scan of a queue without groups until `want` messages are found.
function Lease:scan(want)
  local stripe, sub = self.stripe, self.sub
  local passed_left = self.scan_max
  sub.scan_due = 0
  sub.scan = math.min(math.max(sub.scan, sub.floor), stripe.stable)
  local notes = stripe:notes_from(sub.scan)
  while want > 0 and sub.scan < stripe.stable do
    local note, start = notes(), sub.scan
    if not note or note.base > start then
      stripe:skip(sub, start, math.min(note and note.base or stripe.stable, stripe.stable))
      if not note then break end
      start = sub.scan
    end
    local stop = math.min(note.stop, stripe.stable)
    if start >= stop then break end
    if note.not_before > stripe.now then
      if stripe.order ~= 'loose' then
        sub.scan_due = note.not_before
        return true
      end
      local run = new_run(start, stop)
      run.state, run.till = IS_WAITING, note.not_before
      stripe:enter(sub, run)
      sub.scan = stop
      passed_left = passed_left - (stop - start)
      if passed_left <= 0 then return false end
    else
      stop = math.min(stop, start + want)
      self:keep(new_run(start, stop), want)
      want = want - (stop - start)
      sub.scan = stop
    end
  end
  return true
end

-- Takes up to `want` deliverable messages out of the ready ones and the scan, oldest first.
function Lease:gather(want)
  local stripe, sub = self.stripe, self.sub
  while want > 0 do
    local some = stripe:some(sub.own .. 'r', sub.own .. 's', math.min(want, SOME))
    for _, place in ipairs(some) do
      if self:is_full() then return false end
      local run = stripe:run_at(sub, number_at(place, 6))
      local dead = self:is_dead(run)
      if dead and self:strict() and #self.pieces > 0 then return true end
      stripe:leave(sub, run)
      if dead then
        self.dead[#self.dead + 1] = run
        if self:strict() then return true end
      else
        local rest = self:keep(run, want)
        if rest then stripe:enter(sub, rest) end
        want = want - (run.hi - run.lo)
        if want == 0 then return true end
      end
    end
    if #some == 0 then break end
  end
  return self:scan(want)
end

-- Takes up to `want` messages of a group, which has something waiting and nothing out.
function Lease:take(group, want)
  local stripe, sub = self.stripe, self.sub
  local own, taken = sub.own .. 'w' .. group.hash, 0
  while taken < want and not self:is_full() do
    local some, gone = stripe:some(own, own .. '\255', math.min(want - taken, SOME)), {}
    local over = #some == 0
    for _, place in ipairs(some) do
      local lo, hi = number_at(place, 14), number_at(place, 22)
      local written = #place > 29
      local run = written and stripe:run_at(sub, lo) or new_run(lo, hi, group.hash)
      local dead = self:is_dead(run)
      over = dead or self:is_full()
      if over and taken > 0 then break end
      if written then stripe:leave(sub, run) else gone[#gone + 1] = place end
      if dead then
        self.dead[#self.dead + 1] = run
        break
      end
      local rest = self:keep(run, want - taken)
      taken = taken + (rest and rest.lo or hi) - lo
      if rest and written then stripe:enter(sub, rest) end
      if rest and not written then stripe:add('0', own .. be(rest.lo) .. be(hi)) end
      if taken == want then break end
    end
    in_parts('ZREM', stripe.keys[INDEX], gone)
    if over then break end
  end
  return taken
end

-- Takes messages of the group at the head of the line; answers how many, nil when there is none, and whether it could.
function Lease:take_next(want)
  local stripe, sub = self.stripe, self.sub
  local member = stripe:first(sub.own .. 'q', sub.own .. 'r')
  if not member then return nil, true end
  local group = stripe:group(sub, string.sub(member, 14))
  if not stripe:clip(sub, group) then return 0, false end
  stripe:leave_line(sub, group)
  local buried = #self.dead
  local taken = self:take(group, want)
  -- Its runs are out from here on, although they are handed out at the end.
  group.busy = taken > 0 or #self.dead > buried
  return taken, true
end

-- Has the next messages join their groups; answers how many they are.
function Lease:sort_ahead(most)
  local stripe, sub = self.stripe, self.sub
  local passed, come = 0, {}
  sub.scan_due = 0
  sub.scan = math.min(math.max(sub.scan, sub.floor), stripe.stable)
  local notes = stripe:notes_from(sub.scan)
  while passed < most and sub.scan < stripe.stable do
    local note, start = notes(), sub.scan
    if not note or note.base > start then
      stripe:skip(sub, start, math.min(note and note.base or stripe.stable, stripe.stable))
      passed = passed + 1
      if not note then break end
      start = sub.scan
    end
    local stop = math.min(note.stop, stripe.stable, start + most - passed)
    if start >= stop then break end
    if note.not_before > stripe.now then
      sub.scan_due = note.not_before
      break
    end
    self:sort_block(note, start, stop, come)
    sub.scan = stop
    passed = passed + stop - start
  end
  in_parts('ZADD', stripe.keys[INDEX], come)
  return passed
end

-- Neighbours of one group are one run.
function Lease:sort_block(note, start, stop, come)
  local stripe, sub = self.stripe, self.sub
  local part, hashes = -1, ''
  local function hash_of(offset)
    local at = offset - note.base
    if math.floor(at / HASHES_PART) ~= part then
      part = math.floor(at / HASHES_PART)
      hashes = call('HGET', stripe.keys[HASHES], be(note.last) .. be(part)) or ''
    end
    local hash = string.sub(hashes, 8 * (at % HASHES_PART) + 1, 8 * (at % HASHES_PART) + 8)
    return #hash == 8 and hash or NO_KEY
  end
  local lo, hash = start, hash_of(start)
  for offset = start + 1, stop do
    local next_hash = offset < stop and hash_of(offset)
    if next_hash ~= hash then
      come[#come + 1], come[#come + 2] = '0', sub.own .. 'w' .. hash .. be(lo) .. be(offset)
      local group = stripe:group(sub, hash)
      if group.out == 0 and group.place == 0 and not group.busy then
        come[#come + 1], come[#come + 2] = '0', stripe:join_line(sub, group)
      end
      lo, hash = offset, next_hash
    end
  end
end

function Lease:gather_groups(want)
  local passed_left, visits_left, sub = self.scan_max, VISITS_MAX, self.sub
  if want <= self.look_ahead then
    local known = sub.scan - sub.floor - sub.above - sub.leased - sub.delayed
    if known < self.look_ahead then self:sort_ahead(math.min(self.look_ahead - known, self.scan_max)) end
  end
  while true do
    while want > 0 do
      local taken, able = self:take_next(want)
      visits_left = visits_left - 1
      if not able or self:is_full() or visits_left == 0 then return false end
      if not taken then break end
      want = want - taken
    end
    if want <= 0 then return true end
    if passed_left <= 0 then return false end
    local passed = self:sort_ahead(math.min(math.max(self.look_ahead, want), passed_left))
    if passed == 0 then return true end
    passed_left = passed_left - passed
  end
end

-- Keeps `want` messages starting at random among the `spread` oldest; gives the rest back.
function Lease:pick(want, spread)
  local stripe, sub = self.stripe, self.sub
  local total = 0
  for _, run in ipairs(self.pieces) do total = total + run.hi - run.lo end
  local from = self.random % math.max(1, math.min(spread, total) - want + 1)
  local found, passed = self.pieces, 0
  self.pieces = {}
  for _, run in ipairs(found) do
    local function part(lo, hi)
      lo, hi = math.max(run.lo, run.lo + lo - passed), math.min(run.hi, run.lo + hi - passed)
      return lo < hi and part_of(run, lo, hi)
    end
    local left, middle, right = part(0, from), part(from, from + want), part(from + want, total)
    if left then stripe:enter(sub, left) end
    if middle then self.pieces[#self.pieces + 1] = middle end
    if right then stripe:enter(sub, right) end
    passed = passed + run.hi - run.lo
  end
end

function Lease:hand_out(run, till)
  local stripe, sub = self.stripe, self.sub
  self.drawn = self.drawn + 1
  run.token = string.sub(redis.sha1hex(self.seed .. self.drawn), 1, 15)
  run.receives = run.receives + 1
  if run.first == 0 then run.first = stripe.now end
  run.state, run.released, run.till = IS_LEASED, 0, till
  stripe:enter(sub, run)
  return {run.lo, run.hi, run.token, till, run.receives, run.first}
end

-- Whether something at the end is not shown; whoever has appended it may be gone.
function Stripe:unstable() return self.tail > self.stable and 1 or 0 end

function Stripe:something_ready(sub)
  if self.order == 'key' then return self:first(sub.own .. 'q', sub.own .. 'r') end
  return self:first(sub.own .. 'r', sub.own .. 's')
end

-- When the next message becomes deliverable by time alone; -1 when none will.
function Stripe:due(sub)
  local out = sub.leased + sub.delayed > 0
  local locked = self.order == 'strict' and out
  local unscanned = sub.scan < self.stable and sub.scan_due == 0
  if not locked and (unscanned or self:something_ready(sub)) then return self.now end
  local due = out and number_at(self:first(sub.own .. 't', sub.own .. 'u'), 6) or -1
  if sub.scan_due > 0 and not locked and (due < 0 or sub.scan_due < due) then due = sub.scan_due end
  return due < 0 and -1 or math.max(self.now, due)
end

-- args: now, version, subscription, want, lease ms, spread, seed, random, then limits: promote,
-- scan, leases, trim, look ahead
local function lease(keys, args)
  local stripe = load(keys, args[2], args[1], args[3])
  stripe:tidy(tonumber(args[12]))
  local sub = stripe:subscription(args[3])
  if sub.held > stripe.now then
    raise('subscription_busy', "Subscription '" .. args[3] .. "' is being streamed from: receive from another "
      .. 'one, or end the stream.')
  end
  local self = setmetatable({stripe = stripe, sub = sub, seed = args[7], random = tonumber(args[8]), drawn = 0,
    runs_max = tonumber(args[9]), scan_max = tonumber(args[10]), look_ahead = tonumber(args[13]),
    pieces = {}, dead = {}}, Lease)
  local want, spread = tonumber(args[4]), tonumber(args[6])
  local exhausted = stripe:promote(sub, self.runs_max)
  local runs, dead = {}, {}
  if stripe:is_behind(sub) then
    exhausted = false
  elseif not (self:strict() and sub.leased + sub.delayed > 0) then
    if stripe.order ~= 'loose' then spread = 1 end
    if sub.leases >= tonumber(args[11]) and not stripe:something_ready(sub) then
      raise('limit_exceeded', 'The subscription has ' .. sub.leases .. ' leases outstanding, the most allowed: '
        .. 'acknowledge some first, or receive more messages at once.')
    end
    local gather = stripe.order == 'key' and Lease.gather_groups or Lease.gather
    exhausted = gather(self, math.max(want, spread)) and exhausted
    if spread > 1 then self:pick(want, spread) end
    local till = stripe.now + tonumber(args[5])
    for at, run in ipairs(self.pieces) do runs[at] = self:hand_out(run, till) end
    for at, run in ipairs(self.dead) do dead[at] = self:hand_out(run, till) end
  end
  -- As a wait: who asks need not have the same time.
  local due = stripe:due(sub)
  local wait = due < 0 and -1 or due - stripe.now
  stripe:save(true)
  return {stripe.epoch, runs, dead, exhausted and 0 or 1, wait, stripe:unstable(), stripe:era()}
end

-- Settling -------------------------------------------------------------------------------------

-- The runs that a lease holds within [lo, hi); they may reach beyond.
function Stripe:held(sub, claim)
  local own, found = sub.own .. 'x', {}
  local function look_at(member)
    local run = read_run(member)
    local held = run.token == claim.token or (claim.earlier and run.token ~= '')
    if held and run.hi > claim.lo then found[#found + 1] = run end
    return run.hi
  end
  local left = self:last(own, own .. be(claim.lo + 1))
  if left and look_at(left) >= claim.hi then return found end
  for _, member in ipairs(self:some(own .. be(claim.lo + 1), own .. be(claim.hi), CLAIM_MAX)) do look_at(member) end
  return found
end

-- Takes what a lease holds within [lo, hi) out of the index, cut to that range.
function Stripe:carve(sub, claim)
  if claim.lo >= claim.hi or claim.hi - claim.lo > CLAIM_MAX or claim.hi > NUMBER_MAX then
    raise('receipt_stale', 'The receipt names no messages that one lease could hold.')
  end
  local found = self:held(sub, claim)
  if #found == 0 then
    raise('receipt_stale', "The receipt's lease has ended: its messages are done or were leased again.")
  end
  for _, run in ipairs(found) do
    if self.order ~= 'loose' and (run.state ~= IS_LEASED or run.till <= self.now) then
      raise('receipt_stale', "The receipt's lease has expired, which ends it on an ordered queue.")
    end
  end
  for at, run in ipairs(found) do
    self:leave(sub, run)
    if run.lo < claim.lo then self:enter(sub, part_of(run, run.lo, claim.lo)) end
    if run.hi > claim.hi then self:enter(sub, part_of(run, claim.hi, run.hi)) end
    found[at] = part_of(run, math.max(run.lo, claim.lo), math.min(run.hi, claim.hi))
  end
  return found
end

local acts = {}

function acts.acknowledge(self, sub, claim)
  if claim.hi <= sub.floor then return 0 end
  local ok, runs = pcall(self.carve, self, sub, claim)
  if not ok then
    -- Said twice, perhaps because the first answer was lost.
    if type(runs) == 'table' and runs.refusal and self:is_done(sub, claim.lo, claim.hi) then return 0 end
    error(runs, 0)
  end
  local count = 0
  for _, run in ipairs(runs) do
    self:add_done(sub, run.lo, run.hi)
    self:offer(sub, run.group)
    count = count + run.hi - run.lo
  end
  return count
end

function acts.extend(self, sub, claim, lease_ms)
  local count = 0
  for _, run in ipairs(self:carve(sub, claim)) do
    if run.released == 0 then
      run.state, run.till = IS_LEASED, self.now + tonumber(lease_ms)
      count = count + run.hi - run.lo
    end
    self:enter(sub, run)
  end
  if count == 0 then raise('receipt_stale', 'The messages were released; there is no lease to extend.') end
  return count
end

function acts.release(self, sub, claim, delay_ms)
  local count = 0
  for _, run in ipairs(self:carve(sub, claim)) do
    local wait_ms = tonumber(delay_ms)
    if not wait_ms then
      local doublings = math.min(math.max(run.receives - 1, 0), 40)
      wait_ms = math.min(self.backoff * 2 ^ doublings, self.backoff_max)
    end
    run.state, run.released, run.till = IS_WAITING, 1, self.now + wait_ms
    self:enter(sub, run)
    count = count + run.hi - run.lo
  end
  return count
end

-- Nobody has seen the messages: the lease does not count.
function acts.unlease(self, sub, claim)
  local count = 0
  for _, run in ipairs(self:carve(sub, claim)) do
    if run.released == 0 then run.receives = run.receives - 1 end -- Said twice, it is taken back once.
    if run.receives == 0 then run.first = 0 end
    run.state, run.released, run.till = IS_WAITING, 1, self.now
    self:enter(sub, run)
    count = count + run.hi - run.lo
  end
  return count
end

-- args: now, version, channel, subscription, act, its number or '', trim limit, most copies, then five per
-- claim: epoch, token, lo, hi, earlier
local function settle(keys, args)
  local self = load(keys, args[2], args[1], args[4])
  local sub = self:subscription(args[4])
  local act, answers = acts[args[5]], {}
  for at = 9, #args, 5 do
    local claim = {token = args[at + 1], lo = tonumber(args[at + 2]), hi = tonumber(args[at + 3]),
      earlier = args[at + 4] == '1' and self.order == 'loose'}
    local ok, answer = pcall(function()
      if tonumber(args[at]) ~= self.epoch then
        raise('receipt_stale', 'The receipt is from epoch ' .. args[at] .. '; the stripe is in ' .. self.epoch .. '.')
      end
      return act(self, sub, claim, args[6])
    end)
    if ok then
      answers[#answers + 1] = answer
    elseif type(answer) == 'table' and answer.refusal then
      answers[#answers + 1] = answer.refusal
    else
      error(answer)
    end
  end
  self:tidy(tonumber(args[7]))
  self:save()
  if self.order ~= 'loose' or args[5] ~= 'acknowledge' then self:announce(args[3]) end
  return {math.min(self.copies, tonumber(args[8])), self.when_short, self:era(), answers}
end

-- The rest -------------------------------------------------------------------------------------

local function configured(self, args, at)
  self.version, self.order = tonumber(args[at]), args[at + 1]
  self.retention, self.keep, self.dedup = tonumber(args[at + 2]), tonumber(args[at + 3]), tonumber(args[at + 4])
  self.bytes_max, self.drops = tonumber(args[at + 5]), args[at + 6] == '1'
  self.receives_max = tonumber(args[at + 7])
  self.backoff, self.backoff_max = tonumber(args[at + 8]), tonumber(args[at + 9])
  self.copies, self.when_short = tonumber(args[at + 10]), args[at + 11]
  call('HSET', self.keys[M], 'c', pack_settings(self))
end

-- What a failover must not undo is answered as an append is, with what it says of copies in front; the last argument is how
-- many there are at most. Such a call always changes something, see `save`.
local function decided(work)
  return function(keys, args)
    local most = tonumber(table.remove(args))
    local answer = work(keys, args)
    return {math.min(current.copies, most), current.when_short, current:era(), answer}
  end
end

-- args: now, first subscription, then settings (see configured)
local function create(keys, args)
  if call('EXISTS', keys[M]) == 1 then
    load(keys, '0', args[1]):save()
    return 0
  end
  local self = setmetatable({keys = keys, subs = {}, raw = '', now = now_of(args[1]), epoch = 1, tail = 0, stable = 0,
    head = 0, dropped = 0, nbytes = 0, numbered = 0, owner = call('CLUSTER', 'MYID'), oldest = -1, kept = 0,
    marked = -1, marked_at = 0, delays = 0, garbage = '', run = run_of_node()}, Stripe)
  configured(self, args, 3)
  self:add_subscription(args[2], 0)
  self:save()
  return 1
end

-- args: now, channel, then settings
local function configure(keys, args)
  local self = load(keys, '0', args[1])
  local version, order = tonumber(args[3]), args[4]
  if version < self.version then
    raise('settings_stale', "The queue's settings have version " .. self.version .. ' already, not ' .. version .. '.')
  end
  if order ~= self.order then
    if self:done_floor() < self.tail then
      raise('settings_refused', "order can change from '" .. self.order .. "' to '" .. order .. "' only while no "
        .. 'message is waiting or leased: drain the queue, or purge it.')
    end
    for _, sub in pairs(self:everybody()) do self:drop_all(sub, sub.floor) end
  end
  configured(self, args, 3)
  self:save()
  self:announce(args[2])
  return 1
end

local function delete(keys, args)
  -- Somebody else may just have deleted it: there must be something for WAIT to follow.
  call('HSET', keys[M], 'c', '')
  call('UNLINK', unpack(keys))
  if args[1] ~= '' then call('SPUBLISH', args[1], '') end
  return 1
end

-- args: now, channel, name, kind of start, value, most subscriptions
local function subscribe(keys, args)
  local self = load(keys, '0', args[1], args[3])
  local name, kind, value = args[3], args[4], tonumber(args[5])
  local sub = self:maybe_subscription(name)
  if sub then
    self:catch_up(sub)
    self:save()
  else
    if call('ZCARD', keys[FLOORS]) >= tonumber(args[6]) then
      raise('limit_exceeded', 'A queue has at most ' .. args[6] .. ' subscriptions.')
    end
    local offset = self.head
    if kind == 'latest' then offset = self.tail elseif kind == 'offset' then offset = value end
    sub = self:add_subscription(name, offset)
    self:save()
    self:announce(args[2])
  end
  return math.max(sub.floor, self.dropped)
end

-- args: now, name
local function unsubscribe(keys, args)
  local self = load(keys, '0', args[1], args[2])
  local sub = self:maybe_subscription(args[2])
  if sub then
    self:forget(sub)
    self.subs[args[2]] = nil
    call('HDEL', keys[M], '=' .. args[2])
    call('ZREM', keys[FLOORS], args[2])
  end
  self:save()
  return 1
end

-- args: now, subscription, owner, lease ms, promote limit. Answers fence and offset; fence 0: call again.
local function claim(keys, args)
  local self = load(keys, '0', args[1], args[2])
  local sub = self:subscription(args[2])
  if sub.owner ~= args[3] and sub.held > self.now then
    raise('subscription_busy', "Subscription '" .. args[2] .. "' is streamed from by somebody else for at least "
      .. digits(sub.held - self.now) .. ' ms more.')
  end
  if not self:promote(sub, tonumber(args[5])) or self:is_behind(sub) then
    self:save()
    return {0, 0}
  end
  local apart = self:is_done_apart(sub)
  if sub.leased > 0 or sub.delayed > 0 or apart then
    raise('subscription_busy', string.format("Subscription '%s' is received from: %.0f messages are leased, "
      .. '%.0f wait and %s are done out of order. Stream from a subscription of its own.', args[2], sub.leased,
      sub.delayed, apart and 'some' or 'none'))
  end
  sub.fence = sub.fence + 1
  sub.owner, sub.held = args[3], self.now + tonumber(args[4])
  self:save()
  return {sub.fence, sub.floor}
end

function Stripe:check_fence(name, fence)
  local sub = self:subscription(name)
  if fence ~= sub.fence or sub.held == 0 then
    raise('fence_stale', "Subscription '" .. name .. "' has fence " .. sub.fence .. '; the reader with fence '
      .. fence .. ' has lost its claim and must begin again.')
  end
  return sub
end

-- args: now, subscription, fence, lease ms
local function hold(keys, args)
  local self = load(keys, '0', args[1], args[2])
  local sub = self:check_fence(args[2], tonumber(args[3]))
  local lease_ms = tonumber(args[4])
  if lease_ms > 0 then sub.held = self.now + lease_ms else sub.held, sub.owner = 0, '' end
  self:save()
  return 1
end

-- args: now, subscription, offset, fence, trim limit. Answers whether to call again. What a reader has seen may be
-- above `stable` on a master that has just taken over.
local function commit(keys, args)
  local self = load(keys, '0', args[1], args[2])
  local fence = tonumber(args[4])
  local sub = fence > 0 and self:check_fence(args[2], fence) or self:subscription(args[2])
  local offset = math.min(tonumber(args[3]), self.tail)
  local reached = self:drop_subscription_below(sub, offset)
  self:tidy(tonumber(args[5]))
  self:save()
  return reached < offset and 1 or 0
end

-- Messages below an offset that are neither done, leased nor delayed. Offsets that were skipped may be done above it.
function Stripe:waiting(sub, tail)
  local above = sub.above
  if above > 0 and tail < self.tail then
    local last = self:last(sub.own .. 'd', sub.own .. 'e')
    above = above - math.max(0, number_at(last, 14) - math.max(tail, number_at(last, 6)))
  end
  return math.max(0, tail - sub.floor - above - sub.leased - sub.delayed)
end

-- args: now, trim limit
local function purge(keys, args)
  local self = load(keys, '0', args[1])
  local count = 0
  for _, sub in pairs(self:everybody()) do
    count = math.max(count, self:waiting(sub, self.tail) + sub.leased + sub.delayed)
  end
  self.dropped = self.tail
  for _, sub in pairs(self.subs) do self:catch_up(sub) end
  self:tidy(tonumber(args[2]))
  self:save()
  return count
end

-- args: now, trim limit. Answers the head, and whether to call again.
local function trim(keys, args)
  local self = load(keys, '0', args[1])
  local head = self.head
  self:tidy(tonumber(args[2]))
  local behind = call('ZRANGEBYSCORE', keys[FLOORS], '-inf', '(' .. digits(self.dropped), 'LIMIT', '0', word(SOME))
  for _, name in ipairs(behind) do self:subscription(name) end
  self:save(true)
  return {self.head, (self.head > head or #behind > 0 or self.garbage ~= '') and 1 or 0}
end

-- The delayed blocks that are not due, newest first: base, end and how many messages they and those before them have.
function Stripe:delayed_blocks()
  local found, count = {}, 0
  if self.delays == 0 then return found end
  local some = call('ZREVRANGE', self.keys[DELAYS], '0', word(DELAYS_MAX - 1))
  for _, member in ipairs(some) do
    local last, messages, not_before = struct.unpack('>I8I4I8', member)
    if not_before > self.now then
      count = count + messages
      found[#found + 1] = {base = last + 1 - messages, stop = last + 1, count = count}
    end
  end
  return found
end

-- Messages of such blocks from an offset on.
local function delayed_from(blocks, offset)
  local lo, hi = 0, #blocks
  while lo < hi do
    local middle = math.ceil((lo + hi) / 2)
    if blocks[middle].stop > offset then lo = middle else hi = middle - 1 end
  end
  if lo == 0 then return 0 end
  return blocks[lo].count - math.max(0, offset - blocks[lo].base)
end

-- args: now, trim limit, promote limit. The last two of the answer say whether to call again for the exact truth, and
-- whether something is not shown.
local function stats(keys, args)
  local self = load(keys, '0', args[1])
  self:tidy(tonumber(args[2]))
  local blocks, left, behind = self:delayed_blocks(), tonumber(args[3]), false
  local subs = {}
  for name, sub in pairs(self:everybody()) do
    if left > 0 then
      local _, promoted = self:promote(sub, left)
      left = left - promoted
    end
    behind = behind or self:is_behind(sub)
    local ahead = delayed_from(blocks, math.max(sub.scan, sub.floor))
    subs[#subs + 1] = {name, sub.floor, math.max(0, self:waiting(sub, self.stable) - ahead),
      sub.leased, sub.delayed + ahead}
  end
  self:save(true)
  return {self.epoch, self.head, self.stable, self.nbytes, math.max(0, self.oldest), subs,
    (left == 0 or behind) and 1 or 0, self:unstable()}
end

-- args: now, trim limit. Answers era, head, visible tail, and whether something is not shown.
local function bounds(keys, args)
  local self = load(keys, '0', args[1])
  self:tidy(tonumber(args[2]))
  self:save(true)
  return {self:era(), self.head, self.stable, self:unstable()}
end

-- args: time. Answers the first offset stored then or later.
local function find(keys, args)
  local self = look(keys)
  local lo, hi, time = self.head, self.stable, tonumber(args[1])
  while lo < hi do
    local middle = math.floor((lo + hi) / 2)
    local note = self:note_at(middle)
    if not note or note.base >= hi then
      hi = middle
    elseif note.stored < time then
      lo = note.stop
    else
      hi = math.max(lo, note.base)
    end
  end
  return math.min(lo, self.stable)
end

-- args: offset, channel. What is below it is on as many copies as was promised, and may be seen.
local function stable(keys, args)
  local self = load(keys, '0', nil)
  local offset = math.min(tonumber(args[1]), self.tail)
  if offset > self.stable then
    self.stable = offset
    self:save()
    self:announce(args[2])
  end
  return self.stable
end

-- Records --------------------------------------------------------------------------------------
-- KEYS: 1 hash of values: version, expiry, value; 2 zset of their keys in lexical order; 3 zset of those that expire, by
-- when they do

-- Bytes of records that one scan answers, and expired records that one change removes.
local SCAN_BYTES_MAX, EXPIRED_MAX = 4 * 1024 * 1024, 20

local function live(keys, key, now)
  local raw = call('HGET', keys[1], key)
  if not raw then return nil end
  local version, expires, value = cmsgpack.unpack(raw)
  if expires > 0 and expires <= now then return nil end
  return {version, expires, value}
end

local function check_version(record, key, expect)
  local version = record and record[1] or 0
  if expect ~= '' and tonumber(expect) ~= version then
    raise('record_conflict', "Record '" .. key .. "' has version " .. version .. ', not ' .. expect .. ': read it again.')
  end
  return version
end

local function remove_records(keys, names)
  in_parts('HDEL', keys[1], names)
  in_parts('ZREM', keys[2], names)
  in_parts('ZREM', keys[3], names)
end

local function remove_expired(keys, now)
  remove_records(keys, call('ZRANGEBYSCORE', keys[3], '-inf', digits(now), 'LIMIT', '0', word(EXPIRED_MAX)))
end

local function record_get(keys, args)
  local record = live(keys, args[2], now_of(args[1]))
  if not record then return {} end
  return record
end

-- args: now, key, value, expected version or '', expiry
local function record_put(keys, args)
  local now, expires = now_of(args[1]), tonumber(args[5])
  local version = check_version(live(keys, args[2], now), args[2], args[4]) + 1
  remove_expired(keys, now)
  call('HSET', keys[1], args[2], cmsgpack.pack(version, expires, args[3]))
  call('ZADD', keys[2], '0', args[2])
  if expires > 0 then call('ZADD', keys[3], args[5], args[2]) else call('ZREM', keys[3], args[2]) end
  return version
end

-- args: now, key, expected version or ''
local function record_remove(keys, args)
  local now = now_of(args[1])
  local record = live(keys, args[2], now)
  check_version(record, args[2], args[3])
  remove_records(keys, {args[2]})
  remove_expired(keys, now)
  return record and 1 or 0
end

-- args: now, from (with its bracket), to (with its bracket), most. Answers where to go on, '' when at the end, and what
-- was found.
local function record_scan(keys, args)
  local now, found, from = now_of(args[1]), {}, args[2]
  local most, bytes_left = tonumber(args[4]), SCAN_BYTES_MAX
  while true do
    local some = call('ZRANGEBYLEX', keys[2], from, args[3], 'LIMIT', '0', word(SOME))
    for _, key in ipairs(some) do
      if #found == most or bytes_left <= 0 then return {from, found} end
      local record = live(keys, key, now)
      if record then
        found[#found + 1] = {key, record[1], record[2], record[3]}
        bytes_left = bytes_left - #key - #record[3]
      end
      from = '(' .. key
    end
    if #some < SOME then return {'', found} end
  end
end

local function register(name, work, flags)
  redis.register_function{function_name = 'rd_@VERSION@_' .. name, callback = guarded(work), flags = flags}
end

register('append', append, {})
register('touch', touch, {'allow-oom'})
register('lease', lease, {'allow-oom'})
register('settle', settle, {'allow-oom'})
register('create', create, {})
register('configure', decided(configure), {'allow-oom'})
register('delete', delete, {'allow-oom'})
register('subscribe', decided(subscribe), {'allow-oom'})
register('unsubscribe', decided(unsubscribe), {'allow-oom'})
register('claim', decided(claim), {'allow-oom'})
register('hold', hold, {'allow-oom'})
register('commit', decided(commit), {'allow-oom'})
register('purge', decided(purge), {'allow-oom'})
register('trim', trim, {'allow-oom'})
register('stats', stats, {'allow-oom'})
register('bounds', bounds, {'allow-oom'})
register('find', find, {'no-writes'})
register('stable', stable, {'allow-oom'})
register('record_get', record_get, {'no-writes'})
register('record_put', record_put, {})
register('record_remove', record_remove, {'allow-oom'})
register('record_scan', record_scan, {'no-writes'})
