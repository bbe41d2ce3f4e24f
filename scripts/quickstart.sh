#!/usr/bin/env bash
# The whole recipe on a small scale, on a CPU: set-up, data, two-phase LAMB pre-training on two ranks, SQuAD
# fine-tuning from the pre-trained and from random weights, and a report.
#
#   bash scripts/quickstart.sh [--corpus PATH] [--squad FILE] [--vocab_file FILE]
#
#   --corpus PATH      your text instead of the sample: a Wikipedia dump (.xml, .xml.bz2), a text file,
#                      or a folder of .txt files; books are recognised
#   --squad FILE       your questions in SQuAD's format; a fifth of the paragraphs is held out for the scores
#   --vocab_file FILE  your vocab.txt; by default one is made from the text
#
# The same command resumes after an interruption. Each combination of your files has its own results folder.
if [ -z "${BASH_VERSION:-}" ] || shopt -oq posix; then exec env -u POSIXLY_CORRECT -u SHELLOPTS bash "$0" "$@"; fi # by sh
set -euo pipefail
typed_in=$PWD
self=$(readlink -f "$0")
cd "$(dirname "$self")/.."
# shellcheck source=scripts/paths.sh
source scripts/paths.sh

# Settings, sized for two cores and a few minutes.
bert_model=tiny
precision=fp32
vocab_size=1500
num_training_shards=8
num_test_shards=2
dupe_factor=3
batch_size_phase1=16 # for each of two ranks; a single rank accumulates two micro-batches
batch_size_phase2=8
learning_rate_phase1=15e-3 # rates are for all ranks together
learning_rate_phase2=8e-3
warmup_steps_phase1=120
warmup_steps_phase2=30
train_steps=1800 # nine tenths in phase 1
save_checkpoint_steps=200
squad_batch_size=16
squad_learning_rate=6e-4
squad_seq_length=128
squad_doc_stride=64
squad_epochs=5

usage() { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$self"; }

# --- Arguments, checked before anything is installed -------------------------------------------

corpus="" squad="" vocab_file=""
while (($#)); do
  case $1 in
    -h | --help)
      usage
      exit 0
      ;;
    --corpus=* | --squad=* | --vocab_file=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" ;;
    --corpus | --squad | --vocab_file)
      [[ -n "${2:-}" ]] || fail "$1 needs a value; see --help"
      declare "${1#--}=$(cd "$typed_in" && absolute "$2")"
      shift 2
      ;;
    *) fail "unknown argument '$1'; known are --corpus PATH, --squad FILE and --vocab_file FILE" ;;
  esac
done

readable_file() { # <option> <path>
  [[ -e "$2" ]] || fail "$1 $2: there is no such file"
  [[ -f "$2" && -r "$2" ]] || fail "$1 $2: not a readable file"
  [[ -s "$2" ]] || fail "$1 $2: the file is empty"
}

if [[ -n "$corpus" && -d "$corpus" ]]; then
  [[ -n "$(find -L "$corpus" -name '*.txt' -type f -size +0 -print -quit)" ]] ||
    fail "--corpus $corpus: the folder holds no .txt file that is not empty"
elif [[ -n "$corpus" ]]; then
  readable_file --corpus "$corpus"
fi
[[ -z "$squad" ]] || readable_file --squad "$squad"
[[ -z "$vocab_file" ]] || readable_file --vocab_file "$vocab_file"

# A results folder for each combination of the user's files.
results=results/quickstart
if [[ -n "$corpus$squad$vocab_file" ]]; then
  own=${corpus:-${squad:-$vocab_file}}
  name=$(basename -- "$own" | tr -c '[:alnum:]\n' - | cut -c1-40)
  results+="-$name-$(printf '%s\n' "${corpus:-/}" "${squad:-/}" "${vocab_file:-/}" | cksum | cut -d' ' -f1)"
fi
results=$(absolute "$results")
{ mkdir -p -- "$results" && [[ -w "$results" ]]; } 2>/dev/null ||
  fail "$results cannot be written to by user $(id -u); allow it, or mount another folder in a container"
