#!/bin/sh
# Writes into the files of clusters/ which images their names stand for now, by digest. Run it after each push.
#
#   sh clusters/pin.sh [FILE...]
#
# A name without its digest, or with zeros for it as in these files when they are new, runs nowhere. The registries are
# asked by `docker buildx imagetools inspect`. Review what it changed, and commit it.
set -eu
here=$(dirname "$0")
if [ $# -eq 0 ]; then
  set -- "$here/Dockerfile" "$here/mlflow/Dockerfile" "$here/mlflow/compose.yaml" "$here"/ray_up/*.yaml "$here"/kuberay/*.yaml
fi
image='[a-z0-9][a-z0-9./_-]*:[A-Za-z0-9._-]*@sha256:[0-9a-f]\{64\}'
for file; do
  for found in $(grep -o "$image" "$file" | sort -u); do
    name=${found%@*}
    digest=$(docker buildx imagetools inspect --format '{{.Manifest.Digest}}' "$name")
    case $digest in
      sha256:*) ;;
      *) echo "the registry names no digest for $name; push it first, or log in" >&2; exit 1 ;;
    esac
    sed "s|$found|$name@$digest|g" "$file" > "$file.pinned"
    cat "$file.pinned" > "$file"
    rm "$file.pinned"
    echo "$file: $name@$digest"
  done
done
