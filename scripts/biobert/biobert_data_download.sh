#!/usr/bin/env bash
# Downloads and prepares the data of BioBERT: see "biobert" in scripts/data_download.sh, whose variables it reads.
exec bash "$(dirname "$(readlink -f "$0")")/../data_download.sh" biobert "$@"
