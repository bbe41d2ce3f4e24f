// Cuts text into chunks and looks up their ids. No rule of tokenising is here: what a character does, and the
// ids of a chunk, are asked of chunk_ids.py, which compiles and calls this, when they first occur.

#include <cstdint>
#include <cstring>

// One text and the table of known chunks, all in memory of the caller; `_Scan` in chunk_ids.py.
struct Scan {
  const uint8_t* text;   // UTF-8
  int32_t* ids;          // room for `size`: a chunk has at most as many ids as bytes
  int64_t* line_ends;    // number of ids before each line end
  const uint8_t* kinds;  // Kind of each code point
  uint32_t* slots;       // places of entries by hash, at most half of them taken; 0: free
  // Place 0: where the next entry goes; place 1: the number of entries. An entry is its number of bytes and
  // of ids (<< 8), its ids, its bytes.
  uint32_t* entries;
  int64_t size, num_slots, entries_size;  // num_slots: a power of 2
  int64_t start, stop;  // of the chunk that is looked up
  int64_t num_ids, num_lines, new_character;
};

namespace {

enum Kind : uint8_t { UNSEEN, PART, SPACE, ALONE, LINE_END };
enum Answer : int32_t { DONE, NEW_CHARACTER, NEW_CHUNK };
const int64_t LONGEST_CHUNK = 64;

inline uint32_t decode(const uint8_t* text, int* num_bytes) {
  const uint32_t first = text[0];
  *num_bytes = first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  if (first < 0x80) return first;
  uint32_t code_point = first & (0x7F >> *num_bytes);
  for (int i = 1; i < *num_bytes; ++i) code_point = code_point << 6 | (text[i] & 0x3F);
  return code_point;
}

// The slot that holds the current chunk, or the free one where it belongs.
inline uint32_t* find(const Scan& scan) {
  const uint8_t* chunk = scan.text + scan.start;
  const uint32_t size = scan.stop - scan.start;
  uint64_t hash = 0xCBF29CE484222325u;  // FNV-1a
  for (uint32_t i = 0; i < size; ++i) hash = (hash ^ chunk[i]) * 0x100000001B3u;
  for (hash ^= hash >> 32;; ++hash) {
    uint32_t* slot = scan.slots + (hash & (scan.num_slots - 1));
    const uint32_t* entry = scan.entries + *slot;
    if (!*slot || ((*entry & 0xFF) == size && !std::memcmp(entry + 1 + (*entry >> 8), chunk, size))) return slot;
  }
}

// Gives the current chunk the ids that the caller has written after the others.
void learn(const Scan& scan, int32_t num_ids) {
  const int64_t size = scan.stop - scan.start, entry_size = 1 + num_ids + (size + 3) / 4;
  uint32_t &next = scan.entries[0], &num_entries = scan.entries[1];
  if (next + entry_size > scan.entries_size || 2 * num_entries >= scan.num_slots) {
    std::memset(scan.slots, 0, scan.num_slots * sizeof *scan.slots);
    next = 2;
    num_entries = 0;
  }
  *find(scan) = next;
  uint32_t* entry = scan.entries + next;
  *entry = static_cast<uint32_t>(size | num_ids << 8);
  std::memcpy(entry + 1, scan.ids + scan.num_ids, num_ids * sizeof *scan.ids);
  std::memcpy(entry + 1 + num_ids, scan.text + scan.start, size);
  next += entry_size;
  ++num_entries;
}

}  // namespace

// Goes on until the text ends or something is new. num_new_ids: of the chunk that was new, else -1.
extern "C" int32_t scan_chunks(Scan* state, int32_t num_new_ids) {
  Scan& scan = *state;
  if (num_new_ids >= 0) {
    if (scan.stop - scan.start <= LONGEST_CHUNK) learn(scan, num_new_ids);
    scan.num_ids += num_new_ids;
    scan.start = scan.stop;
  }
  for (; scan.start < scan.size; scan.start = scan.stop) {
    int num_bytes = 0;
    uint8_t kind = PART;
    for (scan.stop = scan.start; scan.stop < scan.size; scan.stop += num_bytes) {
      scan.new_character = decode(scan.text + scan.stop, &num_bytes);
      kind = scan.kinds[scan.new_character];
      if (kind != PART) break;
    }
    if (kind == UNSEEN) return NEW_CHARACTER;
    if (scan.stop == scan.start) {
      scan.stop += num_bytes;
      if (kind == LINE_END) scan.line_ends[scan.num_lines++] = scan.num_ids;
      if (kind != ALONE) continue;
    }
    const uint32_t place = scan.stop - scan.start > LONGEST_CHUNK ? 0 : *find(scan);
    if (!place) return NEW_CHUNK;
    const uint32_t* entry = scan.entries + place;
    for (uint32_t i = 0; i < *entry >> 8; ++i) scan.ids[scan.num_ids + i] = static_cast<int32_t>(entry[1 + i]);
    scan.num_ids += *entry >> 8;
  }
  return DONE;
}
