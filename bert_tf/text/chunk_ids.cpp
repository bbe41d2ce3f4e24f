// Cuts text into chunks and looks up their ids. What a character does is asked of the caller, chunk_ids.py, when the
// character first occurs; so are the ids of a new chunk, unless it is a single word of ASCII.

#include <cstdint>
#include <cstring>

// Ids by bytes, in memory of the caller; `_Table` in chunk_ids.py.
struct Table {
  uint32_t* slots;  // places of entries by hash, at most half of them taken; 0: free
  // Place 0: where the next entry goes; place 1: the number of entries. An entry is its number of bytes and
  // of ids (<< 8), its ids, its bytes.
  uint32_t* entries;
  int64_t num_slots, entries_size;  // num_slots: a power of 2
};

// One text and what is known; `_Scan` in chunk_ids.py.
struct Scan {
  const uint8_t* text;   // UTF-8
  int32_t* ids;          // room for `size`: a chunk has at most as many ids as bytes
  int64_t* line_ends;    // number of ids before each line end
  const uint8_t* kinds;  // Kind of each code point
  const uint8_t* word_bytes;  // [256] of words of ASCII, in lower case where the vocabulary is; 0 for others
  const Table *pieces, *chunks;  // the vocabulary; chunks that have occurred
  int64_t unknown, size;
  int64_t start, stop;  // of the chunk that is looked up
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

// Writes the ids of the current chunk after the others, if it is a word of ASCII: the longest pieces from left to right.
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
    if (piece < first) std::memcpy(room + (piece - room), "##", 2);  // what stood there is matched
    uint32_t place = 0;
    for (last = end; last > first && !(place = *find(*scan.pieces, piece, last - piece));) --last;
    if (!place) {
      *ids = static_cast<int32_t>(scan.unknown);
      return 1;
    }
    ids[num_ids++] = static_cast<int32_t>(scan.pieces->entries[place + 1]);
    if (last == end) return num_ids;
  }
}

// Remembers the ids of the current chunk, which stand after the others.
void keep(Scan& scan, int32_t num_ids) {
  const int64_t size = scan.stop - scan.start;
  if (size <= LONGEST_CHUNK) learn(*scan.chunks, scan.text + scan.start, size, scan.ids + scan.num_ids, num_ids);
  scan.num_ids += num_ids;
}

}  // namespace

// Entries of one id each: `ids[i]` for the bytes up to `ends[i]`.
extern "C" void learn_pieces(const Table* table, const uint8_t* bytes, const int64_t* ends, const int32_t* ids, int32_t n) {
  int64_t begin = 0;
  for (int32_t i = 0; i < n; begin = ends[i++]) learn(*table, bytes + begin, ends[i] - begin, ids + i, 1);
}

// Goes on until the text ends or something is new. num_new_ids: of the chunk that was new, else -1.
extern "C" int32_t scan_chunks(Scan* state, int32_t num_new_ids) {
  Scan& scan = *state;
  if (num_new_ids >= 0) {
    keep(scan, num_new_ids);
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
    const uint32_t place = *find(*scan.chunks, scan.text + scan.start, size);
    if (!place) {
      const int32_t num_ids = match_pieces(scan, size);
      if (num_ids == NOT_A_WORD) return NEW_CHUNK;
      keep(scan, num_ids);
      continue;
    }
    const uint32_t* entry = scan.chunks->entries + place;
    for (uint32_t i = 0; i < *entry >> 8; ++i) scan.ids[scan.num_ids + i] = static_cast<int32_t>(entry[1 + i]);
    scan.num_ids += *entry >> 8;
  }
  return DONE;
}
