// What is true of a whole tile: intervals of integers and of reals, three-valued truth, the pairs that linear
// conditions leave, and lists of index ranges. fagen/expr/bounds.py does the same in Python, step for step.
//
// Integers here cannot overflow: the compiler emits these steps only where 64 bits hold every value they can have.
#pragma once
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "fagen/function.h"

namespace fagen {
namespace {

constexpr double kLargestFloat = 3.4028234663852886e38;
constexpr double kUnbounded = __builtin_inf();

// Of the pairs of a tile: none, all, or it is not known (some).
enum class Tri { kNone, kAll, kSome };

FAGEN_CONSTEXPR Tri tri(bool condition) { return condition ? Tri::kAll : Tri::kNone; }
FAGEN_CONSTEXPR Tri decide(bool none, bool all) { return none ? Tri::kNone : all ? Tri::kAll : Tri::kSome; }
FAGEN_CONSTEXPR Tri operator!(Tri a) { return decide(a == Tri::kAll, a == Tri::kNone); }
FAGEN_CONSTEXPR Tri operator&(Tri a, Tri b) {
  return decide(a == Tri::kNone || b == Tri::kNone, a == Tri::kAll && b == Tri::kAll);
}
FAGEN_CONSTEXPR Tri operator|(Tri a, Tri b) { return !((!a) & (!b)); }

// ---- integers from lo to hi, both included; nothing where lo > hi ----

template <class A, class B>
FAGEN_CONSTEXPR std::common_type_t<A, B> least(A a, B b) {
  return a < b ? a : b;
}
template <class A, class B>
FAGEN_CONSTEXPR std::common_type_t<A, B> greatest(A a, B b) {
  return a > b ? a : b;
}

template <class Int>
struct SpanOf {
  // Beyond every position, and every sum and difference of two, and far from overflow.
  static constexpr Int kFar = Int{1} << (sizeof(Int) == 8 ? 60 : 30);

  Int lo, hi;

  FAGEN_CONSTEXPR SpanOf(Int first, Int last) : lo(first), hi(last) {}
  FAGEN_CONSTEXPR SpanOf(Int point) : lo(point), hi(point) {}
  static FAGEN_CONSTEXPR SpanOf nothing() { return {kFar, -kFar}; }