export BERT_PREP_WORKING_DIR="$results/data"
unset DATA_DIR

started=$SECONDS
num_steps=7
step() { printf '\n=== %s/%s (%d:%02d) %s\n' "$1" "$num_steps" $(((SECONDS - started) / 60)) $(((SECONDS - started) % 60)) "$2"; }
prep() { python data/bertPrep.py "$@"; }
awk() { LC_ALL=C command awk "$@"; } # numbers have a point, whatever the language
per_rank() { awk "BEGIN{print $1 / $num_ranks}"; }

# --- 1 Set-up ----------------------------------------------------------------------------------

step 1 "Set-up"
bash scripts/setup.sh
# shellcheck disable=SC1091  # made by the line above
source "${BERT_VENV:-.venv}/bin/activate"
export TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-3}" CUDA_VISIBLE_DEVICES="" PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
num_ranks=2
if ! python -c 'import sys; from bert_tf.base.machine.software import horovod_library; sys.exit(not horovod_library())'; then
  num_ranks=1
  echo "Without Horovod one rank does the work of two."
fi
num_accumulation=$((2 / num_ranks))
pretraining=(
  "$batch_size_phase1" "$batch_size_phase2" 8 "$(per_rank "$learning_rate_phase1")" "$(per_rank "$learning_rate_phase2")"
  "$precision" true "$num_ranks" "$warmup_steps_phase1" "$warmup_steps_phase2" "$train_steps" "$save_checkpoint_steps"
  "$num_accumulation" "$num_accumulation" "$bert_model"
)
# Checks your questions and vocabulary before anything is made with them.
squad_dir="$results/questions" squad_version=1.1
if [[ -n "$squad" ]]; then
  squad_version=$(python scripts/own_files.py --squad "$squad" "$squad_dir")
fi
casing=(1 1) # do_lower_case and strip_accents
if [[ -n "$vocab_file" ]]; then
  found=$(python scripts/own_files.py --vocab_file "$vocab_file")
  read -ra casing <<<"$found"
fi

# --- 2 Text ------------------------------------------------------------------------------------

step 2 "Text: cleaned, one document per line"
case $corpus in
  "")
    dataset=sample
    prep --action download --dataset sample
    prep --action text_formatting --dataset sample
    ;;
  *.xml | *.xml.bz2 | *.xml-p[0-9]*p[0-9]*) # the last: a part of a published dump
    dataset=wikicorpus_en
    suffix=${corpus#"${corpus%.xml*}"}
    mkdir -p "$BERT_PREP_WORKING_DIR/download/wikicorpus_en"
    ln -sfn "$(absolute "$corpus")" "$BERT_PREP_WORKING_DIR/download/wikicorpus_en/wikicorpus_en$suffix"
    prep --action text_formatting --dataset wikicorpus_en
    ;;
  *)
    dataset=$(python scripts/own_files.py --corpus "$corpus")
    if [[ "$dataset" == custom ]]; then
      prep --action text_formatting --dataset custom --input_files "$(absolute "$corpus")"
    else
      books="$BERT_PREP_WORKING_DIR/download/bookscorpus"
      mkdir -p "$books"
      ln -sfn "$(absolute "$corpus")" "$books/$(basename -- "${corpus%.txt}").txt"
      prep --action text_formatting --dataset bookscorpus
      formatted="$BERT_PREP_WORKING_DIR/formatted_one_article_per_line"
      parts="$formatted/custom_one_document_per_line.txt"
      python scripts/own_files.py --parts "$formatted/bookscorpus_one_book_per_line.txt" "$parts"
      [[ ! -f "$parts" ]] || dataset=custom
    fi
    ;;
esac

# --- 3 Shards, vocabulary, records -------------------------------------------------------------

step 3 "Shards, vocabulary and training records"
num_documents=$(cat "$BERT_PREP_WORKING_DIR/formatted_one_article_per_line/$dataset"_one_*.txt | wc -l)
if ((num_documents < num_training_shards + num_test_shards)); then
  num_test_shards=1
  num_training_shards=$((num_documents > 8 ? num_documents / 4 : 1))
