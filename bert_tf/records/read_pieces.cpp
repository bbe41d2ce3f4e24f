// Reads thousands of small pieces of files.

#include <unistd.h>

#include <cstdint>

// `sizes[i]` bytes of the open file `files[i]` from `offsets[i]` on, one piece after the other, to `to`. Stops before the
// first piece that does not come whole; returns how many came.
extern "C" int64_t read_pieces(
    const int32_t* files, const int64_t* offsets, const int64_t* sizes, uint8_t* to, int64_t num_pieces) {
  for (int64_t i = 0; i < num_pieces; to += sizes[i++]) {
    if (pread(files[i], to, sizes[i], offsets[i]) != sizes[i]) return i;
  }
  return num_pieces;
}