  FAGEN_CONSTEXPR bool empty() const { return lo > hi; }
  FAGEN_CONSTEXPR void at_least(Int x) { lo = greatest(lo, x); }
  FAGEN_CONSTEXPR void at_most(Int x) { hi = least(hi, x); }
};
using Span = SpanOf<int64_t>;
using Span32 = SpanOf<int32_t>;  // where the compiler knows that half as many bits hold every value, too

template <class Int>
FAGEN_CONSTEXPR SpanOf<Int> join(SpanOf<Int> a, SpanOf<Int> b) {
  return {least(a.lo, b.lo), greatest(a.hi, b.hi)};
}
template <class Int>
FAGEN_CONSTEXPR SpanOf<Int> operator+(SpanOf<Int> a, SpanOf<Int> b) {
  return {a.lo + b.lo, a.hi + b.hi};
}
template <class Int>
FAGEN_CONSTEXPR SpanOf<Int> operator-(SpanOf<Int> a, SpanOf<Int> b) {
  return {a.lo - b.hi, a.hi - b.lo};
}
template <class Int>
FAGEN_CONSTEXPR SpanOf<Int> operator-(SpanOf<Int> a) {
  return {-a.hi, -a.lo};
}
template <class Int>
FAGEN_CONSTEXPR SpanOf<Int> operator*(SpanOf<Int> a, SpanOf<Int> b) {
  const Int w = a.lo * b.lo, x = a.lo * b.hi, y = a.hi * b.lo, z = a.hi * b.hi;
  return {least(least(w, x), least(y, z)), greatest(greatest(w, x), greatest(y, z))};
}
template <class Int>
FAGEN_CONSTEXPR SpanOf<Int> lesser(SpanOf<Int> a, SpanOf<Int> b) {
  return {least(a.lo, b.lo), least(a.hi, b.hi)};
}
template <class Int>
FAGEN_CONSTEXPR SpanOf<Int> greater(SpanOf<Int> a, SpanOf<Int> b) {
  return {greatest(a.lo, b.lo), greatest(a.hi, b.hi)};
}
template <class Int>
FAGEN_CONSTEXPR SpanOf<Int> magnitude(SpanOf<Int> a) {
  return {a.lo > 0 ? a.lo : a.hi < 0 ? -a.hi : 0, greatest(-a.lo, a.hi)};
}
template <class Int>
FAGEN_CONSTEXPR SpanOf<Int> square(SpanOf<Int> a) {
  const SpanOf<Int> size = magnitude(a);
  return {size.lo * size.lo, size.hi * size.hi};
}

// a // b for b != 0, rounded down or up
template <class A, class B>
FAGEN_CONSTEXPR std::common_type_t<A, B> floor_quotient(A a, B b) {
  const auto quotient = a / b;
  return quotient - (quotient * b != a && (a < 0) != (b < 0));
}
template <class A, class B>
FAGEN_CONSTEXPR std::common_type_t<A, B> ceil_quotient(A a, B b) {
  const auto quotient = a / b;
  return quotient + (quotient * b != a && (a < 0) == (b < 0));
}

template <class Int>
FAGEN_CONSTEXPR SpanOf<Int> quotient_one_sign(SpanOf<Int> a, SpanOf<Int> b) {  // b does not hold 0
  const Int w = floor_quotient(a.lo, b.lo), x = floor_quotient(a.lo, b.hi);
  const Int y = floor_quotient(a.hi, b.lo), z = floor_quotient(a.hi, b.hi);
  return {least(least(w, x), least(y, z)), greatest(greatest(w, x), greatest(y, z))};
}
template <class Int>
FAGEN_CONSTEXPR SpanOf<Int> quotient(SpanOf<Int> a, SpanOf<Int> b) {
  if (b.lo > 0 || b.hi < 0) return quotient_one_sign(a, b);
  SpanOf<Int> found{0};  // by a divisor of 0
  if (b.hi > 0) found = join(found, quotient_one_sign(a, {1, b.hi}));
  if (b.lo < 0) found = join(found, quotient_one_sign(a, {b.lo, -1}));
  return found;
}
template <class Int>
FAGEN_CONSTEXPR SpanOf<Int> remainder(SpanOf<Int> a, SpanOf<Int> b) {
  if (b.lo == b.hi && b.lo != 0) {
    const Int divisor = b.lo, below = floor_quotient(a.lo, divisor);
    if (below == floor_quotient(a.hi, divisor)) return {a.lo - below * divisor, a.hi - below * divisor};
  }
  if (a.lo >= 0 && b.lo > 0) return {0, least(a.hi, b.hi - 1)};
  return {least(b.lo + 1, 0), greatest(b.hi - 1, 0)};
}

template <class Int>
FAGEN_CONSTEXPR SpanOf<Int> choose(Tri condition, SpanOf<Int> yes, SpanOf<Int> no) {
  return condition == Tri::kAll ? yes : condition == Tri::kNone ? no : join(yes, no);
}
FAGEN_CONSTEXPR Tri choose(Tri condition, Tri yes, Tri no) { return (condition & yes) | ((!condition) & no); }

template <class Int>
FAGEN_CONSTEXPR Tri less(SpanOf<Int> a, SpanOf<Int> b) {
  return decide(a.lo >= b.hi, a.hi < b.lo);
}
template <class Int>
FAGEN_CONSTEXPR Tri less_equal(SpanOf<Int> a, SpanOf<Int> b) {
  return decide(a.lo > b.hi, a.hi <= b.lo);
}
template <class Int>
FAGEN_CONSTEXPR Tri equal(SpanOf<Int> a, SpanOf<Int> b) {
  return decide(a.lo > b.hi || a.hi < b.lo, a.lo == a.hi && b.lo == b.hi && a.lo == b.lo);
}
template <class Int>
FAGEN_CONSTEXPR Tri is_true(SpanOf<Int> a) {  // of truth values as 0 and 1
  return decide(a.hi == 0, a.lo == 1);
}
FAGEN_CONSTEXPR Tri same(Tri a, Tri b) { return (a & b) | ((!a) & (!b)); }

// ---- the integers that parts of arrays hold ----

constexpr int kTurns = 16;  // in which integers of two parts are compared; as in regions.py

// Whether one integer may be in both parts, and within `allowed`. `next(lanes, x)` of a part moves x up to the least of its
// integers that is at least x; false if there is none. In turns that finds whatever they share; after many they may.
template <class Lanes, class A, class B>
FAGEN_FUNCTION bool may_share(Lanes lanes, const A& a, const B& b, Span allowed = {INT64_MIN, INT64_MAX}) {
  int64_t x = allowed.lo;
  for (int turn = 0; turn < kTurns; ++turn) {
    const bool in_a = a.next(lanes, x);
    if (!(lanes = lanes.where(in_a && x <= allowed.hi))) return false;
    const int64_t found = x;
    const bool in_b = b.next(lanes, x);
    if (!(lanes = lanes.where(in_b && x <= allowed.hi))) return false;
    if (!(lanes = lanes.where(x != found))) return true;
  }
  return true;
}

// ---- reals: what float32 arithmetic can give, rounded outward; `nan` where NaN is among it ----

struct Reals {
  double lo, hi;
  bool nan;
};

// A result of float32 arithmetic, whatever its rounding (a fused multiply-add skips one) and a function's last bits.
FAGEN_FUNCTION Reals rounded(double lo, double hi, bool nan) {
  if (lo != lo || hi != hi) return {-kUnbounded, kUnbounded, true};
  if (lo > kLargestFloat) lo = kLargestFloat;  // where float32 overflows it may also round down to this
  if (hi < -kLargestFloat) hi = -kLargestFloat;
  lo -= std::fabs(lo) * 0x1p-21 + 0x1p-148;
  hi += std::fabs(hi) * 0x1p-21 + 0x1p-148;
  return {lo < -kLargestFloat ? -kUnbounded : lo, hi > kLargestFloat ? kUnbounded : hi, nan};
}

FAGEN_FUNCTION Reals reals(double point) { return {point, point, false}; }
FAGEN_FUNCTION Reals reals(Span a) { return rounded(static_cast<double>(a.lo), static_cast<double>(a.hi), false); }
FAGEN_FUNCTION Reals unknown_real() { return {-kUnbounded, kUnbounded, true}; }

FAGEN_FUNCTION double low_of(double a, double b) { return a < b ? a : b; }
FAGEN_FUNCTION double high_of(double a, double b) { return a > b ? a : b; }
FAGEN_FUNCTION bool holds_zero(Reals a) { return a.lo <= 0 && a.hi >= 0; }
FAGEN_FUNCTION bool holds_infinity(Reals a) { return a.lo == -kUnbounded || a.hi == kUnbounded; }

FAGEN_FUNCTION Reals join(Reals a, Reals b) { return {low_of(a.lo, b.lo), high_of(a.hi, b.hi), a.nan || b.nan}; }
FAGEN_FUNCTION Reals operator-(Reals a) { return {-a.hi, -a.lo, a.nan}; }
FAGEN_FUNCTION Reals operator+(Reals a, Reals b) {
  const bool opposite = (a.hi == kUnbounded && b.lo == -kUnbounded) || (a.lo == -kUnbounded && b.hi == kUnbounded);
  return opposite ? unknown_real() : rounded(a.lo + b.lo, a.hi + b.hi, a.nan || b.nan);
}
FAGEN_FUNCTION Reals operator-(Reals a, Reals b) { return a + -b; }
FAGEN_FUNCTION Reals operator*(Reals a, Reals b) {
  if ((holds_zero(a) && holds_infinity(b)) || (holds_infinity(a) && holds_zero(b))) return unknown_real();
  const double w = a.lo * b.lo, x = a.lo * b.hi, y = a.hi * b.lo, z = a.hi * b.hi;
  return rounded(low_of(low_of(w, x), low_of(y, z)), high_of(high_of(w, x), high_of(y, z)), a.nan || b.nan);
}
FAGEN_FUNCTION Reals operator/(Reals a, Reals b) {
  if (holds_zero(b) || (holds_infinity(a) && holds_infinity(b))) return unknown_real();
  const double w = a.lo / b.lo, x = a.lo / b.hi, y = a.hi / b.lo, z = a.hi / b.hi;
  return rounded(low_of(low_of(w, x), low_of(y, z)), high_of(high_of(w, x), high_of(y, z)), a.nan || b.nan);
}
FAGEN_FUNCTION Reals square(Reals a) {
  const double low = a.lo > 0 ? a.lo : a.hi < 0 ? -a.hi : 0, high = high_of(-a.lo, a.hi);
  return rounded(low * low, high * high, a.nan);
}
FAGEN_FUNCTION Reals lesser(Reals a, Reals b) { return {low_of(a.lo, b.lo), low_of(a.hi, b.hi), a.nan || b.nan}; }
FAGEN_FUNCTION Reals greater(Reals a, Reals b) { return {high_of(a.lo, b.lo), high_of(a.hi, b.hi), a.nan || b.nan}; }
FAGEN_FUNCTION Reals magnitude(Reals a) {
  return {a.lo > 0 ? a.lo : a.hi < 0 ? -a.hi : 0.0, high_of(-a.lo, a.hi), a.nan};
}
FAGEN_FUNCTION Reals whole_below(Reals a) { return {std::floor(a.lo), std::floor(a.hi), a.nan}; }
FAGEN_FUNCTION Reals quotient(Reals a, Reals b) {
  const Reals exact = a / b;
  return holds_infinity(exact) ? unknown_real() : rounded(std::floor(exact.lo), std::floor(exact.hi), exact.nan);
}
FAGEN_FUNCTION Reals remainder(Reals a, Reals b) {
  if (holds_zero(b) || holds_infinity(a) || holds_infinity(b)) return unknown_real();
  return {low_of(b.lo, 0.0), high_of(b.hi, 0.0), a.nan || b.nan};
}
FAGEN_FUNCTION Reals power(Reals a, Reals b) {
  if (a.lo <= 0 || holds_infinity(a) || holds_infinity(b)) return unknown_real();
  const double w = std::pow(a.lo, b.lo), x = std::pow(a.lo, b.hi), y = std::pow(a.hi, b.lo), z = std::pow(a.hi, b.hi);
  return rounded(low_of(low_of(w, x), low_of(y, z)), high_of(high_of(w, x), high_of(y, z)), a.nan || b.nan);
}
FAGEN_FUNCTION Reals exp(Reals a) { return rounded(std::exp(a.lo), std::exp(a.hi), a.nan); }
FAGEN_FUNCTION Reals exp2(Reals a) { return rounded(std::exp2(a.lo), std::exp2(a.hi), a.nan); }
FAGEN_FUNCTION Reals log(Reals a) {
  if (a.lo <= 0) return {-kUnbounded, a.hi <= 0 ? -kUnbounded : rounded(0, std::log(a.hi), true).hi, true};
  return rounded(std::log(a.lo), std::log(a.hi), a.nan);
}
FAGEN_FUNCTION Reals log2(Reals a) {
  if (a.lo <= 0) return {-kUnbounded, a.hi <= 0 ? -kUnbounded : rounded(0, std::log2(a.hi), true).hi, true};
  return rounded(std::log2(a.lo), std::log2(a.hi), a.nan);
}
FAGEN_FUNCTION Reals sqrt(Reals a) {
  const double low = high_of(a.lo, 0.0), high = high_of(a.hi, 0.0);
  return rounded(std::sqrt(low), std::sqrt(high), a.nan || a.lo < 0);
}
FAGEN_FUNCTION Reals tanh(Reals a) { return rounded(std::tanh(a.lo), std::tanh(a.hi), a.nan); }
FAGEN_FUNCTION Reals sigmoid(Reals a) { return rounded(1 / (1 + std::exp(-a.lo)), 1 / (1 + std::exp(-a.hi)), a.nan); }
FAGEN_FUNCTION double softplus_of(double x) { return high_of(x, 0.0) + std::log1p(std::exp(-std::fabs(x))); }
FAGEN_FUNCTION Reals softplus(Reals a) { return rounded(softplus_of(a.lo), softplus_of(a.hi), a.nan); }
FAGEN_FUNCTION Reals wave(Reals a) { return {-1.0, 1.0, a.nan || holds_infinity(a)}; }  // sin or cos

FAGEN_FUNCTION Reals choose(Tri condition, Reals yes, Reals no) {
  return condition == Tri::kAll ? yes : condition == Tri::kNone ? no : join(yes, no);
}
// A comparison with NaN is false.
FAGEN_FUNCTION Tri less(Reals a, Reals b) { return decide(a.lo >= b.hi, a.hi < b.lo && !a.nan && !b.nan); }
FAGEN_FUNCTION Tri less_equal(Reals a, Reals b) { return decide(a.lo > b.hi, a.hi <= b.lo && !a.nan && !b.nan); }
FAGEN_FUNCTION Tri equal(Reals a, Reals b) {
  const bool points = a.lo == a.hi && b.lo == b.hi && a.lo == b.lo;
  return decide(a.lo > b.hi || a.hi < b.lo, points && !a.nan && !b.nan);
}

// ---- the pairs of a tile that a conjunction of linear conditions leaves ----

// of_q · q + of_kv · kv + constant >= 0
template <class Int>
struct HalfPlaneOf {
  Int of_q, of_kv, constant;
};

using HalfPlane = HalfPlaneOf<int64_t>;

template <class Int>
struct PairsOf {
  static constexpr Int kFar = SpanOf<Int>::kFar;