fi
prep --action sharding --dataset "$dataset" --n_training_shards "$num_training_shards" \
  --n_test_shards "$num_test_shards" --fraction_test_set 0.1
if [[ -z "$vocab_file" ]]; then
  vocab_file="$BERT_PREP_WORKING_DIR/vocab.txt"
  prep --action create_vocab --dataset "$dataset" --vocab_size "$vocab_size" --vocab_file "$vocab_file"
fi
for lengths in "128 20" "512 80"; do
  read -r max_seq_length max_predictions_per_seq <<<"$lengths"
  prep --action create_tfrecord_files --dataset "$dataset" --max_seq_length "$max_seq_length" \
    --max_predictions_per_seq "$max_predictions_per_seq" --vocab_file "$vocab_file" --dupe_factor "$dupe_factor" \
    --do_lower_case "${casing[0]}" --strip_accents "${casing[1]}"
done

# --- 4 Pre-training ----------------------------------------------------------------------------

step 4 "Pre-training in two phases on $num_ranks rank(s)"
DATASET=$dataset RESULTS_DIR="$results/pretraining" bash scripts/run_pretraining_lamb.sh "${pretraining[@]}"

# --- 5, 6 Fine-tuning --------------------------------------------------------------------------

if [[ -z "$squad" ]]; then
  [[ "$dataset" == sample ]] || prep --action download --dataset sample
  squad_dir="$BERT_PREP_WORKING_DIR/download/sample"
fi
finetune() { # <results> <checkpoint>
  SQUAD_DIR="$squad_dir" VOCAB_FILE="$vocab_file" RESULTS_DIR="$results/$1" bash scripts/run_squad.sh \
    "$(per_rank "$squad_batch_size")" "$(per_rank "$squad_learning_rate")" "$precision" true "$num_ranks" \
    "$squad_seq_length" "$squad_doc_stride" "$bert_model" "$squad_version" "$2" "$squad_epochs"
}
step 5 "Fine-tuning on questions, from the pre-trained weights"
finetune finetuned "$results/pretraining/phase_2"
step 6 "The same fine-tuning from random weights, for comparison"
finetune finetuned_from_random none

# --- 7 Report ----------------------------------------------------------------------------------

step 7 "Report"
runs=(pretraining/phase_1 pretraining/phase_2 finetuned/squad finetuned_from_random/squad)
python -c 'import sys
from bert_tf.report import write_page
write_page(sys.argv[2:], f"{sys.argv[1]}/report.html", title=sys.argv[1].rpartition("/")[2])' \
  "$results" "${runs[@]/#/$results/}"
score() { awk -v name="$2" '$1 == name {printf "%.3f", $3}' "$results/$1/eval_results.txt"; } # <run> <name>
for run in "${runs[@]}"; do
  printf '%s: %s\n' "$run" "$(awk '$3 ~ /[.]/ {printf "%s%s %.3f", (n++ ? ", " : ""), $1, $3}' "$results/$run/eval_results.txt")"
  if [[ -n "$(score "$run" NoAns_f1)" ]]; then
    printf '  F1 with an answer (HasAns) %s, without one (NoAns) %s' "$(score "$run" HasAns_f1)" "$(score "$run" NoAns_f1)"
    awk "BEGIN{exit !($(score "$run" HasAns_f1) < 1)}" && printf ': no question is answered, so nothing was learned'
    echo
  fi
done
shown=${results#"$PWD/"}
cat <<TEXT

Done in $(((SECONDS - started) / 60)) min $(((SECONDS - started) % 60)) s.
  curves        $shown/report.html  (TensorBoard: tensorboard --logdir $shown)
  checkpoints   $shown/pretraining/phase_2/checkpoints, $shown/finetuned/squad/checkpoints
  predictions   $shown/finetuned/squad/predictions.json
  data          $shown/data
TEXT
