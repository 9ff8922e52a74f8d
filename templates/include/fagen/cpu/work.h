// How a forward call is cut into work items, and how those are shared among the pool's threads.
#pragma once
#include "fagen/bounds.h"
#include "fagen/params.h"

namespace fagen {
namespace {

// Rows [i, i + rows) of the `heads` query heads from h on, which share key head hk, in batch b.
struct Item {
  int32_t b, hk, h, heads, i, rows;
};

// An item has at most tile_q rows, of one head; or, where queries are few (decoding), of as many heads that share keys
// as fit, so that a tile of keys is read and packed once for all of them, but no more than leaves every thread an item.
struct Items {
  int32_t q_len, group, tile_q;
  int32_t heads;         // of an item
  int64_t head_parts;    // items a key head's query heads are cut into
  int64_t row_parts;     // items a head's rows are cut into
  int64_t kv_heads, count;

  Items(const Shape& shape, int32_t threads, int32_t tile_rows)
      : q_len(static_cast<int32_t>(shape.q_len)),
        group(static_cast<int32_t>(shape.heads / shape.kv_heads)),
        tile_q(tile_rows),
        heads(1),
        head_parts(group),
        row_parts((shape.q_len + tile_rows - 1) / tile_rows),
        kv_heads(shape.kv_heads) {
    if (row_parts == 1 && group > 1) {
      const int64_t each = (shape.batch * shape.heads + threads - 1) / threads;
      const int64_t fit = tile_q / q_len;
      const int64_t most = fit < group ? fit : group;
      heads = static_cast<int32_t>(each < 1 ? 1 : each < most ? each : most);
      head_parts = (group + heads - 1) / heads;
    }
    count = shape.batch * kv_heads * head_parts * row_parts;
  }

  // Items that read the same keys.
  int64_t readers() const { return head_parts * row_parts; }

  // Neighbours share keys, and within a head the last rows come first: under a causal mask they have the most keys.
  Item at(int64_t n) const {
    const int64_t part = row_parts - 1 - n % row_parts, head_part = n / row_parts % head_parts;
    const int64_t key_head = n / row_parts / head_parts;
    const int32_t hk = static_cast<int32_t>(key_head % kv_heads), first = static_cast<int32_t>(head_part) * heads;
    Item item{};
    item.b = static_cast<int32_t>(key_head / kv_heads);
    item.hk = hk;
    item.h = hk * group + first;
    item.heads = first + heads <= group ? heads : group - first;
    item.i = static_cast<int32_t>(part) * tile_q;
    item.rows = item.i + tile_q <= q_len ? tile_q : q_len - item.i;
    return item;
  }
};

// Calls body(n) for every tile [n · tile, (n + 1) · tile) that meets the ranges, once each and in order.
template <class Body>
inline void each_tile(const Ranges& keys, int64_t tile, const Body& body) {
  int64_t next = 0;
  for (const Ranges::Range& range : keys)
    for (next = greatest(next, range.first / tile); next * tile < range.last; ++next) body(next);
}

// Calls body(item, thread) for every item in [0, items), in order, each thread taking the next when it is done with
// one; `thread` < pool.threads tells apart what runs at the same time. Which thread runs an item changes nothing in
// what it computes.
template <class Body>
inline void share(const Pool& pool, int64_t items, const Body& body) {
  struct Shared {
    const Body& body;
    int64_t items, next;
  } shared{body, items, 0};
  const auto run = [](int64_t begin, int64_t end, void* context) {
    Shared& all = *static_cast<Shared*>(context);
    for (int64_t thread = begin; thread < end; ++thread)
      for (;;) {
        const int64_t item = __atomic_fetch_add(&all.next, 1, __ATOMIC_RELAXED);
        if (item >= all.items) break;
        all.body(item, static_cast<int32_t>(thread));
      }
  };
  const int64_t threads = items < pool.threads ? items : pool.threads;
  if (threads > 1) {
    pool.parallel_for(0, threads, run, &shared);
  } else {
    run(0, threads, &shared);
  }
}

}  // namespace
}  // namespace fagen