  SpanOf<Int> q, kv;                     // the tile; narrow() shrinks it around the pairs that are left
  SpanOf<Int> difference{-kFar, kFar};   // of q - kv
  SpanOf<Int> sum{-kFar, kFar};          // of q + kv

  FAGEN_CONSTEXPR PairsOf(SpanOf<Int> rows, SpanOf<Int> keys) : q(rows), kv(keys) {}

  // Whether a pair is left. Exact: a pair of integers, not of reals.
  FAGEN_CONSTEXPR bool narrow() { return narrow(nullptr, 0); }

  template <int count>
  FAGEN_CONSTEXPR bool narrow(const HalfPlaneOf<Int> (&planes)[count]) {
    return narrow(planes, count);
  }

  FAGEN_CONSTEXPR bool narrow(const HalfPlaneOf<Int>* planes, int count) {
    // Differences alone, or sums alone, have a closed form: each end of a strip that cuts the tile is met by a pair.
    SpanOf<Int> rows = q, keys = kv;
    if (difference.lo > -kFar) rows.at_least(kv.lo + difference.lo), keys.at_most(q.hi - difference.lo);
    if (difference.hi < kFar) rows.at_most(kv.hi + difference.hi), keys.at_least(q.lo - difference.hi);
    if (sum.lo > -kFar) rows.at_least(sum.lo - kv.hi), keys.at_least(sum.lo - q.hi);
    if (sum.hi < kFar) rows.at_most(sum.hi - kv.lo), keys.at_most(sum.hi - q.lo);
    const bool by_difference = difference.lo > -kFar || difference.hi < kFar;
    const bool by_sum = sum.lo > -kFar || sum.hi < kFar;
    if (q.empty() || kv.empty() || difference.empty() || sum.empty() || rows.empty() || keys.empty()) return false;
    if (count == 0 && !(by_difference && by_sum)) {
      q = rows;
      kv = keys;
      return true;
    }
    // Otherwise row by row.
    SpanOf<Int> q_left = SpanOf<Int>::nothing(), kv_left = SpanOf<Int>::nothing();
    for (Int row = rows.lo; row <= rows.hi; ++row) {
      SpanOf<Int> left{greatest(keys.lo, greatest(row - difference.hi, sum.lo - row)),
                       least(keys.hi, least(row - difference.lo, sum.hi - row))};
      for (int n = 0; n < count; ++n) {
        const Int rest = planes[n].of_q * row + planes[n].constant;
        if (planes[n].of_kv > 0) left.at_least(ceil_quotient(-rest, planes[n].of_kv));
        if (planes[n].of_kv < 0) left.at_most(floor_quotient(rest, -planes[n].of_kv));
        if (planes[n].of_kv == 0 && rest < 0) left = SpanOf<Int>::nothing();
      }
      if (left.empty()) continue;
      q_left = join(q_left, SpanOf<Int>{row});
      kv_left = join(kv_left, left);
    }
    q = q_left;
    kv = kv_left;
    return !q.empty();
  }
};
using Pairs = PairsOf<int64_t>;
using Pairs32 = PairsOf<int32_t>;

// ---- sorted, disjoint ranges of indexes, half-open; when there are too many, the closest two become one ----

struct Ranges {
  static constexpr int kCapacity = 8;

