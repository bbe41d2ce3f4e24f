// Cuts text into chunks and looks up their ids. When a character first occurs, the caller (chunk_ids.py) is asked for
// its kind; when a chunk first occurs, for its ids, unless it is a single word of ASCII.

#include <cstdint>
#include <cstring>

// A hash table from bytes to ids, in the caller's memory; `_Table` in chunk_ids.py.
struct Table {
  uint32_t* slots;  // by hash, the index of an entry in `entries`; 0: free. At most half are taken
  // entries[0]: the index of the next entry; entries[1]: the number of entries. An entry is its number of bytes + its
  // number of ids << 8, then its ids, then its bytes.
  uint32_t* entries;
  int64_t num_slots, entries_size;  // num_slots: a power of 2
};

// The state of scanning one text; `_Scan` in chunk_ids.py.
struct Scan {
  const uint8_t* text;   // UTF-8
  int32_t* ids;          // room for `size`: a chunk has at most as many ids as bytes
  int64_t* line_ends;    // number of ids before each line end
  const uint8_t* kinds;  // Kind of each code point
  const uint8_t* word_bytes;  // [256]: a byte of an ASCII word, in lower case if the vocabulary is; 0: no such byte
  const Table *pieces, *chunks;  // the vocabulary; the chunks so far
  int64_t unknown, size;
  int64_t start, stop;  // the current chunk
  int64_t num_ids, num_lines, new_character;
};

namespace {

enum Kind : uint8_t { UNSEEN, PART, SPACE, ALONE, LINE_END };
enum Answer : int32_t { DONE, NEW_CHARACTER, NEW_CHUNK };
const int64_t LONGEST_CHUNK = 64;
const int32_t NOT_A_WORD = -1;

inline uint32_t decode(const uint8_t* text, int* num_bytes) {
  const uint32_t first = text[0];
  *num_bytes = first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  if (first < 0x80) return first;
  uint32_t code_point = first & (0x7F >> *num_bytes);
  for (int i = 1; i < *num_bytes; ++i) code_point = code_point << 6 | (text[i] & 0x3F);
  return code_point;
}

// The slot that holds these bytes, or the free one where they belong.
inline uint32_t* find(const Table& table, const uint8_t* bytes, uint32_t size) {
  uint64_t hash = 0xCBF29CE484222325u;  // FNV-1a
  for (uint32_t i = 0; i < size; ++i) hash = (hash ^ bytes[i]) * 0x100000001B3u;
  for (hash ^= hash >> 32;; ++hash) {
    uint32_t* slot = table.slots + (hash & (table.num_slots - 1));
    const uint32_t* entry = table.entries + *slot;
    if (!*slot || ((*entry & 0xFF) == size && !std::memcmp(entry + 1 + (*entry >> 8), bytes, size))) return slot;
  }
}

void learn(const Table& table, const uint8_t* bytes, int64_t size, const int32_t* ids, int64_t num_ids) {
  const int64_t entry_size = 1 + num_ids + (size + 3) / 4;
  uint32_t &next = table.entries[0], &num_entries = table.entries[1];
  if (next + entry_size > table.entries_size || 2 * num_entries >= table.num_slots) {
    std::memset(table.slots, 0, table.num_slots * sizeof *table.slots);
    next = 2;
    num_entries = 0;
  }
  *find(table, bytes, size) = next;
  uint32_t* entry = table.entries + next;
  *entry = static_cast<uint32_t>(size | num_ids << 8);
  std::memcpy(entry + 1, ids, num_ids * sizeof *ids);
  std::memcpy(entry + 1 + num_ids, bytes, size);
  next += entry_size;
  ++num_entries;
}

// If the current chunk is a word of ASCII, appends its ids: those of the longest pieces from left to right.
// Returns their number, or NOT_A_WORD.
int32_t match_pieces(const Scan& scan, int64_t size) {
  uint8_t room[2 + LONGEST_CHUNK], *const word = room + 2;
  for (int64_t i = 0; i < size; ++i) {
    word[i] = scan.word_bytes[scan.text[scan.start + i]];
    if (!word[i]) return NOT_A_WORD;
  }
  int32_t* ids = scan.ids + scan.num_ids;
  int32_t num_ids = 0;
  for (const uint8_t *first = word, *last, *const end = word + size;; first = last) {
    const uint8_t* piece = first == word ? first : first - 2;
    if (piece < first) std::memcpy(room + (piece - room), "##", 2);  // overwrites two bytes that are matched already
    uint32_t entry = 0;
    for (last = end; last > first && !(entry = *find(*scan.pieces, piece, last - piece));) --last;
    if (!entry) {
      *ids = static_cast<int32_t>(scan.unknown);
      return 1;
    }
    ids[num_ids++] = static_cast<int32_t>(scan.pieces->entries[entry + 1]);
    if (last == end) return num_ids;
  }
}

// Accepts the current chunk's ids, which lie behind those so far, and remembers them for its next occurrence.
void accept(Scan& scan, int32_t num_ids) {
  const int64_t size = scan.stop - scan.start;
  if (size <= LONGEST_CHUNK) learn(*scan.chunks, scan.text + scan.start, size, scan.ids + scan.num_ids, num_ids);
  scan.num_ids += num_ids;
}

}  // namespace

// Adds n pieces: `ids[i]` is the id of the bytes from `ends[i - 1]` to `ends[i]`.
extern "C" void learn_pieces(const Table* table, const uint8_t* bytes, const int64_t* ends, const int32_t* ids, int32_t n) {
  int64_t begin = 0;
  for (int32_t i = 0; i < n; begin = ends[i++]) learn(*table, bytes + begin, ends[i] - begin, ids + i, 1);
}

// Scans until the text ends, or the caller must be asked. num_new_ids: if the caller has just written the ids of a new
// chunk, their number, else -1.
extern "C" int32_t scan_chunks(Scan* state, int32_t num_new_ids) {
  Scan& scan = *state;
  if (num_new_ids >= 0) {
    accept(scan, num_new_ids);
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
    const int64_t size = scan.stop - scan.start;
    if (size > LONGEST_CHUNK) return NEW_CHUNK;
    const uint32_t index = *find(*scan.chunks, scan.text + scan.start, size);
    if (!index) {
      const int32_t num_ids = match_pieces(scan, size);
      if (num_ids == NOT_A_WORD) return NEW_CHUNK;
      accept(scan, num_ids);
      continue;
    }
    const uint32_t* entry = scan.chunks->entries + index;
    for (uint32_t i = 0; i < *entry >> 8; ++i) scan.ids[scan.num_ids + i] = static_cast<int32_t>(entry[1 + i]);
    scan.num_ids += *entry >> 8;
  }
  return DONE;
}
