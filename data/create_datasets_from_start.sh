#!/usr/bin/env bash
# Runs the stages of bertPrep.py in order, from the raw text to the data of both phases.
#
#   bash data/create_datasets_from_start.sh [wiki_only|wiki_books|sample|pubmed_baseline|wikicorpus_<code>]
#
# All files are below BERT_PREP_WORKING_DIR (default: this folder). Run again, it continues where it
# stopped. If there are no books, wiki_books continues with Wikipedia alone.
#
#   VOCAB_FILE    vocabulary; default: Google's uncased one, downloaded with its weights if it is missing
#   VOCAB_SIZE    make a vocabulary of this size from the text instead; default for sample: 4000, for the Wikipedia of
#                 another language (wikicorpus_de): 30522
#   DO_LOWER_CASE  0 for a cased vocabulary that does not say so itself, such as Google's
#   N_PROCESSES   worker processes; default: all cores
#   DASK_SCHEDULER  address or file of a Dask scheduler, whose workers are used instead
#   SHARDS        further arguments of the sharding, such as "--n_training_shards 64 --n_test_shards 8"
#   DATA_FORMAT   records (default): TFRecords of both lengths, as in the published recipe; tokens: token files, which
#                 take a thirtieth of the disk space (docs/preparing_data.md)
#   DUPE_FACTOR   passes over the text, each with its own pairs; default 5
if [ -z "${BASH_VERSION:-}" ] || shopt -oq posix; then exec env -u POSIXLY_CORRECT -u SHELLOPTS bash "$0" "$@"; fi # by sh
set -euo pipefail

here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd -P)
export BERT_PREP_WORKING_DIR="${BERT_PREP_WORKING_DIR:-$here}"

fail() {
  echo "error: $*" >&2
  exit 2
}
if [[ "${1:-}" == -h || "${1:-}" == --help ]]; then
  sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
  exit 0
fi
prep() {
  local casing=${DO_LOWER_CASE:-}
  [[ "$1" == create_* ]] || casing=""
  bash "$here/../scripts/python.sh" "$here/bertPrep.py" --action "$1" --dataset "$2" ${casing:+--do_lower_case "$casing"} \
    ${N_PROCESSES:+--n_processes "$N_PROCESSES"} ${DASK_SCHEDULER:+--dask_scheduler "$DASK_SCHEDULER"} "${@:3}"
}

data_format=${DATA_FORMAT:-records}
[[ "$data_format" == records || "$data_format" == tokens ]] || fail "DATA_FORMAT=$data_format: must be records or tokens"
(($# <= 1)) || fail "one argument at most: what to prepare; see --help"
corpora=${1:-wiki_only}
vocab_file=${VOCAB_FILE:-}
vocab_size=${VOCAB_SIZE:-}
case $corpora in
  wiki_only) dataset=wikicorpus_en parts=(wikicorpus_en) ;;
  wiki_books) dataset=books_wiki_en_corpus parts=(bookscorpus wikicorpus_en) ;;
  sample) dataset=sample parts=(sample) vocab_size=${vocab_size:-4000} ;;
  pubmed_baseline) dataset=$corpora parts=("$corpora") ;;
  wikicorpus_*)
    dataset=$corpora parts=("$corpora")
    [[ $corpora == wikicorpus_en || -n "$vocab_file" ]] || vocab_size=${vocab_size:-30522}
    ;;
  *) fail "'$corpora': must be wiki_only, wiki_books, sample, pubmed_baseline or wikicorpus_<code> (wikicorpus_de)" ;;
esac
[[ -z "${VOCAB_FILE:-}" || -z "${VOCAB_SIZE:-}" ]] ||
  fail "VOCAB_FILE=$VOCAB_FILE is a vocabulary, and VOCAB_SIZE=$VOCAB_SIZE makes one: give either, not both"
[[ -z "$vocab_file" || -f "$vocab_file" ]] || fail "VOCAB_FILE=$vocab_file: there is no such file"
for name in VOCAB_SIZE DUPE_FACTOR N_PROCESSES; do # now, not after hours
  [[ "${!name:-1}" =~ ^[1-9][0-9]*$ ]] || fail "$name=${!name}: must be a whole number from 1 on"
done
[[ "${DO_LOWER_CASE:-0}" =~ ^[01]$ ]] || fail "DO_LOWER_CASE=$DO_LOWER_CASE: must be 0 or 1"

there=""
for part in "${parts[@]}"; do
  code=0
  prep download "$part" || code=$?
  if ((code == 0)); then
    there+=" $part"
  elif [[ "$part" == bookscorpus ]] && ((code == 69)); then # there are none, and nothing else is wrong
    echo "Going on with Wikipedia alone."
    dataset=wikicorpus_en
  else
    exit "$code"
  fi
done
if [[ -z "$vocab_file$vocab_size" ]]; then
  vocab_file="$BERT_PREP_WORKING_DIR/download/google_pretrained_weights/uncased_L-24_H-1024_A-16/vocab.txt"
  [[ -f "$vocab_file" ]] || prep download google_pretrained_weights ||
    fail "without Google's vocabulary: name another by VOCAB_FILE, or have one made from the text by VOCAB_SIZE=30522"
fi

for part in $there; do
  prep text_formatting "$part"
done
read -ra shards <<<"${SHARDS:-}"
prep sharding "$dataset" ${shards[@]+"${shards[@]}"}
if [[ -z "$vocab_file" ]]; then
  vocab_file="$BERT_PREP_WORKING_DIR/vocab/$dataset/vocab.txt"
  prep create_vocab "$dataset" --vocab_size "$vocab_size" --vocab_file "$vocab_file"
fi
[[ "$data_format" == records ]] || prep create_token_files "$dataset" --vocab_file "$vocab_file"
for lengths in "128 20" "512 80"; do
  read -r max_seq_length max_predictions_per_seq <<<"$lengths"
  stage=(create_tfrecord_files --max_predictions_per_seq "$max_predictions_per_seq" --vocab_file "$vocab_file")
  [[ "$data_format" == records ]] || stage=(create_pairs)
  prep "${stage[0]}" "$dataset" --max_seq_length "$max_seq_length" "${stage[@]:1}" \
    ${DUPE_FACTOR:+--dupe_factor "$DUPE_FACTOR"}
done
folder=tfrecord
[[ "$data_format" == records ]] || folder=tokens
echo "The data are below $BERT_PREP_WORKING_DIR/$folder"
