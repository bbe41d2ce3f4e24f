#!/usr/bin/env bash
# Downloads the recipe's data and prepares it for pre-training.
#
#   bash scripts/data_download.sh [all|squad|glue|pretrained|biobert] [wiki_only|wiki_books]
#   bash scripts/data_download.sh wiki_only
#
#   squad        the questions, versions 1.1 and 2.0
#   glue         the nine sentence tasks
#   pretrained   Google's weights and vocabularies
#   biobert      pretrained; BC5CDR's entities and ChemProt's relations, ready for scripts/biobert; and PubMed's
#                abstracts, prepared with the uncased and the cased vocabulary of BERT-Base
#   all          (default) the first three, then data/create_datasets_from_start.sh, which downloads and
#                prepares Wikipedia, and with wiki_books the books in download/bookscorpus
#
# Runs in a container of the Docker image "bert" if that image exists, else directly. All files are below
# BERT_PREP_WORKING_DIR (default: data/). The same command resumes after an interruption. The variables
# of create_datasets_from_start.sh (VOCAB_FILE, N_PROCESSES, ...) have the same effect here.
if [ -z "${BASH_VERSION:-}" ] || shopt -oq posix; then exec env -u POSIXLY_CORRECT -u SHELLOPTS bash "$0" "$@"; fi # by sh
set -euo pipefail
root=$(cd "$(dirname "$(readlink -f "$0")")/.." && pwd -P)
export BERT_PREP_WORKING_DIR="${BERT_PREP_WORKING_DIR:-$root/data}"

# shellcheck source=scripts/paths.sh
source "$root/scripts/paths.sh"
if [[ "${*: -1}" == -h || "${*: -1}" == --help ]]; then
  sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
  exit 0
fi

# --- Arguments ---------------------------------------------------------------------------------

usage="usage: bash scripts/data_download.sh [all|squad|glue|pretrained|biobert] [wiki_only|wiki_books]"
what=all corpora=wiki_only
case ${1:-} in
  all | squad | glue | pretrained | biobert)
    what=$1
    shift
    ;;
esac
case ${1:-} in
  wiki_only | wiki_books)
    corpora=$1
    shift
    ;;
esac
(($# == 0)) || fail "'$1': $usage"

# --- In the container, if there is one ---------------------------------------------------------

inside_container() { [[ -e /.dockerenv || -n "${NVIDIA_PRODUCT_NAME:-}${SINGULARITY_CONTAINER:-}" ]]; }
if ! inside_container && command -v docker >/dev/null && docker image inspect bert >/dev/null 2>&1; then
  mkdir -p "$BERT_PREP_WORKING_DIR"
  exec bash "$root/scripts/docker/launch.sh" bash scripts/data_download.sh "$what" "$corpora"
fi

# --- Directly ----------------------------------------------------------------------------------

squad="squad"
glue="CoLA SST-2 MRPC STS-B QQP MNLI QNLI RTE WNLI"
pretrained="google_pretrained_weights"
case $what in
  squad) datasets=$squad ;;
  glue) datasets=$glue ;;
  pretrained) datasets=$pretrained ;;
  biobert) datasets="$pretrained bc5cdr chemprot" ;;
  all) datasets="$squad $glue $pretrained" ;;
esac
prep() {
  bash "$root/scripts/python.sh" "$root/data/bertPrep.py" --action "$1" --dataset "$2"
}
pubmed() { # prepares PubMed's abstracts with a vocabulary of BERT-Base
  VOCAB_FILE="$BERT_PREP_WORKING_DIR/download/google_pretrained_weights/$1_L-12_H-768_A-12/vocab.txt" \
    DO_LOWER_CASE=$2 bash "$root/data/create_datasets_from_start.sh" pubmed_baseline
}
# Without the packages every dataset would fail, for the same reason.
bash "$root/scripts/python.sh" "$root/data/bertPrep.py" --help >/dev/null
failed=""
for dataset in $datasets; do
  prep download "$dataset" || failed+=" $dataset"
done
if [[ "$what" == biobert ]]; then
  [[ "$failed" == *chemprot* ]] || prep text_formatting chemprot || failed+=" chemprot"
  pubmed uncased 1 && pubmed cased 0 || failed+=" pubmed_baseline"
fi
# A failed download for fine-tuning must not prevent pre-training.
[[ "$what" != all ]] || bash "$root/data/create_datasets_from_start.sh" "$corpora" || failed+=" $corpora"
[[ -z "$failed" ]] ||
  fail "failed:$failed (see the messages above); the same command resumes with what is missing"
