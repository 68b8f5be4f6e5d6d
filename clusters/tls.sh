#!/bin/sh
# Certificates for Ray's own connections between nodes, each of which proves itself to the other.
#
#   sh clusters/tls.sh CA_FOLDER NODE_FOLDER ADDRESS...
#
# The authority, ca.crt and ca.key, is made if CA_FOLDER lacks it. NODE_FOLDER gets ca.crt, and tls.crt and tls.key for
# a node that others reach by these addresses or names. Whoever has ca.key can join: keep it off the nodes if you can.
set -eu
umask 077
if [ $# -lt 3 ]; then
  echo "usage: sh clusters/tls.sh CA_FOLDER NODE_FOLDER ADDRESS..." >&2
  exit 2
fi
ca=$1 node=$2
shift 2
mkdir -p "$ca" "$node"
if [ ! -e "$ca/ca.crt" ]; then
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -sha256 -days 3650 \
    -subj /CN=babeltune -keyout "$ca/ca.key" -out "$ca/ca.crt" 2> /dev/null
fi
names=DNS:localhost,IP:127.0.0.1
for name; do
  case $name in
    127.0.0.1 | localhost) ;;
    *:*) names=$names,IP:$name ;; # IPv6
    *[!0-9.]*) names=$names,DNS:$name ;;
    *) names=$names,IP:$name ;;
  esac
done
printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth,clientAuth\n' "$names" > "$node/tls.ext"
openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -sha256 -subj /CN=babeltune-node \
  -keyout "$node/tls.key" -out "$node/tls.csr" 2> /dev/null
openssl x509 -req -sha256 -days 825 -in "$node/tls.csr" -CA "$ca/ca.crt" -CAkey "$ca/ca.key" \
  -set_serial "0x$(openssl rand -hex 16)" -extfile "$node/tls.ext" -out "$node/tls.crt" 2> /dev/null
rm "$node/tls.csr" "$node/tls.ext"
cp "$ca/ca.crt" "$node/ca.crt"