  struct Range {
    int64_t first, last;  // last is not in it
  };

  int count = 0;
  Range range[kCapacity] = {};

  FAGEN_CONSTEXPR const Range* begin() const { return range; }
  FAGEN_CONSTEXPR const Range* end() const { return range + count; }

  static FAGEN_CONSTEXPR Ranges nothing() { return Ranges{}; }
  static FAGEN_CONSTEXPR Ranges between(int64_t first, int64_t last) {
    Ranges only;
    if (first < last) only.append({first, last});
    return only;
  }

  // Adds a range that starts no earlier than those already here.
  FAGEN_CONSTEXPR void append(Range next) {
    if (count > 0 && next.first <= range[count - 1].last) {
      range[count - 1].last = greatest(range[count - 1].last, next.last);
      return;
    }
    if (count == kCapacity) {
      int closest = 0;  // the gap after range[closest]; that before `next` comes last
      int64_t narrowest = Span::kFar;
      for (int n = 0; n < count; ++n) {
        const int64_t gap = (n + 1 < count ? range[n + 1].first : next.first) - range[n].last;
        if (gap < narrowest) {
          narrowest = gap;
          closest = n;
        }
      }
      if (closest == count - 1) {
        range[count - 1].last = next.last;
        return;
      }
      range[closest].last = range[closest + 1].last;
      for (int n = closest + 1; n + 1 < count; ++n) range[n] = range[n + 1];
      --count;
    }
    range[count++] = next;
  }
};

FAGEN_CONSTEXPR Ranges between(int64_t first, int64_t last) { return Ranges::between(first, last); }

FAGEN_CONSTEXPR Ranges shifted(const Ranges& a, int64_t by) {
  Ranges moved = a;
  for (int n = 0; n < moved.count; ++n) {
    moved.range[n].first += by;
    moved.range[n].last += by;
  }
  return moved;
}

FAGEN_CONSTEXPR Ranges unite(const Ranges& a, const Ranges& b) {
  Ranges both;
  int from_a = 0, from_b = 0;
  while (from_a < a.count || from_b < b.count) {
    const bool take_a = from_b == b.count || (from_a < a.count && a.range[from_a].first <= b.range[from_b].first);
    both.append(take_a ? a.range[from_a++] : b.range[from_b++]);
  }
  return both;
}

FAGEN_CONSTEXPR Ranges intersect(const Ranges& a, const Ranges& b) {
  Ranges both;
  int from_a = 0, from_b = 0;
  while (from_a < a.count && from_b < b.count) {
    const Ranges::Range x = a.range[from_a], y = b.range[from_b];
    const int64_t first = greatest(x.first, y.first), last = least(x.last, y.last);
    if (first < last) both.append({first, last});
    if (x.last < y.last) {
      ++from_a;
    } else {
      ++from_b;
    }
  }
  return both;
}

}  // namespace
}  // namespace fagen
