// Fills rows [CLS] A [SEP] B [SEP] with tokens and masks single tokens in them, as records/assembly.py and masking.py
// do. How many tokens are masked, and all random bits, come from there.

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

// N rows of S places, P of them predicted at most; `_Rows` in masked_rows.py.
struct Rows {
  const void* tokens;                             // uint16, or int32 where is_wide
  const int64_t *a_start, *a_end, *b_start, *b_end;  // [N], in `tokens`
  const int64_t* num_masked;                      // [N], at most P and at most the tokens of A and B
  const uint32_t* bits;                           // [N, 3 P]: which tokens, what happens to them, by what replaced
  const int32_t* replacements;
  int32_t *input_ids, *input_mask, *segment_ids;  // [N, S]
  int32_t *positions, *originals;                 // [N, P]
  float* weights;                                 // [N, P]
  int64_t num_rows, length, num_predictions, bits_stride, num_replacements, is_wide;
  int64_t pad, cls, sep, mask;
  uint64_t mask_below, keep_below;
};

namespace {

// Uniform in [0, limit).
inline int64_t below(int64_t limit, uint32_t bits) { return static_cast<int64_t>(bits) * limit >> 32; }

template <typename Id>
void join(const Rows& rows, int64_t row, int32_t* ids) {
  const Id* tokens = static_cast<const Id*>(rows.tokens);
  int32_t* const end = ids + rows.length;
  *ids++ = rows.cls;
  ids = std::copy(tokens + rows.a_start[row], tokens + rows.a_end[row], ids);
  *ids++ = rows.sep;
  ids = std::copy(tokens + rows.b_start[row], tokens + rows.b_end[row], ids);
  *ids++ = rows.sep;
  std::fill(ids, end, rows.pad);
}

// 1 from `begin` to `end`, 0 in the other places.
void mark(int32_t* places, int64_t begin, int64_t end, int64_t length) {
  std::fill(places, places + begin, 0);
  std::fill(places + begin, places + end, 1);
  std::fill(places + end, places + length, 0);
}

class Masks {
 public:
  explicit Masks(const Rows& rows) : rows_(rows), order_(rows.length), is_chosen_(rows.length / 64 + 1) {}

  // `num_tokens` of A and B stand in `ids`; [SEP] follows the first `a_size`.
  void draw(int64_t row, int64_t a_size, int64_t num_tokens, int32_t* ids) {
    const uint32_t* bits = rows_.bits + row * rows_.bits_stride;
    const int64_t num = rows_.num_masked[row], most = rows_.num_predictions;
    choose(num, num_tokens, bits);
    const uint32_t *fates = bits + most, *draws = fates + most;
    int32_t* positions = rows_.positions + row * most;
    int32_t* originals = rows_.originals + row * most;
    float* weights = rows_.weights + row * most;
    int64_t slot = 0;
    for (size_t word = 0; slot < num; ++word) {
      for (; is_chosen_[word]; is_chosen_[word] &= is_chosen_[word] - 1, ++slot) {
        const int64_t token = 64 * word + __builtin_ctzll(is_chosen_[word]);
        const int64_t position = token + 1 + (token >= a_size);
        positions[slot] = position;
        originals[slot] = ids[position];
        if (fates[slot] < rows_.mask_below) {
          ids[position] = rows_.mask;
        } else if (fates[slot] >= rows_.keep_below) {
          ids[position] = rows_.replacements[below(rows_.num_replacements, draws[slot])];
        }
      }
    }
    std::fill(positions + num, positions + most, 0);
    std::fill(originals + num, originals + most, 0);
    std::fill(weights, weights + num, 1.0f);
    std::fill(weights + num, weights + most, 0.0f);
  }

 private:
  // The first steps of a Fisher-Yates shuffle.
  void choose(int64_t num, int64_t num_tokens, const uint32_t* bits) {
    std::iota(order_.begin(), order_.begin() + num_tokens, 0);
    for (int64_t step = 0; step < num; ++step) {
      std::swap(order_[step], order_[step + below(num_tokens - step, bits[step])]);
      is_chosen_[order_[step] / 64] |= uint64_t{1} << order_[step] % 64;
    }
  }

  const Rows& rows_;
  std::vector<int32_t> order_;
  std::vector<uint64_t> is_chosen_;  // a bit for each token; all 0 between rows
};

}  // namespace

extern "C" void fill_rows(const Rows* all) {
  const Rows& rows = *all;
  Masks masks(rows);
  for (int64_t row = 0; row < rows.num_rows; ++row) {
    const int64_t a_size = rows.a_end[row] - rows.a_start[row], b_size = rows.b_end[row] - rows.b_start[row];
    const int64_t first = row * rows.length, size = a_size + b_size + 3;
    int32_t* ids = rows.input_ids + first;
    rows.is_wide ? join<int32_t>(rows, row, ids) : join<uint16_t>(rows, row, ids);
    mark(rows.input_mask + first, 0, size, rows.length);
    mark(rows.segment_ids + first, a_size + 2, size, rows.length);
    masks.draw(row, a_size, a_size + b_size, ids);
  }
}
